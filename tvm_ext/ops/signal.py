"""Discrete Fourier transforms of any length, and the windows that go before them."""

from math import pi

from tvm import te, tirx

__all__ = ["cosine_window", "dft", "inverse_real_dft", "mel_filters", "stft"]


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
    frames = (signal.shape[1] - length) // step + 1

    def framed(b, f, i, part):
        value = signal(b, f * step + i, part)
        return value if window is None else value * window(i)

    shape = (signal.shape[0], frames, length, signal.shape[2])
    return dft(te.compute(shape, framed, "frames"), 2, length, bins, inverse=False)
