"""Arithmetic of two or more broadcasting tensors.

Why not TVM's own: maximum and minimum drop NaN, and an integer division by zero or of the least
integer by -1 kills the process.
"""

import operator
from collections.abc import Callable
from functools import reduce

from tvm import tirx

from .elementwise import dtype_of, elementwise
from .formula import once, once_bits, opaque

__all__ = ["add", "div", "fmod", "integer_power", "maximum", "mean", "minimum", "mod", "mul",
           "power", "sub", "wrapping"]  # fmt: skip


@elementwise
def add(a, b):
    """``a[...] + b[...]``; integers wrap."""
    return wrapping(operator.add, a, b)


@elementwise
def sub(a, b):
    """``a[...] - b[...]``; integers wrap."""
    return wrapping(operator.sub, a, b)


@elementwise
def mul(a, b):
    """``a[...] * b[...]``; integers wrap."""
    return wrapping(operator.mul, a, b)


@elementwise
def div(a, b):
    """``a[...] / b[...]``; integers truncate toward zero, and give 0 for a zero divisor."""
    if _is_float(a):
        return a / b
    if _by_floats(b):
        return _Division(a, b).quotient()
    return _unless_trapping(b, tirx.truncdiv(a, b), minus_one=lambda: _zero(a) - a)


@elementwise
def mod(a, b):
    """The remainder with the sign of ``b[...]``; of integers 0 for a zero divisor."""
    if _is_float(a):
        remainder = once(_libm_fmod(a, b))
        differs = tirx.any(tirx.all(remainder < 0.0, b > 0.0), tirx.all(remainder > 0.0, b < 0.0))
        shifted = tirx.Select(differs, remainder + b, remainder)
        is_zero = tirx.all(remainder <= 0.0, remainder >= 0.0)
        return tirx.Select(is_zero, tirx.copysign(remainder, b), shifted)
    if _by_floats(b):
        return _Division(a, b).modulo()
    remainder = tirx.truncmod if _is_unsigned(a) else tirx.floormod
    return _unless_trapping(b, remainder(a, b), minus_one=lambda: _zero(a))


@elementwise
def fmod(a, b):
    """The remainder with the sign of ``a[...]``; of integers 0 for a zero divisor."""
    if _is_float(a):
        return _libm_fmod(a, b)
    if _by_floats(b):
        return _Division(a, b).rest()
    return _unless_trapping(b, tirx.truncmod(a, b), minus_one=lambda: _zero(a))


@elementwise
def maximum(a, b):
    """The larger of ``a[...]`` and ``b[...]``; NaN if either is."""
    return tirx.Select(_or_nan(a > b, a), a, b)


@elementwise
def minimum(a, b):
    """The smaller of ``a[...]`` and ``b[...]``; NaN if either is."""
    return tirx.Select(_or_nan(a < b, a), a, b)


@elementwise
def mean(*operands):
    """The mean of all ``operands[...]``."""
    return reduce(lambda a, b: a + b, operands) / tirx.const(len(operands), operands[0].ty)


@elementwise
def power(a, b, *, exponent=None):
    """``a[...] ** b[...]`` in floating point; the result has the type of ``a``.

    ``exponent`` is the value of ``b`` where it is one number known at compile time; small whole
    ones become multiplications.
    """
    if exponent in (1, 2, 3):
        return reduce(lambda x, y: x * y, [a] * int(exponent))
    compute = "float32" if dtype_of(a) == "float32" else "float64"
    return tirx.pow(a.astype(compute), b.astype(compute)).astype(dtype_of(a))


@elementwise
def integer_power(a, b):
    """``a[...] ** b[...]`` of int32 or int64, exact modulo 2**bits; 0 for what is below 1."""
    b = once_bits(b.astype("int64"))
    one = tirx.const(1, a.ty)
    is_unit = tirx.all(a <= one, a * a >= one)  # 1 or -1: any power is its parity's
    parity = tirx.bitwise_and(b, tirx.const(1, "int64"))
    # Beyond 63 only 0, 1 and -1 have a power that does not overflow, and it repeats.
    e = once_bits(tirx.Select(b > 63, parity + 62, tirx.Select(b < 0, parity, b)))
    result = _power_by_squaring(a, e, bits=6)
    return tirx.Select(tirx.all(b < 0, tirx.Not(is_unit)), _zero(a), result)


def _power_by_squaring(base, exponent, bits):
    """base ** exponent for 0 <= exponent < 2**bits."""
    result = tirx.const(1, base.ty)
    for bit in range(bits):
        is_set = tirx.bitwise_and(exponent, tirx.const(1 << bit, "int64")) > 0
        result = once_bits(tirx.Select(is_set, result * base, result))
        base = once_bits(base * base)
    return result


def _libm_fmod(a, b):
    """TVM has no lowering of its own fmod for llvm."""
    dtype = dtype_of(a)
    return tirx.call_pure_extern(dtype, "fmodf" if dtype == "float32" else "fmod", a, b)


