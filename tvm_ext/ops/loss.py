"""The negative log likelihood of class labels."""

from tvm import te, tirx

__all__ = ["negative_log_likelihood"]


def negative_log_likelihood(x, target, weight, ignore_index, reduction):
    """``-x[n, target[n, d...], d...] * weight[target]`` for ``x[N, C, d...]``.

    ``weight[C]`` may be None; targets equal to ``ignore_index`` (or None) count nothing.
    ``reduction`` is none (``[N, d...]``), sum or mean (scalars); the mean divides by the sum of
    the weights. Sums run in float32 for narrow floats; the result has the type of ``x``.
    """
    dtype = "float32" if str(x.dtype) in ("float16", "bfloat16") else x.dtype
    zero, classes = tirx.const(0, dtype), x.shape[1]

    def label(*i):
        k = target(*i).astype("int64")
        k = tirx.Select(k < 0, k + classes, k)
        # An ignored target may be no class at all.
        return tirx.max(tirx.min(k, classes - 1), 0)

    def share(*i):
        value = tirx.const(1, dtype) if weight is None else weight(label(*i)).astype(dtype)
        if ignore_index is None:
            return value
        counts = target(*i).astype("int64") != tirx.const(ignore_index, "int64")
        return counts.astype(dtype) * value

    def loss(n, *i):
        picked = x(n, label(n, *i), *i).astype(dtype)
        return zero - picked * share(n, *i)

    if reduction == "none":
        return te.compute(
            target.shape, lambda *i: loss(*i).astype(x.dtype), "negative_log_likelihood"
        )

    def summed(term, name):
        terms = te.compute(target.shape, term, f"{name}_terms")
        axes = [te.reduce_axis((0, dim), f"r{k}") for k, dim in enumerate(target.shape)]
        return te.compute((1,), lambda _: te.sum(terms(*axes), axis=axes), name)

    total = summed(loss, "loss_sum")
    if reduction == "sum":
        return te.compute((), lambda *_: total[0].astype(x.dtype), "negative_log_likelihood")
    count = summed(share, "weight_sum")
    return te.compute(
        (), lambda *_: (total[0] / count[0]).astype(x.dtype), "negative_log_likelihood"
    )
