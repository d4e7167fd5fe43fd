"""Layers between quantised tensors become integer products; oracle: onnxruntime, unfused."""

import re

import numpy as np
import pytest
from onnx import numpy_helper, parser

from tests.rewrites.checking import model, operators, rewritten, run
from tvm_ext import convert_and_build

RNG = np.random.default_rng(0)


def bytes_of(dtype, *shape):
    info = np.iinfo(dtype)
    return RNG.integers(info.min, info.max + 1, shape).astype(dtype)


def scalar(value, dtype="float32"):
    return np.array(value, dtype)


def convolution(dtype="uint8", per_channel=True, bias="exact", zero=100):
    """[1, 8, 9, 9] -> a convolution with relu and residual, a pool of 8 bits, and a product."""
    channels = (8,) if per_channel else ()
    scale = RNG.uniform(0.004, 0.006, channels).astype("float32")
    bias_scale = np.float32(0.03) * scale * (1 if bias == "exact" else 0.7)
    constants = {
        "sx": scalar(0.03), "zx": scalar(zero - (128 if dtype == "int8" else 0), dtype),
        "w": bytes_of("int8", 8, 8, 3, 3), "sw": scale, "zw": np.zeros(channels, "int8"),
        "b": RNG.integers(-5000, 5000, 8).astype("int32"), "sb": bias_scale.astype("float32"),
        "zb": np.zeros(channels, "int32"),
        "sy": scalar(0.8), "zy": scalar(3, dtype), "m": bytes_of("int8", 8, 5),
        "sm": RNG.uniform(0.01, 0.02, 5).astype("float32"), "zm": np.zeros(5, "int8"),
        "sz": scalar(2.5), "zz": scalar(7, dtype),
    }  # fmt: skip
    kind = dtype
    graph = (
        f"g ({kind}[1,8,9,9] x) => ({kind}[1,8,4,4] p, {kind}[1,4,4,5] z) {{"
        "  xf = DequantizeLinear(x, sx, zx)  wf = DequantizeLinear<axis = 0>(w, sw, zw)"
        "  bf = DequantizeLinear<axis = 0>(b, sb, zb)"
        "  c = Conv<pads = [1, 1, 1, 1]>(xf, wf, bf)  r = Relu(c)  a = Add(r, xf)"
        "  y = QuantizeLinear(a, sy, zy)  yf = DequantizeLinear(y, sy, zy)"
        "  pf = MaxPool<kernel_shape = [2, 2], strides = [2, 2]>(yf)"
        "  p = QuantizeLinear(pf, sy, zy)  qf = DequantizeLinear(p, sy, zy)"
        "  mf = DequantizeLinear<axis = 1>(m, sm, zm)"
        "  t = Transpose<perm = [0, 2, 3, 1]>(qf)  v = MatMul(t, mf)"
        "  z = QuantizeLinear(v, sz, zz) }"
    )
    return model(graph, **constants)


@pytest.mark.parametrize(
    ("dtype", "per_channel", "bias"),
    [("uint8", True, "exact"), ("int8", False, "exact"), ("uint8", False, "other scale")],
)
def test_a_quantised_network(dtype, per_channel, bias):
    """Sums are exact: what was within rounding of half a unit may move by one."""
    proto = convolution(dtype, per_channel, bias)
    names = operators(rewritten(proto))
    assert "ConvInteger" in names and "Conv" not in names
    x = bytes_of(dtype, 1, 8, 9, 9)
    want = run(proto, {"x": x})
    assert all(len(np.unique(y)) > 20 for y in want)
    for got, exact in zip(convert_and_build(proto).run(None, {"x": x}), want, strict=True):
        distance = np.abs(got.astype("int64") - exact)
        assert distance.max() <= 1 and (distance > 0).mean() < 0.01


