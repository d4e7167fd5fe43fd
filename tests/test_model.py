"""What a compiled model tells about itself: kernels and their nodes, times, sources, memory."""

import copy
import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import onnx
import pytest
import torch
from onnx import helper, numpy_helper, parser

from tvm_ext import convert_and_build, load
from tvm_ext.errors import ConversionError, InputError
from tvm_ext.passes.integer_products import multiplies_pairs
from tvm_ext.profile import Peak, Work
from tvm_ext.targets import host_target


def network(batch="1"):
    rng = np.random.default_rng(0)

    def weights(*shape):
        return ", ".join(f"{v:.4f}" for v in rng.standard_normal(int(np.prod(shape))) / 10)

    return parser.parse_model(f"""
    <ir_version: 9, opset_import: ["" : 17]>
    network (float[{batch}, 4, 8, 8] x) => (float[{batch}, 3] y)
    <float[8, 4, 3, 3] w = {{{weights(8, 4, 3, 3)}}}, float[8, 3] g = {{{weights(8, 3)}}}>
    {{
      [conv] c = Conv <pads = [1, 1, 1, 1]> (x, w)
      [act] r = Relu(c)
      [pool] p = GlobalAveragePool(r)
      [flat] f = Flatten(p)
      [dense] y = MatMul(f, g)
    }}
    """)


@pytest.fixture(scope="module")
def static():
    return convert_and_build(network(), "llvm")


@pytest.fixture(scope="module")
def dynamic():
    return convert_and_build(network("n"), "llvm")


def sample(batch=1, seed=0):
    return np.random.default_rng(seed).standard_normal((batch, 4, 8, 8)).astype("float32")


def test_every_node_is_found_in_the_profile(static):
    report = static.profile({"x": sample()}, repeat=3)
    nodes = {node.split()[-1] for kernel in report.kernels for node in kernel.nodes}
    assert {"conv", "act", "pool"} <= nodes
    fused = next(k for k in report.kernels if "Relu act" in k.nodes)
    assert "Conv conv" in fused.nodes
    multiply_adds = 8 * 8 * 8 * 4 * 9
    assert fused.flops >= 2 * multiply_adds
    assert report.seconds > 0
    assert "GFLOP/s" in str(report)


def test_kernels_of_values_with_numbers_name_their_nodes():
    """Layouts add variables, and numbers to their names; these have some of their own."""
    text = """<ir_version: 10, opset_import: ["" : 21]>
      g (float[1, 3, 9, 9] x1) => (float[1, 16, 9, 9] x_2) {
        [conv] c1 = Conv <pads = [1, 1, 1, 1]> (x1, w1, b1)
        [act] c_1 = Relu (c1)
        [last] x_2 = Conv <pads = [1, 1, 1, 1]> (c_1, w2, b1)
      }"""
    model = parser.parse_model(text)
    rng = np.random.default_rng(0)
    for name, shape in {"w1": (16, 3, 3, 3), "w2": (16, 16, 3, 3), "b1": (16,)}.items():
        array = rng.standard_normal(shape).astype("float32")
        model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    report = convert_and_build(model).profile(repeat=1)
    assert all(kernel.nodes for kernel in report.kernels), report
    assert {n for k in report.kernels for n in k.nodes} == {"Conv conv", "Relu act", "Conv last"}


def test_a_profile_tells_what_the_machine_needs_at_least(static):
    report = static.profile({"x": sample()}, repeat=3)
    assert report.peak is not None
    assert report.predicted == sum(k.predicted for k in report.kernels)
    for kernel in report.kernels:
        assert kernel.predicted >= (kernel.flops or 0) / report.peak.gflops / 1e9
    caption = " ".join(str(report).split())
    assert f"take {report.predicted * 1e3:.4g} ms at least" in caption


SYMBOLIC = """<ir_version: 9, opset_import: ["": 18]>
g (float[b, s, 16] x, float[b, t] z) => (float y, float w) {
    y = MatMul (x, k)
    flat = Constant <value_ints = [-1]> ()
    row = Reshape (z, flat)
    w = Neg (row)
}"""


