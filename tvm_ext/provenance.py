"""Which ONNX nodes a kernel computes.

Variables that the frontend emits are traced to ONNX nodes by name. Fusion gathers several of them
into one kernel under a new name; as every operand of a fused call is itself known, replaying the
fused functions on the operands' names finds the variables again. A compound operator keeps the
name of its result, and takes over the nodes of what it replaces.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import onnx_ir as ir
import tvm_ffi
from tvm import IRModule, relax
from tvm.ir import GlobalVar, Op

from .frontend import node_labels
from .passes.expanded_depthwise import NAME as EXPANDED_DEPTHWISE
from .passes.graph import stems

__all__ = ["Provenance"]

_CALL_TIR = Op.get("relax.call_tir")
_MAIN = "main"
_FIELDS = relax.Tuple, relax.TupleGetItem  # other names of what is computed, or several of them

Key = object  # a variable's name, or a constant


class Provenance:
    """Follows variables through the passes of a build: those of ``main`` by their names, those of
    another function with its name and a dot in front."""

    def __init__(self, origin: Mapping[str, ir.Node]):
        self._labels = {name: node_labels(node) for name, node in origin.items()}
        main = {name: labels for name, labels in self._labels.items() if "." not in name}
        self._followed = {_MAIN: _Followed(main)}

    def observe(self, step: str, before: IRModule, after: IRModule) -> None:
        """Follow the variables through one pass of the build."""
        functions = _functions(after)
        for name in functions:
            if name not in self._followed:
                self._followed[name] = self._begun(name, functions)
        earlier = _functions(before)
        for name, function in functions.items():
            self._followed[name].observe(step, earlier.get(name), function, after)

    def _begun(self, name: str, functions: Mapping[str, relax.Function]) -> _Followed:
        """A function that is new: a part of the one that calls it, or one of the frontend's."""
        own = {
            variable.removeprefix(f"{name}."): labels
            for variable, labels in self._labels.items()
            if variable.startswith(f"{name}.")
        }
        callers = (caller for caller, f in functions.items() if name in _called(f))
        caller = None if own else next(callers, None)
        if caller is not None and caller not in self._followed:
            self._followed[caller] = self._begun(caller, functions)
        return _Followed(own if caller is None else self._followed[caller].labels)

    def members(self, variable: str) -> list[str]:
        """The variables, before fusion, that a kernel's variable stands for; its value is last."""
        followed, own = self._of(variable)
        return followed.members(own)

    def nodes(self, variable: str) -> list[str]:
        """The ONNX nodes behind a kernel's variable, in order: "operator name"."""
        followed, own = self._of(variable)
        return followed.nodes(own)

    def compounds(self, variable: str) -> list[str]:
        """The compound operators in a kernel, with their attributes."""
        followed, own = self._of(variable)
        return followed.compounds(own)

    def _of(self, variable: str) -> tuple[_Followed, str]:
        """Who follows a variable, and its name there."""
        function, _, own = variable.rpartition(".")
        if function in self._followed:
            return self._followed[function], own
        return self._followed[_MAIN], variable


class _Followed:
    """Follows the variables of one function."""

    def __init__(self, labels: Mapping[str, Sequence[str]]):
        self.labels = dict(labels)
        self._compounds: dict[str, str] = {}
        self._unfused: dict[tuple, str] = {}
        self._members: list[list[str]] = []
        self._kernels: dict[str, list[str]] | None = None

    def observe(
        self, step: str, before: relax.Function | None, after: relax.Function, module: IRModule
    ) -> None:
        """Follow the variables through one pass; ``after`` is of ``module``."""
        if step == "FuseOps":
            if before is not None:
                self._remember(before)
            self._find(after, module)
        elif step == EXPANDED_DEPTHWISE:
            self._find(after, module)
        elif step == "FuseTIR":
            self._rename(after)
        elif not self._members and before is not None:
            self._absorb(before, after, module)

    def _absorb(self, before: relax.Function, after: relax.Function, module: IRModule) -> None:
        """New compounds take over the nodes of the variables that are gone."""
        made = list(_bindings(after))
        kept = {binding.var.name for binding in made}
        replaced = {binding.var: binding for binding in _bindings(before)}
        for binding in made:
            name, text = binding.var.name, _compound_text(binding.value, module)
            if text is not None and self._compounds.get(name) != text:
                self._compounds[name] = text
                # A conversion of its operand may have taken the name that it had.
                results = {*stems(name), *_items(binding.var, made)}
                inside = _inside(results, replaced, kept)
                nodes = [label for inner in inside for label in self._labels_of(inner)]
                self.labels[name] = list(dict.fromkeys(nodes))

    def _remember(self, function: relax.Function) -> None:
        """Which variable each kernel call defines, before fusion."""
        self._unfused.clear()
        names: dict[relax.Var, Key] = {}
        for binding in _bindings(function):
            if isinstance(binding.value, relax.Call):
                self._unfused.setdefault(_key(binding.value, names), binding.var.name)
            elif isinstance(binding.value, _FIELDS):
                names[binding.var] = _operand(binding.value, names)

    def _find(self, function: relax.Function, module: IRModule) -> None:
        """The variables inside each call of a fused function."""
        names: dict[relax.Var, Key] = {}
        self._members = []
        for binding in _bindings(function):
            value = binding.value
            members: list[str] = []
            if isinstance(value, relax.Call) and _is_fused(value.op, module):
                names[binding.var] = self._replay(module[value.op], value, names, members)
            elif isinstance(value, relax.Call):
                members.append(binding.var.name)
            elif isinstance(value, _FIELDS):
                names[binding.var] = _operand(value, names)
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

    def _rename(self, function: relax.Function) -> None:
        """The same, under the names that ``main`` has after FuseTIR."""
        variables = [binding.var.name for binding in _bindings(function)]
        if len(variables) == len(self._members):
            self._kernels = dict(zip(variables, self._members, strict=True))

    def members(self, variable: str) -> list[str]:
        """The variables, before fusion, that a kernel's variable stands for; its value is last."""
        return (self._kernels or {}).get(variable, [variable])

    def nodes(self, variable: str) -> list[str]:
        """The ONNX nodes behind a kernel's variable, in order: "operator name"."""
        found = (label for member in self.members(variable) for label in self._labels_of(member))
        return list(dict.fromkeys(found))

    def compounds(self, variable: str) -> list[str]:
        """The compound operators in a kernel, with their attributes."""
        found = (self._compounds.get(member) for member in self.members(variable))
        return list(dict.fromkeys(text for text in found if text))

    def _labels_of(self, name: str) -> Sequence[str]:
        return next((nodes for stem in stems(name) if (nodes := self.labels.get(stem))), [])


def _functions(module: IRModule) -> dict[str, relax.Function]:
    """Those that are no kernels, by name."""
    return {
        symbol.name_hint: function
        for symbol, function in module.functions_items()
        if isinstance(function, relax.Function) and not _is_kernel(function)
    }


def _is_kernel(function: relax.Function) -> bool:
    """Whether ``function`` is one of fused operators."""
    return function.attrs is not None and "Primitive" in function.attrs


def _is_fused(symbol: object, module: IRModule) -> bool:
    return isinstance(symbol, GlobalVar) and _is_kernel(module[symbol])


def _called(function: relax.Function) -> set[str]:
    """The names of the functions that ``function`` refers to."""
    found: set[str] = set()
    tvm_ffi.structural_walk(function.body, (GlobalVar, lambda v: found.add(v.name_hint)))
    return found


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
