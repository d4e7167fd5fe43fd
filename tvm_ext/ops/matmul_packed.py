"""Matrix products in register tiles: packed right-hand side, rows rounded up to whole tiles.

The accumulator is ``[row tiles, column tiles, rows, columns]``; rows and columns past the end are
computed from clamped indices and never written, so that no tile needs a tail.
"""

from collections.abc import Callable, Sequence
from math import prod
from operator import mul

import numpy as np
from tvm import te, tirx

from .flat_index import broadcast_index, flatten_index, unflatten_index

__all__ = [
    "matmul_packed",
    "matmul_panels",
    "matmul_plain",
    "matmul_rows",
    "matmul_tiled",
    "pack_columns",
    "panels",
    "untiled",
]


def pack_columns(weight: np.ndarray, tile: int) -> np.ndarray:
    """``[K, N]`` -> ``[ceil(N/tile), K, tile]``, padded with zeros."""
    k, n = weight.shape
    padded = np.zeros((k, -(-n // tile) * tile), weight.dtype)
    padded[:, :n] = weight
    return np.ascontiguousarray(padded.reshape(k, -1, tile).transpose(1, 0, 2))


def _times(x: tirx.Expr, weight: tirx.Expr) -> tirx.Expr:
    return x * weight.astype(x.dtype)


def matmul_packed(
    x: te.Tensor,
    weight: te.Tensor,
    columns: int,
    rows: int,
    product: Callable[[tirx.Expr, tirx.Expr], tirx.Expr] = _times,
) -> te.Tensor:
    """``x[..., K]`` times packed ``weight[ceil(N/tile), K, tile]`` -> ``[..., columns]``.

    ``rows`` of ``x`` share a register tile. ``weight`` may be narrower. ``product`` is the
    term of an element of ``x`` and one of ``weight``.
    """
    *leading, k = (int(d) for d in x.shape)
    count = prod(leading)
    tiles, _, tile = weight.shape
    rk = te.reduce_axis((0, k), "rk")

    def term(mo, no, mi, ni):
        row = tirx.min(mo * rows + mi, count - 1) if count % rows else mo * rows + mi
        left, right = x[(*unflatten_index(row, leading), rk)], weight[no, rk, ni]
        return te.sum(product(left, right), axis=rk)

    tiled = te.compute((-(-count // rows), tiles, rows, tile), term, "matmul")

    def element(*index):
        *outer, column = index
        row = flatten_index(outer, leading)
        return tiled[row // rows, column // tile, row % rows, column % tile]

    return te.compute((*leading, columns), element, "product")


def matmul_rows(
    x: te.Tensor,
    weight: te.Tensor,
    columns: int,
    product: Callable[[tirx.Expr, tirx.Expr], tirx.Expr] = _times,
) -> te.Tensor:
    """As :func:`matmul_packed`; dims of ``x`` before K may be symbolic.

    How many rows share a register tile is left to the schedule: tails need other tiles, and none
    needs a padded row.
    """
    *leading, k = x.shape
    count = prod(leading)
    tiles, _, tile = weight.shape
    rk = te.reduce_axis((0, k), "rk")

    def term(row, no, ni):
        left = x[(*unflatten_index(row, leading), rk)]
        return te.sum(product(left, weight[no, rk, ni]), axis=rk)

    return untiled(te.compute((count, tiles, tile), term, "matmul"), leading, columns)


def untiled(tiled: te.Tensor, leading: Sequence[tirx.Expr | int], columns: int) -> te.Tensor:
    """``[count, ceil(columns/tile), tile]`` -> ``[*leading, columns]``, which are as many rows."""
    tile = int(tiled.shape[-1])

    def element(*index):
        *outer, column = index
        return tiled[flatten_index(outer, leading), column // tile, column % tile]

    return te.compute((*leading, tirx.const(columns, "int64")), element, "product")


def matmul_plain(a: te.Tensor, b: te.Tensor, turned: bool = False) -> te.Tensor:
    """``a[..., M, K]`` times ``b[..., K, N]``, nothing packed; leading dims broadcast.

    ``turned``: ``b`` is ``[..., N, K]``. N may be symbolic.
    """
    *outer_a, m, k = a.shape
    *outer_b, first, last = b.shape
    batch_a, batch_b = ([int(d) for d in outer] for outer in (outer_a, outer_b))
    batch, n = np.broadcast_shapes(tuple(batch_a), tuple(batch_b)), first if turned else last
    rk = te.reduce_axis((0, k), "rk")

    def element(*index):
        *outer, row, column = index
        left = a[(*broadcast_index(outer, batch_a), row, rk)]
        place = (column, rk) if turned else (rk, column)
        return te.sum(left * b[(*broadcast_index(outer, batch_b), *place)], axis=rk)

    return te.compute((*batch, m, n), element, "matmul")


def matmul_tiled(a: te.Tensor, b: te.Tensor, rows: int, tile: int) -> te.Tensor:
    """``a[..., M, K]`` times ``b[..., K, N]``; leading dims broadcast. ``b`` is packed first."""
    return matmul_panels(a, panels(b, tile), b.shape, rows)


def panels(b: te.Tensor, tile: int) -> te.Tensor:
    """``b[..., K, N]`` -> ``[batch, ceil(N/tile), K, tile]``, the last column again behind N."""
    *batch, k, n = (int(d) for d in b.shape)

    def packed_column(f, no, kk, ni):
        column = tirx.min(no * tile + ni, n - 1) if n % tile else no * tile + ni
        return b[(*unflatten_index(f, batch), kk, column)]

    return te.compute((prod(batch), -(-n // tile), k, tile), packed_column, "packed")


def matmul_panels(
    a: te.Tensor,
    packed: te.Tensor,
    dims: Sequence[int],
    rows: int,
    product: Callable[[tirx.Expr, tirx.Expr], tirx.Expr] = mul,
) -> te.Tensor:
    """``a[..., M, K]`` times the :func:`panels` of what has ``dims`` ``[..., K, N]``.

    ``product`` is the term of an element of ``a`` and one of ``packed``.
    """
    *batch_a, m, k = (int(d) for d in a.shape)
    *batch_b, _, n = (int(d) for d in dims)
    batch = list(np.broadcast_shapes(tuple(batch_a), tuple(batch_b)))
    count, (_, tiles, _, tile) = prod(batch), (int(d) for d in packed.shape)
    rk = te.reduce_axis((0, k), "rk")

    def term(f, mo, no, mi, ni):
        row = tirx.min(mo * rows + mi, m - 1) if m % rows else mo * rows + mi
        index = unflatten_index(f, batch)
        right = packed[flatten_index(broadcast_index(index, batch_b), batch_b), no, rk, ni]
        return te.sum(product(a[(*broadcast_index(index, batch_a), row, rk)], right), axis=rk)

    tiled = te.compute((count, -(-m // rows), tiles, rows, tile), term, "matmul")

    def element(*index):
        *outer, row, column = index
        return tiled[
            flatten_index(outer, batch), row // rows, column // tile, row % rows, column % tile
        ]

    return te.compute((*batch, m, n), element, "product")
