"""Converters for Dropout: the identity, except where training mode is asked for."""

import numpy as np
from tvm import relax

from tvm_ext.ops.dropout import dropout as seeded_dropout

from ..precision import constant
from ..table import converter


@converter("Dropout", 12, 13, 22)
def dropout(bb, x, ratio=None, training_mode=None, *, seed=None):
    """Without a seed the mask is the same in every run."""
    training = False if training_mode is None else constant(bb, training_mode)
    if training is not None and not np.any(training):
        return x, _ones(bb, x, "bool")
    ratio = bb.const(np.float32(0.5)) if ratio is None else ratio
    pair = bb.emit_te(seeded_dropout, x, ratio, training_mode, seed or 0)
    return tuple(bb.emit(relax.TupleGetItem(pair, k)) for k in range(2))


@converter("Dropout", 10)
def dropout_10(bb, x, *, ratio=0.5):
    return x, _ones(bb, x, "bool")


@converter("Dropout", 7)
def dropout_7(bb, x, *, ratio=0.5):
    return x, _ones(bb, x, bb.dtype(x))


@converter("Dropout", 1, 6)
def dropout_1(bb, x, *, consumed_inputs=None, is_test=0, ratio=0.5):
    """Models of these versions often leave ``is_test`` out: inference all the same."""
    return x, _ones(bb, x, bb.dtype(x))


def _ones(bb, x, dtype):
    """The mask, where a node asks for it."""
    if len(bb.node.outputs) < 2:
        return x
    return bb.emit(relax.op.ones(bb.shape(x), dtype))
