"""The C function that runs a memory plan: one call after the other, no interpreter."""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby
from typing import Any

from .plan import Check, Kernel, Plan, Slot, Strips

__all__ = [
    "ENTRY", "ENTRY_PARAMETERS", "UNUSED", "checks_after", "entry_source", "in_loops",
    "kernel_symbol", "moved", "observed", "reads", "with_functions",
]  # fmt: skip

ENTRY = "tvmx_execute"

ENTRY_PARAMETERS = (
    "const unsigned char *weights, unsigned char *arena, "
    "void *const *inputs, void *const *outputs, void (*observe)(int, double), int64_t *failed"
)

UNUSED = ", ".join(
    f"(void){name}" for name in ("weights", "arena", "inputs", "outputs", "failed", "code", "start")
)

# Functions of formulas: these follow from what a model is given, and none may overflow to a small
# number or stop a process.
_FUNCTIONS = {
    "lower": """\
static inline int64_t lower(int64_t a, int64_t b) { return a < b ? a : b; }""",
    "upper": """\
static inline int64_t upper(int64_t a, int64_t b) { return a > b ? a : b; }""",
    "plus": """\
static inline int64_t plus(int64_t a, int64_t b) {
  int64_t sum;
  return __builtin_add_overflow(a, b, &sum) ? (a < 0 ? INT64_MIN : INT64_MAX) : sum;
}""",
    "minus": """\
static inline int64_t minus(int64_t a, int64_t b) {
  int64_t rest;
  return __builtin_sub_overflow(a, b, &rest) ? (a < 0 ? INT64_MIN : INT64_MAX) : rest;
}""",
    "times": """\
static inline int64_t times(int64_t a, int64_t b) {
  int64_t product;
  return __builtin_mul_overflow(a, b, &product) ? ((a < 0) != (b < 0) ? INT64_MIN : INT64_MAX)
                                                : product;
}""",
    "quotient": """\
static inline int64_t quotient(int64_t a, int64_t b) {
  return b == 0 ? 0 : b == -1 ? minus(0, a) : a / b;
}""",
    "remainder_of": """\
static inline int64_t remainder_of(int64_t a, int64_t b) {
  return b == 0 || b == -1 ? 0 : a % b;
}""",
    "floor_div": """\
static inline int64_t floor_div(int64_t a, int64_t b) {
  return quotient(a, b) - (remainder_of(a, b) && (a < 0) != (b < 0));
}""",
    "floor_mod": """\
static inline int64_t floor_mod(int64_t a, int64_t b) {
  int64_t rest = remainder_of(a, b);
  return rest && (rest < 0) != (b < 0) ? rest + b : rest;
}""",
    "differ": """\
/* Notes the check that fails, counted from 1, and the two numbers that differ. */
static inline int differ(int64_t *failed, int64_t check, int64_t given, int64_t wanted) {
  if (given == wanted) return 0;
  failed[0] = check, failed[1] = given, failed[2] = wanted;
  return 1;
}""",
}


def with_functions(lines: Iterable[str]) -> list[str]:
    """``lines`` of C behind the functions of formulas that they call."""
    body = list(lines)
    missing = body
    found: set[str] = set()
    while missing:
        called = set(re.findall(r"\b(\w+)\(", "\n".join(missing))) & _FUNCTIONS.keys() - found
        found |= called
        missing = [_FUNCTIONS[name] for name in called]
    return [*(text for name, text in _FUNCTIONS.items() if name in found), *body]


def kernel_symbol(name: str, tag: str) -> str:
    """The C name of a kernel: its own could be one of libc's, or of another program's, which the
    ``tag`` keeps apart."""
    return f"tvmx_kernel_{tag}_{name}"


def entry_source(plan: Plan, tag: str, entry: str = ENTRY) -> str:
    """C text of ``int tvmx_execute(weights, arena, inputs, outputs, observe, failed)``, or of that
    name.

    It returns 0 or the code of the kernel that failed. ``observe`` is NULL, or called after each
    kernel with its number and its seconds. Where a check fails, it returns another code than 0, and
    ``failed`` gets the number of the check, from 1, and the two that differ.
    """
    return "\n".join([*_head(plan, tag), *with_functions(_body(plan, tag, entry)), ""])


