"""Comparison, logic and bits of broadcasting tensors, and selection."""

from tvm import tirx

from .elementwise import dtype_of, elementwise

__all__ = [
    "bitwise_and", "bitwise_not", "bitwise_or", "bitwise_xor", "equal", "greater", "greater_equal",
    "is_inf", "is_nan", "less", "less_equal", "logical_and", "logical_not", "logical_or",
    "logical_xor", "shift_left", "shift_right", "where",
]  # fmt: skip

bitwise_and = elementwise(tirx.bitwise_and)
bitwise_or = elementwise(tirx.bitwise_or)
bitwise_xor = elementwise(tirx.bitwise_xor)
bitwise_not = elementwise(tirx.bitwise_not)

equal = elementwise(lambda a, b: tirx.EQ(a, b), "equal")
greater = elementwise(lambda a, b: a > b, "greater")
greater_equal = elementwise(lambda a, b: a >= b, "greater_equal")
less = elementwise(lambda a, b: a < b, "less")
less_equal = elementwise(lambda a, b: a <= b, "less_equal")

logical_and = elementwise(tirx.And, "logical_and")
logical_or = elementwise(tirx.Or, "logical_or")
logical_xor = elementwise(lambda a, b: tirx.NE(a, b), "logical_xor")
logical_not = elementwise(tirx.Not, "logical_not")

is_nan = elementwise(tirx.isnan, "is_nan")


@elementwise
def is_inf(x, *, negative, positive):
    """``x[...]`` is infinite, of a sign that counts."""
    infinity = tirx.const(float("inf"), x.ty)
    never = tirx.const(False, "bool")
    return tirx.any(
        x >= infinity if positive else never,
        x <= -infinity if negative else never,
    )


@elementwise
def where(condition, a, b):
    """``a[...]`` where ``condition[...]``, else ``b[...]``."""
    return tirx.Select(condition, a, b)


@elementwise
def shift_left(x, amount):
    """``x[...] << amount[...]``; 0 where the amount is negative or not below the bits of ``x``."""
    shifted = tirx.shift_left(x, _in_range(amount))
    return tirx.Select(_is_shift(amount), shifted, tirx.const(0, x.ty))


@elementwise
def shift_right(x, amount):
    """``x[...] >> amount[...]``, by all bits where the amount is negative or not below them."""
    shifted = tirx.shift_right(x, _in_range(amount))
    if dtype_of(x).startswith("uint"):
        return tirx.Select(_is_shift(amount), shifted, tirx.const(0, x.ty))
    return shifted  # by bits - 1 at most: nothing but the sign is left


def _in_range(amount):
    return tirx.Select(_is_shift(amount), amount, tirx.const(_bits(amount) - 1, amount.ty))


def _is_shift(amount):
    below = amount < tirx.const(_bits(amount), amount.ty)
    return below if dtype_of(amount).startswith("uint") else tirx.all(amount >= 0, below)


def _bits(x):
    return int(dtype_of(x).lstrip("uint"))
