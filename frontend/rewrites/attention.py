"""Scaled dot-product attention recognised from its two products and the softmax between them.

Before::

    s = MatMul(Mul(q, a), Transpose <perm = [0, 1, 3, 2]> (Mul(k, b)))
    m = Add(Mul(s, c), mask)                   or Where(keep, s, number), or no mask
    w = Softmax <axis = -1> (m)                or Where(IsNaN(w), 0, w) of that
    y = MatMul(w, v)

with any of the scales, as Mul or Div. After::

    y = tvm_ext.Attention <scale = a b c> (q, k, v, mask)

Queries, keys and values are ``[batch, heads, length, size]``. The operator is ai.onnx's, with
three differences that keep the meaning: ``scale`` is 1 by default, a condition puts ``masked``
(-inf) in the place of a score, and a row without any weight is NaN, as the softmax says, unless
``guarded``: then NaN weights are 0.

Of images, channels first, the product is the other way round, which :class:`UprightWeights` turns::

    y = MatMul(v, Transpose <perm = [0, 1, 3, 2]> (w))
    y = Transpose(MatMul(w, Transpose <perm = [0, 1, 3, 2]> (v)))
"""

from dataclasses import dataclass, field

import onnx_ir as ir
from onnxscript.rewriter import MatchContext

from .rule import FLOATS, FUSED, Rule, rank, scalar

__all__ = ["Attention", "UprightWeights"]


class UprightWeights(Rule):
    """``MatMul(v, Transpose(w)) -> Transpose(MatMul(w, Transpose(v)))``, w weights of a softmax."""

    def pattern(self, op, v, weights):
        return op.MatMul(v, op.Transpose(weights, _outputs=["turned"]))

    def refusal(
        self, context: MatchContext, v: ir.Value, weights: ir.Value, turned: ir.Value
    ) -> str | None:
        softmax, size = _producer(weights, "Softmax"), rank(weights)
        if size is None or size < 2 or size != rank(v):
            return "ranks differ, or are not known"
        if softmax is None or not _is_over_last_axis(softmax, size):
            return "no weights of an attention"
        perm = turned.producer().attributes.get_ints("perm", ())
        return None if list(perm) == _last_swapped(v) else "it is no transpose of matrices"

    def rewrite(self, op, v: ir.Value, weights: ir.Value, **_) -> ir.Value:
        perm = _last_swapped(v)
        return op.Transpose(op.MatMul(weights, op.Transpose(v, perm=perm)), perm=perm)


class Attention(Rule):
    """Fires on the product with the values."""

    def __init__(self):
        super().__init__(remove_nodes=False)

    def pattern(self, op, weights, v):
        return op.MatMul(weights, v, _outputs=["product"])

    def refusal(
        self, context: MatchContext, weights: ir.Value, v: ir.Value, product: ir.Value
    ) -> str | None:
        found = _Attention()
        if not found.read(weights):
            return "no attention"
        return found.refusal(v, product)

    def rewrite(self, op, weights: ir.Value, v: ir.Value, **_) -> ir.Value:
        found = _Attention()
        found.read(weights)
        operands = [found.q, found.keys(op), v]
        if found.mask is not None:
            operands.append(op.Not(found.mask) if found.inverted else found.mask)
        return op.Attention(*operands, **found.attributes, _domain=FUSED)


