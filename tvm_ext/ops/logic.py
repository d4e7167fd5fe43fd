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

greater = elementwise(lambda a, b: a > b, "greater")
greater_equal = elementwise(lambda a, b: a >= b, "greater_equal")
less = elementwise(lambda a, b: a < b, "less")
less_equal = elementwise(lambda a, b: a <= b, "less_equal")

logical_and = elementwise(tirx.And, "logical_and")
logical_or = elementwise(tirx.Or, "logical_or")
logical_not = elementwise(tirx.Not, "logical_not")

is_nan = elementwise(tirx.isnan, "is_nan")


@elementwise
def equal(a, b):
    """``a[...] == b[...]``."""
    return tirx.EQ(*map(_comparable, (a, b)))


@elementwise
def logical_xor(a, b):
    """Whether just one of ``a[...]`` and ``b[...]`` is true."""
    return tirx.NE(*map(_comparable, (a, b)))


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
    sign = tirx.shift_right(x, tirx.const(_bits(x) - 1, x.ty))
    return tirx.Select(_is_shift(amount), shifted, sign)


def _comparable(x):
    """LLVM code generation compares two bools as if they were floats."""
    return x.astype("uint8") if dtype_of(x) == "bool" else x


def _in_range(amount):
    return tirx.bitwise_and(amount, tirx.const(_bits(amount) - 1, amount.ty))


def _is_shift(amount):
    # Not as amount < bits: TVM rewrites that to a difference, and refuses a negative unsigned one.
    beyond = tirx.bitwise_and(amount, tirx.bitwise_not(tirx.const(_bits(amount) - 1, amount.ty)))
    return tirx.EQ(beyond, tirx.const(0, amount.ty))


def _bits(x):
    return int(dtype_of(x).lstrip("uint"))
