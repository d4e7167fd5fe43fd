"""Converters for Pad and CenterCropPad."""

import numpy as np
from tvm import relax, tirx

from tvm_ext.ops import padding as ops

from ..axes import placed_all
from ..known import as_expr
from ..run_time import demand_axes, demand_holds
from ..table import converter
from .shape import te_dims

_TAKEN = "a padded axis is {given}, less than {wanted}"


@converter("Pad", 1)
def pad_1(bb, x, *, paddings, mode="constant", value=0.0):
    return pad_2(bb, x, pads=paddings, mode=mode, value=value)


@converter("Pad", 2)
def pad_2(bb, x, *, pads, mode="constant", value=0.0):
    return _pad(bb, x, list(pads), _scalar(bb, x, value), range(bb.rank(x)), mode)


@converter("Pad", 11, 13)
def pad_inputs(bb, x, pads, constant_value=None, *, mode="constant"):
    return pad_axes(bb, x, pads, constant_value, mode=mode)


@converter("Pad", 18, 19, 21, 23, 24, 25)
def pad_axes(bb, x, pads, constant_value=None, axes=None, *, mode="constant"):
    value = _scalar(bb, x, 0) if constant_value is None else _rank_0(bb, constant_value)
    if axes is None:
        axes = list(range(bb.rank(x)))
    elif bb.static(axes) is not None:
        axes = placed_all(bb.ints(axes, "axes"), bb.rank(x))
    if bb.static(pads) is None or not isinstance(axes, list):
        return _pad_at_run_time(bb, x, pads, value, axes, mode)
    sizes = bb.dims(pads)
    if len(sizes) != 2 * len(axes):
        raise ValueError(f"{len(sizes)} pads for {len(axes)} axes")
    return _pad(bb, x, sizes, value, axes, mode)


def _scalar(bb, x, value):
    return bb.const(np.asarray(value, bb.dtype(x)))


def _rank_0(bb, value):
    return value if bb.rank(value) == 0 else bb.emit(relax.op.reshape(value, []))


def _pad(bb, x, pads, value, axes, mode):
    """``pads`` are ints or symbolic dims: begins, then ends."""
    rank, axes = bb.rank(x), list(axes)
    before, after = [0] * rank, [0] * rank
    for axis, begin, end in zip(axes, pads, pads[len(axes) :], strict=False):
        before[axis], after[axis] = begin, end
    return place(bb, x, before, after, value, mode)


def place(bb, x, before, after, value, mode="constant"):
    """``x`` with ``before`` and ``after`` more (or, negative, fewer) elements on each axis."""
    dims = bb.shape(x)
    shape = [bb.simplify(b + d + a) for b, d, a in zip(before, dims, after, strict=True)]
    unsure = [dim for dim in shape if not bb.proves(as_expr(dim) >= 0)]
    bb.check(*((dim, tirx.max(as_expr(dim), as_expr(0)), _TAKEN) for dim in unsure))
    padded = [
        k
        for k, (b, a) in enumerate(zip(before, after, strict=True))
        if not (bb.equal(b, 0) and bb.equal(a, 0))
    ]
    if not padded:
        return x
    _demand_elements(bb, dims, shape, mode, padded)
    return bb.emit_te(ops.pad, x, value, before, shape, mode, padded)


def _demand_elements(bb, dims, shape, mode, padded):
    """Assert that there is something to repeat, where a mode does so."""
    if mode == "constant":
        return
    for axis in padded:
        fills = tirx.any(as_expr(dims[axis]) > 0, as_expr(shape[axis]) <= 0)
        if not bb.proves(fills):
            demand_holds(bb, (fills, f"mode {mode!r} has nothing to repeat on axis {axis}"))


def _pad_at_run_time(bb, x, pads, value, axes, mode):
    dims = bb.shape(x)
    if isinstance(axes, list):
        entries = len(axes)
    else:
        (count,) = bb.shape(pads)
        entries = count // 2 if isinstance(count, int) else bb.shape(axes)[0]
        axes = bb.of_shape(axes, [entries])
    if isinstance(axes, relax.Expr):
        demand_axes(bb, axes, len(dims))
    pads = bb.of_shape(pads, [2 * entries])
    amounts = bb.emit_te(ops.padded_shape, pads, axes, *te_dims(bb, x), entries=entries)
    added, taken, after = (bb.emit(relax.TupleGetItem(amounts, k)) for k in range(3))
    # As dims, of which loops make rows that lie together; none of these is below 0.
    before = [a - t for a, t in zip(*(bb.dims(v, least=None) for v in (added, taken)), strict=True)]
    shape, padded = bb.dims(after, what="a padded axis"), list(range(len(dims)))
    if isinstance(axes, list):
        padded = sorted(axes)
        shape = [s if k in padded else dims[k] for k, s in enumerate(shape)]
    _demand_elements(bb, dims, shape, mode, padded)
    return bb.emit_te(ops.pad, x, value, before, shape, mode, padded)


@converter("CenterCropPad", 18)
def center_crop_pad(bb, x, shape, *, axes=None):
    dims = bb.shape(x)
    axes = range(len(dims)) if axes is None else axes
    before, after = [0] * len(dims), [0] * len(dims)
    for axis, wanted in zip(axes, bb.dims(shape, len(axes), "a size"), strict=True):
        missing = bb.simplify(wanted - dims[axis])
        before[axis] = _half_towards_zero(bb, missing)
        after[axis] = bb.simplify(missing - before[axis])
    return place(bb, x, before, after, _scalar(bb, x, 0))


def _half_towards_zero(bb, missing):
    """Of an odd number the smaller half comes before: floor(k / 2) added, floor(-k / 2) cropped."""
    if isinstance(missing, int):
        return int(missing / 2)
    return bb.simplify(tirx.truncdiv(missing, 2))
