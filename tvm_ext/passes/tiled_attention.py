"""Attention as one kernel, which never stores the scores of all queries.

Before::

    k1 = R.permute_dims(k, [0, 2, 3, 1]);  q1, v1 = R.permute_dims(..., [0, 2, 1, 3])
    s = R.matmul(q1, k1)
    w = R.nn.softmax(R.add(R.multiply(s, 0.125), mask), -1)
    y = R.permute_dims(R.matmul(w, v1), [0, 2, 1, 3])

After: ``y = R.call_tir(attention, (q, k, v, mask))``. Transposes around it are read through.
Between the products there may be scales, masks (added, or by a condition), tanh and reshapes of
the rows. A QuantizeLinear and the DequantizeLinear of its codes round scores, or the weights that
the softmax gives; codes of keys and values are read as they are. ``R.where(R.isnan(w), 0, w)`` and
``R.where(R.equal(s, -inf), 0, w)``, with ``s`` the scores in front of the softmax, make rows
without any weight 0.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from math import inf

import numpy as np
from tvm import relax
from tvm.ir import Op
from tvm.target import Target

from tvm_ext.ops.attention_tiled import Step, attention_tiled
from tvm_ext.schedules.llvm.attention import choose_attention_tile

from .coded import dequantised, round_trip
from .compound import Compound, Kernel, Match
from .facts import axes_of, dtype_of, known_dims, number_of, static_dims
from .graph import Graph

__all__ = ["TILED_ATTENTION", "softmax_of", "untransposed"]

_FLOATS = {"float32", "float16", "bfloat16"}


@dataclass(frozen=True)
class _Attention:
    """``weight_steps(softmax(steps(q @ k^T))) @ v``, each tensor seen through a transpose.

    ``codes``: which operands tell what integers in ``k`` and ``v`` stand for.
    """

    q: relax.Expr
    k: relax.Expr
    v: relax.Expr
    axes: tuple[tuple[int, ...], ...]
    steps: tuple[Step, ...]
    operands: tuple[relax.Expr, ...]
    guard: str | None
    dims: list[int]
    weight_steps: tuple[Step, ...]
    codes: tuple[int | None, int | None]

    @property
    def reads(self) -> tuple[relax.Expr, ...]:
        """The operands of the kernel."""
        return (self.q, self.k, self.v, *self.operands)


def _find(graph: Graph, var: relax.Var) -> Match | None:
    """The attention whose product with the values is ``var``, and what follows: its result."""
    attention = _at_product(graph, var)
    if attention is None:
        return None
    end = var
    reader = graph.reader(var)
    if reader is not None and graph.is_call(reader, "relax.astype"):
        end, reader = reader, graph.reader(reader)
    if dtype_of(end) not in _FLOATS:
        return None
    axes = tuple(range(len(attention.dims)))
    if reader is not None and graph.is_call(reader, "relax.permute_dims"):
        transposed = axes_of(graph.values[reader])
        if transposed[-1] == axes[-1]:  # columns stay the vector lanes
            end, axes = reader, transposed
    attention = replace(attention, axes=(*attention.axes, axes))
    return Match(graph, end, graph.between(end, attention.reads), detail=attention)


def _kernel(match: Match, target: Target) -> Kernel:
    attention: _Attention = match.detail
    *_, rows, width = attention.dims
    keys = known_dims(attention.k)[attention.axes[1][-2]]
    tile = choose_attention_tile(target, rows, keys, width)
    compute = partial(
        attention_tiled,
        axes=attention.axes,
        steps=attention.steps,
        rows=tile.rows,
        columns=tile.columns,
        value_columns=tile.value_columns,
        guard=attention.guard,
        dtype=match.dtype(),
        weight_steps=attention.weight_steps,
        codes=attention.codes,
    )
    return Kernel(attention.reads, compute, name="attention")


#: Static shapes, float32, float16 and bfloat16.
TILED_ATTENTION = Compound("TiledAttention", _find, _kernel)


def _at_product(graph: Graph, var: relax.Var) -> _Attention | None:
    """The attention whose product with the values is ``var``; the transpose of y is missing."""
    product = graph.call(var, "relax.matmul")
    if product is None:
        return None
    weights, v = product.args
    weights = _own(graph, _regrouped(graph, weights), "relax.astype")
    dims, value, chain = static_dims(var), static_dims(v), _Chain(graph)
    if dims is None or value is None or min(len(dims), len(value)) < 2:
        return None
    weights, weight_steps = chain.weights(weights)
    softmax, guard = softmax_of(graph, weights)
    if softmax is None or (weight_steps and guard is not None):
        return None
    scores = chain.walk(softmax.args[0], uses=2 if guard == "empty" else 1)
    if scores is None:
        return None
    q, k = scores.args
    left, right, plain = static_dims(q), static_dims(k), static_dims(scores)
    if left is None or right is None or plain is None:
        return None
    if min(len(left), len(right)) < 2 or 0 in (*left, *right, *value):
        return None
    if plain[:-1] != dims[:-1] or {dtype_of(x) for x in (q, k, v)} - _FLOATS:
        return None
    q, q_axes = untransposed(graph, q)
    (k, k_axes, k_codes), (v, v_axes, v_codes) = (chain.stored(x) for x in (k, v))
    # The right operand holds keys as columns.
    axes = q_axes, (*k_axes[:-2], k_axes[-1], k_axes[-2]), v_axes
    steps, operands = tuple(chain.steps[::-1]), tuple(chain.operands)
    codes = k_codes, v_codes
    return _Attention(q, k, v, axes, steps, operands, guard, dims, weight_steps, codes)


def softmax_of(graph: Graph, weights: relax.Expr) -> tuple[relax.Call | None, str | None]:
    """The softmax over the last axis behind ``weights``, and the guard of rows without any."""
    choice, guard = graph.call(weights, "relax.where"), None
    if choice is not None and graph.uses[weights] == 1:
        test, zero, weights = choice.args
        guard = _guard(graph, test, weights)
        if guard is None or number_of(zero) != 0:
            return None, None
    softmax = graph.call(weights, "relax.nn.softmax")
    if softmax is None or graph.uses[weights] != (2 if guard == "nan" else 1):
        return None, None
    last = int(softmax.attrs.axis) % weights.ty.ndim == weights.ty.ndim - 1
    return softmax if last else None, guard


def _guard(graph: Graph, test: relax.Expr, weights: relax.Expr) -> str | None:
    """What kind of weights ``test`` is true for."""
    softmax = graph.call(weights, "relax.nn.softmax")
    is_nan, equal = graph.call(test, "relax.isnan"), graph.call(test, "relax.equal")
    if softmax is None or graph.uses[test] != 1:
        return None
    if is_nan is not None and is_nan.args[0].same_as(weights):
        return "nan"
    if equal is None or not equal.args[0].same_as(softmax.args[0]):
        return None
    return "empty" if number_of(equal.args[1]) == -inf else None


def _regrouped(graph: Graph, weights: relax.Expr) -> relax.Expr:
    """``weights`` before their rows are reshaped."""
    call, after = graph.call(weights, "relax.reshape"), static_dims(weights)
    before = None if call is None else static_dims(call.args[0])
    if before is None or after is None or before[-1:] != after[-1:]:
        return weights
    return _own(graph, weights, "relax.reshape")


def _own(graph: Graph, expr: relax.Expr, *names: str) -> relax.Expr:
    """``expr``, or what goes into it where it is one of these operators and read once."""
    call = graph.call(expr, *names)
    return call.args[0] if call is not None and graph.uses[expr] == 1 else expr


class _Chain:
    """The way from the softmax back to the product of queries and keys, steps last first."""

    def __init__(self, graph: Graph):
        self.graph = graph
        self.steps: list[Step] = []
        self.operands: list[relax.Expr] = []

    def walk(self, expr: relax.Expr, uses: int = 1) -> relax.Call | None:
        """The product at the beginning; None where another operator stands in the way.

        ``uses``: how often ``expr`` is read.
        """
        while isinstance(expr, relax.Var) and self.graph.uses[expr] == uses:
            product = self.graph.call(expr, "relax.matmul")
            dims = static_dims(expr)
            if product is not None or dims is None or dtype_of(expr) not in _FLOATS:
                return product if dims is not None else None
            expr, uses = self._step(expr, dims), 1
        return None

    def weights(self, expr: relax.Expr) -> tuple[relax.Expr, tuple[Step, ...]]:
        """What the weights ``expr`` are rounded and scaled from, and these steps in their order."""
        while (before := self._rounded(expr)) is not None:
            expr = before
        steps, self.steps = tuple(self.steps[::-1]), []
        return expr, steps

    def _rounded(self, expr: relax.Expr) -> relax.Expr | None:
        """What ``expr``, read once, is rounded from, or multiplied by a number."""
        dims = static_dims(expr)
        if not isinstance(expr, relax.Var) or self.graph.uses[expr] != 1 or not dims:
            return None
        trip = round_trip(self.graph, expr)
        if trip is not None:
            source, codes = trip
            numbers = codes.low - codes.zero, codes.high - codes.zero, codes.scale
            self._add("round", _const(numbers), dims)
            return source
        product = self.graph.call(expr, "relax.multiply")
        if product is None or number_of(product.args[1]) is None:
            return None
        source, factor = product.args
        same = static_dims(source) == dims
        return source if same and self._add("multiply", factor, dims) else None

    def stored(self, expr: relax.Expr) -> tuple[relax.Expr, tuple[int, ...], int | None]:
        """The tensor behind transposes, its axes, and the operand that tells what its codes are."""
        x, axes = untransposed(self.graph, expr)
        found = dequantised(self.graph, x)
        if found is None:
            return x, axes, None
        integers, codes = found
        x, inner = untransposed(self.graph, integers)
        self.operands.append(_const((codes.zero, codes.scale)))
        return x, tuple(inner[axis] for axis in axes), len(self.operands) - 1

    def _step(self, expr: relax.Var, dims: list[int]) -> relax.Expr | None:
        """What ``expr`` is a step from."""
        rounded = self._rounded(expr)
        if rounded is not None:
            return rounded
        call = self.graph.values.get(expr)
        if not isinstance(call, relax.Call) or not isinstance(call.op, Op):
            return None
        name, arguments = call.op.name, call.args
        if name == "relax.reshape":
            before = static_dims(arguments[0])
            return arguments[0] if before is not None and before[-1] == dims[-1] else None
        if name == "relax.astype":
            return arguments[0]
        if name == "relax.tanh":
            self.steps.append(Step("tanh", None, 0.0, tuple(dims[:-1])))
            return arguments[0]
        if name in ("relax.add", "relax.multiply"):
            return self._combined(name.removeprefix("relax."), arguments, dims)
        if name == "relax.divide":
            number = number_of(arguments[1])
            if number is None or not number or static_dims(arguments[0]) != dims:
                return None
            self.steps.append(Step("multiply", None, 1 / number, tuple(dims[:-1])))
            return arguments[0]
        if name == "relax.where":
            condition, yes, no = arguments
            return self._chosen(condition, yes, no, dims)
        return None

    def _combined(self, kind: str, arguments, dims: list[int]) -> relax.Expr | None:
        for score, other in (arguments, arguments[::-1]):
            if static_dims(score) == dims and self._leads_to_product(score):
                return score if self._add(kind, other, dims) else None
        return None

    def _chosen(self, condition, yes, no, dims: list[int]) -> relax.Expr | None:
        for kind, score, other in (("keep", yes, no), ("drop", no, yes)):
            number = number_of(other)
            if number is not None and static_dims(score) == dims:
                return score if self._add(kind, condition, dims, number) else None
        return None

    def _add(self, kind: str, operand: relax.Expr, dims: list[int], value: float = 0.0) -> bool:
        shape, number = static_dims(operand), number_of(operand)
        leading = tuple(dims[:-1])
        # A number with a dim is an operand: layers that have others share the kernel.
        if number is not None and kind in ("add", "multiply") and not shape:
            self.steps.append(Step(kind, None, number, leading))
            return True
        if shape is None or len(shape) > len(dims):
            return False
        self.steps.append(Step(kind, len(self.operands), value, leading))
        self.operands.append(operand)
        return True

    def _leads_to_product(self, expr: relax.Expr) -> bool:
        """Whether ``expr``, and not the other operand, is on the way."""
        return _Chain(self.graph).walk(expr) is not None


def untransposed(graph: Graph, expr: relax.Expr) -> tuple[relax.Expr, tuple[int, ...]]:
    """The tensor behind transposes, and the axes through which ``expr`` reads it."""
    axes = tuple(range(expr.ty.ndim))
    while (call := graph.call(expr, "relax.permute_dims")) is not None:
        outer = axes_of(call)
        axes = tuple(outer[axis] for axis in axes)
        expr = call.args[0]
    return expr, axes


def _const(numbers: tuple[float, ...]) -> relax.Expr:
    return relax.const(np.array(numbers, "float32"), "float32")
