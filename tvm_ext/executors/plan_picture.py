"""The memory plan as a table and as a picture: time from left to right, addresses upwards.

Nothing here imports TVM.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from html import escape

from .plan import Kernel, Plan, Slot, aligned

__all__ = ["Life", "lives", "picture"]

_WIDTH, _HEIGHT, _LEFT, _TOP = 1000, 500, 90, 40
# Told apart by those who see red and green alike.
_COLOURS = ("#4477aa", "#66ccee", "#228833", "#ccbb44", "#ee6677", "#aa3377", "#bbbbbb")


@dataclass(frozen=True)
class Life:
    """A tensor in the plan.

    Attributes:
        name: the variable that its kernel defines, with a number where it defines several.
        nodes: the ONNX nodes that it comes from.
        kind: "arena"; "scratch", which its kernel alone uses; or "output", which is written where
            the caller wants it.
        offset: of its bytes in the arena; None of an output.
        first, last: the numbers of the kernels that write it and that read it last.
    """

    name: str
    nodes: tuple[str, ...]
    kind: str
    shape: tuple[int, ...]
    dtype: str
    offset: int | None
    bytes: int
    first: int
    last: int


def lives(plan: Plan, nodes_of: Callable[[str], Sequence[str]]) -> list[Life]:
    """What kernels write, and the arrays of their own, in their order; ``nodes_of`` gives the ONNX
    nodes of a variable."""
    last: dict[int, int] = {}
    for number, kernel in enumerate(plan.kernels):
        last |= {id(slot.root): number for slot in kernel.operands}
    last |= {id(slot.root): len(plan.kernels) - 1 for slot in plan.outputs}  # copied at the end
    return [
        _life(slot, kind, name, tuple(nodes_of(kernel.variable)), number, last[id(slot.root)])
        for number, kernel in enumerate(plan.kernels)
        for slot, kind, name in _named(kernel)
    ]


def _named(kernel: Kernel) -> Iterator[tuple[Slot, str, str]]:
    """What ``kernel`` writes and what it has for itself: slot, kind and name."""
    for number, slot in enumerate(kernel.writes):
        suffix = f"[{number}]" if len(kernel.writes) > 1 else ""
        yield slot, slot.root.kind, f"{kernel.variable}{suffix}"
    for number, slot in enumerate(kernel.scratch):
        yield slot, "scratch", f"{kernel.variable} scratch[{number}]"


def _life(slot: Slot, kind: str, name: str, nodes: tuple[str, ...], first: int, last: int) -> Life:
    offset = None if kind == "output" else slot.root.offset
    return Life(name, nodes, kind, slot.shape, slot.dtype, offset, slot.nbytes, first, last)


def picture(plan: Plan, rows: Sequence[Life]) -> str:
    """SVG of the arena: a box per tensor, whose name and size show under the pointer."""
    return "\n".join(_picture(plan, [row for row in rows if row.offset is not None])) + "\n"


def _picture(plan: Plan, rows: Sequence[Life]) -> Iterator[str]:
    steps, size = max(1, len(plan.kernels)), max(1, plan.arena_bytes)
    across, up = _WIDTH / steps, _HEIGHT / size
    yield (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_LEFT + _WIDTH + 20} '
        f'{_TOP + _HEIGHT + 50}" font-family="sans-serif" font-size="14">'
    )
    yield (
        f'<text x="{_LEFT}" y="24">arena {plan.arena_bytes:,} bytes, at most '
        f"{plan.live_bytes:,} alive at one time; {len(plan.kernels)} kernels</text>"
    )
    for number, row in enumerate(rows):
        assert row.offset is not None  # the caller keeps only these
        x, width = _LEFT + row.first * across, (row.last - row.first + 1) * across
        height = aligned(row.bytes) * up
        y = _TOP + _HEIGHT - row.offset * up - height
        yield (
            f'<rect x="{x:.2f}" y="{y:.2f}" width="{width:.2f}" height="{height:.2f}" '
            f'fill="{_COLOURS[number % len(_COLOURS)]}" stroke="white" stroke-width="0.5">'
            f"<title>{escape(_caption(row))}</title></rect>"
        )
    bound = _TOP + _HEIGHT - plan.live_bytes * up
    yield f'<path d="M{_LEFT} {bound:.2f}h{_WIDTH}" stroke="black" stroke-dasharray="4"/>'
    yield f'<path d="M{_LEFT} {_TOP}v{_HEIGHT}h{_WIDTH}" stroke="black" fill="none"/>'
    yield f'<text x="{_LEFT - 6}" y="{_TOP + 12}" text-anchor="end">{size:,}</text>'
    yield f'<text x="{_LEFT - 6}" y="{_TOP + _HEIGHT}" text-anchor="end">0</text>'
    yield f'<text x="{_LEFT}" y="{_TOP + _HEIGHT + 20}">kernel 0</text>'
    end = f'x="{_LEFT + _WIDTH}" y="{_TOP + _HEIGHT + 20}" text-anchor="end"'
    yield f"<text {end}>kernel {steps - 1}</text>"
    yield "</svg>"


def _caption(row: Life) -> str:
    shape = ", ".join(map(str, row.shape))
    end = f"kernels {row.first} to {row.last}"
    lines = [f"{row.name}: {row.dtype}[{shape}]", f"{row.bytes:,} bytes at {row.offset:,}, {end}"]
    return "\n".join([*lines, *row.nodes])
