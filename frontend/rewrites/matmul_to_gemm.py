"""A product of matrices in its canonical form.

Before::

    y = MatMul(x, w)                       x[M, K], w[K, N]

After::

    y = Gemm(x, w)

:class:`BatchedMatMulToGemm` does the same for ``x[..., K]`` with a constant ``w`` between two
Reshapes. It is for exporting (``tvm_ext.patches``) and no step of the pipeline: there a product
with a constant matrix runs as one GEMM over all leading dims as it is, and the Reshapes would
come between it and what fuses behind it.
"""

import numpy as np
import onnx_ir as ir
from onnxscript.rewriter import MatchContext

from .rule import FLOATS, Rule, constant, rank, static_dim

__all__ = ["BatchedMatMulToGemm", "MatMulToGemm"]

_BIAS_IS_OPTIONAL = 11  # the opset from which Gemm may lack C


class MatMulToGemm(Rule):
    """``MatMul(x, w) -> Gemm(x, w)`` for matrices; with ``zero_bias``, ``Gemm(x, w, 0)``."""

    def __init__(self, zero_bias: bool = False):
        super().__init__()
        self.zero_bias = zero_bias

    def pattern(self, op, x, w):
        return op.MatMul(x, w)

    def refusal(self, context: MatchContext, x: ir.Value, w: ir.Value, **_) -> str | None:
        if rank(x) != 2 or rank(w) != 2:
            return f"ranks {rank(x)} and {rank(w)}, not two matrices"
        return self._gemm_refusal(context, x, w)

    def rewrite(self, op, x: ir.Value, w: ir.Value, **_) -> ir.Value:
        return self._gemm(op, x, w)

    def _gemm_refusal(self, context: MatchContext, x: ir.Value, w: ir.Value) -> str | None:
        if x.dtype not in FLOATS:
            return f"Gemm of {x.dtype}"
        if self.zero_bias and static_dim(w, 1) is None:
            return "the size of the bias is not static"
        if not self.zero_bias and context.model.opset_imports[""] < _BIAS_IS_OPTIONAL:
            return f"before opset {_BIAS_IS_OPTIONAL} Gemm needs a bias"
        return None

    def _gemm(self, op, x: ir.Value, w: ir.Value) -> ir.Value:
        if not self.zero_bias:
            return op.Gemm(x, w)
        bias = np.zeros(static_dim(w, 1), w.dtype.numpy())
        return op.Gemm(x, w, op.Constant(value=ir.tensor(bias)))


class BatchedMatMulToGemm(MatMulToGemm):
    """``MatMul(x, w) -> Reshape(Gemm(Reshape(x), w))`` for ``x[..., K]`` and a constant matrix."""

    def refusal(self, context: MatchContext, x: ir.Value, w: ir.Value, **_) -> str | None:
        if rank(x) is None or rank(x) < 3:
            return f"x has rank {rank(x)}"
        if rank(w) != 2 or constant(w) is None:
            return "w is no constant matrix"
        if 0 in w.shape or 0 in x.shape:
            return "a Reshape with -1 of an empty tensor is ambiguous"
        return self._gemm_refusal(context, x, w)

    def rewrite(self, op, x: ir.Value, w: ir.Value, **_) -> ir.Value:
        k, n = w.shape
        rows = op.Reshape(x, _ints(op, -1, k))
        return op.Reshape(self._gemm(op, rows, w), _result_shape(op, x, n))


def _result_shape(op, x: ir.Value, n: int) -> ir.Value:
    """The dims of ``x`` but the last, then ``n``; read at run time where two are unknown."""
    leading = [dim if isinstance(dim, int) else -1 for dim in x.shape[:-1]]
    if leading.count(-1) <= 1:
        return _ints(op, *leading, n)
    dims = op.Slice(op.Shape(x), _ints(op, 0), _ints(op, len(leading)))
    return op.Concat(dims, _ints(op, n), axis=0)


def _ints(op, *values: int) -> ir.Value:
    return op.Constant(value=ir.tensor(np.array(values, "int64")))
