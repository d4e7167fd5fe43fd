"""Run tasks in child processes of their own, each with a time limit."""

import multiprocessing
import os
import signal
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from typing import NamedTuple

from .registry import Task

__all__ = ["Result", "run"]

_context = multiprocessing.get_context("forkserver")


class Result(NamedTuple):
    """What came of a task: "" or the reason of its failure, and the seconds it took."""

    task: Task
    reason: str
    seconds: float


def run(tasks: Iterable[Task], jobs: int, limit: float) -> Iterator[Result]:
    """Yield the results in order; a task that takes ``limit`` seconds is ended."""
    _context.set_forkserver_preload([f"{__package__}.check"])  # torch and TVM are loaded once
    with ThreadPoolExecutor(jobs) as pool:
        yield from pool.map(lambda task: _run(task, limit), tasks)


def _run(task: Task, limit: float) -> Result:
    ours, theirs = _context.Pipe(duplex=False)
    process = _context.Process(target=_serve, args=(task, theirs), daemon=True)
    start = time.monotonic()
    process.start()
    theirs.close()
    try:
        reason = ours.recv() if ours.poll(limit) else f"no answer in {limit:.0f} s"
    except EOFError:
        process.join()
        code = process.exitcode
        reason = f"crash: {signal.Signals(-code).name if code < 0 else f'exit code {code}'}"
    process.kill()
    process.join()
    return Result(task, reason, time.monotonic() - start)


def _serve(task: Task, pipe: Connection) -> None:
    quiet = os.open(os.devnull, os.O_WRONLY)
    os.dup2(quiet, 1)
    os.dup2(quiet, 2)
    from .check import check, reason

    try:
        check(task)
    except Exception as error:  # noqa: BLE001  any failure is what is asked for
        pipe.send(reason(error))
    else:
        pipe.send("")
