"""Tree ensembles; oracles: onnxruntime, and for TreeEnsemble-5 the reference evaluator."""

from functools import partial

import numpy as np
import pytest
from onnx import numpy_helper

from tests.onnxruntime_oracle import (
    check_against_onnxruntime,
    contrib_model,
    run_onnxruntime,
)
from tests.oracle import check_node
from tvm_ext import convert_and_build
from tvm_ext.errors import ConversionError

RNG = np.random.default_rng(0)
MODES = ["BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ"]
FEATURES = 4
check = partial(check_against_onnxruntime, domain="ai.onnx.ml", version=3)


def number():
    return float(RNG.integers(-3, 4)) / 2  # few different ones, so that comparisons meet them


def forest(trees, depth, targets, prefix, modes=MODES[:1]):
    """Random trees; leaves say something of one target or of two."""
    attributes = {f"nodes_{k}": [] for k in ("treeids", "nodeids", "modes", "featureids", "values",
                                             "truenodeids", "falsenodeids")}  # fmt: skip
    attributes |= {f"{prefix}_{k}": [] for k in ("treeids", "nodeids", "ids", "weights")}

    def add(prefix, **row):
        for name, value in row.items():
            attributes[f"{prefix}_{name}"].append(value)

    def grow(tree, node, left):
        """Nodes in preorder: that of the false branch is known when the true one is there."""
        leaf = left == 0 or (left < depth and RNG.random() < 0.2)
        place = len(attributes["nodes_nodeids"])
        add("nodes", treeids=tree, nodeids=node, modes="LEAF" if leaf else str(RNG.choice(modes)),
            featureids=0 if leaf else int(RNG.integers(FEATURES)), values=number(),
            truenodeids=0 if leaf else node + 1, falsenodeids=0)  # fmt: skip
        if leaf:
            for target in RNG.choice(targets, min(targets, int(RNG.integers(1, 3))), False):
                add(prefix, treeids=tree, nodeids=node, ids=int(target), weights=number())
            return node
        attributes["nodes_falsenodeids"][place] = grow(tree, node + 1, left - 1) + 1
        return grow(tree, attributes["nodes_falsenodeids"][place], left - 1)

    for tree in range(trees):
        grow(7 * tree, 0, depth)
    return attributes


def rows(count, dtype="float32"):
    return (RNG.integers(-3, 4, (count, FEATURES)) / 2).astype(dtype)


@pytest.mark.parametrize("mode", MODES)
def test_every_mode_meets_equal_numbers(mode):
    check(
        "TreeEnsembleRegressor",
        [rows(31)],
        forest(3, 4, 1, "target", [mode]) | {"n_targets": 1},
        symbolic=True,
    )


@pytest.mark.parametrize("aggregate", ["SUM", "AVERAGE", "MIN", "MAX"])
@pytest.mark.parametrize("targets", [1, 3])
@pytest.mark.parametrize("trees", [1, 40])
def test_aggregates(trees, targets, aggregate):
    attributes = forest(trees, 3, targets, "target", MODES)
    attributes |= {"aggregate_function": aggregate, "n_targets": targets}
    if trees > 1:  # onnxruntime leaves base values out of one tree's scores
        attributes["base_values"] = [number() for _ in range(targets)]
    check("TreeEnsembleRegressor", [rows(9)], attributes, opt_levels=(0, 3))


def test_missing_values():
    attributes = forest(9, 4, 2, "target", MODES) | {"n_targets": 2}
    tracks = RNG.integers(0, 2, len(attributes["nodes_modes"]))
    attributes["nodes_missing_value_tracks_true"] = tracks.tolist()
    x = np.where(RNG.random((20, FEATURES)) < 0.5, np.float32("nan"), rows(20))
    check("TreeEnsembleRegressor", [x], attributes)


@pytest.mark.parametrize("dtype", ["float64", "int64", "int32"])
def test_types_of_features(dtype):
    check("TreeEnsembleClassifier", [rows(9, dtype)],
          forest(5, 4, 3, "class") | {"classlabels_int64s": [5, 6, -7]},
          outputs=2, types=["int64", "float32"])  # fmt: skip


