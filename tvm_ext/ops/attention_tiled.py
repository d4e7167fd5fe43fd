"""Attention as one kernel: scores, softmax and values of a few query rows at a time.

``softmax(steps(q @ k^T)) @ v`` over row tiles; the scores of one tile are all that is ever stored.
Rows and keys past the end are computed from clamped indices, and never written or never seen. The
weights are normalised after the product with ``v``, unless they are rounded before it. Sums run in
float32.

Against ``softmax(...)`` in float64 each result is within ``EPSILONS * 2**-24 * (1 + |scores|max) *
|v|max``, where ``|scores|max`` is the largest sum of ``|q * k * scale|`` and of the masks over the
keys that count; results of float16 and bfloat16 are rounded to their type besides. ``|v|`` times
the number of keys must stay below the largest float32.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np
from tvm import te, tirx

from .approximations import exp_nonpositive, tanh
from .flat_index import broadcast_index, flatten_index, unflatten_index
from .quantization import nearest

__all__ = ["EPSILONS", "Step", "attention_tiled", "guarded"]

#: Of the error bound above.
EPSILONS = 16


@dataclass(frozen=True)
class Step:
    """A change of the scores on their way into the softmax, or of the weights behind it.

    Attributes:
        kind: "add", "multiply" (by an operand or ``value``), "tanh", or "keep", "drop": ``value``
            where the operand, a condition, is false or true; "round" to whole numbers, of which the
            operand holds the least, the greatest, and what they are multiplied by.
        operand: the number of the operand, or None.
        value: a number.
        dims: the dims of the scores at that place, without the last.
    """

    kind: str
    operand: int | None
    value: float
    dims: tuple[int, ...]


class _Operand:
    """A tensor read by the axes of its transpose ``axes``: never transposed in memory.

    ``codes``: of a tensor of integers, float32 that hold the one that stands for 0, and the scale.
    """

    def __init__(self, tensor: te.Tensor, axes: Sequence[int], codes: te.Tensor | None = None):
        self.tensor, self.axes, self.codes = tensor, axes, codes
        self.shape = [int(tensor.shape[axis]) for axis in axes]

    def __call__(self, *index: tirx.Expr) -> tirx.Expr:
        stored = dict(zip(self.axes, index, strict=True))
        value = self.tensor(*(stored[axis] for axis in range(len(index)))).astype("float32")
        return value if self.codes is None else (value - self.codes(0)) * self.codes(1)

    def batched(self, flat: tirx.Expr, batch: Sequence[int], *index: tirx.Expr) -> tirx.Expr:
        """The element of a flat position in ``batch``, to which the leading dims broadcast."""
        leading = broadcast_index(unflatten_index(flat, batch), self.shape[:-2])
        return self(*leading, *index)


def attention_tiled(
    q: te.Tensor,
    k: te.Tensor,
    v: te.Tensor,
    *operands: te.Tensor,
    axes: Sequence[Sequence[int]],
    steps: Sequence[Step],
    rows: int,
    columns: int,
    value_columns: int,
    guard: str | None,
    dtype: str,
    weight_steps: Sequence[Step] = (),
    codes: Sequence[int | None] = (None, None),
) -> te.Tensor:
    """``q[..., S, D]``, ``k[..., T, D]``, ``v[..., T, V]`` -> ``[..., S, V]``.

    ``axes`` are the transposes through which q, k and v are read and the one of the result; after
    these the leading dims of q and k broadcast to those of the result. ``rows`` queries by
    ``columns`` keys, or by ``value_columns`` of ``v``, share a register tile. A row without any
    weight is NaN; it is 0 with ``guard`` "empty", and so is any row of NaN with "nan". The result
    has type ``dtype``. ``weight_steps`` change the weights behind the softmax; there is no guard
    then. ``codes``: the operands that tell what integers in ``k`` and ``v`` stand for.
    """
    query = _Operand(q, axes[0])
    key, value = (
        _Operand(x, a, None if c is None else operands[c])
        for x, a, c in zip((k, v), axes[1:3], codes, strict=True)
    )
    batch = list(np.broadcast_shapes(*(x.shape[:-2] for x in (query, key, value))))
    tiles = _Tiles(batch, query.shape[-2], key.shape[-2], rows, columns)
    scores = _scores(tiles, query, key)
    masked = _masked(tiles, scores, operands, steps)
    peak = _folded(tiles, masked, te.max, "row_max")
    power = tiles.compute(lambda *i: exp_nonpositive(masked(*i) - peak(*i[:3])), "row_exp")
    total = _folded(tiles, power, te.sum, "row_sum")
    weights = _weights(tiles, power, total, operands, weight_steps) if weight_steps else power
    mixed = _mixed(tiles, weights, value, value_columns)

    def element(n, row, d):
        tile, place = row // rows, row % rows
        result = mixed(n, tile, d // value_columns, place, d % value_columns)
        if not weight_steps:
            result = guarded(result, total(n, tile, place), guard)
        return result.astype(dtype)

    return _written(element, [*batch, query.shape[-2], value.shape[-1]], axes[3])


def guarded(result: tirx.Expr, weight: tirx.Expr, guard: str | None) -> tirx.Expr:
    """``result / weight``, the sum of a row and that of its weights; 0 as ``guard`` has it."""
    result = result / weight
    zero = tirx.const(0.0, "float32")
    if guard == "nan":
        return tirx.Select(weight > 0.0, result, zero)
    # The largest score of a row has weight 1, so that only a row of -inf adds up to 0.
    return result if guard is None else tirx.Select(weight == 0.0, zero, result)


@dataclass(frozen=True)
class _Tiles:
    """The domain of the scores: ``[batch, row tiles, rows, key tiles, columns]``."""

    batch: list[int]
    length: int
    keys: int
    rows: int
    columns: int

    @property
    def shape(self) -> tuple[int, ...]:
        row_tiles, key_tiles = -(-self.length // self.rows), -(-self.keys // self.columns)
        return prod(self.batch), row_tiles, self.rows, key_tiles, self.columns

    def compute(self, element: Callable[..., tirx.Expr], name: str) -> te.Tensor:
        return te.compute(self.shape, element, name)

    def row(self, tile: tirx.Expr, row: tirx.Expr) -> tirx.Expr:
        """The query of a row of a tile, the last one beyond the end."""
        flat = tile * self.rows + row
        return tirx.min(flat, self.length - 1) if self.length % self.rows else flat

    def key(self, tile: tirx.Expr, column: tirx.Expr) -> tirx.Expr:
        """The key of a column of a tile, the last one beyond the end."""
        flat = tile * self.columns + column
        return tirx.min(flat, self.keys - 1) if self.keys % self.columns else flat


def _scores(tiles: _Tiles, query: _Operand, key: _Operand) -> te.Tensor:
    """The products of rows and keys; the keys are packed first, in lanes."""
    own, depth = key.shape[:-2], key.shape[-1]

    def packed_key(n, tile, d, column):
        return key.batched(n, own, tiles.key(tile, column), d)

    packed = te.compute((prod(own), tiles.shape[3], depth, tiles.columns), packed_key, "packed")
    r = te.reduce_axis((0, depth), "r")

    def term(n, tile, key_tile, row, column):
        left = query.batched(n, tiles.batch, tiles.row(tile, row), r)
        index = broadcast_index(unflatten_index(n, tiles.batch), own)
        return te.sum(left * packed[flatten_index(index, own), key_tile, r, column], axis=r)

    count, row_tiles, rows, key_tiles, columns = tiles.shape
    return te.compute((count, row_tiles, key_tiles, rows, columns), term, "scores")


def _masked(
    tiles: _Tiles, scores: te.Tensor, operands: Sequence[te.Tensor], steps: Sequence[Step]
) -> te.Tensor:
    """The scores after all steps; -inf for keys beyond the end."""

    def element(n, tile, row, key_tile, column):
        place = tiles.row(tile, row), tiles.key(key_tile, column)
        score = scores(n, tile, key_tile, row, column)
        for step in steps:
            score = _changed(score, step, operands, tiles, n, *place)
        if tiles.keys % tiles.columns == 0:
            return score
        exists = key_tile * tiles.columns + column < tiles.keys
        return tirx.Select(exists, score, tirx.const(float("-inf"), "float32"))

    return tiles.compute(element, "masked")


def _changed(score, step: Step, operands: Sequence[te.Tensor], tiles: _Tiles, n, row, key):
    """``score`` of one row and key after one step."""
    if step.kind == "tanh":
        return tanh(score)
    if step.kind == "round" and step.operand is not None:
        low, high, scale = (operands[step.operand](i) for i in range(3))
        return nearest(score, low, high) * scale
    number = tirx.const(step.value, "float32")
    if step.operand is None:
        return score * number if step.kind == "multiply" else score + number
    *leading, last = step.dims
    if last == tiles.length:
        index = [*unflatten_index(n, leading), row, key]
    else:
        index = [*unflatten_index(n * tiles.length + row, step.dims), key]
    operand = operands[step.operand]
    value = operand(*broadcast_index(index, [int(d) for d in operand.shape]))
    if step.kind in ("keep", "drop"):
        kept, other = (score, number) if step.kind == "keep" else (number, score)
        return tirx.Select(value, kept, other)
    value = value.astype("float32")
    return score * value if step.kind == "multiply" else score + value


def _folded(tiles: _Tiles, x: te.Tensor, reducer: Callable, name: str) -> te.Tensor:
    """``x`` folded over all keys, one result per row."""
    *rows, key_tiles, columns = tiles.shape
    tile, column = te.reduce_axis((0, key_tiles), "tile"), te.reduce_axis((0, columns), "column")
    return te.compute(rows, lambda *i: reducer(x(*i, tile, column), axis=[tile, column]), name)


def _weights(
    tiles: _Tiles,
    power: te.Tensor,
    total: te.Tensor,
    operands: Sequence[te.Tensor],
    steps: Sequence[Step],
) -> te.Tensor:
    """The weights of the keys of each row, their steps taken."""

    def element(n, tile, row, key_tile, column):
        place = tiles.row(tile, row), tiles.key(key_tile, column)
        weight = power(n, tile, row, key_tile, column) / total(n, tile, row)
        for step in steps:
            weight = _changed(weight, step, operands, tiles, n, *place)
        return weight

    return tiles.compute(element, "row_weight")


def _mixed(tiles: _Tiles, power: te.Tensor, value: _Operand, columns: int) -> te.Tensor:
    """The sums of values by weight, in tiles of columns; the values are packed first."""
    own, width = value.shape[:-2], value.shape[-1]
    count = -(-width // columns)

    def packed_value(n, tile, key, column):
        d = tile * columns + column
        return value.batched(n, own, key, tirx.min(d, width - 1) if width % columns else d)

    shape = (prod(own), count, tiles.keys, columns)
    packed = te.compute(shape, packed_value, "packed_values")
    r = te.reduce_axis((0, tiles.keys), "r")

    def term(n, tile, value_tile, row, column):
        index = broadcast_index(unflatten_index(n, tiles.batch), own)
        weight = power(n, tile, row, r // tiles.columns, r % tiles.columns)
        return te.sum(weight * packed[flatten_index(index, own), value_tile, r, column], axis=r)

    return te.compute((*tiles.shape[:2], count, tiles.rows, columns), term, "mixed")


def _written(element: Callable, dims: list[int], axes: Sequence[int]) -> te.Tensor:
    """``element(flat batch, row, column)`` as the transpose by ``axes`` of ``dims``."""
    *batch, _, _ = dims

    def transposed(*index):
        plain = dict(zip(axes, index, strict=True))
        *leading, row, column = (plain[axis] for axis in range(len(dims)))
        return element(flatten_index(leading, batch), row, column)

    shape = [dims[axis] for axis in axes]
    return te.compute(shape, transposed, "attention")
