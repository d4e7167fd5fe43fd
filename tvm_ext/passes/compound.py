"""Compound operators: one kernel in the place of several operators, and nothing stored between.

Before::

    lv = R.nn.conv2d(x, w);  lv1 = R.add(lv, b);  y = R.nn.relu(lv1)

After: ``y = R.call_tir(conv_bias_relu, (x, w, b))``, a kernel with the attributes ``Composite``
(the compound's name) and ``attributes`` (its own).

The built-in compounds and those of plugins are the same :class:`Compound`. A compound finds its
operators by a ``relax.dpl`` pattern (:class:`Pattern`) or by a function of the graph, and says what
computes them: a TE function, C code, or the operators themselves, fused (:class:`Kernel`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import tvm
import tvm_ffi
from tvm import IRModule, relax, te, tirx
from tvm.ir.expr import GenericConst
from tvm.relax.dpl import DFPattern
from tvm.relax.dpl.pattern import (
    CallPattern,
    TupleGetItemPattern,
    TuplePattern,
    UnorderedTuplePattern,
)
from tvm.relax.expr_functor import PyExprMutator, mutator
from tvm.target import Target

from tvm_ext.ops.conv2d_blocked import block, pack_channels, unblock

from .facts import OUT_ELEMWISE_FUSABLE, dims_of, dtype_of, known_dims, static_dims
from .graph import Graph, variables
from .legalize import legalize

__all__ = ["COMPOSITE", "LAYOUT", "CCode", "Compound", "Kernel", "Match", "Pattern"]

#: The attribute of a kernel that names its compound; "attributes" holds the compound's own.
COMPOSITE = "Composite"
#: The attributes of a kernel that is C text, and of the text that all such kernels share.
C_SOURCE, C_SUPPORT = "c_source", "c_support"
#: The attribute of a kernel that only changes the layout: "block" or "unblock".
LAYOUT = "layout"

OPAQUE = 8  # FuseOps' kind of a kernel with which nothing is fused


@dataclass(frozen=True, eq=False)
class Match:
    """Operators that a compound replaces.

    ``match["name"]`` is the call that a named part matched, or the operand (a variable or a
    constant); ``"name" in match`` tells whether an alternative with that part matched.

    Attributes:
        graph: the function around.
        root: the variable of the result.
        inner: the variables of all operators that are replaced, in order; ``root`` is the last.
        parts: what the names stand for.
        detail: what a function that finds matches tells the one that makes kernels.
    """

    graph: Graph
    root: relax.Var
    inner: tuple[relax.Var, ...]
    parts: Mapping[str, relax.Expr] = field(default_factory=dict)
    detail: Any = None

    def __getitem__(self, name: str) -> relax.Expr:
        return self.parts[name]

    def __contains__(self, name: str) -> bool:
        return name in self.parts

    def dims(self, name: str | None = None) -> list[int] | None:
        """The dims of a part, or of the result; None where one is symbolic."""
        return static_dims(self.root if name is None else self[name])

    def dtype(self, name: str | None = None) -> str:
        """The element type of a part, or of the result."""
        return dtype_of(self.root if name is None else self[name])

    @property
    def inputs(self) -> list[relax.Expr]:
        """The operands of all operators that are replaced: the named ones first."""
        found = [part for part in self.parts.values() if not isinstance(part, relax.Call)]
        for var in self.inner:
            found += [leaf for leaf in _leaves(self.graph.values[var]) if leaf not in self.inner]
        return list(dict.fromkeys(found))

    @property
    def static(self) -> bool:
        """Whether all shapes are known."""
        return all(static_dims(x) is not None for x in (*self.inputs, *self.inner))


@dataclass(frozen=True)
class CCode:
    """A kernel as C text, called with the addresses of its operands and of its result.

    Attributes:
        text: defines ``int32_t TVMX_KERNEL(void *x0, ..., void *y)``; the build defines the macro.
            The result is 0, or a code that ends the run.
        support: text that is compiled once beside all kernels that name the same.
    """

    text: str
    support: str = ""


@dataclass(frozen=True)
class Kernel:
    """What stands in the place of a match.

    Attributes:
        operands: what the kernel reads.
        compute: the TE function of the operands and ``options``; None: the replaced operators,
            legalized and fused.
        options: further arguments of ``compute``.
        attributes: what the compound notes of this match, for people and other passes.
        code: C instead; ``compute`` serves where C cannot be linked.
        lanes: operand number -> block of its channels: it is handed over as NCHW[lanes]c.
        result_lanes: of the result.
        epilogue: element-wise kernels may be fused behind it.
        name: of the kernel.
        place: file and line of what computes it, for errors.
    """

    operands: tuple[relax.Expr, ...]
    compute: Callable[..., te.Tensor] | None = None
    options: tuple[object, ...] = ()
    attributes: Mapping[str, object] = field(default_factory=dict)
    code: CCode | None = None
    lanes: Mapping[int, int] = field(default_factory=dict)
    result_lanes: int | None = None
    epilogue: bool = False
    name: str | None = None
    place: str = ""


@dataclass(frozen=True)
class Compound:
    """A compound operator.

    Attributes:
        name: of its step in the pipeline.
        find: the match whose result a variable is, if there is one; its root may lie behind.
        kernel: what stands in its place on a target; None: it stays as it is.
    """

    name: str
    find: Callable[[Graph, relax.Var], Match | None]
    kernel: Callable[[Match, Target], Kernel | None]

    def on(self, target: Target) -> tvm.ir.transform.Pass:
        """The pass that replaces every match on ``target``; later results are tried first."""

        @tvm.transform.module_pass(opt_level=0, name=self.name)
        def run(module: IRModule, _context: object) -> IRModule:
            return _Rewriter(module, self, target).transform()

        return run


class Pattern:
    """Finds what a ``relax.dpl`` pattern matches.

    Args:
        pattern: of the result.
        parts: names for parts of it.
        shared: what the operators inside compute may be read from outside, too: it is then
            computed twice. By default such a match does not count.
    """

    def __init__(self, pattern: DFPattern, parts: Mapping[str, DFPattern], shared: bool = False):
        self.pattern = pattern
        self.parts = dict(parts)
        self.shared = shared

    def __call__(self, graph: Graph, var: relax.Var) -> Match | None:
        found = self.pattern.extract_matched_expr(var, graph.var2val)
        if found is None:
            return None
        operators = (expr for p, expr in found.items() if isinstance(p, _OPERATORS))
        inside = {graph.owner[expr] for expr in operators if expr in graph.owner}
        if var not in inside:
            return None
        inner = tuple(v for v in graph.values if v in inside)
        if not self.shared and not all(v is var or _private(graph, v, inside) for v in inner):
            return None
        parts = {
            name: expr if graph.owner.get(expr) in inside else graph.owner.get(expr, expr)
            for name, pattern in self.parts.items()
            if (expr := found.get(pattern)) is not None
        }
        return Match(graph, var, inner, parts)


_OPERATORS = (CallPattern, TuplePattern, UnorderedTuplePattern, TupleGetItemPattern)


def _private(graph: Graph, var: relax.Var, inside: set[relax.Var]) -> bool:
    """Whether nothing outside of the match reads ``var``, the function's result included."""
    readers = graph.readers.get(var, [])
    return graph.uses[var] == len(readers) and inside.issuperset(readers)


