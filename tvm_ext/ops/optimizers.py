"""The formulas of the optimisers of ai.onnx.preview.training, on one element.

``x`` is what is optimised, ``g`` its gradient, ``r`` the learning rate, ``t`` how many updates
there were; ``norm`` weighs the regularisation x**2 / 2.
"""

from tvm import tirx

from .elementwise import elementwise

__all__ = [
    "adagrad_squares", "adagrad_step", "adam_momentum", "adam_squares", "adam_step",
    "momentum_step", "momentum_velocity", "nesterov_step",
]  # fmt: skip


@elementwise
def momentum_velocity(v, x, g, t, *, alpha, beta, norm):
    """The next velocity; ``beta`` does not count in the first update."""
    one = tirx.const(1, v.ty)
    return v * alpha + tirx.Select(t > 0, tirx.const(beta, v.ty), one) * (x * norm + g)


@elementwise
def momentum_step(x, velocity, r):
    """``x`` after a step against its velocity."""
    return x - r.astype(_type(x)) * velocity


@elementwise
def nesterov_step(x, velocity, r, g, *, alpha, norm):
    """``x`` after a step against its gradient and its velocity."""
    return x - r.astype(_type(x)) * (x * norm + g + velocity * alpha)


@elementwise
def adagrad_squares(h, x, g, *, norm):
    """The next sum of squared gradients."""
    gradient = x * norm + g
    return h + gradient * gradient


@elementwise
def adagrad_step(x, squares, r, t, g, *, norm, epsilon, decay):
    """``x`` after a step against its gradient, divided by the root of the squares."""
    rate = r.astype(_type(x)) / (t.astype(_type(x)) * decay + 1.0)
    return x - rate * (x * norm + g) / (tirx.sqrt(squares) + epsilon)


@elementwise
def adam_momentum(v, x, g, *, alpha, norm):
    """The next mean of gradients."""
    return v * alpha + (x * norm + g) * (1 - alpha)


@elementwise
def adam_squares(h, x, g, *, beta, norm):
    """The next mean of squared gradients."""
    gradient = x * norm + g
    return h * beta + gradient * gradient * (1 - beta)


@elementwise
def adam_step(x, mean, squares, r, t, *, alpha, beta, epsilon, shrink):
    """``x`` after a step against the mean, corrected for its start at 0, then times ``shrink``."""
    rate, count = r.astype(_type(x)), t.astype(_type(x))

    def bias(base):
        return tirx.const(1, x.ty) - tirx.pow(tirx.const(base, x.ty), count)

    corrected = rate * tirx.sqrt(bias(beta)) / bias(alpha)
    rate = tirx.Select(t > 0, corrected, rate)
    return (x - rate * (mean / (tirx.sqrt(squares) + epsilon))) * shrink


def _type(x):
    return str(x.ty.dtype)
