"""What checks ask of tensors: a few integers that tell whether all elements are allowed."""

from tvm import te, tirx


def extremes(values, neutral):
    """The least and the greatest of all ``values`` and of ``neutral``: ``int64[2]``."""

    def extremum(reducer, choose, name):
        axes = [te.reduce_axis((0, extent), f"r{k}") for k, extent in enumerate(values.shape)]
        found = te.compute((1,), lambda _: reducer(values(*axes).astype("int64"), axis=axes), name)
        return choose(found[0], tirx.const(neutral, "int64"))

    least = extremum(te.min, tirx.min, "least")
    greatest = extremum(te.max, tirx.max, "greatest")
    return te.compute((2,), lambda k: tirx.Select(k == 0, least, greatest), "extremes")


def least_size(values):
    """The least absolute value of all ``values``, at most 1: ``int64[1]``."""
    axes = [te.reduce_axis((0, extent), f"r{k}") for k, extent in enumerate(values.shape)]
    size = tirx.abs(values(*axes).astype("int64"))
    least = te.compute((1,), lambda _: te.min(size, axis=axes), "least")
    return te.compute((1,), lambda k: tirx.min(least[k], tirx.const(1, "int64")), "least_size")
