"""Direct convolution of 8-bit integers: the schedule of floats, around dot instructions."""

from .contraction import split_steps
from .conv2d import Conv2dBlocked
from .integer_matmul import neighbours

__all__ = ["Conv2dInteger"]


class Conv2dInteger(Conv2dBlocked):
    """[pad,] dense or grouped convolution whose innermost reduction is one instruction's."""

    reads_image = False  # what an instruction stands for is matched word by word
    summed = 3

    def register_tile(self, sch, contraction, unrolled, lane) -> list:
        """Accumulate the tile in registers; the serial loops of the reduction."""
        lanes = int(sch.get(contraction).iter_vars[5].dom.extent)
        step = neighbours(sch, contraction, lanes)
        loops = sch.get_loops(contraction)
        vectors, _, _, columns, vector = loops[-10:-5]
        *window, channels, part = loops[-5:]
        outer, inner = split_steps(sch, channels, (columns, vectors))
        serial = [*window, outer]
        sch.reorder(*serial, inner, columns, vectors, vector, part)
        for loop in (inner, columns, vectors, *unrolled):
            sch.unroll(loop)
        init = sch.decompose_reduction(contraction, serial[0])
        *tile, last = sch.get_loops(init)[-5:]
        for loop in tile:
            sch.unroll(loop)
        sch.vectorize(last)
        sch.vectorize(lane)
        sch.tensorize(vector, step)
        return serial
