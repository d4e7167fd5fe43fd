"""Writing blocks into a larger tensor: Col2Im and TensorScatter, as gathers."""

from math import prod

from tvm import te, tirx

__all__ = ["col2im", "tensor_scatter"]


def col2im(x, image, block, strides, dilations, before, positions):
    """Sum the columns of ``x[N, C * prod(block), L]`` where they overlap in ``[N, C, *image]``.

    L counts the block positions, row by row: ``positions`` along each axis. ``before`` are the
    begin pads.
    """
    taps = [te.reduce_axis((0, k), f"k{axis}") for axis, k in enumerate(block)]
    channels = tirx.floordiv(x.shape[1], tirx.max(prod(block), tirx.const(1, "int64")))

    def term(n, c, *index):
        row, column, inside = c, tirx.const(0, "int64"), []
        for axis, i in enumerate(index):
            start = i + before[axis] - taps[axis] * dilations[axis]
            position = tirx.floordiv(start, strides[axis])
            inside += [start >= 0, position < positions[axis]]
            if strides[axis] > 1:
                inside.append(tirx.floormod(start, strides[axis]) == 0)
            row = row * block[axis] + taps[axis]
            column = column * positions[axis] + position
        value = tirx.if_then_else(tirx.all(*inside), x(n, row, column), tirx.const(0, x.dtype))
        return te.sum(value, axis=taps)

    return te.compute((x.shape[0], channels, *image), term, "col2im")


def tensor_scatter(cache, update, starts, axis, circular):
    """``cache`` with ``update`` written along ``axis`` from ``starts[B]`` (or None: 0) on.

    ``circular`` wraps around the end of the axis.
    """
    extent, length = cache.shape[axis], update.shape[axis]

    def element(*i):
        # In the type of the index: the compiler's range analysis knows no mixed integers.
        offset = i[axis] if starts is None else i[axis] - starts(i[0]).astype(i[axis].ty)
        if circular:
            offset = tirx.floormod(offset, extent)
        written = tirx.all(offset >= 0, offset < length)
        at = (*i[:axis], offset, *i[axis + 1 :])
        return tirx.if_then_else(written, update(*at), cache(*i))

    return te.compute(cache.shape, element, "tensor_scatter")
