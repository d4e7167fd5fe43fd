"""Converters for Softmax, LogSoftmax and Hardmax.

Before opset 13 the input is seen as a matrix: the axes from ``axis`` on form one row.
"""

from tvm import relax

from tvm_ext.ops.softmax import hardmax

from ..axes import placed
from ..precision import accumulator, cast
from ..table import converter


def softmax(bb, x, axis):
    return _in_float32(bb, relax.op.nn.softmax, x, axis)


def _log_softmax(bb, x, axis):
    return _in_float32(bb, relax.op.nn.log_softmax, x, axis)


def _hardmax(bb, x, axis):
    return bb.emit_te(hardmax, x, placed(axis, bb.rank(x)))


def _in_float32(bb, operator, x, axis):
    dtype = bb.dtype(x)
    return cast(bb, bb.emit(operator(cast(bb, x, accumulator(dtype)), axis)), dtype)


def softmax_of_rows(bb, x, axis, function=softmax):
    """``function`` of rows that are the axes from ``axis`` on."""
    rank = bb.rank(x)
    axis = placed(axis, rank) if rank else 0
    if axis == rank - 1:
        return function(bb, x, -1)
    shape = bb.shape(x)
    row = 1
    for dim in shape[axis:]:
        row = bb.simplify(row * dim)
    matrix = bb.reshape(x, [*shape[:axis], row])
    return bb.reshape(function(bb, matrix, -1), shape)


def _register(op_type, function):
    @converter(op_type, 1, 11)
    def over_flattened(bb, x, *, axis=1):
        return softmax_of_rows(bb, x, axis, function)

    @converter(op_type, 13)
    def over_axis(bb, x, *, axis=-1):
        return function(bb, x, axis)


for _op_type, _function in {
    "Softmax": softmax,
    "LogSoftmax": _log_softmax,
    "Hardmax": _hardmax,
}.items():
    _register(_op_type, _function)
