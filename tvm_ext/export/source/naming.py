"""Names in C, from those of ONNX nodes and values."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence

from ..identifiers import identifier

__all__ = ["free_name", "function_name", "value_name"]

# Of <math.h>, <string.h> and the C runtime: what a kernel or a value must not hide.
_FUNCTIONS = """
    abs acos acosh asin asinh atan atan2 atanh cbrt ceil copysign cos cosh div erf erfc exit exp
    exp2 expm1 fabs fdim floor fma fmax fmin fmod frexp gamma hypot index infinity isfinite isinf
    isnan isnormal j0 j1 jn ldexp lgamma log log10 log1p log2 logb main max_float memchr memcmp
    memcpy memmove memset modf nan nearbyint nextafter pow remainder rint round scalb significand
    signbit sin sinh sqrt tan tanh tgamma trunc y0 y1 yn
""".split()
_RESERVED = frozenset(_FUNCTIONS) | {f"{name}f" for name in _FUNCTIONS}
_OPERATORS = 4  # that a function is named after
_LONGEST = 36


def free_name(wanted: str, taken: Collection[str]) -> str:
    """An identifier like ``wanted`` that no other name is, in any case of letters."""
    plain = identifier(wanted)[:_LONGEST]
    if plain.lower() in _RESERVED:
        plain = f"{plain}_value"
    used = {name.lower() for name in taken}
    unique, number = plain, 1
    while unique.lower() in used:
        number += 1
        unique = f"{plain}_{number}"
    return unique


def function_name(nodes: Sequence[str], symbol: str) -> str:
    """The name of a kernel that computes ``nodes``, each "operator name": its operators."""
    operators = [node.partition(" ")[0] for node in nodes]
    words = [re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", word).lower() for word in operators]
    if len(words) > _OPERATORS:
        words = [*words[: _OPERATORS - 1], "etc"]
    name = "_".join(words) or symbol
    return f"{name}_kernel" if identifier(name).lower() in _RESERVED else name


def value_name(name: str) -> str:
    """The name of an ONNX value without what exporters of torch repeat and put at its end."""
    short = re.sub(r"(^|/)([^/.]+)/\2\.", r"\1\2.", name.strip("/"))
    return re.sub(r"_output_0$", "", short) or name
