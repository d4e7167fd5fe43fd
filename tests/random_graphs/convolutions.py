"""Convolutions with what stands around them in networks, and near misses."""

import numpy as np

from .choice import images, other, spoil, swap
from .layers import batch_norm, conv
from .patterns import reduce_mean


def conv_block(g):
    """Convolution, normalisation, activation, residual: each may lack or be read elsewhere."""
    x = g.choose(images)
    if g.chance(0.2) and g.opset >= 11:
        pads = [0] * (2 * x.ndim)
        for k in range(2, x.ndim):
            pads[k] = pads[k + x.ndim] = g.int(0, 2)
        if g.chance(0.1):
            pads[1] = 1
        x = g.node(
            "Pad",
            x,
            g.ints(*pads),
            *g.pick((), (g.const(np.array(g.pick(0.0, 0.0, 1.0), "float32")),)),
        )
    y = spoil(g, conv(g, x))
    if g.chance(0.5):
        y = spoil(g, batch_norm(g, y))
    if g.chance(0.5):
        y = activation(g, y)
    if g.chance(0.2):
        y = squeeze_excite(g, y)
    if g.chance(0.4):
        y = g.node(g.pick("Add", "Add", "Mul", "Sub"), *swap(g, spoil(g, y), other(g, y)))
    if g.chance(0.4):
        y = activation(g, y)
    return y


def activation(g, y):
    op = g.pick("Relu", "Clip", "LeakyRelu", "PRelu", "HardSwish", "Swish", "Sigmoid")
    if op == "Clip" and g.opset >= 11:
        return g.node("Clip", y, g.const(np.array(0, y.dtype)), g.const(np.array(6, y.dtype)))
    if op == "Clip":
        return g.node("Clip", y, min=0.0, max=6.0)
    if op == "PRelu":
        return g.node(
            "PRelu",
            y,
            g.const(np.abs(g.numbers(g.pick((1,), (y.shape[1],) + (1,) * (y.ndim - 2))))),
        )
    if op == "HardSwish":
        gate = g.node(
            "Mul",
            g.node(
                "Clip",
                g.node("Add", y, g.scalar(3.0)),
                *([g.const(np.array(v, "float32")) for v in (0, 6)] if g.opset >= 11 else []),
                **({} if g.opset >= 11 else {"min": 0.0, "max": 6.0}),
            ),
            g.scalar(1 / 6),
        )
        return g.node("Mul", *swap(g, y, gate))
    if op == "Swish":
        return g.node("Mul", *swap(g, y, g.node("Sigmoid", y)))
    return g.node(op, y)


def squeeze_excite(g, y=None):
    y = y or g.choose(lambda v: images(v) and v.ndim == 4)
    c = y.shape[1]
    r = g.pick(1, 2, 4)
    s = (
        g.node("GlobalAveragePool", y)
        if g.chance(0.6)
        else reduce_mean(g, y, g.pick((2, 3), (2, 3), (3,)), 1)
    )
    if g.chance(0.6):
        for m, k in ((r, c), (g.pick(c, c, c, 1), r)):
            s = g.node(
                "Conv",
                s,
                g.const(g.numbers((m, k, 1, 1))),
                *g.pick((), (g.const(g.numbers((m,))),)),
            )
            s = g.node("Relu", s) if m == r else s
    gate = g.node(g.pick("Sigmoid", "HardSigmoid", "Tanh"), s)
    return g.node(g.pick("Mul", "Mul", "Mul", "Add"), *swap(g, y, spoil(g, gate)))