def _head(plan: Plan, tag: str) -> Iterator[str]:
    yield '#include "tvmx.h"'
    yield "#include <string.h>\n"
    for kernel in dict.fromkeys((k.symbol, len(k.operands)) for k in plan.kernels):
        symbol, count = kernel
        yield f"int32_t {kernel_symbol(symbol, tag)}({', '.join(['void *'] * count) or 'void'});"


def _body(plan: Plan, tag: str, entry: str) -> Iterator[str]:
    yield f"\nint {entry}({ENTRY_PARAMETERS}) {{"
    yield "  int code;"
    yield "  double start = observe ? tvmx_seconds() : 0;"
    yield f"  {UNUSED};"
    yield from checks_after(-1, plan.checks, _address)
    calls = ((k.strips, _call(number, k, plan, tag)) for number, k in enumerate(plan.kernels))
    yield from in_loops(calls, str)
    for number, slot in enumerate(plan.outputs):
        if (slot.root.kind, slot.root.index) != ("output", number):
            yield f"  memcpy(outputs[{number}], {_address(slot)}, {slot.nbytes});"
    yield "  return 0;"
    yield "}"


def _call(number: int, kernel: Kernel, plan: Plan, tag: str) -> Iterator[str]:
    places = zip(kernel.operands, kernel.moves, strict=True)
    where = [moved(_address(slot), step, str) for slot, step in places]
    yield from observed(number, kernel_symbol(kernel.symbol, tag), where)
    yield from checks_after(number, plan.checks, _address)


def observed(number: int, symbol: str, arguments: Iterable[str]) -> Iterator[str]:
    """C text of the call of a kernel, which may fail, and of what observes it."""
    yield f"  if ((code = {symbol}({', '.join(arguments)}))) return code;"
    yield f"  if (observe) observe({number}, tvmx_seconds() - start), start = tvmx_seconds();"


def moved(address: str, step: Any, text: Callable[[Any], str]) -> str:
    """C text of the place of a strip, ``step`` bytes behind that of the one before."""
    if isinstance(step, int) and step == 0:
        return address
    return f"(unsigned char *)({address}) + strip * {text(step)}"


def in_loops(
    calls: Iterable[tuple[Strips | None, Iterable[str]]], text: Callable[[Any], str]
) -> Iterator[str]:
    """C text of calls, each with the loop over strips that it is in; ``text`` makes that of a
    number or a formula."""
    for strips, run in groupby(calls, lambda call: call[0]):
        lines = (line for _, of_call in run for line in of_call)
        if strips is None:
            yield from lines
        else:
            yield f"  for (int64_t strip = 0; strip < {text(strips.count)}; ++strip) {{"
            yield from (f"  {line}" for line in lines)
            yield "  }"


def checks_after(
    kernel: int, checks: Sequence[Check], address: Callable[[Slot], str]
) -> Iterator[str]:
    """C text of those that come behind a kernel, in the body of the function."""
    mine = [(number, check) for number, check in enumerate(checks, 1) if check.after == kernel]
    yield from reads([check for _, check in mine], address)
    for number, check in mine:
        yield f"  if (differ(failed, {number}, {check.given}, {check.wanted})) return 1;"


def reads(checks: Sequence[Check], address: Callable[[Slot], str]) -> Iterator[str]:
    """C text of the integers that the formulas of checks are of."""
    for name, slot, place in dict.fromkeys(read for check in checks for read in check.reads):
        yield f"  const int64_t {name} = ((const int64_t *)({address(slot)}))[{place}];"


def _address(slot: Slot) -> str:
    root = slot.root
    if root.kind == "arena":
        return f"arena + {root.offset}"
    if root.kind == "weight":
        return f"(void *)(weights + {root.offset})"
    return f"{root.kind}s[{root.index}]"
