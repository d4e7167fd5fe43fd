"""Kernels that run over a batch in strips of a few images."""

import re

import numpy as np
import onnx
import pytest
from onnx import parser
from tvm import relax, tirx, topi

from tests.oracle import reference
from tvm_ext import convert_and_build, load, pipeline, targets
from tvm_ext.build import leave_out
from tvm_ext.executors.choice import is_planned
from tvm_ext.passes.strips import NAME, strips

CONVOLUTIONS = """
    a = Conv <pads=[1, 1, 1, 1]> (x, w0, b0)
    r = Relu (a)
    d = Conv <pads=[1, 1, 1, 1], group=16> (r, w1)
    s = Add (d, r)
    m = GlobalAveragePool (s)
    y = Mul (s, m)
"""
WEIGHTS = {"w0": (16, 3, 3, 3), "b0": (16,), "w1": (16, 1, 3, 3)}


def network(text, x, weights, outputs="float[n,c,h,w] y"):
    """A model and its input."""
    rng = np.random.default_rng(0)
    dims = ",".join(map(str, x))
    model = parser.parse_model(
        f"""<ir_version: 10, opset_import: ["": 22]>
        graph (float[{dims}] x) => ({outputs}) {{{text}}}"""
    )
    for name, shape in weights.items():
        array = rng.standard_normal(shape).astype("float32")
        model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    return model, {"x": rng.standard_normal(x).astype("float32")}


def in_strips(cache=4096, target="llvm", opt_level=3):
    """The pipeline that cuts batches also where caches hold what kernels hand on."""
    target = targets.resolve(target)
    steps = leave_out(pipeline.default(target, opt_level), [NAME])
    return steps.insert(NAME, strips(target, is_planned, cache, start=0), before="ScheduleKernels")


def cut(built):
    """The number of images that each kernel takes at once, of those that run in strips."""
    names = (kernel.symbol.rpartition("_strip") for kernel in built.executor.plan.kernels)
    return [int(size) for _, found, size in names if found]


