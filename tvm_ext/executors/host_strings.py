"""Functions of the host that compute strings; a tensor of them comes as their numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..errors import RunError
from ..strings import current
from .host import host_function

__all__: list[str] = []


def _mapped(function: Callable[[str], Any], x: np.ndarray, dtype: str) -> np.ndarray:
    """``function`` of each string of ``x``, called once for equal ones."""
    distinct, inverse = np.unique(x, return_inverse=True)
    values = np.array([function(text) for text in current().strings(distinct)], dtype)
    return values[inverse].reshape(x.shape)


@host_function
def string_concat(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Element by element, broadcast."""
    table = current()
    try:
        left, right = np.broadcast_arrays(table.strings(x), table.strings(y))
    except ValueError as error:
        raise RunError(f"shapes {x.shape} and {y.shape} do not broadcast") from error
    return table.numbers(np.asarray(left + right, object))


@host_function
def string_split(x: np.ndarray, delimiter: str, maxsplit: int | None) -> list[np.ndarray]:
    """The parts of each string, filled up with empty ones, and how many there are."""
    most = -1 if maxsplit is None else maxsplit
    table = current()
    parts = [text.split(delimiter or None, most) for text in table.strings(x).flat]
    counts = np.fromiter(map(len, parts), "int64", x.size)
    padded = np.zeros((x.size, counts.max(initial=0)), "int64")
    for row, texts in zip(padded, parts, strict=True):
        row[: len(texts)] = table.numbers(texts)
    return [padded.reshape(*x.shape, padded.shape[1]), counts.reshape(x.shape)]


@host_function
def string_normalizer(
    x: np.ndarray, case_change_action: str, is_case_sensitive: int, stopwords: Sequence[str]
) -> np.ndarray:
    """``x`` of shape [C] or [1, C] without stop words, in one case; [""] if none is left.

    Stop words are compared as they are, or, where case does not count, in lower case.
    """
    table = current()
    changes: dict[str, Callable[[str], str]]
    changes = {"LOWER": str.lower, "UPPER": str.upper, "NONE": str}
    change, compared = (
        changes[case_change_action],
        changes["NONE" if is_case_sensitive else "LOWER"],
    )
    stop = set(map(compared, stopwords))
    kept = [change(text) for text in table.strings(x).flat if compared(text) not in stop]
    kept = kept or [""]
    return table.numbers(kept).reshape((1,) * (x.ndim - 1) + (len(kept),))


@host_function
def regex_full_match(x: np.ndarray, pattern: str) -> np.ndarray:
    """Whether ``pattern``, in the syntax of RE2, matches the whole of each string."""
    import re2  # an extra, which the converter has asked for

    regex = re2.compile(pattern)
    return _mapped(lambda text: regex.fullmatch(text) is not None, x, "bool")


@host_function
def tokenizer(
    x: np.ndarray,
    separators: Sequence[str],
    tokenexp: str,
    shortest: int,
    mark: int,
    pad_value: str,
) -> np.ndarray:
    """The tokens of each string of at least ``shortest`` characters, padded to the most of any.

    They are what matches of ``separators`` part, or what matches ``tokenexp``, in the syntax of
    RE2; single characters if the only separator is empty. If ``mark``, U+0002 stands in front of
    the tokens of a string and U+0003 behind.
    """
    table = current()
    parted = _tokens_of(separators, tokenexp)
    rows = [[t for t in parted(text) if len(t) >= shortest] for text in table.strings(x).flat]
    width = max(map(len, rows), default=0)
    if mark and width:
        rows, width = [["\x02", *row, "\x03"] for row in rows], width + 2
    padded = [[*row, *[pad_value] * (width - len(row))] for row in rows]
    numbers = [table.numbers(row) for row in padded] if width else []
    return np.array(numbers, "int64").reshape(*x.shape, width)


