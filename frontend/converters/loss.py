"""Converters for the losses over class labels."""

from tvm import relax

from tvm_ext.ops.loss import negative_log_likelihood

from ..indices import demand_between
from ..known import as_expr
from ..precision import accumulator, cast
from ..table import converter


@converter("NegativeLogLikelihoodLoss", 12, 13, 22)
def negative_log_likelihood_loss(bb, x, target, weight=None, *, ignore_index=None,
                                 reduction="mean"):  # fmt: skip
    if reduction not in ("none", "sum", "mean"):
        raise NotImplementedError(f"reduction {reduction!r}")
    batch, classes, *places = bb.shape(x)
    target = bb.of_shape(target, [batch, *places])
    weight = None if weight is None else bb.of_shape(weight, [classes])
    least = bb.simplify(-as_expr(classes))
    demand_between(bb, target, least, bb.simplify(classes - as_expr(1)), "a class", ignore_index)
    return bb.emit_te(negative_log_likelihood, x, target, weight, ignore_index, reduction)


@converter("SoftmaxCrossEntropyLoss", 12, 13)
def softmax_cross_entropy_loss(bb, scores, labels, weights=None, *, ignore_index=None,
                               reduction="mean"):  # fmt: skip
    dtype = bb.dtype(scores)
    wide = cast(bb, scores, accumulator(dtype))
    log_prob = cast(bb, bb.emit(relax.op.nn.log_softmax(wide, 1)), dtype)
    loss = negative_log_likelihood_loss(
        bb, log_prob, labels, weights, ignore_index=ignore_index, reduction=reduction
    )
    return loss, log_prob
