"""Element types narrower than a byte, and float8e8m0: their values in a byte of their own.

TVM packs int4 and cannot compute with float4. A model holds integers of 2 and 4 bits as int8 or
uint8 of the same value, float4, float6 and float8e8m0 as their codes in uint8. Strings are held as
numbers, which only move here.
"""

from tvm import tirx

from . import float8
from .narrow_arrays import FLOAT4, FLOAT6, INTEGERS, SCALE, STORAGE, STRING, restored, stored

__all__ = [
    "FLOAT4",
    "FLOAT6",
    "INTEGERS",
    "SCALE",
    "STORAGE",
    "STRING",
    "decode",
    "encode",
    "restored",
    "stored",
]

# Floats of fewer bits than 8 -> the place of their sign, and the rest in the low bits of float8.
_FLOATS = {
    FLOAT4: (3, float8.Format(1, 1, 6.0, None, 0x80)),
    "float6_e2m3fn": (5, float8.Format(3, 1, 7.5, None, 0x80)),
    "float6_e3m2fn": (5, float8.Format(2, 3, 28.0, None, 0x80)),
}


def decode(x: tirx.Expr, dtype: str) -> tirx.Expr:
    """The number that a stored scalar stands for: float32, or for integers as it is."""
    if dtype in INTEGERS:
        return x
    code = x.astype("uint32")
    if dtype in _FLOATS:
        place, form = _FLOATS[dtype]
        sign = (code & _word(1 << place)) << _word(7 - place)
        return float8.decode(sign | (code & _word((1 << place) - 1)), form)
    # The code is the exponent of float32; below the least of those, half of it.
    bits = tirx.Select(code == _word(0), _word(1 << 22), code << _word(23))
    nan = tirx.const(float("nan"), "float32")
    return tirx.Select(code == _word(0xFF), nan, tirx.reinterpret("float32", bits))


def encode(x: tirx.Expr, dtype: str, saturate: bool = True, round_mode: str = "up") -> tirx.Expr:
    """A scalar ``x`` as ``dtype``, as it is stored.

    Integers truncate toward zero and wrap; float4 and float6 round half to even and saturate, and
    NaN is -0, as in ml_dtypes; float8e8m0 takes the exponent, rounded as ``round_mode`` says, and
    drops the sign.
    """
    if dtype in INTEGERS:
        return _wrapped(x.astype("int32"), dtype)
    x = x.astype("float32")
    if dtype in _FLOATS:
        place, form = _FLOATS[dtype]
        code = float8.encode(x, form, saturate=True)
        sign = (code >> _word(7 - place)) & _word(1 << place)
        return (sign | (code & _word((1 << place) - 1))).astype("uint8")
    return _exponent(tirx.reinterpret("uint32", x), saturate, round_mode).astype("uint8")


def _wrapped(value: tirx.Expr, dtype: str) -> tirx.Expr:
    bits, storage = INTEGERS[dtype], STORAGE[dtype]
    low = tirx.bitwise_and(value, tirx.const((1 << bits) - 1, "int32"))
    if storage == "uint8":
        return low.astype(storage)
    negative = tirx.bitwise_and(value, tirx.const(1 << (bits - 1), "int32")) > 0
    return tirx.Select(negative, low - tirx.const(1 << bits, "int32"), low).astype(storage)


def _exponent(bits: tirx.Expr, saturate: bool, round_mode: str) -> tirx.Expr:
    """The exponent of a float32 given by its bits, one more where it is rounded up."""
    exponent = (bits >> _word(23)) & _word(0xFF)
    fraction = bits & _word(0x7FFFFF)
    half = _word(0x400000)
    rounds = {
        "up": fraction > _word(0),
        "down": tirx.const(False, "bool"),
        # A tie goes to the even mantissa, which is that of the next power; 0 has none.
        "nearest": tirx.any(fraction > half, tirx.all(fraction == half, exponent > _word(0))),
    }[round_mode]
    largest = _word(0xFE if saturate else 0xFF)
    up = tirx.all(rounds, exponent < largest)
    return tirx.Select(up, exponent + _word(1), exponent)


def _word(value: int) -> tirx.Expr:
    return tirx.const(value, "uint32")
