"""Attention of symbolic sizes, as it is defined: products, softmax, product.

What a kernel does with it, tile by tile and without storing the scores of all queries, is up to its
schedule; results are within the error bound of :mod:`.attention_tiled`.
"""

from collections.abc import Callable, Sequence

from tvm import te, tirx

from .approximations import exp_nonpositive
from .attention_tiled import guarded

__all__ = ["attention_symbolic"]


def attention_symbolic(
    q: te.Tensor,
    k: te.Tensor,
    v: te.Tensor,
    *rest: te.Tensor | tirx.Expr,
    axes: Sequence[Sequence[int]],
    repeats: Sequence[int],
    steps: Callable[..., tirx.Expr],
    guard: str | None,
) -> te.Tensor:
    """``q[.., H, S, D]``, ``k[.., G, T, D]``, ``v[.., G, T, V]`` -> ``[.., H, S, V]``, float32.

    ``axes`` are the transposes through which q, k and v are read and the one of the result;
    ``repeats`` by how much H is more than the heads of k and of v. ``steps(scores, place, *rest)``
    is the score of a place after masks and scales. A row without any weight is NaN; it is 0 with
    ``guard`` "empty", and so is any row of NaN with "nan", and all of them where there is no key.
    """
    read = [_Operand(x, a, r) for x, a, r in zip((q, k, v), axes[:3], (1, *repeats), strict=True)]
    query, key, value = read
    *leading, length, depth = query.shape
    leading = [_stretched(*dims) for dims in zip(*(x.leading for x in read), strict=True)]
    keys, width = value.shape[-2:]
    d, t, u, w = (
        te.reduce_axis((0, n), x) for n, x in zip((depth, *3 * [keys]), "dtuw", strict=True)
    )
    rows = (*leading, length)

    def product(*i):
        *at, row, column = i
        return te.sum(query(*at, row, d) * key(*at, column, d), axis=d)

    scores = te.compute((*rows, keys), product, "scores")
    masked = te.compute((*rows, keys), lambda *i: steps(scores, i, *rest), "masked")
    peak = te.compute(rows, lambda *i: te.max(masked(*i, t), axis=t), "row_max")
    power = te.compute(
        (*rows, keys), lambda *i: exp_nonpositive(masked(*i) - peak(*i[:-1])), "row_exp"
    )
    total = te.compute(rows, lambda *i: te.sum(power(*i, u), axis=u), "row_sum")

    def weighted(*i):
        *at, row, column = i
        return te.sum(power(*at, row, w) * value(*at, w, column), axis=w)

    mixed = te.compute((*rows, width), weighted, "mixed")

    def element(*index):
        place = dict(zip(axes[3], index, strict=True))
        plain = [place[axis] for axis in range(len(index))]
        result = guarded(mixed(*plain), total(*plain[:-1]), guard)
        return tirx.Select(keys == 0, tirx.const(0.0, "float32"), result)

    dims = [*rows, width]
    return te.compute([dims[axis] for axis in axes[3]], element, "attention")


class _Operand:
    """A tensor read by the axes of its transpose, each head ``repeat`` times."""

    def __init__(self, tensor: te.Tensor, axes: Sequence[int], repeat: int):
        self.tensor, self.axes, self.repeat = tensor, axes, repeat
        self.shape = [tensor.shape[axis] for axis in axes]

    @property
    def leading(self) -> list:
        """The dims in front of the last two, heads as often as they are read."""
        *outer, heads = self.shape[:-2] or [tirx.const(1, "int64")]
        return [*outer, heads * self.repeat] if len(self.shape) > 2 else []

    def __call__(self, *index: tirx.Expr) -> tirx.Expr:
        *leading, row, column = index
        if self.repeat > 1:
            leading[-1] = leading[-1] // self.repeat
        leading = [0 if _is_one(n) else i for i, n in zip(leading, self.shape, strict=False)]
        stored = dict(zip(self.axes, (*leading, row, column), strict=True))
        return self.tensor(*(stored[axis] for axis in range(len(index))))


def _stretched(*dims):
    """The dim that others, if they are 1, are stretched to."""
    return next((dim for dim in dims if not _is_one(dim)), dims[0])


def _is_one(dim) -> bool:
    return isinstance(dim, int | tirx.IntImm) and int(dim) == 1
