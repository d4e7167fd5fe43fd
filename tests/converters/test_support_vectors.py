"""Support vector machines; oracle: onnxruntime."""

from functools import partial

import numpy as np
import pytest

from tests.onnxruntime_oracle import check_against_onnxruntime

RNG = np.random.default_rng(0)
TRANSFORMS = ["NONE", "LOGISTIC", "SOFTMAX", "SOFTMAX_ZERO"]
check = partial(check_against_onnxruntime, domain="ai.onnx.ml", types=["int64", "float32"])


def numbers(*shape):
    return RNG.normal(size=shape).astype("float32").ravel().tolist()


def machine(counts, **more):
    pairs, supports = len(counts) * (len(counts) - 1) // 2, sum(counts)
    return {
        "classlabels_ints": [10, 20, 30, 40][: len(counts)],
        "rho": numbers(pairs),
        "kernel_type": "RBF",
        "kernel_params": [0.5, 0.1, 2.0],
        "coefficients": numbers(len(counts) - 1, supports),
        "support_vectors": numbers(supports, 3),
        "vectors_per_class": counts,
        **more,
    }


@pytest.mark.parametrize(
    "counts, transform",
    [*(([2, 1], transform) for transform in TRANSFORMS), ([2, 1, 2], "SOFTMAX"),
     ([1, 3, 1, 2], "NONE")],
)  # fmt: skip
def test_classifier(counts, transform):
    x = RNG.normal(size=(7, 3)).astype("float32")
    check("SVMClassifier", [x], machine(counts, post_transform=transform), outputs=2)


@pytest.mark.parametrize("counts", [[2, 1], [1, 3, 1, 2]])
def test_classifier_with_probabilities(counts):
    x, pairs = RNG.normal(size=(7, 3)).astype("float32"), len(counts) * (len(counts) - 1) // 2
    attributes = machine(counts, prob_a=numbers(pairs), prob_b=numbers(pairs))
    check("SVMClassifier", [x], attributes, outputs=2, rtol=1e-4)


LINEAR = {"kernel_type": "LINEAR", "kernel_params": [0.0] * 3}


@pytest.mark.parametrize("transform", TRANSFORMS)
def test_linear_classifier(transform):
    x = RNG.integers(-3, 4, (5, 3))
    attributes = {"classlabels_ints": [3, 1, 2], "coefficients": numbers(3, 3), "rho": [0.25]}
    check("SVMClassifier", [x], attributes | LINEAR | {"post_transform": transform}, outputs=2)


@pytest.mark.parametrize("kernel", ["LINEAR", "POLY", "RBF", "SIGMOID"])
def test_regressor(kernel):
    x = RNG.normal(size=(5, 3)).astype("float32")
    attributes = {"n_supports": 4, "support_vectors": numbers(4, 3), "coefficients": numbers(4),
                  "rho": [0.5], "kernel_type": kernel,
                  "kernel_params": [0.3, 0.2, 3.0]}  # fmt: skip
    check("SVMRegressor", [x], attributes, types=["float32"])


def test_one_class():
    x = RNG.normal(size=(9, 3)).astype("float32")
    attributes = {"coefficients": numbers(3), "rho": [0.1], "one_class": 1, "n_supports": 0}
    check("SVMRegressor", [x], attributes | LINEAR, types=["float32"])
