"""Tensors made from indices: eye, arange, one-hot, triangles."""

from tvm import te, tirx
from tvm.te import Tensor

#: Numbers of elements that are none: see :func:`range_length`.
NO_STEP, ENDLESS = -1, -2
_MOST = float(1 << 40)  # elements: more than memory holds


def eye(shape, k, dtype):
    """``[rows, columns]``: one on the ``k``-th diagonal, zero elsewhere."""
    one, zero = (tirx.const(value, dtype) for value in (1, 0))
    return te.compute(shape, lambda i, j: tirx.Select(j - i == k, one, zero), "eye")


def arange(start, delta, length, compute_dtype):
    """``start + delta * i`` for ``i < length``; ``start`` and ``delta`` have one element."""

    def element(i):
        step = i.astype(compute_dtype) * _only(delta).astype(compute_dtype)
        return (_only(start).astype(compute_dtype) + step).astype(start.dtype)

    return te.compute((length,), element, "arange")


def range_length(start, limit, delta, compute_dtype):
    """How many elements ``arange`` has: ``int64[1]``.

    ``NO_STEP`` where ``delta`` is 0; of floats ``ENDLESS`` where no memory holds them, or one is
    NaN.
    """
    first, last, step = (_only(v).astype(compute_dtype) for v in (start, limit, delta))
    count = _float_count if compute_dtype.startswith("float") else _integer_count

    def length(_):
        none = tirx.const(NO_STEP, "int64")
        return tirx.Select(step == tirx.const(0, compute_dtype), none, count(first, last, step))

    return te.compute((1,), length, "range_length")


def _integer_count(first, last, step):
    span, stride = (last - first).astype("int64"), step.astype("int64")
    count = -tirx.floordiv(-span, tirx.Select(stride == 0, tirx.const(1, "int64"), stride))
    return tirx.max(count, tirx.const(0, "int64"))


def _float_count(first, last, step):
    steps = te.ceil((last - first).astype("float64") / step.astype("float64"))
    most = tirx.const(_MOST, "float64")
    count = tirx.max(tirx.min(steps, most), tirx.const(0, "float64")).astype("int64")
    return tirx.Select(steps < most, count, tirx.const(ENDLESS, "int64"))


def one_hot(indices, values, depth, axis):
    """``values[1]`` where ``indices`` names the place along a new ``axis``, else ``values[0]``.

    Negative indices count from the end; others out of range name nothing.
    """
    rank = len(indices.shape)

    def element(*index):
        at = indices(*index[:axis], *index[axis + 1 :]).astype("int64")
        hot = tirx.any(at == index[axis], at + depth == index[axis])
        return tirx.Select(hot, values[1], values[0])

    shape = [indices.shape[k] for k in range(rank)]
    return te.compute((*shape[:axis], depth, *shape[axis:]), element, "one_hot")


def trilu(x, k, upper):
    """The upper (or lower) triangles of ``x[..., M, N]``, from diagonal ``k`` (int or tensor)."""
    diagonal = k(*[0] * len(k.shape)) if isinstance(k, Tensor) else k

    def element(*index):
        row, column = index[-2:]
        kept = column - row >= diagonal if upper else column - row <= diagonal
        return tirx.Select(kept, x(*index), tirx.const(0, x.dtype))

    return te.compute(x.shape, element, "trilu")


def _only(x):
    return x(*[0] * len(x.shape))
