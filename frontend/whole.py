"""Kernels that are a whole ONNX node say so, for patterns that look for it.

A converter may give one kernel (``relax.call_tir``) for a node that Relax has no operator for. Its
call then has attributes: "onnx", the node's operator, and what the node is given beside tensors.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence

import onnx_ir as ir
import tvm
from tvm import IRModule, relax
from tvm.ir import Op
from tvm.ir.expr import GenericConst

from .builder import Builder

__all__ = ["whole_kernels", "with_calls"]

_CALL_TIR = Op.get("relax.call_tir")
_MOST = 64  # elements of a constant input that is told as an attribute


def whole_kernels(
    builder: Builder,
    node: ir.Node,
    converter: Callable,
    operands: Sequence[relax.Expr | None],
    results: Sequence[relax.Expr],
) -> dict[relax.Var, relax.Call]:
    """The result of ``node`` if one kernel gives it from the node's own operands, in their order.

    It stands for the kernel's call with attributes: the operator, the node's own, and by name the
    operands known at compile time.
    """
    call = builder.bb.lookup_binding(results[0]) if isinstance(results[0], relax.Var) else None
    if len(results) > 1 or not isinstance(call, relax.Call) or call.op != _CALL_TIR:
        return {}
    if not call.args[1].fields:  # shape arithmetic
        return {}
    names, defaults = _signature(converter)
    given = {name: attribute.value for name, attribute in node.attributes.items()}
    reads = list(call.args[1].fields)
    for name, operand in zip(names, operands, strict=False):
        if reads and operand is not None and _is_same(reads[0], operand):
            reads.pop(0)
        elif operand is not None:
            known = builder.static(operand)
            given[name] = None if known is None or known.size > _MOST else known.tolist()
    if reads or len(operands) > len(names) or not all(map(_is_plain, given.values())):
        return {}
    label = f"{node.domain}.{node.op_type}" if node.domain else node.op_type
    usual = {n: value for n, value in defaults.items() if _is_plain(value) and n not in given}
    attrs = tvm.ir.make_node("ir.DictAttrs", **usual, **given, onnx=label)
    # Normalized, as a call without a type would be given one later, where it stands.
    return {results[0]: builder.bb.normalize(relax.Call(call.op, call.args, attrs, call.ty_args))}


def _signature(converter: Callable) -> tuple[list[str], dict[str, object]]:
    """The names of a converter's operands, and its attributes with their defaults."""
    parameters = list(inspect.signature(converter).parameters.values())[1:]
    names = [p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
    return names, {p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY}


def _is_same(read: relax.Expr, operand: relax.Expr) -> bool:
    """Whether a kernel reads ``operand``; constants may be copies, with dims of 1 in front."""
    if not (isinstance(read, GenericConst) and isinstance(operand, GenericConst)):
        return read.same_as(operand)
    if read.value.same_as(operand.value):
        return True
    arrays = read.value.numpy(), operand.value.numpy()
    alike = len({(array.dtype, array.size) for array in arrays}) == 1
    return alike and arrays[0].tobytes() == arrays[1].tobytes()


def _is_plain(value: object) -> bool:
    if isinstance(value, list | tuple):
        return all(map(_is_plain, value))
    return isinstance(value, int | float | str)


def with_calls(module: IRModule, calls: Mapping[relax.Var, relax.Call]) -> IRModule:
    """``module``, in which variables are bound to these calls."""

    def told(binding: relax.Binding) -> relax.Binding:
        call = calls.get(binding.var)
        return binding if call is None else relax.VarBinding(binding.var, call)

    if not calls:
        return module
    for symbol, function in module.functions_items():
        if isinstance(function, relax.Function) and isinstance(function.body, relax.SeqExpr):
            blocks = [type(b)(list(map(told, b.bindings))) for b in function.body.blocks]
            body = relax.SeqExpr(blocks, function.body.body)
            made = relax.Function(
                function.params, body, function.ret_ty, function.is_pure, function.attrs
            )
            module.update_func(symbol, made)
    return module
