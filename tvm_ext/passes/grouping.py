"""Bindings in an order in which those of a group stand next to each other."""

from __future__ import annotations

import heapq
from collections.abc import Collection, Sequence

from tvm import relax

__all__ = ["grouped"]

Group = Collection[relax.Var]


def grouped(function: relax.Function, groups: Sequence[Group]) -> relax.Function | None:
    """``function`` with the bindings of each group in one piece, else in their order.

    Before: ``s = x + z;  t = exp(s);  y = relu(s)``; after, for the group s, y:
    ``s = x + z;  y = relu(s);  t = exp(s)``.

    None where that cannot be: two groups, or one and what stands between, wait for each other; or
    a group is not inside one dataflow block.
    """
    blocks = []
    for block in function.body.blocks:
        own = {binding.var for binding in block.bindings}
        here = [group for group in groups if own.intersection(group)]
        order: list[relax.Binding] | None = list(block.bindings)
        if here:
            whole = isinstance(block, relax.DataflowBlock) and all(map(own.issuperset, here))
            order = _ordered(block.bindings, here) if whole else None
        if order is None:
            return None
        blocks.append(type(block)(order))
    body = relax.SeqExpr(blocks, function.body.body)
    return relax.Function(function.params, body, function.ret_ty, function.is_pure, function.attrs)


def _ordered(
    bindings: Sequence[relax.Binding], groups: Sequence[Group]
) -> list[relax.Binding] | None:
    """Each group as one node, at its first place at which all that it reads is there."""
    node_of: dict[relax.Var, int] = {}
    first: dict[int, int] = {}
    for place, binding in enumerate(bindings):
        group = next((k for k, group in enumerate(groups) if binding.var in group), None)
        node_of[binding.var] = place if group is None else first.setdefault(group, place)
    nodes: dict[int, list[relax.Binding]] = {}
    waits: dict[int, set[int]] = {}
    casts: set[int] = set()  # they define symbolic dims, which any binding behind may use
    for binding in bindings:
        node = node_of[binding.var]
        nodes.setdefault(node, []).append(binding)
        reads = {node_of[v] for v in relax.analysis.free_vars(binding.value) if v in node_of}
        waits.setdefault(node, set()).update((reads | casts) - {node})
        if isinstance(binding, relax.MatchCast):
            casts.add(node)
    readers: dict[int, list[int]] = {}
    for node, needed in waits.items():
        for other in needed:
            readers.setdefault(other, []).append(node)
    ready = [node for node, needed in waits.items() if not needed]
    heapq.heapify(ready)
    order: list[relax.Binding] = []
    while ready:
        node = heapq.heappop(ready)
        order += nodes[node]
        for reader in readers.get(node, ()):
            waits[reader].discard(node)
            if not waits[reader]:
                heapq.heappush(ready, reader)
    return order if len(order) == len(bindings) else None
