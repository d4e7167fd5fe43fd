"""Tails of vectors as vectors with masks, where the CPU has them.

A vector behind the guard of a tensor's end becomes single lanes otherwise, in arrays that LLVM then
cannot keep in registers: the sums of a row would go through memory, also where there is no tail.

Before: ``for i in T.vectorized(16): if i0 + i < n: y[i0 + i] = x[i0 + i] * a[i]``
After:  ``if i0 < n:``
        ``  tvmx_masked_load_16x32(t, &x[i0], n - i0)``
        ``  for i in T.vectorized(16): r[i] = t[i] * a[i]``
        ``  tvmx_masked_store_16x32(&y[i0], r, n - i0)``

An array of the kernel's own that holds all lanes is stored whole, what it held where there is no
lane.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import tvm
import tvm_ffi
from tvm import DataType, IRModule, ir, sym, tirx
from tvm.ir import Call, StringImm, TensorLoad
from tvm.tirx.analysis import undefined_vars

from ..schedules.statements import map_children, reads_memory, substituted
from .llvm_functions import has_feature, with_functions

__all__ = ["MASKED", "define_masks", "mask_tails"]

#: Begins the names of the functions that load and store under a mask: (to, from, count of lanes).
MASKED = "tvmx_masked_"

# What every lane may compute on zeros: no division of integers, which ends the process.
_HARMLESS = (
    tirx.Add, tirx.Sub, tirx.Mul, tirx.Min, tirx.Max, tirx.Cast, tirx.Let, tirx.Not, tirx.And,
    tirx.Or, tirx.EQ, tirx.NE, tirx.LT, tirx.LE, tirx.GT, tirx.GE, tirx.Var, tirx.IntImm,
    tirx.FloatImm, tirx.LShift, tirx.RShift, tirx.BitwiseAnd, tirx.BitwiseOr, tirx.BitwiseXor,
    tirx.BitwiseNot,
)  # fmt: skip
_FUNCTIONS = frozenset({
    "prim.ceil", "tirx.fabs", "tirx.floor", "tirx.isnan", "tirx.nearbyint", "tirx.reinterpret",
    "tirx.round", "tirx.rsqrt", "tirx.sqrt", "tirx.trunc", "tirx.tvm_ext.kept",
    "tirx.tvm_ext.value",
})  # fmt: skip


@tvm.transform.module_pass(opt_level=0, name="MaskTails")
def mask_tails(module: IRModule, _context: object) -> IRModule:
    """The module pass, on flat buffers, before loops become vectors."""
    functions = {
        symbol: _Kernel(function, widths).masked() if (widths := _widths(function)) else function
        for symbol, function in module.functions_items()
    }
    return IRModule(functions, attrs=module.attrs)


def _widths(function: ir.BaseFunc) -> tuple[int, ...]:
    """Bits of the elements that the target of ``function`` loads under a mask."""
    target = function.attrs["target"] if isinstance(function, tirx.PrimFunc) else None
    if target is None or target.kind.name != "llvm":
        return ()
    if has_feature(target, "avx512bw") and has_feature(target, "avx512vl"):
        return (8, 16, 32, 64)
    return (32, 64) if has_feature(target, "avx2") else ()


@dataclass
class _Tail:
    """A vector behind a guard: one store, for as many lanes as ``count`` says."""

    loop: tirx.For
    store: tirx.BufferStore
    count: tirx.Expr

    @property
    def lane(self) -> tirx.Var:
        return self.loop.loop_var

    @property
    def lanes(self) -> int:
        return int(self.loop.extent)


@dataclass
class _Kernel:
    """A kernel, the bits of the elements that have masks, and the arrays that it allocates."""

    function: tirx.PrimFunc
    widths: tuple[int, ...]
    analyzer: sym.Analyzer = field(default_factory=sym.Analyzer)
    own: set[tirx.Var] = field(default_factory=set)

    @property
    def stores(self) -> str:
        """The kind of function that stores lanes."""
        return "store" if 8 in self.widths else "pieces"

    def masked(self) -> tirx.PrimFunc:
        def note(stmt: tirx.AllocBuffer) -> None:
            self.own.add(stmt.buffer)

        tvm_ffi.structural_walk(self.function.body, (tirx.AllocBuffer, note))
        return self.function.with_body(self._statement(self.function.body))

    def _statement(self, stmt: tirx.Stmt) -> tirx.Stmt:
        if isinstance(stmt, tirx.For):
            tail = _tail(stmt)
            if tail is not None:
                return self._with_mask(tail) or stmt
            self.analyzer.bind(stmt.loop_var, ir.Range.from_min_extent(stmt.min, stmt.extent))
        return map_children(stmt, self._statement)

    def _with_mask(self, tail: _Tail) -> tirx.Stmt | None:
        """``tail`` as vectors; None where a lane beyond its end may do harm."""
        loads = self._loads(tail)
        stored = tail.store.indices[0]
        if loads is None or not _moves_by(stored, tail.lane, 1):
            return None
        whole = self._holds_all(tail.store.buffer, stored, tail)
        if not whole and self._bits(tail.store.buffer) is None:
            return None
        if any(self._bits(load.source) is None for load in loads):
            return None
        arrays = [_array(load.source, tail.lanes, "t") for load in loads]
        value = _with_loads(tail.store.value, loads, arrays, tail.lane)
        made = [
            *map(tirx.AllocBuffer, arrays),
            *(self._call("load", *pair, tail) for pair in zip(arrays, loads, strict=True)),
            *(self._chosen(tail, value) if whole else self._stored(tail, value)),
        ]
        body = tirx.SeqStmt(made) if len(made) > 1 else made[0]
        return tirx.IfThenElse(tail.count > 0, body, None)

    def _chosen(self, tail: _Tail, value: ir.Expr) -> list[tirx.Stmt]:
        """All lanes stored, those beyond the end as they were."""
        buffer, place = tail.store.buffer, tail.store.indices
        inside = tail.lane < tail.count.astype(tail.lane.ty.dtype)
        chosen = tirx.Select(inside, value, tirx.BufferLoad(buffer, place))
        return [_vector(tail, tirx.BufferStore(buffer, chosen, place))]

    def _stored(self, tail: _Tail, value: ir.Expr) -> list[tirx.Stmt]:
        """The lanes before the end stored."""
        result = _array(tail.store.buffer, tail.lanes, "r")
        place = tirx.BufferLoad(tail.store.buffer, tail.store.indices)
        return [
            tirx.AllocBuffer(result),
            _vector(tail, tirx.BufferStore(result, value, [tail.lane])),
            self._call(self.stores, result, place, tail),
        ]

    def _loads(self, tail: _Tail) -> list[TensorLoad] | None:
        """Those that need a mask; None where the value cannot be computed beyond the end."""
        found: list[TensorLoad] = []
        fits = True

        def visit(value: ir.Expr, chosen: bool) -> None:
            """``chosen``: only where a condition holds."""
            nonlocal fits
            if isinstance(value, TensorLoad):
                fits = fits and self._note(value, chosen, tail, found)
            elif isinstance(value, tirx.Select):
                visit(value.condition, chosen)
                visit(value.true_value, True)
                visit(value.false_value, True)
            elif isinstance(value, Call):
                fits = fits and getattr(value.op, "name", "") in _FUNCTIONS
                for argument in value.args:
                    visit(argument, chosen)
            elif isinstance(value, _HARMLESS) or _is_quotient_of_floats(value):
                for part in ("a", "b", "value", "body"):
                    if isinstance(getattr(value, part, None), ir.Expr):
                        visit(getattr(value, part), chosen)
            else:
                fits = False

        visit(tail.store.value, False)
        return found if fits else None

    def _note(self, load: TensorLoad, chosen: bool, tail: _Tail, found: list[TensorLoad]) -> bool:
        """Whether ``load`` may be done for lanes beyond the end, ``found`` told if by a mask."""
        if len(load.indices) != 1 or reads_memory(load.indices[0]):
            return False
        (index,) = load.indices
        if self._holds_all(load.source, index, tail):
            return True
        if chosen or not _moves_by(index, tail.lane, 0, 1):
            return False
        if _moves_by(index, tail.lane, 1) and not any(
            tvm_ffi.structural_equal(load, other) for other in found
        ):
            found.append(load)
        return True

    def _holds_all(self, buffer: tirx.Var, index: tirx.Expr, tail: _Tail) -> bool:
        """Whether ``buffer`` is the kernel's own and has all lanes of ``index``."""
        size = buffer.ty.shape[0]
        if buffer not in self.own or not isinstance(size, tirx.IntImm):
            return False
        ends = [substituted(index, {tail.lane: tail.loop.min + k}) for k in (0, tail.lanes - 1)]
        return all(
            self.analyzer.can_prove(tirx.And(end >= 0, end < size.astype(end.ty.dtype)))
            for end in ends
        )

    def _bits(self, buffer: tirx.Var) -> int | None:
        """The bits of an element, where vectors of such have masks."""
        dtype = DataType(str(buffer.ty.dtype.dtype))
        bits = 8 * dtype.itemsize
        plain = dtype.lanes == 1 and dtype.bits in (1, bits)
        return bits if plain and bits in self.widths else None

    def _call(self, kind: str, array: tirx.Var, place: TensorLoad, tail: _Tail) -> tirx.Stmt:
        """A load from ``place`` to ``array`` under the mask, or a store to it."""
        first = substituted(place.indices[0], {tail.lane: tail.loop.min})
        memory = tirx.address_of(tirx.BufferLoad(place.source, [first]))
        own = tirx.address_of(tirx.BufferLoad(array, [tirx.const(0, first.ty)]))
        ends = (own, memory) if kind == "load" else (memory, own)
        name = f"{MASKED}{kind}_{tail.lanes}x{self._bits(array)}"
        count = tirx.min(tail.count, tirx.const(tail.lanes, tail.count.ty)).astype("int32")
        return tirx.Evaluate(tirx.call_extern("int32", name, *ends, count))


