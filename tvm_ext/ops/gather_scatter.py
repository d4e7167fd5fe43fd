"""Gathers and scatters. Negative indices count from the end.

An index out of range never touches foreign memory: a gather reads the nearest element of the
axis, a scatter drops the update. relax.op.take and topi's scatters do neither.
"""

from tvm import te, tirx
from tvm.script.ir_builder import tirx as T

from . import serial
from .elementwise import dtype_of, float_compute


def gather(x, indices, axis):
    """``y[a..., i..., b...] = x[a..., indices[i...], b...]``."""
    before, count = axis, len(indices.shape)

    def element(*index):
        at = _inside(indices(*index[before : before + count]), x.shape[axis])
        return x(*index[:before], at, *index[before + count :])

    shape = (*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :])
    return te.compute(shape, element, "gather")


def gather_one(x, place, axis, rank):
    """:func:`gather` of one known ``place``, the only element of indices of ``rank``."""
    at = _inside(tirx.const(place, "int64"), x.shape[axis])
    shape = (*x.shape[:axis], *[tirx.const(1, "int64")] * rank, *x.shape[axis + 1 :])
    return te.compute(shape, lambda *i: x(*i[:axis], at, *i[axis + rank :]), "gather_one")


def gather_elements(x, indices, axis):
    """``y[i...] = x[i...]`` with ``i[axis]`` replaced by ``indices[i...]``."""

    def element(*index):
        at = _inside(indices(*index), x.shape[axis])
        return x(*index[:axis], at, *index[axis + 1 :])

    return te.compute(indices.shape, element, "gather_elements")


def gather_nd(x, indices, batch_dims):
    """``y[b..., i..., r...] = x[b..., *indices[b..., i..., :], r...]``."""
    depth = int(indices.shape[-1])
    lead = len(indices.shape) - 1
    taken = batch_dims + depth

    def element(*index):
        at = [_inside(indices(*index[:lead], k), x.shape[batch_dims + k]) for k in range(depth)]
        return x(*index[:batch_dims], *at, *index[lead:])

    return te.compute((*indices.shape[:-1], *x.shape[taken:]), element, "gather_nd")


def scatter_elements(data, indices, updates, axis, reduction="none"):
    """``data`` with ``updates[u]`` put at ``u``, ``u[axis]`` replaced by ``indices[u]``."""

    def place(indices, u):
        at = _wrapped(indices[u], data.shape[axis])
        return [*u[:axis], at, *u[axis + 1 :]], _in_range(at, data.shape[axis])

    return _scatter(data, indices, updates, place, reduction, "scatter_elements")


def scatter_nd(data, indices, updates, reduction="none"):
    """``data`` with ``updates[i..., r...]`` put at ``[*indices[i..., :], r...]``."""
    depth, lead = int(indices.shape[-1]), len(indices.shape) - 1

    def place(indices, u):
        at = [_wrapped(indices[(*u[:lead], k)], data.shape[k]) for k in range(depth)]
        valid = [_in_range(i, extent) for i, extent in zip(at, data.shape, strict=False)]
        return [*at, *u[lead:]], tirx.all(tirx.const(True, "bool"), *valid)

    return _scatter(data, indices, updates, place, reduction, "scatter_nd")


def _scatter(data, indices, updates, place, reduction, name):
    """Copy ``data``, then combine the updates one after the other: indices may repeat."""
    combine = _REDUCTIONS[reduction]

    def body(ins, outs):
        source, index, update = ins
        result = outs[0]

        def copy(*i):
            T.buffer_store(result, source[i], i)

        def apply(*u):
            where, valid = place(index, u)
            value = combine(result[tuple(where)], update[u])
            serial.when(valid, lambda: T.buffer_store(result, value, where))

        return tirx.SeqStmt([serial.nest(data.shape, copy), serial.nest(updates.shape, apply)])

    dtype = str(data.dtype.dtype)
    return serial.kernel([data.shape], [dtype], [data, indices, updates], body, name)


def _extremum(better):
    """``min`` or ``max`` of two numbers, NaN if one of them is."""

    def choose(old, new):
        keep = better(old, new)
        if "float" in dtype_of(old):  # TVM has no isnan of bfloat16
            keep = tirx.any(keep, tirx.isnan(old.astype(float_compute(dtype_of(old)))))
        return tirx.Select(keep, old, new)

    return choose


_REDUCTIONS = {
    "none": lambda old, new: new,
    "add": lambda old, new: old + new,
    "mul": lambda old, new: old * new,
    "min": _extremum(lambda old, new: old < new),
    "max": _extremum(lambda old, new: old > new),
}


def _wrapped(index, extent):
    index = index.astype("int64")
    return tirx.Select(index < 0, index + extent, index)


def _in_range(index, extent):
    return tirx.all(index >= 0, index < extent)


def _inside(index, extent):
    return tirx.max(tirx.min(_wrapped(index, extent), extent - 1), 0)
