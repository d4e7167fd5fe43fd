"""The machine that candidates run on: this one, or one behind TVM's RPC tracker."""

from __future__ import annotations

import socket
from pathlib import Path
from tempfile import TemporaryDirectory

import ml_dtypes  # noqa: F401  numpy learns bfloat16 and the float8 types by their names
import numpy as np
import tvm
from tvm import IRModule, rpc
from tvm.target import Target

from ..errors import BuildError
from ..executors.forks import on_live_pool
from ..executors.lowering import TIR_PIPELINE

__all__ = ["FAILED", "Device", "Kernel"]

#: What TVM raises where a kernel cannot be compiled or run, and where a machine has gone.
FAILED = RuntimeError, ValueError, TypeError, AttributeError, LookupError, OSError

# Before each call the caches forget all but the first argument, which the kernel before has left
# there: in a whole network weights come from memory.
_FLUSH = "cache_flush_cpu_non_first_arg"
_CALLS = 9
_ANSWER_SECONDS = 10
_SLOW = 2.0


class Device:
    """Compiles kernels for ``target`` and runs them.

    Args:
        tracker: ``host:port`` of the tracker to ask for a machine; None: this one.
        key: under which the tracker has that kind of machine.

    Raises:
        BuildError: the tracker cannot be reached, or has no such machine.
    """

    def __init__(self, target: Target, tracker: str | None = None, key: str | None = None):
        self.target = target
        self._tracker, self._loaded = tracker, 0
        self._session = None if tracker is None else _lent(tracker, str(key))

    def load(self, module: IRModule) -> Kernel | None:
        """The scheduled kernel ``main`` of ``module``, ready to run; None where it fails.

        Raises:
            BuildError: the machine has gone.
        """
        try:
            built = tvm.compile(module, self.target, tir_pipeline=TIR_PIPELINE)
            if self._session is None:
                return Kernel(built.mod, tvm.cpu(), module)
            return Kernel(self._sent(built, self._session), self._session.cpu(), module)
        except FAILED:
            self.check()
            return None

    def _sent(self, built: tvm.runtime.Executable, session: rpc.RPCSession) -> tvm.runtime.Module:
        """``built`` as objects, which the other machine links."""
        self._loaded += 1  # a library of the same name would not be loaded again
        name = f"kernel{self._loaded}.tar"
        with TemporaryDirectory() as folder:
            built.export_library(str(Path(folder, name)))
            session.upload(str(Path(folder, name)))
        return session.load_module(name)

    def check(self) -> None:
        """Tell a kernel that fails from a machine that is not there.

        Raises:
            BuildError: the machine has gone.
        """
        if self._session is None:
            return
        try:
            self._session.get_function("runtime.NumThreads")()
        except FAILED as error:
            raise BuildError(f"the machine of the tracker {self._tracker} has gone") from error


class Kernel:
    """A compiled kernel and arguments for it: seeded numbers, the same for all of one form."""

    def __init__(self, library: tvm.runtime.Module, device: tvm.runtime.Device, module: IRModule):
        self._library, self._device = library, device
        rng = np.random.default_rng(0)
        types = [param.ty for param in module["main"].params]
        arrays = (_numbers(rng, [int(d) for d in ty.shape], str(ty.dtype.dtype)) for ty in types)
        self._arguments = [tvm.runtime.tensor(array, device) for array in arrays]

    def results(self) -> list[np.ndarray]:
        """All arguments after a run: those that the kernel writes are among them."""
        on_live_pool(self._library["main"], *self._arguments)
        return [argument.numpy() for argument in self._arguments]

    def seconds(self, best: float | None = None) -> float:
        """The least of several calls, as other processes only add to it.

        Of the first alone where ``best`` is far from it.
        """
        first = self._times(1)
        if best is not None and first[0] > _SLOW * best:
            return first[0]
        return min(*first, *self._times(_CALLS - 1))

    def _times(self, calls: int) -> list[float]:
        evaluate = self._library.time_evaluator(
            "main", self._device, number=1, repeat=calls, f_preproc=_FLUSH
        )
        return [float(seconds) for seconds in on_live_pool(evaluate, *self._arguments).results]


def _numbers(rng: np.random.Generator, shape: list[int], dtype: str) -> np.ndarray:
    """Floats in [0, 1), bytes up to 100; other integers are indices, of which 0 is in range."""
    if dtype in ("int8", "uint8"):
        return rng.integers(0, 100, shape).astype(dtype)
    return rng.random(shape).astype(dtype)


def _lent(tracker: str, key: str) -> rpc.RPCSession:
    host, _, port = tracker.rpartition(":")
    try:
        # TVM would knock for a minute.
        socket.create_connection((host, int(port)), _ANSWER_SECONDS).close()
        session = rpc.connect_tracker(host, int(port))
        servers = session.summary()["server_info"]
        there = {str(server["key"]).partition(":")[2] for server in servers}
        if key in there:
            return session.request(key)
    except FAILED as error:
        raise BuildError(f"no {key!r} behind the tracker {tracker}: {error}") from error
    raise BuildError(f"no {key!r} behind the tracker {tracker}, which has {sorted(there)}")
