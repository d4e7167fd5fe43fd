"""Converter for the determinant."""

from math import prod

from tvm_ext.ops import determinant as ops

from ..table import converter
from .shape import reshaped


@converter("Det", 11, 22)
def det(bb, x):
    *batch, rows, _ = bb.shape(x)
    x = bb.of_shape(x, [*batch, rows, rows])
    x = reshaped(bb, x, [bb.simplify(prod(batch)), rows, rows])
    return reshaped(bb, bb.emit_te(ops.determinant, x), batch)
