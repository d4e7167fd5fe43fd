"""Which ONNX nodes a kernel computes.

Variables that the frontend emits are traced to ONNX nodes by name. Fusion gathers several of them
into one kernel under a new name; as every operand of a fused call is itself known, replaying the
fused functions on the operands' names finds the variables again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import onnx_ir as ir
from tvm import IRModule, relax
from tvm.ir import GlobalVar

__all__ = ["Provenance"]

Key = object  # a variable's name, or a constant


class Provenance:
    """Follows variables of ``main`` through the passes of a build."""

    def __init__(self, origin: Mapping[str, ir.Node]):
        self._nodes = {name: _label(node) for name, node in origin.items()}
        self._unfused: dict[tuple, str] = {}
        self._members: list[list[str]] = []
        self._kernels: dict[str, list[str]] | None = None

    def observe(self, step: str, before: IRModule, after: IRModule) -> None:
        """Follow the variables through one pass of the build."""
        if step == "FuseOps":
            self._remember(before)
            self._find(after)
        elif step == "FuseTIR":
            self._rename(after)

    def _remember(self, module: IRModule) -> None:
        """Which variable each kernel call defines, before fusion."""
        self._unfused.clear()
        for binding in _bindings(module["main"]):
            if isinstance(binding.value, relax.Call):
                self._unfused.setdefault(_key(binding.value, {}), binding.var.name)

    def _find(self, module: IRModule) -> None:
        """The variables inside each call of a fused function."""
        names: dict[relax.Var, Key] = {}
        self._members = []
        for binding in _bindings(module["main"]):
            value = binding.value
            members: list[str] = []
            if isinstance(value, relax.Call) and isinstance(value.op, GlobalVar):
                names[binding.var] = self._replay(module[value.op], value, names, members)
            elif isinstance(value, relax.Call):
                members.append(binding.var.name)
            self._members.append(members)

    def _replay(self, fused: relax.Function, call: relax.Call, names: dict, members: list) -> Key:
        inner = {p: _operand(a, names) for p, a in zip(fused.params, call.args, strict=True)}
        for binding in _bindings(fused):
            if isinstance(binding.value, relax.Call):
                name = self._unfused.get(_key(binding.value, inner))
                if name is not None:
                    members.append(name)
                    inner[binding.var] = name
            else:
                inner[binding.var] = _operand(binding.value, inner)
        return _operand(fused.body.body, inner)

    def _rename(self, module: IRModule) -> None:
        """The same, under the names that ``main`` has after FuseTIR."""
        variables = [binding.var.name for binding in _bindings(module["main"])]
        if len(variables) == len(self._members):
            self._kernels = dict(zip(variables, self._members, strict=True))

    def members(self, variable: str) -> list[str]:
        """The variables, before fusion, that a kernel's variable stands for; its value is last."""
        return (self._kernels or {}).get(variable, [variable])

    def nodes(self, variable: str) -> list[str]:
        """The ONNX nodes behind a kernel's variable, in order: "operator name"."""
        found = (self._nodes.get(m) or self._nodes.get(_stem(m)) for m in self.members(variable))
        return list(dict.fromkeys(label for label in found if label))


def _label(node: ir.Node) -> str:
    return f"{node.op_type} {node.name or node.outputs[0].name}"


def _stem(name: str) -> str:
    """``name`` without the number that makes a copy of a variable unique."""
    return name.rstrip("0123456789").rstrip("_")


def _bindings(function: relax.Function) -> Iterator[relax.Binding]:
    for block in function.body.blocks:
        yield from block.bindings


def _key(call: relax.Call, names: Mapping) -> tuple:
    return call.op, tuple(_operand(argument, names) for argument in call.args)


def _operand(expr: relax.Expr, names: Mapping) -> Key:
    if isinstance(expr, GlobalVar):
        return expr.name_hint
    if isinstance(expr, relax.Var):
        return names.get(expr, expr.name)
    if isinstance(expr, relax.Tuple):
        return tuple(_operands(expr.fields, names))
    if isinstance(expr, relax.TupleGetItem):
        return "item", _operand(expr.tuple_value, names), expr.index
    return expr


def _operands(exprs: Iterable[relax.Expr], names: Mapping) -> Iterator[Key]:
    return (_operand(expr, names) for expr in exprs)
