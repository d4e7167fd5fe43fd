"""What sizes a kernel takes its operands to have, by how it reads them.

A kernel loops over dims of its own; where an index of an operand is such a loop's variable, and no
condition stands around the read, the operand has to be as long as the loop. What is provably so is
left out; the rest are checks of the run: no kernel reads beyond the memory of an operand because a
model is given sizes that do not fit each other.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import tvm_ffi
from tvm import ir, tirx
from tvm.s_tir import SBlock

from .known import as_expr

__all__ = ["lengths_read"]

_CONDITIONAL = tirx.Select, tirx.IfThenElse
_FIELDS = "block", "body", "init", "seq", "value", "a", "b", "args", "indices"


def lengths_read(
    func: tirx.PrimFunc, operands: Sequence[Sequence[object]], numbers: Sequence[object]
) -> Iterator[tuple[int, int, tirx.Expr]]:
    """The operand, its axis, and up to where the kernel reads it: in the dims of ``operands`` and
    in ``numbers``, which the kernel is called with."""
    buffers = [param for param in func.params if tirx.is_buffer_var(param)]
    scalars = [param for param in func.params if not tirx.is_buffer_var(param)]
    known: dict[tirx.Var, tirx.Expr] = dict(zip(scalars, map(as_expr, numbers), strict=False))
    for buffer, dims in zip(buffers, operands, strict=False):
        for own, dim in zip(buffer.ty.shape, dims, strict=True):
            if isinstance(own, tirx.Var):
                known.setdefault(own, as_expr(dim))
    places = {buffer: k for k, buffer in enumerate(buffers[: len(operands)])}
    found = set()
    for buffer, axis, extent in _reads(func.body, {}):
        free = tirx.analysis.undefined_vars(extent, [])
        if buffer in places and all(var in known for var in free):
            extent = tvm_ffi.structural_map(extent, (tirx.Var, lambda var: known.get(var, var)))
            key = places[buffer], axis, str(extent)
            if key not in found:
                found.add(key)
                yield places[buffer], axis, extent


def _reads(
    node: object, loops: Mapping[tirx.Var, tirx.Expr]
) -> Iterator[tuple[tirx.Var, int, tirx.Expr]]:
    """The buffers whose index is the variable of one of ``loops``, the axis, and its extent."""
    if isinstance(node, _CONDITIONAL):
        node = node.condition
    elif _is_choice(node):
        node = node.args[0]
    if isinstance(node, tirx.For):
        loops = {**loops, node.loop_var: node.min + node.extent}
    elif isinstance(node, SBlock):
        loops = {**loops, **{v.var: v.dom.min + v.dom.extent for v in node.iter_vars}}
    elif isinstance(node, ir.TensorLoad):
        for axis, index in enumerate(node.indices):
            if index in loops:
                yield node.source, axis, loops[index]
    for child in _children(node):
        yield from _reads(child, loops)


def _children(node: object) -> Iterator[object]:
    for name in _FIELDS:
        child = getattr(node, name, None)
        if isinstance(child, Sequence):
            yield from child
        elif child is not None:
            yield child


def _is_choice(node: object) -> bool:
    return isinstance(node, ir.Call) and getattr(node.op, "name", "").endswith("if_then_else")
