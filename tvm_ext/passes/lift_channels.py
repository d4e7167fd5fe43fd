"""Move one kernel from NCHW to the blocked layout NCHW[x]c, whatever it computes.

The rewrite only renames indices, so it is right for every kernel; it is worth it where each lane
of the result reads the same lane of its operands, which :func:`lift_channels` checks. That holds
for element-wise kernels, pooling, instance norm, padding and resizing of H and W, and for
concatenation and slicing of channels at multiples of the block.
"""

from collections.abc import Callable, Sequence

import tvm_ffi
from tvm import s_tir, tirx
from tvm.ir import Range, TensorLoad
from tvm.ir.expr import TensorRegion
from tvm.s_tir import SBlock
from tvm.sym import Analyzer
from tvm.tirx.function import IndexMap

__all__ = ["lift_channels"]


def lift_channels(func: tirx.PrimFunc, lanes: int, rank: int = 4) -> tirx.PrimFunc | None:
    """``func`` with every ``[N, C, H, W]`` buffer as ``[N, C/lanes, H, W, lanes]``.

    ``rank`` is that of these buffers: 4, or one less or more with other spatial axes.
    Buffers whose C is no multiple of ``lanes`` and buffers of another rank stay as they are;
    ``[N, C]`` temporaries are blocked too. None where a lane of the result would read other
    lanes: the kernel mixes channels; and of a program, whose loops no block describes.

    Before: ``y[n, c, h, w] = max(x[n, c, h, w], 0)``
    After:  ``y[n, o, h, w, i] = max(x[n, o, h, w, i], 0)``
    """
    if _is_program(func):
        return None
    sch = s_tir.Schedule(func)
    params = set(func.params)
    for block in sch.get_child_blocks(sch.get_sblock("root")):
        for side in ("write", "read"):
            for index in range(len(_regions(sch, block, side))):
                buffer = _regions(sch, block, side)[index].source
                layout = _blocked(buffer, lanes, rank, temporary=buffer not in params)
                if layout is not None:
                    sch.transform_layout(block, (side, index), layout)
        _split_channel_loop(sch, block, lanes, rank)
    ranks = (3, rank + 1)  # of blocked buffers
    lifted = _with_plain_indices(sch.mod["main"], lanes, ranks)
    return lifted if _lanes_agree(lifted, lanes, ranks) else None


def _is_program(func: tirx.PrimFunc) -> bool:
    """Whether a block of ``func`` does not say what it writes, as those of :func:`te.extern`."""
    silent: list[SBlock] = []

    def visit(block: SBlock) -> None:
        if not block.writes and block.name_hint != "root":
            silent.append(block)

    tvm_ffi.structural_walk(func.body, (SBlock, visit))
    return bool(silent)


def _regions(sch: s_tir.Schedule, block: s_tir.schedule.SBlockRV, side: str) -> list:
    return list(sch.get(block).writes if side == "write" else sch.get(block).reads)


