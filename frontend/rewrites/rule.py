"""What the rules share: a base class whose refusals have a reason, and questions about values."""

import logging
from collections.abc import Callable, Mapping, Sequence
from inspect import signature

import numpy as np
import onnx_ir as ir
from onnxscript.rewriter import MatchContext, MatchResult, RewriteRuleClassBase, RewriteRuleSet

__all__ = [
    "FLOATS", "FUSED", "Rule", "attribute_refusal", "constant", "initializer", "known", "rank",
    "rewriting", "scalar", "static_dim",
]  # fmt: skip

_log = logging.getLogger(__name__)

FUSED = "tvm_ext"  # the domain of operators that the model's own opset may lack
FLOATS = frozenset({
    ir.DataType.FLOAT16, ir.DataType.BFLOAT16, ir.DataType.FLOAT, ir.DataType.DOUBLE,
})  # fmt: skip
# The attributes of a product that is nothing more.
_PLAIN = {"alpha": 1, "beta": 1, "transA": 0}
# Those of the rules' operators that took an axis before opset 7.
_PLACED = frozenset({"Add", "Div", "Mul", "Pow", "Sub"})


class Rule(RewriteRuleClassBase):
    """A rewrite rule: ``pattern``, ``refusal`` (a reason or None), ``rewrite``.

    ``refusal`` and ``rewrite`` are given the values that the pattern names.
    """

    def check(self, context: MatchContext, **values: ir.Value) -> MatchResult:
        """Ask ``refusal``; its reason is logged."""
        result = MatchResult()
        reason = (
            _placed_refusal(context.nodes)
            or self._own_refusal(context.nodes, values)
            or self.refusal(context, **values)
        )
        if reason is not None:
            _log.debug("%s leaves %r: %s", self.name, context.root.name, reason)
            result.fail(reason, context.root)
        return result

    def _own_refusal(self, nodes: Sequence[ir.Node], values: Mapping[str, ir.Value]) -> str | None:
        """Why what is matched cannot go: ``Mul(normalised, scale)`` of two times the same."""
        for name in signature(self.pattern).parameters:
            operand = values.get(name)
            if isinstance(operand, ir.Value) and operand.producer() in nodes:
                return f"{name} is computed in what would be replaced"
        return None

    def refusal(self, context: MatchContext, **values: ir.Value) -> str | None:
        """Why the rule must not fire on what its pattern has matched; None: it may."""
        raise NotImplementedError


def _placed_refusal(nodes: Sequence[ir.Node]) -> str | None:
    """Why nodes do not broadcast as they do from opset 7 on: an axis says where an operand lies."""
    for node in nodes:
        if node.op_type in _PLACED and "axis" in node.attributes and not node.domain:
            return f"{node.op_type} of opset 6 or older, with an axis"
    return None


def attribute_refusal(node: ir.Node) -> str | None:
    """Why a product is not plain: one of its attributes scales it or turns its rows."""
    for name, value in _PLAIN.items():
        found = node.attributes.get(name)
        if found is not None and found.value != value:
            return f"{name} is not {value}"
    return None


def rewriting(*rules: type[Rule], **options: object) -> Callable[[ir.Model], ir.Model]:
    """A step that applies rules wherever they fire, subgraphs included, in one pass.

    The options are given to each rule.
    """
    rule_set = RewriteRuleSet([rule.rule(**options) for rule in rules], commute=True)

    def step(model: ir.Model) -> ir.Model:
        for graph in model.graph.subgraphs():  # they are read without the model's opsets
            graph.opset_imports.update(model.opset_imports)
        rule_set.apply_to_model(model)
        return model

    return step


def constant(value: ir.Value | None) -> np.ndarray | None:
    """The elements of a value known now; a graph input with a default counts as unknown."""
    if value is None or value.const_value is None or value.is_graph_input():
        return None
    return value.const_value.numpy()


def known(array: np.ndarray) -> ir.Node:
    """The node of a constant, not yet in a graph; its value has its type, shape and elements."""
    node = ir.node("Constant", [], {"value": ir.tensor(array)})
    (value,) = node.outputs
    value.const_value = ir.tensor(array)
    value.type, value.shape = ir.TensorType(value.const_value.dtype), ir.Shape(array.shape)
    return node


def initializer(
    graph: ir.Graph, name: str, array: np.ndarray, dtype: ir.DataType | None = None
) -> ir.Value:
    """A constant of ``graph`` that holds ``array``, of that name or a longer one that is free.

    ``dtype``: by default that of numpy's.
    """
    while name in graph.initializers:
        name += "_"
    tensor = ir.tensor(array, dtype=dtype, name=name)
    kind = ir.TensorType(tensor.dtype)
    value = ir.Value(name=name, shape=ir.Shape(array.shape), type=kind, const_value=tensor)
    graph.register_initializer(value)
    return value


def scalar(value: ir.Value | None) -> float | None:
    """The only element of a constant of any rank; None for everything else."""
    array = constant(value)
    return float(array.item()) if array is not None and array.size == 1 else None


def rank(value: ir.Value | None) -> int | None:
    """The rank where it is known."""
    return None if value is None or value.shape is None else len(value.shape)


def static_dim(value: ir.Value, axis: int) -> int | None:
    """The size along ``axis`` where it is static."""
    dim = value.shape[axis] if value.shape is not None else None
    return dim if isinstance(dim, int) else None
