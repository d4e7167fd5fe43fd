"""Numbers of channels that fill no vectors, with copies of some beside them."""

import numpy as np
import onnx
import pytest

from tests.onnxruntime_oracle import run_onnxruntime
from tvm_ext import convert_and_build
from tvm_ext.errors import ConversionError

from .checking import assert_same, model, rewritten

RNG = np.random.default_rng(0)


def weights(**shapes):
    """Normal ones, whose sums are about one."""
    return {
        name: (RNG.normal(size=shape) / np.sqrt(np.prod(shape[1:]))).astype("float32")
        for name, shape in shapes.items()
    }


def network(body, channels=58, opset=18, after=8, **arrays):
    """``body`` makes d of c, both of an odd number of channels, and convolves with v."""
    filters = weights(w=(channels, 4, 1, 1), v=(channels, 1, 3, 3), u=(after, channels, 1, 1))
    graph = f"""g (float[2, 4, 7, 5] x) => (float[2, {after}, h, b] y) {{
                c = Conv (x, w) {body} y = Conv (d, u) }}"""
    return model(graph, opset, **(filters | arrays))


def depthwise(channels=58):
    return f"Conv <group = {channels}, pads = [1, 1, 1, 1]>"


def groups(result):
    """The groups of each Conv but those of one."""
    found = [n.attributes.get_int("group", 1) for n in result.graph if n.op_type == "Conv"]
    return [count for count in found if count > 1]


def check(proto, *wanted):
    made = rewritten(proto, 2)
    assert_same(proto, made, rtol=1e-4, atol=1e-5)
    assert groups(made) == list(wanted)


VECTOR = {"k": RNG.normal(size=(1, 58, 1, 1)).astype("float32"), "one": np.float32(0.5)}
WIDENED = {
    "elements": "e = Relu (c) s = Sigmoid (e) f = Mul (e, s) d = {} (f, v)",
    "constants": "e = Add (c, k) f = Sub (one, e) d = {} (f, v)",
    "clipped": "e = Clip (c, , one) f = {} (e, v) d = HardSwish (f)",
    "a sum of two": "e = Conv (x, w) f = {} (c, v) d = Add (f, e)",
    "pools": "f = {} (c, v) d = MaxPool <kernel_shape = [3, 3]> (f)",
    "bias": "f = {} (c, v, b) d = Relu (f)",
    "norm": "e = {} (c, v) d = BatchNormalization (e, b, b, b, a)",
    "a layer between": "e = {} (c, v) f = Conv (e, t) d = {} (f, v)",
    "constants of fewer axes": "e = Add (c, q) f = Mul (r, e) d = {} (f, v)",
    "a gate of pixels": "m = Conv (x, o) e = Mul (m, c) d = {} (e, v)",
    "an infinite factor": "e = Mul (c, inf) d = {} (e, v)",
}


@pytest.mark.parametrize("body", WIDENED)
def test_channels_that_only_convolutions_see(body):
    own = weights(b=(58,), t=(58, 58, 1, 1), q=(58, 1, 1), r=(7, 5), o=(1, 4, 1, 1))
    own["a"], own["inf"] = np.full(58, 2.0, "float32"), np.float32(np.inf)
    text = WIDENED[body].replace("{}", depthwise())
    check(network(text, **VECTOR, **own), *[64] * text.count("group"))


@pytest.mark.parametrize("opset", [13, 18])
def test_a_gate_of_the_mean_of_pixels(opset):
    axes = "<axes = [2, -1]> (f)" if opset < 18 else "(f, axes)"
    text = f"""f = {depthwise()} (c, v) m = ReduceMean {axes} r = Conv (m, p) q = Relu (r)
               s = Conv (q, o, b) g = HardSigmoid (s) d = Mul (g, f)"""
    arrays = weights(p=(6, 58, 1, 1), o=(58, 6, 1, 1), b=(58,)) | {"axes": np.array([2, -1])}
    check(network(text, opset=opset, **arrays), 64)


KEPT = {
    "an output of the model": "d = {} (c, v)",
    "a slice": "e = Slice (c, n0, n9, n1) f = Concat <axis = 1> (e, e) d = {} (c, v)",
    "a quotient": "e = Div (c, c) d = {} (e, v)",
    "a mean of channels": "m = ReduceMean <keepdims = 1> (c, n1) e = Mul (c, m) d = {} (e, v)",
    "a softmax": "e = Softmax <axis = 1> (c) d = {} (e, v)",
    "slopes": "e = PRelu (c, k) d = {} (e, v)",
}


