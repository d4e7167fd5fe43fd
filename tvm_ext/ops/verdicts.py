"""What checks ask of tensors: a few integers that tell whether all elements are allowed."""

from functools import reduce

from tvm import te, tirx


def extremes(values, neutral, types=(), but=None):
    """The least and the greatest of all ``values`` and of ``neutral``: ``int64[2]``.

    Elements are given ``types`` before, one after the other; those that are ``but`` count nothing.
    """

    def element(*index):
        value = reduce(lambda x, ty: x.astype(ty), (*types, "int64"), values(*index[:-1]))
        if but is None:
            return value
        return tirx.Select(value == but, tirx.const(neutral, "int64"), value)

    return _extremes(element, values.shape, 1, neutral, "extremes")


def column_extremes(values):
    """Of each column of rows the least and the greatest of its elements and of 0, in pairs."""
    *rows, count = values.shape
    return _extremes(values, rows, count, 0, "column_extremes")


def _extremes(element, rows, count, neutral, name):
    """Of each of ``count`` columns the least and the greatest of ``element(*row, column)``."""

    def extremum(reducer, choose, name):
        axes = [te.reduce_axis((0, extent), f"r{k}") for k, extent in enumerate(rows)]

        def column(k):
            value = element(*axes, k).astype("int64")
            return reducer(value, axis=axes) if axes else value

        found = te.compute((count,), column, name)
        return lambda k: choose(found[k], tirx.const(neutral, "int64"))

    least = extremum(te.min, tirx.min, "least")
    greatest = extremum(te.max, tirx.max, "greatest")

    def pair(k):
        return tirx.Select(k % 2 == 0, least(k // 2), greatest(k // 2))

    return te.compute((2 * count,), pair, name)


def least_size(values):
    """The least absolute value of all ``values``, at most 1: ``int64[1]``."""
    axes = [te.reduce_axis((0, extent), f"r{k}") for k, extent in enumerate(values.shape)]
    size = tirx.abs(values(*axes).astype("int64"))
    least = te.compute((1,), lambda _: te.min(size, axis=axes), "least")
    return te.compute((1,), lambda k: tirx.min(least[k], tirx.const(1, "int64")), "least_size")
