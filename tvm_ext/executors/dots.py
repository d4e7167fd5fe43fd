"""Words, of :mod:`tvm_ext.ops.bfloat16_pairs` and :mod:`tvm_ext.ops.integer_dots`, and their
products as instructions of the CPU.

Before: ``acc[ramp] = acc[ramp] + bfloat16_dot(x, y)``
After:  ``acc[ramp] = tvmx_bfloat16_dot_16(acc[ramp], x, y)``, a function of LLVM's that is inlined

TVM cannot write bfloat16 vectors in a call of an LLVM intrinsic, LLVM's own text can. Of integers
the sum is an operand of the instruction, which a term of a sum does not know.
"""

from collections.abc import Callable

import tvm
import tvm_ffi
from tvm import DataType, tirx
from tvm.ir import Call
from tvm.target import Target

from .llvm_functions import has_feature, with_functions

__all__ = ["lower_dots"]

# As tvm_ext.ops has them.
DOT, PAIR = "tirx.tvm_ext.bfloat16_dot", "tirx.tvm_ext.bfloat16_pair"
INTEGER_DOT, INTEGER_PAIR_DOT = "tirx.tvm_ext.integer_dot", "tirx.tvm_ext.integer_pair_dot"
BYTE_WORD, BYTE_PAIR = "tirx.tvm_ext.byte_word", "tirx.tvm_ext.byte_pair"
SIGNED_PAIR = "tirx.tvm_ext.signed_pair"

_TYPES = {
    DOT: "float32", PAIR: "int32", INTEGER_DOT: "int32", INTEGER_PAIR_DOT: "int32",
    BYTE_WORD: "int32", BYTE_PAIR: "int32", SIGNED_PAIR: "int32",
}  # fmt: skip
_DOTS = (DOT, INTEGER_DOT, INTEGER_PAIR_DOT)
_BITS = {4: 128, 8: 256, 16: 512}  # lanes of 32 bits -> the suffix of the instruction
_WIDTHS = {"i8": 8, "bfloat": 16}
# Lanes -> what multiplies 16-bit neighbours and adds them, and what a CPU has that has it.
_MULTIPLY_ADD = {
    4: ("sse2.pmadd.wd", "sse2"),
    8: ("avx2.pmadd.wd", "avx2"),
    16: ("avx512.pmaddw.d.512", "avx512bw"),
}


@tvm.transform.module_pass(opt_level=0, name="LowerDots")
def lower_dots(module, _context):
    """Each kernel brings the functions that it calls."""
    for gv, function in module.functions_items():
        if isinstance(function, tirx.PrimFunc):
            lowered = _lowered(function)
            if lowered is not function:
                module.update_func(gv, lowered)
    return module


def _lowered(function: tirx.PrimFunc) -> tirx.PrimFunc:
    if not _has_dots(function):  # most have none, and many sums
        return function
    called: dict[str, str] = {}  # name -> LLVM's text
    target = (function.attrs or {}).get("target")
    texts = {
        DOT: _dot,
        PAIR: _pair,
        INTEGER_DOT: _integer_dot(target),
        INTEGER_PAIR_DOT: _integer_pair_dot(target),
        BYTE_WORD: _byte_word,
        BYTE_PAIR: _byte_pair,
        SIGNED_PAIR: _signed_pair,
    }

    def extern(kind: str, *operands: tirx.Expr) -> tirx.Expr:
        lanes = operands[0].ty.dtype.lanes
        name = f"tvmx_{kind.rpartition('.')[2]}_{lanes}"
        called[name] = texts[kind](name, lanes)
        return tirx.call_extern(DataType(_TYPES[kind]).with_lanes(lanes), name, *operands)

    def sum_(add: tirx.Add) -> tirx.Expr:
        for term, other in ((add.b, add.a), (add.a, add.b)):
            kind = _kind(term)
            if kind in _DOTS:
                return extern(kind, other, *term.args)
        return add

    def alone(call: Call) -> tirx.Expr:
        kind = _kind(call)
        if kind in _DOTS:
            return extern(kind, tirx.const(0, call.ty), *call.args)
        return extern(kind, *call.args) if kind in _TYPES else call

    body = tvm_ffi.structural_map(function.body, (tirx.Add, sum_))
    body = tvm_ffi.structural_map(body, (Call, alone))
    return with_functions(function.with_body(body), called.values())


