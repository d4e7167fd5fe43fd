"""Arithmetic of two or more tensors that broadcast."""

from tvm import relax

from tvm_ext.ops import arithmetic as ops

from ..broadcasting import align, emit_broadcast
from ..precision import constant
from ..table import converter


def _register_binary(op_type, relax_op, compute, *, legacy, since):
    """Register an operator that is one Relax operator; ``legacy`` versions have axis, broadcast."""

    @converter(op_type, *since)
    def binary(bb, a, b):
        return emit_broadcast(bb, relax_op, compute, a, b)

    @converter(op_type, *legacy)
    def binary_legacy(bb, a, b, *, axis=None, broadcast=0):
        return binary(bb, a, align(bb, a, b, axis, broadcast))


for _op_type, _relax_op, _compute in (
    ("Add", relax.op.add, ops.add),
    ("Sub", relax.op.subtract, ops.sub),
    ("Mul", relax.op.multiply, ops.mul),
    ("Div", relax.op.divide, ops.div),
):
    _register_binary(_op_type, _relax_op, _compute, legacy=(1, 6), since=(7, 13, 14))


@converter("Pow", 7, 12, 13, 15)
def pow_(bb, x, y):
    if "float" not in bb.dtype(x) and "float" not in bb.dtype(y):
        return emit_broadcast(bb, None, ops.integer_power, x, y)
    exponent = constant(bb, y)
    if exponent is None or exponent.size != 1:
        return emit_broadcast(bb, None, ops.power, x, y)
    return emit_broadcast(bb, None, ops.power, x, y, exponent=float(exponent.item()))


@converter("Pow", 1)
def pow_1(bb, x, y, *, axis=None, broadcast=0):
    return pow_(bb, x, align(bb, x, y, axis, broadcast))


@converter("Mod", 10, 13, 28)
def mod(bb, a, b, *, fmod=0):
    return emit_broadcast(bb, None, ops.fmod if fmod else ops.mod, a, b)


def _register_variadic(op_type, relax_op, compute, *since):
    """Register an operator of any number of tensors, folded two by two from the left."""

    @converter(op_type, *since)
    def variadic(bb, *operands):
        result = operands[0]
        for operand in operands[1:]:
            result = emit_broadcast(bb, relax_op, compute, result, operand)
        return result


_register_variadic("Sum", relax.op.add, ops.add, 1, 6, 8, 13)
_register_variadic("Max", relax.op.maximum, ops.maximum, 1, 6, 8, 12, 13)
_register_variadic("Min", relax.op.minimum, ops.minimum, 1, 6, 8, 12, 13)


@converter("Mean", 1, 6, 8, 13)
def mean(bb, *operands):
    return emit_broadcast(bb, None, ops.mean, *operands)
