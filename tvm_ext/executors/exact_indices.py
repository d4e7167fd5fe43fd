"""Flattening of buffers that keeps the values of indices.

FlattenBuffer simplifies indices as affine maps of the loops (IterMapSimplify), and there divides
sums with an offset wrongly: in ``y[i, j] = x[(j + 1) // 2]``, with both loops fused to ``b``, the
index ``(b % 14 + 1) // 2`` becomes ``(b + 1) % 14 // 2``, 0 instead of 7 where ``b % 14`` is 13.
It fails on ``b % (3 * n - 1) // 3``: it does not see that a symbolic sum divides its multiples.
"""

from collections.abc import Sequence

import tvm
import tvm_ffi
from tvm import IRModule, tirx
from tvm.ir import TensorLoad
from tvm.tirx.analysis import undefined_vars

from ..schedules.statements import reads_memory

__all__ = ["flatten_buffers"]

_DIVISIONS = (tirx.FloorDiv, tirx.FloorMod)

Names = dict[tirx.Var, tirx.Expr]


@tvm.transform.module_pass(opt_level=0, name="FlattenBuffers")
def flatten_buffers(module: IRModule, _context: object) -> IRModule:
    """The module pass: FlattenBuffer, with a name for each division that it would change."""
    functions = {
        symbol: _flattened(function) if isinstance(function, tirx.PrimFunc) else function
        for symbol, function in module.functions_items()
    }
    return IRModule(functions, attrs=module.attrs)


def _flattened(kernel: tirx.PrimFunc) -> tirx.PrimFunc:
    names: Names = {}
    named = IRModule({"kernel": kernel.with_body(_named(kernel.body, names))})
    flat = tirx.transform.FlattenBuffer()(named)["kernel"]
    return flat.with_body(_replaced(flat.body, names)) if names else flat


def _named(body: tirx.Stmt, names: Names) -> tirx.Stmt:
    """``body`` with a new variable for each division of an index that FlattenBuffer cannot do.

    Those of a sum with an offset, and of a digit of a loop that is counted in a symbolic sum.
    """
    loops: set[tirx.Var] = set()
    tvm_ffi.structural_walk(
        body,
        [
            (tirx.For, lambda loop: loops.add(loop.loop_var)),
            (tirx.AttrStmt, lambda node: _note_thread(node, loops)),
        ],
        order="pre",
    )

    def name(division: tirx.Expr) -> tirx.Expr:
        offset = any(loops.isdisjoint(undefined_vars(term)) for term in _terms(division.a))
        inexact = offset or _has_digit_of_sum(division.a)
        if not inexact or reads_memory(division):  # what loads is no map of loops: it is left alone
            return division
        var = tirx.Var("index", division.ty)
        names[var] = division
        return var

    divides = False  # since the last store: most indices do not, and are left alone unseen

    def division(node: tirx.Expr) -> tirx.Expr:
        nonlocal divides
        divides = True
        return node

    def renamed(indices: Sequence[tirx.Expr]) -> list[tirx.Expr] | None:
        """The indices with names; None where they need none."""
        if not divides:
            return None
        mapped = [tvm_ffi.structural_map(index, (_DIVISIONS, name)) for index in indices]
        return None if all(map(tirx.Expr.same_as, mapped, indices)) else mapped

    def load(node: TensorLoad) -> TensorLoad:
        indices = renamed(node.indices)
        return node if indices is None else tirx.BufferLoad(node.source, indices)

    def store(node: tirx.BufferStore) -> tirx.BufferStore:
        nonlocal divides
        indices = renamed(node.indices)
        divides = False
        return node if indices is None else tirx.BufferStore(node.buffer, node.value, indices)

    callbacks = [(_DIVISIONS, division), (TensorLoad, load), (tirx.BufferStore, store)]
    return tvm_ffi.structural_map(body, callbacks)


def _has_digit_of_sum(value: tirx.Expr) -> bool:
    """Whether ``value`` contains a division by a symbolic sum, or by a multiple of one."""
    found: list[bool] = []

    def visit(division: tirx.Expr) -> None:
        found.append(any(isinstance(f, tirx.Add | tirx.Sub) for f in _factors(division.b)))

    tvm_ffi.structural_walk(value, (_DIVISIONS, visit), order="pre")
    return any(found)


def _factors(product: tirx.Expr) -> list[tirx.Expr]:
    if isinstance(product, tirx.Mul):
        return [*_factors(product.a), *_factors(product.b)]
    return [product]


def _note_thread(node: tirx.AttrStmt, loops: set[tirx.Var]) -> None:
    if node.attr_key == "thread_extent":
        loops.add(node.node.var)


def _terms(total: tirx.Expr) -> list[tirx.Expr]:
    if isinstance(total, tirx.Add | tirx.Sub):
        return [*_terms(total.a), *_terms(total.b)]
    return [total]


def _replaced(body: tirx.Stmt, names: Names) -> tirx.Stmt:
    def value(var: tirx.Var) -> tirx.Expr:
        return _replaced(names[var], names) if var in names else var

    return tvm_ffi.structural_map(body, (tirx.Var, value))
