"""Runs a static plan on the CPU: one C function calls every kernel on fixed bytes."""

from __future__ import annotations

import ctypes
import tempfile
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import tvm
from tvm import IRModule, relax, tirx
from tvm.target import Target

from ..errors import BuildError
from . import threads
from .c_abi import build_c_abi
from .emit import ENTRY, entry_source, kernel_symbol
from .plan import ALIGNMENT, MemoryPlan, Plan, plan
from .toolchain import link_shared

__all__ = ["NativeExecutor"]


class NativeExecutor:
    """A plan and the shared library made for it; each thread has an arena, weights are shared."""

    device = tvm.cpu()

    def __init__(self, library: bytes, plan: Plan, kernels: tvm.runtime.Module | None = None):
        self.library = library
        self.plan, self._weights = _with_adjacent_weights(plan)
        self._kernels = kernels
        self._entry = _Library(library)
        self._local = threading.local()

    @property
    def memory(self) -> MemoryPlan:
        """What was planned for every thread, and what all threads share."""
        return MemoryPlan(self.plan.arena_bytes, self.plan.live_bytes, self.plan.weight_bytes)

    @classmethod
    def build(cls, module: IRModule, target: Target) -> NativeExecutor:
        """Plan and compile ``module`` (kernels already scheduled).

        Raises:
            NotStatic: the module needs the VM.
            BuildError: no C compiler, or it fails.
        """
        planned = plan(lower_views(module))
        used = {kernel.symbol for kernel in planned.kernels}
        kernels = {
            gv: f.with_attr("global_symbol", kernel_symbol(gv.name_hint))
            for gv, f in module.functions_items()
            if isinstance(f, tirx.PrimFunc) and gv.name_hint in used
        }
        compiled = build_c_abi(IRModule(kernels), target)
        return cls(_linked(compiled, planned), planned, compiled)

    def __call__(self, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
        return self._run(inputs, None)

    def _run(self, inputs: Sequence[np.ndarray], seconds: np.ndarray | None) -> list[np.ndarray]:
        outputs = [np.empty(slot.shape, slot.dtype) for slot in self.plan.outputs]
        self._entry(self._weights, self._arena, inputs, outputs, seconds)
        return outputs

    def sources(self) -> dict[str, str]:
        """The kernels as LLVM IR and as assembly, and the C function that calls them."""
        if self._kernels is None:
            return {"c": entry_source(self.plan)}
        return {
            "llvm": self._kernels.inspect_source("ll"),
            "asm": self._kernels.inspect_source("asm"),
            "c": entry_source(self.plan),
        }

    def time_kernels(
        self, inputs: Sequence[np.ndarray], repeat: int
    ) -> tuple[list[tuple[str, str]], np.ndarray]:
        """Each call's symbol and variable; its seconds in whole runs, ``[repeat, calls]``."""
        seconds = np.empty((repeat, len(self.plan.kernels)))
        for row in seconds:
            self._run(inputs, row)
        return [(kernel.symbol, kernel.variable) for kernel in self.plan.kernels], seconds

    @property
    def _arena(self) -> np.ndarray:
        if not hasattr(self._local, "arena"):
            self._local.arena = _aligned(self.plan.arena_bytes)
        return self._local.arena


class _Library:
    """The entry function of a shared library, whose parallel loops run on the common pool."""

    _pool: ctypes.CDLL | None = None  # the library whose runtime serves all of this process
    _loading = threading.Lock()

    def __init__(self, image: bytes):
        self._library = _loaded(image)
        with self._loading:
            if _Library._pool is None:
                _Library._pool = self._library
                threads.use_runtime(self._library)
            get = _Library._pool.tvmx_get_launcher
            get.restype = ctypes.c_void_p
            self._library.tvmx_set_launcher(ctypes.c_void_p(get()))
        self._function = getattr(self._library, ENTRY)
        self._function.argtypes = [ctypes.c_void_p] * 5

    def __call__(
        self,
        weights: np.ndarray,
        arena: np.ndarray,
        inputs: Sequence[np.ndarray],
        outputs: Sequence[np.ndarray],
        seconds: np.ndarray | None,
    ) -> None:
        code = self._function(
            weights.ctypes.data,
            arena.ctypes.data,
            _addresses(inputs),
            _addresses(outputs),
            None if seconds is None else seconds.ctypes.data,
        )
        if code != 0:
            raise MemoryError(f"a kernel returned {code}: no scratch memory")


def _addresses(arrays: Sequence[np.ndarray]) -> ctypes.Array:
    return (ctypes.c_void_p * len(arrays))(*(array.ctypes.data for array in arrays))


def _loaded(image: bytes) -> ctypes.CDLL:
    # A fresh name each time: the loader answers a known one with the library it already has.
    with tempfile.TemporaryDirectory(prefix="tvm_ext_") as folder:
        path = Path(folder, "library.so")
        path.write_bytes(image)
        return ctypes.CDLL(str(path))


def _linked(kernels: tvm.runtime.Module, plan: Plan) -> bytes:
    with tempfile.TemporaryDirectory(prefix="tvm_ext_") as folder:
        compiled, entry, library = (
            Path(folder, name) for name in ("kernels.o", "entry.c", "library.so")
        )
        try:
            kernels.write_to_file(str(compiled))
        except RuntimeError as error:
            raise BuildError(f"cannot write the kernels: {error}") from error
        entry.write_text(entry_source(plan))
        link_shared(library, [compiled], [entry])
        return library.read_bytes()


def _aligned(size: int) -> np.ndarray:
    """Uninitialised bytes at a multiple of ALIGNMENT."""
    raw = np.empty(size + ALIGNMENT, np.uint8)
    start = -raw.ctypes.data % ALIGNMENT
    return raw[start : start + size]


def _with_adjacent_weights(plan: Plan) -> tuple[Plan, np.ndarray]:
    """The plan with weights that lie one after the other, and their bytes.

    No copy where they lie so already, as in a mapped file.
    """
    if _are_adjacent(plan):
        return plan, plan.weights[0]
    whole = _aligned(plan.weight_bytes)
    weights = []
    for array, offset in zip(plan.weights, plan.weight_offsets, strict=True):
        place = whole[offset : offset + array.nbytes].view(array.dtype).reshape(array.shape)
        place[...] = array
        weights.append(place)
    return replace(plan, weights=tuple(weights)), whole


def _are_adjacent(plan: Plan) -> bool:
    starts = [array.ctypes.data for array in plan.weights]
    return (
        bool(starts)
        and starts[0] % ALIGNMENT == 0
        and starts == [starts[0] + offset for offset in plan.weight_offsets]
    )


def lower_views(module: IRModule) -> IRModule:
    """Kernels that only reshape become views."""
    return tvm.ir.transform.Sequential(
        [
            relax.transform.RewriteDataflowReshape(),
            relax.transform.CanonicalizeBindings(),
        ]
    )(module)