def test_weights_that_are_quantised_or_clipped_in_the_model():
    """As training with quantisation leaves them: floats to quantise, codes to clip."""
    floats = RNG.normal(size=(96, 100)).astype("float32")
    proto = model(
        "g (uint8[4,96] x) => (float[4,90] y) {"
        "  xf = DequantizeLinear(x, sx, zx)  q = QuantizeLinear<axis = 1>(w, sw, zw)"
        "  wf = DequantizeLinear<axis = 1>(q, sw, zw)  a = MatMul(xf, wf)"
        "  aq = QuantizeLinear(a, sa, zx)  af = DequantizeLinear(aq, sa, zx)"
        "  c = Clip(v, low, high)  vf = DequantizeLinear<axis = 1>(c, sv, zv)"
        "  y = MatMul(af, vf) }",
        w=floats, sw=RNG.uniform(0.01, 0.02, 100).astype("float32"), zw=np.zeros(100, "int8"),
        sx=scalar(0.03), sa=scalar(0.4), zx=scalar(9, "uint8"), v=bytes_of("int8", 100, 90),
        low=scalar(-127, "int8"), high=scalar(127, "int8"),
        sv=np.full(90, 0.02, "float32"), zv=np.zeros(90, "int8"),
    )  # fmt: skip
    names = operators(rewritten(proto))
    assert names.count("MatMulInteger") == 2 and "Clip" not in names
    x = bytes_of("uint8", 4, 96)
    np.testing.assert_allclose(convert_and_build(proto)(x), run(proto, {"x": x})[0], atol=1.2)


def test_layers_of_other_scales_share_a_kernel():
    codes = bytes_of("int8", 2, 16, 16)
    proto = model(
        "g (uint8[4,16] x) => (uint8[4,16] z) {"
        "  xf = DequantizeLinear(x, s0, zero)  wf = DequantizeLinear<axis = 1>(w, sw, zw)"
        "  a = MatMul(xf, wf)  y = QuantizeLinear(a, s1, zero)  yf = DequantizeLinear(y, s1, zero)"
        "  vf = DequantizeLinear<axis = 1>(v, sv, zw)"
        "  b = MatMul(yf, vf)  z = QuantizeLinear(b, s2, other) }",
        s0=scalar(0.03), s1=scalar(0.4), s2=scalar(1.7), zero=scalar(9, "uint8"),
        other=scalar(70, "uint8"),
        w=codes[0], v=codes[1], zw=np.zeros(16, "int8"),
        sw=np.full(16, 0.01, "float32"), sv=np.full(16, 0.02, "float32"),
    )  # fmt: skip
    compiled = convert_and_build(proto)
    assert len([k for k in compiled.profile(repeat=1).kernels if "matmul" in k.kernel]) == 2
    assert compiled.sources()["schedule"].count("def fused_") == 1
    x = bytes_of("uint8", 4, 16)
    (got,), (want,) = compiled.run(None, {"x": x}), run(proto, {"x": x})
    assert np.abs(got.astype("int64") - want).max() <= 1


@pytest.mark.parametrize("scale", [1.33e36, 2e-37])
def test_masks_of_the_lowest_float_have_scales_that_are_factors(scale):
    proto = model(
        "g (float[2,4] x) => (uint8[2,4] y) { y = QuantizeLinear(x, s, z) }",
        s=scalar(scale), z=scalar(255, "uint8"),
    )  # fmt: skip
    assert operators(rewritten(proto)) == ["Mul", "QuantizeLinear"]
    x = np.array([[-255.4, -3, -0.7, 0], [3, -254.2, -77.7, 1e-3]]) * scale
    x = np.clip(x, np.finfo("float32").min, None).astype("float32")
    np.testing.assert_array_equal(convert_and_build(proto)(x), run(proto, {"x": x})[0])


