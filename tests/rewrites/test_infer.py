"""Shapes inferred by onnx, and what is hidden from it."""

import onnx_ir as ir
import pytest
from onnx import parser
from tvm_ext.frontend.rewrites.infer import infer_by_onnx, infer_shapes


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


@pytest.mark.parametrize(
    ("operand", "sizes", "found"),
    [
        ("N, 64, 256", "n, minus, eight, eight", ["N", 256, 8, 8]),
        ("N, 64, M, 4", "n, eight, minus, m", ["N", 8, 32, "M"]),
        ("N, 64, 256", "eight, minus, eight", [8, None, 8]),  # of N it keeps nothing
        ("N, 60, 7", "n, minus, eight", ["N", None, 8]),  # no whole number
    ],
)
def test_what_a_reshape_leaves_beside_symbols(operand, sizes, found):
    dims = ", ".join("?" for _ in found)
    model = ir.from_proto(
        parser.parse_model(f"""
        <ir_version: 8, opset_import: ["": 17]>
        graph (float[{operand}] x) => (float[{dims}] y)
        <int64[1] zero = {{0}}, int64[1] two = {{2}},
         int64[1] eight = {{8}}, int64[1] minus = {{-1}}>
        {{ s = Shape (x)  n = Gather (s, zero)  m = Gather (s, two)
           to = Concat <axis = 0> ({sizes})  r = Reshape (x, to)  y = Relu (r) }}""")
    )
    infer_shapes(model)
    for value in (model.graph.outputs[0], model.graph.outputs[0].producer().inputs[0]):
        got = [d if isinstance(d, int) else d.value for d in value.shape]
        assert [d for d, f in zip(got, found, strict=True) if f is not None] == [
            f for f in found if f is not None
        ]
        assert all(not isinstance(d, int) for d, f in zip(got, found, strict=True) if f is None)


@pytest.mark.parametrize(
    ("attributes", "last", "found"),
    [
        ("", 2, ["N", 24]),
        ("", 1, ["N", None]),
        (', keep_aspect_ratio_policy = "not_larger"', 2, [None, None]),
    ],
)
def test_what_a_resize_keeps_of_symbols(attributes, last, found):
    """As torch writes sizes: those of the operand first."""
    model = ir.from_proto(
        parser.parse_model(f"""
        <ir_version: 8, opset_import: ["": 18]>
        graph (float[N, 24, H, 7] x) => (float[?, ?, ?, ?] y)
        <int64[1] zero = {{0}}, int64[1] last = {{{last}}}, int64[{4 - last}] sizes = {{
            {", ".join(["16"] * (4 - last))} }}>
        {{ s = Shape (x)  first = Slice (s, zero, last)
           to = Concat <axis = 0> (first, sizes)
           y = Resize <mode = "nearest"{attributes}> (x, , , to) }}""")
    )
    infer_shapes(model)
    got = [d if isinstance(d, int) else d.value for d in model.graph.outputs[0].shape]
    for dim, want in zip(got, found, strict=False):
        assert dim == want if want is not None else dim not in ("N", 24)
