"""Converters for sequences and optionals whose structure is known at compile time.

A sequence is a relax tuple, so that its operators cost nothing at run time. An optional with an
element is that element; one without is not represented.
"""

import numpy as np
from tvm import relax

from tvm_ext.ops import sequence as ops

from ..axes import placed
from ..table import converter
from .shape import reshaped
from .slicing import split_along

_OPTIONAL = (15, 18, 28)


@converter("SequenceConstruct", 11)
def sequence_construct(bb, *tensors):
    return _sequence(bb, tensors)


@converter("SequenceEmpty", 11)
def sequence_empty(bb, *, dtype=None):
    return _sequence(bb, [])


@converter("SequenceLength", 11)
def sequence_length(bb, sequence):
    return bb.const(np.array(len(_items(bb, sequence)), "int64"))


@converter("SequenceAt", 11)
def sequence_at(bb, sequence, position):
    items = _items(bb, sequence)
    if bb.static(position) is not None:
        return items[_place(bb, position, len(items), last=len(items) - 1)]
    if not all(_alike(bb, items[0], item) for item in items):
        raise NotImplementedError("a position known only at run time among different shapes")
    return bb.emit_te(ops.sequence_at, position, *items)


@converter("SequenceInsert", 11)
def sequence_insert(bb, sequence, tensor, position=None):
    items = _items(bb, sequence)
    items.insert(_place(bb, position, len(items), last=len(items)), tensor)
    return _sequence(bb, items)


@converter("SequenceErase", 11)
def sequence_erase(bb, sequence, position=None):
    items = _items(bb, sequence)
    del items[
        len(items) - 1
        if position is None
        else _place(bb, position, len(items), last=len(items) - 1)
    ]
    return _sequence(bb, items)


@converter("SplitToSequence", 11, 24)
def split_to_sequence(bb, x, split=None, *, axis=0, keepdims=1):
    axis = placed(axis, bb.rank(x))
    dim = bb.shape(x)[axis]
    if split is not None and bb.rank(split) == 1:
        return _sequence(bb, split_along(bb, x, axis, bb.ints(split, "split")))
    if not isinstance(dim, int):
        raise NotImplementedError("the length of the sequence is known only at run time")
    (size,) = [1] if split is None else bb.ints(split, "split")
    sizes = [min(size, dim - begin) for begin in range(0, dim, size)]
    pieces = split_along(bb, x, axis, sizes)
    if split is None and not keepdims:
        rest = [d for k, d in enumerate(bb.shape(x)) if k != axis]
        pieces = [reshaped(bb, piece, rest) for piece in pieces]
    return _sequence(bb, pieces)


@converter("ConcatFromSequence", 11)
def concat_from_sequence(bb, sequence, *, axis, new_axis=0):
    items = _items(bb, sequence)
    if new_axis:
        axis = placed(axis, bb.rank(items[0]) + 1)
        items = [bb.emit(relax.op.expand_dims(item, axis)) for item in items]
    if len(items) == 1:
        return items[0]
    return bb.emit(relax.op.concat(items, placed(axis, bb.rank(items[0]))))


@converter("SequenceMap", 17)
def sequence_map(bb, sequence, *others, body):
    """The body once per element: sequences are as long as the model says, not as its data."""
    first = _items(bb, sequence)
    columns = [
        _items(bb, other) if isinstance(other.ty, relax.TupleType) else [other] * len(first)
        for other in others
    ]
    rows = [bb.walk.inline(body, list(row)) for row in zip(first, *columns, strict=True)]
    return tuple(_sequence(bb, results) for results in zip(*rows, strict=True))


@converter("Optional", *_OPTIONAL[::2])
def optional(bb, x=None, *, type=None):
    if x is None:
        raise NotImplementedError("an optional without an element")
    return x


@converter("OptionalHasElement", *_OPTIONAL)
def optional_has_element(bb, x=None):
    return bb.const(np.array(x is not None))


@converter("OptionalGetElement", *_OPTIONAL)
def optional_get_element(bb, x):
    return x


def _sequence(bb, items):
    return bb.bb.normalize(relax.Tuple(list(items)))


def _items(bb, sequence):
    if isinstance(sequence, relax.Tuple):
        return list(sequence.fields)
    count = len(sequence.ty.fields)
    return [bb.emit(relax.TupleGetItem(sequence, k)) for k in range(count)]


def _alike(bb, a, b):
    return bb.rank(a) == bb.rank(b) and all(map(bb.equal, bb.shape(a), bb.shape(b)))


def _place(bb, position, length, last):
    """A static position; negative ones count from the end."""
    if position is None:
        return length
    (place,) = bb.ints(position, "the position in a sequence")
    place += length if place < 0 else 0
    if not 0 <= place <= last:
        raise ValueError(f"position {place} in a sequence of {length}")
    return place
