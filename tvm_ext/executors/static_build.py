"""Compiles a scheduled module of static shape: plan, kernels with a C ABI, one library."""

from __future__ import annotations

import tempfile
from functools import cache
from pathlib import Path

import numpy as np
import tvm
from tvm import IRModule, relax, tirx
from tvm.target import Target

from ..errors import BuildError
from .c_abi import build_c_abi, calls_tvm
from .cpu_features import needs_of
from .emit import entry_source, kernel_symbol
from .plan import Plan
from .planning import NotStatic, plan
from .static import StaticExecutor
from .toolchain import link_shared

__all__ = ["build_static"]

_TEXTS = {"llvm": "ll", "asm": "asm"}


def build_static(module: IRModule, target: Target) -> StaticExecutor:
    """Plan and compile ``module`` (kernels already scheduled).

    Raises:
        NotStatic: the module needs the VM.
        BuildError: there is no C compiler, or it fails.
    """
    planned, weights = plan(lower_views(module))
    used = {kernel.symbol for kernel in planned.kernels}
    functions = {
        gv: f.with_attr("global_symbol", kernel_symbol(gv.name_hint))
        for gv, f in module.functions_items()
        if isinstance(f, tirx.PrimFunc) and gv.name_hint in used
    }
    if any(map(calls_tvm, functions.values())):
        raise NotStatic("a kernel that calls TVM")
    needs = needs_of(target)
    kernels = build_c_abi(IRModule(functions), target)

    @cache
    def linked() -> np.ndarray:
        return _linked(kernels, planned, needs.triple if needs.foreign else None)

    def sources() -> dict[str, str]:
        texts = {name: kernels.inspect_source(kind) for name, kind in _TEXTS.items()}
        return {"c": entry_source(planned)} | texts

    if not needs.foreign:
        linked()
    return StaticExecutor(planned, needs, weights, linked, sources=sources)


def lower_views(module: IRModule) -> IRModule:
    """Kernels that only reshape become views."""
    return tvm.ir.transform.Sequential(
        [
            relax.transform.RewriteDataflowReshape(),
            relax.transform.CanonicalizeBindings(),
        ]
    )(module)


def _linked(kernels: tvm.runtime.Module, plan: Plan, triple: str | None) -> np.ndarray:
    """The bytes of the shared library, for this machine or that of ``triple``."""
    with tempfile.TemporaryDirectory(prefix="tvm_ext_") as folder:
        compiled, entry, library = (
            Path(folder, name) for name in ("kernels.o", "entry.c", "library.so")
        )
        try:
            kernels.write_to_file(str(compiled))
        except RuntimeError as error:
            raise BuildError(f"cannot write the kernels: {error}") from error
        entry.write_text(entry_source(plan))
        link_shared(library, [compiled], [entry], triple)
        return np.frombuffer(library.read_bytes(), np.uint8)
