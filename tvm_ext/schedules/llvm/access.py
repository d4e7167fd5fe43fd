"""How a block walks through memory: strides of its accesses, their guards, and what they cost."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from operator import mul

import tvm_ffi
from tvm import ir, s_tir, sym, tirx

__all__ = ["Access", "Walk", "nominal", "volume"]

_BINARY = (
    tirx.Add,
    tirx.Sub,
    tirx.Mul,
    tirx.Div,
    tirx.FloorDiv,
    tirx.FloorMod,
    tirx.Min,
    tirx.Max,
    tirx.EQ,
    tirx.NE,
    tirx.LT,
    tirx.LE,
    tirx.GT,
    tirx.GE,
    tirx.Select,
    tirx.Cast,
)

# Stands for a symbolic dim where a rule must choose.
NOMINAL_DIM = 1 << 16

# Operations in units of one vector add; libm calls are scalar.
_CALL_COST = {
    "tirx.sqrt": 4,
    "tirx.rsqrt": 4,
    "tirx.exp": 20,
    "tirx.log": 20,
    "tirx.tanh": 30,
    "tirx.sigmoid": 20,
    "tirx.erf": 40,
    "tirx.pow": 40,
    "tirx.sin": 30,
    "tirx.cos": 30,
}
_DEFAULT_CALL_COST = 1
_LIBM_COST = 20
_CHEAP_CALLS = {
    "prim.if_then_else",
    "tirx.if_then_else",
    "tirx.likely",
    "tirx.reinterpret",
    "tirx.fabs",
    "tirx.floor",
    "tirx.ceil",
    "tirx.trunc",
    "tirx.nearbyint",
    "tirx.round",
    "tirx.isnan",
    "tirx.shift_left",
    "tirx.shift_right",
    "tirx.bitwise_and",
    "tirx.bitwise_or",
    "tirx.bitwise_xor",
    "tirx.bitwise_not",
}


def nominal(extent: ir.Expr | int) -> int:
    """``extent`` as a number; a symbolic one counts as ``NOMINAL_DIM``."""
    return int(extent) if isinstance(extent, int | tirx.IntImm) else NOMINAL_DIM


def volume(extents: Sequence[ir.Expr | int]) -> int:
    """The nominal number of points of a domain."""
    result = 1
    for extent in extents:
        result *= nominal(extent)
    return result


@dataclass(frozen=True)
class Access:
    """One load or store. ``strides[k]``: step in elements per step of variable k.

    None where the step is not constant (an index computed by division or from memory).
    """

    buffer: tirx.Var
    indices: tuple[ir.Expr, ...]
    strides: tuple[ir.Expr | None, ...]
    is_store: bool


class Walk:
    """Facts about one block: its accesses and guards by variable, and its cost per point.

    The variables are the iteration variables of the block, or those of its loops, where
    ``values`` binds the former to the latter.
    """

    def __init__(
        self,
        block: s_tir.SBlock,
        variables: Sequence[ir.Var] | None = None,
        values: Sequence[ir.Expr] | None = None,
    ):
        self.block = block
        own = [iteration.var for iteration in block.iter_vars]
        self.variables = own if variables is None else list(variables)
        self._bindings = [] if values is None else list(zip(own, values, strict=True))
        self.extents = [iteration.dom.extent for iteration in block.iter_vars]
        self.kinds = "".join(_KINDS.get(i.iter_type, "O") for i in block.iter_vars)

    @cached_property
    def accesses(self) -> list[Access]:
        """Every load and store of the update, in no order."""
        found: list[Access] = []

        def load(node: ir.TensorLoad) -> None:
            found.append(self.access(node))

        def store(node: tirx.BufferStore) -> None:
            found.append(self._access(node.buffer, node.indices, True))

        tvm_ffi.structural_walk(self.block.body, [(ir.TensorLoad, load), (tirx.BufferStore, store)])
        return found

    def access(self, node: ir.TensorLoad) -> Access:
        """A load of the block."""
        return self._access(node.source, node.indices, False)

    @cached_property
    def moving(self) -> list[bool]:
        """Of each access, whether its place depends on more than what is loaded, as in tables."""
        return [
            None not in access.strides or any(self.used(_unread(i)) for i in access.indices)
            for access in self.accesses
        ]

    @cached_property
    def written(self) -> list[tirx.Var]:
        """The buffers written."""
        return [region.source for region in self.block.writes]

    @cached_property
    def stores(self) -> list[Access]:
        """The stores."""
        return [access for access in self.accesses if access.is_store]

    @cached_property
    def inputs(self) -> list[Access]:
        """The loads, without those of a reduction's own accumulators."""
        return [
            a
            for a in self.accesses
            if not a.is_store and not any(a.buffer.same_as(w) for w in self.written)
        ]

    @cached_property
    def guarded(self) -> frozenset[int]:
        """Indices of the variables that a condition (if_then_else, IfThenElse) depends on."""
        conditions: list[ir.Expr] = []

        def call(node: ir.Call) -> None:
            if node.op.name.endswith("if_then_else"):
                conditions.append(node.args[0])

        tvm_ffi.structural_walk(
            self.block.body,
            [(ir.Call, call), (tirx.IfThenElse, lambda node: conditions.append(node.condition))],
        )
        return frozenset(k for condition in conditions for k in self.used(condition))

    @cached_property
    def counted(self) -> frozenset[int]:
        """Indices of the variables whose own value is used, not only what they index."""
        values: list[ir.Expr] = []
        tvm_ffi.structural_walk(
            self.block.body, (tirx.BufferStore, lambda node: values.append(node.value))
        )
        return frozenset(k for value in values for k in self.used(_unread(value)))

    @cached_property
    def cost(self) -> int:
        """Operations per point, in units of one vector add."""
        total = 0

        def call(node: ir.Call) -> None:
            nonlocal total
            name = node.op.name
            total += _CALL_COST.get(
                name, _DEFAULT_CALL_COST if name in _CHEAP_CALLS else _LIBM_COST
            )

        def binary(_node: object) -> None:
            nonlocal total
            total += 1

        tvm_ffi.structural_walk(self.block.body, [(ir.Call, call), (_BINARY, binary)])
        return max(total, 1)

    @property
    def work(self) -> int:
        """The nominal cost of the whole block."""
        return volume(self.extents) * (1 + self.cost)

    @property
    def dtypes(self) -> list[str]:
        """The dtypes of all buffers accessed."""
        return [str(a.buffer.ty.dtype.dtype) for a in self.accesses]

    def used(self, expr: ir.Expr) -> list[int]:
        """Indices of the variables that occur in ``expr``."""
        seen: list[ir.Var] = []
        tvm_ffi.structural_walk(self._bound(expr), (ir.Var, seen.append))
        return [k for k, var in enumerate(self.variables) if any(var.same_as(s) for s in seen)]

    def _bound(self, expr: ir.Expr) -> ir.Expr:
        if not self._bindings:
            return expr

        def value(var: ir.Var) -> ir.Expr:
            return next((value for own, value in self._bindings if own.same_as(var)), var)

        return tvm_ffi.structural_map(expr, (ir.Var, value))

    def _access(self, buffer: tirx.Var, indices: Sequence[ir.Expr], is_store: bool) -> Access:
        bound = [self._bound(index) for index in indices]
        steps = list(accumulate(map(_known, reversed(buffer.ty.shape)), mul, initial=1))[-2::-1]
        parts = [sym.detect_linear_equation(index, self.variables) for index in bound]
        if not all(parts):
            # Divisions of one index may meet their remainders in another.
            offset = _ANALYZER.simplify(sum(map(mul, bound, steps)))
            parts = [sym.detect_linear_equation(offset, self.variables)]
            if all(parts):
                steps = [1]
        strides: list[ir.Expr | int | None]
        if all(parts):
            known = [list(map(_known, part)) for part in parts]
            strides = [
                _simplify(sum(map(mul, (part[k] for part in known), steps)))
                for k in range(len(self.variables))
            ]
        else:
            strides = []
            for var in self.variables:
                step = self._alone(var, [offset], [1])
                strides.append(self._alone(var, bound, steps) if step is None else step)
        return Access(buffer, tuple(bound), tuple(strides), is_store)

    def _alone(
        self, var: ir.Var, bound: list[ir.Expr], steps: list[ir.Expr | int]
    ) -> ir.Expr | int | None:
        """The step of ``var`` while the others stand still, as along a row that was looked up."""
        parts = [sym.detect_linear_equation(index, [var]) for index in bound]
        if not all(parts) or any(self.used(part[0]) for part in parts):
            return None
        return _simplify(sum(map(mul, (part[0] for part in parts), steps)))


def _unread(expr: ir.Expr) -> ir.Expr:
    """``expr`` with 0 for what it loads."""

    def zero(node: ir.TensorLoad) -> ir.Expr:
        return tirx.const(0, node.ty)

    return tvm_ffi.structural_map(expr, (ir.TensorLoad, zero), order="pre")


_KINDS = {tirx.IterVar.DataPar: "S", tirx.IterVar.CommReduce: "R"}
_ANALYZER = sym.Analyzer()


def _known(expr: ir.Expr) -> ir.Expr | int:
    """A number where ``expr`` is one: Python's arithmetic makes no nodes."""
    return int(expr) if isinstance(expr, tirx.IntImm) else expr


def _simplify(expr: ir.Expr | int) -> ir.Expr | int:
    if isinstance(expr, int):
        return expr
    return _known(_ANALYZER.simplify(expr))
