"""A static plan as JSON and back."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from .plan import Branch, Check, Kernel, Plan, Region, Slot, Strips, Trips

__all__ = ["plan_as_json", "plan_from_json"]


@dataclass
class _Slots:
    """Slots by number, each after the slot that it is a view of."""

    rows: list[dict]
    numbers: dict[int, int]

    def number(self, slot: Slot) -> int:
        if id(slot) not in self.numbers:
            base = None if slot.base is None else self.number(slot.base)
            row = {"shape": slot.shape, "dtype": slot.dtype, "kind": slot.kind, "base": base}
            self.rows.append(row | {"index": slot.index, "offset": slot.offset})
            self.numbers[id(slot)] = len(self.rows) - 1
        return self.numbers[id(slot)]


@dataclass
class _Regions:
    """Regions by number, each after the one around it."""

    rows: list[dict]
    numbers: dict[int, int]
    slots: _Slots

    def number(self, region: Region | None) -> int | None:
        if region is None:
            return None
        if id(region) not in self.numbers:
            outer = self.number(region.outer)
            read = [self.slots.number(slot) for slot in region.reads]
            if isinstance(region, Branch):
                row = {"kind": "branch", "outer": outer, "reads": read, "taken": region.taken}
            else:
                position = self.slots.number(region.position)
                row = {"kind": "trips", "outer": outer, "reads": read, "position": position}
            self.rows.append(row)
            self.numbers[id(region)] = len(self.rows) - 1
        return self.numbers[id(region)]


def plan_as_json(plan: Plan) -> dict:
    """Everything of ``plan``."""
    slots = _Slots([], {})
    regions = _Regions([], {}, slots)

    def many(of: Sequence[Slot]) -> list[int]:
        return [slots.number(slot) for slot in of]

    return {
        "kernels": [
            [
                k.symbol,
                many(k.reads),
                many(k.writes),
                k.variable,
                many(k.scratch),
                k.steps,
                regions.number(k.region),
            ]
            for k in plan.kernels
        ],
        "regions": regions.rows,
        "strips": list(_loops(plan.kernels)),
        "checks": [
            [
                c.text,
                c.given,
                c.wanted,
                [[name, slots.number(s), at] for name, s, at in c.reads],
                c.after,
            ]
            for c in plan.checks
        ],
        "inputs": many(plan.inputs),
        "outputs": many(plan.outputs),
        "weight_bytes": plan.weight_bytes,
        "arena_bytes": plan.arena_bytes,
        "live_bytes": plan.live_bytes,
        "scratch_bytes": plan.scratch_bytes,
        "slots": slots.rows,
    }


def _loops(kernels: Sequence[Kernel]) -> Iterator[tuple[int, int, int]]:
    """The first and the last kernel of each loop over strips, and how many these are."""
    for strips, run in groupby(enumerate(kernels), lambda numbered: numbered[1].strips):
        if strips is not None:
            numbers = [number for number, _ in run]
            yield numbers[0], numbers[-1], strips.count


def plan_from_json(saved: dict) -> Plan:
    """The plan that :func:`plan_as_json` wrote."""
    slots: list[Slot] = []
    for row in saved["slots"]:
        base = None if row["base"] is None else slots[row["base"]]
        shape = tuple(row["shape"])
        slots.append(Slot(shape, row["dtype"], row["kind"], row["index"], row["offset"], base=base))

    def many(numbers: Sequence[int]) -> tuple[Slot, ...]:
        return tuple(slots[number] for number in numbers)

    loops: list[Strips | None] = [None] * len(saved["kernels"])
    for first, last, count in saved["strips"]:
        loops[first : last + 1] = [Strips(count)] * (last + 1 - first)
    regions: list[Region | None] = []
    for row in saved["regions"]:
        outer = None if row["outer"] is None else regions[row["outer"]]
        read = many(row["reads"])
        if row["kind"] == "branch":
            regions.append(Branch(outer, read[0], row["taken"]))
        else:
            regions.append(Trips(outer, read[0], read[1], slots[row["position"]]))
    regions.append(None)

    def kernel(row: list, strips: Strips | None) -> Kernel:
        symbol, r, w, variable, scratch, steps, region = row
        around = regions[-1 if region is None else region]
        operands = many(r), many(w), variable, many(scratch)
        return Kernel(symbol, *operands, strips, tuple(steps), around)

    return Plan(
        kernels=tuple(map(kernel, saved["kernels"], loops)),
        inputs=many(saved["inputs"]),
        outputs=many(saved["outputs"]),
        weight_bytes=saved["weight_bytes"],
        arena_bytes=saved["arena_bytes"],
        live_bytes=saved["live_bytes"],
        scratch_bytes=saved["scratch_bytes"],
        checks=tuple(
            Check(text, given, wanted, tuple((name, slots[k], at) for name, k, at in reads), after)
            for text, given, wanted, reads, after in saved["checks"]
        ),
    )
