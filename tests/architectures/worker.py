"""Run tasks in child processes of their own, each with a time limit."""

import multiprocessing
import os
import signal
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from typing import NamedTuple

from .registry import NOT_EXPORTED, Task

__all__ = ["Result", "run"]

EXPORTED = "exported"

_context = multiprocessing.get_context("forkserver")


class Result(NamedTuple):
    """What came of a task.

    Attributes:
        task: which.
        reason: why it failed, "" where all is equal.
        seconds: how long it took, exporting included.
        error: the largest difference, relative to the largest value of an output.
        build: CPU seconds that building took.
        cpu: CPU seconds of the whole, None where it was ended or crashed.
        refusal: why onnxruntime refuses the model, where it is compared with torch instead.
    """

    task: Task
    reason: str
    seconds: float
    error: float | None = None
    build: float | None = None
    cpu: float | None = None
    refusal: str = ""


def run(tasks: Iterable[Task], jobs: int, limit: float) -> Iterator[Result]:
    """Yield the results in order; an export or a build that takes ``limit`` seconds is ended."""
    _context.set_forkserver_preload([f"{__package__}.preload"])  # torch, TVM: loaded once
    with ThreadPoolExecutor(jobs) as pool:
        yield from pool.map(lambda task: _run(task, limit), tasks)


def _run(task: Task, limit: float) -> Result:
    ours, theirs = _context.Pipe(duplex=False)
    process = _context.Process(target=_serve, args=(task, theirs), daemon=True)
    start = time.monotonic()
    process.start()
    theirs.close()
    exported, answer = False, None
    try:
        while answer is None:
            if not ours.poll(limit):
                answer = (f"no answer in {limit:.0f} s",)
            elif (message := ours.recv()) == EXPORTED:
                exported = True
            else:
                answer = message
    except EOFError:
        process.join()
        code = process.exitcode
        answer = (f"crash: {signal.Signals(-code).name if code < 0 else f'exit code {code}'}",)
    process.kill()
    process.join()
    reason, *measured = answer
    if reason and not exported and not reason.startswith(NOT_EXPORTED):
        reason = f"{NOT_EXPORTED}: {reason}"
    return Result(task, reason, time.monotonic() - start, *measured)


def _serve(task: Task, pipe: Connection) -> None:
    quiet = os.open(os.devnull, os.O_WRONLY)
    os.dup2(quiet, 1)
    os.dup2(quiet, 2)
    from .check import cpu_seconds, equal, export, reason

    refusal = ""
    try:
        exported = export(task)
        refusal = exported.refusal
        pipe.send(EXPORTED)
        answer = "", *equal(exported)
    except Exception as error:  # noqa: BLE001  any failure is what is asked for
        answer = reason(error), None, None
    pipe.send((*answer, cpu_seconds(), refusal))
