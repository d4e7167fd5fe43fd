"""Normalisations and activations recognised from the arithmetic that exporters write."""

import numpy as np
import onnx
import pytest

from .checking import assert_same, model, rewritten

G = np.linspace(0.5, 2, 6, dtype="float32")
B = np.linspace(-1, 1, 6, dtype="float32")
AXES = np.array([-1])

MEAN = "m = ReduceMean(x, axes) d = Sub(x, m)"
ROOT = "v = ReduceMean(q, axes) e = Add(v, eps) r = Sqrt(e)"


def words(body):
    return body.replace("(", " ").replace(")", " ").replace(",", " ").split()


def norm_model(body, shape="N, 3, 6", opset=18, **arrays):
    eps, one, two = (np.float32(v).reshape(()) for v in (1e-3, 1, 2))
    arrays = {"axes": AXES, "eps": eps, "g": G, "b": B, "two": two, "one": one, **arrays}
    used = {name: array for name, array in arrays.items() if name in words(body)}
    return model(f"h (float[{shape}] x) => (float[{shape}] y) {{ {body} }}", opset, **used)


@pytest.mark.parametrize("body, left", [
    (f"{MEAN} q = Pow(d, two) {ROOT} u = Div(d, r) s = Mul(u, g) y = Add(s, b)",
     ["LayerNormalization"]),
    (f"{MEAN} q = Mul(d, d) {ROOT} c = Reciprocal(r) u = Mul(c, d) s = Mul(g, u) y = Add(b, s)",
     ["LayerNormalization"]),
    (f"{MEAN} q = Pow(d, two) {ROOT} y = Div(d, r)", ["LayerNormalization"]),
    (f"q = Pow(x, two) {ROOT} u = Div(x, r) y = Mul(g, u)", ["RMSNormalization"]),
    (f"q = Mul(x, x) {ROOT} c = Div(one, r) u = Mul(x, c) y = Mul(u, g)", ["RMSNormalization"]),
    # HuggingFace's first exports compute the difference twice.
    (f"{MEAN} f = Sub(x, m) q = Pow(f, two) {ROOT} u = Div(d, r) s = Mul(u, g) y = Add(s, b)",
     ["LayerNormalization"]),
])  # fmt: skip
def test_normalisations(body, left):
    proto = norm_model(body)
    assert assert_same(proto, rewritten(proto), rtol=1e-4, atol=1e-5) == left


def test_axes_as_an_attribute():
    body = (
        "m = ReduceMean <axes = [1, 2]> (x) d = Sub(x, m) q = Pow(d, two) "
        "v = ReduceMean <axes = [-2, -1]> (q) e = Add(v, eps) r = Sqrt(e) u = Div(d, r) "
        "y = Mul(u, g)"
    )
    proto = norm_model(body, opset=13, g=np.stack([G, G, B]))
    assert assert_same(proto, rewritten(proto), rtol=1e-4, atol=1e-5) == ["LayerNormalization"]


@pytest.mark.parametrize("body, arrays", [
    # Over an axis in the middle.
    (f"{MEAN} q = Pow(d, two) {ROOT} y = Div(d, r)", {"axes": np.array([1])}),
    # The variance of something else, and no variance at all.
    (f"{MEAN} q = Pow(x, two) {ROOT} y = Div(d, r)", {}),
    (f"{MEAN} q = Pow(d, two) {ROOT} y = Div(x, r)", {}),
    (f"{MEAN} q = Pow(d, two) {ROOT} y = Div(d, r)", {"two": np.float32(4).reshape(())}),
])  # fmt: skip
def test_what_only_looks_like_a_normalisation(body, arrays):
    proto = norm_model(body, **arrays)
    names = assert_same(proto, rewritten(proto), rtol=1e-4, atol=1e-5)
    assert not any(name.endswith("Normalization") for name in names)


@pytest.mark.parametrize("body", [
    f"q = Pow(x, raised) {ROOT} y = Div(x, r)",
    f"{MEAN} q = Mul(d, d) v = ReduceMean(q, axes) e = Add(v, raised) r = Sqrt(e) "
    "y = Div(d, r)",
])  # fmt: skip
def test_a_normalisation_whose_constants_raise_the_rank_stays(body):
    proto = norm_model(body, "5, 6", raised=np.full((1, 1, 1), 2, "float32"))
    proto.graph.output[0].type.tensor_type.shape.dim.insert(0, onnx.TensorShapeProto.Dimension())
    left = assert_same(proto, rewritten(proto), rtol=1e-4, atol=1e-5)
    assert not {"LayerNormalization", "RMSNormalization"} & set(left)


