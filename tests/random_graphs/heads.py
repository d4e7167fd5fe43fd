"""Operators that are attention, or a whole piece of a transformer, and of com.microsoft."""

import numpy as np

from .choice import images, is_f32, of_shape, operand, other, sizes
from .graph import Rejected

_MICROSOFT = {"domain": "com.microsoft"}


def _tokens(v):
    return is_f32(v) and v.ndim == 3 and v.array.size and v.is_static(2)


def _mask(g, rows, columns, batch, heads):
    shape = g.pick((rows, columns), (1, 1, rows, columns), (batch, 1, rows, columns),
                   (batch, heads, rows, columns))  # fmt: skip
    mask = operand(g, shape)
    return g.node("Greater", mask, g.scalar(-0.8)) if g.chance(0.3) else mask


def attention_operator(g):
    batch, heads, size = g.pick(1, 2, (2, 3)), g.pick(1, 2, 4), g.pick(1, 4, 8)
    shared = g.pick(1, 1, 2) if heads % 2 == 0 else 1
    rows, columns = g.pick(1, 3, (5, 7)), g.pick(1, 6, (4, 9))
    width = g.pick(size, 3)
    flat = g.chance(0.5)

    def make(length, count, wide):
        return operand(g, (batch, length, count * wide) if flat else (batch, count, length, wide))

    q, k = make(rows, heads, size), make(columns, heads // shared, size)
    inputs = [q, k, make(columns, heads // shared, width)]
    past = g.pick(0, 0, 2)
    total = tuple(c + past for c in columns) if isinstance(columns, tuple) else columns + past
    inputs.append(_mask(g, rows, total, batch, heads) if g.chance(0.5) else None)
    if past:
        inputs += [operand(g, (batch, heads // shared, past, w)) for w in (size, width)]
    # Of one token behind a past onnxruntime lets it see all keys, also new ones after it.
    causal = None if past and rows == 1 else g.pick(None, 0, 1)
    heads_of = {"q_num_heads": heads, "kv_num_heads": heads // shared} if flat else {}
    return g.node(
        "Attention",
        *inputs,
        outputs=3 if past else 1,
        is_causal=causal,
        scale=g.pick(None, 0.3),
        softcap=g.pick(None, None, 2.0),
        **heads_of,
    )


def rotary(g):
    batch, heads, size, rows = g.pick(1, 2), g.pick(1, 2), g.pick(4, 8, 16), g.pick(1, 5)
    partial = g.pick(0, 0, size // 2)
    half = (partial or size) // 2
    flat = g.chance(0.5)
    x = operand(g, (batch, rows, heads * size) if flat else (batch, heads, rows, size))
    interleaved = g.pick(None, 0, 1)
    if g.chance(0.5):
        tables = [operand(g, (9, half)) for _ in range(2)]
        places = [g.const(g.rng.integers(0, 9, (batch, rows)), "int64")]
    else:
        tables, places = [operand(g, (batch, rows, half)) for _ in range(2)], []
    return g.node(
        "RotaryEmbedding",
        x,
        *tables,
        *places,
        interleaved=interleaved,
        num_heads=heads if flat or partial else None,
        rotary_embedding_dim=partial or None,
    )


def multi_head(g):
    """MultiHeadAttention of com.microsoft."""
    heads, size = g.pick(1, 2, 4), g.pick(2, 4, 8)
    batch, rows, columns = g.pick(1, 2), g.pick(1, 5), g.pick(1, 6)
    width = heads * size
    q = operand(g, (batch, rows, width))
    k, v = (operand(g, (batch, columns, width)) for _ in range(2))
    bias = operand(g, (3 * width,)) if g.chance(0.5) else None
    padding = None
    if g.chance(0.3):
        padding = g.const(g.rng.integers(1, columns + 1, batch), "int32")
    added = operand(g, (1, heads, rows, columns)) if g.chance(0.4) else None
    # Of other keys than the tokens' own onnxruntime shows all to the last.
    causal = g.pick(None, 0, 1) if rows == columns else None
    return g.node(
        "MultiHeadAttention", q, k, v, bias, padding, added, num_heads=heads,
        scale=g.pick(None, 0.4), unidirectional=causal, **_MICROSOFT,
    )  # fmt: skip


def packed_attention(g):
    """Attention of com.microsoft."""
    x = g.choose(_tokens)
    heads = g.pick(*(h for h in (1, 2, 4) if x.shape[2] % h == 0))
    size = x.shape[2] // heads
    w = operand(g, (x.shape[2], 3 * heads * size))
    lengths = None
    if g.chance(0.3) and x.is_static(0):
        least = min(sizes(x, 1))
        lengths = g.const(g.rng.integers(1, least + 1, x.shape[0]), "int32")
    return g.node(
        "Attention", x, w, operand(g, (3 * heads * size,)), lengths, num_heads=heads,
        unidirectional=g.pick(None, 0, 1), **_MICROSOFT,
    )  # fmt: skip


def skip_norm(g):
    x = g.choose(_tokens)
    skip = g.choose(lambda v: of_shape(v, x))
    scale = operand(g, (x.shape[2],))
    if g.chance(0.5):
        bias = operand(g, (x.shape[2],)) if g.chance(0.5) else None
        return g.node("SkipSimplifiedLayerNormalization", x, skip, scale, bias, **_MICROSOFT)
    shift, bias = (operand(g, (x.shape[2],)) if g.chance(0.6) else None for _ in range(2))
    return g.node("SkipLayerNormalization", x, skip, scale, shift, bias, epsilon=g.pick(None, 0.01),
                  **_MICROSOFT)  # fmt: skip


def gelu_like(g):
    x = g.choose(lambda v: is_f32(v) and v.ndim and v.array.size and v.is_static(-1))
    op = g.pick("BiasGelu", "FastGelu", "QuickGelu", "Gelu")
    bias = operand(g, (x.shape[-1],))
    if op == "BiasGelu":
        return g.node(op, x, bias, **_MICROSOFT)
    if op == "FastGelu":
        return g.node(op, x, *([bias] if g.chance(0.5) else []), **_MICROSOFT)
    if op == "QuickGelu":
        return g.node(op, x, alpha=g.pick(None, 1.0), **_MICROSOFT)
    return g.node(op, x, **_MICROSOFT)


def fused_matmul(g):
    x = g.choose(lambda v: is_f32(v) and v.ndim >= 2 and v.array.size and v.static)
    ta, tb = g.pick(None, 0, 1), g.pick(None, 0, 1)
    k, n = x.shape[-2 if ta else -1], g.pick(1, 5, 16)
    w = operand(g, (n, k) if tb else (k, n))
    return g.node("FusedMatMul", x, w, transA=ta, transB=tb, alpha=g.pick(None, 0.5), **_MICROSOFT)


def fused_gemm(g):
    x = g.choose(lambda v: is_f32(v) and v.ndim == 2 and v.array.size and v.is_static(1))
    n = g.pick(1, 5, 16)
    return g.node(
        "FusedGemm", x, operand(g, (x.shape[1], n)), operand(g, (n,)), alpha=g.pick(None, 0.5),
        activation=g.pick("Relu", "Tanh", "Sigmoid", "LeakyRelu"), **_MICROSOFT,
    )  # fmt: skip


def fused_conv(g):
    x = g.choose(lambda v: images(v) and v.ndim == 4)
    c, m = x.shape[1], g.pick(1, 8, 17)
    w = g.const(g.numbers((m, c, 3, 3)) * np.float32((9 * c) ** -0.5))
    y = [w, g.const(g.numbers((m,)))]
    if g.chance(0.5):
        plain = g.node("Conv", x, *y, pads=[1] * 4)
        same = other(g, plain, lambda v: of_shape(v, plain))
        if not of_shape(same, plain):
            raise Rejected
        y.append(same)
    activation, parameters = g.pick(
        ("Relu", None), ("Tanh", None), ("LeakyRelu", [0.1]), ("Clip", [-0.5, 0.5]),
        ("HardSigmoid", [0.2, 0.5]),
    )  # fmt: skip
    return g.node(
        "FusedConv", x, *y, pads=[1] * 4, activation=activation, activation_params=parameters,
        **_MICROSOFT,
    )  # fmt: skip


def expanded(g):
    """Small operators of com.microsoft."""
    kind = g.pick("ExpandDims", "Trilu", "Inverse", "Pad", "Unique", "CDist")
    if kind == "ExpandDims":
        x = g.choose(lambda v: v.ndim < 5)
        return g.node(kind, x, g.const(g.int(-x.ndim - 1, x.ndim), "int32"), **_MICROSOFT)
    if kind == "Trilu":
        x = g.choose(lambda v: v.ndim >= 2 and v.dtype.kind in "fi")
        return g.node(kind, x, g.const(g.int(-2, 2), "int64"), upper=g.pick(0, 1), **_MICROSOFT)
    if kind == "Inverse":
        n = g.pick(1, 2, 4)
        eye = g.const(np.eye(n) * 3, "float32")
        return g.node(kind, g.node("Add", operand(g, (g.pick(1, 3), n, n)), eye), **_MICROSOFT)
    if kind == "Unique":
        return g.node(kind, operand(g, (g.pick(1, 6, (4, 9)),)), outputs=3, **_MICROSOFT)
    if kind == "CDist":
        k = g.pick(1, 4)
        a, b = operand(g, (g.pick(2, (3, 4)), k)), operand(g, (g.pick(1, 5), k))
        return g.node(kind, a, b, metric=g.pick("sqeuclidean", "euclidean"), **_MICROSOFT)
    x = g.choose(lambda v: is_f32(v) and v.ndim and v.array.size)
    pads = [g.int(0, 2) for _ in range(2 * x.ndim)]
    return g.node(kind, x, g.ints(*pads), g.const(0.5, "float32"), mode="constant", **_MICROSOFT)


#: What makes a node, and how often it is chosen.
HEADS = [(attention_operator, 2), (rotary, 1), (multi_head, 1), (packed_attention, 1),
         (skip_norm, 1), (gelu_like, 1), (fused_matmul, 1), (fused_gemm, 1), (fused_conv, 1),
         (expanded, 1)]  # fmt: skip