@pytest.mark.parametrize("sizes", [(2, 100, 7), (1, 3, 1), (5, 1, 0)])
def test_the_work_of_symbolic_kernels_follows_from_the_sizes_of_a_call(sizes, tmp_path):
    b, s, t = sizes
    model = parser.parse_model(SYMBOLIC)
    weight = numpy_helper.from_array(np.ones((16, 8), "float32"), "k")
    model.graph.initializer.append(weight)
    for output in model.graph.output:
        output.type.tensor_type.ClearField("shape")
    feeds = {"x": np.zeros((b, s, 16), "float32"), "z": np.zeros((b, t), "float32")}
    built = convert_and_build(model, "llvm")
    built.save(tmp_path / "m.tvmx")
    for compiled in built, load(tmp_path / "m.tvmx"):
        kernels = {k.nodes: k for k in compiled.profile(feeds, repeat=1).kernels}
        product, negated = kernels["MatMul y",], kernels["Neg w",]
        columns = product.flops / (2 * b * s * 16)  # a whole number of vectors
        assert 8 <= columns <= 16
        assert product.bytes == 4 * (b * s * (16 + 8) + 16 * columns)
        assert product.predicted >= product.arithmetic > 0
        assert (negated.flops, negated.bytes) == (b * t, 2 * 4 * b * t)


def test_work_that_follows_from_values_is_not_known():
    text = """<ir_version: 9, opset_import: ["": 18]>
    g (float[n] x) => (float y) {
        some = NonZero (x)  wide = Cast <to = 1> (some)  y = Exp (wide)
    }"""
    model = parser.parse_model(text)
    model.graph.output[0].type.tensor_type.ClearField("shape")
    facts = convert_and_build(model, "llvm")._facts.values()
    (after,) = (fact for fact in facts if "Exp y" in fact.nodes)
    assert (after.flops, after.bytes) == (None, None)


def test_weights_come_from_where_a_run_leaves_them():
    peak = Peak(gflops=1.0, gbytes=1.0, threads=1, rates=((100, 10.0), (10_000, 1.0)))

    def seconds(flops, weights, activations, all_weights):
        return peak.seconds(Work(flops, weights + activations, weights), all_weights)

    assert seconds(8_000, 0, 100, 0) == 8e-6  # arithmetic
    assert seconds(0, 0, 100, 0) == pytest.approx(10e-9)  # from the caches
    assert seconds(0, 100, 0, 10**6) == pytest.approx(100e-9)  # from memory
    assert seconds(0, 100, 0, 100) < seconds(0, 100, 0, 1000) < 100e-9


def products(kind):
    """A product of 13 x 64 x 64, of numbers of a kind that CPUs have instructions for."""
    x, w = np.zeros((13, 64), "float32"), np.ones((64, 64), "float32")
    node, options = helper.make_node("MatMul", ["x", "w"], ["y"]), {"precision": "bf16"}
    if kind == "int8":
        x, w, options = x.astype("uint8"), w.astype("int8"), {}
        node = helper.make_node("MatMulInteger", ["x", "w"], ["y"])
    types = [helper.np_dtype_to_tensor_dtype(d) for d in (x.dtype, np.dtype("int32"))]
    inputs = [helper.make_tensor_value_info("x", types[0], x.shape)]
    outputs = [helper.make_tensor_value_info("y", types[1] if kind == "int8" else 1, (13, 64))]
    graph = helper.make_graph([node], "g", inputs, outputs, [numpy_helper.from_array(w, "w")])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    target = {"kind": "llvm", "mcpu": "x86-64-v4", "mattr": ["+avx512bf16"]}
    return convert_and_build(model, target if kind == "bfloat16" else "llvm", **options)


# What this CPU multiplies where a model has bytes.
BYTES = "int16" if multiplies_pairs(host_target()) else "int8"


