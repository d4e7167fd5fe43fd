"""Graph rewrites on ONNX, one rule per file, and the order in which they run."""

from collections.abc import Callable

import onnx_ir as ir

__all__ = ["steps"]

Rewrite = Callable[[ir.Model], ir.Model]


def steps(opt_level: int) -> list[tuple[str, Rewrite]]:
    """The named rewrites of an opt level, in order; each maps a model to a model."""
    return []