def test_a_scale_per_row_is_no_layer_norm_scale():
    body = f"{MEAN} q = Pow(d, two) {ROOT} u = Div(d, r) y = Mul(u, g)"
    proto = norm_model(body, g=np.ones((3, 1), "float32") * 2)
    names = assert_same(proto, rewritten(proto), rtol=1e-4, atol=1e-5)
    assert names == ["LayerNormalization", "Mul"]


@pytest.mark.parametrize("last", ["Mul(u, u)", "Add(u, u)"])
def test_a_normalisation_beside_itself_is_neither_its_scale_nor_its_bias(last):
    body = f"{MEAN} q = Pow(d, two) {ROOT} u = Div(d, r) y = {last}"
    proto = norm_model(body, "3, 6", axes=np.array([0, 1]))
    names = assert_same(proto, rewritten(proto), rtol=1e-4, atol=1e-5)
    assert names == ["LayerNormalization", last[:3]]


def curve_model(body, shape="N, 6", opset=17, **arrays):
    scalars = {"half": 0.5, "one": 1, "root2": 2**0.5, "iroot2": 0.5**0.5, "three": 3, "two": 2,
               "c": 0.044715, "k": (2 / np.pi) ** 0.5, "a": 1.702}  # fmt: skip
    used = {k: np.float32(v).reshape(()) for k, v in scalars.items() if k in words(body)} | arrays
    return model(f"h (float[{shape}] x) => (float[{shape}] y) {{ {body} }}", opset, **used)


ERF = "p = Div(x, root2) e = Erf(p) q = Add(e, one)"
CUBE = "w = Pow(x, three) v = Mul(w, c) s = Add(x, v) u = Mul(s, k) t = Tanh(u) q = Add(t, one)"


@pytest.mark.parametrize("body", [
    f"{ERF} h = Mul(x, q) y = Mul(h, half)",
    f"{ERF} h = Mul(x, half) y = Mul(h, q)",
    f"{ERF} h = Mul(half, q) y = Mul(h, x)",
    "p = Mul(iroot2, x) e = Erf(p) q = Add(one, e) h = Mul(q, x) y = Mul(half, h)",
    f"{CUBE} h = Mul(x, half) y = Mul(h, q)",
    f"{CUBE} h = Mul(half, q) y = Mul(x, h)",
    # HuggingFace's gelu_fast.
    "s = Mul(x, x) v = Mul(s, c) w = Add(v, one) z = Mul(x, k) u = Mul(z, w) t = Tanh(u) "
    "q = Add(one, t) h = Mul(x, half) y = Mul(h, q)",
])  # fmt: skip
def test_gelu(body):
    proto = curve_model(body)
    assert assert_same(proto, rewritten(proto)) == ["Gelu"]


@pytest.mark.parametrize("body, kept", [
    # Another slope, another constant, another value.
    ("p = Div(x, two) e = Erf(p) q = Add(e, one) h = Mul(x, q) y = Mul(h, half)", "Erf"),
    (f"{ERF} h = Mul(x, q) y = Mul(h, two)", "Erf"),
    ("z = Neg(x) p = Div(x, root2) e = Erf(p) q = Add(e, one) h = Mul(z, q) y = Mul(h, half)",
     "Erf"),
    (CUBE.replace("three", "two") + " h = Mul(x, half) y = Mul(h, q)", "Tanh"),
])  # fmt: skip
def test_what_only_looks_like_a_gelu(body, kept):
    proto = curve_model(body)
    names = assert_same(proto, rewritten(proto))
    assert kept in names and "Gelu" not in names


def test_constants_that_raise_the_rank_stay():
    body = f"{ERF} h = Mul(x, q) y = Mul(h, half)"
    proto = model(
        f"h (float[3, 6] x) => (float[1, 3, 6] y) {{ {body} }}", 17, root2=np.float32([2**0.5]),
        one=np.float32([1]), half=np.full((1, 1, 1), 0.5, "float32"),
    )  # fmt: skip
    assert "Erf" in assert_same(proto, rewritten(proto))


def test_a_curve_read_twice_is_still_computed():
    body = f"{ERF} h = Mul(x, q) g = Mul(h, half) y = Add(g, e)"
    proto = curve_model(body)
    assert sorted(assert_same(proto, rewritten(proto))) == ["Add", "Div", "Erf", "Gelu"]


@pytest.mark.parametrize("body, left", [
    ("s = Sigmoid(x) y = Mul(x, s)", ["Swish"]),
    ("s = Sigmoid(x) y = Mul(s, x)", ["Swish"]),
    ("z = Mul(a, x) s = Sigmoid(z) y = Mul(x, s)", ["Swish"]),
    ("z = Neg(x) s = Sigmoid(z) y = Mul(x, s)", ["Neg", "Sigmoid", "Mul"]),
])  # fmt: skip
def test_swish(body, left):
    proto = curve_model(body)
    assert assert_same(proto, rewritten(proto)) == left