def wrapping(operation: Callable, a: tirx.Expr, b: tirx.Expr) -> tirx.Expr:
    """A sum, difference or product of scalars; of integers modulo 2**bits.

    TVM and LLVM suppose that those do not wrap, ``x + 1 > x``. TVM does not see the result; LLVM
    sees 32 bits as what is left of 64. Of 64 bits it still supposes so, where a comparison follows
    in the same kernel.
    """
    if _is_float(a):
        return operation(a, b)
    if "32" not in dtype_of(a):
        return opaque(operation(a, b))
    wide = "uint64" if operation is operator.mul and _is_unsigned(a) else "int64"
    return opaque(operation(a.astype(wide), b.astype(wide))).astype(dtype_of(a))


def _by_floats(b):
    """Whether to divide integers by ``b`` as floats, which vectors do.

    Not by a known number, for LLVM has better ways, nor what a float's sign has no room for.
    """
    return not isinstance(b, tirx.IntImm) and dtype_of(b) != "uint64"


class _Division:
    """``a / b`` of integers, by floats; 0, and nothing left, for ``b = 0``.

    Of up to 32 bits in floats of more than twice as many: a quotient that is no whole number is
    further from one, by 1 / b at least, than they round. Of 64 bits what the quotient of floats
    leaves, some thousand times ``b`` at most, is divided again, and is then less than ``b``, of
    either sign. Conditions are on floats: loops are cut where integers are compared.
    """

    def __init__(self, a, b):
        self.a, self.b = a, b
        self.wide = "64" in dtype_of(a)
        self.dtype = "float64" if self.wide or "32" in dtype_of(a) else "float32"
        self.x, self.y = once(a.astype(self.dtype)), once(b.astype(self.dtype))
        self.near = self._near()
        self.left = a - self.near * b

    def quotient(self):
        """Rounded toward zero; the least integer by -1 is itself."""
        quotient = self.near
        if self.wide:
            one = tirx.const(1, self.a.ty)
            step = tirx.Select(self.x * self.y < self._float(0), _minus_one(self.a), one)
            quotient = tirx.Select(self._is_beyond(self.x), quotient - step, quotient)
        return self._unless_by_zero(quotient)

    def rest(self):
        """What the quotient leaves, with the sign of ``a``."""
        if not self.wide:
            return self._unless_by_zero(self.left)
        step = tirx.Select(self.x * self.y < self._float(0), _zero(self.b) - self.b, self.b)
        return self._unless_by_zero(
            tirx.Select(self._is_beyond(self.x), self.left + step, self.left)
        )

    def modulo(self):
        """What the quotient rounded down leaves, with the sign of ``b``."""
        left = self.left
        if not _is_unsigned(self.a):
            left = tirx.Select(self._is_beyond(self.y), left + self.b, left)
        return self._unless_by_zero(left)

    def _near(self):
        """The quotient, of 64 bits one near it."""
        divisor = once(tirx.Select(self.y.equal(self._float(0)), self._float(1), self.y))
        by_floats, dtype = once(self.x / divisor), dtype_of(self.a)
        if self.wide:
            # What is larger, and overflows, leaves some.
            first = once(tirx.min(by_floats, self._float(2.0**63 - 1024))).astype(dtype)
            again = once((self.a - first * self.b).astype(self.dtype) / divisor)
            return first + again.astype(dtype)
        if self.dtype == "float32":
            return by_floats.astype("int32").astype(dtype)
        quotient = by_floats.astype(dtype)
        if _is_unsigned(self.a):
            return quotient
        return tirx.Select(self.y.equal(self._float(-1)), _zero(self.a) - self.a, quotient)

    def _is_beyond(self, sign):
        """Whether something is left whose sign is not that of ``sign``."""
        return self.left.astype(self.dtype) * sign < self._float(0)

    def _unless_by_zero(self, result):
        return tirx.Select(self.y.equal(self._float(0)), _zero(self.a), result)

    def _float(self, value):
        return tirx.const(value, self.dtype)


def _unless_trapping(b, result, minus_one):
    """``result`` of a division by ``b``; 0 for b = 0, and ``minus_one`` for b = -1.

    The machine's division traps for 0, and for -1 under the least integer. The branch is a real
    one: an operation in an arm of a Select is evaluated in any case.
    """
    if not _is_unsigned(b):
        result = tirx.if_then_else(b.equal(_minus_one(b)), minus_one(), result)
    return tirx.if_then_else(b.equal(_zero(b)), _zero(b), result)


def _or_nan(condition, x):
    return tirx.any(condition, tirx.isnan(x)) if _is_float(x) else condition


def _is_float(x):
    return "float" in dtype_of(x)


def _is_unsigned(x):
    return dtype_of(x).startswith("uint")


def _zero(x):
    return tirx.const(0, x.ty)


def _minus_one(x):
    return tirx.const(-1, x.ty)
