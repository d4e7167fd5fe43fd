"""Values known at compile time: ints and symbolic dims."""

from dataclasses import dataclass

import numpy as np
from tvm import tirx
from tvm.sym import Analyzer

__all__ = [
    "MAX_ELEMENTS", "MAX_SYMBOLIC", "Known", "as_expr", "is_literal", "simplified", "slice_range",
]  # fmt: skip

# Shapes are short; beyond this a value is data, not a shape.
MAX_ELEMENTS = 1024
# Likewise where some are symbolic: a kernel that makes them chooses among as many formulas.
MAX_SYMBOLIC = 128


@dataclass(frozen=True)
class Known:
    """An array known at compile time; its elements may be symbolic dims (then dtype is object)."""

    array: np.ndarray
    dtype: str

    @property
    def symbolic(self) -> bool:
        return self.array.dtype == object and any(isinstance(e, tirx.Expr) for e in self.array.flat)


def as_expr(dim: object) -> tirx.Expr:
    """``dim``, an int or symbolic, as an int64 expression."""
    return dim if isinstance(dim, tirx.Expr) else tirx.const(int(dim), "int64")


def is_literal(number: np.ndarray) -> bool:
    """Whether a Relax operator holds ``number``: a finite float32, or an integer of int64."""
    if "float" in str(number.dtype):
        return bool(abs(number.astype("float64")) <= np.finfo("float32").max)
    return int(number.item()) <= np.iinfo("int64").max


def simplified(dim: object, analyzer: Analyzer) -> object:
    """``dim`` as an int where its value is known, else in simplified form."""
    if not isinstance(dim, tirx.Expr):
        return int(dim)
    dim = analyzer.simplify(dim)
    return int(dim) if isinstance(dim, tirx.IntImm) else dim


def slice_range(start: int, end: int, step: int, dim: int) -> range:
    """The positions that ONNX's Slice takes of ``dim`` elements.

    A start before the first element is the first one, also backwards, where numpy takes nothing.
    """
    first, last = (0, dim) if step > 0 else (0, dim - 1)
    start, end = (v + dim if v < 0 else v for v in (start, end))
    begin = min(max(start, first), last)
    stop = min(max(end, first - (step < 0)), last)
    return range(begin, stop, step) if dim else range(0)
