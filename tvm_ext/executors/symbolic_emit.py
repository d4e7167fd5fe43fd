"""The C functions that run a model of symbolic dims: sizes in, dims and addresses computed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Any

import numpy as np
from tvm import tirx

from .emit import (
    ENTRY,
    UNUSED,
    checks_after,
    element,
    entry_parameters,
    in_regions,
    is_run,
    kernel_symbol,
    moved,
    observed,
    with_functions,
)
from .formulas import c_text
from .plan import Branch, Check, Kernel, Region, Slot, around
from .symbolic import SIZES, of_stage

__all__ = ["Entry", "Read", "Stage", "entry_source", "stage_of"]


@dataclass(frozen=True)
class Read:
    """An integer of a tensor, or a bool, by its place. It is there where ``region`` is run; in a
    branch that is not taken, the variable is 0."""

    var: tirx.Var
    slot: Slot
    place: int
    region: Region | None


@dataclass(frozen=True)
class Stage:
    """Kernels from ``start`` on. ``reads``: what is known from here on."""

    start: int
    reads: tuple[Read, ...]


def stage_of(stages: Sequence[Stage], *formulas: Any) -> int:
    """The first of ``stages`` in which these are known."""
    used = {var for f in formulas for var in tirx.analysis.undefined_vars(tirx.convert(f), [])}
    later = (k for k, stage in enumerate(stages) if used & {read.var for read in stage.reads})
    return max(later, default=0)


@dataclass(frozen=True)
class Entry:
    """What the functions do.

    Attributes:
        sizes: the variables that formulas are of in every stage.
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
    stages: Sequence[Stage]

    def known(self, stage: int) -> list[tirx.Var]:
        """The variables that formulas of a stage are of."""
        read = (read.var for one in self.stages[: stage + 1] for read in one.reads)
        return [*self.sizes, *read]

    def kernels(self, stage: int) -> range:
        """The numbers of those of a stage."""
        later = self.stages[stage + 1 : stage + 2]
        return range(self.stages[stage].start, later[0].start if later else len(self.calls))


def entry_source(entry: Entry, tag: str) -> str:
    """C text of ``int tvmx_sizes(sizes, numbers)`` and of ``int tvmx_execute(weights, arenas,
    inputs, outputs, observe, failed, sizes)``, and of the same two of each further stage.

    The first returns 0, and ``numbers`` are the bytes of the stage's arena, and the dims of all
    results that it makes known; or the number of the check that fails, from 1, and they are the two
    that differ. The second is as :func:`.emit.entry_source` says, with an arena of each stage so
    far; it leaves what the next one reads behind the ``sizes``.
    """
    stages = range(len(entry.stages))
    texts = (line for k in stages for line in (*_sizes(entry, k), *_execute(entry, k, tag)))
    return "\n".join([*_head(entry, tag), *with_functions(texts), ""])


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


def _named(entry: Entry, stage: int) -> Iterator[str]:
    known = entry.known(stage)
    for number, size in enumerate(known):
        yield f"  const int64_t {size.name} = sizes[{number}];"
    yield from (f"  (void){size.name};" for size in known)


def _sizes(entry: Entry, stage: int) -> Iterator[str]:
    yield f"\nint {of_stage(SIZES, stage)}(const int64_t *sizes, int64_t *numbers) {{"
    yield from _named(entry, stage)
    for number, check in enumerate(entry.checks, 1):
        if check.after is not None or stage:
            continue
        yield f"  numbers[0] = {check.given}, numbers[1] = {check.wanted};"
        yield f"  if (numbers[0] != numbers[1]) return {number};"
    yield "  int64_t bytes = 0;"
    for total, unit in entry.parts:
        if stage_of(entry.stages, unit) == stage:
            yield f"  bytes = plus(bytes, times({total}, {c_text(unit)}));"
    yield "  *numbers++ = bytes;"
    for slot in entry.outputs:
        if stage_of(entry.stages, *slot.shape) == stage:
            yield from (f"  *numbers++ = {c_text(dim)};" for dim in slot.shape)
    yield "  (void)numbers;"
    yield "  return 0;"
    yield "}"


def _execute(entry: Entry, stage: int, tag: str) -> Iterator[str]:
    parameters = entry_parameters("unsigned char *const *arenas")
    yield f"\nint {of_stage(ENTRY, stage)}({parameters}, int64_t *sizes) {{"
    yield from _named(entry, stage)
    yield "  int code;"
    yield "  double start = observe ? tvmx_seconds() : 0;"
    yield "  unsigned char *arena;"
    yield from _arenas(entry, stage)
    yield f"  {UNUSED};"
    address = partial(_address, entry)
    if stage == 0:
        yield from checks_after(-1, entry.checks, address)
    calls = ((entry.calls[at][0], _call(entry, at, tag)) for at in entry.kernels(stage))
    yield from in_regions(calls, c_text, address)
    yield from _left(entry, stage)
    yield "  return 0;"
    yield "}"


def _arenas(entry: Entry, stage: int) -> Iterator[str]:
    """C text of where the parts of the arenas are so far."""
    for at in range(stage + 1):
        yield f"  arena = arenas[{at}];"
        for number, (total, unit) in enumerate(entry.parts):
            if stage_of(entry.stages, unit) == at:
                yield f"  const int64_t unit{number} = {c_text(unit)};"
                yield f"  unsigned char *const part{number} = arena;"
                yield f"  arena += {total} * unit{number};"
                yield f"  (void)part{number};"


def _left(entry: Entry, stage: int) -> Iterator[str]:
    """C text of what a stage ends with: what the next one reads, or the results."""
    first, address = len(entry.known(stage)), partial(_address, entry)
    for later in entry.stages[stage + 1 : stage + 2]:
        for number, read in enumerate(later.reads, first):
            branches = (region for region in around(read.region) if isinstance(region, Branch))
            runs = " && ".join(is_run(branch, address) for branch in branches)
            value = element(read.slot, read.place, address)
            yield f"  sizes[{number}] = {f'{runs} ? {value} : 0' if runs else value};"
        return
    for number, slot in enumerate(entry.outputs):
        if (slot.root.kind, slot.root.index) != ("output", number):
            yield f"  memcpy(outputs[{number}], {_address(entry, slot)}, {_size(slot)});"


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
