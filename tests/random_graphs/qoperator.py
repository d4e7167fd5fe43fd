"""Operators that compute on quantised values, without QuantizeLinear around them."""

import numpy as np

from .choice import images, is_f32, operand, other
from .graph import MICROSOFT, Rejected


def codes(g, x=None, dtype=None):
    """Codes of a value: they, their scale and their zero point."""
    x = x or g.choose(lambda v: is_f32(v) and v.array.size)
    dtype = dtype or g.pick("uint8", "int8")
    scale = g.const(np.float32(g.pick(0.0213, 0.0517)))
    zero = g.const(np.array(g.int(-3, 9) + (120 if dtype == "uint8" else 0), dtype))
    return g.node("QuantizeLinear", x, scale, zero), scale, zero


def weight_codes(g, shape, dtype):
    """Seven bits: without VNNI, onnxruntime adds pairs of products in 16 bits."""
    low, high = (-64, 64) if dtype == "int8" else (0, 128)
    return g.const(g.rng.integers(low, high, shape), dtype)


def _zero(g, dtype, shape=()):
    return g.const(np.asarray(g.rng.integers(0, 5, shape), dtype))


def matmul_integer(g):
    x, scale, zero = codes(g, g.choose(lambda v: is_f32(v) and v.ndim >= 2 and v.is_static(-1)))
    n, dtype = g.pick(1, 5, 16), g.pick("int8", "uint8")
    w = weight_codes(g, (x.shape[-1], n), dtype)
    zeros = [zero] if g.chance(0.6) else []
    if zeros and g.chance(0.6):
        zeros.append(_zero(g, dtype, g.pick((), (n,))))
    if g.chance(0.4) and len(zeros) == 2:
        scales = g.const(np.abs(g.numbers(g.pick((), (n,)))) * np.float32(0.02) + 0.01, "float32")
        bias = [operand(g, (n,))] if g.chance(0.5) else []
        return g.node("MatMulIntegerToFloat", x, w, scale, scales, *zeros, *bias, **MICROSOFT)
    y = g.node("MatMulInteger", x, w, *zeros)
    if g.chance(0.8):
        y = g.node("Mul", g.node("Cast", y, to=1), g.node("Mul", scale, g.scalar(0.03)))
    return y


def dynamic(g):
    """A product whose operand is quantised at run time."""
    x = g.choose(lambda v: is_f32(v) and v.ndim >= 2 and v.array.size and v.is_static(-1))
    n, dtype = g.pick(1, 5, 16), g.pick("int8", "uint8")
    w = weight_codes(g, (x.shape[-1], n), dtype)
    if g.chance(0.4):
        inputs = [g.const(np.float32(0.02)), _zero(g, dtype) if g.chance(0.5) else None]
        inputs.append(operand(g, (n,)) if g.chance(0.5) else None)
        return g.node("DynamicQuantizeMatMul", x, w, *inputs, **MICROSOFT)
    y, scale, zero = g.node("DynamicQuantizeLinear", x, outputs=3)
    if g.chance(0.2):
        return g.node("DequantizeLinear", y, scale, zero)
    y = g.node("Cast", g.node("MatMulInteger", y, w, zero), to=1)
    return g.node("Mul", y, g.node("Mul", scale, g.scalar(0.03)))


