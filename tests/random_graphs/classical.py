"""Operators of ai.onnx.ml: trees, linear models, support vectors, and what prepares features."""

import numpy as np

from .choice import is_f32, operand

_ML = {"domain": "ai.onnx.ml"}
_POST = (None, "NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO")


def _table(g, columns=None):
    """Rows of numbers: a value, or a new input."""
    rows = operand(g, (g.pick(1, 5, (4, 9)), columns or g.pick(1, 3, 8)))
    if columns is None and g.chance(0.5):
        return g.choose(lambda v: is_f32(v) and v.ndim == 2 and v.array.size and v.is_static(1))
    return rows


def _floats(g, *shape):
    return g.numbers(shape).ravel().tolist()


def scaler(g):
    x = _table(g)
    n = g.pick(1, x.shape[1])
    return g.node("Scaler", x, offset=_floats(g, n), scale=_floats(g, n), **_ML)


def prepared(g):
    x = _table(g)
    op = g.pick("Normalizer", "Binarizer", "Imputer", "ArrayFeatureExtractor", "FeatureVectorizer")
    if op == "Normalizer":
        return g.node(op, x, norm=g.pick("MAX", "L1", "L2"), **_ML)
    if op == "Binarizer":
        return g.node(op, x, threshold=g.pick(None, 0.1, -0.4), **_ML)
    if op == "Imputer":
        n = g.pick(1, x.shape[1])
        relu = g.node("Relu", x)  # zeros to be replaced
        return g.node(op, relu, imputed_value_floats=_floats(g, n), replaced_value_float=0.0, **_ML)
    if op == "ArrayFeatureExtractor":
        return g.node(op, x, g.const(g.rng.integers(0, x.shape[1], (1, g.pick(1, 4)))), **_ML)
    widths = [x.shape[1], g.pick(1, 2, x.shape[1])]
    return g.node(op, x, x, inputdimensions=[widths[0], widths[0]], **_ML)


def labels(g):
    x = g.choose(lambda v: v.dtype == np.int64 and v.ndim and v.array.size)
    if g.chance(0.3):
        return g.node("OneHotEncoder", x, cats_int64s=[0, 1, -1, 4], zeros=1, **_ML)
    keys = g.rng.permutation(9)[: g.pick(1, 4, 8)] - 2
    if g.chance(0.5):
        values = {"values_floats": _floats(g, len(keys)), "default_float": 0.5}
    else:
        values = {"values_int64s": g.rng.integers(-9, 9, len(keys)).tolist(), "default_int64": 3}
    return g.node("LabelEncoder", x, keys_int64s=keys.tolist(), **values, **_ML)


def linear(g):
    x = _table(g)
    c, post = x.shape[1], g.pick(*_POST)
    if g.chance(0.4):
        targets = g.pick(1, 3)
        return g.node(
            "LinearRegressor", x, coefficients=_floats(g, targets, c),
            intercepts=_floats(g, targets) if g.chance(0.6) else None, targets=targets,
            post_transform=None if targets == 1 else post, **_ML,
        )  # fmt: skip
    classes = g.pick(2, 3, 5)
    return g.node(
        "LinearClassifier", x, outputs=2, coefficients=_floats(g, classes, c),
        intercepts=_floats(g, classes), classlabels_ints=g.rng.permutation(classes).tolist(),
        multi_class=g.pick(None, 0, 1), post_transform=post, **_ML,
    )  # fmt: skip