def _tokens_of(separators: Sequence[str], tokenexp: str) -> Callable[[str], Sequence[str]]:
    if list(separators) == [""]:
        return list
    import re2  # an extra, which the converter has asked for

    longest = re2.Options()
    longest.longest_match = True
    if tokenexp:
        token = re2.compile(tokenexp, longest)
        return lambda text: [m.group() for m in token.finditer(text) if m.group()]
    between = [re2.compile(separator, longest) for separator in separators]

    def parts(text: str) -> list[str]:
        found = [text]
        for regex in between:
            found = [piece for each in found for piece in _split(regex, each)]
        return found

    return parts


def _split(regex: Any, text: str) -> list[str]:
    """What matches that are not empty leave of ``text``."""
    spans = [match.span() for match in regex.finditer(text) if match.group()]
    starts, ends = [0, *(end for _, end in spans)], [*(start for start, _ in spans), len(text)]
    return [text[start:end] for start, end in zip(starts, ends, strict=True)]


@host_function
def murmur_hash(x: np.ndarray, seed: int, dtype: str) -> np.ndarray:
    """MurmurHash3_x86_32 of the bytes of each string."""
    hashes = _mapped(lambda text: _murmur(text.encode(), seed % (1 << 32)), x, "uint32")
    return hashes.view(dtype)


def _murmur(data: bytes, seed: int) -> int:
    """https://github.com/aappleby/smhasher (public domain)."""
    whole = len(data) // 4 * 4
    words = [int.from_bytes(data[k : k + 4], "little") for k in range(0, whole, 4)]
    state = seed
    for word in words:
        state = (_turned(state ^ _mixed(word), 13) * 5 + 0xE6546B64) % (1 << 32)
    state ^= _mixed(int.from_bytes(data[whole:], "little")) ^ len(data)
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        state = (state ^ (state >> shift)) * factor % (1 << 32)
    return state ^ (state >> 16)


def _mixed(word: int) -> int:
    return _turned(word * 0xCC9E2D51 % (1 << 32), 15) * 0x1B873593 % (1 << 32)


def _turned(word: int, bits: int) -> int:
    return (word << bits | word >> (32 - bits)) % (1 << 32)


@host_function
def string_ranks(x: np.ndarray) -> np.ndarray:
    """The place of each string among the strings of ``x`` in order; int64, equal for equal ones."""
    distinct, inverse = np.unique(x, return_inverse=True)
    order = np.argsort(current().strings(distinct), kind="stable")
    ranks = np.empty_like(order)
    ranks[order] = np.arange(len(order))
    return ranks[inverse].reshape(x.shape).astype("int64")


@host_function
def string_to_number(x: np.ndarray, dtype: str) -> np.ndarray:
    """Plain and scientific notation, INF and NaN in any case; only integers to integer types."""
    floating = dtype not in ("bool",) and "int" not in dtype
    return _mapped(lambda text: _number(text, floating, dtype), x, dtype)


def _number(text: str, floating: bool, dtype: str) -> float | int:
    try:
        if "_" in text:  # Python's own notation
            raise ValueError
        number = float(text) if floating else int(text)
        if not floating and dtype != "bool":
            np.array(number, dtype)  # raises where it does not fit
        return number
    except (ValueError, OverflowError) as error:
        raise RunError(f"{text!r} is no {dtype}") from error


@host_function
def number_to_string(x: np.ndarray) -> np.ndarray:
    """Integers as they are, others with eight digits, as onnxruntime writes them."""
    written = str if x.dtype.kind in "iu" else _text
    written = _truth if x.dtype == bool else written
    return current().numbers([written(value) for value in x.flat]).reshape(x.shape)


def _truth(value: Any) -> str:
    return str(int(value))


def _text(value: Any) -> str:
    number = float(value)
    if np.isnan(number):
        return "NaN"
    if np.isinf(number):
        return "INF" if number > 0 else "-INF"
    return f"{number:.8g}"
