"""Converters for the tree ensembles of ai.onnx.ml."""

from dataclasses import replace

import numpy as np
from tvm import relax, tirx

from tvm_ext.ops import tree_ensemble as ops

from .. import trees
from ..class_scores import both_scores, chosen, labelled, labels_of, rows_of, transformed
from ..precision import cast
from ..table import converter

_ML = "ai.onnx.ml"
_AGGREGATES = "AVERAGE", "SUM", "MIN", "MAX"  # as TreeEnsemble-5 numbers them
_TRANSFORMS = "NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT"


@converter("TreeEnsembleRegressor", 1, 3, 5, domain=_ML)
def tree_ensemble_regressor(bb, x, *, aggregate_function="SUM", base_values=(),
                            base_values_as_tensor=None, n_targets=None, nodes_falsenodeids=(),
                            nodes_featureids=(), nodes_hitrates=(), nodes_hitrates_as_tensor=None,
                            nodes_missing_value_tracks_true=(), nodes_modes=(), nodes_nodeids=(),
                            nodes_treeids=(), nodes_truenodeids=(), nodes_values=(),
                            nodes_values_as_tensor=None, post_transform="NONE", target_ids=(),
                            target_nodeids=(), target_treeids=(), target_weights=(),
                            target_weights_as_tensor=None):  # fmt: skip
    ensemble = trees.from_ids(
        nodes_treeids, nodes_nodeids, nodes_modes, nodes_featureids,
        _numbers(nodes_values, nodes_values_as_tensor), nodes_truenodeids, nodes_falsenodeids,
        nodes_missing_value_tracks_true, target_treeids, target_nodeids, target_ids,
        _numbers(target_weights, target_weights_as_tensor),
    )  # fmt: skip
    base = _numbers(base_values, base_values_as_tensor)
    y = _aggregate(bb, x, ensemble, n_targets or 1, aggregate_function, base)
    return cast(bb, transformed(bb, y, post_transform), "float32")


@converter("TreeEnsembleClassifier", 1, 3, 5, domain=_ML)
def tree_ensemble_classifier(bb, x, *, base_values=(), base_values_as_tensor=None, class_ids=(),
                             class_nodeids=(), class_treeids=(), class_weights=(),
                             class_weights_as_tensor=None, classlabels_int64s=(),
                             classlabels_strings=(), nodes_falsenodeids=(), nodes_featureids=(),
                             nodes_hitrates=(), nodes_hitrates_as_tensor=None,
                             nodes_missing_value_tracks_true=(), nodes_modes=(), nodes_nodeids=(),
                             nodes_treeids=(), nodes_truenodeids=(), nodes_values=(),
                             nodes_values_as_tensor=None, post_transform="NONE"):  # fmt: skip
    labels = labels_of(classlabels_int64s, classlabels_strings)
    ensemble = trees.from_ids(
        nodes_treeids, nodes_nodeids, nodes_modes, nodes_featureids,
        _numbers(nodes_values, nodes_values_as_tensor), nodes_truenodeids, nodes_falsenodeids,
        nodes_missing_value_tracks_true, class_treeids, class_nodeids, class_ids,
        _numbers(class_weights, class_weights_as_tensor),
    )  # fmt: skip
    base = _numbers(base_values, base_values_as_tensor)
    if len(labels) == 2 and len(set(class_ids)) == 1:
        return _binary(bb, x, ensemble, labels, base, post_transform)
    scores = _aggregate(bb, x, ensemble, len(labels), "SUM", base)
    voted = scores
    if len(labels) > 2 and len(base) < len(labels) and not trees.all_speak(ensemble, len(labels)):
        voted = _of_voted(bb, x, ensemble, scores)
    return labelled(bb, voted, labels), cast(bb, transformed(bb, scores, post_transform), "float32")