def support_vectors(g):
    x = _table(g)
    c, kernel = x.shape[1], g.pick("LINEAR", "POLY", "RBF", "SIGMOID")
    parameters = [0.3, 0.5, float(g.pick(2, 3))]
    if g.chance(0.5):
        n = g.pick(1, 5)
        return g.node(
            "SVMRegressor", x, kernel_type=kernel, kernel_params=parameters, n_supports=n,
            support_vectors=_floats(g, n, c), coefficients=_floats(g, n), rho=_floats(g, 1),
            one_class=g.pick(None, 0, 1), **_ML,
        )  # fmt: skip
    classes = g.pick(2, 3)
    each = [g.pick(1, 2, 4) for _ in range(classes)]
    n, pairs = sum(each), classes * (classes - 1) // 2
    shares = {"prob_a": _floats(g, pairs), "prob_b": _floats(g, pairs)} if g.chance(0.4) else {}
    return g.node(
        "SVMClassifier", x, outputs=2, kernel_type=kernel, kernel_params=parameters,
        support_vectors=_floats(g, n, c), vectors_per_class=each, rho=_floats(g, pairs),
        coefficients=_floats(g, classes - 1, n), classlabels_ints=list(range(classes)),
        post_transform=g.pick(None, "NONE", "SOFTMAX", "LOGISTIC"), **shares, **_ML,
    )  # fmt: skip


def _trees(g, features, ends):
    """Attributes of random trees, and of ``ends`` of what their leaves add to, by prefix."""
    modes = g.pick(["BRANCH_LEQ"], ["BRANCH_LT"], ["BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE",
                   "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ"])  # fmt: skip
    keys = "treeids nodeids modes featureids values truenodeids falsenodeids".split()
    columns = {key: [] for key in keys}
    leaves = {key: [] for key in ("treeids", "nodeids", "ids", "weights")}
    for tree in range(g.pick(1, 3, 9)):
        depth, count = g.int(0, 5), [0]

        def grow(level, tree=tree, depth=depth, count=count):
            node = count[0]
            count[0] += 1
            is_leaf = level == depth or (level and g.chance(0.25))
            at = len(columns["modes"])
            number = round(float(g.rng.normal()), 2)
            row = (tree, node, "LEAF" if is_leaf else g.pick(*modes), g.int(0, features - 1),
                   number, 0, 0)  # fmt: skip
            for key, entry in zip(keys, row, strict=True):
                columns[key].append(entry)
            if is_leaf:
                for end in range(ends):  # onnxruntime adds no base to what no leaf adds to
                    entry = (tree, node, end, float(np.float32(g.rng.normal())))
                    for key, number in zip(leaves, entry, strict=True):
                        leaves[key].append(number)
            else:
                columns["truenodeids"][at] = grow(level + 1)
                columns["falsenodeids"][at] = grow(level + 1)
            return node

        grow(0)
    if g.chance(0.5):
        columns["missing_value_tracks_true"] = [g.int(0, 1) for _ in columns["modes"]]
    return {f"nodes_{key}": value for key, value in columns.items()}, leaves


def tree_ensemble(g):
    x = _table(g)
    classes = g.pick(1, 3)  # of the scores of two onnxruntime says something of its own
    nodes, leaves = _trees(g, x.shape[1], classes)
    post = g.pick(*_POST)
    base = _floats(g, classes) if g.chance(0.5) else None
    if g.chance(0.5):
        leaves = {f"target_{key}": value for key, value in leaves.items()}
        return g.node(
            "TreeEnsembleRegressor", x, n_targets=classes, base_values=base,
            aggregate_function=g.pick(None, "SUM", "AVERAGE", "MIN", "MAX"),
            post_transform=post, **nodes, **leaves, **_ML,
        )  # fmt: skip
    leaves = {f"class_{key}": value for key, value in leaves.items()}
    count = max(classes, 2)
    return g.node(
        "TreeEnsembleClassifier", x, outputs=2, classlabels_int64s=list(range(count)),
        base_values=base, post_transform=post, **nodes, **leaves, **_ML,
    )  # fmt: skip


#: What makes a node, and how often it is chosen.
CLASSICAL = [(scaler, 0.5), (prepared, 1), (labels, 0.5), (linear, 1), (support_vectors, 1),
             (tree_ensemble, 2)]  # fmt: skip