def test_operators_on_8_bits_share_a_kernel_whatever_their_scales():
    layer = (
        "{y}s = com.microsoft.QLinearAdd({x}, s{k}, z{k}, a, s{k}, z{k}, t{k}, u{k})"
        " {y} = com.microsoft.QLinearMul({x}, s{k}, z{k}, {y}s, t{k}, u{k}, s{n}, z{n}) "
    )
    proto = parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 18, "com.microsoft" : 1]>'
        " g (uint8[8,3,5] x0, uint8[8,3,5] a) => (uint8[8,3,5] x2) {"
        + "".join(layer.format(x=f"x{k}", y=f"x{k + 1}", k=k, n=k + 1) for k in range(2)) + "}"
    )  # fmt: skip
    for k in range(3):
        numbers = {"s": scalar(0.02 + 0.01 * k), "t": scalar(0.03 + k / 255),
                   "z": scalar(100 - k, "uint8"), "u": scalar(k, "uint8")}  # fmt: skip
        proto.graph.initializer.extend(
            numpy_helper.from_array(value, f"{name}{k}") for name, value in numbers.items()
        )
    compiled = convert_and_build(proto)
    assert compiled.sources()["schedule"].count("def fused_") == 1
    # Numbers of its own, of which none of the first layer lies within rounding of half a unit: the
    # second would multiply the unit between them.
    random = np.random.default_rng(8)
    feeds = {name: random.integers(0, 256, (8, 3, 5), "uint8") for name in ("x0", "a")}
    (got,), (want,) = compiled.run(None, feeds), run(proto, feeds)
    assert len(np.unique(want)) > 10 and np.abs(got.astype("int64") - want).max() <= 1


def test_layers_that_quantise_at_run_time_share_a_kernel():
    """Other weights (of 7 bits: without VNNI, onnxruntime adds pairs in 16), the same kernel."""
    constants = {"zero": np.zeros((), "int8")}
    text = "g (float[rows,8] x) => (float[rows,8] y2) {"
    for k, source in ((1, "x"), (2, "y1")):
        constants |= {f"w{k}": bytes_of("int8", 8, 8) // 2, f"c{k}": scalar(0.01 * k)}
        text += (
            f" q{k}, s{k}, z{k} = DynamicQuantizeLinear({source})"
            f" t{k} = MatMulInteger(q{k}, w{k}, z{k}, zero) f{k} = Cast<to = 1>(t{k})"
            f" m{k} = Mul(s{k}, c{k}) y{k} = Mul(f{k}, m{k})"
        )
    layers = model(text + "}", **constants)
    x = RNG.standard_normal((5, 8), dtype="float32")
    compiled = convert_and_build(layers, "llvm")
    kernels = re.findall(r"def (\w*matmul_integer\w*)\(", compiled.sources()["schedule"])
    assert len(kernels) == 1
    np.testing.assert_allclose(compiled(x), run(layers, {"x": x})[0], rtol=1e-4, atol=2e-2)


def test_a_transposed_convolution_of_8_bits_is_a_convolution():
    proto = model(
        "g (uint8[1,4,5,5] x) => (float[1,3,10,10] y) {"
        "  xf = DequantizeLinear(x, sx, zx)  wf = DequantizeLinear<axis = 1>(w, sw, zw)"
        "  bf = DequantizeLinear<axis = 0>(b, sb, zb)"
        "  y = ConvTranspose<strides = [2, 2]>(xf, wf, bf) }",
        sx=scalar(0.03), zx=scalar(100, "uint8"), w=bytes_of("int8", 4, 3, 2, 2),
        sw=np.array([0.01, 0.02, 0.05], "float32"), zw=np.array([0, 3, -7], "int8"),
        b=np.array([100, -200, 50], "int32"), sb=np.array([0.01, 0.02, 0.05], "float32"),
        zb=np.zeros(3, "int32"),
    )  # fmt: skip
    assert "ConvTranspose" not in operators(rewritten(proto))
    x = bytes_of("uint8", 1, 4, 5, 5)
    got, want = convert_and_build(proto)(x), run(proto, {"x": x})[0]
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-4)


