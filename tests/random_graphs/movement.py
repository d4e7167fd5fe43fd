"""Operators that move, repeat and choose elements."""

import numpy as np
from onnx import helper

from .choice import broadcasts, floats, images, operand, other
from .graph import Rejected


def transpose(g):
    x = g.choose(lambda v: v.ndim > 1)
    return g.node("Transpose", x, perm=g.rng.permutation(x.ndim).tolist())


def reshape(g):
    x = g.choose(lambda v: v.ndim)
    a = list(x.shape)
    kind = g.int(0, 4)
    if kind == 0:  # two neighbours become one
        if x.ndim < 2:
            raise Rejected
        k = g.int(0, x.ndim - 2)
        target = [0] * k + [-1] + [d if x.is_static(i) else None for i, d in enumerate(a)][k + 2 :]
        if None in target:
            raise Rejected
        return g.node("Reshape", x, g.ints(*target))
    if kind == 1:  # one becomes two
        k = g.int(0, x.ndim - 1)
        factor = g.pick(1, 2, 3, 4)
        rest = [d if x.is_static(i) else None for i, d in enumerate(a)][k + 1 :]
        if None in rest or a[k] % factor:
            raise Rejected
        return g.node("Reshape", x, g.ints(*[0] * k, *g.pick((-1, factor), (factor, -1)), *rest))
    if kind == 2:
        return g.node("Flatten", x, axis=g.int(0, x.ndim))
    if kind == 3:
        return g.node("Reshape", x, g.ints(*g.pick((-1,), (1, -1), (-1, 1), (0, -1))))
    # as another value's shape says
    like = g.choose(lambda v: v.array.size == x.array.size)
    return g.node("Reshape", x, g.node("Shape", like))


def squeeze(g):
    if g.chance(0.5):
        x = g.choose(lambda v: 1 in v.shape)
        axes = [k for k, d in enumerate(x.shape) if d == 1 and x.is_static(k)]
        axes = axes[: g.int(1, len(axes))] if axes else None
        if axes is None:
            raise Rejected
        op = "Squeeze"
    else:
        x = g.choose(lambda v: v.ndim < 5)
        axes, op = [g.int(0, x.ndim)], "Unsqueeze"
    return g.node(op, x, g.ints(*axes)) if g.opset >= 13 else g.node(op, x, axes=axes)


def concat(g):
    x = g.choose(lambda v: v.ndim and v.dtype.kind in "fi")
    axis = g.int(0, x.ndim - 1)

    def fits(v):
        return (
            v.dtype == x.dtype
            and v.ndim == x.ndim
            and all(
                np.delete(v.arrays[k].shape, axis).tolist()
                == np.delete(x.arrays[k].shape, axis).tolist()
                for k in (0, 1)
            )
        )

    parts = [x] + [g.choose(fits) for _ in range(g.int(1, 3))]
    if x.static and g.chance(0.3):
        shape = list(x.shape)
        shape[axis] = g.int(0, 3)
        parts.insert(g.int(0, len(parts)), g.const(g.numbers(shape, x.dtype)))
    return g.node("Concat", *parts, axis=axis - (x.ndim if g.opset >= 11 and g.chance(0.3) else 0))


def split(g):
    x = g.choose(lambda v: v.ndim and max(v.shape) > 1)
    axis = g.int(0, x.ndim - 1)
    n = x.shape[axis]
    if n < 2 or not x.is_static(axis):
        raise Rejected
    at = g.int(1, n - 1)
    parts = [at, n - at]
    if g.chance(0.3):
        parts.insert(g.int(0, 2), 0)
    if g.opset >= 13:
        return g.node("Split", x, g.ints(*parts), outputs=len(parts), axis=axis)
    return g.node("Split", x, split=parts, outputs=len(parts), axis=axis)


def slice_(g):
    x = g.choose(lambda v: v.ndim)
    axis = g.int(0, x.ndim - 1)
    n = min(a.shape[axis] for a in x.arrays)
    start, end = (
        g.pick(0, 1, -1, -2, g.int(0, n), -n),
        g.pick(2**31 - 1, n, -1, g.int(0, n), -n - 5),
    )
    if g.opset < 10:
        return g.node("Slice", x, starts=[start], ends=[end], axes=[axis])
    step = g.pick(1, 1, 2, 3)
    if g.chance(0.25):
        start, end, step = g.pick(-1, n, 2**31 - 1), g.pick(-(2**31), 0, -n - 1), g.pick(-1, -2)
    if g.chance(0.3):  # up to half of another's dim, known at run time
        like = g.choose(lambda v: v.ndim)
        dim = g.node("Gather", g.node("Shape", like), g.ints(g.int(0, like.ndim - 1)))
        return g.node("Slice", x, g.ints(g.pick(0, 1)), g.node("Div", dim, g.ints(2)), g.ints(axis))
    return g.node(
        "Slice",
        x,
        g.ints(start),
        g.ints(end),
        g.ints(axis - (x.ndim if g.opset >= 11 and g.chance(0.3) else 0)),
        g.ints(step),
    )


def pad(g):
    x = g.choose(lambda v: floats(v) and v.ndim)
    mode = g.pick("constant", "constant", "reflect", "edge")
    low, high = (0, 2) if mode != "constant" else (-1, 2)
    pads = [g.int(low, high) if g.chance(0.4) else 0 for _ in range(2 * x.ndim)]
    if g.opset < 11:
        return g.node("Pad", x, pads=pads, mode=mode, value=0.5)
    if mode == "constant" and g.chance(0.5):
        return g.node(
            "Pad", x, g.ints(*pads), g.const(np.array(g.pick(0, 0.5), x.dtype)), mode=mode
        )
    return g.node("Pad", x, g.ints(*pads), mode=mode)