def _leaves(value: relax.Expr) -> Iterator[relax.Expr]:
    """The variables and constants that a value reads."""
    if isinstance(value, relax.Var | GenericConst):
        yield value
    elif isinstance(value, relax.Call):
        for part in value.args:
            yield from _leaves(part)
    elif isinstance(value, relax.Tuple):
        for part in value.fields:
            yield from _leaves(part)
    else:
        yield from variables(value)


@mutator
class _Rewriter(PyExprMutator):
    """Replaces the last binding of each match; what only it has used is dead then."""

    def __init__(self, module: IRModule, compound: Compound, target: Target):
        super().__init__(module)
        self.module = module
        self.compound = compound
        self.target = target
        self.found: dict[relax.Var, _Site] = {}

    def transform(self) -> IRModule:
        changed = False
        for gv, func in self.module.functions_items():
            if isinstance(func, relax.Function) and isinstance(func.body, relax.SeqExpr):
                self.found = self._find(func)
                if self.found:
                    self.builder_.update_func(gv, self.visit_expr(func))
                    changed = True
        if not changed:
            return self.module
        return relax.transform.DeadCodeElimination()(self.builder_.get())

    def _find(self, func: relax.Function) -> dict[relax.Var, _Site]:
        """The matches of ``func``, their kernels made: what fails must do so outside of a block."""
        graph = Graph(func)
        taken: set[relax.Var] = set()
        found: dict[relax.Var, tuple[Match, Kernel]] = {}
        for var in reversed(graph.values):
            match = None if var in taken else self.compound.find(graph, var)
            if match is None or not taken.isdisjoint(match.inner):
                continue
            kernel = self.compound.kernel(match, self.target)
            if kernel is not None:
                found[match.root] = match, kernel
                taken.update(match.inner)
        # In the order of the program, in which kernels are numbered.
        return {
            root: _Site(match, kernel, self._template(match, kernel))
            for root, (match, kernel) in reversed(found.items())
        }

    def _template(self, match: Match, kernel: Kernel) -> relax.Call:
        """A call of the kernel, whose operands stand for those of the match."""
        operands = [
            relax.Var(f"x{k}", _blocked_type(operand.ty, kernel.lanes.get(k)))
            for k, operand in enumerate(kernel.operands)
        ]
        name = kernel.name or re.sub(r"\W", "_", self.compound.name.split(".")[-1])
        attrs = self._attrs(kernel)
        if kernel.compute is None:
            fused = _fused(match, kernel.operands).with_attrs(attrs)
            return relax.call_tir(self.builder_.add_func(fused, name), operands, match.root.ty)
        call = self._te(name, attrs, kernel.compute, *operands, *kernel.options)
        got, want = call.ty_args[0], _blocked_type(match.root.ty, kernel.result_lanes)
        if not _serves(got, want, padded=kernel.result_lanes is not None):
            where = f"{kernel.place}: " * bool(kernel.place)
            raise ValueError(f"{where}gives {_text(got)}, what it replaces gives {_text(want)}")
        return call

    def _attrs(self, kernel: Kernel) -> dict[str, object]:
        attrs: dict[str, object] = {
            COMPOSITE: self.compound.name,
            "op_pattern": OUT_ELEMWISE_FUSABLE if kernel.epilogue else OPAQUE,
        }
        if kernel.attributes:
            attrs["attributes"] = dict(kernel.attributes)
        if kernel.code is not None:
            attrs |= {C_SOURCE: kernel.code.text, C_SUPPORT: kernel.code.support}
        return attrs

    def visit_var_binding_(self, binding: relax.VarBinding) -> None:
        site = self.found.get(binding.var)
        if site is None:
            super().visit_var_binding_(binding)
            return
        call = self._call(site, binding.var.name)
        inside = isinstance(binding.var, relax.DataflowVar)
        emit = self.builder_.emit if inside else self.builder_.emit_output
        self.set_var_remap(binding.var, emit(call, binding.var.name))

    def _call(self, site: _Site, name: str) -> relax.Call:
        """The call of the kernel in the place of a match, and of what changes layouts around it."""
        kernel, template = site.kernel, site.template
        operands = [
            self._operand(x, kernel.lanes.get(k), name) for k, x in enumerate(kernel.operands)
        ]
        symbol, _, *rest = template.args
        call = relax.Call(
            template.op, [symbol, relax.Tuple(operands), *rest], template.attrs, template.ty_args
        )
        if kernel.result_lanes is None:
            return call
        channels = known_dims(site.match.root)[1]
        return self._te("unblock", _UNBLOCK, unblock, self.builder_.emit(call, name), channels)

    def _operand(self, operand: relax.Expr, lanes: int | None, name: str) -> relax.Expr:
        """``operand`` as the kernel reads it."""
        operand = self.visit_expr(operand)
        if lanes is None:
            return operand
        if isinstance(operand, GenericConst):
            return relax.const(pack_channels(operand.value.numpy(), lanes), dtype_of(operand))
        return self.builder_.emit(self._te("block", _BLOCK, block, operand, lanes), name)

    def _te(
        self, name: str, attrs: Mapping[str, object], compute: Callable, *args: object
    ) -> relax.Call:
        return self.builder_.call_te(compute, *args, primfunc_name_hint=name, primfunc_attrs=attrs)