def test_transposed_convolutions_whose_filters_have_no_zero_point_sum_integers():
    """Windows that touch, that leave taps of zero, and of groups, one after the other."""
    proto = model(
        "g (uint8[1,4,5,6] x) => (uint8[1,6,41,48] y) {"
        "  xf = DequantizeLinear(x, sx, zx)  wf = DequantizeLinear<axis = 1>(w, sw, zw)"
        "  bf = DequantizeLinear<axis = 0>(b, sb, zb)"
        "  a = ConvTranspose<strides = [2, 2]>(xf, wf, bf)"
        "  aq = QuantizeLinear(a, sa, za)  af = DequantizeLinear(aq, sa, za)"
        "  vf = DequantizeLinear<axis = 1>(v, sv, zv)"
        "  c = ConvTranspose<strides = [2, 2], pads = [0, 1, 0, 0]>(af, vf, d)"
        "  cq = QuantizeLinear(c, sc, zx)  cf = DequantizeLinear(cq, sc, zx)"
        "  uf = DequantizeLinear(u, su)"
        "  e = ConvTranspose<strides = [2, 2], pads = [1, 0, 0, 0], group = 2>(cf, uf)"
        "  y = QuantizeLinear(e, sy, zx) }",
        sx=scalar(0.03), zx=scalar(100, "uint8"), w=bytes_of("int8", 4, 8, 2, 2),
        sw=RNG.uniform(0.004, 0.006, 8).astype("float32"), zw=np.zeros(8, "int8"),
        b=bytes_of("int8", 8).astype("int32") * 30, sb=np.full(8, 2e-4, "float32"),
        zb=np.zeros(8, "int32"), sa=scalar(0.06), za=scalar(120, "uint8"),
        v=bytes_of("int8", 8, 16, 3, 3), sv=RNG.uniform(0.004, 0.006, 16).astype("float32"),
        zv=np.zeros(16, "int8"), d=RNG.normal(size=16).astype("float32"), sc=scalar(0.15),
        u=bytes_of("int8", 16, 3, 2, 2), su=scalar(0.005), sy=scalar(0.2),
    )  # fmt: skip
    names = operators(rewritten(proto))
    assert "ConvTranspose" not in names and "Conv" not in names
    assert names.count("ConvInteger") == 6  # four phases of the second
    assert names.index("DepthToSpace") == names.index("QuantizeLinear") + 1
    x = bytes_of("uint8", 1, 4, 5, 6)
    (got,), (want,) = convert_and_build(proto).run(None, {"x": x}), run(proto, {"x": x})
    distance = np.abs(got.astype("int64") - want)
    assert len(np.unique(want)) > 100 and distance.max() <= 2 and (distance > 0).mean() < 0.05


def quantised_attention(names, zero, mask):
    """The text of an attention whose scores, weights and result are rounded to 8 bits."""
    q, k, v, y = names
    trips = (
        f"{y}s = MatMul({q}f, {k}f)"
        f" {y}sq = QuantizeLinear({y}s, s1, {zero}) {y}sf = DequantizeLinear({y}sq, s1, {zero})"
        f" {y}m = Mul({y}sf, factor)"
        f" {y}mq = QuantizeLinear({y}m, s{y}, {zero}) {y}mf = DequantizeLinear({y}mq, s{y}, {zero})"
        f" {y}a = Add({y}mf, {mask})"
        f" {y}aq = QuantizeLinear({y}a, s{y}, {zero}) {y}af = DequantizeLinear({y}aq, s{y}, {zero})"
        f" {y}p = Softmax<axis = -1>({y}af)"
        f" {y}pq = QuantizeLinear({y}p, s255, z0) {y}pf = DequantizeLinear({y}pq, s255, z0)"
        f" {y}o = MatMul({y}pf, {v}f) {y} = QuantizeLinear({y}o, so, {zero})"
    )
    return f"{q}f = DequantizeLinear({q}, so, {zero}) {trips} "