@pytest.mark.parametrize("body", KEPT)
def test_channels_that_others_see(body):
    proto = network(
        KEPT[body].replace("{}", depthwise()), **VECTOR, n0=np.array([0]), n9=np.array([29]),
        n1=np.array([1]),
    )  # fmt: skip
    if body == "an output of the model":
        proto.graph.output.append(onnx.helper.make_tensor_value_info("c", 1, (2, 58, 7, 5)))
    if body == "a slice":
        proto.graph.output.append(onnx.helper.make_tensor_value_info("f", 1, None))
    check(proto, 58)


@pytest.mark.parametrize("channels", [24, 18, 36])
def test_channels_that_fill_vectors_or_would_grow_too_much(channels):
    check(network(f"d = {depthwise(channels)} (c, v)", channels), channels)


def test_other_operands_of_as_many_rows():
    """An axis of 58 that is no axis of channels, of an operand of fewer axes."""
    body = f"c = Conv (x, w) e = Mul (c, p) d = {depthwise()} (e, v) y = Conv (d, u)"
    graph = f"g (float[2, 4, 58, 5] x, float[1, 58, 5] p) => (float[2, 8, 58, 5] y) {{ {body} }}"
    filters = weights(w=(58, 4, 1, 1), v=(58, 1, 3, 3), u=(8, 58, 1, 1))
    check(model(graph, 18, **filters), 58)


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
@pytest.mark.parametrize("per_channel", [True, False])
def test_filters_of_8_bits(per_channel, dtype):
    """Dequantised, as quantisers leave them, and between activations that are quantised, too.

    What is beside codes of a zero point stands for 0.
    """
    names, zero = ("w", "v", "u"), 0 if dtype == "int8" else 120
    filters = {"w": (58, 4, 1, 1), "v": (58, 1, 3, 3), "u": (8, 58, 1, 1)}
    arrays = {}
    for n in names:
        own = filters[n][0] if per_channel else ()
        arrays[f"{n}q"] = (RNG.integers(-99, 99, filters[n]) + zero).astype(dtype)
        arrays[f"{n}s"] = np.full(own, 0.01, "float32")
        arrays[f"{n}z"] = np.full(own, zero, dtype)
    lines = [f"{n} = DequantizeLinear <axis = 0> ({n}q, {n}s, {n}z)" for n in names]
    quantised = "cq = QuantizeLinear (c, one, zero) e = DequantizeLinear (cq, one, zero)"
    graph = f"""g (float[2, 4, 7, 5] x) => (float[2, 8, 7, 5] y) {{ {" ".join(lines)}
                c = Conv (x, w) {quantised} d = {depthwise()} (e, v) y = Conv (d, u) }}"""
    arrays |= {"one": np.float32(0.05), "zero": np.uint8(3)}
    proto = model(graph, 18, **arrays)
    x = {"x": RNG.normal(size=(2, 4, 7, 5)).astype("float32")}
    built = convert_and_build(proto)
    (want,), (got,) = run_onnxruntime(proto, x), built.run(None, x)
    # A sum that lies between two codes may be rounded either way.
    np.testing.assert_allclose(got, want, rtol=0, atol=np.abs(want).max() * 2e-2)
    assert "depthwise_conv2d" in built.sources()["select"]


def test_weights_of_the_wrong_rank_are_left_to_the_refusal():
    graph = """g (float[1, 3, 5, 5] x) => (float[a, b, c, d] y) {
                   y = Conv <kernel_shape = [3, 3]> (x, w) }"""
    proto = model(graph, 6, **weights(w=(4,)))
    with pytest.raises(ConversionError, match=r"cannot convert Conv-1 'y' \(opset 6\)"):
        convert_and_build(proto)


def between(body, channels, window=3, vector=16, level=3, opset=18, ends=(8, 8), **arrays):
    """The filters of each Conv, where ``body`` makes d of c, which has so many channels."""
    before, after = ends
    filters = weights(
        w=(channels, before, window, window), b=(channels,), o=(1, before, window, window),
        t=(channels, channels, window, window), u=(after, channels, window, window),
    )  # fmt: skip
    graph = f"""g (float[2, {before}, 11, 13] x) => (float[2, p, h, b] y) {{
                c = Conv (x, w, b) {body} y = Conv (d, u) }}"""
    proto = model(graph, opset, **filters, **arrays)
    made = rewritten(proto, level, vector)
    assert_same(proto, made, rtol=1e-4, atol=1e-5)
    return [n.inputs[1].shape[0] for n in made.graph if n.op_type == "Conv"]


