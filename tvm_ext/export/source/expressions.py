"""Expressions of lowered kernels as C text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import tvm_ffi
from tvm import ir, sym, tirx

from .c_types import Unprintable, as_bits, constant, is_narrow, limits, value_type
from .helpers import Helpers

__all__ = ["Expressions", "Place"]


class Place(Protocol):
    """Where statements go that must run before the one that is being printed."""

    def declare(self, name: str, dtype: str, value: str | None) -> str:
        """Declare a variable, constant where it has a value; its name in C."""

    def choose(self, condition: str, results: Sequence[Callable[[], str]], target: str) -> None:
        """Store one of two results in ``target``, and run only the statements of that one."""


# How tightly operators bind in C. What gcc wants in parentheses is as loose as a condition.
_ATOM, _UNARY, _TIMES, _PLUS, _COMPARE, _LOOSE = 6, 5, 4, 3, 2, 0

_ARITHMETIC = {
    tirx.Add: ("+", _PLUS),
    tirx.Sub: ("-", _PLUS),
    tirx.Mul: ("*", _TIMES),
}
_COMPARISONS = {
    tirx.EQ: "==",
    tirx.NE: "!=",
    tirx.LT: "<",
    tirx.LE: "<=",
    tirx.GT: ">",
    tirx.GE: ">=",
}
_ORDERED = tirx.LT, tirx.LE, tirx.GT, tirx.GE
_EXTREMES = {tirx.Max: "max", tirx.Min: "min"}
_FLOORS = {tirx.FloorDiv: ("floor_div", "/"), tirx.FloorMod: ("floor_mod", "%")}
_BITWISE = {
    "bitwise_and": "&",
    "bitwise_or": "|",
    "bitwise_xor": "^",
    "shift_left": "<<",
    "shift_right": ">>",
}
_BITWISE_NODES = {
    tirx.BitwiseAnd: "bitwise_and",
    tirx.BitwiseOr: "bitwise_or",
    tirx.BitwiseXor: "bitwise_xor",
    tirx.LShift: "shift_left",
    tirx.RShift: "shift_right",
}
_LIBM = set(
    """
    acos acosh asin asinh atan atan2 atanh ceil copysign cos cosh erf exp exp2 expm1 fabs floor fma
    fmod hypot log log10 log1p log2 nearbyint nextafter pow round sin sinh sqrt tan tanh trunc
    """.split()
)
_CLASSIFIED = "isnan", "isinf", "isfinite"
_SAME = "likely", "tvm_ext.kept", "tvm_ext.value"  # the value is that of the operand


class Expressions:
    """Prints the expressions of one kernel.

    Args:
        helpers: collects the C functions that the text calls.
        place: takes the statements that named values become.
        element: the text of an element of a buffer.
    """

    def __init__(
        self,
        helpers: Helpers,
        place: Place,
        element: Callable[[tirx.Var, Sequence[str]], str],
    ):
        self.names: dict[tirx.Var, str] = {}
        self._helpers = helpers
        self._place = place
        self._element = element
        self._analyzer = sym.Analyzer()

    def bind(self, var: tirx.Var, name: str, least: tirx.Expr, extent: tirx.Expr) -> None:
        """Print ``var``, which counts from ``least`` to ``least + extent - 1``, as ``name``."""
        self.names[var] = name
        self._analyzer.bind(var, ir.Range.from_min_extent(least, extent))

    def simplified(self, expr: tirx.Expr) -> tirx.Expr:
        """``expr`` with what is known of the loops around it."""
        return self._analyzer.simplify(expr)

    def text(self, expr: tirx.Expr, tightness: int = _LOOSE) -> str:
        """C text of ``expr``, in parentheses where it binds less tightly than asked for."""
        text, own = self._print(expr)
        return text if own >= tightness else f"({text})"

    def stored(self, expr: tirx.Expr) -> str:
        """``expr`` as its type is held in memory."""
        dtype = _dtype(expr)
        if is_narrow(dtype) and isinstance(expr, ir.TensorLoad):
            return self._element(expr.source, [self.text(index) for index in expr.indices])
        if is_narrow(dtype):
            # Stores round, so that the last rounding of the formula is not printed.
            return f"{self._helpers.need(_OF_FLOAT[dtype])}({self._unrounded(expr)})"
        return self.value(expr)

    def value(self, expr: tirx.Expr, tightness: int = _LOOSE) -> str:
        """``expr`` as a value; of a condition, 0 or 1."""
        if _dtype(expr) == "bool" and _name(expr) in _CLASSIFIED:
            text = f"{self.text(expr, _COMPARE + 1)} != 0"
            return text if tightness <= _COMPARE else f"({text})"
        return self.text(expr, tightness)

    def _print(self, expr: tirx.Expr) -> tuple[str, int]:
        """The text, and how tightly its outermost operator binds."""
        dtype = _dtype(expr)
        if "x" in dtype:
            raise Unprintable("vectors")
        if any(as_bits(of) != of for of in _computed_with(expr)):
            raise Unprintable("arithmetic of float8")
        printer = _PRINTERS.get(type(expr))
        if printer is None:
            raise Unprintable(f"an expression of kind {type(expr).__name__}")
        return printer(self, expr, dtype)

    def _literal(self, expr: tirx.IntImm | tirx.FloatImm, dtype: str) -> tuple[str, int]:
        text = constant(expr.value, dtype)
        return text, _UNARY if text.startswith("-") else _ATOM

    def _variable(self, var: tirx.Var, _: str) -> tuple[str, int]:
        if var not in self.names:
            raise Unprintable(f"the variable {var.name}, whose value is not known")
        return self.names[var], _ATOM

    def _load(self, load: ir.TensorLoad, dtype: str) -> tuple[str, int]:
        element = self._element(load.source, [self.text(index) for index in load.indices])
        if is_narrow(dtype):
            element = f"{self._helpers.need(_TO_FLOAT[dtype])}({element})"
        return element, _ATOM

    def _let(self, let: tirx.Let, _: str) -> tuple[str, int]:
        if _uses(let.body, let.var):
            self.names[let.var] = self._place.declare(
                let.var.name, _dtype(let.value), self.value(let.value)
            )
        return self._print(let.body)

    def _comparison(self, expr: tirx.Expr, _: str) -> tuple[str, int]:
        if (known := self._decided(expr)) is not None:
            return str(int(known)), _ATOM
        a, b = (self.value(side, _COMPARE + 1) for side in (expr.a, expr.b))
        return f"{a} {_COMPARISONS[type(expr)]} {b}", _COMPARE

    def _extreme(self, expr: tirx.Expr, dtype: str) -> tuple[str, int]:
        function = self._helpers.extreme(_EXTREMES[type(expr)], dtype)
        return f"{function}({self.value(expr.a)}, {self.value(expr.b)})", _ATOM

    def _not(self, expr: tirx.Not, _: str) -> tuple[str, int]:
        return f"!{self.text(expr.a, _UNARY)}", _UNARY

    def _select(self, expr: tirx.Select, _: str) -> tuple[str, int]:
        sides = expr.condition, expr.true_value, expr.false_value
        return self._chosen(*sides, guarded=_named_loads(*sides[1:]))

    def _arithmetic(self, expr: tirx.Expr, dtype: str) -> tuple[str, int]:
        sign, tightness = _ARITHMETIC[type(expr)]
        if is_narrow(dtype):
            return f"{self._helpers.need(f'round_to_{_SHORT[dtype]}')}({self._unrounded(expr)})", 6
        if "int" in dtype and not self._fits(expr, dtype):
            return self._wrapping(expr, dtype)
        a = self.value(expr.a, tightness)
        b = self.value(expr.b, tightness + (sign == "-" or "int" not in dtype))
        if b.startswith("-"):
            b = f"({b})"
        return f"{a} {sign} {b}", tightness

    def _unrounded(self, expr: tirx.Expr) -> str:
        """A narrow float, computed in float but for the last rounding."""
        if type(expr) in _ARITHMETIC or isinstance(expr, tirx.Div):
            sign, tightness = _ARITHMETIC.get(type(expr), ("/", _TIMES))
            return f"{self.text(expr.a, tightness)} {sign} {self.text(expr.b, tightness + 1)}"
        if isinstance(expr, tirx.Cast) and _dtype(expr.value) == "float32":
            return self.text(expr.value)
        return self.text(expr)

    def _fits(self, expr: tirx.Expr, dtype: str) -> bool:
        """Whether no operand can make the result leave the type, so that C's sum is TVM's."""
        if dtype in ("uint32", "uint64"):
            return True  # C wraps those as TVM does
        bound = self._analyzer.const_int_bound(expr)
        least, greatest = limits(dtype)
        if isinstance(expr, tirx.Add) and isinstance(expr.b, tirx.IntImm) and int(expr.b) >= 0:
            return self._analyzer.const_int_bound(expr.a).max_value + int(expr.b) <= greatest
        if dtype == "int64":  # where these stand for infinity
            return -greatest < bound.min_value and bound.max_value < greatest
        return least <= bound.min_value and bound.max_value <= greatest

    def _wrapping(self, expr: tirx.Expr, dtype: str) -> tuple[str, int]:
        """Integers that may overflow: unsigned meanwhile, which wraps."""
        wide = "uint64_t" if dtype.endswith("64") else "uint32_t"

        def unsigned(side: tirx.Expr) -> str:
            if type(side) in _ARITHMETIC:
                return f"({unsigned(side.a)} {_ARITHMETIC[type(side)][0]} {unsigned(side.b)})"
            if isinstance(side, tirx.IntImm) and int(side) >= 0:
                return f"{int(side)}u"
            return f"({wide}){self.text(side, _UNARY)}"

        return f"({value_type(dtype)}){unsigned(expr)}", _UNARY

    def _logical(self, expr: tirx.And | tirx.Or, _: str) -> tuple[str, int]:
        sign, kind = ("&&", tirx.And) if isinstance(expr, tirx.And) else ("||", tirx.Or)

        def side(operand: tirx.Expr) -> str:
            return self.text(operand, _LOOSE if isinstance(operand, kind) else _COMPARE)

        left = side(expr.a)
        if not _named(expr.b):
            return f"{left} {sign} {side(expr.b)}", _LOOSE
        result = self._place.declare("holds", "bool", None)
        shortcut: list[Callable[[], str]] = [lambda: self.value(expr.b), lambda: "0"]
        if kind is tirx.Or:
            shortcut = [lambda: "1", shortcut[0]]
        self._place.choose(left, shortcut, result)
        return result, _ATOM

    def _chosen(
        self, condition: tirx.Expr, yes: tirx.Expr, no: tirx.Expr, guarded: bool
    ) -> tuple[str, int]:
        """One of two values; where ``guarded``, named values of the other are not computed: they
        may read beyond a buffer."""
        if (known := self._decided(condition)) is not None:
            return self._print(yes if known else no)
        if guarded and (_named(yes) or _named(no)):
            result = self._place.declare("chosen", _dtype(yes), None)
            sides: list[Callable[[], str]] = [lambda: self.value(yes), lambda: self.value(no)]
            self._place.choose(self.text(condition), sides, result)
            return result, _ATOM
        chain = isinstance(no, tirx.Select) or _name(no) == "if_then_else"
        asked, other = self.text(condition, _COMPARE), self.value(no, _LOOSE if chain else _COMPARE)
        with self._analyzer.constraint_scope(condition):
            return f"{asked} ? {self.value(yes, _COMPARE)} : {other}", _LOOSE

    def _decided(self, condition: tirx.Expr) -> bool | None:
        """What a comparison of integers always is, by their types and what loops count."""
        if type(condition) not in _ORDERED or "int" not in _dtype(condition.a):
            return None
        sides = condition.a, condition.b
        if isinstance(condition, tirx.GT | tirx.GE):
            sides = condition.b, condition.a
        less, more = map(self._analyzer.const_int_bound, sides)
        strict = isinstance(condition, tirx.LT | tirx.GT)
        if less.max_value + strict <= more.min_value:
            return True
        return False if less.min_value >= more.max_value + (not strict) else None

    def _cast(self, cast: tirx.Cast, dtype: str) -> tuple[str, int]:
        value, of = cast.value, _dtype(cast.value)
        if of == dtype:
            return self._print(value)
        if dtype == "bool":
            return f"{self.value(value, _COMPARE + 1)} != 0", _COMPARE
        if is_narrow(dtype):
            rounds = self._helpers.need(f"round_to_{_SHORT[dtype]}")
            text = self.value(value)
            return f"{rounds}({text if 'float' in of else f'(float)({text})'})", _ATOM
        if "float" in of and "int" in dtype:
            real = "double" if of == "float64" else "float"
            wide = {"8": "int32", "16": "int32"}.get(dtype.lstrip("uint"), dtype)
            wide = "int64" if wide == "uint32" else wide
            text = f"{self._helpers.integer_of(real, wide)}({self.text(value)})"
            return (text, _ATOM) if wide == dtype else self._converted(text, dtype)
        if is_narrow(of) and dtype == "float32":
            return self._print(value)
        return f"({value_type(dtype)}){self.value(value, _UNARY)}", _UNARY

    def _division(self, expr: tirx.Expr, dtype: str) -> tuple[str, int]:
        if "float" in dtype:
            if not isinstance(expr, tirx.Div):
                raise Unprintable(f"{type(expr).__name__} of floats")
            if is_narrow(dtype):
                rounds = self._helpers.need(f"round_to_{_SHORT[dtype]}")
                return f"{rounds}({self._unrounded(expr)})", _ATOM
            return f"{self.text(expr.a, _TIMES)} / {self.text(expr.b, _TIMES + 1)}", _TIMES
        if type(expr) in _FLOORS:
            name, sign = _FLOORS[type(expr)]
            least = [self._analyzer.const_int_bound(side).min_value for side in (expr.a, expr.b)]
            if dtype[0] != "u" and not (least[0] >= 0 and least[1] > 0):
                function = self._helpers.floor_division(name, dtype)
                return f"{function}({self.text(expr.a)}, {self.text(expr.b)})", _ATOM
        else:
            sign = "/" if isinstance(expr, tirx.Div) else "%"
        text = f"{self.text(expr.a, _TIMES)} {sign} {self.text(expr.b, _TIMES + 1)}"
        return text, _TIMES

    def _combined(self, expr: tirx.Expr, dtype: str) -> tuple[str, int]:
        return self._bitwise(_BITWISE_NODES[type(expr)], [expr.a, expr.b], dtype)

    def _inverted(self, expr: tirx.BitwiseNot, dtype: str) -> tuple[str, int]:
        return self._converted(f"~{self.text(expr.a, _UNARY)}", dtype)

    def _bitwise(self, name: str, sides: Sequence[tirx.Expr], dtype: str) -> tuple[str, int]:
        if dtype == "bool":
            joined = f" {_BITWISE[name]} ".join(self.value(side, _UNARY) for side in sides)
            return joined, _LOOSE
        a, b = (self._bits(side, name) for side in sides)
        if name == "shift_left":
            wide = "uint64_t" if dtype.endswith("64") else "uint32_t"
            return f"({value_type(dtype)})(({wide}){a} << {b})", _UNARY
        text = f"{a} {_BITWISE[name]} {b}"
        if dtype in ("int32", "int64", "uint32", "uint64"):
            return text, _LOOSE
        return f"({value_type(dtype)})({text})", _UNARY

    def _bits(self, side: tirx.Expr, name: str) -> str:
        """An operand; a mask in the base that shows its bits."""
        if isinstance(side, tirx.IntImm) and int(side) > 9 and not name.startswith("shift"):
            return hex(int(side))
        return self.text(side, _UNARY)

    def _converted(self, text: str, dtype: str) -> tuple[str, int]:
        return f"({value_type(dtype)}){text}", _UNARY

    def _call(self, call: ir.Call, dtype: str) -> tuple[str, int]:
        name, args = _name(call), list(call.args)
        if name in _SAME:
            return self._print(args[0])
        if name == "if_then_else":
            condition, yes, no = args
            return self._chosen(condition, yes, no, guarded=True)
        if name in _BITWISE:
            return self._bitwise(name, args, dtype)
        if name == "bitwise_not":
            return self._converted(f"~{self.text(args[0], _UNARY)}", dtype)
        if name == "reinterpret":
            return self._reinterpreted(args[0], dtype), _ATOM
        if name in ("call_pure_extern", "call_extern"):
            plain = args[0].value.removesuffix("f") if dtype == "float32" else args[0].value
            name, args = plain, args[1:]
        if name in _CLASSIFIED:
            return f"{name}({self.text(args[0])})", _ATOM
        if name == "popcount":
            return f"{self._helpers.bits_set(dtype)}({self.text(args[0])})", _ATOM
        if name == "large_uint_imm":
            low, high = (int(arg) for arg in args)
            return f"UINT64_C({(high << 32) + low})", _ATOM
        if name in _BUILT:
            return self._print(_BUILT[name](*args))
        if name in _LIBM and "float" in dtype:
            return self._libm(name, args, dtype)
        raise Unprintable(f"a call of {getattr(call.op, 'name', call.op)}")

    def _libm(self, name: str, args: Sequence[tirx.Expr], dtype: str) -> tuple[str, int]:
        suffix = "" if dtype == "float64" else "f"
        text = f"{name}{suffix}({', '.join(map(self.value, args))})"
        if is_narrow(dtype):
            text = f"{self._helpers.need(f'round_to_{_SHORT[dtype]}')}({text})"
        return text, _ATOM

    def _reinterpreted(self, value: tirx.Expr, dtype: str) -> str:
        of, dtype = as_bits(_dtype(value)), as_bits(dtype)
        if of == dtype:
            return self.text(value, _UNARY)
        key = of if "float" in of else dtype
        text = self.text(value)
        if is_narrow(key):
            functions = _OF_FLOAT if key == of else _TO_FLOAT
            return f"{self._helpers.need(functions[key])}({text})"
        if ("float" in of) == ("float" in dtype):
            return f"({value_type(dtype)}){self.text(value, _UNARY)}"
        real, bits = ("double", "uint64_t") if key == "float64" else ("float", "uint32_t")
        if key == of:
            moved = f"{self._helpers.need(f'bits_of_{real}')}({text})"
            return moved if dtype[0] == "u" else f"({value_type(dtype)}){moved}"
        inner = text if of[0] == "u" else f"({bits}){self.text(value, _UNARY)}"
        return f"{self._helpers.need(f'{real}_of_bits')}({inner})"


_Printer = Callable[[Expressions, Any, str], tuple[str, int]]
_PRINTERS: dict[type, _Printer] = {
    tirx.IntImm: Expressions._literal,
    tirx.FloatImm: Expressions._literal,
    tirx.Var: Expressions._variable,
    ir.TensorLoad: Expressions._load,
    tirx.Let: Expressions._let,
    **dict.fromkeys(_ARITHMETIC, Expressions._arithmetic),
    **dict.fromkeys(_COMPARISONS, Expressions._comparison),
    **dict.fromkeys(_EXTREMES, Expressions._extreme),
    **dict.fromkeys((tirx.And, tirx.Or), Expressions._logical),
    tirx.Not: Expressions._not,
    tirx.Select: Expressions._select,
    tirx.Cast: Expressions._cast,
    **dict.fromkeys((*_FLOORS, tirx.Div, tirx.Mod), Expressions._division),
    **dict.fromkeys(_BITWISE_NODES, Expressions._combined),
    tirx.BitwiseNot: Expressions._inverted,
    ir.Call: Expressions._call,
}

_SHORT = {"float16": "half", "bfloat16": "bfloat16"}
_TO_FLOAT = {"float16": "float_of_half", "bfloat16": "float_of_bfloat16"}
_OF_FLOAT = {"float16": "half_of_float", "bfloat16": "bfloat16_of_float"}


_OPERATORS = *_ARITHMETIC, *_COMPARISONS, *_EXTREMES, *_FLOORS, tirx.Div, tirx.Mod


def _computed_with(expr: tirx.Expr) -> list[str]:
    """The types of the numbers that the outermost operation of ``expr`` takes and gives."""
    if isinstance(expr, tirx.Cast):
        return [_dtype(expr), _dtype(expr.value)]
    if type(expr) in _OPERATORS:
        return [_dtype(expr.a)]
    return [_dtype(expr)] if _name(expr) in _LIBM else []


def _one(x: tirx.Expr) -> tirx.Expr:
    return tirx.const(1.0, _dtype(x))


# Functions that C lacks, by those that it has.
_BUILT: dict[str, Callable[..., tirx.Expr]] = {
    "rsqrt": lambda x: _one(x) / tirx.sqrt(x),
    "sigmoid": lambda x: _one(x) / (_one(x) + tirx.exp(tirx.const(0.0, _dtype(x)) - x)),
    "exp10": lambda x: tirx.pow(tirx.const(10.0, _dtype(x)), x),
}


def _dtype(expr: tirx.Expr) -> str:
    return str(expr.ty.dtype)


def _name(expr: tirx.Expr) -> str:
    """What a call calls, without the dialect."""
    name = getattr(expr.op, "name", "") if isinstance(expr, ir.Call) else ""
    return name.partition(".")[2] if name.startswith(("tirx.", "prim.")) else name


def _named(expr: tirx.Expr) -> list[tirx.Let]:
    """The named values in ``expr``."""
    found: list[tirx.Let] = []
    tvm_ffi.structural_walk(expr, (tirx.Let, found.append))
    return found


def _named_loads(*exprs: tirx.Expr) -> bool:
    """Whether a named value in one of ``exprs`` reads a buffer."""
    loads: list[ir.TensorLoad] = []
    for let in (let for expr in exprs for let in _named(expr)):
        tvm_ffi.structural_walk(let.value, (ir.TensorLoad, loads.append))
    return bool(loads)


def _uses(expr: tirx.Expr, var: tirx.Var) -> bool:
    return any(var.same_as(other) for other in tirx.analysis.undefined_vars(expr))