@dataclass
class _Attention:
    """What stands in front of the product with the values, read from there backwards.

    ``perm``: the transpose of ``k`` that gives the keys, and ``shape`` what to reshape it to; None
    where ``k`` has the keys as they are.
    """

    q: ir.Value = None
    k: ir.Value = None
    perm: list[int] | None = None
    shape: list[int] | None = None
    mask: ir.Value | None = None
    inverted: bool = False
    attributes: dict[str, float] = field(default_factory=lambda: {"scale": 1.0})

    def read(self, weights: ir.Value) -> bool:
        """Whether ``weights`` are those of an attention; fills the fields."""
        softmax = self._unguarded(weights)
        if softmax is None or softmax.op_type != "Softmax" or softmax.domain:
            return False
        scores = softmax.inputs[0]
        if rank(scores) != 4 or not _is_over_last_axis(softmax, 4):
            return False
        product = self._product(scores)
        if product is None:
            return False
        self.q = self._unscaled(product.inputs[0])
        return self._read_keys(self._unscaled(product.inputs[1]))

    def _read_keys(self, columns: ir.Value) -> bool:
        """Whether ``columns`` are transposed keys."""
        flat = _behind_flat_transpose(columns)
        if flat is not None:
            self.k, self.shape = flat
            return True
        transpose = columns.producer()
        if transpose is None or transpose.op_type != "Transpose" or transpose.domain:
            return False
        perm = list(transpose.attributes.get_ints("perm", (3, 2, 1, 0)))
        perm[-2:] = perm[:-3:-1]
        self.perm = None if perm == [0, 1, 2, 3] else perm
        self.k = transpose.inputs[0]
        if self.perm is None:
            self.k = self._unscaled(self.k)
        return True

    def refusal(self, v: ir.Value, product: ir.Value) -> str | None:
        """Why it is no attention in ai.onnx's sense: shapes that broadcast, or are unknown."""
        if self.q.dtype not in FLOATS:
            return f"q is {self.q.dtype}"
        shapes = [self.q.shape, self.shape or self.k.shape, v.shape, product.shape]
        if any(shape is None or len(shape) != 4 for shape in shapes):
            return "a rank is not 4, or not known"
        q, k, values, result = (list(shape) for shape in shapes)
        if self.perm is not None:
            k = [k[axis] for axis in self.perm]
        if not (q[:2] == k[:2] == values[:2] == result[:2]) or not all(map(_is_known, q[:2])):
            return f"batch and heads differ: {q[:2]}, {k[:2]}, {values[:2]}"
        scores = [*q[:3], k[2]]
        return None if self.mask is None else _broadcast_refusal(self.mask, scores)

    def keys(self, op) -> ir.Value:
        """``[batch, heads, length, size]``."""
        if self.perm is not None:
            return op.Transpose(self.k, perm=self.perm)
        if self.shape is None or self.k.shape == self.shape:
            return self.k
        return op.Reshape(self.k, op.Constant(value=ir.tensor(self.shape, ir.DataType.INT64)))

    def _unguarded(self, weights: ir.Value) -> ir.Node | None:
        """The producer of the weights, NaN in the place of which may be 0."""
        choice = _producer(weights, "Where")
        if choice is None:
            return _producer(weights, "Softmax")
        test, zero, plain = choice.inputs
        is_nan = _producer(test, "IsNaN")
        if is_nan is None or is_nan.inputs[0] is not plain or scalar(zero) != 0:
            return None
        self.attributes["guarded"] = 1
        return plain.producer() if len(plain.uses()) == 2 and not plain.is_graph_output() else None

    def _product(self, scores: ir.Value) -> ir.Node | None:
        """The product of queries and keys behind the mask and the scale."""
        choice, total = _producer(scores, "Where"), _producer(scores, "Add")
        if choice is not None:
            condition, yes, no = choice.inputs
            self.inverted = scalar(yes) is not None
            scores, number = (no, yes) if self.inverted else (yes, no)
            if scalar(number) is None or (rank(number) or 0) > 4:
                return None
            self.mask, self.attributes["masked"] = condition, scalar(number)
        elif total is not None:
            left, right = total.inputs
            is_left = _producer(self._unscaled(left, trial=True), "MatMul") is not None
            scores, self.mask = (left, right) if is_left else (right, left)
        return _producer(self._unscaled(scores), "MatMul")

    def _unscaled(self, value: ir.Value, trial: bool = False) -> ir.Value:
        """What is behind a Mul or Div by a number; on ``trial``, the scale stays as it is."""
        for operator in ("Mul", "Div"):
            node = _producer(value, operator)
            if node is None:
                continue
            left, right = node.inputs
            if operator == "Mul" and scalar(left) is not None:
                left, right = right, left
            number = scalar(right)
            if number and rank(left) == rank(value):
                if not trial:
                    self.attributes["scale"] *= number if operator == "Mul" else 1 / number
                return left
        return value


def _is_over_last_axis(softmax: ir.Node, rank: int) -> bool:
    """Whether a softmax of this rank is over the last axis; before opset 13, the default is 1."""
    default = -1 if softmax.graph.opset_imports[""] >= 13 else 1
    return softmax.attributes.get_int("axis", default) in (-1, rank - 1)


def _last_swapped(value: ir.Value) -> list[int]:
    """The permutation that transposes the matrices of ``value``, whose rank is known."""
    *leading, row, column = range(rank(value))
    return [*leading, column, row]


def _producer(value: ir.Value, operator: str) -> ir.Node | None:
    """The node behind ``value`` if it is this operator and only one node reads its result."""
    node = value.producer()
    if node is None or node.op_type != operator or node.domain:
        return None
    return node if len(value.uses()) == 1 and not value.is_graph_output() else None


def _behind_flat_transpose(columns: ir.Value) -> tuple[ir.Value, list[int]] | None:
    """The keys and their shape, of Reshape(Transpose <perm = [0, 2, 1]> (flat keys)).

    So the dynamo exporter writes it, with batch and heads as one axis.
    """
    outer = _producer(columns, "Reshape")
    transpose = None if outer is None else _producer(outer.inputs[0], "Transpose")
    if transpose is None or list(transpose.attributes.get_ints("perm", ())) != [0, 2, 1]:
        return None
    flat = transpose.inputs[0]
    if columns.shape is None or flat.shape is None or not columns.shape.is_static():
        return None
    batch, heads, size, keys = columns.shape
    if flat.shape != (batch * heads, keys, size):
        return None
    shape, inner = [batch, heads, keys, size], flat.producer()
    if inner is not None and inner.op_type == "Reshape" and inner.inputs[0].shape == shape:
        return inner.inputs[0], shape
    return flat, shape


def _broadcast_refusal(mask: ir.Value, scores: list) -> str | None:
    """Why adding ``mask`` would change the shape of the scores."""
    dims = None if mask.shape is None else list(mask.shape)
    if dims is None or len(dims) > len(scores):
        return f"a mask of shape {dims}"
    for dim, wanted in zip(dims[::-1], scores[::-1], strict=False):
        if dim != 1 and (dim != wanted or not _is_known(dim)):
            return f"a mask of shape {dims} for scores of shape {scores}"
    return None


def _is_known(dim: int | ir.SymbolicDim) -> bool:
    return isinstance(dim, int) or dim.value is not None