def conv_integer(g):
    x, scale, zero = codes(g, g.choose(lambda v: images(v) and v.ndim in (3, 4)), "uint8")
    c, spatial = x.shape[1], x.ndim - 2
    group = g.pick(1, 1, c)
    m = group * g.pick(1, 2, 3)
    attributes = {
        "group": group,
        "pads": [g.int(0, 1) for _ in range(2 * spatial)],
        "strides": [g.int(1, 2) for _ in range(spatial)],
    }
    shape = (m, c // group, *[g.pick(1, 3) for _ in range(spatial)])
    if g.chance(0.5):
        w = weight_codes(g, shape, "uint8")
        zeros = [zero] + ([_zero(g, "uint8")] if g.chance(0.5) else [])
        return g.node("ConvInteger", x, w, *zeros, **attributes)
    per = g.pick((), (m,))
    w = weight_codes(g, shape, "int8")
    scales = g.const(np.full(per, 0.02) + 0.01 * g.rng.random(per), "float32")
    bias = [g.const(g.rng.integers(-500, 500, m), "int32")] if g.chance(0.5) else []
    to = g.const(np.float32(0.0973)), g.const(np.uint8(g.int(90, 140)))
    zeros = g.const(np.zeros(per), "int8")
    y = g.node("QLinearConv", x, scale, zero, w, scales, zeros, *to, *bias, **attributes)
    return g.node("DequantizeLinear", y, *to)


def qlinear_matmul(g):
    x, scale, zero = codes(g, g.choose(lambda v: is_f32(v) and v.ndim >= 2 and v.is_static(-1)))
    n, dtype = g.pick(1, 5, 16), "int8"
    per = g.pick((), (n,))
    w = weight_codes(g, (x.shape[-1], n), dtype)
    scales = g.const(np.full(per, 0.02) + 0.01 * g.rng.random(per), "float32")
    to = g.const(np.float32(0.0973)), g.const(np.array(3, x.dtype))
    y = g.node("QLinearMatMul", x, scale, zero, w, scales, _zero(g, dtype, per), *to)
    return g.node("DequantizeLinear", y, *to)


def qlinear(g):
    """Operators of codes, of com.microsoft; its Softmax of them rounds down."""
    kind = g.pick("Add", "Mul", "Sigmoid", "LeakyRelu", "AveragePool", "GlobalAveragePool",
                  "Concat", "ReduceMean")  # fmt: skip
    pools = kind.endswith("Pool")
    x = g.choose(lambda v: is_f32(v) and v.ndim and v.array.size and (not pools or v.ndim == 4))
    a = codes(g, x)
    to = g.const(np.float32(0.0419)), g.const(np.array(7, a[0].dtype))
    attributes = {}
    if kind in ("Add", "Mul"):
        inputs = (*a, *codes(g, other(g, x), str(a[0].dtype)), *to)
    elif kind == "Concat":
        inputs = (*to, *a, *codes(g, x, str(a[0].dtype)))
        attributes["axis"] = g.int(0, x.ndim - 1)
    elif kind == "ReduceMean":
        inputs = (*a, *to)
        attributes = {"axes": [g.int(0, x.ndim - 1)], "keepdims": g.pick(0, 1)}
    else:
        inputs = (*a, *to)
        if kind == "LeakyRelu":
            attributes["alpha"] = 0.1
        elif pools:
            attributes["channels_last"] = g.pick(0, 0, 1)
            if kind == "AveragePool":
                if min(min(a.shape) for a in x.arrays) < 2:
                    raise Rejected  # onnxruntime divides by zero where no window fits
                attributes |= {"kernel_shape": [2, 2], "strides": [g.int(1, 2)] * 2}
    return g.node("DequantizeLinear", g.node(f"QLinear{kind}", *inputs, **attributes, **MICROSOFT),
                  *to)  # fmt: skip


def matmul_nbits(g):
    x = g.choose(lambda v: is_f32(v) and v.ndim >= 2 and v.array.size and v.is_static(-1))
    k, n, block, bits = x.shape[-1], g.pick(1, 8, 17), g.pick(16, 32), 4
    blocks = -(-k // block)
    w = g.const(g.rng.integers(0, 256, (n, blocks, block * bits // 8)), "uint8")
    inputs = [x, w, g.const(np.abs(g.numbers((n * blocks,))) * np.float32(0.1))]
    if g.chance(0.5):
        inputs.append(g.const(g.rng.integers(0, 256, (n * -(-blocks * bits // 8),)), "uint8"))
    return g.node("MatMulNBits", *inputs, K=k, N=n, bits=bits, block_size=block, **MICROSOFT)


#: What makes a node, and how often it is chosen.
QOPERATOR = [(matmul_integer, 1), (dynamic, 1), (conv_integer, 1), (qlinear_matmul, 1),
             (qlinear, 2), (matmul_nbits, 1)]  # fmt: skip
