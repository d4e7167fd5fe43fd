"""Convolutions that TVM lacks or computes wastefully: transposed, deformable, of run-time sizes,
by parts."""

from functools import reduce
from itertools import product
from math import gcd
from operator import add

from tvm import te, tirx
from tvm.sym import Analyzer

__all__ = ["accumulator", "conv_transpose", "convolution", "deform_samples", "shifted_sums"]


def convolution(x, w, outputs, before, strides, dilations, group, dtype):
    """``x[N, C, I...]`` with ``w[M, C/group, K...]`` -> ``[N, M, *outputs]``, summed in ``dtype``.

    Every size may be known only at run time, ``group`` and the begin pads ``before`` too.
    """
    n, _, *inputs = x.shape
    m, depth, *kernel = w.shape
    per_group = 1 if m is group or Analyzer().can_prove_equal(m, group) else m // group
    c = te.reduce_axis((0, depth), "c")
    taps = [te.reduce_axis((0, extent), f"k{axis}") for axis, extent in enumerate(kernel)]

    def term(batch, o, *position):
        where = [
            i * stride - begin + tap * dilation
            for i, stride, begin, tap, dilation in zip(
                position, strides, before, taps, dilations, strict=True
            )
        ]
        inside = [tirx.all(i >= 0, i < extent) for i, extent in zip(where, inputs, strict=True)]
        value = x(batch, tirx.floordiv(o, per_group) * depth + c, *where).astype(dtype)
        product_ = value * w(o, c, *taps).astype(dtype)
        return te.sum(
            tirx.if_then_else(tirx.all(*inside), product_, tirx.const(0, dtype)), axis=[c, *taps]
        )

    return te.compute((n, m, *outputs), term, "convolution")


def conv_transpose(x, w, outputs, before, strides, dilations, group):
    """``x[N, C, I...]`` with ``w[C, M/group, K...]`` -> ``[N, M, *outputs]``.

    Gathers: an output position meets only the taps that fall on an input element, so a stride
    of s costs a 1/s part of the taps. ``before`` are the begin pads. Sums run in float32 for
    narrow floats, and the result has that type.
    """
    n, channels, *inputs = x.shape
    _, per_group, *kernel = w.shape
    filters = per_group * group
    if isinstance(per_group, tirx.IntImm):
        per_group = max(int(per_group), 1)  # without filters there is no place to divide
    depth = channels // group
    dtype = accumulator(x.dtype)
    extents = [d * (k - 1) + 1 for k, d in zip(kernel, dilations, strict=True)]
    c = te.reduce_axis((0, depth), "c")
    taps = [
        te.reduce_axis((0, tirx.floordiv(extent + stride - 1, stride)), f"k{axis}")
        for axis, (extent, stride) in enumerate(zip(extents, strides, strict=True))
    ]

    def term(batch, m, *position):
        where, tap, inside = [], [], []
        for axis, o in enumerate(position):
            start, stride = o + before[axis], strides[axis]
            # Positions in the dilated kernel: those congruent to the output's phase.
            offset = tirx.floormod(start, stride) + taps[axis] * stride
            i = tirx.floordiv(start, stride) - taps[axis]
            where.append(i)
            tap.append(tirx.floordiv(offset, dilations[axis]))
            inside += [i >= 0, i < inputs[axis], offset < extents[axis]]
            if dilations[axis] > 1:
                inside.append(tirx.floormod(offset, dilations[axis]) == 0)
        source = tirx.floordiv(m, per_group) * depth + c
        value = x(batch, source, *where).astype(dtype)
        weight = w(source, tirx.floormod(m, per_group), *tap).astype(dtype)
        product_ = tirx.if_then_else(tirx.all(*inside), value * weight, tirx.const(0, dtype))
        return te.sum(product_, axis=[c, *taps])

    return te.compute((n, filters, *outputs), term, "conv_transpose")


def deform_samples(x, offset, mask, kernel, before, strides, dilations, group, offset_group):
    """What a deformable convolution multiplies: ``[N, group, oh, ow, kh, kw, c, d]``, of which
    c and d together count the channels of a group.

    ``x[N, H, W, C]`` is read where ``offset[N, offset_group * kh * kw * 2, oh, ow]`` (y, then x)
    says, bilinear and zero outside, times ``mask[N, offset_group * kh * kw, oh, ow]`` (or None). A
    place is found once for all channels that lie side by side. float32 for narrow floats.
    """
    n, height, width, channels = x.shape
    oh, ow = offset.shape[2:]
    dtype = accumulator(x.dtype)
    depth, shared = tirx.floordiv(channels, group), tirx.floordiv(channels, offset_group)
    known = isinstance(depth, tirx.IntImm) and isinstance(shared, tirx.IntImm)
    side_by_side = gcd(int(depth), int(shared)) if known else 1

    def pixel(batch, y, z, c):
        inside = tirx.all(y >= 0, y < height, z >= 0, z < width)
        y, z = tirx.max(tirx.min(y, height - 1), 0), tirx.max(tirx.min(z, width - 1), 0)
        return tirx.Select(inside, x(batch, y, z, c).astype(dtype), tirx.const(0, dtype))

    def sample(batch, g, i, j, ky, kx, part, lane):
        first = g * depth + part * side_by_side
        tap = (tirx.floordiv(first, shared) * kernel[0] + ky) * kernel[1] + kx
        y, z = (
            offset(batch, 2 * tap + axis, i, j).astype(dtype)
            + (p * strides[axis] - before[axis] + k * dilations[axis]).astype(dtype)
            for axis, (p, k) in enumerate(((i, ky), (j, kx)))
        )
        top, left = te.floor(y), te.floor(z)
        value = tirx.const(0, dtype)
        for dy, dz in product((0, 1), repeat=2):
            weight = (1 - te.abs(y - top - dy)) * (1 - te.abs(z - left - dz))
            at = top.astype("int64") + dy, left.astype("int64") + dz
            value = value + weight * pixel(batch, *at, first + lane)
        return value if mask is None else value * mask(batch, tap, i, j).astype(dtype)

    shape = (n, group, oh, ow, *kernel, tirx.floordiv(depth, side_by_side), side_by_side)
    return te.compute(shape, sample, "deform_samples")


def accumulator(dtype):
    """The type that sums of ``dtype`` run in."""
    return "float32" if str(dtype) in ("float16", "bfloat16") else dtype


def shifted_sums(parts: te.Tensor, filters: int, step: int, apart: int) -> te.Tensor:
    """``parts[N, K * filters, .., W]``, of each column k of a window, as the convolution's result.

    Outputs are ``step`` pixels from each other, columns of the window ``apart``.
    """
    n, channels, *rows, width = parts.shape
    columns = int(channels) // filters
    shape = n, filters, *rows, (width - (columns - 1) * apart - 1) // step + 1

    def element(n, o, *pixel):
        *row, j = pixel
        terms = [parts(n, k * filters + o, *row, j * step + k * apart) for k in range(columns)]
        return reduce(add, terms)

    return te.compute(shape, element, "shifted_sums")
