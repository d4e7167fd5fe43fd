"""Static models as one C function: addresses, threads, libraries beside each other."""

import threading
from itertools import pairwise

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import parser

from tvm_ext import convert_and_build, load
from tvm_ext.executors import threads


def model(body, signature="float[3, 37] x) => (float[3, 37] y"):
    return parser.parse_model(
        f'<ir_version: 9, opset_import: ["" : 17]> g ({signature}) {{ {body} }}'
    )


def run(onnx_model, *arrays, **options):
    return convert_and_build(onnx_model, "llvm", **options)(*arrays)


def floats(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype("float32")


@pytest.mark.parametrize("offset", [4, 8, 36])
def test_inputs_at_any_address(offset):
    raw = np.zeros(4 * 3 * 37 + 64, np.uint8)
    x = raw[offset : offset + 4 * 3 * 37].view("float32").reshape(3, 37)
    x[...] = floats(3, 37)
    product = model("t = Transpose(x) y = MatMul(x, t)", "float[3, 37] x) => (float[3, 3] y")
    np.testing.assert_allclose(run(product, x), x @ x.T, rtol=1e-5, atol=1e-5)


CONVOLUTIONS = parser.parse_model("""<ir_version: 9, opset_import: ["": 17]>
g (float[1, 16, 40, 40] x) => (float[1, 16, 40, 40] y) <float[16, 16, 3, 3] w> {
  a = Conv<pads = [1, 1, 1, 1]>(x, w)
  b = Relu(a)
  c = Conv<pads = [1, 1, 1, 1]>(b, w)
  y = Add(c, b)
}""")
CONVOLUTIONS.graph.initializer.append(
    onnx.numpy_helper.from_array(np.full((16, 16, 3, 3), 0.01, "float32"), "w")
)


def test_what_kernels_need_for_themselves_is_in_the_plan():
    """Padded inputs lie in the arena, or in the scratch memory of threads: nothing is allocated
    by kernels, and no byte is used twice at a time."""
    one = convert_and_build(CONVOLUTIONS, "llvm", opt_level=1)
    plan = one.executor.plan
    assert any(kernel.scratch for kernel in plan.kernels)
    for number, kernel in enumerate(plan.kernels):
        roots = [slot.root for slot in kernel.operands if slot.root.kind == "arena"]
        roots += [s for k in plan.kernels for s in k.writes
                  if s.kind == "arena" and s.live[0] <= number <= s.live[1]]  # fmt: skip
        places = sorted((s.offset, s.offset + s.nbytes) for s in set(roots))
        assert all(end <= start for (_, end), (start, _) in pairwise(places))
        assert all(end <= plan.arena_bytes for _, end in places)
    x = floats(1, 16, 40, 40)
    session = onnxruntime.InferenceSession(CONVOLUTIONS.SerializeToString())
    (want,) = session.run(None, {"x": x})
    for level in 1, 3:
        got = convert_and_build(CONVOLUTIONS, "llvm", opt_level=level)(x)
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


def test_more_threads_get_more_scratch_memory():
    one = convert_and_build(CONVOLUTIONS, "llvm")
    assert one.executor.plan.scratch_bytes > 0
    x, before = floats(1, 16, 40, 40), threads.threads()
    want = one(x)
    try:
        for count in 1, 2, 1:
            threads.set_threads(count)
            np.testing.assert_array_equal(one(x), want)
    finally:
        threads.set_threads(before)


def test_kernels_named_as_functions_of_libc():
    """An operator names its kernel; `exp` and `memset` are also what kernels call."""
    x = floats(3, 37)
    np.testing.assert_allclose(run(model("y = Exp(x)"), x, opt_level=0), np.exp(x), rtol=2e-6)


def test_models_beside_each_other_and_from_many_threads(tmp_path):
    sums = convert_and_build(model("y = Add(x, x)"), "llvm")
    squares = convert_and_build(model("y = Mul(x, x)"), "llvm")
    sums.save(tmp_path / "sums.tvmx")
    again = load(tmp_path / "sums.tvmx")
    wrong = []

    def call(seed):
        for k in range(50):
            x = floats(3, 37, seed=100 * seed + k)
            agree = [(sums(x) == x + x), (squares(x) == x * x), (again(x) == x + x)]
            wrong.extend(seed for equal in agree if not equal.all())

    callers = [threading.Thread(target=call, args=(k,)) for k in range(4)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert wrong == []


def test_an_output_that_is_also_read_is_also_returned():
    body = "y = Relu(x) z = Neg(y) r = Identity(y) v = Reshape(y, s)"
    outputs = "float[3, 37] y, float[3, 37] z, float[3, 37] r, float[37, 3] v, float[3, 37] x"
    signature = f"float[3, 37] x) => ({outputs}) <int64[2] s = {{37, 3}}> {{ {body} }} #"
    text = f'<ir_version: 9, opset_import: ["" : 17]> g ({signature}'.split("#")[0]
    proto, x = parser.parse_model(text), floats(3, 37)
    y, z, r, v, same = convert_and_build(proto, "llvm")(x)
    for got, want in ((y, np.maximum(x, 0)), (z, -y), (r, y), (v, y.reshape(37, 3)), (same, x)):
        np.testing.assert_array_equal(got, want)
    y[...] = 0
    assert v.any() and r.any() and x.any()


@pytest.mark.parametrize("rows, more, output, shape", [
    ("2", "", "", None), ("n", "", "", None),
    ("n", "found = NonZero(x)", ", int64[3, h] found", (3, 0)),
    ("n", "found = SequenceConstruct(x)", ", seq(float[n, 0, 4]) found", (1, 2, 0, 4)),
])  # fmt: skip
def test_a_result_without_elements_has_the_shape_that_it_should(rows, more, output, shape):
    """Kernels that copy no element, in each executor: Relax reads a 0 in a shape as "the same"."""
    text = f"""<ir_version: 9, opset_import: ["": 17]>
    g (float[{rows}, 0, 4] x) => (float[a, b, c] turned, float[d, e, f] slice
       {output}) <int64[1] two = {{2}}, int64[1] zero = {{0}}>
    {{ turned = Transpose <perm = [1, 0, 2]> (x)  slice = Slice(x, two, two, zero)  {more} }}"""
    shapes = [np.shape(y) for y in run(parser.parse_model(text), floats(2, 0, 4))]
    assert shapes == [(0, 2, 4), (0, 0, 4), *([shape] if more else [])]


def test_the_profile_times_every_kernel():
    built = convert_and_build(
        model("a = Softmax(x) y = CumSum(a, k)", "float[3, 37] x, int64 k) => (float[3, 37] y"),
        "llvm",
    )
    calls, seconds = built._executor.time_kernels([floats(3, 37), np.array(1)], repeat=3)
    assert seconds.shape == (3, len(calls)) and (seconds > 0).all()


def test_memory_of_a_large_result_is_lent_again_when_nobody_refers_to_it():
    proto = model("y = Neg(x)", "float[300, 200] x) => (float[300, 200] y")
    compiled, x = convert_and_build(proto, "llvm"), floats(300, 200)
    (first,) = compiled.run(None, {"x": x})
    row, where = first[7], first.ctypes.data
    (second,) = compiled.run(None, {"x": 2 * x})
    del first  # a row of it is still there
    (third,) = compiled.run(None, {"x": 3 * x})
    assert len({where, second.ctypes.data, third.ctypes.data}) == 3
    for factor, result in (1, row), (2, second[7]), (3, third[7]):
        np.testing.assert_array_equal(result, -factor * x[7])
    again = third.ctypes.data
    del third, result, factor
    (fourth,) = compiled.run(None, {"x": x})
    assert fourth.ctypes.data == again
