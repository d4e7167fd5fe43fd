"""Decision trees as arrays, checked: models are untrusted, and kernels follow these indices.

The operators describe trees in two ways, with ids per tree or with indices into common arrays.
Both become :class:`Trees`; ``pack`` makes of it what ``tvm_ext.ops.tree_ensemble`` walks.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tvm_ext.ops.tree_ensemble import EQUAL, GREATER, LANES, LESS, UNORDERED

__all__ = ["Packed", "Trees", "all_speak", "from_ids", "from_indices", "pack"]

_RULES = {
    "BRANCH_LEQ": LESS | EQUAL,
    "BRANCH_LT": LESS,
    "BRANCH_GTE": GREATER | EQUAL,
    "BRANCH_GT": GREATER,
    "BRANCH_EQ": EQUAL,
    "BRANCH_NEQ": LESS | GREATER | UNORDERED,
}
_MODES = [*_RULES, "BRANCH_MEMBER"]  # as TreeEnsemble-5 numbers them


@dataclass
class Trees:
    """Nodes by index; a leaf leads to itself.

    Leaf ``nodes[k]`` gives ``weights[k]`` to ``targets[k]``.
    """

    features: np.ndarray
    rules: np.ndarray
    thresholds: np.ndarray
    true: np.ndarray
    false: np.ndarray
    roots: np.ndarray
    nodes: np.ndarray
    targets: np.ndarray
    weights: np.ndarray

    @property
    def leaf(self) -> np.ndarray:
        """Which nodes are leaves."""
        here = np.arange(len(self.true))
        return (self.true == here) & (self.false == here)

    @property
    def width(self) -> int:
        """The number of features that a row must have."""
        return int(self.features[~self.leaf].max(initial=-1)) + 1


@dataclass(frozen=True)
class Packed:
    """The operands of the kernel, and the rules that inner nodes have."""

    nodes: np.ndarray
    thresholds: np.ndarray
    roots: np.ndarray
    depths: np.ndarray
    spans: np.ndarray
    targets: np.ndarray
    weights: np.ndarray
    rules: tuple[int, ...]


def from_ids(
    trees: Sequence[int],
    nodes: Sequence[int],
    modes: Sequence[str],
    features: Sequence[int],
    thresholds: np.ndarray,
    true: Sequence[int],
    false: Sequence[int],
    missing: Sequence[int],
    leaf_trees: Sequence[int],
    leaf_nodes: Sequence[int],
    targets: Sequence[int],
    weights: np.ndarray,
) -> Trees:
    """The trees of TreeEnsembleRegressor and TreeEnsembleClassifier: ids count per tree.

    The first node of a tree is its root.

    Raises:
        NotImplementedError: an id is given twice or leads nowhere, or a mode is unknown.
    """
    count = len(nodes)
    _same_length(count, trees, modes, features, thresholds, true, false)
    _same_length(len(targets), leaf_trees, leaf_nodes, weights)
    owner = np.asarray(trees, "int64")
    position = _Positions(owner, np.asarray(nodes, "int64"))
    here = np.arange(count)
    leaf = np.array([mode == "LEAF" for mode in modes], bool)

    def child(ids):
        ids = np.where(leaf, nodes, np.asarray(ids, "int64"))
        return np.where(leaf, here, position.of(owner, ids))

    _, first = np.unique(owner, return_index=True)
    return Trees(
        np.where(leaf, 0, np.asarray(features, "int64")),
        _rules(np.where(leaf, "BRANCH_LEQ", modes), missing),
        thresholds,
        child(true),
        child(false),
        np.sort(first),
        position.of(np.asarray(leaf_trees, "int64"), np.asarray(leaf_nodes, "int64")),
        np.asarray(targets, "int64"),
        weights,
    )


def from_indices(
    roots: Sequence[int],
    modes: Sequence[int],
    features: Sequence[int],
    thresholds: np.ndarray,
    true: Sequence[int],
    true_is_leaf: Sequence[int],
    false: Sequence[int],
    false_is_leaf: Sequence[int],
    missing: Sequence[int],
    members: np.ndarray,
    targets: Sequence[int],
    weights: np.ndarray,
) -> Trees:
    """The trees of TreeEnsemble: leaves are numbered apart. Sets become searches of their members.

    Raises:
        NotImplementedError: an index is out of range, or a mode is unknown.
    """
    count, leaves = len(modes), len(targets)
    _same_length(count, features, thresholds, true, true_is_leaf, false, false_is_leaf)
    _same_length(leaves, weights)
    if not all(0 <= mode < len(_MODES) for mode in modes):
        raise NotImplementedError("a node of unknown mode")

    def child(index, is_leaf):
        index, is_leaf = np.asarray(index, "int64"), np.asarray(is_leaf, bool)
        _in_range(index, np.where(is_leaf, leaves, count), "a child node")
        own = np.arange(count, count + leaves)
        return np.concatenate([np.where(is_leaf, index + count, index), own])

    def padded(values):
        return np.concatenate([values, np.zeros(leaves, values.dtype)])

    _in_range(np.asarray(roots, "int64"), count, "a root")
    names = [_MODES[mode] for mode in modes]
    sets = [k for k, name in enumerate(names) if name == "BRANCH_MEMBER"]
    for k in sets:
        names[k] = "BRANCH_EQ"
    result = Trees(
        padded(np.asarray(features, "int64")),
        padded(_rules(names, missing)),
        padded(thresholds),
        child(true, true_is_leaf),
        child(false, false_is_leaf),
        np.asarray(roots, "int64"),
        np.arange(count, count + leaves),
        np.asarray(targets, "int64"),
        weights,
    )
    _expand_sets(result, sets, members)
    return result


def _rules(modes: Sequence[str], missing: Sequence[int]) -> np.ndarray:
    unknown = sorted(set(modes) - _RULES.keys())
    if unknown:
        raise NotImplementedError(f"node mode {unknown[0]}")
    rules = np.array([_RULES[mode] for mode in modes], "int64")
    if len(missing):
        _same_length(len(modes), missing)
        rules |= np.where(np.asarray(missing, bool), UNORDERED, 0)
    return rules


def _expand_sets(trees: Trees, sets: Sequence[int], members: np.ndarray) -> None:
    """Make of each node in ``sets`` a binary search; NaN ends the members of each."""
    ends = np.flatnonzero(np.isnan(members))
    if len(ends) != len(sets):
        raise NotImplementedError(f"{len(ends)} sets of members for {len(sets)} nodes")
    count, start = len(trees.true), 0
    rows: list[tuple] = []  # of the nodes added: feature, rule, threshold, true, false

    def add(row):
        rows.append(row)
        return count + len(rows) - 1

    for node, end in zip(sets, ends, strict=True):
        feature, rule, true, false = (
            int(a[node]) for a in (trees.features, trees.rules, trees.true, trees.false)
        )

        def search(values, feature=feature, rule=rule, true=true, false=false):
            """The row of a node that looks for the feature among the sorted ``values``."""
            if len(values) < 2:
                return feature, rule, values[0] if len(values) else np.nan, true, false
            middle = len(values) // 2
            lower, upper = add(search(values[:middle])), add(search(values[middle:]))
            return feature, LESS, values[middle], lower, upper

        row = search(np.unique(members[start:end]))
        for array, value in zip(_columns(trees), row, strict=True):
            array[node] = value
        start = end + 1
    if rows:
        grown = zip(_columns(trees), zip(*rows, strict=True), strict=True)
        (trees.features, trees.rules, trees.thresholds, trees.true, trees.false) = (
            np.concatenate([array, np.asarray(added, array.dtype)]) for array, added in grown
        )


def _columns(trees: Trees) -> tuple[np.ndarray, ...]:
    return trees.features, trees.rules, trees.thresholds, trees.true, trees.false


def all_speak(trees: Trees, targets: int) -> bool:
    """Whether each of ``targets`` gets a weight, whatever leaves a row reaches: some tree has one
    for it in all of its leaves. What :func:`pack` refuses is not asked here."""
    leaf, count = trees.leaf, len(trees.true)
    speaks = np.zeros((count, targets), bool)
    speaks[trees.nodes, trees.targets] = True
    silent = np.zeros((len(trees.roots), targets), bool)  # in some leaf of a tree
    tree, node = np.arange(len(trees.roots)), trees.roots
    while len(node):
        ends = leaf[node]
        np.logical_or.at(silent, tree[ends], ~speaks[node[ends]])
        tree, node = np.tile(tree[~ends], 2), node[~ends]
        node = np.concatenate([trees.true[node], trees.false[node]])
        tree, node = np.divmod(np.unique(tree * count + node), count)
    return not silent.all(0).any()


def pack(trees: Trees, targets: int) -> Packed:
    """``trees`` for the kernel, with ``targets`` columns of results.

    Raises:
        NotImplementedError: nodes form a cycle, or a feature or target is negative or too high.
    """
    _in_range(trees.targets, targets, "a target")
    leaf = trees.leaf
    _in_range(trees.features[~leaf], np.iinfo("int32").max, "a feature")
    height = _heights(trees, leaf)
    count = max(len(trees.roots), 1)
    together = min(LANES, 1 << (count - 1).bit_length())
    idle = count + -count % together - len(trees.roots)
    nothing = len(leaf)  # a leaf without weights
    roots = np.concatenate([trees.roots, np.full(idle, nothing)])
    depths = np.append(height, 0)[roots].reshape(-1, together).max(1)
    columns = (np.where(leaf, 0, trees.features), trees.rules, trees.false, trees.true)
    rows = np.append(np.stack(columns, 1), [[0, 0, nothing, nothing]], 0)
    order = np.argsort(trees.nodes, kind="stable")
    counts = np.bincount(trees.nodes, minlength=nothing + 1)
    ends = np.cumsum(counts)
    return Packed(
        rows.astype("int32"),
        np.append(trees.thresholds, np.zeros(1, trees.thresholds.dtype)),
        roots.astype("int32"),
        depths.astype("int32"),
        np.stack([ends - counts, ends], 1).astype("int32"),
        trees.targets[order].astype("int32"),
        trees.weights[order],
        tuple(map(int, np.unique(trees.rules[~leaf]))),
    )


def _heights(trees: Trees, leaf: np.ndarray) -> np.ndarray:
    """The longest way from each node to a leaf: level by level, first those without parents."""
    children = np.stack([trees.true, trees.false])
    inner = ~leaf
    parents = np.bincount(children[:, inner].ravel(), minlength=len(leaf))
    level, levels = np.flatnonzero(parents == 0), []
    while len(level):
        levels.append(level)
        reached, times = np.unique(children[:, level[inner[level]]], return_counts=True)
        parents[reached] -= times
        level = reached[parents[reached] == 0]
    if sum(map(len, levels)) < len(leaf):
        raise NotImplementedError("nodes of a tree form a cycle")
    height = np.zeros(len(leaf), "int64")
    for level in reversed(levels):
        level = level[inner[level]]
        height[level] = height[children[:, level]].max(0, initial=0) + 1
    return height


class _Positions:
    """Where the node with an id stands in the arrays."""

    def __init__(self, trees: np.ndarray, nodes: np.ndarray):
        self.trees, self.nodes = np.unique(trees), np.unique(nodes)
        keys = self._keys(trees, nodes)
        self.order = np.argsort(keys)
        self.keys = keys[self.order]
        if (self.keys[1:] == self.keys[:-1]).any():
            raise NotImplementedError("two nodes of a tree have one id")

    def of(self, trees: np.ndarray, nodes: np.ndarray) -> np.ndarray:
        """The positions of nodes.

        Raises:
            NotImplementedError: there is no such node.
        """
        return self.order[_found(self.keys, self._keys(trees, nodes))]

    def _keys(self, trees: np.ndarray, nodes: np.ndarray) -> np.ndarray:
        """One number for both ids."""
        return _found(self.trees, trees) * len(self.nodes) + _found(self.nodes, nodes)


def _found(known: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Where the elements of ``wanted`` are in ``known``, which is sorted."""
    at = np.searchsorted(known, wanted)
    if (at == len(known)).any() or (known[at] != wanted).any():
        raise NotImplementedError("an id of a node that the tree does not have")
    return at


def _same_length(count: int, *columns: Sequence) -> None:
    if any(len(column) != count for column in columns):
        raise NotImplementedError("attributes that describe nodes or leaves differ in length")


def _in_range(values: np.ndarray, end: int | np.ndarray, what: str) -> None:
    if ((values < 0) | (values >= end)).any():
        raise NotImplementedError(f"{what} is out of range")
