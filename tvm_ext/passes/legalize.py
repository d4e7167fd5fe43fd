"""From Relax operators to kernels, with our formulas where TVM's differ from ONNX or are slow.

Before: ``R.nn.relu(x)``    After: ``R.call_tir(relu, (x,))`` of ``tvm_ext.ops.activation.relu``

TVM's own legalisation drops NaN (relu, clip, maximum, minimum, max_pool2d), lets an integer
division trap, loses tanh near 0, calls libm per element for exp, log, erf, tanh and sigmoid, and
drops a literal 0 that is added or multiplied.
"""

from collections.abc import Callable, Mapping, Sequence
from math import nan, prod

import tvm
from tvm import DataType, relax, te, tirx, topi
from tvm.ir.expr import GenericConst

from tvm_ext.ops import activation, arithmetic, logic, math, pooling, softmax
from tvm_ext.ops.rearrangement import concatenate

from .facts import OPAQUE, is_empty

__all__ = ["JOINED", "REPLACED", "legalize", "to_kernel"]

#: The attribute of a kernel that only puts its operands one after the other in memory.
JOINED = "joined"
ALIGNMENT = 64  # of what has a place of its own in memory

Legalization = Callable[[relax.BlockBuilder, relax.Call], relax.Expr]

_INJECTIVE = 2  # FuseOps' kind of a kernel each of whose elements is made of one of each operand

# Relax operator -> the TE function that computes it
REPLACED = {
    "relax.abs": math.abs_,
    "relax.negative": math.neg,
    "relax.sign": math.sign,
    "relax.sqrt": math.sqrt,
    "relax.exp": math.exp,
    "relax.log": math.log,
    "relax.erf": math.erf,
    "relax.floor": math.floor,
    "relax.ceil": math.ceil,
    "relax.round": math.round_,
    "relax.sin": math.sin,
    "relax.cos": math.cos,
    "relax.tan": math.tan,
    "relax.asin": math.asin,
    "relax.acos": math.acos,
    "relax.atan": math.atan,
    "relax.sinh": math.sinh,
    "relax.cosh": math.cosh,
    "relax.tanh": math.tanh,
    "relax.asinh": math.asinh,
    "relax.acosh": math.acosh,
    "relax.atanh": math.atanh,
    "relax.sigmoid": activation.sigmoid,
    "relax.nn.relu": activation.relu,
    "relax.nn.gelu": activation.gelu,
    "relax.nn.gelu_tanh": activation.gelu_tanh,
    "relax.nn.silu": activation.silu,
    "relax.nn.softmax": softmax.softmax,
    "relax.nn.log_softmax": softmax.log_softmax,
    "relax.clip": activation.clip,
    "relax.divide": arithmetic.div,
    "relax.maximum": arithmetic.maximum,
    "relax.minimum": arithmetic.minimum,
    "relax.isnan": logic.is_nan,
    "relax.equal": logic.equal,
    "relax.logical_xor": logic.logical_xor,
}

# TVM's, but for integers, which it supposes not to wrap, and for a float 0 that is known:
# ``x * 0`` is NaN for infinities, ``-0 + 0`` is 0.
_ARITHMETIC = {
    "relax.add": arithmetic.add,
    "relax.subtract": arithmetic.sub,
    "relax.multiply": arithmetic.mul,
}

# They reduce their operand in float64, in which few GPUs are fast; all have functions of their own.
_OF_CPUS = ("relax.sin", "relax.cos", "relax.tan")
_CONVOLUTIONS = ("relax.nn.conv1d", "relax.nn.conv2d", "relax.nn.conv3d")


def legalize(
    specific: Mapping[str, Legalization] | None = None, *, cpu: bool = True
) -> tvm.ir.transform.Pass:
    """``relax.transform.LegalizeOps`` with the replacements above, and a target's own.

    A reshape stays what it is: the executors make it a view, where a kernel would copy.
    """
    replaced = _legalizations() | dict(specific or {})
    if not cpu:
        replaced = {name: own for name, own in replaced.items() if name not in _OF_CPUS}
    return relax.transform.LegalizeOps(replaced)


