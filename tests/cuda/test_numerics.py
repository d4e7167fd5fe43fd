"""The generated CUDA C computes the right numbers: run on the CPU, compared with onnx.reference."""

import numpy as np
import onnxruntime
import pytest

from examples.registry import EXAMPLES
from tests.oracle import reference
from tests.small_examples import small_example
from tvm_ext.emulator import NO_COMPILER, run

from .networks import GRAPHS, NETWORKS, feeds_of, parse

pytestmark = pytest.mark.skipif(NO_COMPILER is not None, reason=str(NO_COMPILER))


def check(model, feeds, folder, opt_level):
    """Every output of the cuda build of ``model`` against the reference in float64.

    Threads run in ascending order at even levels, in descending order at odd ones.
    """
    names = [info.name for info in model.graph.output]
    results = run(model, feeds, folder, opt_level=opt_level, reverse=opt_level % 2 == 1)
    for name, got, want in zip(names, results, reference(model, feeds), strict=True):
        assert got.shape == np.shape(want), name
        tolerance = 4e-3 if got.dtype == np.float16 else 2e-5
        np.testing.assert_allclose(
            got.astype("float64"), want, rtol=tolerance, atol=tolerance, err_msg=name
        )


@pytest.mark.parametrize("opt_level", [0, 3])
@pytest.mark.parametrize("family", GRAPHS)
def test_kernels(family, opt_level, tmp_path):
    model = parse(GRAPHS[family])
    check(model, feeds_of(model), tmp_path, opt_level)


@pytest.mark.parametrize("opt_level", [0, 1, 2, 3])
@pytest.mark.parametrize("network", NETWORKS)
def test_networks(network, opt_level, tmp_path):
    model = parse(NETWORKS[network])
    check(model, feeds_of(model), tmp_path, opt_level)


@pytest.mark.parametrize(
    "name, opt_level",
    [
        ("lstm", 0),
        ("mobilenetv2", 3),
        *(
            pytest.param(name, opt_level, marks=pytest.mark.slow)
            for name in EXAMPLES
            for opt_level in range(4)
        ),
    ],
)
def test_small_examples_agree_with_onnxruntime(name, opt_level, tmp_path):
    model = small_example(name)
    feeds = {key: value.numpy() for key, value in EXAMPLES[name].inputs("small").items()}
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    results = run(model, feeds, tmp_path, opt_level=opt_level)
    for got, want in zip(results, session.run(None, feeds), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("reverse", [False, True])
def test_one_element_is_written_by_one_thread(reverse, tmp_path):
    # The others had computed nothing, and wrote that.
    model = parse("""g (float[1, 1, 8] x, float[3, 7] r)
          => (float[1, 1] y, float[1, 1, 1] z, uint8[3, 7] q, float scale, uint8 zero) {
          last = Constant <value_ints = [-1]> ()
          sum = ReduceSum <keepdims = 0> (x, last)
          y = Exp (sum)
          z = ReduceMax (x, last)
          q, scale, zero = DynamicQuantizeLinear (r)
        }""")
    feeds = feeds_of(model)
    results = run(model, feeds, tmp_path, reverse=reverse)
    for got, want in zip(results, reference(model, feeds), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5)


@pytest.mark.parametrize("opt_level", [0, 3])
def test_symbolic_dims_may_be_empty(opt_level, tmp_path):
    # The emulator refuses a launch of no block, as the driver does.
    model = parse(GRAPHS["symbolic"])
    feeds = {name: array[:0] for name, array in feeds_of(model).items()}
    feeds["w"] = np.ones((33, 9), "float32")
    results = run(model, feeds, tmp_path, opt_level=opt_level)
    assert [result.shape for result in results] == [(0, 33), (0, 9), (0, 33), (33, 0)]


@pytest.mark.parametrize("dtype, tolerance", [("float32", 2e-3), ("float16", 5e-3)])
def test_instance_norm_with_a_large_mean(dtype, tolerance, tmp_path):
    # One-pass variance would lose every digit in float32: E[x*x] is a million.
    mean = 1000 if dtype == "float32" else 100
    kind = "float16" if dtype == "float16" else "float"
    model = parse(f"""g ({kind}[2, 3, 16, 17] x, {kind}[3] s, {kind}[3] b)
                      => ({kind}[2, 3, 16, 17] y) {{ y = InstanceNormalization (x, s, b) }}""")
    random = np.random.default_rng(1)
    x = (mean + random.standard_normal((2, 3, 16, 17))).astype(dtype)
    scale, bias = np.array([1, 2, -1], dtype), np.array([0, 1, 0], dtype)
    wide = x.astype("float64")
    centred = wide - wide.mean((2, 3), keepdims=True)
    want = centred / np.sqrt(wide.var((2, 3), keepdims=True) + 1e-5)
    want = want * scale.reshape(1, 3, 1, 1) + bias.reshape(1, 3, 1, 1)
    (got,) = run(model, {"x": x, "s": scale, "b": bias}, tmp_path)
    np.testing.assert_allclose(got.astype("float64"), want, rtol=tolerance, atol=tolerance)
