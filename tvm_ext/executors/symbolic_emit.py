"""The C functions that run a model of symbolic dims: sizes in, dims and addresses computed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import tvm
from tvm import tirx

from .emit import ENTRY, ENTRY_PARAMETERS, kernel_symbol
from .plan import Kernel, Slot
from .planning import NotStatic
from .symbolic import SIZES

__all__ = ["Check", "Entry", "c_text", "entry_source"]


@dataclass(frozen=True)
class Check:
    """Two formulas that must be equal, and what to say where they are not."""

    text: str
    given: tirx.Expr
    wanted: tirx.Expr


@dataclass(frozen=True)
class Entry:
    """What the functions do.

    Attributes:
        sizes: the variables that formulas are of.
        calls: each kernel, and the numbers that it takes behind its tensors.
        parts: of the arena, their bytes as a number times a formula.
        places: of each tensor in the arena its part, and its offset as a number times the same.
    """

    sizes: Sequence[tirx.Var]
    checks: Sequence[Check]
    calls: Sequence[tuple[Kernel, Sequence[tirx.Expr]]]
    outputs: Sequence[Slot]
    parts: Sequence[tuple[int, tirx.Expr]]
    places: Mapping[Slot, tuple[int, int]]


def entry_source(entry: Entry, tag: str) -> str:
    """C text of ``int tvmx_sizes(sizes, numbers)`` and of ``int tvmx_execute(weights, arena,
    inputs, outputs, observe, sizes)``.

    The first returns 0, and ``numbers`` are the bytes of the arena, and the dims of all results; or
    the number of the check that fails, from 1, and they are the two that differ. The
    second is as :func:`.emit.entry_source` says.
    """
    return "\n".join([*_head(entry, tag), *_sizes(entry), *_execute(entry, tag), ""])


def _head(entry: Entry, tag: str) -> Iterator[str]:
    yield '#include "tvmx.h"'
    yield "#include <string.h>\n"
    yield _HELPERS
    kernels = {kernel.symbol: (kernel, numbers) for kernel, numbers in entry.calls}
    for symbol, (kernel, numbers) in kernels.items():
        types = ["void *"] * (len(kernel.reads) + len(kernel.writes))
        types += [f"{number.ty.dtype}_t" for number in numbers]
        types += ["void *"] * len(kernel.scratch)
        yield f"int32_t {kernel_symbol(symbol, tag)}({', '.join(types) or 'void'});"


_HELPERS = """\
static inline int64_t lower(int64_t a, int64_t b) { return a < b ? a : b; }
static inline int64_t upper(int64_t a, int64_t b) { return a > b ? a : b; }
/* Sizes follow from what a model is given: none may overflow to a small one or stop a process. */
static inline int64_t plus(int64_t a, int64_t b) {
  int64_t sum;
  return __builtin_add_overflow(a, b, &sum) ? (a < 0 ? INT64_MIN : INT64_MAX) : sum;
}
static inline int64_t minus(int64_t a, int64_t b) {
  int64_t rest;
  return __builtin_sub_overflow(a, b, &rest) ? (a < 0 ? INT64_MIN : INT64_MAX) : rest;
}
static inline int64_t times(int64_t a, int64_t b) {
  int64_t product;
  return __builtin_mul_overflow(a, b, &product) ? ((a < 0) != (b < 0) ? INT64_MIN : INT64_MAX)
                                                : product;
}
static inline int64_t quotient(int64_t a, int64_t b) {
  return b == 0 ? 0 : b == -1 ? minus(0, a) : a / b;
}
static inline int64_t remainder_of(int64_t a, int64_t b) { return b == 0 || b == -1 ? 0 : a % b; }
static inline int64_t floor_div(int64_t a, int64_t b) {
  return quotient(a, b) - (remainder_of(a, b) && (a < 0) != (b < 0));
}
static inline int64_t floor_mod(int64_t a, int64_t b) {
  int64_t rest = remainder_of(a, b);
  return rest && (rest < 0) != (b < 0) ? rest + b : rest;
}
"""


def _named(entry: Entry) -> Iterator[str]:
    for number, size in enumerate(entry.sizes):
        yield f"  const int64_t {size.name} = sizes[{number}];"
    yield from (f"  (void){size.name};" for size in entry.sizes)


def _sizes(entry: Entry) -> Iterator[str]:
    yield f"\nint {SIZES}(const int64_t *sizes, int64_t *numbers) {{"
    yield from _named(entry)
    for number, check in enumerate(entry.checks, 1):
        yield f"  numbers[0] = {c_text(check.given)}, numbers[1] = {c_text(check.wanted)};"
        yield f"  if (numbers[0] != numbers[1]) return {number};"
    yield "  int64_t bytes = 0;"
    for total, unit in entry.parts:
        yield f"  bytes = plus(bytes, times({total}, {c_text(unit)}));"
    yield "  *numbers++ = bytes;"
    for slot in entry.outputs:
        yield from (f"  *numbers++ = {c_text(dim)};" for dim in slot.shape)
    yield "  (void)numbers;"
    yield "  return 0;"
    yield "}"


def _execute(entry: Entry, tag: str) -> Iterator[str]:
    yield f"\nint {ENTRY}({ENTRY_PARAMETERS}, const int64_t *sizes) {{"
    yield from _named(entry)
    yield "  int code;"
    yield "  double start = observe ? tvmx_seconds() : 0;"
    yield "  (void)weights, (void)arena, (void)inputs, (void)outputs, (void)code, (void)start;"
    for number, (total, unit) in enumerate(entry.parts):
        yield f"  const int64_t unit{number} = {c_text(unit)};"
        yield f"  unsigned char *const part{number} = arena;"
        yield f"  arena += {total} * unit{number};"
    for number, (kernel, numbers) in enumerate(entry.calls):
        tensors = [*kernel.reads, *kernel.writes]
        where = [_address(entry, slot) for slot in tensors] + [c_text(n) for n in numbers]
        where += [_address(entry, slot) for slot in kernel.scratch]
        call = f"{kernel_symbol(kernel.symbol, tag)}({', '.join(where)})"
        yield f"  if ((code = {call})) return code;"
        yield f"  if (observe) observe({number}, tvmx_seconds() - start), start = tvmx_seconds();"
    for number, slot in enumerate(entry.outputs):
        if (slot.root.kind, slot.root.index) != ("output", number):
            size = prod(map(tirx.convert, slot.shape), start=_item_size(slot))
            yield f"  memcpy(outputs[{number}], {_address(entry, slot)}, {c_text(size)});"
    yield "  return 0;"
    yield "}"


def _item_size(slot: Slot) -> tirx.Expr:
    return tirx.const(np.dtype(slot.dtype).itemsize, "int64")


def _address(entry: Entry, slot: Slot) -> str:
    root = slot.root
    start = "".join(f" + {c_text(shift)}" for shift in slot.shifts)
    if root.kind == "arena":
        part, offset = entry.places[root]
        return f"part{part} + {offset} * unit{part}{start}"
    if root.kind == "weight":
        return f"(void *)(weights + {root.offset})"
    base = f"{root.kind}s[{root.index}]"
    return f"(unsigned char *){base}{start}" if start else base


_OPERATORS: dict[type, str] = {
    tirx.Add: "plus({}, {})",
    tirx.Sub: "minus({}, {})",
    tirx.Mul: "times({}, {})",
    tirx.Div: "quotient({}, {})",
    tirx.Mod: "remainder_of({}, {})",
    tirx.FloorDiv: "floor_div({}, {})",
    tirx.FloorMod: "floor_mod({}, {})",
    tirx.Min: "lower({}, {})",
    tirx.Max: "upper({}, {})",
    tirx.EQ: "({} == {})",
    tirx.NE: "({} != {})",
    tirx.LT: "({} < {})",
    tirx.LE: "({} <= {})",
    tirx.GT: "({} > {})",
    tirx.GE: "({} >= {})",
    tirx.And: "({} && {})",
    tirx.Or: "({} || {})",
}


def c_text(formula: Any) -> str:
    """A formula of sizes in C.

    Raises:
        NotStatic: it is none of integers.
    """
    if isinstance(formula, int | tirx.IntImm):
        return f"INT64_C({int(formula)})"
    if isinstance(formula, tirx.Var):
        return formula.name
    pattern = _OPERATORS.get(type(formula))
    if pattern is not None:
        return pattern.format(c_text(formula.a), c_text(formula.b))
    if isinstance(formula, tirx.Not):
        return f"(!{c_text(formula.a)})"
    if isinstance(formula, tirx.Cast) and tvm.DataType(str(formula.ty.dtype)).type_code < 2:
        return f"({formula.ty.dtype}_t)({c_text(formula.value)})"
    if not isinstance(formula, tirx.Select):
        raise NotStatic(f"the formula {formula}")
    parts = formula.condition, formula.true_value, formula.false_value
    return "({} ? {} : {})".format(*map(c_text, parts))
