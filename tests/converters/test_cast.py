"""Casts between all element types; oracle: ml_dtypes."""

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper, parser

from tests.oracle import check_node
from tvm_ext import convert_and_build

X = np.array([-9.5, -3, -1.5, -0.25, 0, 0.3, 0.75, 1, 2.5, 3.5, 5, 7, 100], "float32")
NARROW = ["int2", "int4", "uint2", "uint4", "float4_e2m1fn", "float6_e2m3fn", "float6_e3m2fn",
          "float8_e8m0fnu"]  # fmt: skip


def number(name):
    return int(helper.np_dtype_to_tensor_dtype(np.dtype(getattr(ml_dtypes, name, name))))


@pytest.mark.parametrize("name", NARROW)
def test_narrow_types_there_and_back(name):
    narrow = getattr(ml_dtypes, name)
    x = np.abs(X) if "e8m0" in name else X
    if "e8m0" in name:
        want = numpy_helper.to_float8e8m0(x)
    else:
        wrapped = (
            x.astype("int64") if "int" in name else x
        )  # numpy leaves what is out of range open
        want = wrapped.astype(narrow)
    check_node("Cast", [x], {"to": number(name)}, expected=[want.astype("float32")], rtol=0)
    check_node("Cast", [want], {"to": onnx.TensorProto.FLOAT}, rtol=0,
               expected=[want.astype("float32")])  # fmt: skip


ROUNDED = ["bfloat16", "float16", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2",
           "float8_e5m2fnuz"]  # fmt: skip


@pytest.mark.parametrize("level", [0, 3])
def test_fused_casts_there_and_back_round(level):
    """A kernel of both casts would compute with what has not been rounded."""
    rows = [
        f"q{k} = Cast<to={number(name)}>(x) z{k} = Cast<to=1>(q{k}) y{k} = Add(z{k}, x)"
        for k, name in enumerate(ROUNDED)
    ]
    outputs = ", ".join(f"float[{X.size}] y{k}" for k in range(len(ROUNDED)))
    head = f'<ir_version: 10, opset_import: ["": 21]> g (float[{X.size}] x) => ({outputs})'
    built = convert_and_build(parser.parse_model(f"{head} {{ {' '.join(rows)} }}"), opt_level=level)
    x = (X * np.float32(1.37)).astype("float32")
    for name, result in zip(ROUNDED, built(x), strict=True):
        want = x.astype(getattr(ml_dtypes, name, name)).astype("float32") + x
        np.testing.assert_array_equal(result, want, name)


@pytest.mark.parametrize("name", NARROW)
def test_narrow_types_that_only_move(name):
    x = np.arange(6).astype(getattr(ml_dtypes, name)).reshape(2, 3)
    check_node("Transpose", [x], expected=[x.T.astype("float32")], opset=28, opt_levels=(0, 3))


@pytest.mark.parametrize("mode", ["up", "down", "nearest"])
def test_rounding_of_exponents(mode):
    x = np.array([0, 1e-45, 1, 1.2, 1.5, 1.75, 3e38, np.nan], "float32")
    attributes = {"to": number("float8_e8m0fnu"), "round_mode": mode}
    want = numpy_helper.to_float8e8m0(x, round_mode=mode).astype("float32")
    check_node("Cast", [x], attributes, expected=[want], rtol=0, atol=0)


@pytest.mark.parametrize("level", [0, 1])
def test_cast_like_without_saturation(level):
    x, like = np.array([1e6, 1], "float32"), np.zeros(0, ml_dtypes.float8_e4m3fn)
    check_node("CastLike", [x, like], {"saturate": 0}, opt_levels=(level,),
               expected=[np.array([np.nan, 1], "float32")])  # fmt: skip


def test_bits_of_bools():
    x = np.array([True, False])
    check_node("BitCast", [x], {"to": onnx.TensorProto.UINT8}, expected=[x.view("uint8")])


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_everything_but_zero_is_true(dtype):
    x = np.array([np.nan, -np.inf, 0, -0.0, 0.5], dtype)
    check_node("Cast", [x], {"to": onnx.TensorProto.BOOL},
               expected=[np.array([True, True, False, False, True])])  # fmt: skip
