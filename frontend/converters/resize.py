"""Converters for Resize and Upsample."""

from dataclasses import dataclass
from math import inf, prod

import numpy as np
from tvm import relax

from tvm_ext.ops import resize as ops
from tvm_ext.ops.resize import Sampling

from ..axes import placed_all
from ..known import as_expr
from ..run_time import demand_holds
from ..table import converter
from .shape import te_dims

# More terms per element than this are summed axis by axis.
_TERMS_IN_ONE_KERNEL = 8
# Of a multiple of these channels some lie side by side between convolutions, and any pixel of
# theirs is one load. Elsewhere elements of a row are gathered: axis by axis there are fewer.
_SIDE_BY_SIDE = 4


@converter("Upsample", 1)
def upsample_1(bb, x, *, height_scale, width_scale, mode="nearest"):
    return upsample_attribute(bb, x, scales=[1.0, 1.0, height_scale, width_scale], mode=mode)


@converter("Upsample", 7)
def upsample_attribute(bb, x, *, scales, mode="nearest"):
    return upsample(bb, x, bb.const(np.asarray(scales, "float32")), mode=mode)


@converter("Upsample", 9, 10)
@converter("Resize", 10)
def upsample(bb, x, scales, *, mode="nearest"):
    return _resize(bb, x, Sampling(mode, "asymmetric"), scales=scales)


@converter("Resize", 11, 13)
def resize_11(
    bb,
    x,
    roi=None,
    scales=None,
    sizes=None,
    *,
    mode="nearest",
    coordinate_transformation_mode="half_pixel",
    nearest_mode="round_prefer_floor",
    cubic_coeff_a=-0.75,
    exclude_outside=0,
    extrapolation_value=0.0,
):
    return resize(
        bb,
        x,
        roi,
        scales,
        sizes,
        mode=mode,
        nearest_mode=nearest_mode,
        coordinate_transformation_mode=coordinate_transformation_mode,
        cubic_coeff_a=cubic_coeff_a,
        exclude_outside=exclude_outside,
        extrapolation_value=extrapolation_value,
    )


@converter("Resize", 18, 19)
def resize(
    bb,
    x,
    roi=None,
    scales=None,
    sizes=None,
    *,
    antialias=0,
    axes=None,
    coordinate_transformation_mode="half_pixel",
    cubic_coeff_a=-0.75,
    exclude_outside=0,
    extrapolation_value=0.0,
    keep_aspect_ratio_policy="stretch",
    mode="nearest",
    nearest_mode="round_prefer_floor",
):
    sampling = Sampling(
        mode,
        coordinate_transformation_mode,
        nearest_mode,
        cubic_coeff_a,
        bool(antialias),
        bool(exclude_outside),
    )
    return _resize(
        bb,
        x,
        sampling,
        scales=_present(bb, scales),
        sizes=_present(bb, sizes),
        roi=_present(bb, roi),
        axes=axes,
        extrapolation_value=extrapolation_value,
        policy=keep_aspect_ratio_policy,
    )


def _present(bb, value):
    """An optional input; up to opset 12 an empty tensor stands for an absent one."""
    return None if value is None or bb.static_shape(value) == [0] else value


@dataclass(frozen=True)
class _Axis:
    """One axis to resize: arguments of the kernels of ``Sampling``.

    ``scale`` is a float, a tensor whose entry ``k`` it is, or None: output / input length.
    ``static_scale`` is known at compile time, or None.
    """

    axis: int
    length: object
    extent: object
    scale: object
    k: int
    start: object
    end: object
    static_scale: float | None

    @property
    def arguments(self):
        return self.length, self.extent, self.scale, self.k, self.start, self.end


