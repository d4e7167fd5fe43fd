"""What ai.onnx.ml makes of raw scores: the ``post_transform`` of classifiers and regressors."""

from tvm import te, tirx

from . import approximations
from .elementwise import elementwise
from .formula import once

__all__ = ["probit", "softmax_zero"]

# Scores closer to 0 than this are 0 to softmax_zero.
NEAR_ZERO = 1e-7


@elementwise
def probit(x):
    """``x[...] -> sqrt(2) erfinv(2 x - 1)``, with Winitzki's erfinv (relative error 2e-3)."""
    one = tirx.const(1, x.ty)
    z = once(x * 2.0 - 1.0)
    log = once(approximations.log((one - z) * (one + z)))
    v = once(log * 0.5 + 2.0 / (3.14159 * 0.147))
    root = tirx.sqrt(tirx.sqrt(v * v - log / 0.147) - v) * 1.41421356
    return tirx.Select(z < 0.0, tirx.const(0, x.ty) - root, root)


def softmax_zero(x):
    """Softmax along the rows of ``x[R, C]`` that leaves scores of 0 at 0; they count nothing."""
    rows, classes = x.shape
    k, r = te.reduce_axis((0, classes), "k"), te.reduce_axis((0, classes), "r")
    peak = te.compute((rows,), lambda i: te.max(x[i, k], axis=k), "row_max")
    zero = tirx.const(0, x.dtype)

    def power(i, j):
        return tirx.Select(
            tirx.abs(x[i, j]) > NEAR_ZERO, approximations.exp(x[i, j] - peak[i]), zero
        )

    powers = te.compute(x.shape, power, "row_power")
    total = te.compute((rows,), lambda i: te.sum(powers[i, r], axis=r), "row_sum")

    def share(i, j):
        return tirx.Select(total[i] == zero, zero, powers[i, j] / total[i])

    return te.compute(x.shape, share, "softmax_zero")
