"""A small network with something for the accelerator, and something that it cannot compute."""

from math import prod

import numpy as np
import onnx
from onnx import numpy_helper, parser

__all__ = ["small_cnn"]

_TEXT = """
<ir_version: 9, opset_import: ["" : 17]>
small_cnn (float[1, 3, 64, 64] image) => (float[1, 10] logits) {
    stem_conv = Conv <pads = [1, 1, 1, 1]> (image, stem_w, stem_b)
    stem = Relu (stem_conv)
    pooled = MaxPool <kernel_shape = [3, 3], strides = [2, 2], pads = [1, 1, 1, 1]> (stem)
    first_conv = Conv <pads = [1, 1, 1, 1]> (pooled, first_w, first_b)
    first = Relu (first_conv)
    second_conv = Conv <pads = [1, 1, 1, 1]> (first, second_w, second_b)
    sum = Add (second_conv, pooled)
    block = Relu (sum)
    wide = Conv <strides = [2, 2], pads = [1, 1, 1, 1]> (block, wide_w, wide_b)
    gated = HardSwish (wide)
    narrow_conv = Conv (gated, narrow_w, narrow_b)
    narrow = Relu (narrow_conv)
    mean = GlobalAveragePool (narrow)
    flat = Flatten (mean)
    logits = Gemm <transB = 1> (flat, classifier_w, classifier_b)
}
"""
_WEIGHTS = {
    "stem": (24, 3, 3, 3),
    "first": (24, 24, 3, 3),
    "second": (24, 24, 3, 3),
    "wide": (96, 24, 3, 3),
    "narrow": (40, 96, 1, 1),
    "classifier": (10, 40),
}


def small_cnn(seed: int = 0) -> onnx.ModelProto:
    """The network with seeded random weights: ``image[1, 3, 64, 64]`` -> ``logits[1, 10]``."""
    random = np.random.default_rng(seed)
    model = parser.parse_model(_TEXT)
    for name, shape in _WEIGHTS.items():
        weight = random.standard_normal(shape) * np.sqrt(2 / prod(shape[1:]))
        bias = random.standard_normal(shape[0]) / 10
        for suffix, array in (("w", weight), ("b", bias)):
            initializer = numpy_helper.from_array(array.astype("float32"), f"{name}_{suffix}")
            model.graph.initializer.append(initializer)
    return model
