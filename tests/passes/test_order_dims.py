"""Dims that follow from values are known before kernels are fused, also in branches."""

import numpy as np
from onnx import parser

from tests.oracle import check_model

# As torchvision's detectors have it: of the boxes of two levels that are good enough, if there are
# any, some are chosen. Kernels are given both sizes of the sum.
CHOSEN = """<ir_version: 8, opset_import: ["": 17]>
chosen (float[a, 4] boxes, float[a] scores, float least) => (int64[n] y)
<int64[3] shape = {1, -1, 4}, int64[3] flat = {1, 1, -1}, int64 last = {2}, int64[1] one = {1}> {
  good = Greater (scores, least)
  bad = Not (good)
  first_boxes = Compress <axis = 0> (boxes, good)
  other_boxes = Compress <axis = 0> (boxes, bad)
  good_boxes = Concat <axis = 0> (first_boxes, other_boxes)
  first_scores = Compress <axis = 0> (scores, good)
  other_scores = Compress <axis = 0> (scores, bad)
  good_scores = Concat <axis = 0> (first_scores, other_scores)
  highest = ReduceMax <keepdims = 0> (scores)
  none = Less (highest, least)
  y = If (none) <
    then_branch = empty () => (int64[n] a) { a = Constant <value_ints = [7]> () },
    else_branch = found () => (int64[n] b) {
      all_boxes = Reshape (good_boxes, shape)
      all_scores = Reshape (good_scores, flat)
      most = Constant <value_ints = [9]> ()
      overlap = Constant <value_floats = [0.5]> ()
      rows = NonMaxSuppression (all_boxes, all_scores, most, overlap)
      column = Gather <axis = 1> (rows, one)
      b = Squeeze (column, one)
    }>
}"""


def test_a_branch_that_computes_a_size_and_reads_what_is_of_it():
    model = parser.parse_model(CHOSEN)
    rng = np.random.default_rng(0)
    corners = rng.random((6, 2), "float32")
    feeds = {
        "boxes": np.concatenate([corners, corners + 0.3], 1),
        "scores": rng.random(6, "float32"),
    }
    for least in (0.2, 0.9, 2.0):
        given = feeds | {"least": np.float32(least)}
        check_model(model, given, opt_levels=(0, 1, 3))
