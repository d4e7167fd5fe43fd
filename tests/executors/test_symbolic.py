"""Models of symbolic dims as one C function: dims, addresses and checks as formulas of sizes."""

import threading

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, parser
from onnx.backend.test.case.node import collect_testcases
from onnxruntime import InferenceSession

from tests.executors.test_storages import network
from tests.official_suite.forms import symbolic
from tests.oracle import reference
from tvm_ext import convert_and_build, load
from tvm_ext.errors import RunError
from tvm_ext.executors.symbolic import SymbolicExecutor


def feeds(n, m, seed=0):
    rng = np.random.default_rng(seed)
    return {
        "x": rng.standard_normal((n, 24)).astype("float32"),
        "z": rng.standard_normal((24, m)).astype("float32"),
    }


NETWORKS = {"given sizes": network(), "computed sizes": network("NonZero")}


@pytest.fixture(scope="module", params=NETWORKS)
def source(request):
    return NETWORKS[request.param]


@pytest.fixture(scope="module")
def built(source):
    return convert_and_build(source, "llvm")


def test_runs_of_varying_sizes_are_right_and_keep_the_memory_of_one(built, source):
    assert isinstance(built.executor, SymbolicExecutor)
    sizes = [(3, 5), (1, 1), (7, 2), (0, 3), (7, 2), (31, 40), (2, 3)]
    results = [built.run(None, feeds(*size)) for size in sizes]
    for size, got in zip(sizes, results, strict=True):  # those of the first runs after the last one
        for ours, theirs in zip(got, reference(source, feeds(*size)), strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)

    def kept():
        return sum(stage.memory.nbytes for stage in built.executor._workspace.stages)

    built.run(None, feeds(1000, 300))
    large = kept()
    assert 1000 * 24 * 4 <= large <= 3 * 4 * 1000 * (24 + 2 * 24 + 300)
    built.run(None, feeds(2, 3))
    assert kept() < large / 10


