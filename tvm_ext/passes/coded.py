"""Floats that stand for integers of a few bits: what QuantizeLinear gives, DequantizeLinear reads.

After the rewrites ``c = QuantizeLinear(x * (1 / s), 1, z)`` and ``y = DequantizeLinear(c, s, z)``
are kernels, by whose attribute they are known here. Together they round: ``y`` is ``s`` times the
whole number next to ``x / s`` that ``c - z`` may be.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from tvm import relax
from tvm.ir import GlobalVar

from tvm_ext.ops.quantization import CODES

from .facts import dtype_of, number_of
from .graph import Graph

__all__ = ["Codes", "dequantised", "round_trip"]


@dataclass(frozen=True)
class Codes:
    """Integers from ``low`` to ``high``, each of which stands for ``scale * (it - zero)``."""

    scale: float
    zero: int
    low: int
    high: int


def dequantised(graph: Graph, expr: relax.Expr) -> tuple[relax.Expr, Codes] | None:
    """The integers that ``expr`` is the float32 of, where all have one known scale."""
    found = _of_kernel(graph, expr)
    if found is None or dtype_of(expr) != "float32":
        return None
    kind, (integers, scale, *zero) = found
    factor, origin = number_of(scale), number_of(zero[0]) if zero else 0
    if factor is None or origin is None:
        return None
    info = np.iinfo(kind)
    return integers, Codes(factor, int(origin), int(info.min), int(info.max))


def round_trip(graph: Graph, expr: relax.Expr) -> tuple[relax.Expr, Codes] | None:
    """What ``expr`` is rounded from, in units of its scale; integers that nothing else reads."""
    found = dequantised(graph, expr)
    if found is None or graph.uses[found[0]] != 1:
        return None
    integers, codes = found
    made = _of_kernel(graph, integers)
    if made is None or dtype_of(integers) == "float32":
        return None
    _, (source, *zero) = made
    same = (number_of(zero[0]) if zero else 0) == codes.zero
    return (source, codes) if same else None


def _of_kernel(graph: Graph, expr: relax.Expr) -> tuple[str, list[relax.Expr]] | None:
    """The type of the integers, and the operands, of the kernel that makes or reads them."""
    call = graph.call(expr, "relax.call_tir")
    if call is None or graph.module is None or not isinstance(call.args[0], GlobalVar):
        return None
    kind = (graph.module[call.args[0]].attrs or {}).get(CODES, None)
    return None if kind is None else (str(kind), list(call.args[1].fields))
