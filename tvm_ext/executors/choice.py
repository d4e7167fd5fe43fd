"""Which executor runs a module."""

from __future__ import annotations

import logging

from tvm import IRModule, tirx
from tvm.target import Target

from .c_abi import calls_tvm
from .formulas import NotStatic
from .static import StaticExecutor
from .static_build import build_static, walk_static
from .symbolic import SymbolicExecutor
from .symbolic_build import build_symbolic, walk_symbolic
from .vm import VMExecutor

__all__ = ["build_executor", "is_planned"]

_log = logging.getLogger(__name__)


Executor = StaticExecutor | SymbolicExecutor | VMExecutor


def is_planned(module: IRModule, target: Target) -> bool:
    """Whether one of our executors will run ``module``, not the VM, once kernels are scheduled."""
    kernels = [f for _, f in module.functions_items() if isinstance(f, tirx.PrimFunc)]
    if target.kind.name == "cuda" or any(map(calls_tvm, kernels)):
        return False
    for walk in walk_static, walk_symbolic:
        try:
            walk(module, target)
        except NotStatic:
            continue
        return True
    return False


def build_executor(module: IRModule, target: Target) -> Executor:
    """On a CPU the static executor, where dims are symbolic the symbolic one, else the VM."""
    if target.kind.name != "cuda":
        for build in build_static, build_symbolic:
            try:
                return build(module, target)
            except NotStatic as reason:
                _log.debug("not by %s: %s", build.__name__, reason)
    return VMExecutor.build(module, target)
