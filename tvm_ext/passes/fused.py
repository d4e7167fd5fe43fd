"""Kernels that nobody wrote in TE: the operators of a match in one, and C text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import tvm_ffi
from tvm import IRModule, relax, te, tirx
from tvm.ir import GlobalVar, Op
from tvm.ir.expr import GenericConst

from .facts import OPAQUE, dims_of, in_order_of_use
from .legalize import legalize
from .match import Match

__all__ = ["COMPOSITE", "C_SOURCE", "C_SUPPORT", "CCode", "c_kernel", "fused"]

#: The attribute of a kernel that names its compound; "attributes" holds the compound's own.
COMPOSITE = "Composite"
#: The attributes of a kernel that is C text, and of the text that all such kernels share.
C_SOURCE, C_SUPPORT = "c_source", "c_support"


@dataclass(frozen=True)
class CCode:
    """A kernel as C text, called with the addresses of its operands and of its results.

    Attributes:
        text: defines ``int32_t TVMX_KERNEL(void *x0, ..., void *y)``; the build defines the macro.
            The result is 0, or a code that ends the run.
        support: text that is compiled once beside all kernels that name the same.
    """

    text: str
    support: str = ""


def c_kernel(
    operands: Sequence[relax.Type],
    results: Sequence[relax.Type],
    code: CCode,
    name: str,
    attributes: Mapping[str, object] | None = None,
) -> tirx.PrimFunc:
    """A kernel that is ``code``, of tensors of these static types; the build links it.

    Args:
        operands, results: types, results last in the C function's parameters.
        name: of the compound, in profiles and in errors of the C compiler.
        attributes: the compound's own, for people.
    """
    tensors = [te.placeholder(dims_of(ty), str(ty.dtype.dtype)) for ty in operands]

    def body(ins: Sequence, outs: Sequence) -> tirx.Expr:
        return tirx.call_extern("int32", "TVMX_KERNEL", *(x.data for x in (*ins, *outs)))

    shapes, dtypes = [dims_of(ty) for ty in results], [str(ty.dtype.dtype) for ty in results]
    given = te.extern(shapes, tensors, body, "c_kernel", dtype=dtypes)
    outputs = given if isinstance(given, list) else [given]
    attrs = {COMPOSITE: name, C_SOURCE: code.text, C_SUPPORT: code.support, "op_pattern": OPAQUE}
    attrs |= {"attributes": dict(attributes)} if attributes else {}
    # There is nothing to schedule.
    kernel = te.create_prim_func([*tensors, *outputs]).with_attrs({"tirx.is_scheduled": True})
    return kernel.with_attrs(attrs).without_attr("global_symbol")


def fused(
    match: Match, operands: Sequence[relax.Expr], module: IRModule
) -> tuple[tirx.PrimFunc, list[tirx.Var]]:
    """The operators of ``match``, a part of ``module``, as one kernel of ``operands``.

    Behind them it takes the dims that are given, too: those that no type of an operand tells.
    """
    called = (arg for var in match.inner for arg in getattr(match.graph.values[var], "args", ()))
    builder = relax.BlockBuilder()
    # Symbols of its own: a builder writes types into those that it is given.
    own = {
        symbol: builder.add_func(module[symbol], symbol.name_hint)
        for symbol in called
        if isinstance(symbol, GlobalVar)
    }
    params = [relax.Var(f"x{k}", operand.ty) for k, operand in enumerate(operands)]
    known: dict[relax.Expr, relax.Expr] = own | dict(zip(operands, params, strict=True))

    def renamed(leaf: relax.Expr) -> relax.Expr:
        return known.get(leaf, leaf)

    with builder.function("fused", params):
        with builder.dataflow():
            for var in match.inner:
                value = match.graph.values[var]
                known[var] = builder.emit(
                    tvm_ffi.structural_map(value, ((relax.Var, GenericConst, GlobalVar), renamed))
                )
            results = [known[var] for var in match.results]
            result = builder.emit_output(results if match.others else results[0])
        builder.emit_func_output(result)
    reshape = Op.get("relax.reshape").get_attr("FLegalize")
    module = legalize({"relax.reshape": reshape})(builder.get())
    module = relax.transform.CanonicalizeBindings()(module)
    return _merged(module, params)


def _merged(module: IRModule, params: Sequence[relax.Var]) -> tuple[tirx.PrimFunc, list[tirx.Var]]:
    """The kernels that the function "fused" calls, as one: FuseTIR wants a caller of it.

    And the dims that it takes behind ``params``, which FuseTIR wants in a shape.
    """
    group = module["fused"]
    shown = [param.ty for param in group.params]
    shown += [binding.value for block in group.body.blocks for binding in block.bindings]
    dims = in_order_of_use(relax.analysis.free_symbolic_vars(group), shown)
    shapes = [relax.ShapeExpr(dims)] if dims else []
    told = [relax.Var("dims", shape.ty) for shape in shapes]
    builder = relax.BlockBuilder(module)
    # Under a symbol of its own: the type of the other is that of the operands alone.
    whole = relax.Function([*group.params, *told], group.body).with_attr("Primitive", 1)
    symbol = builder.add_func(whole, "whole")
    operands = [relax.Var(param.name, param.ty) for param in params]
    with builder.function("main", operands):
        with builder.dataflow():
            result = builder.emit_output(relax.Call(symbol, [*operands, *shapes]))
        builder.emit_func_output(result)
    merged = relax.transform.FuseTIR()(builder.get())
    symbol, values, *_ = merged["main"].body.blocks[0].bindings[0].value.args
    return merged[symbol], list(values)[len(params) :]
