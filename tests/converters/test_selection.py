"""Operators whose number of results depends on the data."""

import numpy as np
import pytest

from tests.onnxruntime_oracle import check_against_onnxruntime
from tests.oracle import check_node

RNG = np.random.default_rng(0)
X = RNG.integers(-2, 3, (3, 5, 2)).astype("float32")


@pytest.mark.parametrize("x", [X, X > 0, X.astype("int8"), X[:0], np.zeros((2, 2), "float32")])
def test_nonzero(x):
    check_node("NonZero", [x], expected=[np.stack(np.nonzero(x))])


def test_nonzero_of_symbolic_shape():
    check_node("NonZero", [X], symbolic=True)


def test_compress():
    keep = np.array([True, False, True])
    check_node("Compress", [X, keep])
    check_node("Compress", [X, keep], {"axis": -2})
    check_node("Compress", [X, ~(keep | True)], {"axis": 0}, symbolic=True)


@pytest.mark.parametrize("in_order", [0, 1])
@pytest.mark.parametrize("axis", [None, 1])
def test_unique(in_order, axis):
    x = np.concatenate([X, X[:, :2]], 1)
    attributes = {"sorted": in_order} | ({} if axis is None else {"axis": axis})
    values, first, inverse, counts = np.unique(x, True, True, True, axis=axis)
    order = np.arange(len(first)) if in_order else np.argsort(first)
    expected = [
        values.take(order, axis or 0),
        first[order],
        np.argsort(order)[inverse.ravel()],
        counts[order],
    ]
    check_node("Unique", [x], attributes, outputs=4, expected=expected)


def test_unique_of_integers_and_bools():
    x = RNG.integers(0, 9, 40)
    values, first, inverse, counts = np.unique(x, True, True, True)
    check_node("Unique", [x], outputs=4, expected=[values, first, inverse, counts])
    check_node("Unique", [x > 4], outputs=1, expected=[np.unique(x > 4)])


def boxes(*corners):
    return np.array([corners], "float32")


def test_non_max_suppression():
    given = boxes([0, 0, 1, 1], [0, 0.1, 1, 1.1], [1, 0.9, 0, -0.1], [0, 10, 1, 11], [0, 5, 0, 6])
    scores = np.array([[[0.9, 0.75, 0.6, 0.95, 0.3], [0.1, 0.2, 0.3, 0.4, 0.5]]], "float32")
    limits = [np.array([3]), np.float32([0.5]), np.float32([0.25])]
    expected = [[0, 0, 3], [0, 0, 0], [0, 0, 4], [0, 1, 4], [0, 1, 3], [0, 1, 2]]
    check_node("NonMaxSuppression", [given, scores, *limits], expected=[np.array(expected)])
    check_node("NonMaxSuppression", [given, scores], expected=[np.zeros((0, 3), "int64")])


def test_non_max_suppression_of_centred_boxes():
    given = boxes([0.5, 0.5, 1, 1], [0.5, 0.6, 1, 1], [0.5, 10.5, 1, 1])
    scores = np.array([[[0.9, 0.75, 0.6]]], "float32")
    check_node(
        "NonMaxSuppression",
        [given, scores, np.array([2]), np.float32([0.5])],
        {"center_point_box": 1},
        expected=[np.array([[0, 0, 0], [0, 0, 2]])],
    )


def test_non_max_suppression_of_many_boxes():
    # Several blocks of boxes that stay, equal scores, equal and empty boxes, more classes than one.
    rng = np.random.default_rng(3)
    centres, sizes = rng.uniform(0, 100, (2, 2, 300, 2)).astype("float32") * [[[[1]]], [[[0.2]]]]
    given = np.concatenate([centres - sizes, centres + sizes], -1).astype("float32")
    given[:, 7] = given[:, 5]
    given[:, 9, 2:] = given[:, 9, :2]
    scores = rng.integers(0, 50, (2, 3, 300)).astype("float32")
    for most, overlap, lowest in (200, 0.5, None), (70, 0.1, 20.0):
        limits = [np.array([most]), np.float32([overlap])]
        limits += [] if lowest is None else [np.float32([lowest])]
        check_against_onnxruntime(
            "NonMaxSuppression", [given, scores, *limits], domain="", types=["int64"],
            constants=(2, 3, 4), symbolic=() if lowest is None else {2, 3, 300},
        )  # fmt: skip


def test_nan_is_not_zero():
    check_node("NonZero", [np.array([0, np.nan, 2, -0.0], "f4")], expected=[np.array([[1, 2]])])