def test_other_versions():
    """The last is deprecated, which onnxruntime does not take: all give what the third gives."""
    kinds = ["int64", "float32"]
    for op_type, attributes, types in (
        ("TreeEnsembleRegressor", forest(3, 3, 2, "target", MODES) | {"n_targets": 2}, kinds[1:]),
        ("TreeEnsembleClassifier", forest(5, 4, 3, "class") | {"classlabels_int64s": [5, 6, -7]},
         kinds),
    ):  # fmt: skip
        x, given = rows(9), {"domain": "ai.onnx.ml", "outputs": len(types), "types": types}
        third = contrib_model(op_type, [x], attributes, version=3, **given)
        expected = run_onnxruntime(third, {"x0": x})
        for version in (1, 5):
            check(op_type, [x], attributes, version=version, expected=expected, **given)


def test_one_label_declared_of_many_rows():
    """As exporters of LightGBM write it, and onnxruntime takes it."""
    x, attributes = rows(9), forest(5, 4, 3, "class") | {"classlabels_int64s": [5, 6, -7]}
    given = {"domain": "ai.onnx.ml", "version": 3, "outputs": 2, "types": ["int64", "float32"]}
    model = contrib_model("TreeEnsembleClassifier", [x], attributes, **given)
    expected = run_onnxruntime(model, {"x0": x})
    label = model.graph.output[0].type.tensor_type
    label.shape.dim.add().dim_value = 1
    for got, want in zip(convert_and_build(model)(x), expected, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-6)


def test_numbers_that_only_float64_tells_apart():
    attributes = forest(5, 3, 1, "target") | {"n_targets": 1}
    close = 1 + 2.0**-40 * RNG.integers(-1, 2, len(attributes["nodes_values"]))
    for name, values in (("nodes_values", close), ("target_weights", close[:0])):
        given = attributes.pop(name)
        array = values if len(values) else np.array(given, "float64")
        attributes[f"{name}_as_tensor"] = numpy_helper.from_array(array)
    x = 1 + 2.0**-40 * RNG.integers(-1, 2, (11, FEATURES))
    check("TreeEnsembleRegressor", [x], attributes, types=["float32"])


@pytest.mark.parametrize("transform", ["NONE", "LOGISTIC", "SOFTMAX", "SOFTMAX_ZERO"])
def test_classes(transform):
    attributes = forest(20, 3, 3, "class") | {"classlabels_int64s": [5, 6, -7]}
    attributes |= {"post_transform": transform, "base_values": [0.5, 0.25, -1.0]}
    check("TreeEnsembleClassifier", [rows(9)], attributes, outputs=2, types=["int64", "float32"])


@pytest.mark.parametrize("bases", [[], [0.25, 0.5, -1.0, 1e-3]])
def test_a_class_that_no_leaf_speaks_of(bases):
    """Its score is 0, and those of others are below: without a base value it does not win."""
    attributes = forest(3, 2, 4, "class") | {"classlabels_int64s": [5, 6, -7, 8]}
    attributes["class_weights"] = [-1 - abs(weight) for weight in attributes["class_weights"]]
    attributes |= {"base_values": bases} if bases else {}
    check("TreeEnsembleClassifier", [rows(40)], attributes, outputs=2, types=["int64", "float32"])


@pytest.mark.parametrize("transform", ["NONE", "LOGISTIC"])
@pytest.mark.parametrize("positive", [False, True])
@pytest.mark.parametrize("scored", [0, 1])
def test_two_classes_of_which_one_is_scored(scored, positive, transform):
    attributes = forest(3, 3, 1, "class")
    attributes["class_ids"] = [scored] * len(attributes["class_ids"])
    if positive:
        attributes["class_weights"] = [abs(weight) for weight in attributes["class_weights"]]
    attributes |= {"classlabels_int64s": [5, 6], "post_transform": transform}
    check("TreeEnsembleClassifier", [rows(9)], attributes, outputs=2, types=["int64", "float32"])