def tile(g):
    x = g.choose(lambda v: v.ndim and v.array.size < 500)
    return g.node("Tile", x, g.ints(*(g.pick(1, 1, 2) for _ in range(x.ndim))))


def expand(g):
    like = g.choose(lambda v: v.ndim)
    x = g.choose(lambda v: v.ndim <= like.ndim and broadcasts(v, like))
    return g.node("Expand", x, g.node("Shape", like))


def gather(g):
    x = g.choose(lambda v: v.ndim and min(v.shape))
    axis = g.int(0, x.ndim - 1)
    n = min(a.shape[axis] for a in x.arrays)
    low = -n if g.opset >= 11 else 0
    indices = g.rng.integers(low, n, g.pick((), (1,), (2,), (2, 3), (1, 1)))
    return g.node("Gather", x, g.const(indices, g.pick("int64", "int32")), axis=axis)


def gather_elements(g):
    x = g.choose(lambda v: floats(v) and v.ndim and v.array.size and v.static)
    axis = g.int(0, x.ndim - 1)
    indices = g.const(g.rng.integers(0, x.shape[axis], x.shape))
    if g.chance(0.5):
        return g.node("GatherElements", x, indices, axis=axis)
    updates = other(g, x, lambda v: v.arrays[0].shape == x.arrays[0].shape and v.static)
    if updates.shape != x.shape:
        updates = g.const(g.numbers(x.shape, x.dtype))
    if g.opset >= 16:
        return g.node(
            "ScatterElements", x, indices, updates, axis=axis, reduction=g.pick("add", "max", "mul")
        )
    # Without a reduction every element must be written once.
    order = np.argsort(g.rng.random(x.shape), axis)
    return g.node("ScatterElements", x, g.const(order), updates, axis=axis)


def gather_nd(g):
    x = g.choose(lambda v: floats(v) and v.ndim >= 2 and v.array.size)
    n = [min(a.shape[k] for a in x.arrays) for k in (0, 1)]
    indices = np.stack([g.rng.permutation(d)[: min(n)] for d in n], -1)
    if g.chance(0.5):
        return g.node("GatherND", x, g.const(indices))
    if not all(x.is_static(k) for k in range(2, x.ndim)):
        raise Rejected
    return g.node(
        "ScatterND", x, g.const(indices), g.const(g.numbers((len(indices), *x.shape[2:]), x.dtype))
    )


def embedding(g):
    """Rows of a table by computed indices."""
    i = g.choose(lambda v: v.dtype.kind == "i" and v.array.size)
    i = g.node("Abs", i)
    least = max(int(a.max()) for a in i.arrays)
    if least > 60:
        raise Rejected
    return g.node("Gather", g.const(g.numbers((least + 1, g.pick(1, 3, 8)))), i)


def ranges(g):
    like = g.choose(lambda v: v.ndim)
    n = g.node("Gather", g.node("Shape", like), g.const(np.array(g.int(0, like.ndim - 1))))
    r = g.node("Range", g.const(np.array(0)), n, g.const(np.array(1)))
    return g.node("Cast", r, to=1) if g.chance(0.7) else r


def constant_of_shape(g):
    like = g.choose(lambda v: v.array.size < 3000)
    return g.node(
        "ConstantOfShape",
        g.node("Shape", like),
        value=helper.make_tensor("value", 1, [1], [g.pick(0.0, 2.5)]),
    )


def trilu(g):
    x = g.choose(lambda v: floats(v) and v.ndim >= 2)
    k = [g.const(np.array(g.int(-2, 2)))] if g.chance(0.5) else []
    return g.node("Trilu", x, *k, upper=g.pick(0, 1))


def one_hot(g):
    i = g.choose(lambda v: v.dtype == np.int64 and v.array.size < 200)
    return g.node(
        "OneHot",
        i,
        g.const(np.array(g.int(1, 5))),
        g.const(np.array([0.0, 2.0], "float32")),
        axis=g.pick(-1, 0),
    )


def depth_to_space(g):
    x = g.choose(lambda v: images(v) and v.ndim == 4)
    if x.shape[1] % 4 == 0 and g.chance(0.6):
        return g.node(
            "DepthToSpace", x, blocksize=2, mode=g.pick("DCR", "CRD") if g.opset >= 11 else None
        )
    return g.node("SpaceToDepth", x, blocksize=2)


def non_zero(g):
    x = g.choose(lambda v: v.ndim and v.array.size < 300)
    return (
        g.node("NonZero", x)
        if g.chance(0.5)
        else g.node("Compress", x, g.const([True, False, True]))
    )


def of_matrices(g):
    kind = g.pick("Size", "EyeLike", "Det")
    if kind == "Size":
        return g.node("Size", g.choose())
    if kind == "EyeLike":
        x = g.choose(lambda v: v.ndim == 2)
        return g.node("EyeLike", x, dtype=g.pick(None, 1, 7), k=g.pick(None, 1, -2))
    n = g.pick(1, 2, 3, 5)
    return g.node("Det", operand(g, (g.pick(1, (2, 3)), n, n)))


#: What makes a node, and how often it is chosen.
MOVEMENT = [(transpose, 4), (reshape, 5), (squeeze, 2), (concat, 4), (split, 3), (slice_, 4),
            (pad, 2), (tile, 1), (expand, 2), (gather, 3), (gather_elements, 1), (gather_nd, 1),
            (embedding, 1), (ranges, 1), (constant_of_shape, 1), (trilu, 1), (one_hot, 1),
            (depth_to_space, 1), (non_zero, 1), (of_matrices, 1)]  # fmt: skip
