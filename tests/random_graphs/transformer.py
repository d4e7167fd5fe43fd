"""Operators of ONNX and com.microsoft that are whole pieces of a transformer."""

from .choice import is_f32, of_shape, operand, sizes
from .graph import MICROSOFT


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
        scale=g.pick(None, 0.4), unidirectional=causal, **MICROSOFT,
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
        unidirectional=g.pick(None, 0, 1), **MICROSOFT,
    )  # fmt: skip


def skip_norm(g):
    x = g.choose(_tokens)
    skip = g.choose(lambda v: of_shape(v, x))
    scale = operand(g, (x.shape[2],))
    if g.chance(0.5):
        bias = operand(g, (x.shape[2],)) if g.chance(0.5) else None
        return g.node("SkipSimplifiedLayerNormalization", x, skip, scale, bias, **MICROSOFT)
    shift, bias = (operand(g, (x.shape[2],)) if g.chance(0.6) else None for _ in range(2))
    return g.node("SkipLayerNormalization", x, skip, scale, shift, bias, epsilon=g.pick(None, 0.01),
                  **MICROSOFT)  # fmt: skip


#: What makes a node, and how often it is chosen.
TRANSFORMER = [(attention_operator, 2), (rotary, 1), (multi_head, 1), (packed_attention, 1),
         (skip_norm, 1)]  # fmt: skip
