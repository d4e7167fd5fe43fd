"""Pad in all modes and CenterCropPad."""

import numpy as np
import pytest

from tests.oracle import check_node

X = np.random.default_rng(0).normal(size=(3, 5, 4)).astype("float32")


def ints(*values):
    return np.array(values, "int64")


@pytest.mark.parametrize("mode", ["constant", "reflect", "edge", "wrap"])
def test_pad(mode):
    pads, value = ints(1, 0, 2, 0, 2, 1), np.float32(2.5)
    check_node("Pad", [X, pads, value], {"mode": mode}, constants=[1])
    check_node("Pad", [X, pads, value], {"mode": mode}, constants=[1], symbolic=True)
    check_node("Pad", [X, pads], {"mode": mode})
    # More than the axis holds, on one axis.
    check_node("Pad", [X, ints(9, 7), None, ints(-1)], {"mode": mode}, constants=[1, 3])
    check_node("Pad", [X, ints(2, 7), None, ints(1)], {"mode": mode})


@pytest.mark.parametrize("constants", [[1], []])
def test_negative_pads_crop(constants):
    expected = np.pad(X[:, 1:-1, 2:], ((0, 0), (0, 0), (0, 3)))
    check_node("Pad", [X, ints(0, -1, -2, 0, -1, 3)], constants=constants, expected=[expected])


def test_pad_of_other_types_and_opsets():
    check_node("Pad", [X], {"pads": [0, 1, 2, 0, 0, 1], "value": 3.0}, opset=10)
    check_node("Pad", [X[:0], ints(1, 0, 0, 0, 0, 0)])
    flags = X > 0
    check_node(
        "Pad", [flags, ints(1, 0, 0, 0, 0, 0)], expected=[np.pad(flags, ((1, 0), (0, 0), (0, 0)))]
    )


def test_center_crop_pad():
    check_node("CenterCropPad", [X, ints(4, 2, 7)], constants=[1])
    check_node("CenterCropPad", [X, ints(2, 2, 1)])
    check_node("CenterCropPad", [X, ints(6, 2)], {"axes": [-1, 0]}, constants=[1], symbolic=True)


@pytest.mark.parametrize("constants", [[1], []])
@pytest.mark.parametrize("pads", [(-1, 2), (2, -1), (9, -3), (-2, -1)])
def test_what_is_cropped_does_not_wrap_around(pads, constants):
    x = np.arange(5, dtype="float32")
    kept = x[max(-pads[0], 0) : len(x) + min(pads[1], 0)]
    expected = np.pad(kept, [max(pad, 0) for pad in pads], "wrap")
    check_node("Pad", [x, ints(*pads)], {"mode": "wrap"}, constants=constants,
               expected=[expected])  # fmt: skip