@pytest.mark.parametrize(
    ("channels", "vector", "wide"),
    [(61, 16, 64), (24, 16, 32), (18, 16, 32), (104, 16, 112), (36, 8, 40), (18, 4, 20),
     (17, 16, 17), (8, 16, 8), (40, 8, 40), (48, 16, 48), (61, 0, 61)],
)  # fmt: skip
def test_channels_between_windows_that_mix_them(channels, vector, wide):
    assert between("d = Relu (c)", channels, vector=vector) == [wide, 8]


@pytest.mark.parametrize(("channels", "wide"), [(61, 64), (104, 104), (33, 33)])
def test_channels_between_pixels_are_hardly_more(channels, wide):
    assert between("d = Relu (c)", channels, window=1) == [wide, 8]


@pytest.mark.parametrize(("channels", "wide"), [(24, 24), (33, 33), (61, 64)])
def test_windows_of_a_picture_are_not_winograds(channels, wide):
    assert between("d = Relu (c)", channels, ends=(3, 4)) == [wide, 4]


def test_channels_are_filled_up_where_winograds_method_may_be_used():
    assert between("d = Relu (c)", 61, level=2) == [61, 8]


@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan])
def test_what_is_infinite_in_a_channel_is_so_behind(value):
    """Of one channel that has a copy, or has none; clips make numbers of it."""
    for channel in 0, 40:
        filters = weights(w=(61, 4, 3, 3), b=(61,), u=(8, 61, 3, 3))
        filters["b"][channel] = value
        for body in "Relu (c)", "Clip (c, least, most)", "Identity (c)":
            graph = f"""g (float[1, 4, 9, 9] x) => (float[1, 8, 5, 5] y) {{
                        c = Conv (x, w, b) d = {body} y = Conv (d, u) }}"""
            proto = model(graph, 18, **filters, least=np.float32(-1), most=np.float32(6))
            made = rewritten(proto, 3, 16)
            assert [n.inputs[1].shape[0] for n in made.graph if n.op_type == "Conv"] == [64, 8]
            assert_same(proto, made, rtol=1e-4, atol=1e-5)


FILLED = {
    "a residual": "e = Relu (c) f = Conv <pads = [1, 1, 1, 1]> (e, t) d = Add (f, e)",
    "constants": "e = Mul (c, k) d = Tanh (e)",
    "resized": "e = Resize (c, , s) d = Relu (e)",
    "a gate of pixels": "m = Conv (x, o) d = Mul (c, m)",
}


@pytest.mark.parametrize("body", FILLED)
def test_what_runs_between_windows(body):
    arrays = {"k": RNG.normal(size=(61, 1, 1)).astype("float32"), "s": np.float32([1, 1, 2, 1.5])}
    assert set(between(FILLED[body], 61, **arrays)) <= {64, 8, 1}


def test_factors_are_the_second_operand_of_the_first_resize():
    factors = np.float32([1, 1, 2, 1.5])
    assert between("d = Resize (c, s)", 61, opset=10, s=factors) == [64, 8]


KEPT_BETWEEN = {
    "joined": "d0 = Concat <axis = 1> (c, c) d = Slice (d0, n0, n61, n1)",
    "resized to sizes": "d = Resize (c, , , n4)",
    "resized channels": "e = Resize (c, , s) d = Slice (e, n0, n61, n1)",
    "cropped": """d = Resize <coordinate_transformation_mode = "tf_crop_and_resize",
                              mode = "linear"> (c, roi, half)""",
    "an exponential": "e = Exp (c) d = Reciprocal (e)",
}


@pytest.mark.parametrize("body", KEPT_BETWEEN)
def test_what_sees_how_many_channels_there_are(body):
    arrays = {"s": np.float32([1, 2, 1, 1]), "n4": np.array([2, 61, 18, 22])}
    arrays |= {"half": np.float32([1, 1, 0.5, 0.5]), "roi": np.float32([0, 0, 0, 0, 1, 1, 1, 1])}
    arrays |= {f"n{k}": np.array([k]) for k in (0, 1, 61)}
    assert between(KEPT_BETWEEN[body], 61, **arrays) == [61, 8]


@pytest.mark.parametrize(("cpu", "channels"), [("x86-64-v4", 32), ("x86-64-v3", 24)])
def test_vectors_of_the_target_are_filled(cpu, channels):
    filters = weights(w=(24, 4, 3, 3), u=(8, 24, 3, 3))
    graph = "g (float[1, 4, 9, 9] x) => (float[1, 8, 5, 5] y) { c = Conv (x, w) y = Conv (c, u) }"
    built = convert_and_build(model(graph, 18, **filters), {"kind": "llvm", "mcpu": cpu})
    assert f"R.Tensor((1, {channels}, 7, 7)" in built.sources()["import"]