def to_kernel(bb: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    """One operator as the kernel that :func:`legalize` would choose; others stay as they are."""
    if not isinstance(call.op, tvm.ir.Op):
        return call
    own = _legalizations().get(call.op.name, call.op.get_attr("FLegalize"))
    return call if own is None else own(bb, call)


def _legalizations() -> dict[str, Legalization]:
    replaced = {name: _legalization(compute) for name, compute in REPLACED.items()}
    partly = {name: _where_tvm_differs(_legalization(own)) for name, own in _ARITHMETIC.items()}
    return (
        replaced
        | partly
        | {
            "relax.reshape": lambda _bb, call: call,
            "relax.mean": _mean,
            "relax.nn.max_pool2d": _max_pool2d,
            **dict.fromkeys(_CONVOLUTIONS, _convolution),
            "relax.concat": _concat,
        }
    )


def _legalization(compute: Callable[..., te.Tensor]) -> Legalization:
    name = compute.__name__.strip("_")

    def replace(bb: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
        attributes = []
        if hasattr(call.attrs, "axis"):
            attributes.append(int(call.attrs.axis) % call.ty.ndim)
        return bb.call_te(compute, *call.args, *attributes, primfunc_name_hint=name)

    return replace


def _where_tvm_differs(own: Legalization) -> Legalization:
    """``own`` of integers, and where TVM's would have a float 0 as a literal; else TVM's."""

    def replace(bb: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
        if any(map(_is_float_zero, call.args)) or "float" not in str(call.ty.dtype.dtype):
            return own(bb, call)
        return call.op.get_attr("FLegalize")(bb, call)

    return replace


def _is_float_zero(operand: relax.Expr) -> bool:
    if not isinstance(operand, GenericConst) or operand.ty.ndim != 0:
        return False
    return "float" in str(operand.ty.dtype.dtype) and not operand.value.numpy().item()


def _concat(bb: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    """Along an axis of symbolic size by our formula, whose operands are fused with it.

    TVM's clamps sums of dims, and its passes then see neither what is read nor that it is one
    element each.
    """
    (joined,) = call.args
    axis = 0 if call.attrs.axis is None else int(call.attrs.axis) % call.ty.ndim
    types = joined.ty.fields
    known = all(isinstance(ty.shape.values[axis], tirx.IntImm) for ty in types)
    in_place = _in_place(types, axis)
    if not hasattr(joined, "fields") or (known and not in_place):
        return call.op.get_attr("FLegalize")(bb, call)
    attrs = {"op_pattern": OPAQUE, JOINED: True} if in_place else {"op_pattern": _INJECTIVE}
    return bb.call_te(concatenate, list(joined.fields), axis, primfunc_attrs=attrs)


def _in_place(types: Sequence[relax.TensorType], axis: int) -> bool:
    """Whether tensors of symbolic size, joined along ``axis``, are one after the other in memory,
    each from a whole cache line on: an executor may have them computed there."""
    shapes = [ty.shape.values for ty in types]
    if any(not _is_one(dim) for dim in shapes[0][:axis]):
        return False
    numbers = [[int(dim) for dim in shape if isinstance(dim, tirx.IntImm)] for shape in shapes]
    symbolic = any(len(a) < len(b) for a, b in zip(numbers, shapes, strict=True))
    size = DataType(str(types[0].dtype.dtype)).itemsize
    return symbolic and all(prod(row, start=size) % ALIGNMENT == 0 for row in numbers[:-1])


def _is_one(dim: tirx.Expr) -> bool:
    return isinstance(dim, tirx.IntImm) and int(dim) == 1


def _convolution(bb: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    """TVM's refuses windows that fit nowhere, of which the result has no elements."""
    if is_empty(call.ty.shape.values):
        return _filled(bb, call, 0)
    return call.op.get_attr("FLegalize")(bb, call)


def _mean(bb: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    """TVM's divides by the number of elements, also where there are none: their mean is NaN."""
    if is_empty(call.args[0].ty.shape.values) and "float" in str(call.ty.dtype.dtype):
        return _filled(bb, call, nan)
    return call.op.get_attr("FLegalize")(bb, call)


def _filled(bb: relax.BlockBuilder, call: relax.Call, value: float) -> relax.Expr:
    dims, dtype = call.ty.shape.values, str(call.ty.dtype.dtype)
    return bb.call_te(topi.full, dims, dtype, value, primfunc_name_hint="filled")


def _max_pool2d(bb: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    attrs = call.attrs
    if (attrs.layout, attrs.out_layout, bool(attrs.ceil_mode)) != ("NCHW", "NCHW", False):
        return call.op.get_attr("FLegalize")(bb, call)
    kernel, strides, dilations, pads = (
        [int(v) for v in field]
        for field in (attrs.pool_size, attrs.strides, attrs.dilation, attrs.padding)
    )
    window = kernel, strides, dilations, pads[:2], list(call.ty.shape.values[2:])
    return bb.call_te(pooling.max_pool, call.args[0], *window, primfunc_name_hint="max_pool")
