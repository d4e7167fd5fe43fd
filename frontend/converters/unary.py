"""Mathematics, rounding and trigonometry of one tensor: each is one Relax operator."""

from tvm import relax

from tvm_ext.ops import math as ops

from ..precision import cast
from ..table import converter

# ONNX operator -> Relax operator, since_versions
_ONE_TO_ONE = {
    "Abs": (relax.op.abs, 1, 6, 13),
    "Neg": (relax.op.negative, 1, 6, 13),
    "Sign": (relax.op.sign, 9, 13),
    "Sqrt": (relax.op.sqrt, 1, 6, 13),
    "Exp": (relax.op.exp, 1, 6, 13),
    "Log": (relax.op.log, 1, 6, 13),
    "Floor": (relax.op.floor, 1, 6, 13),
    "Ceil": (relax.op.ceil, 1, 6, 13),
    "Round": (relax.op.round, 11, 22),
    "Sin": (relax.op.sin, 7, 22),
    "Cos": (relax.op.cos, 7, 22),
    "Tan": (relax.op.tan, 7, 22),
    "Asin": (relax.op.asin, 7, 22),
    "Acos": (relax.op.acos, 7, 22),
    "Atan": (relax.op.atan, 7, 22),
    "Sinh": (relax.op.sinh, 9, 22),
    "Cosh": (relax.op.cosh, 9, 22),
    "Tanh": (relax.op.tanh, 1, 6, 13),
    "Asinh": (relax.op.asinh, 9, 22),
    "Acosh": (relax.op.acosh, 9, 22),
    "Atanh": (relax.op.atanh, 9, 22),
    "BitwiseNot": (relax.op.bitwise_not, 18),
    "Not": (relax.op.logical_not, 1),
    "Relu": (relax.op.nn.relu, 1, 6, 13, 14),
    "Sigmoid": (relax.op.sigmoid, 1, 6, 13),
}


def _register(op_type, relax_op, *since):
    @converter(op_type, *since)
    def one_to_one(bb, x):
        return bb.emit(relax_op(x))


for _op_type, _row in _ONE_TO_ONE.items():
    _register(_op_type, *_row)


@converter("Erf", 9, 13)
def erf(bb, x):
    """Integers are computed in float64, and truncate."""
    if "float" in bb.dtype(x):
        return bb.emit(relax.op.erf(x))
    return cast(bb, bb.emit(relax.op.erf(cast(bb, x, "float64"))), bb.dtype(x))


@converter("Reciprocal", 1, 6, 13)
def reciprocal(bb, x):
    return bb.emit_te(ops.reciprocal, x)
