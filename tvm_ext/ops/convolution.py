"""Convolutions that TVM lacks or computes wastefully: transposed, deformable, of run-time sizes."""

from itertools import product

from tvm import te, tirx
from tvm.sym import Analyzer

__all__ = ["conv_transpose", "convolution", "deform_conv"]


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

    return te.compute((n, per_group * group, *outputs), term, "conv_transpose")


def deform_conv(x, w, offset, mask, before, strides, dilations, group, offset_group):
    """``x[N, C, H, W]`` sampled where ``offset`` says, then convolved with ``w[M, C/group, ...]``.

    ``offset`` is ``[N, offset_group * kh * kw * 2, oh, ow]`` (y, then x); ``mask`` (or None) is
    ``[N, offset_group * kh * kw, oh, ow]``. Samples are bilinear, zero outside of ``x``. Sums run
    in float32 for narrow floats, and the result has that type.
    """
    n, channels, height, width = x.shape
    m, depth, kh, kw = w.shape
    oh, ow = offset.shape[2:]
    dtype = accumulator(x.dtype)
    shared = channels // offset_group

    def pixel(batch, c, y, z):
        inside = tirx.all(y >= 0, y < height, z >= 0, z < width)
        return tirx.if_then_else(inside, x(batch, c, y, z).astype(dtype), tirx.const(0, dtype))

    def sample(batch, c, ky, kx, i, j):
        tap = (tirx.floordiv(c, shared) * kh + ky) * kw + kx
        y = offset(batch, 2 * tap, i, j).astype(dtype) + (
            i * strides[0] - before[0] + ky * dilations[0]
        ).astype(dtype)
        z = offset(batch, 2 * tap + 1, i, j).astype(dtype) + (
            j * strides[1] - before[1] + kx * dilations[1]
        ).astype(dtype)
        top, left = te.floor(y), te.floor(z)
        value = tirx.const(0, dtype)
        for dy, dz in product((0, 1), repeat=2):
            weight = (1 - te.abs(y - top - dy)) * (1 - te.abs(z - left - dz))
            corner = pixel(batch, c, top.astype("int64") + dy, left.astype("int64") + dz)
            value = value + weight * corner
        return value if mask is None else value * mask(batch, tap, i, j).astype(dtype)

    samples = te.compute((n, channels, kh, kw, oh, ow), sample, "deform_sample")
    c = te.reduce_axis((0, depth), "c")
    ky, kx = te.reduce_axis((0, kh), "ky"), te.reduce_axis((0, kw), "kx")

    def term(batch, o, i, j):
        source = tirx.floordiv(o, m // group) * depth + c
        return te.sum(
            samples(batch, source, ky, kx, i, j) * w(o, c, ky, kx).astype(dtype), axis=[c, ky, kx]
        )

    return te.compute((n, m, oh, ow), term, "deform_conv")


def accumulator(dtype):
    """The type that sums of ``dtype`` run in."""
    return "float32" if str(dtype) in ("float16", "bfloat16") else dtype
