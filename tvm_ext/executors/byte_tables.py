"""Tables of 256 bytes, read by vectors of bytes.

Before: ``y[ramp] = table[int32(x[ramp])]``, which LLVM would load element by element
After:  ``y[ramp] = tvmx_byte_table_16(x[ramp], address_of(table))``, two shuffles of registers

The shuffle is vpermi2b, of AVX512_VBMI, which reads 128 bytes.
"""

import tvm
import tvm_ffi
from tvm import DataType, ir, tirx

from .llvm_functions import has_feature, with_functions

__all__ = ["lower_byte_tables"]

_BYTES = ("int8", "uint8")
_SIZE = 256
_LANES = 64  # of a register


@tvm.transform.module_pass(opt_level=0, name="LowerByteTables")
def lower_byte_tables(module, _context):
    """Each kernel brings the functions that it calls."""
    for gv, function in module.functions_items():
        if isinstance(function, tirx.PrimFunc) and _has_shuffle(function):
            lowered = _lowered(function)
            if lowered is not function:
                module.update_func(gv, lowered)
    return module


def _has_shuffle(function: tirx.PrimFunc) -> bool:
    return has_feature((function.attrs or {}).get("target"), "avx512vbmi")


def _lowered(function: tirx.PrimFunc) -> tirx.PrimFunc:
    called: dict[str, str] = {}  # name -> LLVM's text

    def load(node: ir.TensorLoad) -> ir.Expr:
        places = _bytes_of(node)
        if places is None:
            return node
        dtype = DataType(places.ty.dtype)
        name = f"tvmx_byte_table_{dtype.lanes}"
        called[name] = _text(name, dtype.lanes)
        first = tirx.address_of(tirx.BufferLoad(node.source, [tirx.const(0, "int32")]))
        result = DataType(str(node.source.ty.dtype.dtype)).with_lanes(dtype.lanes)
        return tirx.call_extern(result, name, places, first)

    body = tvm_ffi.structural_map(function.body, (ir.TensorLoad, load))
    return with_functions(function.with_body(body), called.values()) if called else function


def _bytes_of(load: ir.TensorLoad) -> tirx.Expr | None:
    """The vector of bytes that ``load`` reads a table at, if it does."""
    place, buffer = load.indices[-1], load.source.ty
    if not isinstance(place, tirx.Cast):  # nearly all loads
        return None
    whole = len(buffer.shape) == 1 and isinstance(buffer.shape[0], tirx.IntImm)
    if not whole or int(buffer.shape[0]) != _SIZE or str(buffer.dtype.dtype) not in _BYTES:
        return None
    dtype = DataType(place.value.ty.dtype)
    of_bytes = 1 < dtype.lanes <= _LANES and "uint8" in str(dtype)
    return place.value if of_bytes else None


def _text(name: str, lanes: int) -> str:
    """``bytes(bytes places, ptr table)``."""
    own, whole = f"<{lanes} x i8>", f"<{_LANES} x i8>"
    widened = ", ".join(f"i32 {k if k < lanes else 'poison'}" for k in range(_LANES))
    narrowed = ", ".join(f"i32 {k}" for k in range(lanes))
    quarters = "".join(
        f"""
  %p{k} = getelementptr i8, ptr %table, i64 {_LANES * k}
  %t{k} = load {whole}, ptr %p{k}, align 1"""
        for k in range(4)
    )
    instruction = "llvm.x86.avx512.vpermi2var.qi.512"
    return f"""
declare {whole} @{instruction}({whole}, {whole}, {whole})
define linkonce_odr hidden {own} @{name}({own} %places, ptr %table) alwaysinline {{
  %w = shufflevector {own} %places, {own} poison, <{_LANES} x i32> <{widened}>{quarters}
  %a = call {whole} @{instruction}({whole} %t0, {whole} %w, {whole} %t1)
  %b = call {whole} @{instruction}({whole} %t2, {whole} %w, {whole} %t3)
  %upper = icmp slt {whole} %w, zeroinitializer
  %r = select <{_LANES} x i1> %upper, {whole} %b, {whole} %a
  %y = shufflevector {whole} %r, {whole} poison, <{lanes} x i32> <{narrowed}>
  ret {own} %y
}}
"""
