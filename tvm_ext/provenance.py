"""Which ONNX nodes a kernel computes.

Variables that the frontend emits are traced to ONNX nodes by name. Fusion gathers several of them
into one kernel under a new name; as every operand of a fused call is itself known, replaying the
fused functions on the operands' names finds the variables again. A compound operator keeps the
name of its result, and takes over the nodes of what it replaces.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import onnx_ir as ir
from tvm import IRModule, relax
from tvm.ir import GlobalVar, Op

from .frontend import node_labels
from .passes.expanded_depthwise import NAME as EXPANDED_DEPTHWISE
from .passes.graph import stems

__all__ = ["Provenance"]

_CALL_TIR = Op.get("relax.call_tir")

Key = object  # a variable's name, or a constant


class Provenance:
    """Follows variables of ``main`` through the passes of a build."""

    def __init__(self, origin: Mapping[str, ir.Node]):
        self._nodes = {name: node_labels(node) for name, node in origin.items()}
        self._compounds: dict[str, str] = {}
        self._unfused: dict[tuple, str] = {}
        self._members: list[list[str]] = []
        self._kernels: dict[str, list[str]] | None = None

    def observe(self, step: str, before: IRModule, after: IRModule) -> None:
        """Follow the variables through one pass of the build."""
        if step == "FuseOps":
            self._remember(before)
            self._find(after)
        elif step == EXPANDED_DEPTHWISE:
            self._find(after)
        elif step == "FuseTIR":
            self._rename(after)
        elif not self._members:
            self._absorb(before, after)

    def _absorb(self, before: IRModule, after: IRModule) -> None:
        """New compounds take over the nodes of the variables that are gone."""
        made = list(_bindings(after["main"]))
        kept = {binding.var.name for binding in made}
        replaced = {binding.var: binding for binding in _bindings(before["main"])}
        for binding in made:
            name, text = binding.var.name, _compound_text(binding.value, after)
            if text is not None and self._compounds.get(name) != text:
                self._compounds[name] = text
                # A conversion of its operand may have taken the name that it had.
                results = {*stems(name), *_items(binding.var, made)}
                inside = _inside(results, replaced, kept)
                nodes = [label for inner in inside for label in self._labels(inner)]
                self._nodes[name] = list(dict.fromkeys(nodes))

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
        found = (label for member in self.members(variable) for label in self._labels(member))
        return list(dict.fromkeys(found))

    def compounds(self, variable: str) -> list[str]:
        """The compound operators in a kernel, with their attributes."""
        found = (self._compounds.get(member) for member in self.members(variable))
        return list(dict.fromkeys(text for text in found if text))

    def _labels(self, name: str) -> list[str]:
        return next((nodes for stem in stems(name) if (nodes := self._nodes.get(stem))), [])


def _compound_text(value: relax.Expr, module: IRModule) -> str | None:
    """The compound operator that a call of its kernel stands for: "name(attribute=value)"."""
    if not isinstance(value, relax.Call) or value.op != _CALL_TIR:
        return None
    attrs = module[value.args[0]].attrs
    if not attrs or "Composite" not in attrs:
        return None
    own = (f"{name}={item}" for name, item in attrs.get("attributes", {}).items())
    return f"{attrs['Composite']}({', '.join(own)})"


def _items(var: relax.Var, bindings: Iterable[relax.Binding]) -> Iterator[str]:
    """The variables that are fields of the tuple ``var``."""
    for binding in bindings:
        value = binding.value
        if isinstance(value, relax.TupleGetItem) and value.tuple_value.same_as(var):
            yield binding.var.name


def _inside(
    results: set[str], bindings: Mapping[relax.Var, relax.Binding], kept: set[str]
) -> list[str]:
    """The variables that ``results`` are computed from and that are gone, and these, in order."""
    found: set[str] = set()
    waiting = [binding for var, binding in bindings.items() if var.name in results]
    while waiting:
        binding = waiting.pop()
        found.add(binding.var.name)
        waiting += [
            bindings[var]
            for var in relax.analysis.free_vars(binding.value)
            if var in bindings and var.name not in kept and var.name not in found
        ]
    return [var.name for var in bindings if var.name in found]


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
