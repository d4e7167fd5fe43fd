"""TVM's legalisation of bfloat16 arithmetic, made to reach named values.

BF16ComputeLegalize does not look into the value of a ``Let``. What is bfloat16 there keeps its
type until BF16StorageLegalize makes it uint16, and then counts as a number of that type. It does
look into the operands of a call, so a ``Let`` is one for as long.

Before: ``let t = cast(float32, x[i]) in t / (t + 1)``
After:  ``let t = reinterpret(float32, uint32(reinterpret(uint16, x[i])) << 16) in t / (t + 1)``
"""

import tvm
import tvm_ffi
from tvm import tirx
from tvm.ir import Call, register_op_attr
from tvm.tirx.expr import CallEffectKind

__all__ = ["legalize_bfloat16"]

_NAMED = "tirx.tvm_ext.named"
register_op_attr(_NAMED, "TCallEffectKind", CallEffectKind.Pure.value)
register_op_attr(_NAMED, "TScriptPrinterName", "tvm_ext_named", level=20)


def _as_call(let: tirx.Let) -> tirx.Expr:
    if str(let.var.ty.dtype).startswith("bfloat16"):
        return let
    return tirx.call_intrin(let.ty, _NAMED, let.var, let.value, let.body)


def _as_let(call: Call) -> tirx.Expr:
    if getattr(call.op, "name", "") != _NAMED:
        return call
    name, value, body = call.args
    # A cast to bfloat16 holds its operand several times: each gets names of its own.
    own = tirx.Var(name.name, name.ty)
    body = tvm_ffi.structural_map(body, (tirx.Var, lambda var: own if var.same_as(name) else var))
    return tirx.Let(own, value, body)


def _converts(function: tirx.PrimFunc) -> bool:
    """Whether ``function`` converts from or to bfloat16."""
    found: list[bool] = []

    def visit(cast: tirx.Cast) -> None:
        types = str(cast.ty.dtype), str(cast.value.ty.dtype)
        found.append(any(dtype.startswith("bfloat16") for dtype in types))

    tvm_ffi.structural_walk(function.body, (tirx.Cast, visit))
    return any(found)


@tvm.transform.module_pass(opt_level=0, name="LegalizeBFloat16")
def legalize_bfloat16(module, _context):
    """BF16ComputeLegalize, named values included."""
    concerned = [
        gv for gv, f in module.functions_items() if isinstance(f, tirx.PrimFunc) and _converts(f)
    ]

    def mapped(module, kind, change):
        for gv in concerned:
            body = tvm_ffi.structural_map(module[gv].body, (kind, change))
            module.update_func(gv, module[gv].with_body(body))
        return module

    hidden = mapped(module.clone(), tirx.Let, _as_call)
    return mapped(tirx.transform.BF16ComputeLegalize()(hidden), Call, _as_let)
