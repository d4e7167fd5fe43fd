"""Which executor runs a module."""

from __future__ import annotations

import logging

from tvm import IRModule
from tvm.target import Target

from .plan import NotStatic
from .static import StaticExecutor
from .vm import VMExecutor

__all__ = ["build_executor"]

_log = logging.getLogger(__name__)


def build_executor(module: IRModule, target: Target) -> StaticExecutor | VMExecutor:
    """The static executor where shapes are static and the target is a CPU, else the VM."""
    if target.kind.name != "cuda":
        try:
            return StaticExecutor.build(module, target)
        except NotStatic as reason:
            _log.debug("the VM runs this model: %s", reason)
    return VMExecutor.build(module, target)
