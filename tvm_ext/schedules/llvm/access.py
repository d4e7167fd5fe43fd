"""How a block walks through memory: strides of its accesses, their guards, and what they cost."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import tvm_ffi
from tvm import ir, s_tir, sym, tirx

__all__ = ["Access", "Walk", "nominal", "volume"]

_BINARY = (tirx.Add, tirx.Sub, tirx.Mul, tirx.Div, tirx.FloorDiv, tirx.FloorMod, tirx.Min,
           tirx.Max, tirx.EQ, tirx.NE, tirx.LT, tirx.LE, tirx.GT, tirx.GE, tirx.Select, tirx.Cast)

# Stands for a symbolic dim where a rule must choose.
NOMINAL_DIM = 1 << 12

# Operations in units of one vector add; libm calls are scalar.
_CALL_COST = {"tirx.sqrt": 4, "tirx.rsqrt": 4, "tirx.exp": 20, "tirx.log": 20, "tirx.tanh": 30,
              "tirx.sigmoid": 20, "tirx.erf": 40, "tirx.pow": 40, "tirx.sin": 30, "tirx.cos": 30}
_DEFAULT_CALL_COST = 1
_LIBM_COST = 20
_CHEAP_CALLS = {"prim.if_then_else", "tirx.if_then_else", "tirx.likely", "tirx.reinterpret",
                "tirx.fabs", "tirx.floor", "tirx.ceil", "tirx.trunc", "tirx.nearbyint",
                "tirx.round", "tirx.isnan", "tirx.shift_left", "tirx.shift_right",
                "tirx.bitwise_and", "tirx.bitwise_or", "tirx.bitwise_xor", "tirx.bitwise_not"}


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
    """One load or store. ``strides[k]``: step in elements per step of iteration variable k.

    None where the step is not constant (an index computed by division or from memory).
    """

    buffer: tirx.Var
    indices: tuple[ir.Expr, ...]
    strides: tuple[ir.Expr | None, ...]
    is_store: bool


class Walk:
    """Facts about one block: its iteration variables, accesses, guards and cost per point."""

    def __init__(self, block: s_tir.SBlock):
        self.block = block
        self.variables = [iteration.var for iteration in block.iter_vars]
        self.extents = [iteration.dom.extent for iteration in block.iter_vars]
        self.kinds = "".join(_KINDS.get(i.iter_type, "O") for i in block.iter_vars)

    @cached_property
    def accesses(self) -> list[Access]:
        """Every load and store of the update, in no order."""
        found: list[Access] = []

        def load(node: ir.TensorLoad) -> None:
            found.append(self._access(node.source, node.indices, False))

        def store(node: tirx.BufferStore) -> None:
            found.append(self._access(node.buffer, node.indices, True))

        tvm_ffi.structural_walk(
            self.block.body, [(ir.TensorLoad, load), (tirx.BufferStore, store)]
        )
        return found

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
        return [a for a in self.accesses
                if not a.is_store and not any(a.buffer.same_as(w) for w in self.written)]

    @cached_property
    def guarded(self) -> frozenset[int]:
        """The iteration variables that a condition (if_then_else, IfThenElse) depends on."""
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
    def cost(self) -> int:
        """Operations per point, in units of one vector add."""
        total = 0

        def call(node: ir.Call) -> None:
            nonlocal total
            name = node.op.name
            total += _CALL_COST.get(
                name, _DEFAULT_CALL_COST if name in _CHEAP_CALLS else _LIBM_COST)

        def binary(_node: object) -> None:
            nonlocal total
            total += 1

        tvm_ffi.structural_walk(
            self.block.body, [(ir.Call, call), (_BINARY, binary)]
        )
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
        """The iteration variables that occur in ``expr``."""
        seen: list[ir.Var] = []
        tvm_ffi.structural_walk(expr, (ir.Var, seen.append))
        return [k for k, var in enumerate(self.variables) if any(var.same_as(s) for s in seen)]

    def of_kind(self, kind: str) -> list[int]:
        """The iteration variables of a kind: S(patial), R(eduction) or O(paque)."""
        return [k for k, own in enumerate(self.kinds) if own == kind]

    def _access(self, buffer: tirx.Var, indices: Sequence[ir.Expr], is_store: bool) -> Access:
        strides: list[ir.Expr | None] = [0] * len(self.variables)
        step: ir.Expr | int = 1
        for index, extent in reversed(list(zip(indices, buffer.ty.shape, strict=True))):
            coefficients = sym.detect_linear_equation(index, self.variables)
            if coefficients:
                for k, coefficient in enumerate(list(coefficients)[:-1]):
                    if strides[k] is not None:
                        strides[k] = _simplify(strides[k] + coefficient * step)
            else:
                for k in self.used(index):
                    strides[k] = None
            step = step * extent
        return Access(buffer, tuple(indices), tuple(strides), is_store)


_KINDS = {tirx.IterVar.DataPar: "S", tirx.IterVar.CommReduce: "R"}
_ANALYZER = sym.Analyzer()


def _simplify(expr: ir.Expr | int) -> ir.Expr | int:
    if isinstance(expr, int):
        return expr
    simple = _ANALYZER.simplify(expr)
    return int(simple) if isinstance(simple, tirx.IntImm) else simple
