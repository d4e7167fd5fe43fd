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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import tvm
from tvm import IRModule, relax, te, tirx
from tvm.ir.expr import GenericConst
from tvm.relax.expr_functor import PyExprMutator, mutator
from tvm.sym import Analyzer
from tvm.target import Target

from tvm_ext.ops.conv2d_blocked import block, pack_channels, unblock

from .facts import OPAQUE, OUT_ELEMWISE_FUSABLE, dims_of, dtype_of
from .fused import COMPOSITE, CCode, c_kernel, fused
from .graph import BLOCKED, OPERAND, Graph, variables
from .grouping import grouped
from .match import Match, Pattern

__all__ = [
    "COMPOSITE",
    "LAYOUT",
    "CCode",
    "Compound",
    "Kernel",
    "Match",
    "Pattern",
    "declined",
    "zero_may_lack",
]

#: The attribute of a module: variable -> which compounds left it as it is, and why.
DECLINED = "declined"
#: The attribute of a kernel that only changes the layout: "block" or "unblock".
LAYOUT = "layout"


@dataclass(frozen=True)
class Kernel:
    """What stands in the place of a match.

    Attributes:
        operands: what the kernel reads.
        compute: the TE function of the operands and ``options``, one tensor for each result of
            the match; None: the replaced operators, legalized and fused.
        options: further arguments of ``compute``.
        attributes: what the compound notes of this match, for people and other passes.
        code: C instead, on a CPU and for static shapes.
        lanes: operand number -> block of its channels: it is handed over as NCHW[lanes]c.
        packed: operand number -> the TE function of it whose result is handed over instead.
        result_lanes: of the result, where it is the only one.
        epilogue: element-wise kernels may be fused behind it.
        name: of the kernel.
        place: file and line of what computes it, for errors.
    """

    operands: tuple[relax.Expr, ...]
    compute: Callable[..., te.Tensor | Sequence[te.Tensor]] | None = None
    options: tuple[object, ...] = ()
    attributes: Mapping[str, object] = field(default_factory=dict)
    code: CCode | None = None
    lanes: Mapping[int, int] = field(default_factory=dict)
    packed: Mapping[int, Callable[[te.Tensor], te.Tensor]] = field(default_factory=dict)
    result_lanes: int | None = None
    epilogue: bool = False
    name: str | None = None
    place: str = ""


def zero_may_lack(compute: Callable[..., te.Tensor]) -> Callable[..., te.Tensor]:
    """``compute(x, weight, parameters, zero, *options)`` as that of a :class:`Kernel`, of whose
    operands the last, ``zero``, may lack: it is None then."""

    def of_operands(x, weight, parameters, *rest):
        zero, options = (rest[0], rest[1:]) if isinstance(rest[0], te.Tensor) else (None, rest)
        return compute(x, weight, parameters, zero, *options)

    return of_operands


def declined(module: IRModule, compound: str | None = None) -> dict[str, str]:
    """Variable -> the first reason why it is not the result of a compound, or of this one."""
    found: dict[str, str] = {}
    for variable, reasons in (module.attrs or {}).get(DECLINED, {}).items():
        for name, _, reason in (str(text).partition(": ") for text in reasons):
            if compound in (None, name):
                found.setdefault(str(variable), reason)
    return found


@dataclass(frozen=True)
class Compound:
    """A compound operator.

    Attributes:
        name: of its step in the pipeline.
        find: the match whose result a variable is, if there is one; its root may lie behind.
        kernel: what stands in its place on a target. It stays as it is for None, and for a text,
            which says why.
    """

    name: str
    find: Callable[[Graph, relax.Var], Match | None]
    kernel: Callable[[Match, Target], Kernel | str | None]

    def on(self, target: Target) -> tvm.ir.transform.Pass:
        """The pass that replaces every match on ``target``; later results are tried first.

        The reasons of matches that are not replaced are added to the module's attribute
        ``declined``.
        """

        @tvm.transform.module_pass(opt_level=0, name=self.name)
        def run(module: IRModule, _context: object) -> IRModule:
            return _Rewriter(module, self, target).transform()

        return run


@dataclass(frozen=True, eq=False)
class _Site:
    """A match, what stands in its place, and a call of that with other operands."""

    match: Match
    kernel: Kernel
    template: relax.Call


