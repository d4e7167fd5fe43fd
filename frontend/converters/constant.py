"""Converters for operators that make a tensor from attributes, a shape or a few scalars."""

from math import ceil

import ml_dtypes  # noqa: F401  registers bfloat16 and float8 with numpy
import numpy as np
import onnx_ir as ir
from tvm import relax, tirx

from tvm_ext.ops import constant as ops
from tvm_ext.ops.cast import bit_cast as reinterpret

from ..axes import placed
from ..known import is_literal
from ..run_time import demand_holds
from ..table import converter
from .shape import scalar

_MOST_EXACT = 2.0**53  # what float64 holds of integers


@converter("Constant", 1, 9, 11, 12, 13, 19, 21, 23, 24, 25)
def constant(
    bb,
    *,
    value=None,
    sparse_value=None,
    value_int=None,
    value_ints=None,
    value_float=None,
    value_floats=None,
    value_string=None,
    value_strings=None,
):
    """The first versions have ``value`` only; constant folding writes the others all the same."""
    if value is not None:
        return bb.const(value.numpy())
    if sparse_value is not None:  # a loaded model has none left
        raise NotImplementedError("a sparse tensor")
    texts = value_strings if value_string is None else value_string
    if texts is not None:
        return bb.const(np.array(texts, object))
    for number, dtype in (
        (value_int, "int64"),
        (value_ints, "int64"),
        (value_float, "float32"),
        (value_floats, "float32"),
    ):
        if number is not None:
            return bb.const(np.asarray(number, dtype))
    raise NotImplementedError("no value is given")


@converter("ConstantOfShape", 9, 20, 21, 23, 24, 25)
def constant_of_shape(bb, shape, *, value=None):
    fill = bb.const(np.zeros((), "float32") if value is None else value.numpy().reshape(()))
    dims = relax.ShapeExpr(bb.dims(shape, bb.declared_rank, "a size"))
    if "float8" in bb.dtype(fill):  # of which TVM makes no constant in a kernel
        codes = relax.op.full(dims, bb.const(bb.static(fill).view("uint8")), "uint8")
        return bb.emit_te(reinterpret, bb.emit(codes), bb.dtype(fill))
    number = bb.static(fill)
    # A product by a float 0 of topi.full would be 0 whatever it is of.
    if is_literal(number) and ("float" not in bb.dtype(fill) or number):
        return bb.emit(relax.op.full(dims, fill, bb.dtype(fill)))
    return bb.emit(relax.op.broadcast_to(fill, dims))


@converter("EyeLike", 9, 22)
def eye_like(bb, x, *, dtype=None, k=0):
    element = bb.dtype(x) if dtype is None else numpy_name(dtype)
    return bb.emit_te(ops.eye, bb.shape(x), k, element)


def numpy_name(onnx_dtype):
    """The numpy name of an ONNX element type given as int."""
    return np.dtype(ir.DataType(onnx_dtype).numpy()).name


@converter("Range", 11)
def range_(bb, start, limit, delta):
    return _range(bb, start, limit, delta, bb.dtype(start))


@converter("Range", 27)
def range_stashed(bb, start, limit, delta, *, stash_type=1):
    narrow = bb.dtype(start) in ("float16", "bfloat16")
    return _range(bb, start, limit, delta, numpy_name(stash_type) if narrow else bb.dtype(start))


def _range(bb, start, limit, delta, compute_dtype):
    """``start + k * delta``, computed in ``compute_dtype``."""
    length = _range_length(bb, *(_whole(bb, k, x) for k, x in enumerate((start, limit, delta))))
    if length is None:
        made = bb.emit_te(ops.range_length, start, limit, delta, compute_dtype)
        (length,) = bb.dims(made, least=None)
        demand_holds(
            bb,
            (length != ops.NO_STEP, "delta is 0"),
            (length != ops.ENDLESS, "start, limit and delta make more than memory holds, or NaN"),
        )
    return bb.emit_te(ops.arange, start, delta, length, compute_dtype)


def _whole(bb, place, x):
    """What is known of an input; of a float that is converted from an integer, that of this."""
    known = bb.static(x)
    if known is not None:
        whole = known.dtype.kind == "f" and (known == np.rint(known)).all()
        return known.astype("int64") if whole and (abs(known) < _MOST_EXACT).all() else known
    cast = bb.node.inputs[place].producer()
    if cast is None or cast.op_type != "Cast" or bb.dtype(x) not in ("float32", "float64"):
        return None
    (source,) = cast.inputs
    maker = source.producer()
    if maker is None or not (cast.graph is maker.graph is bb.node.graph):  # of another function
        return None
    value = bb.walk.values.get(source)
    known = None if value is None else bb.static(value)
    return known if known is not None and known.dtype == object else None


def _range_length(bb, start, limit, delta):
    """How many elements there are as a dim; None where that is known only at run time."""
    if start is None or limit is None or delta is None:
        return None
    first, last, step = (v.item() for v in (start, limit, delta))
    if isinstance(step, tirx.Expr):
        return None
    if step == 0:
        raise ValueError("delta is 0")
    if not any(isinstance(v, tirx.Expr) for v in (first, last)):
        return max(0, ceil((last - first) / step))
    if any(isinstance(v, float) for v in (first, last, step)):
        return None
    # Divided by a positive step: TVM neither simplifies n // -1 nor compiles all that has it.
    span = first - last if step > 0 else last - first
    return bb.simplify(tirx.max(-tirx.floordiv(span, abs(step)), tirx.const(0, "int64")))


@converter("OneHot", 9, 11, 28)
def one_hot(bb, indices, depth, values, *, axis=-1):
    axis = placed(axis, bb.rank(indices) + 1)
    known = bb.static(depth)
    if known is not None and known.dtype != object:
        size = int(known.item())
    else:
        size = scalar(bb, depth, "depth") if known is None else known.item()
    return bb.emit_te(ops.one_hot, indices, values, size, axis)


@converter("Trilu", 14)
def trilu(bb, x, k=None, *, upper=1):
    known = bb.const(np.zeros((), "int64")) if k is None else k
    diagonal = bb.static(known)
    shift = known if diagonal is None else diagonal.item()  # a number, or a formula of dims
    return bb.emit_te(ops.trilu, x, shift, bool(upper))