def test_the_saved_model_runs_so_too_and_says_what_each_kernel_takes(built, tmp_path):
    built.save(tmp_path / "m.tvmx")
    again, given = load(tmp_path / "m.tvmx"), feeds(5, 4)
    for ours, theirs in zip(again.run(None, given), built.run(None, given), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    assert again.executor.plan == built.executor.plan
    calls, seconds = again.executor.time_kernels([given["x"], given["z"]], repeat=3)
    assert seconds.shape == (3, len(calls)) and (seconds > 0).all()


def test_threads_have_memory_of_their_own(built):
    wanted = {n: built.run(None, feeds(n, 4, n)) for n in (3, 50, 700)}
    wrong = []

    def call(n):
        for _ in range(20):
            got = built.run(None, feeds(n, 4, n))
            wrong.extend(n for a, b in zip(got, wanted[n], strict=True) if not (a == b).all())

    callers = [threading.Thread(target=call, args=(n,)) for n in wanted]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert wrong == []


STEP = """<ir_version: 8, opset_import: ["": 17]>
step (float[B, 2, P, 4096] past, float[B, 2, S, 4096] fresh, float[B, T] mask)
  => (float[B, 2, Q, 4096] present, float[B, 2, Q, 4096] scaled) {
    axes = Constant <value = int64[2] {1, 3}> ()
    present = Concat <axis = 2> (past, fresh)
    wide = Unsqueeze (mask, axes)
    scaled = Mul (present, wide)
}"""


def test_a_cache_grows_from_step_to_step_and_sizes_that_contradict_are_refused():
    step = convert_and_build(onnx.parser.parse_model(STEP), "llvm")
    assert isinstance(step.executor, SymbolicExecutor)
    rng = np.random.default_rng(0)
    whole = rng.standard_normal((2, 2, 9, 4096)).astype("float32")
    past = whole[:, :, :0]
    for end in range(1, 10):  # large results, of which the last one is read
        mask = rng.standard_normal((2, end)).astype("float32")
        past, scaled = step(past, np.ascontiguousarray(whole[:, :, end - 1 : end]), mask)
        np.testing.assert_array_equal(past, whole[:, :, :end])
        np.testing.assert_array_equal(scaled, whole[:, :, :end] * mask[:, None, :, None])
    for _ in range(2):  # what was found of the sizes before does not serve
        with pytest.raises(RunError, match=r"Mul-14 'scaled' .* 7, which does not broadcast to 18"):
            step(past, past, np.ones((2, 7), "float32"))
    again, _ = step(past[:, :, :8], past[:, :, 8:], mask)
    np.testing.assert_array_equal(again, past)
    with pytest.raises(ValueError, match="axis 0"):
        step(past[:1], past, np.ones((2, 18), "float32"))


LENGTHS = """<ir_version: 8, opset_import: ["": 17]>
lengths (int64[2] count, int32 more, float[n] x) => (float[a, b] zeros, float[m] wide) {
    one = Constant <value = int64[1] {1}> ()
    zeros = ConstantOfShape (count)
    total = Cast <to = 7> (more)
    twice = Add (total, total)
    shape = Reshape (twice, one)
    wide = Expand (x, shape)
}"""


def test_sizes_that_inputs_hold_as_numbers():
    model = convert_and_build(onnx.parser.parse_model(LENGTHS), "llvm")
    assert isinstance(model.executor, SymbolicExecutor)
    for count, more, x in [((2, 3), 2, [7]), ((0, 5), 0, [7]), ((1, 1), 2, [1, 2, 3, 4])]:
        given = np.array(count), np.array(more, "int32"), np.array(x, "float32")
        zeros, wide = model(*given)
        assert zeros.shape == count and not zeros.any()
        np.testing.assert_array_equal(wide, np.broadcast_to(given[2], 2 * more))
    with pytest.raises(RunError, match=r"ConstantOfShape-9 'zeros' .* a size is -3, less than 0"):
        model(np.array((2, -3)), np.array(2, "int32"), np.ones(1, "float32"))


def attention_step():
    """Grouped queries, rotated, over a cache, as onnxruntime-genai writes a layer."""
    value = helper.make_tensor_value_info
    angles = np.arange(40)[:, None] / 10000.0 ** (np.arange(8) / 8)
    tables = {"cos": np.cos(angles), "sin": np.sin(angles)}
    node = helper.make_node(
        "GroupQueryAttention",
        ["q", "k", "v", "past_k", "past_v", "lengths", "total", "cos", "sin"],
        ["y", "keys", "values"], domain="com.microsoft", num_heads=4, kv_num_heads=2, do_rotary=1,
    )  # fmt: skip
    graph = helper.make_graph(
        [node],
        "step",
        [
            *(
                value(name, 1, ["B", "S", width])
                for name, width in [("q", 64), ("k", 32), ("v", 32)]
            ),
            *(value(name, 1, ["B", 2, "P", 16]) for name in ("past_k", "past_v")),
            value("lengths", TensorProto.INT32, ["B"]),
            value("total", TensorProto.INT32, []),
        ],
        [value("y", 1, ["B", "S", 64])]
        + [value(name, 1, ["B", 2, "T", 16]) for name in ("keys", "values")],
        [onnx.numpy_helper.from_array(x.astype("float32"), name) for name, x in tables.items()],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def test_steps_of_grouped_attention_over_caches_of_any_length():
    proto = attention_step()
    model, session = convert_and_build(proto, "llvm"), InferenceSession(proto.SerializeToString())
    assert isinstance(model.executor, SymbolicExecutor)
    rng = np.random.default_rng(0)
    for batch, count, past in [(1, 1, 17), (3, 1, 0), (2, 5, 0), (1, 1, 1), (1, 1, 17)]:
        shapes = {name: (batch, count, width) for name, width in [("q", 64), ("k", 32), ("v", 32)]}
        shapes |= dict.fromkeys(("past_k", "past_v"), (batch, 2, past, 16))
        given = {k: rng.standard_normal(v).astype("float32") for k, v in shapes.items()}
        given["lengths"] = np.full(batch, past + count - 1, "int32")
        given["total"] = np.array(past + count, "int32")
        wanted = session.run(None, given)
        for ours, theirs in zip(model.run(None, given), wanted, strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5)


def test_sizes_beyond_any_memory_are_refused():
    text = """<ir_version: 9, opset_import: ["": 17]>
    g (int64[1] n) => (float[1] y) {
      ones = ConstantOfShape <value = float[1] {1.0}> (n)
      e = Exp (ones)
      y = ReduceSum <keepdims = 1> (e)
    }"""
    model = convert_and_build(parser.parse_model(text), "llvm", opt_level=0)
    assert isinstance(model._executor, SymbolicExecutor)
    for size in (2**62, 2**63 - 1, 2**50):
        with pytest.raises(RunError, match="of more elements than memory holds"):
            model(np.array([size]))
    np.testing.assert_allclose(model(np.array([5])), [5 * np.e], rtol=1e-6)


def test_results_beyond_any_memory_are_refused(monkeypatch):
    """Each of their dims is one that memory has room for."""
    text = """<ir_version: 9, opset_import: ["": 17]>
    g (int64[2] n) => (float[a, b] y) { y = ConstantOfShape (n) }"""
    model = convert_and_build(parser.parse_model(text), "llvm", opt_level=0)
    with pytest.raises(RunError, match="of more elements than memory holds"):
        model(np.array([1 << 40, 1 << 40]))
    assert model(np.array([2, 3])).shape == (2, 3)

    def full(_arrays):
        raise MemoryError("no room")

    monkeypatch.setattr(model, "_executor", full)
    with pytest.raises(RunError, match="more memory than there is: no room"):
        model(np.array([2, 3]))


STACKED = """<ir_version: 8, opset_import: ["" : 17]>
g (float[2,b,2,p,16] past, float[b,2,s,16] k)
  => (float[b,2,t,16] keys, float[2,b,2,t,16] present, float[b,2,t,16] sums) {
  zero = Constant<value = int64 {0}>()
  one = Constant<value = int64 {1}>()
  axes = Constant<value_ints = [0]>()
  past_k = Gather<axis = 0>(past, zero)
  past_v = Gather<axis = 0>(past, one)
  keys = Concat<axis = 2>(past_k, k)
  values = Concat<axis = 2>(past_v, k)
  stacked_k = Unsqueeze(keys, axes)
  stacked_v = Unsqueeze(values, axes)
  present = Concat<axis = 0>(stacked_k, stacked_v)
  sums = Add(keys, values)
}"""


def test_a_stack_of_caches_is_computed_in_its_place():
    """Keys are a result by themselves, too, and read by another kernel."""
    compiled = convert_and_build(parser.parse_model(STACKED), "llvm")
    random = np.random.default_rng(0)
    for b, p, s in [(1, 3, 1), (2, 0, 2), (3, 5, 0), (0, 2, 1)]:
        shapes = (2, b, 2, p, 16), (b, 2, s, 16)
        past, k = (random.standard_normal(dims).astype("float32") for dims in shapes)
        present = np.concatenate([past, np.stack([k, k])], 3)
        want = present[0], present, present[0] + present[1]
        for got, expected in zip(compiled(past, k), want, strict=True):
            np.testing.assert_array_equal(got, expected)
    assert len(compiled.executor.plan.kernels) == 3


HALVED = """<ir_version: 8, opset_import: ["": 17]>
halved (float[n, 3, h, w] image, float[4, 3, 3, 3] first, float[4, 8, 2, 2] second,
        float[2, 12, 1, 1] last) => (float[n, 2, h, w] y) {
    skip = Conv <pads = [1, 1, 1, 1]> (image, first)
    half = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (skip)
    again = ConvTranspose <strides = [2, 2]> (half, second)
    both = Concat <axis = 1> (skip, again)
    y = Conv (both, last)
}"""


def test_a_size_that_is_halved_and_doubled_is_itself():
    """It is known at run time whether it is even."""
    model = parser.parse_model(HALVED)
    rng = np.random.default_rng(0)
    for value in [*model.graph.input][1:]:
        shape = [dim.dim_value for dim in value.type.tensor_type.shape.dim]
        weights = rng.standard_normal(shape).astype("float32")
        model.graph.initializer.append(onnx.numpy_helper.from_array(weights, value.name))
        model.graph.input.remove(value)
    compiled = convert_and_build(model, "llvm")
    assert isinstance(compiled.executor, SymbolicExecutor)
    for shape in (1, 3, 6, 10), (2, 3, 34, 2):
        feeds = {"image": rng.standard_normal(shape).astype("float32")}
        (want,) = InferenceSession(model.SerializeToString()).run(None, feeds)
        np.testing.assert_allclose(*compiled.run(None, feeds), want, rtol=1e-4, atol=1e-5)
    with pytest.raises(RunError, match=r"Concat-13 .* axis 2 of 'again' is 6, not 7"):
        compiled(np.zeros((1, 3, 7, 10), "float32"))


def test_a_size_that_is_known_is_compared_with_others():
    """Of one head, that a broadcast may repeat: a number among formulas of sizes."""
    (case,) = (
        c
        for c in collect_testcases("LinearAttention")
        if c.name.endswith("gated_delta_mqa_expanded")
    )
    built = convert_and_build(symbolic(case.model))
    for inputs, wanted in case.data_sets:
        given = {info.name: x for info, x in zip(built.inputs, inputs, strict=True)}
        for ours, theirs in zip(built.run(None, given), wanted, strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)
