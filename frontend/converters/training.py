"""Converters for the optimisers of ai.onnx.preview.training.

A node optimises any number of tensors: its inputs are the tensors, then their gradients, then
each kind of state; its results are the new tensors, then the new states.
"""

from tvm_ext.ops import optimizers as ops

from ..table import converter, refuse

_TRAINING = "ai.onnx.preview.training"

refuse("Gradient", _TRAINING, "differentiates a graph at run time; export the gradient's own graph")


@converter("Momentum", 1, domain=_TRAINING)
def momentum(bb, rate, count, *inputs, alpha, beta, mode, norm_coefficient):
    if mode not in ("standard", "nesterov"):
        raise NotImplementedError(f"mode {mode}")
    norm = norm_coefficient

    def update(x, g, v):
        v = bb.emit_te(ops.momentum_velocity, v, x, g, count, alpha=alpha, beta=beta, norm=norm)
        if mode == "standard":
            return bb.emit_te(ops.momentum_step, x, v, rate), v
        return bb.emit_te(ops.nesterov_step, x, v, rate, g, alpha=alpha, norm=norm), v

    return _each(bb, update, inputs, 3)


@converter("Adagrad", 1, domain=_TRAINING)
def adagrad(bb, rate, count, *inputs, decay_factor=0.0, epsilon=1e-6, norm_coefficient=0.0):
    norm = norm_coefficient

    def update(x, g, h):
        h = bb.emit_te(ops.adagrad_squares, h, x, g, norm=norm)
        return bb.emit_te(ops.adagrad_step, x, h, rate, count, g, norm=norm, epsilon=epsilon,
                          decay=decay_factor), h  # fmt: skip

    return _each(bb, update, inputs, 3)


@converter("Adam", 1, domain=_TRAINING)
def adam(bb, rate, count, *inputs, alpha=0.9, beta=0.999, epsilon=1e-6, norm_coefficient=0.0,
         norm_coefficient_post=0.0):  # fmt: skip
    norm = norm_coefficient

    def update(x, g, v, h):
        v = bb.emit_te(ops.adam_momentum, v, x, g, alpha=alpha, norm=norm)
        h = bb.emit_te(ops.adam_squares, h, x, g, beta=beta, norm=norm)
        x = bb.emit_te(ops.adam_step, x, v, h, rate, count, alpha=alpha, beta=beta,
                       epsilon=epsilon, shrink=1 - norm_coefficient_post)  # fmt: skip
        return x, v, h

    return _each(bb, update, inputs, 4)


def _each(bb, update, inputs, kinds):
    """``update`` of each tensor with its gradient and states; the results kind by kind."""
    if len(inputs) % kinds:
        raise NotImplementedError(f"{len(inputs)} tensors, not {kinds} of each kind")
    count = len(inputs) // kinds
    results = []
    for x, *others in (inputs[k::count] for k in range(count)):
        results.append(update(x, *(bb.of_shape(other, bb.shape(x)) for other in others)))
    return tuple(value for column in zip(*results, strict=True) for value in column)
