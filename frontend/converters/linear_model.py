"""Converters for the linear models of ai.onnx.ml."""

import numpy as np
from tvm import relax

from ..class_scores import both_scores, chosen, labelled, labels_of, rows_of, transformed
from ..precision import cast
from ..table import converter

_ML = "ai.onnx.ml"


@converter("LinearRegressor", 1, domain=_ML)
def linear_regressor(bb, x, *, coefficients=(), intercepts=(), post_transform="NONE", targets=1):
    return transformed(bb, _affine(bb, x, coefficients, intercepts, targets), post_transform)


@converter("LinearClassifier", 1, domain=_ML)
def linear_classifier(bb, x, *, classlabels_ints=(), classlabels_strings=(), coefficients,
                      intercepts=(), multi_class=0, post_transform="NONE"):  # fmt: skip
    """One row of coefficients tells two classes apart: its score is that of the second."""
    labels = labels_of(classlabels_ints, classlabels_strings)
    scores = _affine(bb, x, coefficients, intercepts, len(intercepts) or len(labels))
    if bb.shape(scores)[1] > 1:
        return labelled(bb, scores, labels), transformed(bb, scores, post_transform)
    label = chosen(bb, scores, 0.0, labels if len(labels) == 2 else np.arange(2))
    if len(labels) != 2:
        return label, transformed(bb, scores, post_transform)
    return label, both_scores(bb, scores, post_transform, probability=True)


def _affine(bb, x, coefficients, intercepts, targets):
    """``x @ coefficients.T + intercepts`` in float32, ``[R, targets]``."""
    x = cast(bb, rows_of(bb, x), "float32")
    if not targets or not coefficients or len(coefficients) % targets:
        raise NotImplementedError(f"{len(coefficients)} coefficients for {targets} targets")
    weights = np.asarray(coefficients, "float32").reshape(targets, -1)
    y = bb.emit(relax.op.matmul(x, bb.const(np.ascontiguousarray(weights.T))))
    if len(intercepts) not in (0, 1, targets):
        raise NotImplementedError(f"{len(intercepts)} intercepts for {targets} targets")
    if any(intercepts):
        y = bb.emit(relax.op.add(y, bb.const(np.asarray(intercepts, "float32"))))
    return y
