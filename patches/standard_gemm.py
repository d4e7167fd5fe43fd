"""Products with a matrix as the Gemm that ai.onnx has, for models that others read.

Before::

    y = MatMul(x, w)                       x[..., K], w[K, N]

After::

    y = Reshape(Gemm(Reshape(x, [-1, K]), w), [..., N])         Gemm alone where x is a matrix
"""

import numpy as np
import onnx_ir as ir
from onnxscript.rewriter import MatchContext
from tvm_ext.frontend.rewrites.matmul_to_gemm import MatMulToGemm
from tvm_ext.frontend.rewrites.rule import FLOATS, rank, static_dim

__all__ = ["MatMulToStandardGemm"]


class MatMulToStandardGemm(MatMulToGemm):
    """``MatMul(x, w) -> Gemm(x, w)`` in ai.onnx, between Reshapes unless ``x`` is a matrix."""

    def refusal(self, context: MatchContext, x: ir.Value, w: ir.Value, **_) -> str | None:
        if rank(x) == 2:
            return super().refusal(context, x, w)
        if not rank(x):
            return f"x has rank {rank(x)}"
        if rank(w) != 2 or None in (static_dim(w, 0), static_dim(w, 1)):
            return "w is no matrix of static shape"
        if 0 in w.shape or 0 in x.shape:
            return "a Reshape with -1 of an empty tensor is ambiguous"
        return f"Gemm of {x.dtype}" if x.dtype not in FLOATS else None

    def rewrite(self, op, x: ir.Value, w: ir.Value, **_) -> ir.Value:
        if rank(x) == 2:
            return op.Gemm(x, w)
        rows = op.Reshape(x, _ints(op, -1, w.shape[0]))
        return op.Reshape(op.Gemm(rows, w), _result_shape(op, x, w.shape[1]))


def _result_shape(op, x: ir.Value, n: int) -> ir.Value:
    """The dims of ``x`` but the last, then ``n``; read at run time where two are unknown."""
    leading = [dim if isinstance(dim, int) else -1 for dim in x.shape[:-1]]
    if leading.count(-1) <= 1:
        return _ints(op, *leading, n)
    dims = op.Slice(op.Shape(x), _ints(op, 0), _ints(op, len(leading)))
    return op.Concat(dims, _ints(op, n), axis=0)


def _ints(op, *values: int) -> ir.Value:
    return op.Constant(value=ir.tensor(np.array(values, "int64")))
