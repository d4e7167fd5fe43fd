"""If and Loop in a memory plan: kernels of branches and of bodies, in regions.

The functions that hold them are walked where they are called. What a branch gives is written where
the result of the If lies; what a trip carries on, where the next one reads it. Where its maker may
not write there, it is copied.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np
from tvm import IRModule, relax, tirx
from tvm.ir import GlobalVar, PrimType

from .formulas import NotStatic
from .plan import CHECK, COPY, Branch, Kernel, Slot, Trips
from .walk import ANALYZER, Walk, equal

__all__ = ["ControlFlow"]

_LOOP = "tvm_ext.loop"
_ZERO = tirx.const(0, "int64")
_WITH_CONTEXT = tirx.op.Op.get("relax.call_builtin_with_ctx")


class ControlFlow(Walk):
    """A walk that goes on into branches, and into functions."""

    def __init__(self, module: IRModule):
        super().__init__(module)
        self._body: relax.SeqExpr | None = None  # that is walked now

    def bind(self, binding: relax.Binding) -> None:
        value = binding.value
        if isinstance(binding, relax.MatchCast):
            super().bind(binding)
        elif isinstance(value, relax.If):
            self.values[binding.var] = self._chosen(binding.var, value)
        elif isinstance(value, relax.Call) and isinstance(value.op, GlobalVar):
            self.values[binding.var] = self._called(value.op, value.args)
        elif _is_loop(value):
            self.values[binding.var] = self._loop(value.args[1].fields)
        else:
            super().bind(binding)

    def _tensors(self, value: Any) -> tuple[Slot, ...]:
        if isinstance(value, tuple) and all(isinstance(item, Slot) for item in value):
            return value
        raise NotStatic("a branch or a trip that gives no tensors")

    def value(self, expr: relax.Expr) -> Any:
        return expr if isinstance(expr, GlobalVar) else super().value(expr)

    def behind(self, read: Sequence[Slot]) -> int | None:
        """As ever; in a region, and of what one gives, behind the last kernel so far."""
        maker = super().behind(read)
        if self.region is None and (maker in (None, -1) or self._is_plain(maker)):
            return maker
        if not self.kernels or not self._is_plain(-1):
            self.kernels.append(Kernel(CHECK, (), (), CHECK, region=self.region))
        return len(self.kernels) - 1

    def _is_plain(self, kernel: int) -> bool:
        """Whether a kernel is run once wherever the present region is."""
        found = self.kernels[kernel]
        return found.region is self.region and found.strips is None

    def give(self, param: relax.Var, argument: relax.Expr) -> None:
        """A function of the module is called with this."""
        if isinstance(param.ty, PrimType):
            self.known[param] = self.formula(argument)
        elif isinstance(param.ty, relax.ShapeType):
            sizes = (
                self.shapes.get(argument) if isinstance(argument, relax.Var) else argument.values
            )
            if sizes is None or param.ty.values is None:
                raise NotStatic("a function of a computed shape")
            for dim, size in zip(param.ty.values, sizes, strict=True):
                self._learn_dim(dim, self.formula(size))
        else:
            self._place(param, self.value(argument))

    def _place(self, param: relax.Var, value: Any) -> None:
        self.values[param] = value
        shape = getattr(param.ty, "shape", None)
        if isinstance(value, Slot) and shape is not None:
            for dim, size in zip(shape.values, value.shape, strict=True):
                self._learn_dim(dim, tirx.convert(size))

    def _learn_dim(self, dim: tirx.Expr, size: tirx.Expr) -> None:
        if isinstance(dim, tirx.Var):
            self.known[dim] = size

    def _called(self, symbol: GlobalVar, arguments: Sequence[relax.Expr]) -> Any:
        func, known = self.module[symbol], self.known
        if not isinstance(func, relax.Function):
            raise NotStatic("a call of no kernel of the module")
        self.known = dict(known)  # dims of its own
        for param, argument in zip(func.params, arguments, strict=True):
            self.give(param, argument)
        result = self._within(symbol, func)
        self.known = known
        return result

    def _within(self, symbol: GlobalVar, func: relax.Function) -> Any:
        prefix, self.prefix = self.prefix, f"{symbol.name_hint}."
        result = self.computed(func.body)
        self.prefix = prefix
        return result

    def computed(self, body: relax.SeqExpr) -> Any:
        outer, self._body = self._body, body
        result = super().computed(body)
        self._body = outer
        return result

    def _chosen(self, variable: relax.Var, choice: relax.If) -> tuple[Slot, ...]:
        """The results of an If: each branch writes them."""
        (condition,) = self.flat(choice.cond)
        ranks = _ranks_read(self._body, variable)
        results: dict[int, Slot] = {}
        others: dict[int, Slot] = {}  # what the second branch gives where sizes differ
        outer = self.region
        for taken, body in ((True, choice.true_branch), (False, choice.false_branch)):
            first = len(self.kernels)
            self.region = Branch(outer, condition, taken)
            for number, slot in enumerate(self._tensors(self.computed(body))):
                rank = len(slot.shape)
                if ranks.get(number, rank) == rank:
                    result = results.setdefault(number, _like(slot))
                    if _alike(slot, result):
                        self._write(slot, result, first)
                    else:
                        others[number] = slot
                else:
                    text = f"result {number} of an If is of rank {{given}}, not of {{wanted}}"
                    self.check(text, *(tirx.const(r, "int64") for r in (rank, ranks[number])))
            self.region = outer
        if ranks.keys() > results.keys():
            raise NotStatic("branches of another rank than what reads them")
        self.arena += results.values()
        for number, slot in others.items():
            results[number] = self._either(condition, results[number], slot)
        condition.root.live[1] = max(condition.root.live[1], len(self.kernels) - 1)
        return tuple(results[number] for number in sorted(results))

    def _either(self, condition: Slot, yes: Slot, no: Slot) -> Slot:
        """A copy of what the one branch gives, or of what the other one does, of another size."""
        if yes.dtype != no.dtype or len(yes.shape) != len(no.shape):
            raise NotStatic("branches that give other types or ranks")
        pairs = zip(yes.shape, no.shape, strict=True)
        dims = (a if equal(a, b) else self.either(condition, a, b) for a, b in pairs)
        result = Slot(tuple(dims), yes.dtype)
        outer = self.region
        for taken, slot in ((True, yes), (False, no)):
            self.region = Branch(outer, condition, taken)
            self.copy(slot, result)
        self.region = outer
        self.arena.append(result)
        return result

    def either(self, _condition: Slot, _yes: Any, _no: Any) -> Any:
        """The dim that is the one where the condition holds, else the other.

        Raises:
            NotStatic: no dim is known only as the plan runs.
        """
        raise NotStatic("branches that give other sizes")

    def _write(self, slot: Slot, result: Slot, first: int) -> None:
        """Have ``result`` hold ``slot``, which kernels from ``first`` on may have written."""
        if self._is_free(slot, first):
            self._lie_in(result, slot.root)
        else:
            self.copy(slot, result)

    def _is_free(self, slot: Slot, first: int) -> bool:
        """Whether ``slot`` is a whole tensor, written by kernels from ``first`` on, for which any
        place does."""
        root = slot.root
        return not slot.shifts and root.live[0] >= first and root in self.arena

    def _lie_in(self, result: Slot, root: Slot) -> None:
        """Have ``root`` share the bytes of ``result``."""
        whole = result.root
        begin = root.live[0] if whole.live[0] < 0 else min(whole.live[0], root.live[0])
        whole.live[:] = begin, max(whole.live[1], root.live[1])
        root.base = result
        self.arena.remove(root)

    def copy(self, source: Slot, target: Slot, step: Any = 0) -> None:
        """Emit a copy of what ``source`` holds, ``step`` bytes further on with each trip."""
        now = len(self.kernels)
        steps = (0, step)
        self.kernels.append(Kernel(COPY, (source,), (target,), COPY, (), None, steps, self.region))
        source.root.live[1] = max(source.root.live[1], now)
        live = target.root.live
        live[:] = (now if live[0] < 0 else live[0]), max(live[1], now)

    def _loop(self, operands: Sequence[relax.Expr]) -> tuple[Slot, ...]:
        """The final state of a loop, and what its trips gave; ``operands`` are those of its driver
        in the VM."""
        first_body, body, count, going, state, _empty, constant, *_texts = operands
        symbol = self.value(body)
        if self.value(first_body) != symbol:
            raise NotStatic("a loop whose first trip is another")
        (trips,), (begun,) = self.flat(count), self.flat(going)
        old = [self._kept(slot) for slot in (begun, *self.flat(state))]
        func = self.module[symbol]
        stacks = len(func.ret_ty.fields) > len(old)
        # Here, because it may be read, which no trip can do for all.
        length = self.dim(tirx.max(self.number(count), _ZERO)) if stacks else 0
        first, outer, known = len(self.kernels), self.region, self.known
        # No kernel writes it: it is there before the first.
        self.arena.append(position := Slot((), "int64", live=[first - 1, first]))
        self.region, self.known = Trips(outer, trips, old[0], position), dict(known)
        own = 1 + len(old)
        for param, slot in zip(func.params[:own], [position, *old], strict=True):
            self._place(param, slot)
        for param, argument in zip(func.params[own:], _fields(constant), strict=True):
            self.give(param, argument)
        going_on, *results = self._tensors(self._within(symbol, func))
        if self._is_true(begun) and self._is_true(going_on):
            going_on = old[0]
        new, parts = [going_on, *results[: len(old) - 1]], results[len(old) - 1 :]
        if parts and not (self._is_true(begun) and going_on.root is old[0].root):
            raise NotStatic("a loop that stacks results, and computes whether it goes on")
        stacked = [self._stacked(part, length, first) for part in parts]
        self._carry(old, new, first)
        self.region, self.known = outer, known
        self._outlive(first, (trips, old[0]))
        return *old[1:], *stacked

    def _kept(self, source: Slot) -> Slot:
        """A copy of ``source``."""
        self.arena.append(slot := _like(source))
        self.copy(source, slot)
        return slot

    def _is_true(self, flag: Slot) -> bool:
        root = flag.root
        return root.kind == "weight" and bool(self.weights[root].all())

    def _stacked(self, part: Slot, length: Any, first: int) -> Slot:
        """Where what all trips give lies; each copies its ``part`` there."""
        self.arena.append(whole := Slot((length, *part.shape), part.dtype, live=[first, first]))
        step = prod(part.shape, start=np.dtype(part.dtype).itemsize)
        self.copy(part, whole, step)
        return whole

    def _carry(self, old: Sequence[Slot], new: Sequence[Slot], first: int) -> None:
        """Have the next trip read ``new`` where this one reads ``old``; kernels from ``first`` on
        are of the loop."""
        roots = {slot.root for slot in old}
        moved = []
        for slot, result in zip(old, new, strict=True):
            if not _alike(slot, result):
                raise NotStatic("a loop that changes the size of what it carries")
            if result.root is slot.root and result.shifts == slot.shifts == []:
                continue  # it stays as it is
            # Another trip's value, which is read before any is overwritten.
            moved.append((slot, self._kept(result) if result.root in roots else result))
        for slot, result in moved:
            unread = slot.root.live[1] < result.root.live[0]
            if unread and self._is_free(result, first):
                self._lie_in(slot, result.root)
            else:
                self.copy(result, slot)

    def _outlive(self, first: int, read: Sequence[Slot]) -> None:
        """What is there before a loop, whose kernels begin with ``first``, and is used in it lives
        to its end, and so does what is ``read`` before each trip."""
        last = max(first, len(self.kernels) - 1)
        for slot in read:
            slot.root.live[1] = max(slot.root.live[1], last)
        for slot in self.arena:
            if slot.live[0] < first <= slot.live[1]:
                slot.live[1] = max(slot.live[1], last)

    def number(self, tensor: relax.Expr) -> tirx.Expr:
        """The element of a tensor that has one, as a formula.

        Raises:
            NotStatic: it is computed as the plan runs.
        """
        (slot,) = self.flat(tensor)
        if slot.root.kind != "weight":
            raise NotStatic("as many values as are computed")
        return tirx.const(int(self.weights[slot.root].item()), "int64")

    def dim(self, formula: tirx.Expr) -> Any:
        """A dim of a tensor."""
        return int(ANALYZER.simplify(formula))


def _is_loop(value: relax.Expr) -> bool:
    if not isinstance(value, relax.Call) or value.op != _WITH_CONTEXT:
        return False
    driver = value.args[0]
    return isinstance(driver, relax.ExternFunc) and driver.global_symbol == _LOOP


def _fields(expr: relax.Expr) -> Sequence[relax.Expr]:
    if not isinstance(expr, relax.Tuple):
        raise NotStatic("a loop that is called with a computed tuple")
    return expr.fields


def _alike(a: Slot, b: Slot) -> bool:
    """Whether two tensors are of one shape and type."""
    same = len(a.shape) == len(b.shape) and a.dtype == b.dtype
    return same and all(map(equal, a.shape, b.shape))


def _like(slot: Slot) -> Slot:
    return Slot(slot.shape, slot.dtype)


def _ranks_read(body: relax.SeqExpr, choice: relax.Var) -> dict[int, int]:
    """Of which rank those results of an If are read whose rank its branches decide."""
    items: dict[relax.Var, int] = {}
    found = {}
    for block in body.blocks:
        for binding in block.bindings:
            value, ty = binding.value, binding.var.ty
            if isinstance(value, relax.TupleGetItem) and value.tuple_value.same_as(choice):
                items[binding.var] = value.index
            elif isinstance(binding, relax.MatchCast) and value in items and ty.ndim >= 0:
                found[items[value]] = ty.ndim
    return found
