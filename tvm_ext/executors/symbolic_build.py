"""Compiles a scheduled module of symbolic dims: where its tensors lie is known as formulas.

What the Relax VM does between kernels, match shapes, allocate and free, takes longer than the
kernels of a small model; here that is a few additions per call. Sizes that kernels compute, as many
as there are results of NonZero, cut a run into stages: what is read behind one is a size of the
next. The VM stays for sizes that are computed in loops.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from tvm import IRModule, relax, tirx
from tvm.ir import GlobalVar, PrimType
from tvm.target import Target

from ..errors import BuildError
from .c_code import is_c_code
from .control_flow import ControlFlow
from .cpu import CpuNeeds
from .cpu_features import needs_of
from .formulas import NotStatic, c_text
from .parts import write_objects
from .plan import ALIGNMENT, Slot, Trips, around
from .planning import adjacent, alive_during, peak, place
from .repeated import repeated
from .static_build import Compiled, compile_kernels, texts
from .storages import size_of
from .symbolic import SymbolicExecutor, SymbolicPlan
from .symbolic_elements import Elements
from .symbolic_emit import Entry, Read, Stage, entry_source, stage_of
from .toolchain import compiler, link_shared
from .views import rewrite_views
from .walk import arguments, equal
from .work_folder import work_folder

__all__ = ["build_symbolic", "walk_symbolic"]


@dataclass(frozen=True, eq=False)
class _Program:
    """Compiled kernels, and the C text of what calls them."""

    compiled: Compiled
    entry: str
    needs: CpuNeeds
    _compiler: threading.Lock = field(default_factory=threading.Lock)  # LLVM: one thread at a time

    def linked(self) -> np.ndarray:
        """The bytes of the shared library.

        Raises:
            BuildError: there is no C compiler for this target, or it fails.
        """
        with self._compiler:
            return self._linked

    @cached_property
    def _linked(self) -> np.ndarray:
        with work_folder() as folder:
            sources: list[Path] = []
            objects = write_objects(folder, self.compiled.kernels.objects)
            for number, text in enumerate([self.entry, *self.compiled.code]):
                sources.append(folder / f"source{number}.c")
                sources[-1].write_text(text)
            triple = self.needs.triple if self.needs.foreign else None
            link_shared(folder / "library.so", objects, sources, triple)
            return np.frombuffer((folder / "library.so").read_bytes(), np.uint8)

    def sources(self) -> dict[str, str]:
        """The C functions that call the kernels, and those in C; the others as LLVM IR and as
        assembly."""
        with self._compiler:
            return texts([self.entry, *self.compiled.code], self.compiled.kernels)


def walk_symbolic(module: IRModule, target: Target) -> tuple[_Walk, tuple[Slot, ...]]:
    """The kernels that ``main`` of ``module`` runs, and its outputs.

    Raises:
        NotStatic: the module needs the VM, or there is no C compiler, which that can do without.
    """
    needs = needs_of(target, module)
    try:
        compiler(needs.triple if needs.foreign else None)
    except BuildError as error:
        raise NotStatic(str(error)) from error
    walk = _Walk(rewrite_views(module))
    _, outputs = walk.run(walk.module["main"])
    return walk, outputs


def build_symbolic(module: IRModule, target: Target) -> SymbolicExecutor:
    """Plan and compile ``module`` (kernels already scheduled).

    Raises:
        NotStatic: the module needs the VM, or there is no C compiler, which that can do without.
        BuildError: the compiler fails.
    """
    needs = needs_of(target, module)
    walk, outputs = walk_symbolic(module, target)
    used = {
        kernel.symbol: walk.numbered(walk.module.get_global_var(kernel.symbol))[0]
        for kernel in walk.kernels
        if kernel.is_call
    }
    weights = adjacent(walk.weights)
    compiled = compile_kernels(used, target)
    entry = walk.entry(outputs, compiled.arrays)
    plan = SymbolicPlan(
        sizes=tuple(walk.sizes),
        held=walk.held,
        read=tuple(len(stage.reads) for stage in entry.stages[1:]),
        outputs=tuple((s.dtype, len(s.shape), stage_of(walk.stages, *s.shape)) for s in outputs),
        checks=tuple(check.text for check in entry.checks),
        kernels=tuple((kernel.symbol, kernel.variable) for kernel in walk.kernels),
        weight_bytes=weights.size,
        scratch_bytes=compiled.thread_bytes,
    )
    program = _Program(compiled, entry_source(entry, compiled.tag), needs)
    if not program.needs.foreign:
        program.linked()
    return SymbolicExecutor(plan, program.needs, weights, program)


class _Walk(ControlFlow):
    """Turns bindings into kernels and slots, whose dims are numbers or formulas of the sizes of
    the inputs, and of integers that are read where a stage begins."""

    def __init__(self, module: IRModule):
        super().__init__(module)
        self.stages = [Stage(0, ())]
        self.sizes: list[tuple[int, int]] = []
        self.names: list[tirx.Var] = []  # of the sizes
        self.numbers: dict[int, tuple[tirx.Expr, ...]] = {}  # what each kernel takes, if any
        self._asserted: list[tuple[str, tirx.Expr, tirx.Expr]] = []
        self._elements = Elements(module, self._resolved)
        self._numbered: dict[GlobalVar, tuple[tirx.PrimFunc, list[tirx.Var]]] = {}

    def run(self, main: relax.Function) -> tuple[tuple[Slot, ...], tuple[Slot, ...]]:
        for index, param in enumerate(main.params):
            self._learn(index, param)
            self._elements.inputs[param] = index
        return super().run(main)

    def _learn(self, index: int, param: relax.Var) -> None:
        """Note what the dims of an input are called."""
        if not isinstance(param.ty, relax.TensorType) or param.ty.shape is None:
            raise NotStatic(f"an input of type {param.ty}")
        for axis, dim in enumerate(param.ty.shape.values):
            if isinstance(dim, tirx.IntImm):
                continue
            size = tirx.Var(f"s{len(self.sizes)}", "int64")
            self.sizes.append((index, axis))
            self.names.append(size)
            if isinstance(dim, tirx.Var) and dim not in self.known:
                self.known[dim] = size
            else:
                what = f"axis {axis} of input {index} is {{given}}, not {{wanted}}"
                self._asserted.append((what, size, dim))

    def tensor(self, ty: relax.Type) -> tuple[tuple[Any, ...], str]:
        if not isinstance(ty, relax.TensorType) or ty.shape is None:
            raise NotStatic(f"a value of type {ty}")
        return self._dims(ty.shape.values), str(ty.dtype.dtype)

    def _dims(self, values: Sequence[tirx.Expr] | None) -> tuple[Any, ...]:
        if values is None:
            raise NotStatic("a computed shape")
        return tuple(map(self._resolved, values))

    def _resolved(self, dim: tirx.Expr) -> Any:
        """A dim as a number, or as a formula of the sizes."""
        formula = self.formula(dim)
        if isinstance(formula, tirx.IntImm):
            return int(formula)
        used = tirx.analysis.undefined_vars(formula, [])
        known = {read.var for stage in self.stages for read in stage.reads}
        for var in used:
            if var in self.read and var not in known:
                self._read_now(Read(var, *self.read[var]))
        return formula

    def _read_now(self, read: Read) -> None:
        """Have the stage of the next kernel begin with reading this.

        Raises:
            NotStatic: a loop computes it, or it is a size within one: no trip is cut into stages.
        """
        if any(
            isinstance(region, Trips) for region in (*around(read.region), *around(self.region))
        ):
            raise NotStatic("a dim that a loop computes")
        now = len(self.kernels)
        if self.stages[-1].start < now or len(self.stages) == 1:
            self.stages.append(Stage(now, ()))
        last = self.stages[-1]
        self.stages[-1] = replace(last, reads=(*last.reads, read))
        live = read.slot.root.live
        live[1] = max(live[1], now - 1)

    @property
    def start(self) -> int:
        return self.stages[-1].start

    def is_known(self, slot: Slot, root: Slot) -> bool:
        return self.stages[stage_of(self.stages, *slot.shape)].start <= max(root.live[0], 0)

    def formula(self, dim: tirx.Expr) -> tirx.Expr:
        formula = super().formula(dim)
        known = {*self.names, *self._elements.held.values(), *self.read}
        if not known.issuperset(tirx.analysis.undefined_vars(formula, [])):
            raise NotStatic(f"the dim {dim}")
        c_text(formula)
        return formula

    def bind(self, binding: relax.Binding) -> None:
        super().bind(binding)
        if not isinstance(binding, relax.MatchCast):
            self._elements.values[binding.var] = binding.value

    def elements(self, tensor: relax.Expr) -> Sequence[tirx.Expr]:
        """As formulas where they are such; else read, for checks alone."""
        held = dict(self._elements.held)
        try:
            return self._elements.vector(tensor)
        except NotStatic:
            self._elements.held = held
            return super().elements(tensor)

    def either(self, condition: Slot, yes: Any, no: Any) -> Any:
        zero, flag = tirx.const(0, "int64"), self.to_read(condition)
        return self._resolved(tirx.Select(flag != zero, zero + yes, zero + no))

    def match(self, binding: relax.MatchCast) -> None:
        given, wanted = binding.value, binding.ty
        if isinstance(wanted, relax.ShapeType) and (given in self.shapes or given in self.measured):
            super().match(binding)
            return
        self.values[binding.var] = value = self.value(given)
        self._elements.values[binding.var] = given
        if getattr(wanted, "shape", None) is not None:  # else it forgets its dims
            self.name_dims(binding.var.name, value, wanted.shape.values)

    def check(self, text: str, given: tirx.Expr, wanted: tirx.Expr) -> None:
        if self.prefix:  # dims of a function
            given, wanted = self.formula(given), self.formula(wanted)
        used = {v for side in (given, wanted) for v in tirx.analysis.undefined_vars(side, [])}
        if self.region is None and not used & self.read.keys():
            self._asserted.append((text, given, wanted))
        else:
            super().check(text, given, wanted)

    def give(self, param: relax.Var, argument: relax.Expr) -> None:
        super().give(param, argument)
        self._elements.values[param] = argument

    def number(self, tensor: relax.Expr) -> tirx.Expr:
        held = dict(self._elements.held)
        try:
            return self._elements.scalar(tensor)
        except NotStatic:
            self._elements.held = held
            (slot,) = self.flat(tensor)
            return self.to_read(slot)

    def dim(self, formula: tirx.Expr) -> Any:
        return self._resolved(formula)

    def kernel(self, call: relax.Call, variable: str) -> Slot | tuple[Slot, ...]:
        """As ever; but tensors that are only joined are computed in their places in the result."""
        symbol = call.args[0]
        if isinstance(symbol, GlobalVar) and _JOINED in (self.module[symbol].attrs or {}):
            slots = [slot for field in arguments(call)[0] for slot in self.flat(field)]
            whole = Slot(*self.tensor(call.ty_args[0]))
            if self._are_free(slots) and all(self.is_known(whole, slot.root) for slot in slots):
                return self._joined(slots, whole)
        return super().kernel(call, variable)

    def _are_free(self, slots: Sequence[Slot]) -> bool:
        """Whether each of ``slots`` is a whole tensor in the arena, for which any place does."""
        roots = {slot.root for slot in slots}
        free = all(not slot.shifts and slot.root in self.arena for slot in slots)
        return free and len(roots) == len(slots)

    def _joined(self, slots: Sequence[Slot], whole: Slot) -> Slot:
        """``whole``, of which ``slots`` are the parts."""
        shift, lives = tirx.const(0, "int64"), []
        for slot in slots:
            root = slot.root
            lives.append(root.live)
            number, unit = size_of(slot.shape, slot.dtype)
            root.base, root.shift = whole, shift
            shift = shift + unit * number
            self.arena.remove(root)
        whole.live[:] = min(first for first, _ in lives), max(last for _, last in lives)
        self.arena.append(whole)
        return whole

    def called(
        self, symbol: GlobalVar, operands: Sequence[Slot], numbers: Sequence[relax.Expr]
    ) -> None:
        func, wanted = self.numbered(symbol)
        values: dict[tirx.Var, Any] = {}
        given = [value for number in numbers for value in _values(number)]
        buffers = [param for param in func.params if tirx.is_buffer_var(param)]
        scalars = func.params[len(buffers) : len(buffers) + len(given)]
        values |= zip(scalars, map(self._resolved, given), strict=True)
        for buffer, operand in zip(buffers, operands, strict=True):
            for dim, value in zip(buffer.ty.shape, operand.shape, strict=True):
                if isinstance(dim, tirx.Var):
                    values.setdefault(dim, value)
        if not all(var in values for var in wanted):
            raise NotStatic(f"what {symbol.name_hint} is called with")
        numbered = tuple(tirx.convert(values[var]) for var in wanted)
        self.numbers[len(self.kernels)] = numbered

    def numbered(self, symbol: GlobalVar) -> tuple[tirx.PrimFunc, list[tirx.Var]]:
        """A kernel that takes every number it uses as a parameter, and those parameters."""
        if symbol not in self._numbered:
            self._numbered[symbol] = _with_numbers(self.module[symbol])
        return self._numbered[symbol]

    def entry(self, outputs: Sequence[Slot], arrays: Mapping[str, Sequence[int]]) -> Entry:
        """What the C functions do, where kernels have ``arrays`` of their own."""
        for row in self._to_check():
            super().check(*row)
        kernels = tuple(
            replace(kernel, scratch=alive_during(number, arrays.get(kernel.symbol, ())))
            for number, kernel in enumerate(repeated(self.kernels, outputs, self.parts))
        )
        tensors = [slot for slot in self.arena if slot.kind == "arena"]
        tensors += [slot for kernel in kernels for slot in kernel.scratch]
        parts, places = _placed(tensors, len(kernels))
        if len(self.stages) > 1 or any(kernel.region is not None for kernel in kernels):
            # Where a branch is not taken, its sizes may be negative, as those that are computed.
            parts = [(number, tirx.max(unit, tirx.const(0, "int64"))) for number, unit in parts]
        calls = [(kernel, self.numbers.get(at, ())) for at, kernel in enumerate(kernels)]
        sizes = [*self.names, *self._elements.held.values()]
        return Entry(sizes, self.checks, calls, outputs, parts, places, self.stages)

    @property
    def held(self) -> tuple[tuple[int, int], ...]:
        """The elements of inputs that sizes follow from: the input, and the place in it."""
        return tuple(self._elements.held)

    def _to_check(self) -> Iterator[tuple[str, Any, Any]]:
        known = set()
        for text, given, wanted in self._asserted:
            a, b = map(self.formula, (given, wanted))
            if (str(a), str(b)) not in known:
                known.add((str(a), str(b)))
                yield text, a, b


def _values(number: relax.Expr) -> Sequence[tirx.Expr]:
    """A number beside tensors, or those of a shape."""
    if isinstance(number, relax.ShapeExpr):
        return number.values
    if isinstance(number.ty, PrimType):
        return [number]
    raise NotStatic("a kernel with computed arguments")


def _with_numbers(func: tirx.PrimFunc) -> tuple[tirx.PrimFunc, list[tirx.Var]]:
    buffers = [param for param in func.params if tirx.is_buffer_var(param)]
    numbers = [param for param in func.params if not tirx.is_buffer_var(param)]
    for buffer in buffers:
        for dim in buffer.ty.shape:
            for var in tirx.analysis.undefined_vars(dim, []):
                if not any(var.same_as(other) for other in numbers):
                    numbers.append(var)
    if is_c_code(func) and numbers:
        raise NotStatic("C code of symbolic dims")
    params = [*buffers, *numbers]
    return tirx.PrimFunc(params, func.body, func.ret_type, func.attrs), numbers


def _placed(
    tensors: Sequence[Slot], end: int
) -> tuple[list[tuple[int, tirx.Expr]], dict[Slot, tuple[int, int]]]:
    """Parts of the arena for tensors whose sizes are proportional: their bytes as a number times a
    formula; of each tensor its part, and its offset as a number times the same.

    What the numbers lack in powers of two the formula is rounded up to, so that each is aligned.
    """
    groups: list[tuple[int, tirx.Expr, dict[Slot, Slot]]] = []
    for slot in tensors:
        number, unit = size_of(slot.shape, slot.dtype)
        power = min(number & -number, ALIGNMENT) or ALIGNMENT
        group = next((g for p, u, g in groups if p == power and equal(u, unit)), None)
        if group is None:
            groups.append((power, unit, group := {}))
        group[slot] = Slot((number // power * ALIGNMENT,), "uint8", live=slot.live)
    units, places = [], {}
    for part, (power, unit, group) in enumerate(groups):
        lines = list(group.values())
        whole = place(lines, peak(lines, end)) // ALIGNMENT * power
        units.append((whole, _rounded(unit, ALIGNMENT // power)))
        for slot, stands in group.items():
            places[slot] = part, stands.offset // ALIGNMENT * power
    return units, places


def _rounded(unit: tirx.Expr, multiple: int) -> tirx.Expr:
    return unit if multiple == 1 else tirx.floordiv(unit + (multiple - 1), multiple) * multiple


# What passes note of a kernel that only puts its operands one after the other in memory.
_JOINED = "joined"
