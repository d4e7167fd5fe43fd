"""Which executor runs a module."""

from __future__ import annotations

import logging

from tvm import IRModule
from tvm.target import Target

from .formulas import NotStatic
from .static import StaticExecutor
from .static_build import build_static
from .symbolic import SymbolicExecutor
from .symbolic_build import build_symbolic
from .vm import VMExecutor

__all__ = ["build_executor"]

_log = logging.getLogger(__name__)


Executor = StaticExecutor | SymbolicExecutor | VMExecutor


def build_executor(module: IRModule, target: Target) -> Executor:
    """On a CPU the static executor, where dims are symbolic the symbolic one, else the VM."""
    if target.kind.name != "cuda":
        for build in build_static, build_symbolic:
            try:
                return build(module, target)
            except NotStatic as reason:
                _log.debug("not by %s: %s", build.__name__, reason)
    return VMExecutor.build(module, target)
