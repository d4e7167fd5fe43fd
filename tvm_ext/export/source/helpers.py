"""Small C functions that kernels use; a program holds those that it needs."""

from __future__ import annotations

from collections.abc import Iterator

from .c_types import limits, value_type

__all__ = ["Helpers"]

_BITS = {
    "float_of_bits": ("float", "uint32_t"),
    "bits_of_float": ("uint32_t", "float"),
    "double_of_bits": ("double", "uint64_t"),
    "bits_of_double": ("uint64_t", "double"),
}

_TEXTS = {
    "float_of_half": (
        ("float_of_bits",),
        """\
/* The value of an IEEE 754 binary16. */
static inline float float_of_half(uint16_t half) {
  uint32_t sign = (uint32_t)(half & 0x8000u) << 16;
  uint32_t magnitude = (uint32_t)(half & 0x7FFFu) << 13;
  if ((half & 0x7C00u) == 0x7C00u) return float_of_bits(sign | magnitude | 0x7F800000u);
  return float_of_bits(sign | magnitude) * 0x1p112f;
}""",
    ),
    "half_of_float": (
        ("bits_of_float", "float_of_bits"),
        """\
/* The nearest IEEE 754 binary16, ties to even. */
static inline uint16_t half_of_float(float value) {
  uint32_t bits = bits_of_float(value);
  uint32_t sign = (bits >> 16) & 0x8000u;
  bits &= 0x7FFFFFFFu;
  if (bits > 0x7F800000u) return (uint16_t)(sign | 0x7E00u);
  if (bits >= 0x477FF000u) return (uint16_t)(sign | 0x7C00u);
  if (bits < 0x38800000u) { /* subnormal: the sum is rounded to multiples of 2^-24 */
    return (uint16_t)(sign | (bits_of_float(float_of_bits(bits) + 0.5f) - 0x3F000000u));
  }
  return (uint16_t)(sign | ((bits - 0x38000000u + 0xFFFu + ((bits >> 13) & 1u)) >> 13));
}""",
    ),
    "round_to_half": (
        ("float_of_half", "half_of_float"),
        """\
static inline float round_to_half(float value) {
  return float_of_half(half_of_float(value));
}""",
    ),
    "float_of_bfloat16": (
        ("float_of_bits",),
        """\
/* The value of a bfloat16: the upper half of a float. */
static inline float float_of_bfloat16(uint16_t upper) {
  return float_of_bits((uint32_t)upper << 16);
}""",
    ),
    "bfloat16_of_float": (
        ("bits_of_float",),
        """\
/* The nearest bfloat16, ties to even. */
static inline uint16_t bfloat16_of_float(float value) {
  uint32_t bits = bits_of_float(value);
  if ((bits & 0x7FFFFFFFu) > 0x7F800000u) return (uint16_t)((bits >> 16) | 0x40u);
  return (uint16_t)((bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16);
}""",
    ),
    "round_to_bfloat16": (
        ("float_of_bfloat16", "bfloat16_of_float"),
        """\
static inline float round_to_bfloat16(float value) {
  return float_of_bfloat16(bfloat16_of_float(value));
}""",
    ),
}


class Helpers:
    """The functions that a program needs, each with those that it needs itself."""

    def __init__(self) -> None:
        self._texts: dict[str, str] = {}

    def __iter__(self) -> Iterator[str]:
        return iter(self._texts.values())

    def need(self, name: str) -> str:
        """``name``, a function of the fixed ones, or one that moves bits between types."""
        if name in _BITS:
            to, of = _BITS[name]
            self._texts.setdefault(
                name,
                f"static inline {to} {name}({of} from) {{\n"
                f"  {to} to;\n  memcpy(&to, &from, sizeof to);\n  return to;\n}}",
            )
            return name
        needed, text = _TEXTS[name]
        for other in needed:
            self.need(other)
        self._texts.setdefault(name, text)
        return name

    def extreme(self, name: str, dtype: str) -> str:
        """``max`` or ``min`` of two values; of floats the second where one is NaN."""
        c, sign = value_type(dtype), {"max": ">", "min": "<"}[name]
        title = f"{name}_{_word(c)}"
        self._texts.setdefault(
            title,
            f"static inline {c} {title}({c} a, {c} b) {{\n  return a {sign} b ? a : b;\n}}",
        )
        return title

    def floor_division(self, name: str, dtype: str) -> str:
        """``floor_div`` or ``floor_mod`` of signed integers: the quotient is rounded down."""
        c = value_type(dtype)
        title = f"{name}_{_word(c)}"
        value = {
            "floor_div": f"({c})(a / b - (a % b != 0 && (a % b < 0) != (b < 0)))",
            "floor_mod": f"({c})(a % b + (a % b != 0 && (a % b < 0) != (b < 0) ? b : 0))",
        }[name]
        self._texts.setdefault(
            title, f"static inline {c} {title}({c} a, {c} b) {{\n  return {value};\n}}"
        )
        return title

    def integer_of(self, real: str, dtype: str) -> str:
        """The integer part of a float or double; what ``dtype`` cannot hold, and NaN, is its
        least number."""
        c = value_type(dtype)
        title = f"{_word(c)}_of_{real}"
        least, greatest = limits(dtype)
        suffix = "f" if real == "float" else ""
        low = f"x >= {float(least)!r}{suffix}" if least else f"x > -1.0{suffix}"
        self._texts.setdefault(
            title,
            f"/* Rounded toward 0; what does not fit, and NaN, is {least}. */\n"
            f"static inline {c} {title}({real} x) {{\n"
            f"  return {low} && x < {float(greatest + 1)!r}{suffix} ? ({c})x : "
            f"{dtype.upper() + '_MIN' if least else '0'};\n}}",
        )
        return title

    def bits_set(self, dtype: str) -> str:
        """How many bits of an integer are 1."""
        c = value_type(dtype)
        title = f"bits_set_{_word(c)}"
        self._texts.setdefault(
            title,
            f"static inline {c} {title}({c} value) {{\n  {c} count = 0;\n"
            f"  for (uint64_t rest = (uint{dtype.removeprefix('u').removeprefix('int')}_t)value; "
            f"rest; rest &= rest - 1u) count++;\n  return count;\n}}",
        )
        return title


def _word(c: str) -> str:
    return c.removesuffix("_t")
