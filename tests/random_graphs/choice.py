"""Which values a node takes, and what else may read them."""

import numpy as np

__all__ = [
    "broadcasts", "floats", "images", "is_f32", "of_shape", "operand", "other", "sizes", "spoil",
    "swap",
]  # fmt: skip


def floats(v):
    return v.dtype.kind == "f"


def is_f32(v):
    return v.dtype == np.float32


def other(g, x, test=lambda v: True):
    """An operand that broadcasts with x: another value, or a constant."""
    found = [v for v in g.values if v.dtype == x.dtype and test(v) and broadcasts(v, x)]
    if found and g.chance(0.6):
        return found[g.rng.integers(len(found))]
    rank = g.int(0, x.ndim)
    shape = [
        x.shape[k] if x.is_static(k) and g.chance(0.6) else 1 for k in range(x.ndim - rank, x.ndim)
    ]
    if g.chance(0.08):
        shape = [1] * (x.ndim + 1 - rank) + shape
    if g.chance(0.3):
        shape = []
    return g.const(g.numbers(shape, x.dtype))


def broadcasts(a, b):
    try:
        for k in (0, 1):
            np.broadcast_shapes(a.arrays[k].shape, b.arrays[k].shape)
    except ValueError:
        return False
    return True


def of_shape(v, x):
    """Whether ``v`` is float32, and of the shape of ``x`` in both sets of sizes."""
    return is_f32(v) and [a.shape for a in v.arrays] == [a.shape for a in x.arrays]


def images(v):
    return is_f32(v) and v.ndim in (3, 4, 5) and v.array.size and v.is_static(1)


def swap(g, a, b):
    return (a, b) if g.chance(0.5) else (b, a)


def spoil(g, v):
    """Now and then a second reader of an inner value, or an output of the graph."""
    if g.chance(0.06):
        g.node("Relu", v)
    if g.chance(0.06):
        g.outputs.append(v)
    return v


def sizes(x, axis):
    """The sizes of an axis in both sets."""
    return tuple(a.shape[axis] for a in x.arrays)


def operand(g, extents, dtype="float32"):
    """A new input, or a constant where all sizes are the same in both sets.

    ``extents`` are sizes, or pairs of them.
    """
    pairs = [e if isinstance(e, tuple) else (e, e) for e in extents]
    if all(a == b for a, b in pairs) and g.chance(0.5):
        return g.const(g.numbers([a for a, _ in pairs], dtype))
    names = [g.name("d") if a != b or g.chance(0.3) else None for a, b in pairs]
    return g.input(pairs, names, dtype)