def _has_dots(function: tirx.PrimFunc) -> bool:
    found = False

    def visit(call: Call) -> None:
        nonlocal found
        found |= _kind(call) in _TYPES

    tvm_ffi.structural_walk(function.body, (Call, visit))
    return found


def _kind(expr: tirx.Expr) -> str:
    """The operator that ``expr`` calls, if it is a call of one."""
    return getattr(expr.op, "name", "") if isinstance(expr, Call) else ""


def _dot(name: str, lanes: int) -> str:
    """``float(float sum, int32 x, int32 y)``."""
    if lanes not in _BITS:
        return _plain_dot(name, lanes)
    instruction = f"llvm.x86.avx512bf16.dpbf16ps.{_BITS[lanes]}"
    return _summing(name, lanes, instruction, "float", "bfloat")


def _summing(name: str, lanes: int, instruction: str, total: str, part: str) -> str:
    """What calls an instruction that adds to a sum the products of the ``part`` of two words."""
    words, sums = f"<{lanes} x i32>", f"<{lanes} x {total}>"
    parts = f"<{lanes * 32 // _WIDTHS[part]} x {part}>"
    return f"""
declare {sums} @{instruction}({sums}, {parts}, {parts})
define linkonce_odr hidden {sums} @{name}({sums} %sum, {words} %x, {words} %y) alwaysinline {{
  %a = bitcast {words} %x to {parts}
  %b = bitcast {words} %y to {parts}
  %r = call {sums} @{instruction}({sums} %sum, {parts} %a, {parts} %b)
  ret {sums} %r
}}
"""


def _plain_dot(name: str, lanes: int) -> str:
    """The same for other numbers of lanes: a bfloat16 is the upper half of a float."""
    words, floats = _vector("i32", lanes), _vector("float", lanes)
    low, high = (_splat(value, lanes) for value in (16, -65536))
    halves = "".join(
        f"""
  %{x}s = shl {words} %{x}, {low}
  %{x}m = and {words} %{x}, {high}
  %{x}l = bitcast {words} %{x}s to {floats}
  %{x}h = bitcast {words} %{x}m to {floats}"""
        for x in "xy"
    )
    return f"""
define linkonce_odr hidden {floats} @{name}({floats} %sum, {words} %x, {words} %y) alwaysinline {{\
{halves}
  %l = fmul contract {floats} %xl, %yl
  %h = fmul contract {floats} %xh, %yh
  %s = fadd contract {floats} %sum, %l
  %r = fadd contract {floats} %s, %h
  ret {floats} %r
}}
"""


def _pair(name: str, lanes: int) -> str:
    """``int32(float low, float high)``."""
    words, floats = _vector("i32", lanes), _vector("float", lanes)
    halves, bits, sixteen = _vector("bfloat", lanes), _vector("i16", lanes), _splat(16, lanes)
    rounded = "".join(
        f"""
  %{x}r = fptrunc {floats} %{x} to {halves}
  %{x}b = bitcast {halves} %{x}r to {bits}
  %{x}w = zext {bits} %{x}b to {words}"""
        for x in ("low", "high")
    )
    return f"""
define linkonce_odr hidden {words} @{name}({floats} %low, {floats} %high) alwaysinline {{\
{rounded}
  %s = shl {words} %highw, {sixteen}
  %r = or {words} %s, %loww
  ret {words} %r
}}
"""


