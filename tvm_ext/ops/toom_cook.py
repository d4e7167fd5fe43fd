"""The transforms of Winograd's method: Toom and Cook's interpolation along an axis, and its error.

``F(m x m, 3 x 3)``: a tile of m x m outputs takes (m + 2)^2 multiplications per pair of channels
where the direct way takes 9 m^2: 2.25 times fewer for m = 2, 4 times for m = 4. Inputs, weights
and products are transformed by interpolation at 0, pairs +-p, and infinity (Lavin and Gray, "Fast
Algorithms for Convolutional Neural Networks", 2015). Windows of 4 x 4 (m = 4) and 5 x 5 (m = 2)
likewise, of stride 1; ``F(m, k)`` of one axis takes m + k - 1 multiplications in the place of m k.

Stride 2 takes every second row: those under the outer taps of the window are convolved with two
taps, those under the middle one with one tap, and the sums added; along rows likewise. A tile takes
(2 m + 1)^2 multiplications: 1.44 times fewer than the direct way for m = 2, 1.78 times for m = 4.
One tap is the same weight for all m outputs, so that the weights of a point may serve several.

The error grows with eps * s, eps = 2**-24, s = max|x| * the largest sum of |w| over a filter. On
random data, means 0 to 1000, it stays below ``ERROR[m] * eps * s`` (direct: below 1); what the
transforms can amplify roundings by in the worst case is 16 (m = 2) and 189 (m = 4), of either
stride. m = 4 interpolates at +-sqrt(1/2) and +-sqrt(2): the usual +-1 and +-2 amplify by 860 and
lose four times as much on random data. 5 x 5 has the same points and amplifies by 261. 4 x 4 has
three pairs and no 0 and amplifies by 763: +-1/2, +-1 and +-2 by 1658.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from math import isclose, prod, sqrt

import numpy as np
from numpy.polynomial.polynomial import polyfromroots
from tvm import tirx

__all__ = [
    "ERROR",
    "KERNEL",
    "SIZES",
    "Tiling",
    "input_rows",
    "output_rows",
    "parts_of",
    "tiling",
    "transform_weight",
]

#: Taps of the usual window.
KERNEL = 3

#: Taps along an axis -> the m there may be.
SIZES = {KERNEL: (2, 4), 4: (4,), 5: (2,)}
_PART = 4  # taps, of longer windows

# The p of the points +-p between 0 and infinity, by how many there are.
_PAIRS = {1: (1.0,), 2: (sqrt(0.5), sqrt(2.0)), 3: (0.4, 0.9, 1.6)}

#: m -> the bound of the error on random data (see above).
ERROR = {2: 2.0, 4: 4.0}


@dataclass(frozen=True)
class Tiling:
    """Along one axis: ``m`` outputs of a tile, under a window of ``taps``."""

    m: int
    taps: int = KERNEL
    stride: int = 1

    @property
    def window(self) -> int:
        """The inputs that the outputs of a tile see, and its points."""
        return self.window_of(self.m)

    @property
    def phases(self) -> list[int]:
        """The taps over every input that is a multiple of ``stride``, over every one behind..."""
        return [len(range(phase, self.taps, self.stride)) for phase in range(self.stride)]

    def window_of(self, outputs: int) -> int:
        """The inputs that so many outputs see."""
        return (outputs - 1) * self.stride + self.taps


def tiling(m: int, taps: Sequence[int], stride: int = 1) -> list[Tiling]:
    """Down and across a window of so many taps; along an axis of one, nothing is transformed."""
    return [Tiling(m, own, stride) if own > 1 else Tiling(1, 1) for own in taps]


def parts_of(window: Sequence[int]) -> tuple[int, tuple[int, int]]:
    """How many parts a window of one row or column is cut into, and the taps of each."""
    down, across = window
    longest = max(window)
    if longest in SIZES or min(window) > 1:
        return 1, (down, across)
    return -(-longest // _PART), (min(down, _PART), min(across, _PART))


def transform_weight(
    weight: np.ndarray, m: int, in_lanes: int, tile: int, stride: int = 1
) -> np.ndarray:
    """``[OC, IC, 3, 3]`` -> ``[(m+2)^2, OC/tile, IC/in_lanes, in_lanes, tile]``.

    Of other windows, points are fewer. Computed in float64 and rounded once. ``tile`` divides OC,
    ``in_lanes`` divides IC.
    """
    oc, ic, *taps = weight.shape
    down, across = map(_weight_matrix, tiling(m, taps, stride))
    transformed = np.einsum("ai,ocij,bj->aboc", down, weight.astype("float64"), across)
    split = transformed.reshape(-1, oc // tile, tile, ic // in_lanes, in_lanes)
    return np.ascontiguousarray(split.transpose(0, 1, 3, 4, 2), weight.dtype)


def _weight_matrix(axis: Tiling) -> np.ndarray:
    rows = []
    for phase, taps in enumerate(axis.phases):
        own = np.zeros((axis.m + taps - 1 if taps > 1 else 1, axis.taps))
        own[:, phase :: axis.stride] = _weight_rows(axis.m, taps)
        rows.append(own)
    return np.concatenate(rows)


def _weight_rows(m: int, taps: int) -> list[list[float]]:
    """The transform of ``taps`` weights; one of a single tap, which serves m points."""
    if taps == 1:
        return [[1.0]]
    points = [sign * p for p in _pairs(m, taps) for sign in (1, -1)]
    if _has_zero(m, taps):
        points.insert(0, 0.0)
    rows = [
        [r**k / prod(r - other for other in points if other != r) for k in range(taps)]
        for r in points
    ]
    return [*rows, [0.0] * (taps - 1) + [1.0]]


def _pairs(m: int, taps: int) -> tuple[float, ...]:
    return _PAIRS[(m + taps - 2) // 2]


def _has_zero(m: int, taps: int) -> bool:
    """Whether 0 is among the m + ``taps`` - 2 finite points, beside pairs."""
    return (m + taps) % 2 == 1


Entry = Callable[[int], tirx.Expr]


def input_rows(axis: Tiling, d: Entry) -> list[tirx.Expr]:
    """The input transform of each phase; of a single tap, the inputs themselves."""
    rows, m = [], axis.m
    for phase, taps in enumerate(axis.phases):
        own = partial(_every, d, axis.stride, phase)
        rows += [own(k) for k in range(m)] if taps == 1 else _toom_cook_rows(m, taps, own)
    return rows


def _toom_cook_rows(m: int, taps: int, d: Entry) -> list[tirx.Expr]:
    """Row k are the coefficients of the product of all (z - point) but k's.

    The points +-p share the even and the odd part of their polynomials.
    """
    pairs, zero = _pairs(m, taps), _has_zero(m, taps)
    whole = list(enumerate(_in_squares(pairs)))
    rows = [_combine((c, d(2 * k)) for k, c in whole)] if zero else []
    for p in pairs:
        rest = list(enumerate(_in_squares([q for q in pairs if q != p])))
        shifted = _combine((c, d(2 * k + 1 + zero)) for k, c in rest)
        plain = _combine((p * c, d(2 * k + zero)) for k, c in rest)
        rows += [shifted + plain, shifted - plain]
    return [*rows, _combine((c, d(2 * k + zero)) for k, c in whole)]


def output_rows(axis: Tiling, d: Entry) -> list[tirx.Expr]:
    """The output transform: row k sums the k-th powers of the points, phase by phase."""
    rows, first, m = [], 0, axis.m
    for taps in axis.phases:
        own = partial(_every, d, 1, first)
        rows.append([own(k) for k in range(m)] if taps == 1 else _powers(m, taps, own))
        first += m + taps - 1
    return [_combine((1.0, row) for row in phases) for phases in zip(*rows, strict=True)]


def _powers(m: int, taps: int, d: Entry) -> list[tirx.Expr]:
    """As :func:`output_rows`, of one phase of several taps."""
    zero = _has_zero(m, taps)
    pairs = list(enumerate(_pairs(m, taps)))
    rows = []
    for k in range(m):
        sign = 1 if k % 2 == 0 else -1
        terms = [(p**k, d(2 * i + zero) + sign * d(2 * i + zero + 1)) for i, p in pairs]
        first = [(1.0, d(0))] if zero and k == 0 else []
        last = [(1.0, d(m + taps - 2))] if k == m - 1 else []
        rows.append(_combine([*first, *terms, *last]))
    return rows


def _every(d: Entry, stride: int, first: int, k: int) -> tirx.Expr:
    return d(first + stride * k)


def _in_squares(roots: Sequence[float]) -> list[float]:
    """The coefficients of the product of (y - r^2), from the constant one up."""
    return [float(c) for c in polyfromroots([r * r for r in roots])]


def _combine(terms: Iterable[tuple[float, tirx.Expr]]) -> tirx.Expr:
    """The sum of coefficient times value."""
    total = None
    for factor, value in terms:
        part = value if isclose(factor, 1.0) else value * tirx.const(factor, value.ty.dtype)
        total = part if total is None else total + part
    return total
