"""Batch normalisation of inference folded into the layer before it.

Before::

    c = Conv(x, w, b)                      also ConvTranspose and Gemm
    y = BatchNormalization(c, scale, shift, mean, variance)

After::

    y = Conv(x, w * factor, (b - mean) * factor + shift)      factor = scale / sqrt(variance + eps)

All parameters are constant; the arithmetic runs in float64 and is rounded once.
"""

import numpy as np
import onnx_ir as ir
from onnxscript.rewriter import MatchContext

from .rule import Rule, constant, rank

__all__ = ["BatchNormIntoConv", "BatchNormIntoConvTranspose", "BatchNormIntoGemm"]


class _BatchNormIntoLayer(Rule):
    layer: str  # the operator before the normalisation

    def pattern(self, op, x):
        layer = getattr(op, self.layer)(x, _allow_other_inputs=True, _outputs=["product"])
        return op.BatchNormalization(layer, _allow_other_inputs=True, _outputs=["normalised"])

    def refusal(
        self, context: MatchContext, product: ir.Value, normalised: ir.Value, **_
    ) -> str | None:
        node, norm = product.producer(), normalised.producer()
        if len(norm.outputs) > 1 or norm.attributes.get_int("training_mode", 0):
            return "it trains"
        if norm.attributes.get_int("spatial", 1) != 1:
            return "statistics per element, not per channel"
        parameters = [*(v for v in node.inputs[1:] if v is not None), *norm.inputs[1:]]
        if any(constant(value) is None for value in parameters):
            return "a parameter is not constant"
        weight, bias = self._folded(node, norm)
        if not (np.isfinite(weight).all() and np.isfinite(bias).all()):
            return f"the folded parameters leave the range of {weight.dtype}"
        return None

    def rewrite(self, op, x: ir.Value, product: ir.Value, normalised: ir.Value) -> ir.Value:
        node = product.producer()
        weight, bias = self._folded(node, normalised.producer())
        attributes = {k: v for k, v in node.attributes.items() if k not in ("alpha", "beta")}
        return getattr(op, self.layer)(
            x, op.Constant(value=ir.tensor(weight)), op.Constant(value=ir.tensor(bias)),
            **attributes,
        )  # fmt: skip

    def _folded(self, node: ir.Node, norm: ir.Node) -> tuple[np.ndarray, np.ndarray]:
        """The weight and bias of both layers in one, in the type of the weight."""
        weight = constant(node.inputs[1])
        scale, shift, mean, variance = (constant(v).astype("float64") for v in norm.inputs[1:5])
        factor = scale / np.sqrt(variance + norm.attributes.get_float("epsilon", 1e-5))
        bias = constant(node.inputs[2]) if len(node.inputs) > 2 else None
        bias = np.zeros(1) if bias is None else bias.astype("float64")
        alpha, beta = (node.attributes.get_float(name, 1.0) for name in ("alpha", "beta"))
        with np.errstate(over="ignore"):
            folded = alpha * self._scaled(node, weight.astype("float64"), factor)
            bias = (beta * bias - mean) * factor + shift
            return folded.astype(weight.dtype), bias.astype(weight.dtype)

    def _scaled(self, node: ir.Node, weight: np.ndarray, factor: np.ndarray) -> np.ndarray:
        """``weight`` times ``factor`` along its output channels."""
        raise NotImplementedError


class BatchNormIntoConv(_BatchNormIntoLayer):
    """``w[M, C / group, k...]``."""

    layer = "Conv"

    def _scaled(self, node, weight, factor):
        return weight * factor.reshape(-1, *[1] * (weight.ndim - 1))


class BatchNormIntoConvTranspose(_BatchNormIntoLayer):
    """``w[C, M / group, k...]``: the output channels of a group share its input channels."""

    layer = "ConvTranspose"

    def _scaled(self, node, weight, factor):
        group = node.attributes.get_int("group", 1)
        inputs, outputs, *kernel = weight.shape
        grouped = weight.reshape(group, inputs // group, outputs, *kernel)
        factor = factor.reshape(group, 1, outputs, *[1] * len(kernel))
        return (grouped * factor).reshape(weight.shape)


class BatchNormIntoGemm(_BatchNormIntoLayer):
    """``w[K, N]``, or ``w[N, K]`` with ``transB``."""

    layer = "Gemm"

    def refusal(self, context: MatchContext, product: ir.Value, **values) -> str | None:
        inputs = product.producer().inputs
        if len(inputs) > 2 and rank(inputs[2]) is not None and rank(inputs[2]) > 1:
            return "the bias is a matrix"
        return super().refusal(context, product=product, **values)

    def _scaled(self, node, weight, factor):
        return weight * (factor[:, None] if node.attributes.get_int("transB", 0) else factor)