@converter("TreeEnsemble", 5, domain=_ML)
def tree_ensemble(bb, x, *, aggregate_function=1, leaf_targetids, leaf_weights,
                  membership_values=None, n_targets=None, nodes_falseleafs, nodes_falsenodeids,
                  nodes_featureids, nodes_hitrates=None, nodes_missing_value_tracks_true=(),
                  nodes_modes, nodes_splits, nodes_trueleafs, nodes_truenodeids, post_transform=0,
                  tree_roots):  # fmt: skip
    members = np.zeros(0) if membership_values is None else membership_values.numpy()
    ensemble = trees.from_indices(
        tree_roots, nodes_modes.numpy().tolist(), nodes_featureids, nodes_splits.numpy(),
        nodes_truenodeids, nodes_trueleafs, nodes_falsenodeids, nodes_falseleafs,
        nodes_missing_value_tracks_true, members, leaf_targetids, leaf_weights.numpy(),
    )  # fmt: skip
    if aggregate_function not in range(4) or post_transform not in range(5):
        raise NotImplementedError(f"aggregate {aggregate_function}, transform {post_transform}")
    aggregate = _AGGREGATES[aggregate_function]
    y = _aggregate(bb, x, ensemble, n_targets or 1, aggregate, np.zeros(0))
    return cast(bb, transformed(bb, y, _TRANSFORMS[post_transform]), bb.dtype(x))


def _aggregate(bb, x, ensemble, targets, aggregate, base):
    """The scores ``[rows, targets]`` in the type of the weights."""
    if aggregate not in _AGGREGATES:
        raise NotImplementedError(f"aggregate_function {aggregate}")
    if len(base) not in (0, 1, targets):
        raise NotImplementedError(f"{len(base)} base_values for {targets} targets")
    x = _wide_enough(bb, rows_of(bb, x), ensemble.width)
    packed = trees.pack(ensemble, targets)
    narrow = bb.dtype(x) == "float32" and packed.thresholds.dtype == np.float32
    thresholds = packed.thresholds.astype("float32" if narrow else "float64")
    arrays = (packed.nodes, thresholds, packed.roots, packed.depths, packed.spans,
              packed.targets, packed.weights)  # fmt: skip
    fold = aggregate.lower() if aggregate in ("MIN", "MAX") else "sum"
    y = bb.emit_te(ops.tree_ensemble, x, *map(bb.const, arrays), targets, packed.rules, fold,
                   primfunc_attrs={"op_pattern": 8})  # fmt: skip
    dtype = bb.dtype(y)
    if fold != "sum":
        y = bb.emit_te(ops.scored, y, fold)
    if aggregate == "AVERAGE":
        y = bb.emit(relax.op.divide(y, bb.const(len(ensemble.roots), dtype)))
    if base.any():
        y = bb.emit(relax.op.add(y, bb.const(base.astype(dtype))))
    return y


def _of_voted(bb, x, ensemble, scores):
    """``scores``, lowest for a class that no leaf speaks of: as in onnxruntime it never wins."""
    votes = replace(ensemble, weights=np.ones_like(ensemble.weights))
    votes = _aggregate(bb, x, votes, bb.shape(scores)[1], "SUM", np.zeros(0))
    dtype = bb.dtype(scores)
    voted = bb.emit(relax.op.greater(votes, bb.const(0, dtype)))
    return bb.emit(relax.op.where(voted, scores, bb.const(-np.inf, dtype)))


def _wide_enough(bb, x, width):
    """``x``, which has the features that the trees look at; checked now or at run time."""
    rows, features = bb.shape(x)
    if isinstance(features, int):
        if features < width:
            raise NotImplementedError(f"{features} features; the trees look at {width}")
        return x
    return bb.match(x, [rows, tirx.max(features, tirx.const(width, "int64"))])


def _binary(bb, x, ensemble, labels, base, transform):
    """Two classes, of which the leaves score one: a probability, unless weights are negative."""
    (scored,) = set(ensemble.targets.tolist())
    probability = bool((ensemble.weights >= 0).all())
    single = replace(ensemble, targets=np.zeros_like(ensemble.targets))
    score = _aggregate(bb, x, single, 1, "SUM", base[-1:])
    label = chosen(bb, score, 0.5 if probability else 0.0, labels)
    if scored == 0:
        scores = both_scores(bb, score, transform, probability)
    else:
        nothing = bb.emit(relax.op.zeros_like(score))
        pair = bb.emit(relax.op.concat([nothing, score], 1))
        scores = transformed(bb, pair, transform)
    return label, cast(bb, scores, "float32")


def _numbers(floats, tensor):
    return np.asarray(floats, "float32") if tensor is None else tensor.numpy()