def _byte_word(name: str, lanes: int) -> str:
    """``int32(uint8, uint8, uint8, uint8)``; LLVM loads neighbouring vectors as one."""
    own, words = _vector("i8", lanes), _vector("i32", lanes)
    if lanes == 1:
        return _joined_bytes(name, {"a": 0, "b": 8, "c": 16, "d": 24})
    pair, whole = f"<{2 * lanes} x i8>", f"<{4 * lanes} x i8>"
    both = ", ".join(f"i32 {k}" for k in range(2 * lanes))
    woven = ", ".join(f"i32 {byte * lanes + k}" for k in range(lanes) for byte in range(4))
    return f"""
define linkonce_odr hidden {words} @{name}({own} %a, {own} %b, {own} %c, {own} %d) alwaysinline {{
  %l = shufflevector {own} %a, {own} %b, <{2 * lanes} x i32> <{both}>
  %h = shufflevector {own} %c, {own} %d, <{2 * lanes} x i32> <{both}>
  %w = shufflevector {pair} %l, {pair} %h, <{4 * lanes} x i32> <{woven}>
  %r = bitcast {whole} %w to {words}
  ret {words} %r
}}
"""


def _byte_pair(name: str, lanes: int) -> str:
    """``int32(uint8, uint8)``: each of 16 bits."""
    own, words = _vector("i8", lanes), _vector("i32", lanes)
    if lanes == 1:
        return _joined_bytes(name, {"a": 0, "b": 16})
    woven = ", ".join(f"i32 {k + byte * lanes}" for k in range(lanes) for byte in range(2))
    wide = f"<{2 * lanes} x i16>"
    return f"""
define linkonce_odr hidden {words} @{name}({own} %a, {own} %b) alwaysinline {{
  %p = shufflevector {own} %a, {own} %b, <{2 * lanes} x i32> <{woven}>
  %w = zext <{2 * lanes} x i8> %p to {wide}
  %r = bitcast {wide} %w to {words}
  ret {words} %r
}}
"""


def _signed_pair(name: str, lanes: int) -> str:
    """``int32(int16)``: two signed bytes as two numbers of 16 bits."""
    own, words = _vector("i16", lanes), _vector("i32", lanes)
    narrow, wide = f"<{2 * lanes} x i8>", f"<{2 * lanes} x i16>"
    return f"""
define linkonce_odr hidden {words} @{name}({own} %x) alwaysinline {{
  %b = bitcast {own} %x to {narrow}
  %w = sext {narrow} %b to {wide}
  %r = bitcast {wide} %w to {words}
  ret {words} %r
}}
"""


def _joined_bytes(name: str, shifts: dict[str, int]) -> str:
    """Of single bytes by name, each moved up so far."""
    parts, whole = "", "0"
    for x, shift in shifts.items():
        parts += f"""
  %{x}w = zext i8 %{x} to i32
  %{x}s = shl i32 %{x}w, {shift}
  %{x}o = or i32 {whole}, %{x}s"""
        whole = f"%{x}o"
    operands = ", ".join(f"i8 %{x}" for x in shifts)
    return f"""
define linkonce_odr hidden i32 @{name}({operands}) alwaysinline {{{parts}
  ret i32 {whole}
}}
"""


def _integer_dot(target: Target | None) -> Callable[[str, int], str]:
    """What writes ``int32(int32 sum, int32 x, int32 y)`` for ``target``."""
    wide = has_feature(target, "avx512vnni")
    narrow = wide or has_feature(target, "avxvnni")

    def text(name: str, lanes: int) -> str:
        if lanes in _BITS and (wide or (narrow and lanes < 16)):
            return _summing(name, lanes, f"llvm.x86.avx512.vpdpbusd.{_BITS[lanes]}", "i32", "i8")
        instruction = _multiply_add(target, lanes)
        if instruction is not None:
            return _integer_dot_of_halves(name, lanes, instruction)
        return _plain_integer_dot(name, lanes)

    return text


def _multiply_add(target: Target | None, lanes: int) -> str | None:
    """What multiplies pairs of 16 bits and adds the products, where ``target`` has it."""
    instruction, feature = _MULTIPLY_ADD.get(lanes, ("", ""))
    return f"llvm.x86.{instruction}" if feature and has_feature(target, feature) else None


