"""Models that leave ranks open, against onnxruntime."""

import pickle

import numpy as np
import onnx
import pytest

from tests.onnxruntime_oracle import run_onnxruntime
from tvm_ext import ModelByRank, convert_and_build, load
from tvm_ext.errors import BuildError, ConversionError, InputError, RunError

RNG = np.random.default_rng(7)


def floats(*shape):
    return RNG.standard_normal(shape).astype("float32")


def model_of(text):
    """A model whose dim ``any`` stands for any number of dims; no output declares a shape."""
    model = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": 23]> case {text}')
    for info in (*model.graph.input, *model.graph.output):
        dims = info.type.tensor_type.shape.dim
        if info in model.graph.output or (dims and dims[0].dim_param == "any"):
            info.type.tensor_type.ClearField("shape")
    return model


def check(text, *runs, opt_level=3):
    model = model_of(text)
    compiled = convert_and_build(model, "llvm", opt_level=opt_level)
    for arrays in runs:
        feeds = {info.name: array for info, array in zip(compiled.inputs, arrays, strict=True)}
        for got, want in zip(compiled.run(None, feeds), run_onnxruntime(model, feeds), strict=True):
            assert got.shape == want.shape
            np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)
    return compiled


@pytest.mark.parametrize("opt_level", [0, 3])
@pytest.mark.parametrize(
    ("nodes", "arrays"),
    [
        ("y = Softmax (x)", [(3,), (2, 3), (4, 1, 2, 5), (0, 3)]),
        ("y = Transpose (x)", [(7,), (2, 3), (2, 3, 4, 5)]),
        ("y = Flatten (x)", [(2, 3), (3, 0, 2), (2, 1, 4, 5)]),
        (
            """s = Shape (x)  flat = Constant <value_ints = [-1]> ()  row = Reshape (x, flat)
               sum = ReduceSum <keepdims = 0> (x)  moved = Add (row, sum)  y = Reshape (moved, s)
            """,
            [(), (7,), (2, 3, 4, 5)],
        ),
    ],
)
def test_an_input_of_any_rank(nodes, arrays, opt_level):
    check(
        f"(float[any] x) => (float y) {{ {nodes} }}",
        *[(floats(*shape),) for shape in arrays],
        opt_level=opt_level,
    )


def test_inputs_that_stretch_each_other():
    shapes = ((2, 3), (3,)), ((3,), (2, 1)), ((1, 2, 1), (1, 1, 5)), ((), (2,)), ((0, 3), (3,))
    check(
        "(float[any] x, float[any] z) => (float y) { y = Add (x, z) }",
        *[(floats(*x), floats(*z)) for x, z in shapes],
    )


def test_products_of_any_rank():
    shapes = ((2, 3), (3, 4)), ((3,), (3, 4)), ((5, 1, 2, 3), (6, 3, 2))
    check(
        "(float[any] x, float[any] z) => (float y) { y = MatMul (x, z) }",
        *[(floats(*x), floats(*z)) for x, z in shapes],
    )


@pytest.mark.parametrize(
    ("nodes", "lists"),
    [
        ("y = Reshape (x, k)", [[24], [4, 6], [1, 2, 3, 2, 2]]),
        ("q = Reshape (x, k)  y = Relu (q)", [[24], [4, -1]]),
        ("y = Unsqueeze (x, k)", [[0, 4], [1]]),
        ("y = Squeeze (x, k)", [[1]]),
        ("y = Expand (x, k)", [[5, 1, 1, 1], [1]]),
        ("y = ReduceSum <keepdims = 0> (x, k)", [[1, 2], [0]]),
        ("y = ConstantOfShape (k)", [[2, 3], [], [0]]),
    ],
)
def test_a_list_whose_length_decides_the_rank(nodes, lists):
    x = floats(2, 1, 12)
    check(
        f"(float[a, b, c] x, int64[n] k) => (float y) {{ {nodes} }}",
        *[(x, np.array(numbers, "int64")) for numbers in lists],
    )


def test_places_whose_length_decides_the_rank():
    x = floats(2, 3, 4)
    check(
        "(float[a, b, c] x, int64[n, k] places) => (float y) { y = GatherND (x, places) }",
        *[(x, np.array(places)) for places in ([[1, 2], [0, 0]], [[1, 2, 3]], [[1]])],
    )


def test_two_lists_that_only_together_decide():
    compiled = check(
        """(float[a, b, c] x, int64[n] k, int64[m] j) => (float y)
           { q = Reshape (x, k)  r = Relu (q)  y = Reshape (r, j) }""",
        (floats(2, 3, 4), np.array([6, 4]), np.array([24])),
        (floats(2, 3, 4), np.array([24]), np.array([1, 24, 1])),
    )
    assert isinstance(compiled, ModelByRank)


def test_a_rank_and_a_list():
    check(
        "(float[any] x, int64[n] k) => (float y) { y = Reshape (x, k) }",
        (floats(6), np.array([2, 3])),
        (floats(2, 3), np.array([6])),
    )


