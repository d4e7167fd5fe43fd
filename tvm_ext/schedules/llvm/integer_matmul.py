"""Matrix product of 8-bit integers: the schedule of floats, around dot instructions."""

from tvm.s_tir import SBlock
from tvm.s_tir.schedule import LoopRV

from .contraction import split_steps
from .dot import DEPTH, Dot
from .matmul import MatmulTiled

__all__ = ["MatmulInteger", "neighbours"]


class MatmulInteger(MatmulTiled):
    """Products whose innermost reduction is one instruction's."""

    kinds = ("SSSSRR",)

    def takes(self, product: SBlock) -> bool:
        left = str(product.reads[0].source.ty.dtype.dtype)
        return "int" in left and int(product.iter_vars[-1].dom.extent) == DEPTH

    def register_tile(self, sch, product, at, lanes: int) -> LoopRV:
        """Accumulate under loop ``at``; the loop around the steps that are unrolled."""
        step = neighbours(sch, product, lanes)
        sch.set_scope(product, 0, "local")
        sch.compute_at(product, at, preserve_unit_loops=True)
        rows, columns, depth, part = sch.get_loops(product)[-4:]
        vectors, lane = sch.split(columns, [None, lanes])
        outer, inner = split_steps(sch, depth, (rows, vectors), self.steps)
        sch.reorder(outer, inner, rows, vectors, lane, part)
        for loop in (inner, rows, vectors):
            sch.unroll(loop)
        init = sch.decompose_reduction(product, outer)
        *tile, last = sch.get_loops(init)[-3:]
        for loop in tile:
            sch.unroll(loop)
        sch.vectorize(last)
        sch.tensorize(lane, step)
        return outer


def neighbours(sch, product, lanes: int) -> str:
    """The intrinsic that sums the last axis of ``product`` in so many lanes."""
    block = sch.get(product)
    left = str(block.reads[0].source.ty.dtype.dtype)
    return Dot(lanes, int(block.iter_vars[-1].dom.extent)).intrinsic(left)
