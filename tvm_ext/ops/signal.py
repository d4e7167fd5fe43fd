"""Discrete Fourier transforms of any length, and the windows that go before them."""

from dataclasses import dataclass
from math import isqrt, pi

import numpy as np
from tvm import te, tirx

from .elementwise import elementwise

__all__ = [
    "Factors", "collected", "complex_part", "cosine_window", "dft", "frames", "inverse_real_dft",
    "mel_filters", "spread", "stft", "twisted",
]  # fmt: skip

# A dense transform of so many points has a matrix of 8 MB, and takes as long as its input.
_DENSE = 512
# Numbers of columns of which a matrix product has no rest.
_VECTOR = 16


@elementwise
def complex_part(a, b, c, d, *, sign):
    """``a b + sign c d``: a part of a complex product."""
    return a * b + c * d if sign > 0 else a * b - c * d


def cosine_window(size, coefficients, periodic, dtype):
    """``sum of (-1)^k a_k cos(2 pi k i / n)`` for i < ``size``, n ``size`` or, symmetric, size - 1.

    Computed in float64; the result has ``dtype``.
    """
    size = tirx.const(size, "int64") if isinstance(size, int) else size
    period = (size if periodic else tirx.max(size - 1, 1)).astype("float64")

    def element(i):
        value = tirx.const(0.0, "float64")
        for k, coefficient in enumerate(coefficients):
            angle = tirx.const(2 * pi * k, "float64") * i.astype("float64") / period
            value = value + tirx.const((-1) ** k * coefficient, "float64") * te.cos(angle)
        return value.astype(dtype)

    return te.compute((size,), element, "cosine_window")


def mel_filters(rate, low, high, count, length, dtype):
    """Triangles over the bins of a transform: ``[length // 2 + 1, count]`` of ``dtype``.

    Their corners lie evenly between ``low`` and ``high`` (Hz) on the mel scale. These and ``rate``
    (Hz) are tensors of one element. Computed in float64.
    """
    count, length = (tirx.const(n, "int64") if isinstance(n, int) else n for n in (count, length))

    def number(x):
        return x(*[0] * len(x.shape)).astype("float64")

    def mel(x):
        return 2595 * te.log10(1 + number(x) / 700)

    def corner(k):
        step = (mel(high) - mel(low)) / (count + 2).astype("float64")
        hertz = 700 * (te.power(tirx.const(10.0, "float64"), (mel(low) + k * step) / 2595) - 1)
        return te.floor((length + 1).astype("float64") * hertz / number(rate))

    corners = te.compute((count + 2,), lambda k: corner(k.astype("float64")), "mel_corners")

    def element(b, k):
        b, (left, centre, right) = b.astype("float64"), (corners[k + j] for j in range(3))
        rising, falling = (b - left) / (centre - left), (right - b) / (right - centre)
        inside = tirx.Select(b < centre, rising, falling)
        value = tirx.Select(tirx.all(left <= b, b < right), inside, tirx.const(0.0, "float64"))
        return tirx.Select(b == centre, tirx.const(1.0, "float64"), value).astype(dtype)

    bins = tirx.floordiv(length, 2) + 1
    return te.compute((bins, count), element, "mel_filters")