def equals_reference(built, model, feeds):
    for got, wanted in zip(built.run(None, feeds), reference(model, feeds), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("opt_level", [2, 3])
@pytest.mark.parametrize("images", [2, 7, 12])
def test_results_are_those_of_the_whole_batch(images, opt_level):
    model, feeds = network(CONVOLUTIONS, (images, 3, 17, 19), WEIGHTS)
    built = convert_and_build(model, steps=in_strips(opt_level=opt_level))
    assert set(cut(built)) == {1}
    equals_reference(built, model, feeds)


def test_the_larger_the_caches_the_larger_the_strips():
    model, feeds = network(CONVOLUTIONS, (12, 3, 16, 16), WEIGHTS)
    image = 16 * 16 * 16 * 4
    found = []
    for images in 1, 2, 4:
        built = convert_and_build(model, steps=in_strips(cache=3 * images * image))
        found.append(cut(built)[-1])
        equals_reference(built, model, feeds)
    assert found == sorted(set(found))
    assert not cut(convert_and_build(model, steps=in_strips(cache=1 << 30)))


def test_the_arena_holds_one_strip():
    model, _ = network(CONVOLUTIONS, (12, 3, 64, 64), WEIGHTS)
    one, _ = network(CONVOLUTIONS, (1, 3, 64, 64), WEIGHTS)
    built = convert_and_build(model, steps=in_strips())
    alone = convert_and_build(one, steps=in_strips())
    whole = convert_and_build(model, steps=leave_out(in_strips(), [NAME]))
    assert built.memory.arena_bytes < 2 * alone.memory.arena_bytes < whole.memory.arena_bytes / 4


BLUR = "MaxPool <kernel_shape=[3, 3]>"
READ_AND_WRITTEN = {
    "an output that later kernels read": f"t = Exp (x) u = {BLUR} (t) y = Exp (u)",
    "weights for all images": "t = Exp (x) u = Concat <axis=1> (t, x) y = MatMul (u, all)",
    "weights for each image": f"t = Mul (x, each) u = {BLUR} (t) y = Neg (u)",
    "something of all images": f"t = {BLUR} (x) m = ReduceMean (t, first) y = Sub (t, m)",
    "images as rows": f"""f = Flatten (x) t = Softmax (f) u = Reshape (t, halves)
        y = {BLUR} (u)""",
    "other images": f"t = {BLUR} (x) u = Transpose <perm=[1, 0, 2, 3]> (t) y = {BLUR} (u)",
    "images in another order": f"t = {BLUR} (x) u = Gather <axis=0> (t, order) y = {BLUR} (u)",
    "halves of a batch": f"""t = {BLUR} (x) a, b = Split <axis=0, num_outputs=2> (t)
        u = {BLUR} (a) v = {BLUR} (b) y = Sub (u, v)""",
    "several results": f"t = {BLUR} (x) a, b = Split <axis=1, num_outputs=2> (t) y = Mul (a, b)",
    "nothing but one kernel": f"y = {BLUR} (x)",
}


def several(text):
    """A model with one or two outputs, and its input."""
    outputs = "float[n,c,h,w] y" + ", float[n,4,12,9] t" * text.startswith("t = Exp (x) u = Max")
    weights = {"all": (9, 9), "each": (6, 1, 1, 9)}
    model, feeds = network(text, (6, 4, 12, 9), weights, outputs)
    numbers = {"halves": [12, 1, 6, 36], "order": [3, 0, 5, 5, 1, 2], "first": [0]}
    for name, values in numbers.items():
        array = np.array(values, "int64")
        model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    return model, feeds


@pytest.mark.parametrize("what", READ_AND_WRITTEN)
def test_what_kernels_read_and_write(what):
    model, feeds = several(READ_AND_WRITTEN[what])
    built = convert_and_build(model, steps=in_strips())
    assert cut(built)
    equals_reference(built, model, feeds)


def test_what_is_kept_for_later_outlives_the_strips_of_others():
    """Of a tensor read behind the loop, all images are there: other kernels of the loop run between
    one and the next."""
    model, feeds = network(
        f"""a = {BLUR} (x) b = {BLUR} (a) t = {BLUR} (b)
        m = ReduceMax <keepdims=0> (t) y = Mul (t, m)""",
        (6, 4, 22, 29),
        {},
    )
    model.opset_import[0].version = 13
    built = convert_and_build(model, steps=in_strips())
    assert len(cut(built)) >= 3
    equals_reference(built, model, feeds)


def test_all_images_of_what_kernels_before_compute_are_there():
    """A loop ends where it would read for each image what it has yet to write of others."""
    model, feeds = network(
        f"""t = {BLUR} (x) w = MaxPool <kernel_shape=[8, 5]> (x) u = Conv (t, w)
        y = {BLUR} (u)""",
        (6, 4, 12, 9),
        {},
    )
    steps = in_strips(cache=2000)
    plain = leave_out(steps, [step.name for step in steps.steps if step.compound])
    built = convert_and_build(model, steps=plain)
    assert len({kernel.strips for kernel in built.executor.plan.kernels if kernel.strips}) == 2
    equals_reference(built, model, feeds)


def with_symbolic(model, *names):
    for dim, name in zip(model.graph.input[0].type.tensor_type.shape.dim, names, strict=False):
        if name:
            dim.dim_param = name
    return model


@pytest.mark.parametrize("names", [("n",), ("n", None, "h", "w")])
def test_a_symbolic_number_of_images(names):
    model, _ = network(CONVOLUTIONS, (6, 3, 17, 19), WEIGHTS)
    built = convert_and_build(with_symbolic(model, *names), steps=in_strips())
    assert sum("_strip1" in symbol for symbol, _ in built.executor.plan.kernels) >= 4
    rng = np.random.default_rng(0)
    for images in 3, 1, 8, 0:
        x = rng.standard_normal((images, 3, 17, 19)).astype("float32")
        (got,) = built.run(None, {"x": x})
        assert got.shape == (images, 16, 17, 19)
        if images:
            (wanted,) = reference(model, {"x": x})
            np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-4)
    kernels = built.profile({"x": rng.standard_normal((3, 3, 17, 19)).astype("float32")}).kernels
    assert all(kernel.seconds > 0 for kernel in kernels)


@pytest.mark.parametrize("names", [("n",), ("n", None, "h", "w")])
def test_two_batches_as_one(names):
    """Images of either are where those of both are read, of which the first two are of one."""
    text = "t = Relu (x) v = Sigmoid (x) u = Concat <axis=0> (v, t) y = Tanh (u)"
    model, feeds = network(text, (2, 16, 12, 9), {})
    built = convert_and_build(with_symbolic(model, *names), steps=in_strips())
    assert sum("_strip1" in symbol for symbol, _ in built.executor.plan.kernels) == 3
    equals_reference(built, model, feeds)


@pytest.mark.parametrize("what", [what for what in READ_AND_WRITTEN if "each" not in what])
def test_what_kernels_of_a_symbolic_number_of_images_read_and_write(what):
    model, feeds = several(READ_AND_WRITTEN[what])
    built = convert_and_build(with_symbolic(model, "n"), steps=in_strips())
    assert any("_strip1" in symbol for symbol, _ in built.executor.plan.kernels)
    equals_reference(built, model, feeds)


