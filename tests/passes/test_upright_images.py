"""Images of one column, which are convolved as rows."""

import re

import pytest

from .test_few_filters import check, convolution


@pytest.mark.parametrize("target", ["llvm", "llvm -mcpu=core-avx2"])
@pytest.mark.parametrize("symbolic", [[], [0], [2], [0, 2]])
@pytest.mark.parametrize(
    ("x", "filters", "window", "attributes"),
    [
        ((1, 32, 61, 1), 48, (5, 1), {}),
        ((2, 24, 37, 1), 17, (3, 1), {"pads": [2, 0, 1, 0], "strides": [2, 1]}),
        ((3, 16, 40, 1), 16, (4, 1), {"group": 16, "dilations": [3, 5], "pads": [4, 0, 0, 0]}),
        ((1, 32, 19, 1), 64, (3, 1), {"group": 2, "strides": [1, 3], "auto_pad": "SAME_UPPER"}),
    ],
)
def test_columns_are_rows(x, filters, window, attributes, symbolic, target):
    built = check(*convolution(x, filters, window, symbolic, **attributes), target=target)
    # [images, blocks of channels, rows, columns, channels]
    assert re.search(
        r"cls.\w*conv2d\w*, .*out_ty=R.Tensor\(\(\w+, \d+, 1, ", built.sources()["select"]
    )


def test_a_window_wider_than_the_column_stays():
    model, feeds = convolution((1, 16, 20, 1), 16, (3, 3), pads=[1, 1, 1, 1])
    assert "R.reshape" not in check(model, feeds).sources()["select"]
