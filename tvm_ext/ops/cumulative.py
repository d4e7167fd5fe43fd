"""Running sums and products, in one pass: an element is its predecessor's and its own term."""

from collections.abc import Callable

from tvm import te, tirx
from tvm.ir import Range
from tvm.script.ir_builder import IRBuilder
from tvm.tirx.script.builder import ir as T

from .elementwise import dtype_of

__all__ = ["running"]


def running(
    x: te.Tensor,
    combine: Callable[[tirx.Expr, tirx.Expr], tirx.Expr],
    start: int,
    exclusive: bool,
) -> te.Tensor:
    """``y[b, t, a]``: what ``combine`` makes of ``x[b, 0, a]`` to ``x[b, t, a]``.

    ``start`` is combined with the first. ``exclusive``: without ``x[b, t, a]`` itself. The rows
    ``b`` are independent; along ``a`` the elements of a step are.
    """
    before, extent, after = x.shape
    first = tirx.const(start, dtype_of(x))

    def body(inputs, outputs):
        (source,), (result,) = inputs, outputs
        with IRBuilder() as builder:
            with T.serial(0, before) as loop, T.sblock("rows"):
                row = T.axis.spatial(Range(0, before), loop)
                # What a row reads of the result it has written: rows are independent.
                T.reads(source[row, 0:extent, 0:after])
                T.writes(result[row, 0:extent, 0:after])
                with T.sblock("steps"):
                    if isinstance(after, tirx.IntImm) and int(after) == 1:
                        _line(source, result, row)
                    else:
                        _plane(source, result, row)
        return builder.get()

    def _line(source, result, row):
        """The running value in a register."""
        total = T.sblock_alloc_buffer([1], dtype_of(x), scope="local")
        T.buffer_store(total, first, [0])
        with T.serial(0, extent) as t:
            term = source[row, t, 0]
            if exclusive:
                T.buffer_store(result, total[0], [row, t, 0])
            T.buffer_store(total, combine(total[0], term), [0])
            if not exclusive:
                T.buffer_store(result, total[0], [row, t, 0])

    def _plane(source, result, row):
        """Step by step, each a vector along ``a``."""
        with T.serial(0, tirx.min(extent, 1)) as t:
            with T.serial(0, after) as a:
                begin = first if exclusive else combine(first, source[row, t, a])
                T.buffer_store(result, begin, [row, t, a])
        with T.serial(1, extent) as t:
            with T.serial(0, after) as a:
                term = source[row, t - 1 if exclusive else t, a]
                value = combine(result[row, t - 1, a], term)
                T.buffer_store(result, value, [row, t, a])

    # The block around an extern is the function's root; schedules look it up by that name.
    return te.extern([x.shape], [x], body, name="root", dtype=dtype_of(x))
