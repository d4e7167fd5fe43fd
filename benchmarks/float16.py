"""Examples as float16 models, as onnxruntime's converter writes them."""

import onnx
from onnxruntime.transformers.float16 import convert_float_to_float16

__all__ = ["halved"]


def halved(model: onnx.ModelProto) -> onnx.ModelProto:
    """``model`` in float16; inputs and outputs stay as they are."""
    return convert_float_to_float16(model, keep_io_types=True)
