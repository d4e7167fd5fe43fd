"""What the classifiers and regressors of ai.onnx.ml have in common.

Where the specification leaves it open, scores and labels are as onnxruntime gives them.
"""

from collections.abc import Sequence

import numpy as np
from tvm import relax

from tvm_ext.ops import activation
from tvm_ext.ops import class_scores as ops
from tvm_ext.ops.gather_scatter import gather

from .builder import Builder

__all__ = ["both_scores", "chosen", "labelled", "labels_of", "rows_of", "transformed"]


def rows_of(bb: Builder, x: relax.Expr) -> relax.Expr:
    """``x`` with rank 2: a vector is one row.

    Raises:
        NotImplementedError: it has another rank.
    """
    if bb.rank(x) == 1:
        return bb.emit(relax.op.expand_dims(x, 0))
    if bb.rank(x) != 2:
        raise NotImplementedError(f"rank {bb.rank(x)}, must be 1 or 2")
    return x


def labels_of(integers: Sequence[int], strings: Sequence[str]) -> np.ndarray:
    """The labels of classes: int64, or an object array of str."""
    return np.array(strings, object) if strings else np.asarray(integers, "int64")


def labelled(bb: Builder, scores: relax.Expr, labels: np.ndarray) -> relax.Expr:
    """The label ``[R]`` of the highest of the scores ``[R, C]``, the first of several."""
    best = bb.emit(relax.op.argmax(scores, 1))
    known = bb.const(labels)
    return bb.copy_knowledge(known, bb.emit_te(gather, known, best, 0))


def chosen(bb: Builder, score: relax.Expr, threshold: float, labels: np.ndarray) -> relax.Expr:
    """The second of two labels where the score ``[R, 1]`` exceeds ``threshold``, else the first."""
    above = relax.op.greater(score, bb.const(threshold, bb.dtype(score)))
    negative, positive = (bb.const(labels[k : k + 1]) for k in range(2))
    picked = bb.emit(relax.op.where(bb.emit(above), positive, negative))
    return bb.copy_knowledge(positive, bb.emit(relax.op.squeeze(picked, 1)))


def transformed(bb: Builder, scores: relax.Expr, transform: str) -> relax.Expr:
    """The ``post_transform`` of scores ``[R, C]``; of a single score only PROBIT changes any.

    Raises:
        NotImplementedError: there is no such transform.
    """
    if transform == "PROBIT":
        return bb.emit_te(ops.probit, scores)
    if transform not in ("NONE", "LOGISTIC", "SOFTMAX", "SOFTMAX_ZERO"):
        raise NotImplementedError(f"post_transform {transform}")
    if transform == "NONE" or bb.shape(scores)[1] == 1:
        return scores
    if transform == "LOGISTIC":
        return bb.emit_te(activation.sigmoid, scores)
    if transform == "SOFTMAX":
        return bb.emit(relax.op.nn.softmax(scores, 1))
    return bb.emit_te(ops.softmax_zero, scores)


def both_scores(bb: Builder, score: relax.Expr, transform: str, probability: bool) -> relax.Expr:
    """The scores ``[R, 2]`` of two classes by that of the second: the opposite, or 1 minus it.

    Only LOGISTIC changes them.

    Raises:
        NotImplementedError: the transform is PROBIT.
    """
    if transform == "PROBIT":
        raise NotImplementedError("post_transform PROBIT of one score for two classes")
    dtype = bb.dtype(score)
    opposite = bb.emit(relax.op.negative(score))
    if transform == "LOGISTIC":
        opposite, score = (bb.emit_te(activation.sigmoid, value) for value in (opposite, score))
    elif probability:
        opposite = bb.emit(relax.op.add(opposite, bb.const(1, dtype)))
    return bb.emit(relax.op.concat([opposite, score], 1))
