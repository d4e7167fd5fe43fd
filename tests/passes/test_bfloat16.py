"""precision="bf16": factors rounded to bfloat16, sums in float32, against float64."""

import ml_dtypes
import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.oracle import node_model, reference
from tests.this_cpu import WITHOUT_TILES, needs_bfloat16
from tvm_ext import convert_and_build, load, pipeline, targets
from tvm_ext.errors import OptionError, TargetError

ZEN4 = {"kind": "llvm", "mcpu": "znver4", "num-cores": 2}

PRODUCTS = [
    ("MatMul", (1, 131), (131, 77), {}),
    ("MatMul", (3, 5, 768), (768, 33), {}),
    ("MatMul", (129, 1), (1, 1), {}),
    ("MatMul", (64, 3072), (3072, 48), {}),
    ("Gemm", (17, 96), (97, 96), {"transB": 1}),
]
CONVOLUTIONS = [
    ("Conv", (1, 64, 14, 9), (48, 64, 1, 1), {}),
    ("Conv", (2, 24, 11, 13), (17, 24, 3, 3), {"strides": [2, 1], "pads": [1, 0, 2, 1]}),
    ("Conv", (1, 144, 7, 7), (40, 144, 5, 3), {"dilations": [1, 2], "pads": [2, 2, 2, 2]}),
    ("Conv", (2, 64, 9, 8), (64, 32, 3, 3), {"group": 2, "pads": [1, 1, 1, 1]}),
    ("Conv", (1, 64, 9, 8), (64, 16, 1, 1), {"group": 4}),
    ("Conv", (1, 3, 19, 17), (20, 3, 7, 7), {"pads": [3, 3, 3, 3], "strides": [2, 2]}),
    ("Conv", (2, 17, 5, 6), (8, 17, 1, 1), {}),
    ("Conv", (1, 64, 56, 3), (16, 64, 1, 1), {"strides": [2, 1]}),
    ("Conv", (1, 128, 7, 7), (128, 128, 3, 3), {"pads": [1, 1, 1, 1]}),
]


def rounded(array):
    return array.astype(ml_dtypes.bfloat16).astype(array.dtype)


def factors(x_shape, w_shape, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.standard_normal(x_shape, dtype="float32") + 0.5
    return x, rng.standard_normal(w_shape, dtype="float32")


def product(op_type, x, w, attributes):
    """The model, and its answers for other factors in float64."""
    model = node_model(op_type, [x, w], attributes, constants=[1])

    def answer(x, w):
        (y,) = reference(node_model(op_type, [x, w], attributes), {"x0": x, "x1": w})
        return y

    return model, answer


@needs_bfloat16
@pytest.mark.parametrize(("op_type", "x", "w", "attributes"), PRODUCTS + CONVOLUTIONS)
def test_only_the_factors_are_rounded(op_type, x, w, attributes):
    x, w = factors(x, w)
    model, answer = product(op_type, x, w, attributes)
    built = convert_and_build(model, WITHOUT_TILES, precision="bf16")
    assert "bfloat16_dot" in built.sources()["select"]
    (got,) = built.run(None, {"x0": x})
    terms = answer(abs(x), abs(w))  # of |x| and |w|, what errors are relative to
    exact, wanted = answer(x, w), answer(rounded(x), rounded(w))
    assert (abs(got - wanted) <= 2.0**-18 * terms).all()
    assert (abs(got - exact) <= 2.0**-7 * terms + 2.0**-15 * terms).all()
    assert (abs(got - exact) > 2.0**-18 * terms).any()  # the test sees roundings


@needs_bfloat16
@pytest.mark.parametrize("case", [CONVOLUTIONS[1], CONVOLUTIONS[3]])
def test_rows_and_columns_may_be_symbolic(case):
    op_type, x, w, attributes = case
    x, w = factors(x, w)
    _, answer = product(op_type, x, w, attributes)
    model = node_model(op_type, [x, w], attributes, constants=[1], symbolic=True)
    model.graph.input[0].type.tensor_type.shape.dim[1].dim_value = x.shape[1]
    built = convert_and_build(model, WITHOUT_TILES, precision="bf16")
    assert "bfloat16_dot" in built.sources()["select"]
    for part in x, x[:1, :, :, :5]:
        (got,) = built.run(None, {"x0": part})
        terms = answer(abs(part), abs(w))
        assert (abs(got - answer(rounded(part), rounded(w))) <= 2.0**-18 * terms).all()


@needs_bfloat16
@pytest.mark.parametrize("case", [PRODUCTS[1], CONVOLUTIONS[0]])
def test_infinities_and_nan_pass_through(case):
    op_type, x, w, attributes = case
    x, w = factors(x, w)
    x.flat[3], x.flat[-2] = np.inf, np.nan
    w.flat[5] = -np.inf
    model, answer = product(op_type, x, w, attributes)
    (got,) = convert_and_build(model, WITHOUT_TILES, precision="bf16").run(None, {"x0": x})
    with np.errstate(invalid="ignore"):
        wanted = answer(x, w)
    finite = np.isfinite(wanted)
    assert not finite.all() and finite.any()
    np.testing.assert_array_equal(got[~finite], wanted[~finite].astype("float32"))
    assert np.isfinite(got[finite]).all()


@needs_bfloat16
def test_depthwise_convolutions_are_no_sums_over_channels():
    x, w = factors((1, 32, 9, 10), (32, 1, 3, 3))
    attributes = {"group": 32, "pads": [1, 1, 1, 1]}
    model, answer = product("Conv", x, w, attributes)
    built = convert_and_build(model, WITHOUT_TILES, precision="bf16")
    assert "bfloat16_dot" not in built.sources()["select"]
    (got,) = built.run(None, {"x0": x})
    np.testing.assert_allclose(got, answer(x, w), rtol=1e-5, atol=1e-5)


def network(dtype=TensorProto.FLOAT):
    """Convolutions with a residual, pooling and a product behind: epilogues of every kind."""
    rng = np.random.default_rng(1)
    np_dtype = helper.tensor_dtype_to_np_dtype(dtype)
    weights = {
        "w0": rng.standard_normal((32, 32, 1, 1)) * 0.2,
        "b0": rng.standard_normal(32),
        "w1": rng.standard_normal((32, 32, 3, 3)) * 0.06,
        "w2": rng.standard_normal((32, 40)) * 0.2,
    }
    nodes = [
        helper.make_node("Conv", ["x", "w0", "b0"], ["a"]),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("Conv", ["b", "w1"], ["c"], strides=[2, 2], pads=[1, 1, 1, 1]),
        helper.make_node("Conv", ["c", "w0"], ["d"]),
        helper.make_node("Add", ["c", "d"], ["e"]),
        helper.make_node("GlobalAveragePool", ["e"], ["f"]),
        helper.make_node("Flatten", ["f"], ["g"]),
        helper.make_node("MatMul", ["g", "w2"], ["y"]),
    ]
    tensors = [numpy_helper.from_array(w.astype(np_dtype), name) for name, w in weights.items()]
    ends = [
        helper.make_tensor_value_info("x", dtype, [1, 32, 12, 12]),
        helper.make_tensor_value_info("y", dtype, [1, 40]),
    ]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], tensors)
    opset = [helper.make_opsetid("", 22)]
    x = rng.standard_normal((1, 32, 12, 12), dtype="float32")
    return helper.make_model(graph, opset_imports=opset, ir_version=10), {"x": x.astype(np_dtype)}


