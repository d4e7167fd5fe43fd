"""Ensembles of decision trees, as data: one kernel walks any trees.

A tree is a set of nodes. An inner node compares one feature with a threshold and goes to one of
two nodes; a leaf goes to itself whatever the comparison says, so that a walk of as many steps as
the tree is deep ends in a leaf, without a branch. ``LANES`` walks are taken together, of several
trees or, where these are few, in several rows: the loads of one hide behind those of the others.
"""

from tvm import te, tirx
from tvm.script.ir_builder import IRBuilder
from tvm.tirx.script.builder import ir as T

__all__ = ["EQUAL", "GREATER", "LANES", "LESS", "UNORDERED", "scored", "tree_ensemble"]

# Walks that are taken together.
LANES = 16

# What a rule, a sum of these, lets go to the "true" node: x < threshold, ==, >, or NaN.
LESS, EQUAL, GREATER, UNORDERED = 1, 2, 4, 8

_COMPARISONS = {
    LESS: lambda x, t: x < t,
    LESS | EQUAL: lambda x, t: x <= t,
    EQUAL: lambda x, t: x == t,
    GREATER | EQUAL: lambda x, t: x >= t,
    GREATER: lambda x, t: x > t,
    LESS | GREATER | UNORDERED: lambda x, t: x != t,
}

# Those that do not hold of NaN.
_ORDERED = _COMPARISONS.keys() - {LESS | GREATER | UNORDERED}
_UNORDERED_BIT = 3


def tree_ensemble(x, nodes, thresholds, roots, depths, spans, targets, weights, count, rules, fold):
    """What the leaves that each row of ``x[R, F]`` reaches say, folded: ``y[R, count]``.

    ``nodes[N, 4]`` hold feature, rule, node if false, node if true; ``thresholds[N]`` have the type
    that comparisons run in. ``roots[G * L]`` are the first nodes of the trees, L a divisor of
    ``LANES``, and ``depths[G]`` the steps that each group of trees takes. Leaf ``n`` adds
    ``weights[k]`` to target ``targets[k]`` for k from ``spans[n, 0]`` up to ``spans[n, 1]``.
    ``fold`` is "sum", "min" or "max"; a target that no leaf speaks of is 0, or the identity of min
    or max. ``rules`` are those that inner nodes have.
    """
    combine, start = _FOLDS[fold]
    height, groups = x.shape[0], int(depths.shape[0])
    trees = int(roots.shape[0]) // groups
    together = LANES // trees  # rows
    blocks = (height + (together - 1)) // together

    def body(ins, outs):
        features, node, threshold, root, depth, span, target, weight = ins
        (y,) = outs

        def step(row, n):
            value = features[row, node[n, 0]].astype(threshold.ty.dtype)
            true = _passes(value, threshold[n], rules, node[n, 1])
            # A position to load from: a choice of two might become a branch, often mispredicted.
            return node[n, 2 + true]

        def walk(row, lanes, each, group, at):
            """``lanes`` walks from ``row`` on: those of all trees of one row, then of the next."""
            with T.serial(0, lanes) as lane:
                T.buffer_store(at, root[group * trees + lane % trees], [lane])
            with T.serial(0, depth[group]), each(0, lanes) as lane:
                T.buffer_store(at, step(row + lane // trees, at[lane]), [lane])
            with T.serial(0, lanes) as lane:
                first, last = (span[at[lane], k] for k in range(2))
                with T.serial(first, last) as k:
                    where = [row + lane // trees, target[k]]
                    T.buffer_store(y, combine(y[tuple(where)], weight[k]), where)

        def fill(row, rows, each, at):
            with T.serial(0, rows) as own, T.serial(0, count) as k:
                T.buffer_store(y, start(weights), [row + own, k])
            with T.serial(0, groups) as group:
                walk(row, rows * trees, each, group, at)

        with IRBuilder() as builder:
            with T.serial(0, blocks) as loop, T.sblock("rows"):
                block = T.axis.spatial(blocks, loop)
                T.reads(features[0:height, 0 : x.shape[1]])
                T.writes(y[0:height, 0:count])
                at = T.sblock_alloc_buffer((LANES,), "int32")
                row = block * together
                if together == 1:
                    fill(row, 1, T.unroll, at)
                else:
                    with T.If(row + together <= height):
                        with T.Then():
                            fill(row, together, T.unroll, at)
                        with T.Else():
                            fill(row, height - row, T.serial, at)
        return builder.get()

    inputs = [x, nodes, thresholds, roots, depths, spans, targets, weights]
    # The block around an extern is the function's root; schedules look it up by that name.
    return te.extern([(height, count)], inputs, body, name="root", dtype=[weights.dtype])


_FOLDS = {
    "sum": (lambda a, b: a + b, lambda weights: tirx.const(0, weights.dtype)),
    "min": (tirx.min, lambda weights: te.max_value(weights.dtype)),
    "max": (tirx.max, lambda weights: te.min_value(weights.dtype)),
}


def scored(y, fold):
    """``y`` with 0 for what no leaf spoke of."""
    _, start = _FOLDS[fold]
    nothing = start(y)
    return te.compute(
        y.shape, lambda *i: tirx.Select(y(*i) == nothing, tirx.const(0, y.dtype), y(*i)), "scored"
    )


def _passes(value, threshold, rules, rule):
    """1 where ``value`` goes to the "true" node by ``rule``, which is one of ``rules``; else 0."""
    common = {each & ~UNORDERED for each in rules}
    if len(rules) == 1:
        rule = tirx.const(rules[0], "int32")
        if rules[0] in _COMPARISONS:
            return _COMPARISONS[rules[0]](value, threshold).astype("int32")
    if len(common) == 1 and (only := common.pop()) in _ORDERED:
        holds = _COMPARISONS[only](value, threshold).astype("int32")
        absent = (value != value).astype("int32")
        # In bits: an "and" or an "or" might become a branch.
        return holds | (tirx.shift_right(rule, tirx.const(_UNORDERED_BIT, "int32")) & absent)
    relation = tirx.const(UNORDERED, "int32")
    for kind in (GREATER, EQUAL, LESS):
        relation = tirx.Select(
            _COMPARISONS[kind](value, threshold), tirx.const(kind, "int32"), relation
        )
    return (tirx.bitwise_and(relation, rule) != 0).astype("int32")