TOKENS = {
    "rows": "t = MatMul (x, square) s = Softmax (t) y = Relu (s)",
    "rows as one axis": """f = Reshape (x, rows) t = MatMul (f, square) s = Softmax (t)
        y = Reshape (s, tokens)""",
    "windows": """a = Reshape (x, halves) w = LayerNormalization <axis=-1> (a, scale)
        t = MatMul (w, square) b = Reshape (t, tokens) y = Add (b, x)""",
    "attention": """q = MatMul (x, square) k = MatMul (x, other)
        y = Attention <q_num_heads=2, kv_num_heads=2> (q, k, x)""",
    "heads and what all have": """a = Reshape (x, heads) b = Transpose <perm=[0, 2, 1, 3]> (a)
        c = Mul (b, each) d = Transpose <perm=[0, 2, 1, 3]> (c) y = Reshape (d, tokens)""",
    "several parts": """a = Reshape (x, thirds) b = Transpose <perm=[2, 0, 1, 3]> (a)
        p, q, r = Split <axis=0, num_outputs=3> (b) c = Mul (p, q) y = Add (c, r)""",
}


@pytest.mark.parametrize("symbolic", [False, True])
@pytest.mark.parametrize("what", TOKENS)
def test_several_rows_for_each_image(what, symbolic):
    weights = {"square": (24, 24), "other": (24, 24), "scale": (24,), "each": (2, 1, 12)}
    model, feeds = network(TOKENS[what], (6, 10, 24), weights, "float y")
    model.graph.output[0].type.tensor_type.ClearField("shape")
    model.opset_import[0].version = 23
    shapes = {
        "rows": [-1, 24],
        "tokens": [-1, 10, 24],
        "halves": [-1, 5, 24],
        "heads": [-1, 10, 2, 12],
        "thirds": [-1, 10, 3, 8],
    }
    for name, dims in shapes.items():
        array = np.array(dims, "int64")
        model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    if symbolic:
        with_symbolic(model, "n")
    built = convert_and_build(model, steps=in_strips(cache=2000))
    symbols = re.findall(r"tvmx_kernel_\w+?_strip(\d)\(", built.sources()["c"])
    assert len(symbols) >= 2
    equals_reference(built, model, feeds)


def test_kernels_whose_results_tell_sizes_run_on_the_whole_batch():
    """Sizes are read as soon as they are there, in a loop after its first strip."""
    target, builder = targets.resolve("llvm"), relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((4,), "int64"))
    with builder.function("main", [x]):
        with builder.dataflow():
            doubled = builder.emit_te(topi.add, x, x)
            halved = builder.emit_te(topi.right_shift, doubled, tirx.const(1, "int64"))
            held = builder.emit(relax.op.tensor_to_shape(halved))
            dims = [tirx.Var(f"d{k}", "int64") for k in range(4)]
            builder.match_cast(held, relax.ShapeType(dims))
            result = builder.emit_output(builder.emit_te(topi.add, halved, x))
        builder.emit_func_output(result)
    made = strips(target, lambda *_: True, cache=8, start=0)(builder.get())
    names = {gv.name_hint for gv in made.functions}
    assert {"add_strip1", "right_shift"} <= names


def test_a_saved_model_a_profile_and_the_values_of_kernels(tmp_path):
    model, feeds = network(CONVOLUTIONS, (6, 3, 17, 19), WEIGHTS)
    built = convert_and_build(model, steps=in_strips())
    whole = convert_and_build(model, steps=leave_out(in_strips(), [NAME]))
    built.save(tmp_path / "model.tvmx")
    loaded = load(tmp_path / "model.tvmx")
    (got,), (wanted,) = loaded.run(None, feeds), whole.run(None, feeds)
    np.testing.assert_array_equal(got, wanted)
    kernels, plain = loaded.profile(feeds, repeat=2).kernels, whole.profile(feeds, repeat=2).kernels
    assert [(k.flops, k.bytes) for k in kernels] == [(k.flops, k.bytes) for k in plain]
    assert all(k.seconds > 0 for k in kernels)
    values, others = (dict(m.executor.values([feeds["x"]])) for m in (loaded, whole))
    assert values.keys() == others.keys()
    for name, arrays in others.items():
        for array, other in zip(values[name], arrays, strict=True):
            np.testing.assert_array_equal(array, other)


def test_an_image_alone_is_not_cut():
    """Nor its channels, which kernels treat apart, too."""
    model, _ = network(f"t = {BLUR} (x) y = {BLUR} (t)", (1, 4, 12, 9), {})
    assert not cut(convert_and_build(model, steps=in_strips(cache=1000)))


def test_large_images_are_cut_by_default_and_small_ones_are_not():
    for size, expected in (128, True), (8, False):
        model, _ = network(CONVOLUTIONS, (4, 3, size, size), WEIGHTS)
        two_cores = targets.resolve("llvm", 2)  # the caches of many hold these images
        assert bool(cut(convert_and_build(model, two_cores))) == expected
