"""Converter for linear attention: one kernel, a state per head."""

from math import prod, sqrt

from tvm import relax

from tvm_ext.ops.linear_attention import linear_attention as kernel

from ..broadcasting import MISFIT, demanded_dims
from ..precision import cast
from ..table import converter
from .shape import reshaped

__all__ = ["recurrence", "side_by_side"]

_RULES = ("linear", "gated", "delta", "gated_delta")


@converter("LinearAttention", 27)
def linear_attention(bb, query, key, value, past_state=None, decay=None, beta=None, *,
                     chunk_size=64, kv_num_heads, q_num_heads, scale=0.0,
                     update_rule="gated_delta"):  # fmt: skip
    """Heads side by side: ``[B, T, H * D]``; states ``[B, H, Dk, Dv]``."""
    heads = q_num_heads, kv_num_heads, kv_num_heads
    return side_by_side(bb, query, key, value, past_state, decay, beta, heads, scale, update_rule)


def side_by_side(bb, query, key, value, past_state, decay, beta, heads, scale, rule):
    """The kernel on ``[B, T, H * D]``, of so many ``heads`` of queries, keys and values."""
    batch, steps, packed = bb.shape(query)
    depth = bb.simplify(packed // heads[0])
    width = bb.simplify(bb.shape(value)[2] // heads[2])
    rows = bb.simplify(batch * steps)

    def tokens(x, *tail):
        if x is None:
            return None
        packed = bb.simplify(prod(tail)) if tail else bb.shape(x)[2]
        return reshaped(bb, bb.of_shape(x, [batch, steps, packed]), [rows, *(tail or [packed])])

    operands = [tokens(query, heads[0], depth), tokens(key, heads[1], depth),
                tokens(value, heads[2], width)]  # fmt: skip
    shape, dtype = [batch, heads[2], depth, width], bb.dtype(query)
    if past_state is None:
        state = bb.emit(relax.op.zeros(relax.ShapeExpr(shape), "float32"))
    else:
        state, dtype = bb.of_shape(past_state, shape), bb.dtype(past_state)
    y, last = recurrence(bb, *operands, state, tokens(decay), tokens(beta), None, scale, rule)
    flat = [batch, steps, bb.simplify(prod(bb.shape(y)[1:]))]
    return reshaped(bb, cast(bb, y, bb.dtype(query)), flat), cast(bb, last, dtype)


def recurrence(bb, q, k, v, state, decay, beta, ends, scale, rule):
    """The kernel on ``[N, H, D]``; ``decay`` and ``beta`` come as ``[N, ...]``."""
    if rule not in _RULES:
        raise ValueError(f"update_rule {rule!r}")
    heads, depth = bb.shape(v)[1], bb.shape(q)[2]
    for what, x in (("query", q), ("key", k)):
        own = bb.shape(x)[1]
        if not all(isinstance(n, int) for n in (own, heads)):
            raise NotImplementedError(f"heads of {what} known only at run time")
        if max(own, heads) % min(own, heads) or (what == "key" and own > heads):
            raise ValueError(f"{own} heads of {what} for {heads} of values")
    if rule.startswith("gated"):
        if decay is None:
            raise ValueError(f"update_rule {rule!r} without decay")
        rows, width = bb.shape(decay)
        decay = reshaped(bb, decay, [rows, heads, bb.simplify(width // heads)])
    else:
        decay = None
    delta = rule.endswith("delta")
    if delta and beta is None:
        raise ValueError(f"update_rule {rule!r} without beta")
    if delta and not isinstance(bb.shape(beta)[1], int):
        given = bb.shape(beta)[1:]
        bb.demand_dims(given, demanded_dims(bb, given, [heads]), f"axis 1 of beta {MISFIT}")
    if not scale and isinstance(depth, int):
        scale = 1 / sqrt(depth)
    results = bb.emit_te(kernel, q, k, v, cast(bb, state, "float32"), decay,
                         beta if delta else None, ends, scale or None, delta,
                         primfunc_name_hint="linear_attention")  # fmt: skip
    return tuple(bb.emit(relax.TupleGetItem(results, number)) for number in range(2))