def _blocked(buffer: tirx.Var, lanes: int, rank: int, temporary: bool) -> Callable | None:
    """The index map that blocks ``buffer``; None where it stays, as a blocked one does."""
    shape = [int(d) if isinstance(d, tirx.IntImm) else 0 for d in buffer.ty.shape]
    if len(shape) < 2 or shape[1] % lanes or shape[1] < lanes:
        return None
    if len(shape) == rank or (len(shape) == 2 and temporary):
        return lambda n, c, *image: (n, c // lanes, *image, c % lanes)
    return None


def _split_channel_loop(sch, block, lanes: int, rank: int) -> None:
    """Iterate the lane innermost among the spatial axes, as the buffer stores it."""
    iters = sch.get(block).iter_vars
    spatial = sum(v.iter_type == tirx.IterVar.DataPar for v in iters)
    if spatial not in (2, rank):
        return
    channels = iters[1].dom.extent
    if not isinstance(channels, tirx.IntImm) or int(channels) % lanes:
        return

    def layout(*index):
        n, c, *rest = index[:spatial]
        return (n, c // lanes, *rest, c % lanes, *index[spatial:])

    sch.transform_block_layout(block, IndexMap.from_func(layout, ndim=len(iters)))


def _with_plain_indices(func: tirx.PrimFunc, lanes: int, ranks: tuple[int, int]) -> tirx.PrimFunc:
    """``func`` with ``(o * lanes + i) // lanes`` as ``o``, and the like.

    Not by TVM's StmtSimplify: that removes the variables of unit loops, and schedule rules then
    find no loop for an axis.
    """
    analyzer = Analyzer()

    def is_one(extent: tirx.Expr) -> bool:
        return isinstance(extent, tirx.IntImm) and int(extent) == 1

    def bind(block: SBlock) -> None:
        for axis in block.iter_vars:
            if not is_one(axis.dom.extent):
                analyzer.bind(axis.var, axis.dom)

    def lane(index: tirx.Expr) -> tirx.Expr:
        """The index of a lane, of which only the remainder counts.

        A buffer of one block is read at ``o * lanes + i - lanes`` behind another in a concat.
        """
        return analyzer.simplify(index % lanes)

    def compare(node: tirx.Expr) -> tirx.Expr:
        """``8 <= o`` for ``128 <= o * 16 + i``: a condition on lanes would make scalars of them."""
        low, high = (node.a, node.b) if isinstance(node, tirx.LE | tirx.LT) else (node.b, node.a)
        if "int" not in str(low.ty.dtype):
            return node
        distance = high - low - int(isinstance(node, tirx.LT | tirx.GT))
        blocks = analyzer.simplify(tirx.floordiv(distance, lanes))
        return node if _divides(blocks) else analyzer.simplify(blocks >= 0)

    def load(node: TensorLoad) -> tirx.Expr:
        if not _is_blocked(node.source, lanes, ranks):
            return node
        return tirx.BufferLoad(node.source, [*node.indices[:-1], lane(node.indices[-1])])

    def region(node: TensorRegion) -> TensorRegion:
        if not _is_blocked(node.source, lanes, ranks):  # it may have no axes at all
            return node
        *outer, last = node.region
        if not is_one(last.extent):
            return node
        return tirx.BufferRegion(node.source, [*outer, Range.from_min_extent(lane(last.min), 1)])

    tvm_ffi.structural_walk(func.body, (SBlock, bind))
    plain = tvm_ffi.structural_map(func, ((tirx.FloorDiv, tirx.FloorMod), analyzer.simplify))
    plain = tvm_ffi.structural_map(plain, (_COMPARISONS, compare))
    return tvm_ffi.structural_map(plain, ((TensorLoad, load), (TensorRegion, region)))


_COMPARISONS = (tirx.LE, tirx.LT, tirx.GE, tirx.GT)


def _divides(expr: tirx.Expr) -> bool:
    """Whether a division is left in ``expr``."""
    found: list[tirx.Expr] = []
    tvm_ffi.structural_walk(expr, ((tirx.FloorDiv, tirx.FloorMod), found.append))
    return bool(found)


def _is_blocked(buffer: tirx.Var, lanes: int, ranks: tuple[int, int]) -> bool:
    shape = buffer.ty.shape
    return len(shape) in ranks and isinstance(shape[-1], tirx.IntImm) and int(shape[-1]) == lanes


def _lanes_agree(func: tirx.PrimFunc, lanes: int, ranks: tuple[int, int]) -> bool:
    """Whether every access of a blocked buffer uses one lane, unshuffled and not summed over."""
    agree = True
    reduced: list[tirx.Var] = []

    def block(node: SBlock) -> None:
        reduced.extend(v.var for v in node.iter_vars if v.iter_type == tirx.IterVar.CommReduce)

    def visit(buffer: tirx.Var, indices: Sequence[tirx.Expr]) -> None:
        nonlocal agree
        lane = indices[-1] if _is_blocked(buffer, lanes, ranks) else None
        own = isinstance(lane, tirx.Var) and not any(lane.same_as(var) for var in reduced)
        agree = agree and (lane is None or own)

    def load(node: TensorLoad) -> None:
        visit(node.source, node.indices)

    def store(node: tirx.BufferStore) -> None:
        visit(node.buffer, node.indices)

    tvm_ffi.structural_walk(func.body, (SBlock, block))
    tvm_ffi.structural_walk(func.body, (TensorLoad, load))
    tvm_ffi.structural_walk(func.body, (tirx.BufferStore, store))
    return agree
