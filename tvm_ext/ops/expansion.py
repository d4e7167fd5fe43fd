"""Repeats of a tensor along its axes, to shapes that may be known only at run time."""

from tvm import te, tirx


def expand(x, shape):
    """``x`` broadcast to ``shape``; each dim of ``x`` is 1 or that of ``shape``."""
    offset = len(shape) - len(x.shape)

    def element(*index):
        # A dim of 1 repeats its only element.
        return x(*(tirx.min(i, dim - 1) for i, dim in zip(index[offset:], x.shape, strict=True)))

    return te.compute(shape, element, "expand")


def aligned_shape(shape, rank):
    """``shape[k]`` with ones in front up to ``rank``, then max(k, rank): ``int64[rank + 1]``."""
    missing = rank - shape.shape[0]

    def element(i):
        size = tirx.if_then_else(
            tirx.all(i >= missing, i < rank),
            shape[i - missing].astype("int64"),
            tirx.const(1, "int64"),
        )
        return tirx.Select(i == rank, tirx.max(shape.shape[0], rank), size)

    return te.compute((rank + 1,), element, "aligned_shape")


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
