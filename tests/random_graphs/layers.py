"""Operators that are the layers of networks."""

import numpy as np

from .choice import images, is_f32, other
from .graph import Rejected


def conv(g, x=None, **attributes):
    x = x or g.choose(images)
    spatial, c = x.ndim - 2, x.shape[1]
    group = g.pick(1, 1, 1, c, *(k for k in (2, 3) if c % k == 0))
    m = group * g.pick(1, 2, 3, 8) if group > 1 else g.pick(1, 2, 5, 8, 16, 24)
    kernel = [g.pick(1, 3, 2, 5) for _ in range(spatial)] if g.chance(0.7) else [1] * spatial
    if g.chance(0.5):
        kernel = [kernel[0]] * spatial
    scale = (c // group * np.prod(kernel)) ** -0.5
    w = g.const(g.numbers((m, c // group, *kernel)) * np.float32(scale))
    inputs = [x, w] + ([g.const(g.numbers((m,)))] if g.chance(0.6) else [])
    if g.chance(0.15):
        attributes["auto_pad"] = g.pick("SAME_UPPER", "SAME_LOWER", "VALID")
    else:
        attributes["pads"] = g.pick(
            [k // 2 for k in kernel] * 2, [g.int(0, 2) for _ in range(2 * spatial)]
        )
    if g.chance(0.3):
        attributes["strides"] = [g.int(1, 3) for _ in range(spatial)]
    if g.chance(0.15) and "auto_pad" not in attributes:
        attributes["dilations"] = [g.int(1, 2) for _ in range(spatial)]
    return g.node("Conv", *inputs, group=group, kernel_shape=kernel, **attributes)


def conv_transpose(g):
    x = g.choose(images)
    spatial, c = x.ndim - 2, x.shape[1]
    group = g.pick(1, 1, c)
    m, k, s = g.pick(1, 2, 4), g.pick(1, 2, 3, 4), g.pick(1, 2, 3)
    w = g.const(g.numbers((c, m, *[k] * spatial)) * np.float32(c**-0.5))
    inputs = [x, w] + ([g.const(g.numbers((m * group,)))] if g.chance(0.6) else [])
    pads = [g.int(0, k // 2) for _ in range(2 * spatial)]
    y = g.node(
        "ConvTranspose",
        *inputs,
        group=group,
        strides=[s] * spatial,
        pads=pads,
        output_padding=[g.int(0, s - 1) for _ in range(spatial)] if g.chance(0.3) else None,
    )
    return batch_norm(g, y) if g.chance(0.4) else y


def pool(g):
    x = g.choose(lambda v: images(v) and v.ndim < 5)
    op = g.pick("MaxPool", "AveragePool", "GlobalAveragePool", "GlobalMaxPool")
    if op.startswith("Global"):
        return g.node(op, x)
    spatial = x.ndim - 2
    k = [g.pick(2, 3, 1) for _ in range(spatial)]
    pads = [g.int(0, n // 2) for n in k * 2]
    for array in x.arrays:  # where no window fits, onnxruntime has one all the same
        padded = np.array(array.shape[2:]) + pads[:spatial] + pads[spatial:]
        if (padded < k).any():
            raise Rejected
    extra = {"count_include_pad": g.pick(0, 1)} if op == "AveragePool" else {}
    if g.opset >= 10:
        extra["ceil_mode"] = g.pick(0, 0, 1)
    return g.node(
        op,
        x,
        kernel_shape=k,
        strides=[g.int(1, 2) for _ in k],
        pads=pads,
        **extra,
    )


def batch_norm(g, x=None):
    x = x or g.choose(images)
    c = x.shape[1]
    scale, shift, mean = (g.numbers((c,)) for _ in range(3))
    if g.opset < 9:
        return g.node(
            "BatchNormalization", x, *map(g.const, (scale, shift, mean, np.abs(scale) + 0.5))
        )
    return g.node(
        "BatchNormalization",
        x,
        *map(g.const, (scale, shift, mean, np.abs(shift) + 0.5)),
        epsilon=g.pick(None, 0.1),
    )


def norm(g):
    kind = g.pick(
        "instance", *(("layer",) if g.opset >= 17 else ()), "group", "lrn", "lp", "rms", "mvn"
    )
    if kind == "layer" or kind == "rms":
        x = g.choose(lambda v: is_f32(v) and v.ndim and v.array.size)
        axis = g.int(-x.ndim, -1)
        if not all(x.is_static(k) for k in range(axis % x.ndim, x.ndim)):
            raise Rejected
        shape = x.shape[axis:]
        scale = g.const(g.numbers(shape))
        if kind == "rms":
            return g.node("RMSNormalization", x, scale, axis=axis)
        bias = [g.const(g.numbers(shape))] if g.chance(0.6) else []
        return g.node("LayerNormalization", x, scale, *bias, axis=axis)
    x = g.choose(images)
    c = x.shape[1]
    if kind == "instance":
        return g.node(
            "InstanceNormalization", x, g.const(g.numbers((c,))), g.const(g.numbers((c,)))
        )
    if kind == "group":
        groups = g.pick(*(k for k in (1, 2, 3, c) if c % k == 0))
        n = c if g.opset >= 21 else groups
        return g.node(
            "GroupNormalization",
            x,
            g.const(g.numbers((n,))),
            g.const(g.numbers((n,))),
            num_groups=groups,
        )
    if kind == "lrn":
        return g.node("LRN", x, size=g.pick(1, 3, 5))
    if kind == "mvn":
        axes = [axis for axis in g.pick([0, 2, 3], [2, 3], [1]) if axis < x.ndim]
        return g.node("MeanVarianceNormalization", x, axes=axes)
    return g.node("LpNormalization", x, axis=g.int(0, x.ndim - 1), p=2)


def gemm(g):
    x = g.choose(lambda v: is_f32(v) and v.ndim == 2 and v.array.size)
    alpha, beta = g.pick(None, 1.0, 0.5), g.pick(None, 1.0, 2.0, 0.0)
    ta = g.pick(None, 0, 1)
    inner = 0 if ta else 1
    outer = 1 - inner
    n = g.pick(1, 3, 8, 16, 17)
    tb = g.pick(None, 0, 1)
    w = None
    if w is None:
        if not x.is_static(inner):
            raise Rejected
        k = x.shape[inner]
        w = g.const(g.numbers((n, k) if tb else (k, n)) * np.float32(max(k, 1) ** -0.5))
    n = w.shape[0 if tb else 1]
    bias = g.pick((n,), (1, n), (), (1,), (1, 1), (x.shape[outer], n), (x.shape[outer], 1), None)
    inputs = [x, w]
    if bias is not None:
        inputs.append(g.const(g.numbers(bias)))
    elif g.opset < 11:
        raise Rejected
    return g.node(
        "Gemm", *inputs, alpha=alpha, beta=beta if bias is not None else None, transA=ta, transB=tb
    )


def matmul(g):
    x = g.choose(lambda v: is_f32(v) and v.ndim and v.array.size)
    pairs = [
        v
        for v in g.values
        if is_f32(v)
        and v.ndim
        and v.array.size
        and all(v.arrays[k].shape[max(v.ndim - 2, 0)] == x.arrays[k].shape[-1] for k in (0, 1))
    ]
    if pairs and g.chance(0.4):
        y = g.node("MatMul", x, pairs[g.rng.integers(len(pairs))])
    else:
        if not x.is_static(-1):
            raise Rejected
        k, n = x.shape[-1], g.pick(1, 3, 8, 16, 31)
        shape = g.pick((k, n), (k, n), (k, n), (k,), (1, k, n), (2, k, n))
        y = g.node("MatMul", x, g.const(g.numbers(shape) * np.float32(k**-0.5)))
        if g.chance(0.2) and y.ndim >= 2:
            w = g.node("Transpose", g.const(g.numbers((n, k)) * np.float32(k**-0.5)), perm=[1, 0])
            y = g.node("MatMul", x, w)
    if g.chance(0.6):
        y = g.node("Add", *g.pick((y, other(g, y)), (other(g, y), y)))
    if g.chance(0.4):
        y = g.node(g.pick("Relu", "Sigmoid", "Tanh"), y)
    return y


def einsum(g):
    x = g.choose(lambda v: is_f32(v) and v.ndim in (2, 3, 4) and v.array.size)
    letters = "abcd"[: x.ndim]
    other_ = g.choose(
        lambda v: (
            is_f32(v)
            and v.ndim == x.ndim
            and v.shape == x.shape
            and v.arrays[1].shape == x.arrays[1].shape
        )
    )
    out = "".join(c for c in letters if g.chance(0.6))
    return g.node("Einsum", x, other_, equation=f"{letters},{letters}->{out}")


def resize(g):
    x = g.choose(lambda v: images(v) and v.ndim in (3, 4))
    spatial = x.ndim - 2
    scales = np.array([1, 1] + [g.pick(2.0, 2.0, 1.0, 1.5, 0.5) for _ in range(spatial)], "float32")
    mode = g.pick("nearest", "linear")
    if g.opset < 9:
        return g.node("Upsample", x, scales=np.maximum(scales, 1).tolist(), mode=mode)
    if g.opset < 10:
        return g.node("Upsample", x, g.const(np.maximum(scales, 1)), mode=mode)
    if g.opset < 11:
        return g.node("Resize", x, g.const(scales), mode=mode)
    transform = g.pick("half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel")
    extra = (
        {"nearest_mode": g.pick("floor", "round_prefer_floor", "ceil")} if mode == "nearest" else {}
    )
    if transform == "align_corners":
        # Of 4.5 rows onnxruntime aligns the 4 that are there, the official suite the 4.5.
        scales = np.ceil(scales)
    roi = None if g.opset >= 13 else g.const(np.zeros(0, "float32"))
    if g.chance(0.3):  # to computed sizes
        shape = g.node("Shape", x)
        first = g.node("Slice", shape, g.ints(0), g.ints(2), g.ints(0))
        last = g.node("Slice", shape, g.ints(2), g.ints(9), g.ints(0))
        sizes = g.node("Concat", first, g.node("Mul", last, g.ints(2)), axis=0)
        scales = None if g.opset >= 13 else g.const(np.zeros(0, "float32"))
        return g.node(
            "Resize",
            x,
            roi,
            scales,
            sizes,
            mode=mode,
            coordinate_transformation_mode=transform,
            **extra,
        )
    return g.node(
        "Resize",
        x,
        roi,
        g.const(scales),
        mode=mode,
        coordinate_transformation_mode=transform,
        **extra,
    )


def recurrent(g):
    x = g.choose(lambda v: is_f32(v) and v.ndim == 3 and v.array.size and v.is_static(2))
    op, gates = g.pick(("LSTM", 4), ("GRU", 3), ("RNN", 1))
    hidden, width = g.pick(1, 3, 8), x.shape[2]
    direction = g.pick("forward", "reverse", "bidirectional")
    d = 2 if direction == "bidirectional" else 1
    inputs = [
        x,
        g.const(g.numbers((d, gates * hidden, width)) * 0.3, "float32"),
        g.const(g.numbers((d, gates * hidden, hidden)) * 0.3, "float32"),
    ]
    if g.chance(0.5):
        inputs.append(g.const(g.numbers((d, 2 * gates * hidden))))
    return g.node(
        op, *inputs, hidden_size=hidden, direction=direction, outputs=3 if op == "LSTM" else 2
    )


#: What makes a node, and how often it is chosen.
LAYERS = [(conv, 6), (conv_transpose, 2), (pool, 3), (batch_norm, 2), (norm, 4), (gemm, 4),
          (matmul, 6), (einsum, 1), (resize, 2), (recurrent, 1)]  # fmt: skip