@pytest.mark.parametrize("kind", ["int8", "bfloat16"])
def test_products_of_narrow_numbers_are_counted_apart(kind):
    facts = products(kind)._facts.values()
    counts = sum(fact.dots.get(BYTES if kind == "int8" else kind, 0) for fact in facts)
    assert 2 * 13 * 64 * 64 <= counts < 2.5 * 13 * 64 * 64
    assert sum(fact.flops or 0 for fact in facts) < 13 * 64 * 64 / 4


def test_narrow_products_are_predicted_by_their_own_peak(tmp_path):
    model = products("int8")
    model.save(tmp_path / "model.so")
    for each in model, load(tmp_path / "model.so"):
        report = each.profile(repeat=2)
        (kernel,) = (k for k in report.kernels if k.dots)
        least = sum(kernel.dots.values()) / report.peak.dots[BYTES] / 1e9
        assert kernel.arithmetic == pytest.approx(least, rel=0.1)
        assert kernel.predicted >= kernel.arithmetic
        assert f"Gop/s of {BYTES}" in " ".join(str(report).split())


def test_a_dynamic_model_profiles_too(dynamic):
    report = dynamic.profile({"x": sample(3)}, repeat=2)
    assert report.kernels
    assert report.repeat == 2


def test_sources_hold_every_phase(static):
    sources = static.sources()
    assert ["import", "select", "fuse", "schedule"] == [
        name for name in sources if name in ("import", "select", "fuse", "schedule")
    ]
    assert "conv2d" in sources["import"]
    assert "vectorized" in sources["schedule"]
    assert "fmul" in sources["llvm"] or "fma" in sources["llvm"]


def test_benchmark_counts_its_runs(static):
    latency = static.benchmark(warmup=1, repeat=5)
    assert len(latency.seconds) == 5
    assert latency.percentile(10) <= latency.median <= latency.percentile(90)


def test_memory_is_planned_within_the_bound(static, dynamic):
    assert static.memory.arena_bytes >= static.memory.live_bytes > 0
    assert static.memory.weight_bytes > 0
    assert dynamic.memory is None


def test_a_notebook_shows_inputs_and_outputs(static):
    html = static._repr_html_()
    assert "[1, 4, 8, 8]" in html
    assert "float32[1, 3]" in repr(static)


