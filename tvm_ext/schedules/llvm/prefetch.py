"""Software prefetch of packed weights: a panel comes into the cache while the one before is used."""

from tvm import DataType, s_tir, tirx

from ..statements import map_children

__all__ = ["prefetch_next_panel"]

_LINE = 64  # bytes
_READ, _TO_L2, _DATA = 0, 2, 1  # llvm.prefetch: rw, locality, kind of cache


def prefetch_next_panel(func: tirx.PrimFunc, tile: tirx.Var, depth: tirx.Var) -> tirx.PrimFunc:
    """``func`` with prefetches at the start of the loop ``depth`` over a product's reduction.

    The product reads panels ``[tiles, K, columns]``, each swept by all turns of the loops ``tile``
    and ``depth``; every turn asks for an equal part of the panel that follows in memory. Behind
    the last panel that is memory nobody reads: a prefetch never faults.
    """

    def rewrite(stmt: tirx.Stmt) -> tirx.Stmt:
        if not isinstance(stmt, tirx.For):
            return map_children(stmt, rewrite)
        if stmt.loop_var.same_as(tile):
            sweeps.append(stmt.extent)
        if not stmt.loop_var.same_as(depth):
            return map_children(stmt, rewrite)
        turn, turns = tile * stmt.extent + depth, int(sweeps[0] * stmt.extent)
        lines = _lines(_innermost(stmt), turn, turns)
        return map_children(stmt, lambda body: tirx.SeqStmt([*lines, body]))

    sweeps: list[tirx.Expr] = []
    return tirx.PrimFunc(func.params, rewrite(func.body), func.ret_type, func.attrs)


def _innermost(stmt: tirx.Stmt) -> s_tir.SBlockRealize:
    while isinstance(stmt, tirx.For):
        stmt = stmt.body
    return stmt


def _lines(product: s_tir.SBlockRealize, turn: tirx.Expr, turns: int) -> list[tirx.Stmt]:
    """The prefetches of one turn."""
    panels = product.block.reads[-1].source
    _, depth, columns = (int(d) for d in panels.ty.shape)
    step = _LINE // DataType(str(panels.ty.dtype.dtype)).itemsize
    count = -(-depth * columns // (step * turns))
    following = product.iter_values[-4] + 1
    flags = [tirx.const(flag, "int32") for flag in (_READ, _TO_L2, _DATA)]
    addresses = (
        tirx.address_of(panels[following, 0, (turn * count + k) * step]) for k in range(count)
    )
    return [tirx.Evaluate(tirx.call_intrin("void", "tirx.prefetch", a, *flags)) for a in addresses]