def test_attention_whose_scores_and_weights_are_rounded_is_one_kernel():
    """Two layers of other scales and zero points share it."""
    shape = "uint8[2,3,13,8]"
    proto = model(
        f"g ({shape} q, {shape} k, {shape} v, {shape} l, {shape} w) => ({shape} y) {{"
        "  kt = Transpose<perm = [0, 1, 3, 2]>(k)  lt = Transpose<perm = [0, 1, 3, 2]>(l)"
        "  kf = DequantizeLinear(kt, sk, z128)  vf = DequantizeLinear(v, sk, z9)"
        "  lf = DequantizeLinear(lt, so, z99)  wf = DequantizeLinear(w, so, z128)"
        + quantised_attention("qkvu", "z128", "mask") + quantised_attention("ulwy", "z99", "mask")
        + "}",
        so=scalar(0.02), sk=scalar(0.02), s1=scalar(0.15), su=scalar(0.03), sy=scalar(0.05),
        s255=scalar(1 / 255), z0=scalar(0, "uint8"), z9=scalar(120, "uint8"),
        z99=scalar(99, "uint8"), z128=scalar(128, "uint8"), factor=scalar(0.3535),
        mask=np.where(np.arange(13) == 4, -100, 0).astype("float32"),
    )  # fmt: skip
    compiled = convert_and_build(proto)
    sources = compiled.sources()
    assert "softmax" not in sources["select"]
    assert len(re.findall(r"def \w*attention\w*\(", sources["schedule"])) == 1
    feeds = {name: bytes_of("uint8", 2, 3, 13, 8) for name in "qkvlw"}
    (got,), (want,) = compiled.run(None, feeds), run(proto, feeds)
    distance = np.abs(got.astype("int64") - want)
    assert len(np.unique(want)) > 50 and distance.max() <= 2 and (distance > 0).mean() < 0.05


def test_of_two_summed_convolutions_8_bits_are_stored():
    """No kernel stores or copies the other summand as floats."""
    proto = model(
        "g (uint8[1,16,5,5] x) => (uint8[1,16,5,5] y) {"
        "  s = DequantizeLinear(x, s0, zero)  r = Relu(s)"
        "  q = QuantizeLinear(r, s0, zero)  xf = DequantizeLinear(q, s0, zero)"
        "  wf = DequantizeLinear<axis = 0>(w, sw, zw)  vf = DequantizeLinear<axis = 0>(v, sv, zw)"
        "  d = Conv(xf, vf)"
        "  dq = QuantizeLinear(d, s2, zero)  df = DequantizeLinear(dq, s2, zero)"
        "  c = Conv(xf, wf)"
        "  cq = QuantizeLinear(c, s1, zero)  cf = DequantizeLinear(cq, s1, zero)"
        "  a = Add(df, cf)  y = QuantizeLinear(a, s3, zero) }",
        s0=scalar(0.03), s1=scalar(0.4), s2=scalar(0.3), s3=scalar(0.6), zero=scalar(9, "uint8"),
        w=bytes_of("int8", 16, 16, 1, 1), v=bytes_of("int8", 16, 16, 1, 1),
        zw=np.zeros(16, "int8"), sw=np.full(16, 0.01, "float32"), sv=np.full(16, 0.01, "float32"),
    )  # fmt: skip
    compiled = convert_and_build(proto)
    script = compiled.sources()["schedule"].partition("@R.function")[0]
    arrays = re.findall(r"T.Buffer\(\([^\"]*\"\w+\"|alloc_buffer\(.*", script)
    images = [array for array in arrays if "int64(5)" in array]
    # Of an array inside, only a type other than float32 is written.
    assert len(images) > 4 and all(re.search(r"\"u?int", array) for array in images)
    x = bytes_of("uint8", 1, 16, 5, 5)
    (got,), (want,) = compiled.run(None, {"x": x}), run(proto, {"x": x})
    assert len(np.unique(want)) > 20 and np.abs(got.astype("int64") - want).max() <= 1