def test_static_and_dynamic_agree(static, dynamic):
    np.testing.assert_allclose(dynamic(sample()), static(sample()), rtol=1e-5, atol=1e-6)
    batch = dynamic(sample(5))
    assert batch.shape == (5, 3)
    np.testing.assert_allclose(batch[:1], static(sample(5)[:1]), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("model", ["static", "dynamic"])
def test_threads_share_a_model(model, request):
    model = request.getfixturevalue(model)
    inputs = [sample(seed=k) for k in range(4)]
    expected = [model(x) for x in inputs]
    results = {}

    def work(k):
        results[k] = [model(inputs[k]) for _ in range(20)]

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for k, outputs in results.items():
        for output in outputs:
            np.testing.assert_array_equal(output, expected[k])


def test_results_of_two_calls_are_independent(static):
    first = static(sample(seed=1))
    kept = first.copy()
    static(sample(seed=2))
    np.testing.assert_array_equal(first, kept)


def test_an_output_asked_for_twice_is_two_arrays(static):
    first, second = static.run(["y", "y"], {"x": sample()})
    kept = second.copy()
    first[:] = 0
    np.testing.assert_array_equal(second, kept)


def test_tensors_of_torch_are_read_in_every_dtype_and_layout(static):
    x = torch.from_numpy(sample())
    strided = x.permute(2, 3, 0, 1).contiguous().permute(2, 3, 0, 1)
    for same in strided, x.clone().requires_grad_():
        np.testing.assert_array_equal(static(same), static(sample()))
    text = "f (bfloat16[3] x) => (bfloat16[3] y) { y = Neg (x) }"
    negate = convert_and_build(
        parser.parse_model(f'<ir_version: 9, opset_import: ["" : 17]> {text}')
    )
    shifted = torch.arange(4, dtype=torch.bfloat16)[1:]
    np.testing.assert_array_equal(negate(shifted).astype("float32"), [-1, -2, -3])


def test_inputs_by_name_in_a_dict(static):
    np.testing.assert_array_equal(static({"x": sample()}), static(sample()))
    with pytest.raises(InputError, match="inputs given twice"):
        static({"x": sample()}, x=sample())
    with pytest.raises(InputError, match="'z'"):
        static({"z": sample()})


def test_a_dict_for_an_input_that_is_a_map_is_that_input():
    vectors = convert_and_build(
        parser.parse_model("""
        <ir_version: 9, opset_import: ["" : 17, "ai.onnx.ml" : 1]>
        f (map(string, float) m) => (float[1, 2] y) {
            y = ai.onnx.ml.DictVectorizer <string_vocabulary = ["m", "b"]> (m)
        }
        """)
    )
    np.testing.assert_array_equal(vectors({"m": 2.0}), [[2, 0]])


def test_python_numbers_take_the_dtype_of_the_input():
    text = "f (float[2] x, int64 k) => (float[2] y) { c = CastLike (k, x)  y = Add (x, c) }"
    add = convert_and_build(parser.parse_model(f'<ir_version: 9, opset_import: ["" : 17]> {text}'))
    np.testing.assert_array_equal(add([1, 2.5], 3), [4, 5.5])
    np.testing.assert_array_equal(add((1, 2), 3), [4, 5])
    with pytest.raises(InputError, match="'k' needs dtype int64, got float64"):
        add([1, 2], 3.0)


def test_an_input_may_have_any_name():
    text = "f (float[2] self) => (float[2] y) { y = Neg (self) }"
    model = convert_and_build(
        parser.parse_model(f'<ir_version: 9, opset_import: ["" : 17]> {text}')
    )
    np.testing.assert_array_equal(model(self=np.ones(2, "float32")), [-1, -1])


@pytest.mark.parametrize("way", [copy.copy, copy.deepcopy])
def test_copies_are_the_model_itself(static, way):
    assert way(static) is static


FORK = """
import os, signal, sys
import numpy as np, onnx, tvm_ext
model = tvm_ext.load(sys.argv[1])
x = np.load(sys.argv[2])
expected = model(x)
child = os.fork()
if child == 0:
    signal.alarm(60)  # a child that waits for workers which the fork did not copy
    os._exit(0 if np.array_equal(model(x), expected) else 1)
sys.exit(os.waitpid(child, 0)[1])
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs a system that forks")
@pytest.mark.parametrize("batch", ["64", "n"], ids=["static", "dynamic"])
def test_a_forked_child_runs_the_model_too(batch, tmp_path):
    convert_and_build(network(batch), "llvm").save(tmp_path / "model.tvmx")
    np.save(tmp_path / "x.npy", sample(64))
    arguments = [tmp_path / "model.tvmx", tmp_path / "x.npy"]
    subprocess.run([sys.executable, "-c", FORK, *map(str, arguments)], check=True)


def test_a_computed_dim_is_arithmetic_on_names():
    model = parser.parse_model("""
        <ir_version: 8, opset_import: ["" : 17]>
        g (float[n, 3] x) => (float[m] y) <int64[1] s = {-1}> { y = Reshape(x, s) }
    """)
    (output,) = convert_and_build(model, "llvm", opt_level=0).outputs
    assert output.shape == ("n * 3",)


def test_a_list_of_names_may_be_any_iterable_and_empty_means_all(static):
    feeds = {"x": sample()}
    (expected,) = static.run(None, feeds)
    for names in [], (), ["y"], (name for name in ["y"]), {"y": 0}:
        (y,) = static.run(names, feeds)
        np.testing.assert_array_equal(y, expected)
    for names in "y", 3:
        with pytest.raises(InputError, match="list of names"):
            static.run(names, feeds)


def test_python_numbers_beyond_the_dtype_are_refused():
    text = "f (int8[2] k, float16[2] x) => (int8[2] a, float16[2] b) { a = Neg (k)  b = Neg (x) }"
    model = convert_and_build(
        parser.parse_model(f'<ir_version: 9, opset_import: ["" : 17]> {text}')
    )
    for feeds in ([1, 300], [0, 0]), ([1, 2], [0.0, 1e6]):
        with pytest.raises(InputError, match="cannot hold"):
            model(*feeds)
    _, b = model([-1, 2], [float("inf"), 1.0])
    np.testing.assert_array_equal(b, [-np.inf, -1])


def test_a_negated_view_of_torch_keeps_its_sign(static):
    np.testing.assert_array_equal(
        static(torch._neg_view(torch.from_numpy(-sample()))), static(sample())
    )


@pytest.mark.parametrize("level", range(4))
def test_kernels_name_nodes_of_the_model_at_every_level(level):
    """The matrix product is a Gemm inside, and the addition is its bias: the user wrote neither."""
    given = {"Conv conv", "Relu act", "GlobalAveragePool pool", "Flatten flat", "MatMul dense"}
    report = convert_and_build(network(), "llvm", opt_level=level).profile(repeat=1)
    found = {node for kernel in report.kernels for node in kernel.nodes}
    assert found <= given
    assert "MatMul dense" in found


def test_a_refusal_names_the_node_that_was_rewritten():
    text = "f (float[3, 4] x, float[5, 6] w) => (float[3, 6] y) { [product] y = MatMul (x, w) }"
    model = parser.parse_model(f'<ir_version: 9, opset_import: ["" : 17]> {text}')
    for level in 0, 3:
        with pytest.raises(ConversionError, match="product"):
            convert_and_build(model, "llvm", opt_level=level)


def test_winograd_counts_the_operations_that_run():
    rng = np.random.default_rng(0)
    weight = onnx.numpy_helper.from_array(
        rng.standard_normal((64, 64, 3, 3)).astype("float32") / 24, "w"
    )
    model = parser.parse_model(
        '<ir_version: 9, opset_import: ["" : 17]> '
        "g (float[1, 64, 56, 56] x, float[64, 64, 3, 3] w) => (float[1, 64, 56, 56] y) "
        "{ y = Conv <pads = [1, 1, 1, 1]> (x, w) }"
    )
    del model.graph.input[1]
    model.graph.initializer.append(weight)
    direct = 2 * 56 * 56 * 64 * 64 * 9
    (kernel,) = (
        kernel
        for kernel in convert_and_build(model, "llvm").profile(repeat=1).kernels
        if "winograd" in kernel.kernel
    )
    # 36 multiplications for 4 x 4 outputs instead of 144, and the transforms.
    assert direct / 4 < kernel.flops < direct / 3


def test_threads_may_build_at_once():
    with ThreadPoolExecutor(4) as pool:
        built = list(pool.map(lambda k: convert_and_build(network(str(k)), "llvm"), range(1, 5)))
    assert [model.outputs[0].shape[0] for model in built] == [1, 2, 3, 4]


def test_a_dim_of_one_name_and_of_two_sizes_gets_a_name_of_its_own():
    """Models that are wrong about it run in onnxruntime, which holds no name against a call."""
    text = """<ir_version: 8, opset_import: ["": 17]>
    g (float[N, 3] a, float[N] b) => (float[N, 3] y, float[N] z) { y = Exp (a) z = Neg (b) }"""
    model = parser.parse_model(text)
    a, b = np.ones((2, 3), "float32"), np.ones(5, "float32")
    with pytest.raises(InputError, match=r"shapes=\{'b': \['N_b'\]\}"):
        convert_and_build(model)(a, b)
    built = convert_and_build(model, shapes={"b": ["N_b"]})
    y, z = built(a, b)
    np.testing.assert_allclose(y, np.exp(a), rtol=1e-6)
    np.testing.assert_array_equal(z, -b)
    assert [info.shape for info in built.inputs] == [("N", 3), ("N_b",)]
