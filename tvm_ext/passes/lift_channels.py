"""Move one kernel from NCHW to the blocked layout NCHW[x]c, whatever it computes.

The rewrite only renames indices, so it is right for every kernel; it is worth it where each lane
of the result reads the same lane of its operands, which :func:`lift_channels` checks. That holds
for element-wise kernels, pooling, instance norm, padding and resizing of H and W, and for
concatenation and slicing of channels at multiples of the block.
"""

from collections.abc import Callable, Collection

import tvm_ffi
from tvm import s_tir, tirx
from tvm.ir import TensorLoad
from tvm.tirx.function import IndexMap

__all__ = ["lift_channels"]


def lift_channels(func: tirx.PrimFunc, lanes: int, keep: Collection[int] = ()) -> tirx.PrimFunc | None:
    """``func`` with every ``[N, C, H, W]`` buffer as ``[N, C/lanes, H, W, lanes]``.

    Buffers whose C is not a multiple of ``lanes`` (or is 1), buffers of another rank and the
    parameters numbered in ``keep`` stay as they are; ``[N, C]`` temporaries are blocked too.
    None where a lane of the result would read other lanes: the kernel mixes channels.

    Before: ``y[n, c, h, w] = max(x[n, c, h, w], 0)``
    After:  ``y[n, o, h, w, i] = max(x[n, o, h, w, i], 0)``
    """
    sch = s_tir.Schedule(func)
    kept = {func.params[k] for k in keep}
    params = set(func.params)
    moved: set[str] = set()
    for block in sch.get_child_blocks(sch.get_sblock("root")):
        _move_buffers(sch, block, lanes, kept, params, moved)
        _split_channel_loop(sch, block, lanes)
    module = s_tir.transform.StmtSimplify()(sch.mod)
    lifted = module["main"]
    return lifted if _lanes_agree(lifted, lanes, moved) else None


def _move_buffers(sch, block, lanes: int, kept: set, params: set, moved: set[str]) -> None:
    for side in ("write", "read"):
        regions = sch.get(block).writes if side == "write" else sch.get(block).reads
        for index in range(len(regions)):
            region = (sch.get(block).writes if side == "write" else sch.get(block).reads)[index]
            buffer = region.source
            layout = _blocked(buffer, lanes, temporary=buffer not in params)
            if layout is None or buffer in kept or buffer.name in moved:
                continue
            sch.transform_layout(block, (side, index), layout)
            moved.add(buffer.name)


def _blocked(buffer: tirx.Var, lanes: int, temporary: bool) -> Callable | None:
    shape = [int(d) if isinstance(d, tirx.IntImm) else 0 for d in buffer.ty.shape]
    if len(shape) < 2 or shape[1] % lanes or shape[1] < lanes:
        return None
    if len(shape) == 4:
        return lambda n, c, h, w: (n, c // lanes, h, w, c % lanes)
    if len(shape) == 2 and temporary:
        return lambda n, c: (n, c // lanes, c % lanes)
    return None


def _split_channel_loop(sch, block, lanes: int) -> None:
    """Iterate the lane innermost among the spatial axes, as the buffer stores it."""
    iters = sch.get(block).iter_vars
    spatial = sum(v.iter_type == tirx.IterVar.DataPar for v in iters)
    if spatial not in (2, 4) or int(iters[1].dom.extent) % lanes:
        return

    def layout(*index):
        n, c, *rest = index[:spatial]
        return (n, c // lanes, *rest, c % lanes, *index[spatial:])

    sch.transform_block_layout(block, IndexMap.from_func(layout, ndim=len(iters)))


def _lanes_agree(func: tirx.PrimFunc, lanes: int, moved: set[str]) -> bool:
    """Whether every access of a moved buffer uses the block's own lane, unshuffled."""
    agree = True

    def load(node: TensorLoad) -> None:
        visit(node.source, node.indices)

    def store(node: tirx.BufferStore) -> None:
        visit(node.buffer, node.indices)

    def visit(buffer: tirx.Var, indices) -> None:
        nonlocal agree
        agree = agree and (buffer.name not in moved or isinstance(indices[-1], tirx.Var))

    tvm_ffi.structural_walk(func.body, (TensorLoad, load))
    tvm_ffi.structural_walk(func.body, (tirx.BufferStore, store))
    return agree
