"""Converter for linear attention: one kernel, a state per head."""

from math import prod, sqrt

from tvm import relax

from tvm_ext.ops.linear_attention import linear_attention as kernel

from ..broadcasting import demanded_dims
from ..precision import cast
from ..table import converter
from .shape import reshaped

__all__ = ["recurrence"]

_RULES = ("linear", "gated", "delta", "gated_delta")


@converter("LinearAttention", 27)
def linear_attention(bb, query, key, value, past_state=None, decay=None, beta=None, *,
                     chunk_size=64, kv_num_heads, q_num_heads, scale=0.0,
                     update_rule="gated_delta"):  # fmt: skip
    """Heads side by side: ``[B, T, H * D]``; states ``[B, H, Dk, Dv]``."""
    batch, steps, packed = bb.shape(query)
    depth = bb.simplify(packed // q_num_heads)
    rows = bb.simplify(batch * steps)

    def tokens(x, *tail, width=None):
        if x is None:
            return None
        width = bb.shape(x)[2] if width is None else width
        return reshaped(bb, bb.of_shape(x, [batch, steps, width]), [rows, *(tail or [width])])

    width = bb.simplify(bb.shape(value)[2] // kv_num_heads)
    query = tokens(query, q_num_heads, depth)
    key = tokens(key, kv_num_heads, depth, width=bb.simplify(depth * kv_num_heads))
    value = tokens(value, kv_num_heads, width)
    shape, dtype = [batch, kv_num_heads, depth, width], bb.dtype(query)
    if past_state is None:
        state = bb.emit(relax.op.zeros(relax.ShapeExpr(shape), "float32"))
    else:
        state, dtype = bb.of_shape(past_state, shape), bb.dtype(past_state)
    y, last = recurrence(bb, query, key, value, state, tokens(decay), tokens(beta), None, scale,
                         update_rule)  # fmt: skip
    flat = [batch, steps, bb.simplify(prod(bb.shape(y)[1:]))]
    return reshaped(bb, cast(bb, y, bb.dtype(query)), flat), cast(bb, last, dtype)


def recurrence(bb, q, k, v, state, decay, beta, ends, scale, rule):
    """The kernel on ``[N, H, D]``; ``decay`` and ``beta`` come as ``[N, ...]``."""
    if rule not in _RULES:
        raise ValueError(f"update_rule {rule!r}")
    heads, depth = bb.shape(v)[1], bb.shape(q)[2]
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
        bb.demand_dims(bb.shape(beta)[1:], demanded_dims(bb, bb.shape(beta)[1:], [heads]))
    for what, x in (("query", q), ("key", k)):
        own = bb.shape(x)[1]
        if not all(isinstance(n, int) for n in (own, heads)):
            raise NotImplementedError(f"heads of {what} known only at run time")
        if max(own, heads) % min(own, heads) or (what == "key" and own > heads):
            raise ValueError(f"{own} heads of {what} for {heads} of values")
    if not scale and isinstance(depth, int):
        scale = 1 / sqrt(depth)
    results = bb.emit_te(kernel, q, k, v, cast(bb, state, "float32"), decay,
                         beta if delta else None, ends, scale or None, delta,
                         primfunc_name_hint="linear_attention")  # fmt: skip
    return tuple(bb.emit(relax.TupleGetItem(results, number)) for number in range(2))
