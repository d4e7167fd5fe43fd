"""Converters for the dropout of com.microsoft, which adds a bias before it and a residual after.

Inference drops nothing; ``training_mode`` makes it that of ai.onnx. A bitmask has 32 elements of
the mask, in their order, in each word, the first in the lowest bit.
"""

from math import prod

from tvm_ext.ops.dropout import packed_mask

from ..arithmetic import added
from ..microsoft import microsoft
from .dropout import dropout
from .shape import reshaped


@microsoft("BiasDropout")
def bias_dropout(bb, data, bias, residual=None, ratio=None, training_mode=None, *, seed=None):
    y, mask = dropout(bb, added(bb, data, bias), ratio, training_mode, seed=seed)
    return (y if residual is None else added(bb, y, residual)), mask


@microsoft("BitmaskBiasDropout")
def bitmask_bias_dropout(bb, data, bias, residual=None, ratio=None, training_mode=None, *,
                         seed=None):  # fmt: skip
    y, mask = bias_dropout(bb, data, bias, residual, ratio, training_mode, seed=seed)
    return y, _packed(bb, mask)


@microsoft("BitmaskDropout")
def bitmask_dropout(bb, data, ratio=None, training_mode=None, *, seed=None):
    y, mask = dropout(bb, data, ratio, training_mode, seed=seed)
    return y, _packed(bb, mask)


def _packed(bb, mask):
    if len(bb.node.outputs) < 2:
        return mask
    return bb.emit_te(packed_mask, reshaped(bb, mask, [bb.simplify(prod(bb.shape(mask)))]))
