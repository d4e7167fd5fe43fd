"""Converters for sequences and optionals.

A sequence whose structure is known at compile time is a relax tuple, so that its operators cost
nothing at run time, and an optional with an element is that element. Others live on the host: see
``frontend.host``.
"""

import numpy as np
from tvm import relax

from tvm_ext.interface import OptionalType, SequenceType, TensorType
from tvm_ext.ops import sequence as ops

from .. import host
from ..axes import placed
from ..table import converter
from .shape import reshaped
from .slicing import concat, split_along

_OPTIONAL = (15, 18, 28)


@converter("SequenceConstruct", 11)
def sequence_construct(bb, *tensors):
    return _sequence(bb, tensors)


@converter("SequenceEmpty", 11)
def sequence_empty(bb, *, dtype=None):
    return _sequence(bb, [])


@converter("SequenceLength", 11)
def sequence_length(bb, sequence):
    if _is_static(sequence):
        return bb.const(np.array(len(_items(bb, sequence)), "int64"))
    return host.call_for_tensor(bb, "sequence_length", sequence, kind=TensorType("int64", ()))


@converter("SequenceAt", 11)
def sequence_at(bb, sequence, position):
    if _is_static(sequence):
        items = _items(bb, sequence)
        if bb.static(position) is not None:
            return items[_place(bb, position, len(items), last=len(items) - 1)]
        if items and all(_alike(bb, items[0], item) for item in items):
            return bb.copy_knowledge(items[0], bb.emit_te(ops.sequence_at, position, *items))
    kind = _element(bb, sequence)
    return host.call_for_tensor(bb, "sequence_at", host.hosted(bb, sequence), position, kind=kind)


@converter("SequenceInsert", 11)
def sequence_insert(bb, sequence, tensor, position=None):
    if _is_static(sequence) and _is_known(bb, position):
        items = _items(bb, sequence)
        items.insert(_place(bb, position, len(items), last=len(items)), tensor)
        return _sequence(bb, items)
    kind = host.merged(host.kind_of(bb, sequence), SequenceType(host.kind_of(bb, tensor)))
    operands = host.hosted(bb, sequence), tensor, _or_null(bb, position)
    return host.call(bb, "sequence_insert", *operands, kind=kind)


@converter("SequenceErase", 11)
def sequence_erase(bb, sequence, position=None):
    if not (_is_static(sequence) and _is_known(bb, position)):
        operands = host.hosted(bb, sequence), _or_null(bb, position)
        return host.call(bb, "sequence_erase", *operands, kind=host.kind_of(bb, sequence))
    items = _items(bb, sequence)
    last = len(items) - 1
    del items[last if position is None else _place(bb, position, len(items), last=last)]
    return _sequence(bb, items)


@converter("SplitToSequence", 11, 24)
def split_to_sequence(bb, x, split=None, *, axis=0, keepdims=1):
    axis = placed(axis, bb.rank(x))
    dim = bb.shape(x)[axis]
    whole = split is None or bb.rank(split) == 0
    if not _is_known(bb, split) or (whole and not isinstance(dim, int)):
        return _split_on_host(bb, x, split, axis, keepdims)
    if not whole:
        return _sequence(bb, split_along(bb, x, axis, bb.ints(split, "split")))
    (size,) = [1] if split is None else bb.ints(split, "split")
    if size <= 0:
        raise ValueError(f"split {size}")
    sizes = [min(size, dim - begin) for begin in range(0, dim, size)]
    pieces = split_along(bb, x, axis, sizes)
    if split is None and not keepdims:
        rest = [d for k, d in enumerate(bb.shape(x)) if k != axis]
        pieces = [reshaped(bb, piece, rest) for piece in pieces]
    return _sequence(bb, pieces)


def _split_on_host(bb, x, split, axis, keepdims):
    whole = host.kind_of(bb, x)
    dims = [f"d{axis}" if k == axis else dim for k, dim in enumerate(whole.shape)]
    if split is None:
        dims[axis : axis + 1] = [1] if keepdims else []
    kind = SequenceType(TensorType(whole.dtype, tuple(dims)))
    operands = x, _or_null(bb, split), axis, keepdims
    return host.call(bb, "split_to_sequence", *operands, kind=kind)


@converter("ConcatFromSequence", 11)
def concat_from_sequence(bb, sequence, *, axis, new_axis=0):
    if not _is_static(sequence):
        kind = _joined(bb, sequence, new_axis)
        return host.call_for_tensor(bb, "concat_from_sequence", sequence, axis, new_axis, kind=kind)
    items = _items(bb, sequence)
    if not items:
        raise ValueError("an empty sequence")
    if new_axis:
        axis = placed(axis, bb.rank(items[0]) + 1)
        items = [bb.emit(relax.op.expand_dims(item, axis)) for item in items]
    return concat(bb, *items, axis=axis)


