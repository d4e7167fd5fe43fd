"""Which executor runs a module."""

from __future__ import annotations

import logging

from tvm import IRModule
from tvm.target import Target

from .planning import NotStatic
from .static import StaticExecutor
from .static_build import build_static
from .vm import VMExecutor

__all__ = ["build_executor"]

_log = logging.getLogger(__name__)


def build_executor(module: IRModule, target: Target) -> StaticExecutor | VMExecutor:
    """The static executor where shapes are static and the target is a CPU, else the VM."""
    if target.kind.name != "cuda":
        try:
            return build_static(module, target)
        except NotStatic as reason:
            _log.debug("the VM runs this model: %s", reason)
    return VMExecutor.build(module, target)
