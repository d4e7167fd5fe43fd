"""One engine in a fresh process: it answers pickled requests from stdin on stdout.

Its own process, because two thread pools in one disturb each other, and because memory can only
be told apart there.
"""

import os
import pickle
import signal
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from .engines import Engine, Feeds
from .optional import require
from .statistics import Block

__all__ = ["Job", "Session", "main"]

# The part of a block that runs before the clock starts: caches hold the other engine's data.
WARM_UP = 0.2


@dataclass(frozen=True)
class Job:
    """What a worker measures: the model file of an engine on given inputs.

    ``plugins`` are loaded first, for the references of their operators.
    """

    engine: Engine
    path: Path
    feeds: Feeds
    threads: int
    plugins: tuple[str, ...] = ()


class Session:
    """An engine with its model loaded; every public method can be asked for from outside."""

    def __init__(self, job: Job):
        self._process = require("psutil").Process()
        engine = job.engine
        require(engine.module)
        for plugin in job.plugins:
            require("tvm_ext.extend").load(plugin)
        version = str(require(engine.package).__version__)
        self._version = version.partition("-")[0]  # openvino adds its commit
        self._feeds = job.feeds
        before = self._process.memory_info().rss
        start = time.perf_counter()
        self._model = engine.open(job.path, job.threads)
        self._load_seconds = time.perf_counter() - start
        self._outputs = self._run()
        self._run()
        self._process_bytes = self._process.memory_info().rss
        self._resident = self._process_bytes - before

    def facts(self) -> tuple[str, float, int, int]:
        """Version, seconds to load, resident bytes that load and runs added, and of the process."""
        return self._version, self._load_seconds, self._resident, self._process_bytes

    def outputs(self) -> list:
        """What the first run gave."""
        return self._outputs

    def block(self, seconds: float) -> Block:
        """Run for ``seconds``, at least once."""
        self._run_for(seconds * WARM_UP)
        everyone, own, start = _cpu_seconds(), self._cpu_seconds(), time.perf_counter()
        runs = self._run_for(seconds)
        elapsed = time.perf_counter() - start
        own, everyone = self._cpu_seconds() - own, _cpu_seconds() - everyone
        return Block(tuple(runs), max(0.0, (everyone - own) / elapsed))

    def _run(self) -> list[np.ndarray]:
        return self._model(self._feeds)

    def _run_for(self, seconds: float) -> list[float]:
        clock = time.perf_counter
        runs: list[float] = []
        end = clock() + seconds
        while not runs or clock() < end:
            start = clock()
            self._run()
            runs.append(clock() - start)
        return runs

    def _cpu_seconds(self) -> float:
        times = self._process.cpu_times()
        return times.user + times.system


def _cpu_seconds() -> float:
    """CPU seconds spent by all processes of the machine since it started."""
    times = require("psutil").cpu_times()._asdict()
    idle = ("idle", "iowait", "guest", "guest_nice")  # guest time is in user time already
    return sum(seconds for state, seconds in times.items() if state not in idle)


def main() -> None:
    """Serve requests until stdin ends.

    An interrupt goes to every process of a terminal: the asking one ends this one.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    replies = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what libraries print is not a reply
    requests = sys.stdin.buffer

    def reply(ok: bool, value: object) -> None:
        pickle.dump((ok, value), replies)
        replies.flush()

    try:
        session = Session(pickle.load(requests))
        reply(True, None)
        while request := _next(requests):
            method, arguments = request
            reply(True, getattr(session, method)(*arguments))
    except Exception as error:  # noqa: BLE001  every failure is told to the asking process
        reply(False, f"{type(error).__name__}: {error}")


def _next(requests) -> tuple[str, tuple] | None:
    try:
        return pickle.load(requests)
    except EOFError:
        return None
