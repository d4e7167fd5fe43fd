"""TopK; oracle: onnx.reference."""

import ml_dtypes
import numpy as np
import pytest
from onnx import parser

from tests.oracle import check_model, check_node

X = np.random.default_rng(0).normal(size=(3, 5, 4)).astype("float32")


@pytest.mark.parametrize("constants, symbolic", [((1,), False), ((1,), True), ((), False)])
@pytest.mark.parametrize("k", [0, 3, 5])
def test_top_k(k, constants, symbolic):
    check_node("TopK", [X, np.array([k])], {"axis": 1, "largest": 0}, outputs=2,
               constants=constants, symbolic=symbolic)  # fmt: skip


@pytest.mark.parametrize(
    ("shape", "axis", "k", "dtype", "largest"),
    [
        ((2, 157), 1, 5, "float32", 1),
        ((130, 3), 0, 7, "float32", 0),
        ((2, 200, 3), 1, 1, "int32", 1),
        ((1, 97), -1, 12, "int8", 0),
        ((3, 1031), -1, 8, "float32", 1),
        # These are sorted: many, or of 64 bits, and of few digits or of many.
        ((2, 157), 1, 80, "float32", 1),
        ((700,), 0, 600, "float64", 0),
        ((3, 1031, 2), 1, 300, "int64", 1),
        ((1, 1), 0, 1, "int64", 1),
    ],
)
def test_equal_elements(shape, axis, k, dtype, largest):
    """The first of equals comes first, and zeros of both signs are equal."""
    x = np.random.default_rng(0).integers(-3, 4, shape).astype(dtype)
    x[x == 0] *= -1
    _check_sorted(x, axis, k, largest, constants=(1,))
    _check_sorted(x, axis, k, largest, constants=(1,), symbolic=True)


def test_digits_of_any_place():
    """Numbers that differ in their sign, or in their highest or lowest bits alone; k at run time.

    Rows of more than one size share the arrays that they are sorted in.
    """
    rng = np.random.default_rng(0)
    bits = rng.integers(-(2**63), 2**63, (2, 603), "int64") >> rng.integers(0, 64, (2, 603))
    _check_sorted(bits, 1, 400, 1, constants=(1,))
    _check_sorted(bits, 1, 15, 0, constants=(1,))  # of 37 blocks and some more
    x = rng.standard_normal((3, 530)).astype("float32") * 10.0 ** rng.integers(-38, 38, (3, 530))
    x = x.astype("float32")
    x[:, ::50] = np.nan, np.inf, -np.inf, 0, 1e-45, -1e-45, 3e38, -3e38, 1, np.nan, -np.nan
    _check_sorted(x.astype("float64"), 1, 16, 1, constants=(1,))
    _check_sorted(x, 1, 200, 1)
    _check_sorted(x, 1, 530, 0, symbolic=True)


def _check_sorted(x, axis, k, largest, **options):
    """Against numpy; NaN is the most extreme."""
    along = np.where(x == 0, 0, x)
    if largest:
        along = ~along if x.dtype.kind == "i" else -along
    order = np.lexsort((np.where(np.isnan(x), 0, along), ~np.isnan(x)), axis=axis)
    places = order.take(np.arange(k), axis)
    want = [np.take_along_axis(x, places, axis), places]
    check_node("TopK", [x, np.array([k])], {"axis": axis, "largest": largest}, outputs=2,
               expected=want, rtol=0, opt_levels=(0, 1), **options)  # fmt: skip


def test_unsigned_numbers_sort_above_signed_ones():
    x = np.array([1, 2**63, 2**64 - 1, 0], "uint64")
    want = [np.array([2**64 - 1, 2**63], "uint64"), np.array([2, 1])]
    check_node("TopK", [x, np.array([2])], constants=(1,), outputs=2, expected=want, rtol=0)


@pytest.mark.parametrize("dtype", ["int16", "uint16", "uint32", "bfloat16"])
def test_types_that_the_sort_does_not_know(dtype):
    """bfloat16 was sorted as if its bits were float16's; the others were refused."""
    x = (
        np.random.default_rng(0)
        .permutation(40)
        .reshape(4, 10)
        .astype(getattr(ml_dtypes, dtype, dtype))
    )
    places = np.argsort(-x.astype("int64"), axis=1)[:, :3]
    want = [np.take_along_axis(x, places, 1), places]
    check_node("TopK", [x, np.array([3])], outputs=2, expected=want, rtol=0)


def test_the_extremes_of_no_rows_of_symbolic_number():
    graph = "g (float[n, 0, 4] x) => (int64[n, 0] y) { y = ArgMin <axis = -1, keepdims = 0> (x) }"
    model = parser.parse_model(f'<ir_version: 10, opset_import: ["": 13]> {graph}')
    check_model(model, {"x": np.zeros((2, 0, 4), "f4")}, expected=[np.zeros((2, 0), "int64")])