def _tail(loop: tirx.For) -> _Tail | None:
    """``loop`` as a vector behind the guard of an end; None where it is none."""
    if loop.kind != tirx.ForKind.VECTORIZED or not isinstance(loop.extent, tirx.IntImm):
        return None
    starts = isinstance(loop.min, tirx.IntImm) and int(loop.min) == 0
    if int(loop.extent).bit_count() != 1 or not starts:
        return None  # no vector of the CPU's
    guard = loop.body
    if not isinstance(guard, tirx.IfThenElse) or guard.else_case is not None:
        return None
    store, condition = guard.then_case, guard.condition
    if not isinstance(store, tirx.BufferStore) or len(store.indices) != 1:
        return None
    if not isinstance(condition, tirx.LT) or reads_memory(condition):
        return None
    rest = condition.b - condition.a
    if not _moves_by(rest, loop.loop_var, -1):
        return None
    count = _ANALYZER.simplify(substituted(rest, {loop.loop_var: loop.min}))
    if isinstance(count, tirx.IntImm):
        return None  # LLVM knows which lanes there are
    return _Tail(loop, store, count)


def _is_quotient_of_floats(value: ir.Expr) -> bool:
    return isinstance(value, tirx.Div) and "float" in str(value.ty.dtype)


def _moves_by(index: tirx.Expr, lane: tirx.Var, *steps: int) -> bool:
    """Whether ``index`` moves by one of ``steps`` from lane to lane."""
    if 0 in steps and not any(lane.same_as(used) for used in undefined_vars(index)):
        return True
    parts = sym.detect_linear_equation(index, [lane])
    return len(parts) > 0 and isinstance(parts[0], tirx.IntImm) and int(parts[0]) in steps


