"""Linear models; oracle: onnxruntime."""

from functools import partial

import numpy as np
import pytest

from tests.onnxruntime_oracle import check_against_onnxruntime, contrib_model
from tvm_ext import convert_and_build
from tvm_ext.errors import ConversionError

check = partial(check_against_onnxruntime, domain="ai.onnx.ml")


@pytest.mark.parametrize("transform", ["NONE", "LOGISTIC", "SOFTMAX", "SOFTMAX_ZERO"])
@pytest.mark.parametrize("classes", [1, 2, 3])
def test_classifier(classes, transform):
    rng = np.random.default_rng(classes)
    x = (2 * rng.normal(size=(7, 5))).astype(["float32", "float64", "int64"][classes - 1])
    attributes = {
        "coefficients": rng.normal(size=classes * 5).tolist(),
        "intercepts": rng.normal(size=classes).tolist(),
        "classlabels_ints": [7, -2, 5][: max(classes, 2)],
        "post_transform": transform,
    }
    check("LinearClassifier", [x], attributes, outputs=2, types=["int64", "float32"])


@pytest.mark.parametrize("transform", ["NONE", "LOGISTIC", "SOFTMAX", "SOFTMAX_ZERO", "PROBIT"])
def test_regressor(transform):
    rng = np.random.default_rng(0)
    x = rng.uniform(0, 0.3, (3, 4)).astype("float32")
    attributes = {"coefficients": rng.uniform(0, 0.4, 8).tolist(), "intercepts": [0.25, 0.25],
                  "targets": 2, "post_transform": transform}  # fmt: skip
    check("LinearRegressor", [x], attributes, symbolic=True)


def test_labels_that_are_strings_are_refused():
    model = contrib_model("LinearClassifier", [np.zeros((1, 2), "float32")],
                          {"coefficients": [1.0, 2.0], "classlabels_strings": ["a", "b"]},
                          domain="ai.onnx.ml", outputs=2, types=["object", "float32"])  # fmt: skip
    with pytest.raises(ConversionError, match="labels that are strings"):
        convert_and_build(model, "llvm")
