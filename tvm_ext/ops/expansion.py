"""Repeats of a tensor along its axes, to shapes that may be known only at run time."""

from tvm import te, tirx


def expand(x, shape):
    """``x`` broadcast to ``shape``; each dim of ``x`` is 1 or that of ``shape``."""
    offset = len(shape) - len(x.shape)

    def element(*index):
        # A dim of 1 repeats its only element.
        return x(*(tirx.min(i, dim - 1) for i, dim in zip(index[offset:], x.shape, strict=True)))

    return te.compute(shape, element, "expand")


def tile(x, shape):
    """``x`` repeated to ``shape``, whose dims are multiples of those of ``x``."""

    def element(*index):
        return x(
            *(
                i if same(dim, out) else i % dim
                for i, dim, out in zip(index, x.shape, shape, strict=True)
            )
        )

    def same(dim, out):
        return isinstance(dim, tirx.IntImm) and int(dim) == out

    return te.compute(shape, element, "tile")
