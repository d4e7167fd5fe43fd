"""The bindings of a function as a graph: what each variable is, and who reads it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import tvm_ffi
from tvm import IRModule, relax
from tvm.ir import DictAttrs, GlobalVar, Op

__all__ = [
    "BLOCKED",
    "OPERAND",
    "WHOLE_NODE",
    "WORDS",
    "Graph",
    "stems",
    "unblocked",
    "variables",
    "visited",
]

#: Before the operator, in the name of a kernel that is a whole ONNX node.
WHOLE_NODE = "onnx::"

#: Behind a variable's name: its value in blocked layout, an operand of what computes it, and its
#: value as pairs of bfloat16.
BLOCKED, OPERAND, WORDS = "_blocked", "_operand", "_words"


def stems(name: str) -> Iterator[str]:
    """``name``, and what it was before passes put something behind it, or a number that makes it
    unique; the longest first."""
    yield name
    bare = _unnumbered(name)
    while bare.endswith((BLOCKED, OPERAND, WORDS)):
        bare = bare.removesuffix(BLOCKED).removesuffix(OPERAND).removesuffix(WORDS)
        yield bare
        bare = _unnumbered(bare)
    yield bare


def unblocked(name: str) -> str:
    """The variable of whose value in blocked layout ``name`` is; another is itself."""
    bare = _unnumbered(name)
    return bare.removesuffix(BLOCKED) if bare.endswith(BLOCKED) else name


def _unnumbered(name: str) -> str:
    return name.rstrip("0123456789").rstrip("_")


@dataclass
class Graph:
    """Variable -> value, variable -> who reads it, how often.

    Attributes:
        values: what each variable is bound to, in the order of the bindings.
        readers: the variables whose values read a variable, once per use.
        uses: how often a variable is read, the function's result included.
        owner: the variable that a value is bound to.
        var2val: ``values``, as TVM's pattern matcher takes them: the name of a kernel that is a
            whole ONNX node is that of its operator, and a variable that is another one, cast to a
            shape or handed out of its block, is no value: patterns would name the other.
        module: where the kernels are that the function calls.
    """

    main: relax.Function
    module: IRModule | None = None
    values: dict[relax.Var, relax.Expr] = field(default_factory=dict)
    readers: dict[relax.Var, list[relax.Var]] = field(default_factory=dict)
    uses: Counter = field(default_factory=Counter)
    owner: dict[relax.Expr, relax.Var] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for block in self.main.body.blocks:
            for binding in block.bindings:
                self.values[binding.var] = binding.value
                if not isinstance(binding.value, relax.Var):
                    self.owner[binding.value] = binding.var
                for var in variables(binding.value):
                    self.uses[var] += 1
                    self.readers.setdefault(var, []).append(binding.var)
        self.uses.update(variables(self.main.body.body))
        seen = {
            var: _by_operator(value)
            for var, value in self.values.items()
            if not isinstance(value, relax.Var)
        }
        self.owner |= {value: var for var, value in seen.items()}
        self.var2val = tvm_ffi.convert(seen)

    def reader(self, var: relax.Var) -> relax.Var | None:
        """The only variable that reads ``var``, once."""
        return self.readers[var][0] if self.uses[var] == 1 and var in self.readers else None

    def call(self, expr: relax.Expr, *names: str) -> relax.Call | None:
        """The call that ``expr`` is bound to, if it is one of these operators."""
        value = self.values.get(expr) if isinstance(expr, relax.Var) else None
        if isinstance(value, relax.Call) and isinstance(value.op, Op) and value.op.name in names:
            return value
        return None

    def is_call(self, expr: relax.Expr, name: str) -> bool:
        """Whether ``expr`` is bound to a call of the operator ``name``."""
        return self.call(expr, name) is not None

    def between(self, end: relax.Var, inputs: Sequence[relax.Expr]) -> tuple[relax.Var, ...]:
        """The variables that ``end`` is computed from, up to ``inputs``, in order; it is last."""
        found, waiting = {end}, [end]
        while waiting:
            for var in variables(self.values[waiting.pop()]):
                if var in self.values and var not in found and var not in inputs:
                    found.add(var)
                    waiting.append(var)
        return tuple(var for var in self.values if var in found)


def _by_operator(value: relax.Expr) -> relax.Expr:
    """A call of a kernel that is a whole ONNX node, as patterns name it; else ``value``."""
    attrs = value.attrs if isinstance(value, relax.Call) else None
    if not isinstance(attrs, DictAttrs) or "onnx" not in attrs:
        return value
    symbol = GlobalVar(f"{WHOLE_NODE}{attrs['onnx']}")
    return relax.Call(value.op, [symbol, *value.args[1:]], attrs, value.ty_args)


def variables(expr: relax.Expr) -> Iterator[relax.Var]:
    """The variables in an expression, as often as they occur."""
    if isinstance(expr, relax.Var):
        yield expr
    elif isinstance(expr, relax.Tuple):
        for part in expr.fields:
            yield from variables(part)
    elif isinstance(expr, relax.Call):
        for part in expr.args:
            yield from variables(part)
    elif isinstance(expr, relax.TupleGetItem):
        yield from variables(expr.tuple_value)
    elif isinstance(expr, relax.If | relax.Function | relax.SeqExpr):
        yield from relax.analysis.free_vars(expr)


def visited(module: IRModule, mutator: relax.PyExprMutator) -> IRModule:
    """``module`` with its Relax functions as ``mutator`` leaves them, and the kernels it added."""
    for symbol, func in module.functions_items():
        if isinstance(func, relax.Function):
            after = mutator.visit_expr(func)
            if not after.same_as(func):
                mutator.builder_.update_func(symbol, after)
    return mutator.builder_.get()
