"""Repeats of a tensor along its axes, to shapes that may be known only at run time."""

from tvm import te, tirx


def expand(x, shape):
    """``x`` broadcast to ``shape``; each dim of ``x`` is 1 or that of ``shape``."""
    offset = len(shape) - len(x.shape)

    def element(*index):
        # A dim of 1 repeats its only element.
        at = [tirx.min(i, dim - 1) for i, dim in zip(index[offset:], x.shape, strict=True)]
        if not at or isinstance(x.shape[-1], tirx.IntImm):
            return x(*at)
        # Either way the elements of a vector are no gather.
        *outer, _ = at
        return tirx.if_then_else(x.shape[-1] == 1, x(*outer, 0), x(*outer, index[-1]))

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


def tile(x, repeats, apart):
    """``x`` repeated along its axes.

    ``apart``: an axis whose repeats are an axis of their own before it in the result.
    """

    def element(*index):
        place = [*index[:apart], *index[apart + 1 :]] if apart is not None else index
        return x(
            *(
                i if k == apart or _is(1, count) or _is(0, dim) else i % dim
                for k, (i, dim, count) in enumerate(zip(place, x.shape, repeats, strict=True))
            )
        )

    shape = [dim * count for dim, count in zip(x.shape, repeats, strict=True)]
    if apart is not None:
        shape[apart : apart + 1] = repeats[apart], x.shape[apart]
    return te.compute(shape, element, "tile")


def _is(number, value):
    return isinstance(value, int | tirx.IntImm) and int(value) == number
