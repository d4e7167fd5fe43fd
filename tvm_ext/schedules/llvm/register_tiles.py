"""Products in register tiles as loops that are built, not scheduled.

For rows or columns of symbolic number: primitives would leave predicates on symbolic extents in the
innermost loop. Here what is left of whole tiles goes in smaller ones, down to a single element, so
that nothing is computed twice and no loop has a guard.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from tvm import DataType, ir, s_tir, sym, tirx

from ..statements import rescheduled
from .contraction import divisors

__all__ = [
    "RegisterTiles",
    "Results",
    "each",
    "halves",
    "int64",
    "lanewise",
    "local",
    "loop",
    "nest",
    "parts",
    "same",
    "scheduled",
    "sequence",
    "var",
]

_ANALYZER = sym.Analyzer()


@dataclass
class RegisterTiles:
    """Tiles of ``sum over k of term(row, column, k)``, and what becomes of them.

    Attributes:
        dtype: of the sums.
        depth: how many terms an element has.
        term: one of them.
        store: the statement for one element, given its value, its row and its column.
        costly: the statement is much code.
        width: columns from here on are not stored; None: there are none.
        steps: how many of the reduction are unrolled at most.
    """

    dtype: str
    depth: ir.Expr | int
    term: Callable[[tirx.Expr, tirx.Expr, tirx.Expr], tirx.Expr]
    store: Callable[[tirx.Expr, tirx.Expr, tirx.Expr], tirx.Stmt]
    costly: bool
    width: int | None = None
    steps: int = 4

    def tile(
        self,
        row: ir.Expr | int,
        rows: int,
        column: ir.Expr | int,
        columns: int,
        lanes: int,
        ahead: Callable[[tirx.Expr, int], list[tirx.Stmt]] | None = None,
    ) -> tirx.Stmt:
        """``rows`` by ``columns`` elements from ``row`` and ``column`` on.

        ``ahead``: what to ask memory for at each turn of the reduction, given how many there are.
        """
        sums = tirx.decl_buffer((rows, columns), self.dtype, "sums", scope="local")
        static = isinstance(self.depth, int | tirx.IntImm)
        steps = divisors(int(self.depth), self.steps)[-1] if static else 1
        outer, inner = var("k"), var("step")

        def clear(number: tirx.Expr, place: tirx.Expr) -> tirx.Stmt:
            return tirx.BufferStore(sums, tirx.const(0, self.dtype), [number, place])

        def add(number: tirx.Expr, place: tirx.Expr) -> tirx.Stmt:
            at = [number, place]
            term = self.term(row + number, column + place, outer * steps + inner)
            return tirx.BufferStore(sums, tirx.BufferLoad(sums, at) + term, at)

        update = loop(inner, steps, each(rows, columns, lanes, add), tirx.ForKind.UNROLLED)
        turns = self.depth // steps
        if ahead is not None:
            update = sequence([*ahead(outer, turns), update])
        product = [each(rows, columns, lanes, clear), loop(outer, turns, update)]
        results = Results(self.dtype, self.store, self.costly, self.width)
        return local([*product, *results.of(sums, row, column, lanes)], [sums])


@dataclass
class Results:
    """What becomes of the sums of a tile: the fields are those of :class:`RegisterTiles`."""

    dtype: str
    store: Callable[[tirx.Expr, tirx.Expr, tirx.Expr], tirx.Stmt]
    costly: bool
    width: int | None = None

    def of(self, sums, row: ir.Expr | int, column: ir.Expr | int, lanes: int) -> list[tirx.Stmt]:
        """The stores of ``sums``, row by row; in a loop, on a copy, where that is much code.

        Where a variable numbers the rows of the sums, these do not stay in registers.
        """
        rows, columns = map(int, sums.ty.shape)

        def stores(buffer, number: tirx.Expr) -> tirx.Stmt:
            return sequence(
                [
                    self.vector(buffer, number, row, column, start, lanes)
                    for start in range(0, columns, lanes)
                ]
            )

        if rows == 1 or not self.costly:
            return [stores(sums, int64(number)) for number in range(rows)]
        # Of another type: TVM would put a copy of the same type in the place of the sums.
        kind = "float" if "int" in self.dtype else "int"
        bits = f"{kind}{DataType(self.dtype).bits}"
        copy = tirx.decl_buffer((rows, columns), bits, "copy", scope="local")

        def move(number: tirx.Expr, place: tirx.Expr) -> tirx.Stmt:
            at = [number, place]
            return tirx.BufferStore(copy, tirx.reinterpret(bits, tirx.BufferLoad(sums, at)), at)

        number = var("row")
        results = loop(number, rows, stores(copy, number))
        return [local([each(rows, columns, lanes, move), results], [copy])]

    def vector(self, buffer, number, row, column, start: int, lanes: int) -> tirx.Stmt:
        """The stores of ``lanes`` elements; of those before ``width`` where that is among them."""

        def store(place: tirx.Expr) -> tirx.Stmt:
            value = tirx.BufferLoad(buffer, [number, place])
            if str(value.ty.dtype) != self.dtype:
                value = tirx.reinterpret(self.dtype, value)
            return self.store(value, row + number, column + place)

        whole = lanewise(start, lanes, store)
        if self.width is None:
            return whole
        lane = var("lane")
        inside = column + (start + lane) < self.width
        tail = loop(lane, lanes, tirx.IfThenElse(inside, store(start + lane), None))
        return tirx.IfThenElse(column + (start + lanes) <= self.width, whole, tail)


def parts(
    extent: ir.Expr | int, sizes: Sequence[int]
) -> Iterator[tuple[int, ir.Expr | int, ir.Expr | int]]:
    """(size, first, how many) of pieces of falling size that make up ``extent``."""
    start: ir.Expr | int = int64(0)
    for size in sizes:
        count = extent // size
        yield size, start, count
        start, extent = start + count * size, extent % size


def halves(height: int) -> list[int]:
    """``height``, and the powers of two below it."""
    return [height, *(1 << k for k in reversed(range((height - 1).bit_length())))]


def scheduled(func: tirx.PrimFunc, body: tirx.Stmt) -> s_tir.Schedule:
    """``func`` with another body, as what rules return."""
    root = s_tir.SBlock([], [], [], "root", body, None, [], [], {})
    realize = s_tir.SBlockRealize([], tirx.const(True), root)
    built = tirx.PrimFunc(func.params, realize, func.ret_type, func.attrs)
    return rescheduled(built)


def int64(value: int) -> tirx.Expr:
    """An index."""
    return tirx.const(value, "int64")


def var(name: str) -> tirx.Var:
    """A loop variable."""
    return tirx.Var(name, "int64")


def sequence(stmts: list[tirx.Stmt]) -> tirx.Stmt:
    """Statements in order; TVM has no sequence of one."""
    return stmts[0] if len(stmts) == 1 else tirx.SeqStmt(stmts)


def loop(
    variable: tirx.Var, extent: ir.Expr | int, body: tirx.Stmt, kind: int = tirx.ForKind.SERIAL
) -> tirx.Stmt:
    """A loop from 0 on."""
    count = int64(extent) if isinstance(extent, int) else extent
    return tirx.For(variable, int64(0), count, kind, body)


def nest(block: s_tir.SBlock) -> tirx.Stmt:
    """A loop for each axis of ``block``."""
    loops = [var(axis.var.name) for axis in block.iter_vars]
    stmt: tirx.Stmt = s_tir.SBlockRealize(loops, tirx.const(True), block)
    for variable, axis in reversed(list(zip(loops, block.iter_vars, strict=True))):
        stmt = loop(variable, axis.dom.extent, stmt)
    return stmt


def same(a: ir.Expr, b: ir.Expr) -> bool:
    """Whether two indices are known to be equal."""
    difference = _ANALYZER.simplify(a - b)
    return isinstance(difference, tirx.IntImm) and int(difference) == 0


def each(rows: int, columns: int, lanes: int, statement) -> tirx.Stmt:
    """``statement`` of each element, in vectors.

    In loops that TVM unrolls late: most passes then walk over one copy.
    """
    return _unrolled(
        "number",
        rows,
        lambda number: _unrolled(
            "vector",
            columns // lanes,
            lambda vector: lanewise(vector * lanes, lanes, lambda place: statement(number, place)),
        ),
    )


def _unrolled(name: str, extent: int, body: Callable[[tirx.Expr], tirx.Stmt]) -> tirx.Stmt:
    if extent == 1:
        return body(int64(0))
    variable = var(name)
    return loop(variable, extent, body(variable), tirx.ForKind.UNROLLED)


def lanewise(start: ir.Expr | int, lanes: int, statement) -> tirx.Stmt:
    """``statement`` of so many places from ``start`` on, in a vector."""
    if lanes == 1:
        return statement(int64(start) if isinstance(start, int) else start)
    lane = var("lane")
    return loop(lane, lanes, statement(start + lane), tirx.ForKind.VECTORIZED)


def local(stmts: list[tirx.Stmt], buffers: Sequence[tirx.Var]) -> tirx.Stmt:
    """``stmts``, in which ``buffers`` live."""
    block = s_tir.SBlock([], [], [], "tile", sequence(stmts), None, list(buffers), [], {})
    return s_tir.SBlockRealize([], tirx.const(True), block)
