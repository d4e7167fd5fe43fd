"""Tensors without elements, also those of which sums and products have a result with elements."""

import numpy as np
import pytest
from onnx import numpy_helper, parser

from tests.oracle import check_model, check_node

RNG = np.random.default_rng(0)
LEVELS = 0, 2, 3


def data(*shape):
    return RNG.normal(size=shape).astype("float32")


def check(body, inputs, weights, expected, opset=18, symbolic=False):
    """Build ``body``, which makes ``y``, at each level and compare with ``expected``."""
    types = ", ".join(
        f"float[{', '.join(f'{name}{k}' if symbolic else str(n) for k, n in enumerate(a.shape))}]"
        f" {name}"
        for name, a in inputs.items()
    )
    model = parser.parse_model(
        f'<ir_version: 10, opset_import: ["" : {opset}]> g ({types}) => (float[a] y) {{ {body} }}'
    )
    model.graph.output[0].type.tensor_type.ClearField("shape")
    model.graph.initializer.extend(numpy_helper.from_array(a, n) for n, a in weights.items())
    check_model(model, inputs, opt_levels=LEVELS, expected=[expected])


def nothing(*shape):
    return np.zeros(shape, "float32")


WINDOWS = {
    "one row less than the window": ((2, 16, 2, 4), (16, 16, 3, 3), (2, 16, 0, 2)),
    "no rows": ((2, 16, 0, 4), (16, 16, 1, 1), (2, 16, 0, 4)),
    "one dim": ((2, 3, 1), (5, 3, 2), (2, 5, 0)),
    "three dims": ((2, 3, 1, 4, 5), (5, 3, 2, 3, 4), (2, 5, 0, 2, 2)),
    "channels one by one": ((2, 16, 2, 4), (16, 1, 3, 3), (2, 16, 0, 2)),
    "no filters": ((2, 16, 4, 4), (0, 16, 3, 3), (2, 0, 2, 2)),
    "no images": ((0, 16, 4, 4), (8, 16, 3, 3), (0, 8, 2, 2)),
}


@pytest.mark.parametrize("case", WINDOWS)
@pytest.mark.parametrize("constant", [True, False])
def test_convolutions_without_a_result(case, constant):
    x, w, result = WINDOWS[case]
    group = 16 if w[1] == 1 else 1
    body = f"a = Conv <group = {group}> (x, w) y = Relu (a)"
    inputs, weights = {"x": data(*x)}, {"w": data(*w)}
    given = (inputs, weights) if constant else (inputs | weights, {})
    check(body, *given, nothing(*result))


@pytest.mark.parametrize("symbolic", [False, True])
def test_sums_of_no_terms(symbolic):
    def same(*args):
        check(*args, symbolic=symbolic)

    b = data(4)
    same("y = Gemm (x, w, b)", {"x": data(5, 0)}, {"w": data(0, 4), "b": b}, np.tile(b, (5, 1)))
    same("y = MatMul (x, z)", {"x": data(2, 5, 0), "z": data(2, 0, 4)}, {}, nothing(2, 5, 4))
    same('y = Einsum <equation = "abc->a"> (x)', {"x": data(3, 4, 0)}, {}, nothing(3))
    same('y = Einsum <equation = "abc->ab"> (x)', {"x": data(3, 4, 0)}, {}, nothing(3, 4))
    same("y = GlobalAveragePool (x)", {"x": data(2, 4, 0, 3)}, {}, nothing(2, 4, 1, 1) + np.nan)
    bias = np.tile(b.reshape(1, 4, 1), (2, 1, 2))
    same("y = Conv (x, w, b)", {"x": data(2, 0, 4)}, {"w": data(4, 0, 3), "b": b}, bias)
    bias = np.tile(b.reshape(1, 4, 1, 1), (1, 1, 5, 5))
    weights = {"w": data(0, 4, 3, 3), "b": b}
    same("y = ConvTranspose (x, w, b)", {"x": data(1, 0, 3, 3)}, weights, bias)


@pytest.mark.parametrize("symbolic", [False, True])
def test_no_places(symbolic):
    x, places = data(2, 3), np.zeros((2, 0), "int64")
    check_node("GatherElements", [x, places], {"axis": 1}, symbolic=symbolic)
    check_node("Gather", [x, places], {"axis": 1}, symbolic=symbolic)


NORMS = [
    ("y = InstanceNormalization (x, s, s)", (2, 4, 0)),
    ("y = GroupNormalization <num_groups = 2> (x, s, s)", (2, 4, 0, 3)),
    ("y = LayerNormalization <axis = 2> (x, s)", (2, 0, 4)),
    ("y = MeanVarianceNormalization (x)", (2, 4, 0, 3)),
    ("y = LpNormalization <p = 1, axis = 1> (x)", (2, 0)),
]


@pytest.mark.parametrize("body, shape", NORMS)
def test_norms_of_nothing(body, shape):
    check(body, {"x": data(*shape)}, {"s": data(4)}, nothing(*shape), opset=21)


def test_a_batch_norm_that_trains_on_nothing():
    x, s = data(2, 3, 0, 5), data(3)
    expected = [x, *[np.full(3, np.nan, "float32")] * 2]
    check_node("BatchNormalization", [x, s, s, s, s], {"training_mode": 1}, outputs=3,
               expected=expected)  # fmt: skip


def test_windows_and_sizes_of_nothing():
    x = data(1, 2, 0, 4)
    pool = "y = AveragePool <kernel_shape = [3, 3], ceil_mode = 1, strides = [2, 2]> (x)"
    check(pool, {"x": x}, {}, nothing(1, 2, 0, 2), opset=22)
    scales = {"s": np.array([1, 1, 2, 2], "float32")}
    check('y = Resize <mode = "linear"> (x, , s)', {"x": x}, scales, nothing(1, 2, 0, 8))
    spread = 'y = ConvTranspose <auto_pad = "SAME_UPPER", strides = [2, 2]> (x, w)'
    check(spread, {"x": data(1, 1, 3, 3)}, {"w": data(1, 0, 3, 3)}, nothing(1, 0, 6, 6))


def test_losses_of_nothing():
    scores, classes = data(3, 5, 0), np.zeros((3, 0), "int64")
    for reduction, expected in ("sum", 0), ("mean", np.nan):
        check_node("NegativeLogLikelihoodLoss", [scores, classes], {"reduction": reduction},
                   expected=[np.float32(expected)], opt_levels=LEVELS)  # fmt: skip


def test_boxes_of_no_class():
    most = np.array([2])
    check_node("NonMaxSuppression", [data(1, 6, 4), data(1, 0, 6), most], opt_levels=LEVELS,
               expected=[np.zeros((0, 3), "int64")])  # fmt: skip


def test_queries_and_keys_that_are_not_there():
    q, k, mask = data(2, 3, 0, 8), data(2, 3, 8, 8), data(3, 0, 8)
    causal = "y = Attention <is_causal = 1> (q, k, k, m)"
    check(causal, {"q": q, "k": k, "m": mask}, {}, nothing(2, 3, 0, 8), opset=24)
    check("y = Attention (q, k, k)", {"q": k, "k": q}, {}, nothing(2, 3, 8, 8), opset=24)
