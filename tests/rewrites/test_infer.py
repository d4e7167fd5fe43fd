"""Shapes inferred by onnx, and what is hidden from it."""

import onnx_ir as ir
from onnx import parser
from tvm_ext.frontend.rewrites.infer import infer_by_onnx


def test_beside_a_pooling_that_onnx_misjudges_shapes_are_inferred():
    # The window at 6 starts in the end pad: 3 columns, which onnx counts as 4 before opset 22.
    model = ir.from_proto(
        parser.parse_model("""
        <ir_version: 8, opset_import: ["": 17]>
        graph (float[N, 3, 5, 5] x) => (float[?, ?, ?, ?] pooled, float[?, ?] rows)
        <int64[2] shape = {-1, 25}>
        { pooled = AveragePool <kernel_shape = [2, 2], strides = [2, 2], pads = [0, 0, 1, 1],
                                ceil_mode = 1> (x)
          rows = Reshape (x, shape) }""")
    )
    infer_by_onnx(model)
    pooled, rows = model.graph.outputs
    assert rows.shape[1] == 25
    assert not pooled.shape.is_static(2)
    assert {node.domain for node in model.graph} == {""}
    assert set(model.opset_imports) == {""}
