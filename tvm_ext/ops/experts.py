"""Mixtures of experts: products with the weights of those experts that a token goes through."""

from tvm import te, tirx

from .approximations import sigmoid
from .quantized_weights import packed_code

__all__ = ["combined", "expert_product", "shares", "swiglu"]


def expert_product(x, chosen, weights, bias, scales=None, zeros=None, block=0, bits=8):
    """``x @ weights[chosen].T + bias[chosen]``, in float32: ``[T, k, N]``.

    ``x[T, K]`` or, one row for each expert, ``[T, k, K]``; ``chosen[T, k]``; ``weights[E, N, K]``.
    With ``scales[E, N]``, or ``[E, N, K / block]``, weights are codes of ``bits`` bits, low bits
    first, less their ``zeros`` (None: the middle of the range), which are packed likewise.
    """
    depth = x.shape[-1]
    k = te.reduce_axis((0, depth), "k")

    def weight(expert, row):
        if scales is None:
            return weights[expert, row, k].astype("float32")
        group = (expert, row, tirx.floordiv(k, block)) if block else (expert, row)
        if zeros is None:
            zero = tirx.const(1 << (bits - 1), "float32")
        else:
            zero = packed_code(zeros, *group, bits=bits).astype("float32")
        code = packed_code(weights, expert, row, k, bits=bits).astype("float32")
        return (code - zero) * scales(*group).astype("float32")

    def term(t, j, n):
        value = x[t, k] if len(x.shape) == 2 else x[t, j, k]
        return te.sum(value.astype("float32") * weight(chosen[t, j], n), axis=k)

    shape = (*chosen.shape, weights.shape[1])
    y = te.compute(shape, term, "expert_product")
    if bias is None:
        return y

    def shifted(t, j, n):
        return y[t, j, n] + bias[chosen[t, j], n].astype("float32")

    return te.compute(shape, shifted, "expert_bias")


def swiglu(x, gate, alpha, beta, limit, interleaved):
    """``G * sigmoid(alpha * G) * (L + beta)``; G at most ``limit``, L between ``-limit`` and it.

    ``x[T, k, N]`` is G and ``gate`` L, or without ``gate`` x holds both: one element of either in
    turn if ``interleaved``, else one behind the other.
    """
    *outer, width = x.shape
    width = width if gate is not None else tirx.floordiv(width, 2)

    def element(*index):
        *place, n = index
        if gate is not None:
            g, line = x(*index), gate(*index)
        elif interleaved:
            g, line = x(*place, 2 * n), x(*place, 2 * n + 1)
        else:
            g, line = x(*place, n), x(*place, n + width)
        if limit is not None:
            bound = tirx.const(limit, x.dtype)
            g, line = tirx.min(g, bound), tirx.max(tirx.min(line, bound), -bound)
        return g * sigmoid(g * alpha) * (line + beta)

    return te.compute((*outer, width), element, "swiglu")


def shares(weights, chosen, normalize):
    """``weights[T, E]`` at ``chosen[T, k]``; those of a token are scaled to a sum of 1 if asked."""
    taken = te.compute(chosen.shape, lambda t, j: weights[t, chosen[t, j]], "share")
    if not normalize:
        return taken
    j = te.reduce_axis((0, chosen.shape[1]), "j")
    total = te.compute(chosen.shape[:1], lambda t: te.sum(taken[t, j], axis=j), "share_sum")
    return te.compute(chosen.shape, lambda t, j: taken[t, j] / total[t], "normalized_share")


def combined(y, shares):
    """The sum of ``y[T, k, N]`` over the experts, weighted by ``shares[T, k]``: ``[T, N]``."""
    j = te.reduce_axis((0, y.shape[1]), "j")

    def element(t, n):
        return te.sum(y[t, j, n] * shares[t, j], axis=j)

    return te.compute((y.shape[0], y.shape[2]), element, "combined_experts")
