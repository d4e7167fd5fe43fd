"""Linear models; oracle: onnxruntime."""

from functools import partial

import numpy as np
import pytest

from tests.onnxruntime_oracle import check_against_onnxruntime

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