def ensemble_5(modes, splits, members=None, **more):
    """A chain of nodes: true leads to a leaf, false to the next node, at the end to a leaf."""
    count = len(modes)
    attributes = {
        "n_targets": 2,
        "nodes_featureids": list(range(count)),
        "nodes_modes": numpy_helper.from_array(np.array(modes, "uint8")),
        "nodes_splits": numpy_helper.from_array(np.array(splits, "float32")),
        "nodes_truenodeids": list(range(count)),
        "nodes_trueleafs": [1] * count,
        "nodes_falsenodeids": [*range(1, count), count],
        "nodes_falseleafs": [0] * (count - 1) + [1],
        "leaf_targetids": [k % 2 for k in range(count + 1)],
        "leaf_weights": numpy_helper.from_array(np.arange(1, count + 2, dtype="float32")),
        "tree_roots": [0],
    }
    if members is not None:
        sets = np.array(members, "float32")
        attributes["membership_values"] = numpy_helper.from_array(sets)
    return attributes | more


@pytest.mark.parametrize("aggregate", [0, 1])
def test_set_membership(aggregate):
    nan = float("nan")
    attributes = ensemble_5([6, 0, 6, 6], [0, 0.5, 0, 0], [3, 1, 7, 2, 5, nan, 4, nan, nan],
                            aggregate_function=aggregate)  # fmt: skip
    x = RNG.integers(0, 9, (40, 4)).astype("float32")
    check_node("TreeEnsemble", [x], attributes, domain="ai.onnx.ml", opset=5,
               expected=[np.stack([member_row(row) for row in x])])  # fmt: skip


def member_row(row):
    passes = [row[0] in (3, 1, 7, 2, 5), row[1] <= 0.5, row[2] == 4, False]
    leaf = passes.index(True) if any(passes) else 4
    return np.eye(2, dtype="float32")[leaf % 2] * (leaf + 1)


def test_modes_of_version_5():
    x = RNG.integers(-1, 2, (40, 6)).astype("float32")
    check_node("TreeEnsemble", [x], ensemble_5(range(6), [1, -1, 1, 0, 1, -1]),
               domain="ai.onnx.ml", opset=5)  # fmt: skip


def refused(attributes, reason, features=FEATURES):
    model = contrib_model("TreeEnsembleRegressor", [np.zeros((1, features), "float32")],
                          attributes, domain="ai.onnx.ml", version=3)  # fmt: skip
    with pytest.raises(ConversionError, match=reason):
        convert_and_build(model, "llvm")


def test_malformed_trees_are_refused():
    good = forest(2, 2, 1, "target")
    inner = good["nodes_modes"].index("BRANCH_LEQ")
    for name, value, reason in (
        ("nodes_truenodeids", good["nodes_nodeids"][inner], "cycle"),
        ("nodes_falsenodeids", 1 << 40, "does not have"),
        ("nodes_featureids", FEATURES, "features"),
        ("nodes_featureids", -1, "feature is out of range"),
        ("nodes_modes", "BRANCH_BEST", "BRANCH_BEST"),
    ):
        bad = list(good[name])
        bad[inner] = value
        refused(good | {name: bad}, reason)
    refused(good | {"target_ids": [1] * len(good["target_ids"])}, "a target is out of range")
    refused(good | {"nodes_values": [0.0]}, "differ in length")


def test_too_few_features_at_run_time():
    model = contrib_model("TreeEnsembleRegressor", [np.zeros((2, 3), "float32")],
                          ensemble_v3_of_feature(3), domain="ai.onnx.ml", version=3,
                          symbolic=True)  # fmt: skip
    model.graph.output[0].type.tensor_type.shape.SetInParent()
    for _ in range(2):
        model.graph.output[0].type.tensor_type.shape.dim.add()
    built = convert_and_build(model, "llvm")
    assert built(np.zeros((2, 4), "float32")).shape == (2, 1)
    with pytest.raises(Exception, match="axis 1 of 'x0' is 3, not 4"):
        built(np.zeros((2, 3), "float32"))


def ensemble_v3_of_feature(feature):
    attributes = forest(1, 1, 1, "target")
    return attributes | {"nodes_featureids": [feature] * len(attributes["nodes_featureids"])}