def dft(x, axis, length, bins, inverse):
    """The transform of ``x[..., 1 or 2]`` (real, or real and imaginary) along ``axis``.

    ``x`` is cut or padded with zeros to ``length``; the result ``[..., bins, ..., 2]`` has the
    first ``bins`` frequencies. Inverse: divided by ``length``. A direct sum in float64, its angles
    reduced in integers, so that long transforms stay exact; the result has the type of ``x``.
    """
    dtype = "float64"
    length = tirx.const(length, "int64") if isinstance(length, int) else length
    full = tirx.const(2 * pi, "float64") / length.astype("float64")

    def turn(function, name):
        def element(k):
            return function(full * k.astype("float64")).astype(dtype)

        return te.compute((length,), element, name)

    cosine, sine = turn(te.cos, "cosine"), turn(te.sin, "sine")
    parts = x.shape[-1]
    real = isinstance(parts, tirx.IntImm) and int(parts) == 1
    r = te.reduce_axis((0, tirx.min(length, x.shape[axis])), "r")

    def term(*i):
        *index, part = i
        k = tirx.floormod(index[axis] * r, length)
        index[axis] = r
        re = x(*index, 0).astype(dtype)
        forward = tirx.const(1 if inverse else -1, dtype) * sine(k)
        if real:
            return te.sum(tirx.Select(part == 0, re * cosine(k), re * forward), axis=r)
        im = x(*index, 1).astype(dtype)
        if not isinstance(parts, tirx.IntImm):
            im = tirx.if_then_else(parts > 1, im, tirx.const(0, dtype))
        a, b = re * cosine(k) - im * forward, re * forward + im * cosine(k)
        return te.sum(tirx.Select(part == 0, a, b), axis=r)

    shape = [*x.shape[:-1], 2]
    shape[axis] = bins
    total = te.compute(shape, term, "dft_sum")
    scale = tirx.const(1, dtype) / length.astype(dtype) if inverse else tirx.const(1, dtype)
    return te.compute(shape, lambda *i: (total(*i) * scale).astype(x.dtype), "dft")


def inverse_real_dft(x, axis, length):
    """The ``length`` real values whose transform has the first half ``x[..., m, ..., 2]``.

    The frequencies beyond it are the conjugates of those; the result is ``[..., length, ..., 1]``.
    """
    dtype = "float64"
    length = tirx.const(length, "int64") if isinstance(length, int) else length
    full = tirx.const(2 * pi, dtype) / length.astype(dtype)
    half = tirx.floordiv(length, 2) + 1
    r = te.reduce_axis((0, tirx.min(half, x.shape[axis])), "r")

    def term(*i):
        index = [*i[:-1]]
        angle = full * tirx.floormod(index[axis] * r, length).astype(dtype)
        index[axis] = r
        # The first frequency and, of an even length, the middle one have no conjugate.
        alone = tirx.any(r == 0, r * 2 == length)
        weight = tirx.Select(alone, tirx.const(1, dtype), tirx.const(2, dtype))
        real = x(*index, 0).astype(dtype) * te.cos(angle)
        return te.sum(weight * (real - x(*index, 1).astype(dtype) * te.sin(angle)), axis=r)

    shape = [*x.shape[:-1], 1]
    shape[axis] = length
    total = te.compute(shape, term, "inverse_real_sum")
    return te.compute(
        shape, lambda *i: (total(*i) / length.astype(dtype)).astype(x.dtype), "inverse_real_dft"
    )


def stft(signal, window, step, length, bins):
    """Transforms ``[B, frames, bins, 2]`` of the windowed frames of ``signal[B, L, 1 or 2]``."""
    return dft(frames(signal, window, step, length), 2, length, bins, inverse=False)


def frames(signal, window, step, length):
    """``[B, frames, length, 1 or 2]`` of ``signal[B, L, 1 or 2]``, times the window."""
    count = (signal.shape[1] - length) // step + 1

    def framed(b, f, i, part):
        value = signal(b, f * step + i, part)
        return value if window is None else value * window(i)

    return te.compute((signal.shape[0], count, length, signal.shape[2]), framed, "frames")


