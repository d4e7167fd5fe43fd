"""Feature preparation as in ai.onnx.ml."""

from tvm import te, tirx

from .elementwise import dtype_of, elementwise

__all__ = ["NORMS", "encode_labels", "fit_columns", "impute", "normalize_rows", "one_hot"]


@elementwise
def impute(x, values, *, replaced):
    """``x[...]``, and ``values[...]`` (broadcast) where it is ``replaced``, which may be NaN."""
    if replaced != replaced:
        missing = tirx.isnan(x)
    else:
        missing = x == tirx.const(replaced, x.ty)
    return tirx.Select(missing, values, x)


NORMS = {
    "MAX": (te.max, lambda v: v, lambda total: total),
    "L1": (te.sum, tirx.abs, lambda total: total),
    "L2": (te.sum, lambda v: v * v, tirx.sqrt),
}


def normalize_rows(x, norm):
    """The rows of ``x[R, C]`` divided by their ``norm``; those whose norm is 0 stay."""
    reduce, measure, finish = NORMS[norm]
    k = te.reduce_axis((0, x.shape[1]), "k")
    total = te.compute((x.shape[0],), lambda i: reduce(measure(x[i, k]), axis=k), "norm")

    def divided(i, j):
        size = finish(total[i])
        return tirx.Select(total[i] == 0, x[i, j], x[i, j] / size)

    return te.compute(x.shape, divided, "normalize_rows")


def fit_columns(x, width):
    """``x[R, C]`` cut, or filled up with zeros, to ``[R, width]``."""
    zero = tirx.const(0, x.dtype)
    return te.compute(
        (x.shape[0], width),
        lambda i, j: tirx.if_then_else(j < x.shape[1], x[i, j], zero),
        "fit_columns",
    )


def one_hot(x, keys):
    """``float32[..., K]``: 1 where the element of ``x[...]`` is ``keys[k]``."""
    return te.compute(
        (*x.shape, keys.shape[0]),
        lambda *i: (x(*i[:-1]) == keys[i[-1]]).astype("float32"),
        "one_hot",
    )


def encode_labels(x, keys, values, default):
    """``values[k]`` where ``x[...]`` equals ``keys[k]``, else ``default[]``.

    ``keys`` are sorted, NaN (equal to itself) last; of equal keys the first counts. The keys below
    an element are counted, not searched: that vectorises, and they are few. There may be none where
    their number is symbolic.
    """
    count = keys.shape[0]
    r = te.reduce_axis((0, count), "r")

    def missing(value):
        return tirx.isnan(value) if "float" in dtype_of(value) else tirx.const(False, "bool")

    def below(*i):
        precedes = tirx.any(keys(r) < x(*i), tirx.all(missing(x(*i)), tirx.Not(missing(keys(r)))))
        return te.sum(precedes.astype("int32"), axis=r)

    place = te.compute(x.shape, below, "place")

    def label(*i):
        at = tirx.min(place(*i), count.astype("int32") - 1)
        found = tirx.any(keys(at) == x(*i), tirx.all(missing(x(*i)), missing(keys(at))))
        value = tirx.Select(found, values(at), default())
        if isinstance(count, tirx.IntImm):
            return value
        return tirx.if_then_else(at >= 0, value, default())

    return te.compute(x.shape, label, "encode_labels")
