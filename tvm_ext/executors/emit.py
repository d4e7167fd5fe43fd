"""The C function that runs a memory plan: one call after the other, no interpreter."""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby
from typing import Any

from .plan import CHECK, COPY, Branch, Check, Kernel, Plan, Region, Slot, Strips, Trips

__all__ = [
    "ENTRY", "UNUSED", "checks_after", "element", "entry_parameters", "entry_source",
    "in_regions", "is_run", "kernel_symbol", "moved", "observed", "reads", "with_functions",
]  # fmt: skip

ENTRY = "tvmx_execute"


def entry_parameters(arena: str = "unsigned char *arena") -> str:
    """The parameters of the entry function, the second one as given."""
    return (
        f"const unsigned char *weights, {arena}, void *const *inputs, void *const *outputs, "
        "void (*observe)(int, double), int64_t *failed"
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
    called = (kernel for kernel in plan.kernels if kernel.is_call)
    for symbol, count in dict.fromkeys((k.symbol, len(k.operands)) for k in called):
        yield f"int32_t {kernel_symbol(symbol, tag)}({', '.join(['void *'] * count) or 'void'});"


def _body(plan: Plan, tag: str, entry: str) -> Iterator[str]:
    yield f"\nint {entry}({entry_parameters()}) {{"
    yield "  int code;"
    yield "  double start = observe ? tvmx_seconds() : 0;"
    yield f"  {UNUSED};"
    yield from checks_after(-1, plan.checks, _address)
    calls = ((k, _call(number, k, plan, tag)) for number, k in enumerate(plan.kernels))
    yield from in_regions(calls, str, _address)
    for number, slot in enumerate(plan.outputs):
        if (slot.root.kind, slot.root.index) != ("output", number):
            yield f"  memcpy(outputs[{number}], {_address(slot)}, {slot.nbytes});"
    yield "  return 0;"
    yield "}"


def _call(number: int, kernel: Kernel, plan: Plan, tag: str) -> Iterator[str]:
    places = zip(kernel.operands, kernel.moves, strict=True)
    where = [moved(_address(slot), step, str) for slot, step in places]
    yield from observed(number, kernel, tag, where, lambda slot: str(slot.nbytes))
    yield from checks_after(number, plan.checks, _address)


def observed(
    number: int, kernel: Kernel, tag: str, where: Sequence[str], size: Callable[[Slot], str]
) -> Iterator[str]:
    """C text of the call of a kernel, which may fail, or of a copy, and of what observes it;
    ``size`` makes that of the bytes of a tensor."""
    if kernel.symbol == COPY:
        source, target = where
        yield f"  memcpy({target}, {source}, {size(kernel.reads[0])});"
    elif kernel.is_call:
        call = f"{kernel_symbol(kernel.symbol, tag)}({', '.join(where)})"
        yield f"  if ((code = {call})) return code;"
    if kernel.symbol != CHECK:
        yield f"  if (observe) observe({number}, tvmx_seconds() - start), start = tvmx_seconds();"


def moved(address: str, step: Any, text: Callable[[Any], str]) -> str:
    """C text of the place of a strip, ``step`` bytes behind that of the one before."""
    if isinstance(step, int) and step == 0:
        return address
    return f"(unsigned char *)({address}) + strip * {text(step)}"


def in_regions(
    calls: Iterable[tuple[Kernel, Iterable[str]]],
    text: Callable[[Any], str],
    address: Callable[[Slot], str],
    depth: int = 0,
) -> Iterator[str]:
    """C text of calls, each with the loops and branches that it is in; ``text`` makes that of a
    number or a formula."""

    def at_depth(call: tuple[Kernel, Iterable[str]]) -> Region | Strips | None:
        return next(iter(call[0].regions[depth:]), None)

    for region, run in groupby(calls, at_depth):
        if region is None:
            yield from (line for _, lines in run for line in lines)
        else:
            yield f"  {_opening(region, text, address)} {{"
            yield from _beginning(region, address)
            inner = in_regions(run, text, address, depth + 1)
            yield from (f"  {line}" if line else line for line in inner)
            yield "  }"


def _opening(
    region: Region | Strips, text: Callable[[Any], str], address: Callable[[Slot], str]
) -> str:
    if isinstance(region, Strips):
        return f"for (int64_t strip = 0; strip < {text(region.count)}; ++strip)"
    if isinstance(region, Branch):
        return f"if ({is_run(region, address)})"
    count, going = (element(slot, 0, address) for slot in (region.count, region.going))
    return f"for (int64_t strip = 0, trips = {count}; strip < trips && {going}; ++strip)"


def _beginning(region: Region | Strips, address: Callable[[Slot], str]) -> Iterator[str]:
    if isinstance(region, Trips):
        yield f"    *(int64_t *)({address(region.position)}) = strip;"


def is_run(branch: Branch, address: Callable[[Slot], str]) -> str:
    """C text of whether a branch is taken."""
    return f"{'' if branch.taken else '!'}{element(branch.condition, 0, address)}"


def element(slot: Slot, place: int, address: Callable[[Slot], str]) -> str:
    """C text of an element of a tensor of int64 or bool."""
    c_type = "unsigned char" if slot.dtype == "bool" else "int64_t"
    return f"((const {c_type} *)({address(slot)}))[{place}]"


def checks_after(
    kernel: int, checks: Sequence[Check], address: Callable[[Slot], str]
) -> Iterator[str]:
    """C text of those that come behind a kernel, in the body of the function."""
    mine = [(number, check) for number, check in enumerate(checks, 1) if check.after == kernel]
    read = list(reads([check for _, check in mine], address))
    tests = (
        f"  if (differ(failed, {number}, {check.given}, {check.wanted})) return 1;"
        for number, check in mine
    )
    yield from ["  {", *read, *tests, "  }"] if read else tests


def reads(checks: Sequence[Check], address: Callable[[Slot], str]) -> Iterator[str]:
    """C text of the integers that the formulas of checks are of."""
    for name, slot, place in dict.fromkeys(read for check in checks for read in check.reads):
        yield f"  const int64_t {name} = {element(slot, place, address)};"


def _address(slot: Slot) -> str:
    root = slot.root
    if root.kind == "arena":
        return f"arena + {root.offset}"
    if root.kind == "weight":
        return f"(void *)(weights + {root.offset})"
    return f"{root.kind}s[{root.index}]"
