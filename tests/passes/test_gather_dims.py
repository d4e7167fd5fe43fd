"""Dims that a group of fused kernels uses as values and as sizes."""

import numpy as np
import onnxruntime
import pytest
from onnx import parser

from tvm_ext import convert_and_build

POSITIONS = """<ir_version: 8, opset_import: ["" : 17]>
g (int64[m] x, float[past,total] cache) => (int64[m] y) {
  zero = Constant<value = int64 {0}>()
  one = Constant<value = int64 {1}>()
  sizes = Shape(cache)
  past = Gather(sizes, zero)
  total = Gather(sizes, one)
  shape = Shape(x)
  length = Gather(shape, zero)
  positions = Range(zero, length, one)
  later = Add(positions, past)
  y = Mul(later, total)
}"""


@pytest.fixture(scope="module")
def positions():
    return convert_and_build(parser.parse_model(POSITIONS), "llvm")


@pytest.mark.parametrize(("length", "past", "total"), [(4, 3, 2), (1, 0, 7)])
def test_positions_of_a_decoder_behind_its_cache(positions, length, past, total):
    """Ranges of one size, shifted by another: as GPT-2 computes what positions it embeds."""
    feeds = {"x": np.zeros(length, "int64"), "cache": np.zeros((past, total), "float32")}
    session = onnxruntime.InferenceSession(parser.parse_model(POSITIONS).SerializeToString())
    np.testing.assert_array_equal(positions.run(None, feeds)[0], session.run(None, feeds)[0])
