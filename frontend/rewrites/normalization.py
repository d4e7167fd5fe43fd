"""LayerNormalization and RMSNormalization recognised from their arithmetic.

Before::

    m = ReduceMean <axes = [-1]> (x)
    d = Sub(x, m)
    v = ReduceMean <axes = [-1]> (Pow(d, 2))       or Mul(d, d)
    u = Div(d, Sqrt(Add(v, 1e-5)))                 or Mul(d, Reciprocal(Sqrt(...)))
    y = Add(Mul(u, scale), bias)

After::

    y = tvm_ext.LayerNormalization <axis = -1, epsilon = 1e-5> (x, scale, bias)

Without the mean it is an RMSNormalization, which has no bias. The core is recognised first, with
a scale of one; then a product becomes its scale and a sum its bias.
"""

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir
from onnxscript.rewriter import MatchContext
from onnxscript.rewriter.pattern import OrValue

from .rule import FLOATS, FUSED, Rule, constant, rank, scalar

__all__ = [
    "LayerNorm", "LayerNormBias", "LayerNormByDivision", "LayerNormScale", "RMSNorm",
    "RMSNormByDivision", "RMSNormScale",
]  # fmt: skip


class _Core(Rule):
    """A normalisation over the trailing axes, so far without scale."""

    fused: str
    divides = False  # the quotient is a Div; else a Mul by a reciprocal

    def _over_root(self, op, x, epsilon):
        """``x / sqrt(mean(x**2) + epsilon)`` in the ways that exporters write it."""
        square = OrValue([op.Mul(x, x), op.Pow(x, 2)])
        variance = op.ReduceMean(square, _allow_other_inputs=True, _outputs=["variance"])
        root = op.Sqrt(op.Add(variance, epsilon))
        if self.divides:
            return op.Div(x, root)
        return op.Mul(x, OrValue([op.Reciprocal(root), op.Div(1, root)]))

    def refusal(
        self, context: MatchContext, x: ir.Value, epsilon: ir.Value, variance: ir.Value, **means
    ) -> str | None:
        if x.dtype not in FLOATS:
            return f"x is {x.dtype}"
        if scalar(epsilon) is None:
            return "epsilon is no constant"
        if rank(context.root.outputs[0]) != rank(x):
            return "a constant of higher rank broadcasts x"
        reductions = [variance, *(v for k, v in means.items() if k == "mean")]
        axes = [_trailing_axes(value.producer(), rank(x)) for value in reductions]
        if None in axes or len(set(axes)) > 1:
            return "the reductions are not over the same trailing axes"
        if not all(isinstance(dim, int) for dim in x.shape[axes[0] :]):
            return "the normalised axes are not static"
        return None

    def rewrite(self, op, x: ir.Value, epsilon: ir.Value, variance: ir.Value, **_) -> ir.Value:
        axis = _trailing_axes(variance.producer(), rank(x))
        ones = np.ones(list(x.shape[axis:]), x.dtype.numpy())
        return getattr(op, self.fused)(
            x, op.Constant(value=ir.tensor(ones)), axis=axis, epsilon=scalar(epsilon),
            _domain=FUSED,
        )  # fmt: skip


class LayerNorm(_Core):
    """``(x - mean(x)) / sqrt(variance + epsilon)``."""

    fused = "LayerNormalization"

    def pattern(self, op, x, epsilon):
        mean = op.ReduceMean(x, _allow_other_inputs=True, _outputs=["mean"])
        return self._over_root(op, op.Sub(x, mean), epsilon)


class LayerNormByDivision(LayerNorm):
    divides = True


class RMSNorm(_Core):
    """``x / sqrt(mean(x**2) + epsilon)``."""

    fused = "RMSNormalization"

    def pattern(self, op, x, epsilon):
        return self._over_root(op, x, epsilon)


class RMSNormByDivision(RMSNorm):
    divides = True


class _Scale(Rule):
    """``Mul(normalised, scale)`` where the scale so far is one."""

    fused: str

    def pattern(self, op, x, ones, scale):
        core = getattr(op, self.fused)(x, ones, _domain=FUSED, _outputs=["normalised"])
        return op.Mul(core, scale)

    def refusal(self, context: MatchContext, ones: ir.Value, scale: ir.Value, **_) -> str | None:
        if not (constant(ones) == 1).all():
            return "it is scaled already"
        return _parameter_refusal(scale, ones)

    def rewrite(self, op, x: ir.Value, scale: ir.Value, normalised: ir.Value, **_) -> ir.Value:
        attributes = normalised.producer().attributes
        return getattr(op, self.fused)(x, scale, **attributes, _domain=FUSED)


class LayerNormScale(_Scale):
    fused = "LayerNormalization"


class RMSNormScale(_Scale):
    fused = "RMSNormalization"


class LayerNormBias(Rule):
    """``Add(normalised, bias)``."""

    def pattern(self, op, x, scale, bias):
        core = op.LayerNormalization(x, scale, _domain=FUSED, _outputs=["normalised"])
        return op.Add(core, bias)

    def refusal(self, context: MatchContext, scale: ir.Value, bias: ir.Value, **_) -> str | None:
        return _parameter_refusal(bias, scale)

    def rewrite(self, op, x: ir.Value, scale: ir.Value, bias: ir.Value, normalised: ir.Value):
        attributes = normalised.producer().attributes
        return op.LayerNormalization(x, scale, bias, **attributes, _domain=FUSED)


def _parameter_refusal(parameter: ir.Value, like: ir.Value) -> str | None:
    if parameter.shape is None or parameter.shape != like.shape:
        return f"a parameter of shape {parameter.shape}, not {like.shape}"
    return None


def _trailing_axes(reduction: ir.Node, ndim: int | None) -> int | None:
    """The first of the axes reduced, if they run from there to the last and are kept."""
    axes = _axes(reduction)
    if ndim is None or not axes or not reduction.attributes.get_int("keepdims", 1):
        return None
    first = min(axis % ndim for axis in axes)
    return first if sorted(a % ndim for a in axes) == list(range(first, ndim)) else None


def _axes(reduction: ir.Node) -> Sequence[int] | None:
    """The axes, an attribute before opset 18 and an input from it on."""
    if len(reduction.inputs) > 1 and reduction.inputs[1] is not None:
        array = constant(reduction.inputs[1])
        return None if array is None else array.tolist()
    return reduction.attributes.get_ints("axes", None)
