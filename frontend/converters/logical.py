"""Comparison, logic and bits of tensors that broadcast, and selection."""

from tvm import relax

from tvm_ext.ops import logic as ops

from ..broadcasting import align, emit_broadcast
from ..table import converter
from .cast import widened

# ONNX operator -> Relax operator, TE function, since_versions with numpy's broadcasting
_BINARY = {
    "Equal": (relax.op.equal, ops.equal, 7, 11, 13, 19),
    "Greater": (relax.op.greater, ops.greater, 7, 9, 13),
    "GreaterOrEqual": (relax.op.greater_equal, ops.greater_equal, 12, 16),
    "Less": (relax.op.less, ops.less, 7, 9, 13),
    "LessOrEqual": (relax.op.less_equal, ops.less_equal, 12, 16),
    "And": (relax.op.logical_and, ops.logical_and, 7),
    "Or": (relax.op.logical_or, ops.logical_or, 7),
    "Xor": (relax.op.logical_xor, ops.logical_xor, 7),
    "BitwiseAnd": (relax.op.bitwise_and, ops.bitwise_and, 18),
    "BitwiseOr": (relax.op.bitwise_or, ops.bitwise_or, 18),
    "BitwiseXor": (relax.op.bitwise_xor, ops.bitwise_xor, 18),
}


def _register(op_type, relax_op, compute, *since):
    @converter(op_type, *since)
    def binary(bb, a, b):
        return emit_broadcast(bb, relax_op, compute, a, b)

    if since[0] != 7:
        return

    @converter(op_type, 1)
    def binary_1(bb, a, b, *, axis=None, broadcast=0):
        return binary(bb, a, align(bb, a, b, axis, broadcast))


for _op_type, _row in _BINARY.items():
    _register(_op_type, *_row)


@converter("BitShift", 11, 28)
def bit_shift(bb, x, y, *, direction):
    if direction not in ("LEFT", "RIGHT"):
        raise NotImplementedError(f"direction={direction!r}")
    return emit_broadcast(
        bb, None, ops.shift_left if direction == "LEFT" else ops.shift_right, x, y
    )


@converter("Where", 9, 16)
def where(bb, condition, x, y):
    return emit_broadcast(bb, relax.op.where, ops.where, condition, x, y)


@converter("IsInf", 10, 20)
def is_inf(bb, x, *, detect_negative=1, detect_positive=1):
    x = widened(bb, x)
    return bb.emit_te(ops.is_inf, x, negative=bool(detect_negative), positive=bool(detect_positive))


@converter("IsNaN", 9, 13, 20)
def is_nan(bb, x):
    return bb.emit(relax.op.isnan(widened(bb, x)))