def test_each_combination_is_built_once_for_all_sizes():
    model = convert_and_build(model_of("(float[any] x) => (float y) { y = Relu (x) }"), "llvm")
    assert model.of({"x": floats(2, 3)}) is model.of({"x": floats(5, 1)})
    assert model.of({"x": floats(2)}) is not model.of({"x": floats(2, 3)})
    assert [str(info) for info in model.inputs] == ["x: float32[...]"]
    assert model.benchmark({"x": floats(3)}, warmup=0, repeat=2).seconds
    assert model.profile({"x": floats(3)}, repeat=1).kernels


def test_given_shapes_leave_nothing_open(tmp_path):
    given = model_of("(float[any] x) => (float y) { y = Relu (x) }")
    model = convert_and_build(given, "llvm", shapes={"x": [None, 3]})
    assert not isinstance(model, ModelByRank)
    model.save(tmp_path / "model.tvmx")


def test_what_is_not_there_before_a_call(tmp_path):
    given = model_of("(float[any] x) => (float y) { y = Relu (x) }")
    model = convert_and_build(given, "llvm")
    assert model.memory is None
    assert "ModelByRank(x: float32[...] -> y: float32[...])" == repr(model)
    assert "float32[...]" in model._repr_html_()
    for ask in (model.sources, lambda: model.executor, lambda: model.save(tmp_path / "m.tvmx"),
                lambda: pickle.dumps(model)):  # fmt: skip
        with pytest.raises(BuildError, match="the ranks that 'x' decide: give their shapes"):
            ask()
    with pytest.raises(BuildError, match="the ranks that 'x' decide"):
        convert_and_build(given, "llvm", keep=tmp_path / "kept")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("shape", [(), (2,), (0, 3), (2, 1, 2)])
def test_strings(shape):
    model = model_of("(string[any] x) => (string y) { y = StringConcat (x, x) }")
    x = np.full(shape, "ab", object)
    got = convert_and_build(model, "llvm")(x)
    assert got.shape == shape
    assert set(got.flat) <= {"abab"}


def test_calls_that_do_not_fit():
    model = convert_and_build(model_of("(float[any] x) => (float y) { y = Relu (x) }"), "llvm")
    with pytest.raises(InputError, match="'x'"):
        model(np.zeros(3, "int64"))
    with pytest.raises(InputError, match="missing"):
        model.run(None, {})
    shaped = convert_and_build(
        model_of("(float[2, 3] x, int64[n] k) => (float y) { y = Reshape (x, k) }"), "llvm"
    )
    with pytest.raises(RunError, match="Reshape"):
        shaped(floats(2, 3), np.array([4, 4]))


def test_a_rank_that_no_list_decides_is_refused():
    model = model_of("""(float[a, b] x, int64[n] k) => (float y)
        { rows = NonZero (x)  some = Constant <value_ints = [0]> ()
          row = Gather <axis = 0> (rows, some)  flat = Constant <value_ints = [-1]> ()
          shape = Reshape (row, flat)  y = ConstantOfShape (shape) }""")
    with pytest.raises(ConversionError, match=r"ConstantOfShape.*the rank of the result"):
        convert_and_build(model, "llvm")


SQUEEZED = "(float[n,m,k,1] x) => (float y) { z = Squeeze (x)  y = Softmax <axis = 0> (z) }"


def test_sizes_of_1_that_are_squeezed():
    compiled = check(
        SQUEEZED,
        *[(floats(*shape),) for shape in [(2, 3, 4, 1), (1, 3, 4, 1), (1, 1, 5, 1), (3, 1, 1, 1)]],
        *[(floats(*shape),) for shape in [(1, 2, 2, 1), (4, 3, 2, 1)]],
    )
    x = floats(1, 3, 2, 1)
    assert compiled.profile({"x": x}, repeat=1).kernels
    assert compiled(x).shape == (3, 2)


def test_a_saved_model_is_that_for_other_sizes(tmp_path):
    compiled = convert_and_build(model_of(SQUEEZED), "llvm")
    compiled.save(tmp_path / "model.tvmx")
    saved = load(tmp_path / "model.tvmx")
    assert saved(floats(2, 3, 4, 1)).shape == (2, 3, 4)
    with pytest.raises(RunError, match=r"Squeeze-23 'z' .*2 dims are not 1, and the result has 3"):
        saved(floats(1, 3, 4, 1))


def test_a_cached_model_serves_sizes_of_1(tmp_path):
    for _ in range(2):
        compiled = convert_and_build(model_of(SQUEEZED), "llvm", cache=tmp_path)
        assert compiled(floats(1, 3, 4, 1)).shape == (3, 4)


def test_sizes_of_1_with_shapes_that_were_given():
    compiled = convert_and_build(model_of(SQUEEZED), "llvm", shapes={"x": [None, 3, None, None]})
    assert compiled(floats(1, 3, 4, 1)).shape == (3, 4)
    assert compiled(floats(2, 3, 4, 1)).shape == (2, 3, 4)
    with pytest.raises(InputError, match="3"):
        compiled(floats(1, 2, 4, 1))
