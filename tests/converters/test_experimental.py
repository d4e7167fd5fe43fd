"""Operators that ONNX took back; oracle: onnxruntime, which still runs them."""

import numpy as np
import pytest
from onnx import parser
from tvm_ext.frontend import load, unsupported

from tests.onnxruntime_oracle import check_against_onnxruntime, operands

RNG, data, _ = operands(7)


def check(*args, **options):
    check_against_onnxruntime(*args, domain="", opset=7, **options)


@pytest.mark.parametrize(
    "op_type, attributes",
    [
        ("Affine", {"alpha": 0.5, "beta": -2.0}),
        ("Scale", {"scale": 3.0}),
        ("ScaledTanh", {"alpha": 1.7159, "beta": 0.6667}),
        ("ParametricSoftplus", {"alpha": 0.7, "beta": 1.3}),
    ],
)
def test_functions(op_type, attributes):
    check(op_type, [5 * data(2, 3, 7)], attributes, symbolic=(2, 7) if op_type == "Affine" else ())


def test_image_scaler():
    check("ImageScaler", [data(2, 3, 5, 7)], {"scale": 0.1, "bias": [1.0, -2.0, 0.5]})


@pytest.mark.parametrize("symbolic", [(), (6, 9)])
@pytest.mark.parametrize("scale", [None, [2, 3]])
def test_crop(scale, symbolic):
    attributes = {"border": [2, 1, 3, 1]} | ({"scale": scale} if scale else {})
    check("Crop", [data(2, 3, 6, 9)], attributes, symbolic=symbolic)


@pytest.mark.parametrize("constants", [(), (1, 2, 3)])
def test_dynamic_slice(constants):
    bounds = [np.array([-2, 1]), np.array([9, -1]), np.array([2, 0])]
    check("DynamicSlice", [data(4, 3, 5), *bounds], constants=constants)


def test_what_has_no_converter_says_what_to_do():
    model = parser.parse_model(
        '<ir_version: 4, opset_import: ["" : 7]> g (float[2] x) => (float[2] y) '
        "{ y = GivenTensorFill <values = [1.0]> (x) }"
    )
    (node,) = unsupported(load(model))
    assert "initializer" in node.reason