def residual(dtype, zero, outputs="z"):
    """A product of 8 bits, rounded to codes, and added to the residual ``x``."""
    graph = (
        f"g ({dtype}[4,6] x, float[4,6] r) => ({dtype}[4,6] z) {{"
        "  p = Mul(r, factor)  q = QuantizeLinear(p, s, zero)  d = DequantizeLinear(q, t, zero)"
        "  xf = DequantizeLinear(x, u, other)  a = Add(xf, d)  z = QuantizeLinear(a, v, middle) }"
    )
    kinds = {"z": dtype, "q": dtype, "d": "float"}
    results = ", ".join(f"{kinds[name]}[4,6] {name}" for name in outputs.split())
    graph = graph.replace(f"{dtype}[4,6] z) {{", f"{results}) {{")
    powers = {name: scalar(2.0**k) for name, k in zip("stuv", (-2, -3, -4, -1), strict=True)}
    zeros = {"zero": zero, "other": 5, "middle": 128 if dtype == "uint8" else 0}
    numbers = {name: scalar(value, dtype) for name, value in zeros.items()}
    return model(graph, **powers, **numbers, factor=scalar(1.5))


@pytest.mark.parametrize(
    ("dtype", "zero"), [("uint8", 0), ("uint8", 131), ("uint8", 255), ("int8", -128), ("int8", 7)]
)
def test_what_is_added_to_codes_is_rounded_and_not_stored(dtype, zero):
    """Scales are powers of two: nothing may differ, at ties and beyond the range neither."""
    proto = residual(dtype, zero)
    names = operators(rewritten(proto))
    assert names.count("QuantizeLinear") == names.count("DequantizeLinear") == 1
    r = (np.arange(24, dtype="float32") - 12).reshape(4, 6) / 12
    r[0], r[3] = [1e3, -1e3, np.inf, -np.inf, 3e38, -0.0], np.arange(6) * 8 - 20
    feeds = {"x": bytes_of(dtype, 4, 6), "r": r}
    (got,), (want,) = convert_and_build(proto).run(None, feeds), run(proto, feeds)
    assert len(np.unique(want)) > 8
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("outputs", ["z q", "z d"])
def test_codes_that_others_read_are_stored(outputs):
    proto = residual("uint8", 131, outputs)
    assert operators(rewritten(proto)).count("QuantizeLinear") == 2
    feeds = {"x": bytes_of("uint8", 4, 6), "r": RNG.normal(size=(4, 6)).astype("float32")}
    for got, want in zip(convert_and_build(proto).run(None, feeds), run(proto, feeds), strict=True):
        np.testing.assert_array_equal(got, want)


def test_results_that_are_rounded_around_other_zero_points_share_a_kernel():
    proto = model(
        "g (uint8[4,16] x) => (uint8[4,16] z) {"
        "  xf = DequantizeLinear(x, s0, z0)  wf = DequantizeLinear<axis = 1>(w, sw, zw)"
        "  p = MatMul(xf, wf)  pq = QuantizeLinear(p, s1, z1)  pf = DequantizeLinear(pq, s1, z1)"
        "  a = Add(xf, pf)  aq = QuantizeLinear(a, s2, z2)  af = DequantizeLinear(aq, s2, z2)"
        "  q = MatMul(af, wf)  qq = QuantizeLinear(q, s3, z3)  qf = DequantizeLinear(qq, s3, z3)"
        "  b = Add(af, qf)  z = QuantizeLinear(b, s4, z4) }",
        **{f"s{k}": scalar(v) for k, v in enumerate([0.03, 0.4, 0.6, 1.7, 2.5])},
        **{f"z{k}": scalar(v, "uint8") for k, v in enumerate([9, 70, 100, 131, 120])},
        w=bytes_of("int8", 16, 16), zw=np.zeros(16, "int8"), sw=np.full(16, 0.01, "float32"),
    )  # fmt: skip
    assert operators(rewritten(proto)).count("Round") == 2
    compiled = convert_and_build(proto)
    assert compiled.sources()["schedule"].count("def fused_") == 1
    x = bytes_of("uint8", 4, 16)
    (got,), (want,) = compiled.run(None, {"x": x}), run(proto, {"x": x})
    assert len(np.unique(want)) > 20 and np.abs(got.astype("int64") - want).max() <= 1


