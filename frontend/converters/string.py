"""Converters for operators that compute strings: on the host, by ``executors.host_strings``.

What only moves, compares or counts strings needs none of these: see ``tvm_ext.strings``.
"""

from importlib.util import find_spec

from tvm_ext.interface import TensorType
from tvm_ext.ops.elementwise import broadcast_dim
from tvm_ext.ops.narrow import STRING

from .. import host
from ..microsoft import microsoft
from ..table import converter


@converter("StringConcat", 20)
def string_concat(bb, x, y):
    rank = max(bb.rank(x), bb.rank(y))
    padded = ([1] * (rank - bb.rank(each)) + bb.shape(each) for each in (x, y))
    dims = [broadcast_dim(a, b) for a, b in zip(*padded, strict=True)]
    shape = tuple(dim if isinstance(dim, int) else f"d{k}" for k, dim in enumerate(dims))
    kind = TensorType(STRING, shape)
    return host.call_for_tensor(bb, "string_concat", x, y, kind=kind)


@converter("StringSplit", 20)
def string_split(bb, x, *, delimiter=None, maxsplit=None):
    shape = host.kind_of(bb, x).shape
    kinds = TensorType(STRING, (*shape, "parts")), TensorType("int64", shape)
    operands = x, delimiter or "", maxsplit
    parts, counts = host.call_for_tensors(bb, "string_split", *operands, kinds=kinds)
    return parts, bb.match(counts, bb.shape(x))


@converter("StringNormalizer", 10)
def string_normalizer(
    bb, x, *, case_change_action="NONE", is_case_sensitive=0, locale=None, stopwords=()
):
    """The case of a letter is that of Unicode, whatever the locale."""
    if case_change_action not in ("LOWER", "UPPER", "NONE"):
        raise ValueError(f"case_change_action {case_change_action}")
    *rows, columns = bb.shape(x)
    if len(rows) > 1 or any(isinstance(dim, int) and dim != 1 for dim in rows):
        raise NotImplementedError(f"the shape {bb.shape(x)}, must be [C] or [1, C]")
    x = x if rows in ([], [1]) else bb.match(x, [1, columns])
    operands = x, case_change_action, is_case_sensitive, list(stopwords)
    kind = TensorType(STRING, (1,) * (bb.rank(x) - 1) + ("kept",))
    return host.call_for_tensor(bb, "string_normalizer", *operands, kind=kind)


@converter("RegexFullMatch", 20)
def regex_full_match(bb, x, *, pattern=None):
    pattern = pattern or ""
    _check_pattern(pattern)
    kind = TensorType("bool", host.kind_of(bb, x).shape)
    matches = host.call_for_tensor(bb, "regex_full_match", x, pattern, kind=kind)
    return bb.match(matches, bb.shape(x))


@microsoft("Tokenizer")
def tokenizer(bb, x, *, mark, mincharnum, pad_value, separators=None, tokenexp=""):
    if bool(separators) == bool(tokenexp):
        raise ValueError("needs either separators or tokenexp")
    for pattern in [tokenexp] if tokenexp else separators:
        _check_pattern(pattern)
    shape = host.kind_of(bb, x).shape
    if len(shape) not in (1, 2):
        raise ValueError(f"the shape {shape}, must be [C] or [N, C]")
    kind = TensorType(STRING, (*shape, "tokens"))
    options = list(separators or ()), tokenexp, mincharnum, mark, pad_value
    return host.call_for_tensor(bb, "tokenizer", x, *options, kind=kind)


def _check_pattern(pattern):
    """
    Raises:
        NotImplementedError: the package for regular expressions is not installed.
        ValueError: this is none.
    """
    if find_spec("re2") is None:
        raise NotImplementedError("needs google-re2: pip install 'tvm-ext[strings]'")
    import re2

    try:
        re2.compile(pattern)
    except re2.error as error:
        raise ValueError(f"pattern {pattern!r}: {error}") from error