def _resize(
    bb,
    x,
    sampling,
    *,
    scales=None,
    sizes=None,
    roi=None,
    axes=None,
    extrapolation_value=0.0,
    policy="stretch",
):
    rank = bb.rank(x)
    axes = placed_all(axes, rank) if axes else list(range(rank))
    plan = [
        a for a in _plan(bb, x, axes, scales, sizes, roi, policy) if not _untouched(bb, a, sampling)
    ]
    if not plan:
        return x
    empty = [a for a in plan if isinstance(a.extent, int) and a.extent == 0]
    if empty:
        return _of_nothing(bb, x, plan, empty)
    y = (
        _nearest(bb, x, plan, sampling)
        if sampling.mode == "nearest"
        else _interpolated(bb, x, plan, sampling)
    )
    if sampling.coordinates == "tf_crop_and_resize":
        masks = [bb.emit_te(sampling.outside, *a.arguments) for a in plan]
        y = bb.emit_te(ops.extrapolated, y, extrapolation_value, [a.axis for a in plan], *masks)
    return y


def _of_nothing(bb, x, plan, empty):
    """The result where axes have no elements: it has none, either."""
    if not all(bb.equal(a.length, 0) for a in empty):
        raise ValueError("an axis without elements cannot be resized")
    shape = bb.shape(x)
    for a in plan:
        shape[a.axis] = a.length
    return bb.emit(relax.op.zeros(relax.ShapeExpr(shape), bb.dtype(x)))


def _untouched(bb, a, sampling):
    same = bb.equal(a.length, a.extent) and (a.scale is None or a.static_scale == 1.0)
    return same and sampling.coordinates != "tf_crop_and_resize"


def _plan(bb, x, axes, scales, sizes, roi, policy):
    """The axes with their output lengths and scales."""
    extents = [bb.shape(x)[axis] for axis in axes]
    factors = [None] * len(axes)
    if sizes is None:
        lengths, factors = _lengths_by_scale(bb, x, axes, extents, scales)
    else:
        lengths = bb.dims(sizes, len(axes), "a size")
        if policy != "stretch":
            lengths, factors = _keep_aspect(bb, x, axes, sizes, policy)
    ends = _region(bb, roi, len(axes))
    for k, (axis, length, extent) in enumerate(zip(axes, lengths, extents, strict=True)):
        known = factors[k] if isinstance(factors[k], float) else None
        if factors[k] is None and isinstance(length, int) and isinstance(extent, int) and extent:
            known = length / extent
        start, end = ends[k], ends[k + len(axes)]
        yield _Axis(axis, length, extent, factors[k], k, start, end, known)


def _lengths_by_scale(bb, x, axes, extents, scales):
    if scales is None:
        raise ValueError("neither scales nor sizes are given")
    scales = bb.of_shape(scales, [len(axes)])
    known = bb.static(scales)
    factors = [scales] * len(axes) if known is None else [float(f) for f in known.flat]
    if known is not None and not all(0 < factor < inf for factor in factors):
        raise ValueError(f"scales {factors} are not positive")
    if known is not None and all(
        isinstance(e, int) or f.is_integer() for e, f in zip(extents, factors, strict=True)
    ):
        return [
            ops.scaled_length(e, f) if isinstance(e, int) else bb.simplify(e * int(f))
            for e, f in zip(extents, factors, strict=True)
        ], factors
    dims = [te_dims(bb, x)[axis] for axis in axes]
    lengths = bb.dims(bb.emit_te(ops.scaled_dims, scales, *dims), least=None)
    reason = "a scale of axis {axis} is not positive, or makes more than memory holds"
    conditions = [as_expr(length) >= 0 for length in lengths]
    demand_holds(bb, *((c, reason.format(axis=k)) for c, k in zip(conditions, axes, strict=True)))
    return lengths, factors


def _keep_aspect(bb, x, axes, sizes, policy):
    """Lengths and the common scale under ``keep_aspect_ratio_policy``."""
    dims, targets = [bb.shape(x)[axis] for axis in axes], bb.static(sizes)
    if targets is None or not all(isinstance(v, int) for v in (*dims, *targets)):
        dims = [te_dims(bb, x)[axis] for axis in axes]
        pair = bb.emit_te(ops.kept_aspect, sizes, policy, *dims)
        lengths, scales = (bb.emit(relax.TupleGetItem(pair, k)) for k in range(2))
        return bb.dims(lengths, what="a size"), [scales] * len(axes)
    choose = {"not_larger": min, "not_smaller": max}[policy]
    scale = choose(float(size / dim) for size, dim in zip(targets, dims, strict=True))
    return [int(scale * dim + 0.5) for dim in dims], [scale] * len(axes)