def _integer_dot_of_halves(name: str, lanes: int, instruction: str) -> str:
    """By two products of pairs of 16 bits: bytes 0 and 2, and 1 and 3."""
    words, halves = _vector("i32", lanes), f"<{2 * lanes} x i16>"
    eight, byte = (f"splat (i16 {value})" for value in (8, 255))
    return f"""
declare {words} @{instruction}({halves}, {halves})
define linkonce_odr hidden {words} @{name}({words} %sum, {words} %x, {words} %y) alwaysinline {{
  %a = bitcast {words} %x to {halves}
  %b = bitcast {words} %y to {halves}
  %a0 = and {halves} %a, {byte}
  %a1 = lshr {halves} %a, {eight}
  %bs = shl {halves} %b, {eight}
  %b0 = ashr {halves} %bs, {eight}
  %b1 = ashr {halves} %b, {eight}
  %p0 = call {words} @{instruction}({halves} %a0, {halves} %b0)
  %p1 = call {words} @{instruction}({halves} %a1, {halves} %b1)
  %s = add {words} %sum, %p0
  %r = add {words} %s, %p1
  ret {words} %r
}}
"""


def _integer_pair_dot(target: Target | None) -> Callable[[str, int], str]:
    """The same of pairs of 16 bits."""

    def text(name: str, lanes: int) -> str:
        return _pair_dot(name, lanes, _multiply_add(target, lanes))

    return text


def _pair_dot(name: str, lanes: int, instruction: str | None) -> str:
    """LLVM makes one instruction of product and sum where there is one."""
    words, halves, sixteen = _vector("i32", lanes), f"<{2 * lanes} x i16>", _splat(16, lanes)
    if instruction is not None:
        declared = f"\ndeclare {words} @{instruction}({halves}, {halves})"
        product = f"""
  %a = bitcast {words} %x to {halves}
  %b = bitcast {words} %y to {halves}
  %p = call {words} @{instruction}({halves} %a, {halves} %b)"""
        # No instruction, but nothing that LLVM sees through: else it adds up products of several
        # steps first, and has too few registers for them.
        register = "v" if lanes == 16 else "x"
        total = f"""
  %s = add {words} %sum, %p
  %r = call {words} asm "", "={register},0"({words} %s)"""
    else:
        declared, total = "", f"\n  %r = add {words} %sum, %p"
        product = "".join(
            f"""
  %{x}s = shl {words} %{x}, {sixteen}
  %{x}l = ashr {words} %{x}s, {sixteen}
  %{x}h = ashr {words} %{x}, {sixteen}"""
            for x in "xy"
        )
        product += f"""
  %l = mul {words} %xl, %yl
  %h = mul {words} %xh, %yh
  %p = add {words} %l, %h"""
    return f"""{declared}
define linkonce_odr hidden {words} @{name}({words} %sum, {words} %x, {words} %y) alwaysinline {{\
{product}{total}
  ret {words} %r
}}
"""


def _plain_integer_dot(name: str, lanes: int) -> str:
    """The same byte by byte; LLVM knows that the factors are narrow."""
    words, byte, top = _vector("i32", lanes), _splat(255, lanes), _splat(24, lanes)
    steps = "".join(
        f"""
  %x{k}s = lshr {words} %x, {_splat(8 * k, lanes)}
  %x{k} = and {words} %x{k}s, {byte}
  %y{k}s = shl {words} %y, {_splat(24 - 8 * k, lanes)}
  %y{k} = ashr {words} %y{k}s, {top}
  %p{k} = mul {words} %x{k}, %y{k}
  %s{k + 1} = add {words} %{f"s{k}" if k else "sum"}, %p{k}"""
        for k in range(4)
    )
    return f"""
define linkonce_odr hidden {words} @{name}({words} %sum, {words} %x, {words} %y) alwaysinline {{\
{steps}
  ret {words} %s4
}}
"""


def _vector(element: str, lanes: int) -> str:
    return element if lanes == 1 else f"<{lanes} x {element}>"


def _splat(value: int, lanes: int) -> str:
    return str(value) if lanes == 1 else f"splat (i32 {value})"
