"""How the types of a kernel are spelled in C, its constants, and what holds a value meanwhile.

A float8 is its bits, as kernels take them apart themselves."""

from __future__ import annotations

import math

import ml_dtypes  # noqa: F401  registers float8 with numpy
import numpy as np

from ...ops.float8 import FORMATS
from ..interface import C_TYPES

__all__ = ["Unprintable", "as_bits", "c_type", "constant", "is_narrow", "limits", "value_type"]


class Unprintable(Exception):
    """What C text has no form for; the message is the bare reason."""


_NARROW = "float16", "bfloat16"


def c_type(dtype: str) -> str:
    """What holds an element in memory; of floats that C lacks, their bits.

    Raises:
        Unprintable: there is no such type.
    """
    if dtype not in C_TYPES:
        raise Unprintable(f"elements of type {dtype}")
    return C_TYPES[dtype]


def value_type(dtype: str) -> str:
    """What holds an element while it is computed with.

    Raises:
        Unprintable: there is no such type.
    """
    return "float" if is_narrow(dtype) else c_type(dtype)


def is_narrow(dtype: str) -> bool:
    """Whether it is a float that C lacks: computed in float, rounded after each step."""
    return dtype in _NARROW


def as_bits(dtype: str) -> str:
    """The type of what holds a float8; any other as it is."""
    return "uint8" if dtype in FORMATS else dtype


def limits(dtype: str) -> tuple[int, int]:
    """The least and the greatest integer of a type."""
    if dtype == "bool":
        return 0, 1
    info = np.iinfo(dtype)
    return int(info.min), int(info.max)


def constant(value: float | int, dtype: str) -> str:
    """A literal of exactly this value."""
    if dtype == "bool":
        return "1" if value else "0"
    if dtype in FORMATS:
        return str(int(np.array(value, dtype).view(np.uint8)))
    if "int" in dtype:
        return _integer(int(value), dtype)
    if math.isnan(value):
        return "NAN"
    if math.isinf(value):
        return "INFINITY" if value > 0 else "-INFINITY"
    if dtype == "float64":
        return repr(float(value))
    return f"{np.float32(value)!s}f"


def _integer(value: int, dtype: str) -> str:
    least, _ = limits(dtype)
    if value == least < -(1 << 15):
        return f"{dtype.upper()}_MIN"
    if dtype in ("uint32", "uint64") and value < 1 << 32:
        return f"{value}u"
    if abs(value) < 1 << 31:
        return str(value)
    return f"{'U' if dtype[0] == 'u' else ''}INT64_C({value})"
