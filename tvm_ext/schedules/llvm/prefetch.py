"""Prefetch of packed weights: a panel comes into the cache while the one before is used."""

from collections.abc import Callable, Sequence
from math import prod

from tvm import DataType, s_tir, tirx
from tvm.s_tir.schedule import LoopRV

from ..statements import map_children, rescheduled
from .register_tiles import sequence

__all__ = [
    "COLD_WEIGHTS",
    "is_cold",
    "panel_behind",
    "prefetch_ahead",
    "prefetch_in_sweeps",
    "prefetch_next_panel",
]

# Bytes of weights from which on a kernel of a whole network finds them in memory, not in a cache.
COLD_WEIGHTS = 256 << 10

# The bytes of a line of the caches.
_LINE = 64
# llvm.prefetch: rw, locality, kind of cache. A panel is larger than L1, through which it goes to
# L2: asked for in L2 only, ResNet-50 is 1 % slower on two Zen 5 cores.
_READ, _THROUGH_L1, _DATA = 0, 3, 1
# Bytes between what is used once and what is asked for meanwhile: hardware that follows a stream
# of reads stops where a page ends. GPT-2's products of one row read 36 GB/s without, 47 GB/s with
# it on two Zen 5 cores.
_AHEAD = 2 << 10
# Sweeps over a panel that share the fetch of the next one, where they are symbolically many.
_FETCHING = 4


def prefetch_next_panel(
    sch: s_tir.Schedule,
    panels: Sequence,
    turns: Sequence,
    stored: int | None = None,
    place: Callable[[tirx.Expr], tirx.Expr] = lambda number: number,
    parts: int = 1,
) -> s_tir.Schedule:
    """``sch`` with prefetches at the start of the last of the loops ``turns``.

    The loops ``panels`` number the panels of the weights, in the order in which they lie in memory;
    the loops ``turns`` inside of them use one. Every turn asks for an equal part of the panel that
    follows. Behind the last one that is memory nobody reads: a prefetch never faults.

    Where some panels serve several numbers, there are ``stored`` ones in memory, that of a number
    at ``place``. Where the use of a panel has several ``parts``, ``panels`` number these.
    """
    part, count = _number(sch, panels)
    turn, turns_per_part = _number(sch, turns)
    panel, turn = tirx.floordiv(part, parts), tirx.floormod(part, parts) * turns_per_part + turn

    def lines(weights: tirx.Var) -> list[tirx.Stmt]:
        kept = stored or count // parts
        return _lines(weights, kept, place(panel + 1), turn, parts * turns_per_part)

    return _at_start_of(sch, turns[-1], lines)