@needs_bfloat16
def test_a_network_is_the_same_from_a_file_and_differs_in_the_cache(tmp_path):
    model, feeds = network()
    build = {"target": WITHOUT_TILES, "cache": tmp_path}
    built = convert_and_build(model, WITHOUT_TILES, precision="bf16")
    (wanted,), (got,) = reference(model, feeds), built.run(None, feeds)
    assert 0 < abs(got - wanted).max() < 0.02 * abs(wanted).max()
    built.save(tmp_path / "m.so")
    np.testing.assert_array_equal(load(tmp_path / "m.so").run(None, feeds)[0], got)
    for precision in ("bf16", None, "fp32", "bf16"):
        convert_and_build(model, precision=precision, **build)
    assert len(list((tmp_path).glob("*.so"))) == 3  # m.so, and one of each precision


@needs_bfloat16
def test_models_of_bfloat16_use_the_instructions_by_themselves():
    model, feeds = network(TensorProto.BFLOAT16)
    fast, plain = (
        convert_and_build(model, WITHOUT_TILES, without=without)
        for without in ((), ("BFloat16Conv2d", "BFloat16Matmul"))
    )
    assert "bfloat16_dot" in fast.sources()["select"]
    assert "bfloat16_dot" not in plain.sources()["select"]
    (got,), (wanted,) = (built.run(None, feeds)[0:1] for built in (fast, plain))
    got, wanted = got.astype("float32"), wanted.astype("float32")
    assert abs(got - wanted).max() <= 2.0**-7 * abs(wanted).max()


def test_the_instructions_are_there_whatever_compiles():
    x, w = factors((16, 64), (64, 48))
    model, _ = product("MatMul", x, w, {})
    built = convert_and_build(model, ZEN4, precision="bf16")
    assembly = "".join(map(str, built.sources().values()))
    assert "vdpbf16ps" in assembly and "vcvtneps2bf16" in assembly


@pytest.mark.parametrize(
    ("target", "options", "error", "says"),
    [
        ("x86-64-v4", {"precision": "bf16"}, TargetError, "AVX512_BF16"),
        ("cuda", {"precision": "bf16"}, TargetError, "AVX512_BF16"),
        (ZEN4, {"precision": "bf16", "opt_level": 1}, OptionError, "opt_level 2"),
        (ZEN4, {"precision": "fp8"}, OptionError, "precision"),
        (
            ZEN4,
            {"precision": "bf16", "steps": pipeline.default(targets.resolve("llvm"))},
            OptionError,
            "bring",
        ),
    ],
)
def test_what_cannot_be_is_refused(target, options, error, says):
    with pytest.raises(error, match=says):
        convert_and_build(network()[0], target, **options)
