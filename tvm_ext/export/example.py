"""The inputs of the example program, by a formula that C and numpy share, and what it expects."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite

import numpy as np

from ..ops.float8 import FORMATS
from .interface import Tensor

__all__ = ["Expected", "example_input", "expected"]

# Of the floats that C lacks: the bits of 1; of every kind of float8, of a number up to that.
_ONE = {"float16": 0x3C00, "bfloat16": 0x3F80} | dict.fromkeys(FORMATS, 0x38)
_SAMPLES = 64

Expected = list[tuple[int, float]]  # element number -> value


def example_input(tensor: Tensor, number: int) -> np.ndarray:
    """Input ``number`` of the example: floats in [-1, 1), integers and bools 0 or 1.

    float16 and bfloat16 are 0 or 1 too, float8 0 or what has the bits 0x38.
    """
    count = tensor.bytes // tensor.element
    bits = _mixed(np.arange(count, dtype=np.uint64) + np.uint64(number << 32))
    dtype = np.dtype(tensor.dtype)
    if dtype.name in ("float32", "float64"):
        values = (bits >> np.uint64(40)).astype(dtype) / dtype.type(1 << 23) - dtype.type(1)
    elif dtype.name in _ONE:
        held = np.dtype(f"uint{8 * dtype.itemsize}")
        values = ((bits >> np.uint64(63)) * np.uint64(_ONE[dtype.name])).astype(held).view(dtype)
    else:
        values = (bits >> np.uint64(63)).astype(dtype)
    return values.reshape(tensor.shape)


def _mixed(state: np.ndarray) -> np.ndarray:
    """The output function of splitmix64."""
    z = (state + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def expected(outputs: Sequence[np.ndarray]) -> list[Expected]:
    """Up to ``_SAMPLES`` elements of each output, from all over it.

    Of floats that C lacks, without infinities and NaN, which the example does not tell apart.
    """
    return [_samples(output) for output in outputs]


def _samples(output: np.ndarray) -> Expected:
    flat = output.reshape(-1)
    places = np.unique(np.linspace(0, flat.size - 1, min(flat.size, _SAMPLES)).astype(int))
    found = [(int(place), float(flat[place])) for place in places] if flat.size else []
    lacking = output.dtype.name in _ONE
    return [(place, value) for place, value in found if not lacking or isfinite(value)]