def _array(like: tirx.Var, lanes: int, name: str) -> tirx.Var:
    return tirx.decl_buffer([lanes], str(like.ty.dtype.dtype), name)


def _vector(tail: _Tail, body: tirx.Stmt) -> tirx.Stmt:
    """``body`` for all lanes."""
    return map_children(tail.loop, lambda _guard: body)


def _with_loads(value: ir.Expr, loads: list[TensorLoad], arrays: list[tirx.Var], lane: tirx.Var):
    """``value`` with what was loaded under the mask."""

    def load(node: TensorLoad) -> ir.Expr:
        for other, array in zip(loads, arrays, strict=True):
            if tvm_ffi.structural_equal(node, other):
                return tirx.BufferLoad(array, [lane])
        return node

    return tvm_ffi.structural_map(value, (TensorLoad, load))


@tvm.transform.module_pass(opt_level=0, name="DefineMasks")
def define_masks(module: IRModule, _context: object) -> IRModule:
    """Each kernel brings the functions that it calls, as LLVM's text."""
    for symbol, function in module.functions_items():
        if isinstance(function, tirx.PrimFunc):
            texts = map(_text, sorted(_called(function.body)))
            module.update_func(symbol, with_functions(function, texts))
    return module


def _called(body: tirx.Stmt) -> set[str]:
    names: set[str] = set()

    def visit(call: Call) -> None:
        first = call.args[0] if call.args else None
        if isinstance(first, StringImm) and first.value.startswith(MASKED):
            names.add(first.value)

    tvm_ffi.structural_walk(body, (Call, visit))
    return names