@mutator
class _Rewriter(PyExprMutator):
    """Replaces the last binding of each match; what only it has used is dead then.

    A match with several results is replaced as a whole, at its first binding: see :mod:`.grouping`.
    """

    def __init__(self, module: IRModule, compound: Compound, target: Target):
        super().__init__(module)
        self.module = module
        self.compound = compound
        self.target = target
        self.found: dict[relax.Var, _Site] = {}  # by the binding in whose place it stands
        self.given: set[relax.Var] = set()  # results that stand elsewhere
        self.carried: set[relax.Var] = set()  # what kernels in a later block read
        self.declined: dict[str, str] = {}
        self.packed: dict[tuple[relax.Expr, relax.Expr], relax.Expr] = {}  # in this block

    def transform(self) -> IRModule:
        changed = False
        for gv, func in self.module.functions_items():
            if isinstance(func, relax.Function) and isinstance(func.body, relax.SeqExpr):
                func, sites = self._find(func)
                if sites:
                    self._expect(func, sites)
                    self.builder_.update_func(gv, self.visit_expr(func))
                    changed = True
        if not changed:
            return self._noted(self.module)
        return self._noted(relax.transform.DeadCodeElimination()(self.builder_.get()))

    def _noted(self, module: IRModule) -> IRModule:
        """``module`` with what was declined."""
        if not self.declined:
            return module
        known = {name: list(why) for name, why in (module.attrs or {}).get(DECLINED, {}).items()}
        for name, reason in self.declined.items():
            known.setdefault(name, []).append(f"{self.compound.name}: {reason}")
        return module.with_attr(DECLINED, known)

    def _find(self, func: relax.Function) -> tuple[relax.Function, list[_Site]]:
        """``func``, perhaps in another order, and its matches, in the order of the program.

        Their kernels are made here: what fails must do so outside of a block.
        """
        graph = Graph(func, self.module)
        taken: set[relax.Var] = set()
        groups: list[tuple[relax.Var, ...]] = []
        found: list[tuple[Match, Kernel]] = []
        order = func
        for var in reversed(graph.values):
            match = None if var in taken else self.compound.find(graph, var)
            if match is None or not taken.isdisjoint(match.inner):
                continue
            match = replace(match, target=self.target)
            moved = grouped(func, [*groups, match.inner]) if match.others else order
            kernel = _obstacle(match, moved) or self.compound.kernel(match, self.target)
            if not isinstance(kernel, Kernel):
                if kernel is not None:
                    self.declined[match.root.name] = kernel
                continue
            found.append((match, kernel))
            taken.update(match.inner)
            if match.others:
                order, groups = moved, [*groups, match.inner]
        # In the order of the program, in which kernels are numbered.
        return order, [_Site(m, kernel, self._template(m, kernel)) for m, kernel in found[::-1]]

    def _expect(self, func: relax.Function, sites: Sequence[_Site]) -> None:
        """Say at which bindings of ``func`` the ``sites`` stand, and what their blocks lack."""
        block_of = {b.var: k for k, block in enumerate(func.body.blocks) for b in block.bindings}
        for site in sites:
            match = site.match
            place = match.inner[0] if match.others else match.root
            self.found[place] = site
            self.given.update(match.results if match.others else ())
            read = {var for operand in site.kernel.operands for var in variables(operand)}
            inside = (var for var in read if isinstance(var, relax.DataflowVar))
            self.carried.update(var for var in inside if block_of[var] != block_of[place])

    def _template(self, match: Match, kernel: Kernel) -> relax.Call:
        """A call of the kernel, whose operands stand for those of the match.

        Raises:
            ValueError: it does not give what it replaces.
        """
        operands = [
            relax.Var(f"x{k}", _handed_over(operand.ty, kernel, k))
            for k, operand in enumerate(kernel.operands)
        ]
        name = kernel.name or re.sub(r"\W", "_", self.compound.name.split(".")[-1])
        want = _fields([_blocked_type(match.root.ty, kernel.result_lanes)])
        want += [result.ty for result in match.others]
        if kernel.code is not None:
            func = self._c_kernel(kernel, [operand.ty for operand in operands], want)
            return relax.call_tir(self.builder_.add_func(func, name), operands, _single(want))
        attrs = self._attrs(kernel)
        if kernel.compute is None:
            func, dims = fused(match, kernel.operands, self.module)
            symbol = self.builder_.add_func(func.with_attrs(attrs), name)
            return relax.call_tir(symbol, [*operands, *dims], _single(want))
        call = self._te(name, attrs, kernel.compute, *operands, *kernel.options)
        got, padded = _fields(call.ty_args), kernel.result_lanes is not None
        if len(got) != len(want) or not all(map(_serves, got, want, [padded] * len(got))):
            where = f"{kernel.place}: " * bool(kernel.place)
            texts = (", ".join(map(_text, types)) for types in (got, want))
            raise ValueError("{}gives {}, what it replaces gives {}".format(where, *texts))
        return call

    def _c_kernel(
        self, kernel: Kernel, operands: list[relax.Type], results: list[relax.Type]
    ) -> tirx.PrimFunc:
        if self.target.kind.name != "llvm" or None in map(dims_of, (*operands, *results)):
            raise ValueError(f"{kernel.place}: C code is for CPUs and static shapes")
        assert kernel.code is not None
        name = self.compound.name
        return c_kernel(operands, results, kernel.code, name, kernel.attributes)

    def _attrs(self, kernel: Kernel) -> dict[str, object]:
        attrs: dict[str, object] = {
            COMPOSITE: self.compound.name,
            "op_pattern": OUT_ELEMWISE_FUSABLE if kernel.epilogue else OPAQUE,
        }
        if kernel.attributes:
            attrs["attributes"] = dict(kernel.attributes)
        return attrs

    def visit_dataflow_block_(self, block: relax.DataflowBlock) -> relax.BindingBlock:
        return self._alone(super().visit_dataflow_block_, block)

    def visit_binding_block_(self, block: relax.BindingBlock) -> relax.BindingBlock:
        return self._alone(super().visit_binding_block_, block)

    def _alone(self, visit: Callable, block: relax.BindingBlock) -> relax.BindingBlock:
        """What is packed in a block is known there alone, not around it either."""
        around, self.packed = self.packed, {}
        visited = visit(block)
        self.packed = around
        return visited

    def visit_var_binding_(self, binding: relax.VarBinding) -> None:
        site = self.found.get(binding.var)
        if site is not None:
            self._replace(site)
        elif binding.var not in self.given:
            super().visit_var_binding_(binding)
        self._carry(binding.var)

    def visit_match_cast_(self, binding: relax.MatchCast) -> None:
        super().visit_match_cast_(binding)
        self._carry(binding.var)

    def _carry(self, var: relax.Var) -> None:
        """Let ``var`` leave its dataflow block, where a kernel in a later one reads it."""
        if var in self.carried:
            self.set_var_remap(var, self.builder_.emit_output(self.visit_expr(var), var.name))

    def _replace(self, site: _Site) -> None:
        """Emit the kernel; what reads a result of the match reads that of the kernel."""
        root, results = site.match.root, site.match.results
        call = self._call(site, root.name)
        if len(results) == 1:
            self._define(root, call)
            return
        whole = self.builder_.emit(call, f"{root.name}_results")
        for k, result in enumerate(results):
            self._define(result, relax.TupleGetItem(whole, k))

    def _define(self, var: relax.Var, value: relax.Expr) -> None:
        inside = isinstance(var, relax.DataflowVar)
        emit = self.builder_.emit if inside else self.builder_.emit_output
        self.set_var_remap(var, emit(value, var.name))

    def _call(self, site: _Site, name: str) -> relax.Call:
        """The call of the kernel in the place of a match, and of what changes layouts around it."""
        kernel, template = site.kernel, site.template
        operands = [self._operand(x, kernel, k, name) for k, x in enumerate(kernel.operands)]
        symbol, given, *rest = template.args
        # Behind the operands: dims that no type of theirs tells, as of rows [a * b, K].
        values = relax.Tuple([*operands, *list(given)[len(operands) :]])
        call = relax.Call(template.op, [symbol, values, *rest], template.attrs, template.ty_args)
        if kernel.result_lanes is None:
            return call
        channels = int(site.match.root.ty.shape.values[1])
        blocked = self.builder_.emit(call, name + BLOCKED)
        return self._te("unblock", _UNBLOCK, unblock, blocked, channels)

    def _operand(self, operand: relax.Expr, kernel: Kernel, k: int, name: str) -> relax.Expr:
        """``operand``, number ``k``, as the kernel reads it."""
        operand, lanes = self.visit_expr(operand), kernel.lanes.get(k)
        if k in kernel.packed:
            call = self._te("pack", {}, kernel.packed[k], operand)
            key = call.args[0], operand  # of equal functions there is one
            if key not in self.packed:
                self.packed[key] = self.builder_.emit(call, name + OPERAND)
            return self.packed[key]
        if lanes is None:
            return operand
        if isinstance(operand, GenericConst):
            return relax.const(pack_channels(operand.value.numpy(), lanes), dtype_of(operand))
        call = self._te("block", _BLOCK, block, operand, lanes)
        return self.builder_.emit(call, name + OPERAND)

    def _te(
        self, name: str, attrs: Mapping[str, object], compute: Callable, *args: object
    ) -> relax.Call:
        return self.builder_.call_te(compute, *args, primfunc_name_hint=name, primfunc_attrs=attrs)


