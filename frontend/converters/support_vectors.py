"""Converters for the support vector machines of ai.onnx.ml.

The kernel of all rows with all support vectors is a matrix product; so is the step from there to
the scores of the pairs of classes, with the coefficients of each pair in a column.
"""

from itertools import combinations

import numpy as np
from tvm import relax

from tvm_ext.ops import support_vectors as ops
from tvm_ext.ops.arithmetic import power
from tvm_ext.ops.math import tanh

from ..class_scores import both_scores, labelled, labels_of, rows_of, transformed
from ..precision import cast
from ..table import converter

_ML = "ai.onnx.ml"


@converter("SVMRegressor", 1, domain=_ML)
def svm_regressor(bb, x, *, coefficients=(), kernel_params=(), kernel_type="LINEAR", n_supports=0,
                  one_class=0, post_transform="NONE", rho=(), support_vectors=()):  # fmt: skip
    x = cast(bb, rows_of(bb, x), "float32")
    rho = _vector(rho, 1, "rho")
    if n_supports:
        vectors = _matrix(support_vectors, n_supports, "support_vectors")
        x = _kernel(bb, x, vectors, kernel_type, kernel_params)
        columns = _matrix(coefficients, 1, "coefficients", n_supports)
    else:
        columns = _matrix(coefficients, 1, "coefficients")
    y = _product(bb, x, columns, rho[0])
    if one_class:
        above = bb.emit(relax.op.greater(y, bb.const(0, "float32")))
        y = bb.emit(relax.op.where(above, bb.const(1, "float32"), bb.const(-1, "float32")))
    return transformed(bb, y, post_transform)


@converter("SVMClassifier", 1, domain=_ML)
def svm_classifier(bb, x, *, classlabels_ints=(), classlabels_strings=(), coefficients=(),
                   kernel_params=(), kernel_type="LINEAR", post_transform="NONE", prob_a=(),
                   prob_b=(), rho=(), support_vectors=(), vectors_per_class=()):  # fmt: skip
    labels = labels_of(classlabels_ints, classlabels_strings)
    classes, x = len(labels), cast(bb, rows_of(bb, x), "float32")
    supports = sum(vectors_per_class)
    if not supports:
        return _linear(bb, x, coefficients, rho, labels, post_transform)
    if len(vectors_per_class) != classes or classes < 2:
        raise NotImplementedError(f"{len(vectors_per_class)} vectors_per_class for {classes}")
    vectors = _matrix(support_vectors, supports, "support_vectors")
    pairs = list(combinations(range(classes), 2))
    rho = _vector(rho, len(pairs), "rho")
    columns = _pairwise(_matrix(coefficients, classes - 1, "coefficients", supports),
                        vectors_per_class, pairs)  # fmt: skip
    kernel = _kernel(bb, x, vectors, kernel_type, kernel_params)
    scores = _product(bb, kernel, columns, rho)
    votes = bb.emit_te(ops.votes, scores, classes)
    label = labelled(bb, votes, labels)
    if prob_a:
        slopes, offsets = (_vector(p, len(pairs), "prob_a, prob_b") for p in (prob_a, prob_b))
        against = bb.emit(relax.op.multiply(scores, bb.const(slopes)))
        against = bb.emit(relax.op.add(against, bb.const(offsets)))
        scores = bb.emit_te(ops.coupled, against, classes, primfunc_attrs={"op_pattern": 8})
    elif classes == 2:
        return label, both_scores(bb, scores, post_transform, post_transform != "NONE")
    return label, transformed(bb, scores, post_transform)


def _linear(bb, x, coefficients, rho, labels, transform):
    """One row of coefficients per class, and one offset."""
    columns = _matrix(coefficients, len(labels), "coefficients")
    scores = _product(bb, x, columns, _vector(rho, 1, "rho")[0])
    return labelled(bb, scores, labels), transformed(bb, scores, transform)


def _kernel(bb, x, vectors, kind, params):
    """``k[R, V]`` of the rows of ``x[R, F]`` with the support vectors ``[V, F]``."""
    gamma, offset, degree = params if len(params) == 3 else (0.0, 0.0, 0.0)
    if kind == "RBF":
        return bb.emit_te(ops.radial_basis, x, bb.const(vectors), gamma)
    if kind not in ("LINEAR", "POLY", "SIGMOID"):
        raise NotImplementedError(f"kernel_type {kind}")
    if kind == "LINEAR":
        return _product(bb, x, vectors)
    y = _product(bb, x, vectors * np.float32(gamma), offset)
    if kind == "POLY":
        return bb.emit_te(power, y, bb.const(degree, "float32"), exponent=degree)
    return bb.emit_te(tanh, y)


def _product(bb, x, rows, offset=0.0):
    """``x @ rows.T + offset``."""
    y = bb.emit(relax.op.matmul(x, bb.const(np.ascontiguousarray(rows.T))))
    offset = np.asarray(offset, "float32")
    return bb.emit(relax.op.add(y, bb.const(offset))) if offset.any() else y


def _pairwise(coefficients, counts, pairs):
    """Rows ``[pairs, V]``: what each support vector adds to the score of a pair of classes.

    Row k of ``coefficients`` holds, for the vectors of a class, those against the k-th other class.
    """
    ends = np.cumsum(counts)
    rows = np.zeros((len(pairs), ends[-1]), "float32")
    for row, (i, j) in zip(rows, pairs, strict=True):
        for own, other in ((i, j - 1), (j, i)):
            vectors = slice(ends[own] - counts[own], ends[own])
            row[vectors] = coefficients[other, vectors]
    return rows


def _matrix(values, rows, what, columns=None):
    if not rows or not values or len(values) % rows or columns not in (None, len(values) // rows):
        raise NotImplementedError(f"{len(values)} {what} in {rows} rows")
    return np.asarray(values, "float32").reshape(rows, -1)


def _vector(values, count, what):
    if len(values) < count:
        raise NotImplementedError(f"{what} has {len(values)} elements, needs {count}")
    return np.asarray(values[:count], "float32")