def _text(name: str) -> str:
    kind, shape = name.removeprefix(MASKED).split("_")
    lanes, bits = map(int, shape.split("x"))
    declared, body = _BODIES[kind](lanes, bits)
    return f"""
{declared}
define linkonce_odr hidden i32 @{name}(ptr %to, ptr %from, i32 %count) alwaysinline {{
{body}
  ret i32 0
}}
"""


def _load(lanes: int, bits: int) -> tuple[str, str]:
    """Zeros where there is no lane."""
    vector, align = f"<{lanes} x i{bits}>", f"align {bits // 8}"
    intrinsic = f"@llvm.masked.load.v{lanes}i{bits}.p0"
    made, mask = _mask(lanes)
    body = f"""{made}
  %x = call {vector} {intrinsic}(ptr {align} %from, {mask}, {vector} zeroinitializer)
  store {vector} %x, ptr %to, {align}"""
    return f"declare {vector} {intrinsic}(ptr, <{lanes} x i1>, {vector})", body


def _store(lanes: int, bits: int) -> tuple[str, str]:
    vector, align = f"<{lanes} x i{bits}>", f"align {bits // 8}"
    intrinsic = f"@llvm.masked.store.v{lanes}i{bits}.p0"
    made, mask = _mask(lanes)
    body = f"""{made}
  %x = load {vector}, ptr %from, {align}
  call void {intrinsic}({vector} %x, ptr {align} %to, {mask})"""
    return f"declare void {intrinsic}({vector}, ptr, <{lanes} x i1>)", body


def _mask(lanes: int) -> tuple[str, str]:
    vector, numbers = f"<{lanes} x i32>", ", ".join(f"i32 {k}" for k in range(lanes))
    made = f"""\
  %first = insertelement {vector} poison, i32 %count, i32 0
  %all = shufflevector {vector} %first, {vector} poison, {vector} zeroinitializer
  %mask = icmp slt {vector} <{numbers}>, %all"""
    return made, f"<{lanes} x i1> %mask"


def _pieces(lanes: int, bits: int) -> tuple[str, str]:
    """The whole vector, or a half, a quarter, ... of it: AVX2's stores under a mask are slow."""
    align = f"align {bits // 8}"
    body, size = f"  br label %ask{lanes}", lanes
    while size:
        after = f"ask{size // 2}" if size > 1 else "done"
        place = f"[ %at{2 * size}, %ask{2 * size} ], [ %end{2 * size}, %do{2 * size} ]"
        body += f"""
ask{size}:
  %at{size} = phi i32 {place if size < lanes else "[ 0, %0 ]"}
  %bit{size} = and i32 %count, {size}
  %has{size} = icmp ne i32 %bit{size}, 0
  br i1 %has{size}, label %do{size}, label %{after}
do{size}:
  %from{size} = getelementptr i{bits}, ptr %from, i32 %at{size}
  %to{size} = getelementptr i{bits}, ptr %to, i32 %at{size}
  %x{size} = load <{size} x i{bits}>, ptr %from{size}, {align}
  store <{size} x i{bits}> %x{size}, ptr %to{size}, {align}
  %end{size} = add i32 %at{size}, {size}
  br label %{after}"""
        size //= 2
    return "", body + "\ndone:"


_BODIES = {"load": _load, "store": _store, "pieces": _pieces}
_ANALYZER = sym.Analyzer()