@dataclass(frozen=True, eq=False)
class _Site:
    """A match, what stands in its place, and a call of that with other operands."""

    match: Match
    kernel: Kernel
    template: relax.Call


_BLOCK, _UNBLOCK = {LAYOUT: "block"}, {LAYOUT: "unblock"}


def _blocked_type(ty: relax.Type, lanes: int | None) -> relax.Type:
    """NCHW as NCHW[lanes]c; channels that fill no whole block are padded."""
    if lanes is None:
        return ty
    n, c, h, w = ty.shape.values
    return relax.TensorType([n, -(-int(c) // lanes), h, w, lanes], ty.dtype.dtype)


def _serves(got: relax.Type, want: relax.Type, padded: bool) -> bool:
    """Whether a kernel's result is what it replaces: symbolic shapes in their rank alone.

    ``padded``: there may be more blocks of channels, which are cut off.
    """
    if not isinstance(got, relax.TensorType) or (got.ndim, got.dtype) != (want.ndim, want.dtype):
        return False
    ours, theirs = dims_of(got), dims_of(want)
    if ours is None or theirs is None:
        return True
    return ours == theirs or (
        padded and ours[1] >= theirs[1] and [ours[0], *ours[2:]] == [theirs[0], *theirs[2:]]
    )


def _text(ty: relax.Type) -> str:
    if not isinstance(ty, relax.TensorType):
        return str(ty)
    dims = (str(int(d)) if isinstance(d, tirx.IntImm) else str(d) for d in ty.shape.values)
    return f"{ty.dtype.dtype}[{', '.join(dims)}]"


def _fused(match: Match, operands: Sequence[relax.Expr]) -> tirx.PrimFunc:
    """The operators of ``match`` as one kernel of ``operands``."""
    builder = relax.BlockBuilder()
    params = [relax.Var(f"x{k}", operand.ty) for k, operand in enumerate(operands)]
    known: dict[relax.Expr, relax.Expr] = dict(zip(operands, params, strict=True))

    def renamed(leaf: relax.Expr) -> relax.Expr:
        return known.get(leaf, leaf)

    with builder.function("fused", params):
        with builder.dataflow():
            for var in match.inner:
                value = match.graph.values[var]
                known[var] = builder.emit(
                    tvm_ffi.structural_map(value, ((relax.Var, GenericConst), renamed))
                )
            result = builder.emit_output(known[match.root])
        builder.emit_func_output(result)
    reshape = tvm.ir.Op.get("relax.reshape").get_attr("FLegalize")
    module = legalize({"relax.reshape": reshape})(builder.get())
    module = relax.transform.CanonicalizeBindings()(module)
    return _merged(module, params)


def _merged(module: IRModule, params: Sequence[relax.Var]) -> tirx.PrimFunc:
    """The kernels that the function "fused" calls, as one: FuseTIR wants a caller of it."""
    symbol = module.get_global_var("fused")
    module.update_func(symbol, module[symbol].with_attr("Primitive", 1))
    builder = relax.BlockBuilder(module)
    operands = [relax.Var(param.name, param.ty) for param in params]
    with builder.function("main", operands):
        with builder.dataflow():
            result = builder.emit_output(relax.Call(symbol, operands))
        builder.emit_func_output(result)
    merged = relax.transform.FuseTIR()(builder.get())
    return merged[merged["main"].body.blocks[0].bindings[0].value.args[0]]