def _joined(bb, sequence, new_axis):
    """What elements side by side give: as many dims as one, or one more."""
    kind = host.kind_of(bb, sequence).element
    if kind is None or kind.shape is None:
        return host.declared_kind(bb.node.outputs[0]) or kind
    rank = len(kind.shape) + bool(new_axis)
    return TensorType(kind.dtype, tuple(f"d{k}" for k in range(rank)))


@converter("SequenceMap", 17)
def sequence_map(bb, sequence, *additional, body):
    """Sequences of known length: the body once per element. Others: a function, called for each."""
    operands = sequence, *additional
    sequences = [not isinstance(x.ty, relax.TensorType) for x in operands]
    if all(_is_static(x) for x, each in zip(operands, sequences, strict=True) if each):
        first = _items(bb, operands[0])
        columns = [
            _items(bb, x) if each else [x] * len(first)
            for x, each in zip(operands, sequences, strict=True)
        ]
        rows = [bb.walk.inline(body, list(row)) for row in zip(*columns, strict=True)]
        if rows:
            return tuple(_sequence(bb, results) for results in zip(*rows, strict=True))
        return tuple(_sequence(bb, []) for _ in bb.node.outputs)
    return _map_on_host(bb, operands, sequences, body)


def _map_on_host(bb, operands, sequences, body):
    operands = [host.hosted(bb, x) for x in operands]
    kinds = [host.kind_of(bb, x) for x in operands]
    types = [
        host.tensor_type(bb, kind.element) if each else x.ty
        for x, kind, each in zip(operands, kinds, sequences, strict=True)
    ]

    def emit(params):
        for param, kind, each in zip(params, kinds, sequences, strict=True):
            host.like(bb, param, kind.element if each else kind)
        return bb.walk.inline(body, params)

    made = bb.walk.function("map_body", body, types, emit)
    arguments = [bb.emit(made.function), relax.Tuple(operands), relax.Tuple(made.captured)]
    told = [int(each) for each in sequences], len(made.results), bb.told("")
    any_types = relax.TupleType([relax.AnyType()] * len(made.results))
    called = relax.op.call_builtin_with_ctx(
        "tvm_ext.sequence_map", relax.Tuple([*arguments, *map(host.text, told)]), ty_args=any_types
    )
    result = bb.emit(called)
    return tuple(
        host.like(bb, bb.emit(relax.TupleGetItem(result, k)), SequenceType(host.kind_of(bb, x)))
        for k, x in enumerate(made.results)
    )


@converter("Optional", *_OPTIONAL[::2])
def optional(bb, x=None, *, type=None):
    if x is not None:
        return x
    return host.absent(bb, OptionalType(None if type is None else host.declared_kind(type)))


@converter("OptionalHasElement", *_OPTIONAL)
def optional_has_element(bb, x=None):
    if x is None or not _is_optional(bb, x):
        return bb.const(np.array(x is not None))
    return host.call_for_tensor(bb, "has_element", x, kind=TensorType("bool", ()))


@converter("OptionalGetElement", *_OPTIONAL)
def optional_get_element(bb, x):
    if not _is_optional(bb, x):
        return x
    kind = bb.kinds[x].element
    if kind is None:
        raise ValueError("an optional without an element")
    if not isinstance(kind, TensorType):
        return host.call(bb, "get_element", x, kind=kind)
    if kind.shape is None:
        kind = host.declared_kind(bb.node.outputs[0]) or kind
    return host.call_for_tensor(bb, "get_element", x, kind=kind)


def _is_optional(bb, x):
    return isinstance(bb.kinds.get(x), OptionalType)


def _sequence(bb, items):
    return bb.bb.normalize(relax.Tuple(list(items)))


def _is_static(sequence):
    return isinstance(sequence.ty, relax.TupleType)


def _is_known(bb, value):
    return value is None or bb.static(value) is not None


def _or_null(bb, value):
    return bb.emit(relax.op.null_value()) if value is None else value


def _items(bb, sequence):
    return host.fields(bb, sequence)


def _element(bb, sequence):
    """What the elements of a sequence are, as far as it, or what is said of one of them, tells."""
    kind = host.kind_of(bb, sequence).element
    declared = host.declared_kind(bb.node.outputs[0])
    if kind is None or (isinstance(kind, TensorType) and kind.shape is None and declared):
        kind = declared
    if not isinstance(kind, TensorType):
        raise NotImplementedError(f"a sequence of {kind or 'what is known only at run time'}")
    return kind


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
