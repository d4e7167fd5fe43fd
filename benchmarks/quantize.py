"""Examples as 8-bit models, as onnxruntime's ``quantize_static`` writes them.

QDQ nodes; weights int8, per channel; activations uint8, with calibrated minimum and maximum.
"""

import tempfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx
from onnxruntime.quantization import (
    CalibrationDataReader,
    QuantFormat,
    QuantType,
    quantize_static,
)
from onnxruntime.quantization.shape_inference import quant_pre_process

__all__ = ["NotQuantizedError", "quantized"]

_PRODUCTS = {"Conv", "ConvTranspose", "MatMul", "Gemm"}


class NotQuantizedError(Exception):
    """No product of the model became one of 8 bits."""


class _Once(CalibrationDataReader):
    """One set of inputs."""

    def __init__(self, feeds: Mapping[str, np.ndarray]):
        self._left = [dict(feeds)]

    def get_next(self) -> dict[str, np.ndarray] | None:
        return self._left.pop() if self._left else None


def quantized(model: onnx.ModelProto, feeds: Mapping[str, np.ndarray]) -> onnx.ModelProto:
    """``model`` in 8 bits, calibrated on ``feeds``; inputs and outputs stay as they are.

    Raises:
        NotQuantizedError: onnxruntime quantises no Conv, ConvTranspose, MatMul or Gemm of it.
    """
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder, "float.onnx"), Path(folder, "int8.onnx")
        quant_pre_process(model, source, skip_symbolic_shape=True)  # shapes are static
        quantize_static(
            source,
            target,
            _Once(feeds),
            quant_format=QuantFormat.QDQ,
            per_channel=True,
            activation_type=QuantType.QUInt8,
            weight_type=QuantType.QInt8,
        )
        result = onnx.load(target)
    if not _quantized_products(result.graph):
        raise NotQuantizedError("quantize_static leaves all its products float32")
    return result


def _quantized_products(graph: onnx.GraphProto) -> int:
    dequantized = {
        name for node in graph.node if node.op_type == "DequantizeLinear" for name in node.output
    }
    return sum(
        node.op_type in _PRODUCTS and dequantized.issuperset(node.input[:2]) for node in graph.node
    )
