"""Values known at compile time: ints and symbolic dims."""

from dataclasses import dataclass

import numpy as np
from tvm import tirx
from tvm.sym import Analyzer

__all__ = ["MAX_ELEMENTS", "Known", "simplified"]

# Shapes are short; beyond this a value is data, not a shape.
MAX_ELEMENTS = 1024


@dataclass(frozen=True)
class Known:
    """An array known at compile time; its elements may be symbolic dims (then dtype is object)."""

    array: np.ndarray
    dtype: str

    @property
    def symbolic(self) -> bool:
        return self.array.dtype == object and any(isinstance(e, tirx.Expr) for e in self.array.flat)


def simplified(dim: object, analyzer: Analyzer) -> object:
    """``dim`` as an int where its value is known, else in simplified form."""
    if not isinstance(dim, tirx.Expr):
        return int(dim)
    dim = analyzer.simplify(dim)
    return int(dim) if isinstance(dim, tirx.IntImm) else dim
