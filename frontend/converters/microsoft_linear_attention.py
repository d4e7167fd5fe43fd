"""Converters for the linear attention of com.microsoft: one kernel, a state per head."""

from math import prod

from tvm import relax

from tvm_ext.ops.activation import sigmoid, softplus

from ..arithmetic import added, multiplied, scaled, shifted
from ..microsoft import microsoft
from ..precision import cast
from .linear_attention import recurrence, side_by_side
from .shape import reshaped


@microsoft("LinearAttention")
def linear_attention(bb, query, key, value, past_state=None, decay=None, beta=None, *,
                     chunk_size=64, kv_num_heads, q_num_heads, scale=0.0, state_window=0,
                     update_rule="gated_delta"):  # fmt: skip
    """Heads side by side: ``[B, T, H * D]``; states ``[B, H, Dk, Dv]``."""
    if state_window:
        raise NotImplementedError("state_window: the states of several steps, to take steps back")
    depth = bb.simplify(bb.shape(query)[2] // q_num_heads)
    heads = q_num_heads, bb.simplify(bb.shape(key)[2] // depth), kv_num_heads
    return side_by_side(bb, query, key, value, past_state, decay, beta, heads, scale, update_rule)


@microsoft("GatedDeltaNet")
def gated_delta_net(bb, query, key=None, value=None, cu_seqlens=None, decay=None, beta=None,
                    initial_state=None, a_log=None, dt_bias=None, capture_count=None,
                    state_update_active=None, *, beta_activation="none", chunk_size=64,
                    gate_activation="none", gate_lower_bound=-5.0, qk_l2_norm=0, scale=0.0,
                    state_update_capacity=0, update_rule="gated_delta"):  # fmt: skip
    """Tokens of all sequences behind each other; states have their values' axis first."""
    if state_update_capacity or key is None or value is None:
        raise NotImplementedError("state_update_capacity, and queries, keys and values in one")
    outer = bb.shape(query)[:-2]
    rows = bb.simplify(prod(outer))
    q, k, v = (reshaped(bb, x, [rows, *bb.shape(x)[-2:]]) for x in (query, key, value))
    dtype = bb.dtype(query)
    if qk_l2_norm:
        q, k = (_unit_rows(bb, x) for x in (q, k))
    if decay is not None:
        decay = reshaped(bb, cast(bb, decay, "float32"), [rows, *bb.shape(decay)[len(outer) :]])
        decay = _gate(bb, decay, a_log, dt_bias, gate_activation, gate_lower_bound)
        decay = reshaped(bb, decay, [rows, bb.simplify(prod(bb.shape(decay)[1:]))])
    if beta is not None:
        beta = reshaped(bb, cast(bb, beta, "float32"), [rows, bb.shape(v)[1]])
        if beta_activation not in ("none", "sigmoid"):
            raise NotImplementedError(f"beta_activation {beta_activation!r}")
        beta = bb.emit_te(sigmoid, beta) if beta_activation == "sigmoid" else beta
    if initial_state is None:
        batch = outer[0] if len(outer) == 2 else None
        batch = bb.simplify(bb.shape(cu_seqlens)[0] - 1) if cu_seqlens is not None else batch
        if batch is None:
            raise ValueError("neither initial_state nor cu_seqlens")
        shape = [batch, bb.shape(v)[1], bb.shape(q)[2], bb.shape(v)[2]]
        state = bb.emit(relax.op.zeros(relax.ShapeExpr(shape), "float32"))
    else:
        state = bb.emit(relax.op.permute_dims(initial_state, [0, 1, 3, 2]))
    ends = None
    if cu_seqlens is not None:
        ends = bb.emit(relax.op.strided_slice(cu_seqlens, [0], [1], [bb.shape(cu_seqlens)[0]]))
    y, last = recurrence(bb, q, k, v, state, decay, beta, ends, scale, update_rule)
    y = reshaped(bb, cast(bb, y, dtype), [*outer, *bb.shape(y)[1:]])
    return y, bb.emit(relax.op.permute_dims(last, [0, 1, 3, 2]))


def _gate(bb, raw, a_log, dt_bias, activation, bound):
    """The logarithm of the decay, from what was projected: ``raw[N, H]`` or ``[N, H, Dk]``."""
    if activation == "none":
        return raw
    tail = [1] * (bb.rank(raw) - 2)
    rate = bb.emit(relax.op.exp(reshaped(bb, a_log, [1, bb.shape(a_log)[0], *tail])))
    if bb.rank(dt_bias) == 1 and bb.equal(bb.shape(dt_bias)[0], bb.shape(raw)[1]):
        shape = [1, bb.shape(raw)[1], *tail]
    else:
        shape = [1, *bb.shape(raw)[1:]]
    moved = added(bb, raw, reshaped(bb, dt_bias, shape))
    if activation in ("softplus", "qwen"):
        step = multiplied(bb, rate, bb.emit_te(softplus, moved))
        return bb.emit(relax.op.negative(step))
    if activation in ("sigmoid", "kda"):
        open_ = bb.emit_te(sigmoid, multiplied(bb, rate, moved))
        return scaled(bb, open_, bound)
    raise NotImplementedError(f"gate_activation {activation!r}")


def _unit_rows(bb, x):
    """``x`` with the last axis of length 1, in float32."""
    x = cast(bb, x, "float32")
    squares = bb.emit(relax.op.sum(bb.emit(relax.op.multiply(x, x)), -1, keepdims=True))
    inverse = bb.emit(relax.op.rsqrt(shifted(bb, squares, 1e-6)))
    return bb.emit(relax.op.multiply(x, inverse))
