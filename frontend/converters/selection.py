"""Converters for operators whose number of results depends on the data."""

import numpy as np
from tvm import relax

from tvm_ext.interface import TensorType
from tvm_ext.ops import selection as ops
from tvm_ext.ops.narrow import STRING
from tvm_ext.ops.non_max_suppression import non_max_suppression as nms
from tvm_ext.ops.search import sign_flipped

from .. import host
from ..axes import placed
from ..table import converter
from .slicing import take_slice

# What TVM's sort does not know, and a wider type with the same order.
_WIDER = {"float16": "float32", "bfloat16": "float32"} | dict.fromkeys(
    ("bool", "int8", "int16", "uint8", "uint16"), "int32"
)


def comparable(bb, x):
    """``x`` in a type that TVM's sort knows, in the same order."""
    if bb.dtype(x) in ("uint32", "uint64"):
        return bb.emit_te(sign_flipped, x)
    wider = _WIDER.get(bb.dtype(x))
    return bb.emit(relax.op.astype(x, wider)) if wider else x


def compared(bb, keys, dtype):
    """What :func:`comparable` made ``keys`` of."""
    if dtype in ("uint32", "uint64"):
        return bb.emit_te(sign_flipped, keys)
    return bb.emit(relax.op.astype(keys, dtype)) if dtype in _WIDER else keys


@converter("NonZero", 9, 13)
def nonzero(bb, x):
    if bb.rank(x) == 0:
        x = bb.emit(relax.op.reshape(x, [1]))
    places, count = _outputs(bb, bb.emit_te(ops.nonzero, x), 2)
    return leading(bb, places, bb.dims(count, least=None)[0], axis=1)


@converter("Compress", 9, 11, 28)
def compress(bb, x, condition, *, axis=None):
    if axis is None:
        x, axis = _flat(bb, x), 0
    axis = placed(axis, bb.rank(x))
    found = bb.emit_te(ops.true_positions, condition, bb.shape(x)[axis])
    positions, count = _outputs(bb, found, 2)
    return bb.emit_te(ops.take_first, x, positions, axis, bb.dims(count, least=None)[0])


@converter("Unique", 11, 28)
def unique(bb, x, *, axis=None, sorted=1):
    if axis is None:
        x, axis = _flat(bb, x), 0
    axis = placed(axis, bb.rank(x))
    keys = _in_order(bb, x) if sorted and bb.element(x) == STRING else x
    if bb.rank(x) > 1:
        keys = _outputs(bb, bb.emit_te(ops.slice_ranks, keys, axis), 2)[0]
    keys = comparable(bb, keys)
    order = bb.emit(relax.op.argsort(keys, axis=0, descending=False, dtype="int64"))
    first, counts, inverse, total = _outputs(bb, bb.emit_te(ops.unique_groups, keys, order), 4)
    if not sorted:
        regrouped = bb.emit_te(ops.by_first_place, first, counts, inverse)
        first, counts, inverse = _outputs(bb, regrouped, 3)
    (number,) = bb.dims(total, least=None)
    values = bb.copy_knowledge(x, bb.emit_te(ops.take_first, x, first, axis, number))
    return values, leading(bb, first, number), inverse, leading(bb, counts, number)


def _in_order(bb, x):
    """Numbers that compare as the strings of ``x`` do."""
    kind = TensorType("int64", host.kind_of(bb, x).shape)
    return bb.match(host.call_for_tensor(bb, "string_ranks", x, kind=kind), bb.shape(x))


@converter("NonMaxSuppression", 10, 11)
def non_max_suppression(
    bb,
    boxes,
    scores,
    max_output_boxes_per_class=None,
    iou_threshold=None,
    score_threshold=None,
    *,
    center_point_box=0,
):
    def scalar(value, dtype):
        value = bb.const(np.zeros(1, dtype)) if value is None else value
        return bb.emit(relax.op.reshape(value, [1]))

    batch, classes, number = bb.shape(scores)
    boxes = bb.of_shape(boxes, [batch, number, 4])
    if 0 in (batch, classes, number):
        return bb.const(np.zeros([0, 3], "int64"))
    limit = scalar(max_output_boxes_per_class, "int64")
    overlap = scalar(iou_threshold, "float32")
    # Without a threshold every score passes.
    lowest = None if score_threshold is None else scalar(score_threshold, "float32")
    selected = bb.emit_te(nms, boxes, scores, limit, overlap, lowest, bool(center_point_box))
    rows, count = _outputs(bb, selected, 2)
    return leading(bb, rows, bb.dims(count, least=None)[0])


def _outputs(bb, packed, number):
    return [bb.emit(relax.TupleGetItem(packed, k)) for k in range(number)]


def _flat(bb, x):
    return bb.copy_knowledge(x, bb.emit(relax.op.reshape(x, [-1])))


def leading(bb, x, count, axis=0):
    """The first ``count`` (an int or a dim) of ``x`` along ``axis``."""
    lengths = bb.shape(x)
    lengths[axis] = count
    return take_slice(bb, x, [0] * len(lengths), [1] * len(lengths), lengths)
