"""From the bindings of a scheduled module to kernels, and the tensors that they read and write."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np
import tvm_ffi
from tvm import IRModule, relax, tirx
from tvm.ir import GlobalVar, PrimType
from tvm.ir.expr import GenericConst
from tvm.sym import Analyzer

from ..checks import CHECKS
from ..schedules.llvm.strips import part_shape
from .formulas import NotStatic, c_text
from .plan import Check, Kernel, Region, Slot, Strips

__all__ = ["ANALYZER", "Walk", "arguments", "equal"]


class Walk:
    """Turns bindings into kernels and slots, in execution order, and asserts into checks."""

    def __init__(self, module: IRModule) -> None:
        self.module = module
        self.kernels: list[Kernel] = []
        self._written: set[Slot] = set()  # by the loop over strips of the last kernel
        self.parts: dict[Slot, Sequence[Any]] = {}  # what such a loop writes -> shape of a strip
        self.checks: list[Check] = []
        self.weights: dict[Slot, np.ndarray] = {}
        self.arena: list[Slot] = []
        self.values: dict[relax.Var, Any] = {}  # a Slot, or a tuple of values
        self.shapes: dict[relax.Var, Sequence[tirx.Expr]] = {}
        self.measured: dict[relax.Var, Slot] = {}  # shapes of tensors
        self.known: dict[tirx.Var, tirx.Expr] = {}  # dims, as formulas
        # Integers that are read as it runs: of tensors, by their places, and in which region.
        self.read: dict[tirx.Var, tuple[Slot, int, Region | None]] = {}
        self.region: Region | None = None  # that kernels are in, now
        self.prefix = ""  # of the names of variables: the function that they are of
        self._constants: dict[GenericConst, Slot] = {}

    def run(self, main: relax.Function) -> tuple[tuple[Slot, ...], tuple[Slot, ...]]:
        """All of ``main``; its inputs and its outputs.

        Raises:
            NotStatic: a binding cannot be computed so.
        """
        inputs = tuple(self.parameter(k, param) for k, param in enumerate(main.params))
        outputs = tuple(_flatten(self.computed(main.body)))
        for index, slot in enumerate(outputs):
            # An input, a weight, a part of a tensor or an earlier output is copied.
            if slot.root.kind == "arena" and not slot.shifts and self.is_known(slot, slot.root):
                slot.root.kind, slot.root.index = "output", index
        return inputs, outputs

    def computed(self, body: relax.SeqExpr) -> Any:
        """What ``body`` gives: a Slot, or a tuple of values."""
        for block in body.blocks:
            for binding in block.bindings:
                try:
                    self.bind(binding)
                except NotStatic as reason:
                    reason.variable = reason.variable or binding.var.name
                    raise
        return self.value(body.body)

    def parameter(self, index: int, param: relax.Var) -> Slot:
        slot = Slot(*self.tensor(param.ty), kind="input", index=index)
        self.values[param] = slot
        return slot

    def bind(self, binding: relax.Binding) -> None:
        value = binding.value
        if isinstance(binding, relax.MatchCast):
            self.match(binding)
        elif isinstance(value, relax.ShapeExpr):
            self.shapes[binding.var] = value.values
        elif isinstance(value, relax.Call) and value.op == _TO_SHAPE:
            self.shapes[binding.var] = self.elements(value.args[0])
        elif isinstance(value, relax.Call) and value.op == _SHAPE_OF:
            (slot,) = self.flat(value.args[0])
            self.measured[binding.var] = slot
        elif not isinstance(value, relax.Call):
            self.values[binding.var] = self.value(value)
        elif value.op == _CALL_TIR:
            self.values[binding.var] = self.kernel(value, self.prefix + binding.var.name)
        elif value.op == _RESHAPE:
            base = self.value(value.args[0])
            shape, dtype = self.tensor(binding.var.ty)
            self.values[binding.var] = Slot(shape, dtype, base.kind, base.index, base=base)
        else:
            raise NotStatic(f"a call of {getattr(value.op, 'name', value.op)}")

    def kernel(self, call: relax.Call, variable: str) -> Slot | tuple[Slot, ...]:
        symbol = call.args[0]
        if not isinstance(symbol, GlobalVar):
            raise NotStatic("a call of no kernel of the module")
        tensors, numbers = arguments(call)
        reads = tuple(slot for field in tensors for slot in self.flat(field))
        (ty,) = call.ty_args
        parts = ty.fields if isinstance(ty, relax.TupleType) else [ty]
        writes = tuple(Slot(*self.tensor(part)) for part in parts)
        self.called(symbol, [*reads, *writes], numbers)
        self.arena += writes
        now = len(self.kernels)
        kernel = Kernel(symbol.name_hint, reads, writes, variable, region=self.region)
        self.kernels.append(self._in_strips(kernel, self.module[symbol]))
        for slot in writes:
            slot.live[:] = now, now
        for slot in reads:
            slot.root.live[1] = now
        return writes if isinstance(ty, relax.TupleType) else writes[0]

    def _in_strips(self, kernel: Kernel, func: tirx.PrimFunc) -> Kernel:
        """``kernel`` in a loop, if ``func`` takes parts of its operands (see passes/strips.py):
        that of the kernel before, unless it reads for each strip what that has yet to write."""
        params = (param.ty.shape for param in func.params if tirx.is_buffer_var(param))
        operands = kernel.operands
        parts = [part_shape(s.shape, dims) for s, dims in zip(operands, params, strict=True)]
        count = next((count for _, count in parts if not _is_one(count)), None)
        if count is None:
            return kernel
        last = self.kernels[-1] if len(self.kernels) > self.start else None
        before = last.strips if last is not None and last.region is self.region else None
        pairs = list(zip(operands, parts, strict=True))
        whole = {slot.root for slot, (_, times) in pairs if _is_one(times)}
        ahead = whole & self._written or any(map(self._lies_elsewhere, kernel.reads))
        if before is None or not equal(before.count, count) or ahead:
            before, self._written = Strips(count), set()
        self._written |= set(kernel.writes)
        self.parts |= {slot: shape for slot, (shape, _) in pairs if slot in kernel.writes}
        steps = (
            0 if _is_one(times) else prod(shape, start=np.dtype(slot.dtype).itemsize)
            for slot, (shape, times) in pairs
        )
        return replace(kernel, strips=before, steps=tuple(steps))

    def _lies_elsewhere(self, read: Slot) -> bool:
        """Whether its strips are not those of what the loop writes, where that is a part of it, or
        it a part of that."""
        return any(
            slot.root is read.root and slot is not read and bool(slot.shifts or read.shifts)
            for slot in self._written
        )

    @property
    def start(self) -> int:
        """The first kernel that those to come may share a loop with."""
        return 0

    def is_known(self, _slot: Slot, _root: Slot) -> bool:
        """Whether the size of a tensor is known before another is written."""
        return True

    def tensor(self, ty: relax.Type) -> tuple[tuple[Any, ...], str]:
        """The shape and the element type of a tensor."""
        return _tensor(ty)

    def match(self, binding: relax.MatchCast) -> None:
        """What a match_cast says holds, or is seen to."""
        given, wanted = binding.value, binding.ty
        if given in self.measured:
            self.name_dims(binding.var.name, self.measured[given], wanted.values)
        elif not isinstance(wanted, relax.ShapeType) or given not in self.shapes:
            _tensor(wanted)
            self.values[binding.var] = self.value(given)
        elif wanted.values is None:  # it forgets its dims
            self.shapes[binding.var] = self.shapes[given]
        else:
            self.match_dims(self.shapes[given], wanted.values)

    def name_dims(self, name: str, tensor: Slot, wanted: Sequence[tirx.Expr]) -> None:
        """Bind the dims of a tensor that are new; assert the others."""
        for axis, (dim, want) in enumerate(zip(tensor.shape, wanted, strict=True)):
            if isinstance(want, tirx.Var) and want not in self.known:
                self.known[want] = tirx.convert(dim)
            else:
                text = f"axis {axis} of {name} is {{given}}, not {{wanted}}"
                self.check(text, tirx.convert(dim), self.formula(want))

    def match_dims(self, dims: Sequence[tirx.Expr], wanted: Sequence[tirx.Expr]) -> None:
        """Bind the dims that are new; assert what the frontend says of the others.

        Its texts are those of the number that comes last: see ``tvm_ext.checks``.
        """
        for axis, (dim, want) in enumerate(zip(dims, wanted, strict=True)):
            if isinstance(want, tirx.Var) and want not in self.known:
                self.known[want] = self.formula(dim)
            elif axis < len(dims) - 1:
                text = str(self.module.attrs[CHECKS][int(dims[-1])][axis])
                self.check(text, self.formula(dim), self.formula(want))

    def formula(self, dim: tirx.Expr) -> tirx.Expr:
        """A dim as a formula of what is read as the plan runs."""
        known = tvm_ffi.structural_map(dim, (tirx.Var, lambda v: self.known.get(v, v)))
        return ANALYZER.simplify(tirx.convert(known))

    def elements(self, tensor: relax.Expr) -> Sequence[tirx.Expr]:
        """The elements of a vector of integers: as variables, read when they are there."""
        (slot,) = self.flat(tensor)
        if len(slot.shape) != 1 or not isinstance(slot.shape[0], int) or slot.dtype != "int64":
            raise NotStatic("a shape of unknown rank")
        return [self.to_read(slot, place) for place in range(slot.shape[0])]

    def to_read(self, slot: Slot, place: int = 0) -> tirx.Var:
        """A variable for an element of a tensor of int64 or bool."""
        var = tirx.Var(f"r{len(self.read)}", "int64")
        self.read[var] = slot, place, self.region
        return var

    def check(self, text: str, given: tirx.Expr, wanted: tirx.Expr) -> None:
        """Have a run end where two formulas differ."""
        if ANALYZER.can_prove_equal(given, wanted):
            return
        used = {var for side in (given, wanted) for var in tirx.analysis.undefined_vars(side, [])}
        reads = [(v.name, slot, place) for v, (slot, place, _) in self.read.items() if v in used]
        after = self.behind([slot for _, slot, _ in reads])
        for _, slot, _ in reads:
            slot.root.live[1] = max(slot.root.live[1], after or 0)
        self.checks.append(Check(text, c_text(given), c_text(wanted), tuple(reads), after))

    def behind(self, read: Sequence[Slot]) -> int | None:
        """The kernel that a check of these comes behind; see :class:`Check`."""
        if not read:
            return None
        roots = {slot.root for slot in read}
        makers = (k for k, each in enumerate(self.kernels) if roots & {w.root for w in each.writes})
        return max(makers, default=-1)

    def called(
        self, _symbol: GlobalVar, _operands: Sequence[Slot], numbers: Sequence[relax.Expr]
    ) -> None:
        """A kernel is called with these tensors, and with numbers, or shapes, beside them."""
        if numbers:
            raise NotStatic("a kernel with symbolic arguments")

    def value(self, expr: relax.Expr) -> Any:
        if isinstance(expr, GenericConst):
            return self._constant(expr)
        if isinstance(expr, relax.Tuple):
            return tuple(self.value(part) for part in expr.fields)
        if isinstance(expr, relax.TupleGetItem):
            return self.value(expr.tuple_value)[expr.index]
        if expr in self.values:
            return self.values[expr]
        raise NotStatic(f"control flow ({type(expr).__name__})")

    def flat(self, expr: relax.Expr) -> Iterable[Slot]:
        value = self.value(expr)
        return _flatten(value)

    def _constant(self, expr: GenericConst) -> Slot:
        if expr not in self._constants:
            shape, dtype = self.tensor(expr.ty)
            self._constants[expr] = slot = Slot(shape, dtype, "weight", len(self.weights))
            self.weights[slot] = expr.value.numpy()
        return self._constants[expr]


def arguments(call: relax.Call) -> tuple[list[relax.Expr], list[relax.Expr]]:
    """The tensors that a kernel is called with; the numbers, and the shapes."""
    _, given, *dims = call.args
    fields = given.fields if isinstance(given, relax.Tuple) else [given]
    tensors = [field for field in fields if not isinstance(field.ty, PrimType)]
    return tensors, [*(field for field in fields if isinstance(field.ty, PrimType)), *dims]


ANALYZER = Analyzer()
_CALL_TIR = tirx.op.Op.get("relax.call_tir")
_SHAPE_OF = tirx.op.Op.get("relax.shape_of")
_TO_SHAPE = tirx.op.Op.get("relax.tensor_to_shape")
_RESHAPE = tirx.op.Op.get("relax.reshape")


def _is_one(part: Any) -> bool:
    return isinstance(part, int) and part == 1


def equal(a: Any, b: Any) -> bool:
    """Whether two numbers or formulas are known to be equal."""
    return bool(ANALYZER.can_prove_equal(tirx.convert(a), tirx.convert(b)))


def _flatten(value: Any) -> Iterable[Slot]:
    if isinstance(value, Slot):
        yield value
    else:
        for part in value:
            yield from _flatten(part)


def _tensor(ty: object) -> tuple[tuple[int, ...], str]:
    if not isinstance(ty, relax.TensorType) or ty.shape is None:
        raise NotStatic(f"a value of type {ty}")
    dims = ty.shape.values
    if not all(isinstance(dim, tirx.IntImm) for dim in dims):
        raise NotStatic(f"the symbolic shape {ty.shape}")
    return tuple(int(dim) for dim in dims), str(ty.dtype.dtype)