@dataclass(frozen=True)
class Factors:
    """A transform of ``rows * columns`` points as dense ones of columns, then of rows.

    With points n = columns i + j and frequencies k = p + rows q,

        y[p + rows q] = sum over j of W^(jp) W_columns^(jq) z[j, p]
        z[j, p] = sum over i of W_rows^(ip) x[columns i + j]

    where W_n = exp(-2 pi i / n), W that of all points; conjugates where ``inverse``.
    """

    rows: int
    columns: int
    inverse: bool

    @staticmethod
    def of(length: int, inverse: bool) -> "Factors | None":
        """The two factors nearest to each other; None where one is too large."""
        rows = next((n for n in range(isqrt(length), 0, -1) if length % n == 0), 0)
        fits = rows and length // rows <= _DENSE
        return Factors(rows, length // rows, inverse) if fits else None

    @property
    def length(self) -> int:
        return self.rows * self.columns

    def first(self, parts: int) -> np.ndarray:
        """``float64[rows * parts, rows * 2]``: the transform of each column."""
        return _dense(self._roots(self.rows, self.rows, self.rows), parts, 2)

    def twist(self) -> np.ndarray:
        """``float64[columns, rows, 2]``: cosines and sines of what is between the two."""
        roots = self._roots(self.length, self.columns, self.rows)
        return np.stack([roots.real, roots.imag], -1)

    def second(self, parts: int, bins: int, results: int) -> np.ndarray:
        """``float64[columns * parts, q * results]``: that of each row, scaled; q whole vectors."""
        wanted = -(-bins // self.rows)
        roots = self._roots(self.columns, self.columns, -(-wanted // _VECTOR) * _VECTOR)
        return _dense(roots / (self.length if self.inverse else 1), parts, results)

    def _roots(self, period: int, points: int, frequencies: int) -> np.ndarray:
        turns = np.outer(np.arange(points), np.arange(frequencies)) % period / period
        return np.exp((2j if self.inverse else -2j) * np.pi * turns)


def _dense(roots: np.ndarray, parts: int, results: int) -> np.ndarray:
    """Complex products as real ones of interleaved parts: ``[points * parts, bins * results]``."""
    pairs = np.array([[roots.real, roots.imag], [-roots.imag, roots.real]])[:parts, :results]
    points, bins = roots.shape
    return pairs.transpose(2, 0, 3, 1).reshape(points * parts, bins * results)


def spread(x, rows, columns, mirrored):
    """``x[R, n, 1 or 2]``, cut or padded with zeros, as ``float64[R, columns, rows * parts]``.

    ``mirrored``: beyond the first half, the conjugates of the others.
    """
    extent, parts, length = x.shape[1], int(x.shape[2]), rows * columns

    def at(r, n, part):
        value = x(r, n, part).astype("float64")
        return tirx.if_then_else(n < extent, value, tirx.const(0, "float64"))

    def element(r, j, i):
        n, part = tirx.floordiv(i, parts) * columns + j, tirx.floormod(i, parts)
        if not mirrored:
            return at(r, n, part)
        beyond = n > length // 2
        value = at(r, tirx.Select(beyond, length - n, n), part)
        return tirx.Select(tirx.all(beyond, part > 0), -value, value)

    return te.compute((x.shape[0], columns, rows * parts), element, "spread")


def twisted(x, twist):
    """``x[R, columns, rows * 2]`` times ``twist[columns, rows, 2]``: ``[R, rows, columns * 2]``."""
    columns, rows, _ = twist.shape

    def element(r, p, i):
        j, part = tirx.floordiv(i, 2), tirx.floormod(i, 2)
        re, im = x(r, j, 2 * p), x(r, j, 2 * p + 1)
        cosine, sine = twist(j, p, 0), twist(j, p, 1)
        return tirx.Select(part == 0, re * cosine - im * sine, re * sine + im * cosine)

    return te.compute((x.shape[0], rows, columns * 2), element, "twisted")


def collected(x, rows, bins, parts, dtype):
    """``[R, bins, parts]`` of ``dtype``: frequency p + rows q is at (p, q) of ``x[R, rows, q]``."""

    def element(r, k, part):
        value = x(r, tirx.floormod(k, rows), tirx.floordiv(k, rows) * parts + part)
        return value.astype(dtype)

    return te.compute((x.shape[0], bins, parts), element, "collected")
