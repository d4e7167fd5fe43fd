"""Run cases of the suite in child processes, so that a crash costs one case only."""

import multiprocessing
import os
import re
import signal
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from queue import SimpleQueue
from time import perf_counter
from typing import Any, NamedTuple

from tvm_ext.errors import ConversionError

from . import Task

__all__ = ["Result", "Worker", "run"]

_SECONDS_PER_CASE = 120

# Where torch is, TVM loads an extension that asks for GPUs: no fork of that process could use one.
os.environ.setdefault("TVM_FFI_DISABLE_TORCH_C_DLPACK", "1")

# Why results differ, by the beginning of a case's name: what an assertion says is only how much.
_CAUSES = {
    "test_attention_4d_causal_fp16": "sums of float16 products in float32, rounded once; the suite "
    "rounds after each step to float16",
    "test_dft_inverse": "summed in float64; the suite asks for zeros of an FFT in float32 "
    "within 1e-7",
    "test_range_bfloat16": "the suite's function body divides in bfloat16 and gets another length",
    "test_training_dropout": "the mask is drawn by another generator than numpy's",
    "test_loop16_seq_none": "the suite's comparison asks arrays of rank 0 for their length",
    "test_bernoulli": "drawn by another generator than numpy's",
}


class Result(NamedTuple):
    """What became of a task: why it failed, or ""."""

    task: Task
    seconds: float
    reason: str


def run(tasks: Iterable[Task], jobs: int = 1) -> Iterator[Result]:
    """The results of all ``tasks``, in order."""
    idle: SimpleQueue[Worker] = SimpleQueue()
    for _ in range(jobs):
        idle.put(Worker(_failure))

    def one(task: Task) -> Result:
        worker = idle.get()
        begin = perf_counter()
        try:
            reason = worker(task)
            return Result(task, round(perf_counter() - begin, 3), reason)
        finally:
            idle.put(worker)

    with ThreadPoolExecutor(jobs) as pool:
        yield from pool.map(one, tasks)


class Worker:
    """A child process that answers one task at a time and is replaced when it dies.

    Instead of an answer comes why there is none, as text.
    """

    _context = multiprocessing.get_context("forkserver")
    _context.set_forkserver_preload([__name__])  # the suite is loaded once, then forked

    def __init__(self, answer: Callable, seconds: float = _SECONDS_PER_CASE):
        self._answer = answer  # of a module, so that it can be sent to the child
        self._seconds = seconds  # that it may take
        self._start()

    def _start(self) -> None:
        self._pipe, theirs = self._context.Pipe()
        arguments = theirs, self._answer
        self._process = self._context.Process(target=_serve, args=arguments, daemon=True)
        self._process.start()
        theirs.close()

    def __call__(self, task: object) -> Any:
        self._pipe.send(task)
        try:
            if self._pipe.poll(self._seconds):
                return self._pipe.recv()
            self._process.kill()
            return self._restarted(f"no answer in {self._seconds} s")
        except (EOFError, ConnectionResetError):
            self._process.join()
            code = self._process.exitcode
            cause = signal.Signals(-code).name if code < 0 else f"exit code {code}"
            return self._restarted(f"crash: {cause}")

    def _restarted(self, reason: str) -> str:
        self._start()
        return reason


def _serve(pipe: Connection, answer: Callable) -> None:
    quiet = os.open(os.devnull, os.O_WRONLY)
    os.dup2(quiet, 1)
    os.dup2(quiet, 2)
    while True:
        pipe.send(answer(pipe.recv()))


def _failure(task: Task) -> str:
    try:
        task.run()
    except Exception as error:  # noqa: BLE001  any failure is what is asked for
        return _reason(task.name, error)
    return ""


def _reason(name: str, error: Exception) -> str:
    """One line that says why, without what varies from case to case."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [""]
    if isinstance(error, ConversionError):
        node = error.nodes[0]
        operator = f"{node.domain}.{node.op_type}" if node.domain else node.op_type
        return f"{operator}-{node.since_version}: {node.reason.splitlines()[0][:160]}"
    known = [cause for start, cause in _CAUSES.items() if name.startswith(start)]
    if isinstance(error, AssertionError) or "Unable to compare" in lines[0]:
        differing = [line for line in lines if re.match(r"Mismatched|x and y|Output", line)]
        return f"wrong result: {(known or differing or lines)[0][:160]}"
    return f"{type(error).__name__}: {lines[0][:160]}"