def _region(bb, roi, count):
    """Starts, then ends, of the region of interest: floats, or rank-1 tensors of one element."""
    if roi is None:
        return [0.0] * count + [1.0] * count
    roi = bb.of_shape(roi, [2 * count])
    known = bb.static(roi)
    if known is not None:
        return [float(v) for v in known.flat]
    return [bb.emit(relax.op.strided_slice(roi, [0], [k], [k + 1])) for k in range(2 * count)]


def _shape(bb, x, plan):
    shape = bb.shape(x)
    for a in plan:
        shape[a.axis] = a.length
    return shape


def _nearest(bb, x, plan, sampling):
    shape, axes = _shape(bb, x, plan), [a.axis for a in plan]
    factors = [1] * len(shape)
    for a in plan:
        factors[a.axis] = _whole_factor(a, sampling)
    if all(factors):
        return bb.emit_te(ops.repeat, x, shape, factors)
    tables = [bb.emit_te(sampling.nearest_index, *a.arguments) for a in plan]
    return bb.emit_te(ops.nearest, x, shape, axes, *tables)


def _whole_factor(a, sampling):
    """f where position i reads i // f; 0 where it does not."""
    exact = (sampling.coordinates, sampling.nearest_mode) in {
        ("asymmetric", "floor"),
        ("half_pixel", "round_prefer_floor"),
        ("half_pixel", "round_prefer_ceil"),
    }
    whole = exact and a.static_scale is not None and a.static_scale.is_integer()
    return int(a.static_scale) if whole else 0


def _interpolated(bb, x, plan, sampling):
    dtype = bb.dtype(x)
    inner = dtype if dtype == "float64" else "float32"
    counts = [_taps(bb, a, sampling) for a in plan]
    few = all(isinstance(n, int) for n in counts) and prod(counts) <= _TERMS_IN_ONE_KERNEL
    channels = bb.shape(x)[1] if bb.rank(x) > 1 else 1
    at_once = few and isinstance(channels, int) and channels % _SIDE_BY_SIDE == 0
    at_once = at_once and not _is_rearranged(bb, x)
    pairs = sorted(zip(plan, counts, strict=True), key=lambda pair: _turn(pair[0]))
    y = x
    for group in [pairs] if at_once else [[pair] for pair in pairs]:
        tables = []
        for a, taps in group:
            both = bb.emit_te(sampling.tap_tables, *a.arguments, taps, inner)
            tables += [bb.emit(relax.TupleGetItem(both, j)) for j in range(2)]
        shape, axes = _shape(bb, y, [a for a, _ in group]), [a.axis for a, _ in group]
        y = bb.emit_te(ops.weighted, y, shape, axes, inner, *tables)
    if dtype == inner:
        return y
    floating = dtype in ("float16", "bfloat16")
    return bb.emit(relax.op.astype(y, dtype)) if floating else bb.emit_te(ops.rounded, y, dtype)


def _is_rearranged(bb, x):
    """Whether a reshape or a transpose gives ``x``: channels of tokens never lie side by side."""
    value = bb.bb.lookup_binding(x) if isinstance(x, relax.Var) else None
    names = "relax.reshape", "relax.permute_dims"
    return isinstance(value, relax.Call) and getattr(value.op, "name", None) in names


def _turn(a):
    """What sorts axes resized one by one: what shrinks first, and of what grows the last axis.

    Along the last axis elements are gathered, along others whole rows are read: the last comes
    where there is least. Images of unknown size grow: results of networks are brought to the size
    of their input.
    """
    shrinks = a.static_scale is not None and a.static_scale <= 1
    return (0, a.axis) if shrinks else (a.static_scale or 1.0, -a.axis)


def _taps(bb, a, sampling):
    if a.static_scale is not None or not sampling.antialias:
        return sampling.taps(a.static_scale)
    (count,) = bb.dims(bb.emit_te(sampling.tap_count, *a.arguments))
    return count