_BLOCK, _UNBLOCK = {LAYOUT: "block"}, {LAYOUT: "unblock"}


def _handed_over(ty: relax.Type, kernel: Kernel, k: int) -> relax.Type:
    """The type of operand ``k``, which is ``ty``, as the kernel reads it."""
    if k not in kernel.packed:
        return _blocked_type(ty, kernel.lanes.get(k))
    packed = kernel.packed[k](te.placeholder(ty.shape.values, ty.dtype.dtype))
    return relax.TensorType(packed.shape, packed.dtype.dtype)


def _blocked_type(ty: relax.Type, lanes: int | None) -> relax.Type:
    """NCHW as NCHW[lanes]c; channels that fill no whole block are padded."""
    if lanes is None:
        return ty
    n, c, *image = ty.shape.values
    return relax.TensorType([n, -(-int(c) // lanes), *image, lanes], ty.dtype.dtype)


def _obstacle(match: Match, moved: relax.Function | None) -> str | None:
    """Why one call cannot give the results of ``match``; ``moved``: its operators in one piece."""
    if moved is None:
        return "one of its operands depends on one of its results"
    tuples = [x.ty.fields for x in match.results if isinstance(x.ty, relax.TupleType)]
    if any(len(fields) == 1 or match.others for fields in tuples):
        return "a result is a tuple of one, or a tuple beside others"
    return None


def _single(types: Sequence[relax.Type]) -> relax.Type | list[relax.Type]:
    """Types as ``call_tir`` takes them."""
    return types[0] if len(types) == 1 else list(types)


def _fields(types: Sequence[relax.Type]) -> list[relax.Type]:
    """The types of all tensors."""
    return [
        field
        for ty in types
        for field in (_fields(ty.fields) if isinstance(ty, relax.TupleType) else [ty])
    ]


def _serves(got: relax.Type, want: relax.Type, padded: bool) -> bool:
    """Whether a kernel's result may be what it replaces: dims that nobody can tell apart count
    as equal.

    ``padded``: there may be more blocks of channels, which are cut off.
    """
    if not isinstance(got, relax.TensorType) or (got.ndim, got.dtype) != (want.ndim, want.dtype):
        return False
    if got.shape is None or want.shape is None:
        return True
    analyzer = Analyzer()
    differing = [
        axis
        for axis, (ours, theirs) in enumerate(zip(got.shape.values, want.shape.values, strict=True))
        if analyzer.can_prove(ours != theirs)
    ]
    if padded and differing == [1]:
        return analyzer.can_prove(got.shape.values[1] > want.shape.values[1])
    return not differing


def _text(ty: relax.Type) -> str:
    if not isinstance(ty, relax.TensorType) or ty.shape is None:
        return str(ty)
    dims = (str(int(d)) if isinstance(d, tirx.IntImm) else str(d) for d in ty.shape.values)
    return f"{ty.dtype.dtype}[{', '.join(dims)}]"
