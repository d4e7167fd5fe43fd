"""Feature preparation of ai.onnx.ml; oracles: onnxruntime, numpy."""

from functools import partial

import numpy as np
import pytest
from onnx import numpy_helper

from tests.onnxruntime_oracle import check_against_onnxruntime, contrib_model
from tests.oracle import check_node
from tvm_ext import convert_and_build
from tvm_ext.errors import ConversionError

RNG = np.random.default_rng(0)
NAN = float("nan")
check = partial(check_against_onnxruntime, domain="ai.onnx.ml")


@pytest.mark.parametrize("shape", [(7,), (3, 7), (2, 3, 7)])
def test_array_feature_extractor(shape):
    x, indices = RNG.normal(size=shape).astype("float32"), np.array([[3, 0, 3, 6]])
    check("ArrayFeatureExtractor", [x, indices])


def test_binarizer():
    x = np.array([[-1, 0.5, 0.25, 2]], "float32")
    check("Binarizer", [x], {"threshold": 0.25})


def test_imputer():
    x = np.array([[1, NAN, 3], [NAN, 0, NAN]], "float32")
    check("Imputer", [x], {"imputed_value_floats": [7.0, 8, 9], "replaced_value_float": NAN})
    check("Imputer", [x], {"imputed_value_floats": [7.0]})
    check("Imputer", [np.array([[1, -1, 3]])], {"imputed_value_int64s": [7, 8, 9],
                                                "replaced_value_int64": -1})  # fmt: skip


@pytest.mark.parametrize("norm", ["MAX", "L1", "L2"])
def test_normalizer(norm):
    x = np.concatenate([RNG.uniform(size=(4, 5)), np.zeros((1, 5))]).astype("float32")
    check("Normalizer", [x], {"norm": norm}, symbolic=True)
    check("Normalizer", [np.array([[3, 4, 0]])], {"norm": norm}, types=["float32"])


def test_scaler():
    x = RNG.integers(-9, 9, (3, 4))
    attributes = {"offset": [1.0, 2, 3, 4], "scale": [0.5, 2, 1, 3]}
    check("Scaler", [x], attributes, types=["float32"])
    check("Scaler", [x], {"offset": [1.0], "scale": [0.5]}, types=["float32"])


def test_feature_vectorizer():
    check("FeatureVectorizer", [RNG.integers(0, 9, (3, 2)), RNG.integers(0, 9, (3, 4))],
          {"inputdimensions": [2, 5]}, types=["float32"])  # fmt: skip


def test_one_hot_encoder():
    check("OneHotEncoder", [np.array([[3, 1], [7, 9]])], {"cats_int64s": [1, 3, 7], "zeros": 1},
          types=["float32"])  # fmt: skip


@pytest.mark.parametrize("size", [1, 4, 5])
def test_label_encoder_of_numbers(size):
    keys = RNG.permutation(9)[:size]
    x = RNG.integers(-2, 11, (3, 7))
    attributes = {"keys_int64s": keys.tolist(), "values_floats": RNG.normal(size=size).tolist(),
                  "default_float": -0.5}  # fmt: skip
    check("LabelEncoder", [x], attributes, version=2, types=["float32"])


def test_label_encoder_of_nan_and_tensors():
    x = np.array([[1.5, NAN], [-3, 2]], "float32")
    attributes = {"keys_floats": [NAN, 1.5, -3.0], "values_int64s": [7, 8, 9], "default_int64": 4}
    check("LabelEncoder", [x], attributes, version=4, types=["int64"])
    tensor = numpy_helper.from_array
    attributes = {"keys_tensor": tensor(np.array([2.5, NAN])),
                  "values_tensor": tensor(np.array([5, -6], "int16")),
                  "default_tensor": tensor(np.array([3], "int16"))}  # fmt: skip
    check_node("LabelEncoder", [np.array([NAN, 2.5, 1])], attributes, domain="ai.onnx.ml", opset=4,
               expected=[np.array([-6, 5, 3], "int16")])  # fmt: skip


def test_what_makes_maps_is_refused_with_advice():
    model = contrib_model("ZipMap", [np.zeros((1, 2), "float32")], {"classlabels_int64s": [0, 1]},
                          domain="ai.onnx.ml")  # fmt: skip
    with pytest.raises(ConversionError, match="zipmap"):
        convert_and_build(model, "llvm")
