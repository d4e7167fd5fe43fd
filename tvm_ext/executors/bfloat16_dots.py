"""Products of bfloat16 pairs (:mod:`tvm_ext.ops.bfloat16_pairs`) as the instructions of the CPU.

Before: ``acc[ramp] = acc[ramp] + bfloat16_dot(x, y)``
After:  ``acc[ramp] = tvmx_bfloat16_dot_16(acc[ramp], x, y)``, a function of LLVM's that is inlined

TVM cannot write bfloat16 vectors in a call of an LLVM intrinsic, LLVM's own text can.
"""

import tvm
import tvm_ffi
from tvm import DataType, tirx
from tvm.ir import Call, StringImm

__all__ = ["lower_dots"]

DOT, PAIR = "tirx.tvm_ext.bfloat16_dot", "tirx.tvm_ext.bfloat16_pair"  # as tvm_ext.ops has them

_BITS = {4: 128, 8: 256, 16: 512}  # lanes of float32 -> the suffix of the instruction


@tvm.transform.module_pass(opt_level=0, name="LowerBFloat16Dots")
def lower_dots(module, _context):
    """Each kernel brings the functions that it calls."""
    for gv, function in module.functions_items():
        if isinstance(function, tirx.PrimFunc):
            lowered = _lowered(function)
            if lowered is not function:
                module.update_func(gv, lowered)
    return module


def _lowered(function: tirx.PrimFunc) -> tirx.PrimFunc:
    called: dict[str, str] = {}  # name -> LLVM's text

    def extern(kind: str, *operands: tirx.Expr) -> tirx.Expr:
        lanes = operands[0].ty.dtype.lanes
        ty = DataType("int32" if kind == PAIR else "float32").with_lanes(lanes)
        name = f"tvmx_{kind.rpartition('.')[2]}_{lanes}"
        called[name] = _pair(name, lanes) if kind == PAIR else _dot(name, lanes)
        return tirx.call_extern(ty, name, *operands)

    def sum_(add: tirx.Add) -> tirx.Expr:
        for term, other in ((add.b, add.a), (add.a, add.b)):
            if _is(term, DOT):
                return extern(DOT, other, *term.args)
        return add

    def alone(call: Call) -> tirx.Expr:
        if _is(call, DOT):
            return extern(DOT, tirx.const(0, call.ty), *call.args)
        return extern(PAIR, *call.args) if _is(call, PAIR) else call

    body = tvm_ffi.structural_map(function.body, (tirx.Add, sum_))
    body = tvm_ffi.structural_map(body, (Call, alone))
    if not called:
        return function
    zero = tirx.const(0, "int32")
    for text in called.values():
        body = tirx.AttrStmt(zero, "pragma_import_llvm", StringImm(text), body)
    return function.with_body(body)


def _is(expr: tirx.Expr, operator: str) -> bool:
    return isinstance(expr, Call) and getattr(expr.op, "name", None) == operator


def _dot(name: str, lanes: int) -> str:
    """``float(float sum, int32 x, int32 y)``."""
    if lanes not in _BITS:
        return _plain_dot(name, lanes)
    words, floats, halves = f"<{lanes} x i32>", f"<{lanes} x float>", f"<{2 * lanes} x bfloat>"
    instruction = f"{floats} @llvm.x86.avx512bf16.dpbf16ps.{_BITS[lanes]}"
    return f"""
declare {instruction}({floats}, {halves}, {halves})
define linkonce_odr hidden {floats} @{name}({floats} %sum, {words} %x, {words} %y) alwaysinline {{
  %a = bitcast {words} %x to {halves}
  %b = bitcast {words} %y to {halves}
  %r = call {instruction}({floats} %sum, {halves} %a, {halves} %b)
  ret {floats} %r
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


def _vector(element: str, lanes: int) -> str:
    return element if lanes == 1 else f"<{lanes} x {element}>"


def _splat(value: int, lanes: int) -> str:
    return str(value) if lanes == 1 else f"splat (i32 {value})"