def test_codes_that_a_branch_adds():
    """The values of both are made outside of the branch that reads them."""
    proto = model(
        "g (float[4,6] x, float[4,6] r, bool c) => (float[4,6] y) {"
        "  q = QuantizeLinear(x, one, zero)  d = DequantizeLinear(q, s, zero)"
        "  p = QuantizeLinear(r, one, zero)  e = DequantizeLinear(p, s, zero)"
        "  y = If(c) <then_branch = t () => (float[4,6] a) { a = Add(d, e) },"
        "            else_branch = f () => (float[4,6] b) { b = Identity(x) }> }",
        one=scalar(1), s=scalar(0.25), zero=scalar(131, "uint8"),
    )  # fmt: skip
    x, r = RNG.normal(scale=60, size=(2, 4, 6)).astype("float32")
    for condition in (True, False):
        feeds = {"x": x, "r": r, "c": np.array(condition)}
        (got,), (want,) = convert_and_build(proto).run(None, feeds), run(proto, feeds)
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("scale", [scalar(0.03), np.array([0.03], "float32")])
def test_rows_of_a_table_are_dequantised_and_not_the_table(scale):
    proto = model(
        "g (int64[2] i) => (float[2,3] y) {"
        "  t = DequantizeLinear(codes, scale, zero)  y = Gather(t, i) }",
        codes=bytes_of("uint8", 5, 3), scale=scale, zero=np.full(scale.shape, 9, "uint8"),
    )  # fmt: skip
    assert operators(rewritten(proto)) == ["Gather", "DequantizeLinear"]
    i = np.array([4, -2])
    (got,), (want,) = convert_and_build(proto).run(None, {"i": i}), run(proto, {"i": i})
    np.testing.assert_array_equal(got, want)


def test_what_is_pooled_stays_8_bits():
    names = operators(rewritten(convolution()))
    assert names.index("MaxPool") == names.index("QuantizeLinear") + 1


@pytest.mark.parametrize("trans_b", [0, 1])
def test_gemm_with_a_bias_of_floats(trans_b):
    proto = model(
        "g (uint8[3,17] x) => (float[3,6] y) {"
        "  xf = DequantizeLinear(x, sx, zx)"
        f" wf = DequantizeLinear<axis = {1 - trans_b}>(w, sw)"
        f" y = Gemm<transB = {trans_b}>(xf, wf, b) }}",
        sx=scalar(0.1), zx=scalar(9, "uint8"), b=RNG.normal(size=6).astype("float32"),
        w=bytes_of("int8", *((6, 17) if trans_b else (17, 6))),
        sw=RNG.uniform(0.1, 1, 6).astype("float32"),
    )  # fmt: skip
    assert "MatMulInteger" in operators(rewritten(proto))
    x = bytes_of("uint8", 3, 17)
    (want,) = run(proto, {"x": x})
    np.testing.assert_allclose(convert_and_build(proto)(x), want, rtol=1e-5, atol=1e-3)


@pytest.mark.parametrize(
    "change",
    [
        {"sx": np.array([0.1] * 17, "float32"), "zx": np.zeros(17, "uint8")},  # along the sum
        {"sw": np.ones(17, "float32")},
    ],
)
def test_scales_along_the_sum_leave_products_of_floats(change):
    axis = 1 if "sx" in change else 0
    constants = {"sx": scalar(0.1), "zx": scalar(9, "uint8"), "sw": scalar(0.5),
                 "w": bytes_of("int8", 17, 6)} | change  # fmt: skip
    proto = model(
        "g (uint8[3,17] x) => (float[3,6] y) { xf = DequantizeLinear(x, sx, zx)"
        f" wf = DequantizeLinear<axis = {axis}>(w, sw)  y = MatMul(xf, wf) }}",
        **constants,
    )
    assert "MatMulInteger" not in operators(rewritten(proto))


def test_levels_0_and_1_multiply_floats():
    assert "ConvInteger" not in operators(rewritten(convolution(), opt_level=1))
