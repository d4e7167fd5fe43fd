"""The C functions that run a model of symbolic dims: sizes in, dims and addresses computed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod

import numpy as np
from tvm import tirx

from .emit import (
    ENTRY,
    ENTRY_PARAMETERS,
    UNUSED,
    checks_after,
    in_regions,
    kernel_symbol,
    moved,
    observed,
    with_functions,
)
from .formulas import c_text
from .plan import Check, Kernel, Slot
from .symbolic import SIZES

__all__ = ["Entry", "entry_source"]


@dataclass(frozen=True)
class Entry:
    """What the functions do.

    Attributes:
        sizes: the variables that formulas are of.
        checks: those of sizes alone are made by the first function.
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
    inputs, outputs, observe, failed, sizes)``.

    The first returns 0, and ``numbers`` are the bytes of the arena, and the dims of all results; or
    the number of the check that fails, from 1, and they are the two that differ. The
    second is as :func:`.emit.entry_source` says.
    """
    functions = with_functions([*_sizes(entry), *_execute(entry, tag)])
    return "\n".join([*_head(entry, tag), *functions, ""])


def _head(entry: Entry, tag: str) -> Iterator[str]:
    yield '#include "tvmx.h"'
    yield "#include <string.h>\n"
    called = ((kernel, numbers) for kernel, numbers in entry.calls if kernel.is_call)
    kernels = {kernel.symbol: (kernel, numbers) for kernel, numbers in called}
    for symbol, (kernel, numbers) in kernels.items():
        types = ["void *"] * (len(kernel.reads) + len(kernel.writes))
        types += [f"{number.ty.dtype}_t" for number in numbers]
        types += ["void *"] * len(kernel.scratch)
        yield f"int32_t {kernel_symbol(symbol, tag)}({', '.join(types) or 'void'});"


def _named(entry: Entry) -> Iterator[str]:
    for number, size in enumerate(entry.sizes):
        yield f"  const int64_t {size.name} = sizes[{number}];"
    yield from (f"  (void){size.name};" for size in entry.sizes)


def _sizes(entry: Entry) -> Iterator[str]:
    yield f"\nint {SIZES}(const int64_t *sizes, int64_t *numbers) {{"
    yield from _named(entry)
    for number, check in enumerate(entry.checks, 1):
        if check.after is not None:
            continue
        yield f"  numbers[0] = {check.given}, numbers[1] = {check.wanted};"
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
    yield f"  {UNUSED};"
    for number, (total, unit) in enumerate(entry.parts):
        yield f"  const int64_t unit{number} = {c_text(unit)};"
        yield f"  unsigned char *const part{number} = arena;"
        yield f"  arena += {total} * unit{number};"
    yield from checks_after(-1, entry.checks, partial(_address, entry))
    calls = ((kernel, _call(entry, at, tag)) for at, (kernel, _) in enumerate(entry.calls))
    yield from in_regions(calls, c_text, partial(_address, entry))
    for number, slot in enumerate(entry.outputs):
        if (slot.root.kind, slot.root.index) != ("output", number):
            yield f"  memcpy(outputs[{number}], {_address(entry, slot)}, {_size(slot)});"
    yield "  return 0;"
    yield "}"


def _call(entry: Entry, number: int, tag: str) -> Iterator[str]:
    kernel, numbers = entry.calls[number]
    operands = zip(kernel.operands, kernel.moves, strict=True)
    where = [moved(_address(entry, slot), step, c_text) for slot, step in operands]
    count = len(kernel.operands) - len(kernel.scratch)
    where[count:count] = map(c_text, numbers)
    yield from observed(number, kernel, tag, where, _size)
    yield from checks_after(number, entry.checks, partial(_address, entry))


def _size(slot: Slot) -> str:
    """C text of the bytes of a tensor."""
    item = tirx.const(np.dtype(slot.dtype).itemsize, "int64")
    return c_text(prod(map(tirx.convert, slot.shape), start=item))


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
