"""Converters for matrix products: MatMul and Gemm as relax.matmul, Einsum."""

import numpy as np
from tvm import relax

from tvm_ext.ops import arithmetic
from tvm_ext.ops.einsum import einsum, extents, result_labels

from ..broadcasting import demanded_dims, emit_broadcast
from ..precision import accumulator, cast, constant
from ..table import converter


@converter("MatMul", 1, 9, 13)
def matmul(bb, a, b):
    dtype = bb.dtype(a)
    return cast(bb, product(bb, a, b), dtype)


def product(bb, a, b):
    """``a @ b`` with numpy's rules, in the type its sums run in."""
    dtype = accumulator(bb.dtype(a))
    result = relax.op.matmul(a, b, None if dtype == bb.dtype(a) else dtype)
    result = bb.bb.normalize(result)
    if result.ty.shape is not None:
        return bb.emit(result)
    # Which dims are stretched, or whether the inner ones agree, is known only at run time.
    return _einsum(bb, _equation(bb.rank(a), bb.rank(b)), cast(bb, a, dtype), cast(bb, b, dtype))


def _equation(left, right):
    """The product of tensors of these ranks as an einsum."""
    rows, columns = "i" if left > 1 else "", "j" if right > 1 else ""
    a = f"...{rows}k" if left > 2 else f"{rows}k"
    b = f"...k{columns}" if right > 2 else f"k{columns}"
    batch = "..." if left > 2 or right > 2 else ""
    return f"{a},{b}->{batch}{rows}{columns}"


@converter("Gemm", 7, 9, 11, 13)
@converter("Gemm", 1, domain="tvm_ext")
def gemm(bb, a, b, c=None, *, alpha=1.0, beta=1.0, transA=0, transB=0):
    dtype = bb.dtype(a)
    if "int" in dtype and not (float(alpha).is_integer() and float(beta).is_integer()):
        raise NotImplementedError(f"alpha {alpha}, beta {beta} with {dtype}")
    a = transposed(bb, a) if transA else a
    b = transposed(bb, b) if transB else b
    if constant(bb, b) is not None:  # the scale moves into the weights
        y = product(bb, a, _scaled(bb, b, alpha))
    else:
        y = _scaled(bb, product(bb, a, b), alpha)
    if c is not None and beta != 0:
        bias = _scaled(bb, cast(bb, c, bb.dtype(y)), beta)
        y = emit_broadcast(bb, relax.op.add, arithmetic.add, y, bias)
    return cast(bb, y, dtype)


@converter("Gemm", 1, 6)
def gemm_1(bb, a, b, c, *, alpha=1.0, beta=1.0, broadcast=0, transA=0, transB=0):
    """``broadcast`` only permits what later versions always do."""
    return gemm(bb, a, b, c, alpha=alpha, beta=beta, transA=transA, transB=transB)


def transposed(bb, matrix):
    """``matrix.T``; a constant is transposed now."""
    array = constant(bb, matrix)
    if array is not None:
        return bb.const(np.ascontiguousarray(array.T))
    return bb.emit(relax.op.permute_dims(matrix, [1, 0]))


def _scaled(bb, x, factor):
    """``factor * x``; a constant is scaled now, in float64."""
    if factor == 1:
        return x
    array, dtype = constant(bb, x), bb.dtype(x)
    if array is None:
        return bb.emit(relax.op.multiply(x, bb.const(np.asarray(factor).astype(dtype))))
    wide = array.astype("int64" if array.dtype.kind in "iu" else "float64")
    return bb.const((wide * wide.dtype.type(factor)).astype(array.dtype))


@converter("Einsum", 12, 28)
def einsum_(bb, *inputs, equation):
    return _einsum(bb, equation, *inputs)


def _einsum(bb, equation, *inputs):
    """One kernel, behind run-time checks where the dims of a label are not known to agree."""
    labels, output = result_labels(equation, [bb.rank(x) for x in inputs])
    sizes = extents(labels, [bb.shape(x) for x in inputs])
    for x, own in zip(inputs, labels, strict=True):
        wanted = demanded_dims(bb, bb.shape(x), [sizes[label] for label in own])
        if wanted is not None:
            bb.match(x, wanted)
    return bb.emit_te(einsum, labels, output, *inputs)
