"""The asking side of :mod:`tvm_ext.compare.worker`."""

import os
import pickle
import subprocess
import sys
import tempfile
from typing import Any

from ..errors import ComparisonError
from .worker import Job, main

__all__ = ["Worker"]


class Worker:
    """A fresh process with one engine and one model; use it as a context manager.

    Raises:
        ComparisonError: the engine failed or its process died; with its last words.
    """

    def __init__(self, job: Job):
        self.engine = job.engine
        threads = str(job.threads)
        # A file, not a pipe: nobody reads while the worker runs.
        self._log = tempfile.TemporaryFile("w+", errors="replace")
        self._process = subprocess.Popen(
            [sys.executable, "-c", f"from {main.__module__} import main; main()"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env={**os.environ, "TVM_NUM_THREADS": threads, "OMP_NUM_THREADS": threads},
        )
        try:
            assert self._process.stdin and self._process.stdout  # both are pipes
            self._requests, self._replies = self._process.stdin, self._process.stdout
            self._exchange(job)
        except BaseException:  # an interrupt, too: nobody has this object yet to close it
            self.close()
            raise

    def __enter__(self) -> "Worker":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    @property
    def pid(self) -> int:
        """The id of the process."""
        return self._process.pid

    def ask(self, method: str, *arguments: object) -> Any:
        """The result of a method of :class:`tvm_ext.compare.worker.Session`."""
        return self._exchange((method, arguments))

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        with self._log, self._process:  # which waits, and closes the pipes
            pass

    def _exchange(self, request: object) -> Any:
        try:
            pickle.dump(request, self._requests)
            self._requests.flush()
            ok, value = pickle.load(self._replies)
        except (EOFError, OSError) as error:
            raise ComparisonError(f"{self.engine.name}: {self._last_words()}") from error
        if not ok:
            raise ComparisonError(f"{self.engine.name}: {value}")
        return value

    def _last_words(self) -> str:
        code = self._process.wait()
        self._log.seek(0)
        lines = self._log.read().strip().splitlines()
        return f"its process ended with code {code}" + (f": {lines[-1]}" if lines else "")