def prefetch_ahead(sch: s_tir.Schedule, turns: Sequence) -> s_tir.Schedule:
    """As :func:`prefetch_next_panel` for weights that are used once, in the order of memory.

    The loops ``turns`` number their parts; each asks for as much as it uses, some way ahead.
    """
    turn, count = _number(sch, turns)

    def lines(weights: tirx.Var) -> list[tirx.Stmt]:
        step = _per_line(weights)
        size = prod(int(d) for d in weights.ty.shape) // count
        return _prefetches(weights, turn * size + _AHEAD // _LINE * step, -(-size // step))

    return _at_start_of(sch, turns[-1], lines)


def prefetch_in_sweeps(
    sch: s_tir.Schedule, panel: LoopRV, sweeps: Sequence, turns: Sequence
) -> s_tir.Schedule:
    """As :func:`prefetch_next_panel`, where ``sweeps`` of symbolic number use each ``panel``."""
    sweep = tirx.const(0, "int64")
    for loop in map(sch.get, sweeps):
        sweep = sweep * loop.extent + loop.loop_var
    turn, count = _number(sch, turns)
    number = sch.get(panel).loop_var
    return _at_start_of(
        sch, turns[-1], lambda weights: panel_behind(weights, number, sweep, turn, count)
    )


def panel_behind(
    weights: tirx.Var, panel: tirx.Expr, sweep: tirx.Expr, turn: tirx.Expr, turns: int
) -> list[tirx.Stmt]:
    """Prefetches of one of the ``turns`` of a ``sweep`` over a ``panel``.

    The first sweeps ask for a part each of the panel that follows, later ones for nothing.
    """
    size, line = prod(map(int, weights.ty.shape[1:])), _per_line(weights)
    count = -(-size // (line * turns * _FETCHING))
    start = (panel + 1) * size + (sweep * turns + turn) * (count * line)
    lines = _prefetches(weights, start, count)
    return [tirx.IfThenElse(sweep < _FETCHING, sequence(lines), None)]


def _at_start_of(
    sch: s_tir.Schedule, loop: LoopRV, statements: Callable[[tirx.Var], list[tirx.Stmt]]
) -> s_tir.Schedule:
    """``sch`` with ``statements``, given the weights, at the start of the body of ``loop``."""
    variable = sch.get(loop).loop_var

    def rewrite(stmt: tirx.Stmt) -> tirx.Stmt:
        if not isinstance(stmt, tirx.For) or not stmt.loop_var.same_as(variable):
            return map_children(stmt, rewrite)
        first = statements(_innermost(stmt).block.reads[-1].source)
        return map_children(stmt, lambda body: tirx.SeqStmt([*first, body]))

    func = sch.mod["main"]
    body = rewrite(func.body)
    return rescheduled(tirx.PrimFunc(func.params, body, func.ret_type, func.attrs))


def _number(sch: s_tir.Schedule, loops: Sequence) -> tuple[tirx.Expr, int]:
    """The turn of nested ``loops``, and how many there are."""
    number, count = tirx.const(0, "int64"), 1
    for loop in map(sch.get, loops):
        number = number * loop.extent + loop.loop_var
        count *= int(loop.extent)
    return number, count


def _innermost(stmt: tirx.Stmt) -> s_tir.SBlockRealize:
    while isinstance(stmt, tirx.For):
        stmt = stmt.body
    return stmt


def _lines(
    weights: tirx.Var, panels: int, panel: tirx.Expr, turn: tirx.Expr, turns: int
) -> list[tirx.Stmt]:
    """The prefetches of one turn: its part of ``panel``, whose lines several turns may ask for.

    With a line for each turn they reach several panels too far: 512 to 1024 channels at 14 x 14,
    1x1 with a residual, two Zen 4 cores: 190 GFLOP/s, 227 with its part.
    """
    size = prod(int(d) for d in weights.ty.shape) // panels
    part, step = -(-size // turns), _per_line(weights)
    if part > step:
        part = -(-part // step) * step
    return _prefetches(weights, panel * size + turn * part, -(-part // step))


def is_cold(weights: tirx.Var) -> bool:
    """Whether a whole network leaves ``weights`` in memory from run to run."""
    itemsize = DataType(str(weights.ty.dtype.dtype)).itemsize
    return prod(int(d) for d in weights.ty.shape) * itemsize >= COLD_WEIGHTS


def _prefetches(weights: tirx.Var, start: tirx.Expr, count: int) -> list[tirx.Stmt]:
    """Prefetches of ``count`` lines from element ``start`` on, which may lie behind the end."""
    flags = [tirx.const(flag, "int32") for flag in (_READ, _THROUGH_L1, _DATA)]
    first = [0] * (len(weights.ty.shape) - 1)  # past the end of the last axis it goes on in memory
    places = [(*first, start + k * _per_line(weights)) for k in range(count)]
    addresses = [tirx.address_of(weights[place]) for place in places]
    return [tirx.Evaluate(tirx.call_intrin("void", "tirx.prefetch", a, *flags)) for a in addresses]


def _per_line(weights: tirx.Var) -> int:
    return _LINE // DataType(str(weights.ty.dtype.dtype)).itemsize
