"""The operators of com.microsoft; oracle: onnxruntime, numpy where it has no kernel for the CPU."""

from inspect import Parameter, signature
from math import erf

import numpy as np
import onnx
import pytest
from onnx import AttributeProto, helper
from onnxruntime.capi import onnxruntime_pybind11_state as state
from tvm_ext.frontend import TABLE
from tvm_ext.frontend.table import REFUSED

from tests.onnxruntime_oracle import case, check_together, number, operands
from tests.onnxruntime_oracle import check_against_onnxruntime as check

SCHEMAS = {s.name: s for s in state.get_all_operator_schema() if s.domain == "com.microsoft"}
OURS = sorted(op_type for domain, op_type, _ in TABLE if domain == "com.microsoft")
RNG, data, codes = operands(0)


def test_every_operator_of_onnxruntime_has_a_converter_or_a_reason():
    """Those, too, that it keeps in the domain of ONNX, whose schemas onnx no longer has."""
    known = {(domain, op_type) for domain, op_type, _ in TABLE} | set(REFUSED)
    theirs = {(schema.domain, schema.name) for schema in state.get_all_operator_schema()}
    missing = {key for key in theirs - known if not onnx.defs.has(key[1], key[0])}
    assert missing == set()
    assert not {key for key in REFUSED if (*key, 1) in TABLE}


def default(attribute):
    """The default of an attribute; () where there is none: then any falsy one will do."""
    if attribute.required:
        return Parameter.empty
    proto = AttributeProto()
    proto.ParseFromString(attribute._default_value)
    value = helper.get_attribute_value(proto) if proto.type else ()
    return value.decode() if isinstance(value, bytes) else value


@pytest.mark.parametrize("op_type", [name for name in OURS if name in SCHEMAS])
def test_the_signature_is_that_of_onnxruntime(op_type):
    schema = SCHEMAS[op_type]
    parameters = list(signature(TABLE["com.microsoft", op_type, 1]).parameters.values())[1:]
    ours = {p.name: p.default for p in parameters if p.kind is Parameter.KEYWORD_ONLY}
    assert ours.keys() >= schema.attributes.keys()  # versions of onnxruntime add some
    for name, attribute in schema.attributes.items():
        theirs = default(attribute)
        if theirs != ():
            assert ours[name] == (pytest.approx(theirs) if isinstance(theirs, float) else theirs)
    positional = [p for p in parameters if p.kind is not Parameter.KEYWORD_ONLY]
    assert len(positional) >= len(schema.inputs)


@pytest.mark.parametrize("op_type", ["Gelu", "FastGelu", "QuickGelu"])
def test_activations(op_type):
    check(op_type, [3 * data(2, 3, 7)], symbolic=True)


@pytest.mark.parametrize("op_type", ["BiasGelu", "FastGelu"])
def test_activations_of_a_sum(op_type):
    check(op_type, [3 * data(2, 3, 7), data(7)])


def test_bias_split_gelu():
    x, bias = data(2, 3, 8), data(8)
    value, gate = np.split((x + bias).astype("float64"), 2, -1)
    gelu = gate * (1 + np.vectorize(erf)(gate / np.sqrt(2))) / 2
    check("BiasSplitGelu", [x, bias], expected=[(value * gelu).astype("float32")])


def test_bias_add():
    x, bias, skip = data(2, 3, 8), data(8), data(2, 3, 8)
    check("BiasAdd", [x, bias, skip], expected=[x + bias + skip])


@pytest.mark.parametrize("flags", [0, 3, 5, 10, 12, 15])
def test_fused_matmul(flags):
    names = "transA", "transB", "transBatchA", "transBatchB"
    attributes = {name: flags >> k & 1 for k, name in enumerate(names)}
    a = [5, 2, 3, 4] if attributes["transBatchA"] == 0 else [2, 3, 5, 4]

    def operand(rows, columns, trans, batch):
        last = [columns, rows] if trans else [rows, columns]
        return data(last[0], 5, 2, last[1]) if batch else data(5, 2, *last)

    a = operand(3, 4, attributes["transA"], attributes["transBatchA"])
    b = operand(4, 7, attributes["transB"], attributes["transBatchB"])
    check("FusedMatMul", [a, b], attributes | {"alpha": 0.5})


def test_names_that_onnxruntime_had_before():
    check("TransposeMatMul", [data(2, 4, 3), data(2, 4, 7)], {"transA": 1, "alpha": 0.5})
    x, scale = data(3, 5, 2), np.float32([0.1, 0.02, 0.5, 0.1, 0.03])
    zero = codes(5)
    check("QuantizeLinear", [x, scale, zero], {"axis": 1}, types=["uint8"])
    check("DequantizeLinear", [codes(3, 5, 2), scale, zero], {"axis": 1}, types=["float32"])


@pytest.mark.parametrize("activation", ["Relu", "LeakyRelu", "Sigmoid", "Tanh"])
def test_fused_gemm(activation):
    attributes = {"transB": 1, "alpha": 0.5, "beta": 2.0, "activation": activation,
                  "activation_alpha": 0.3}  # fmt: skip
    check("FusedGemm", [data(3, 5), data(7, 5), data(7)], attributes)


@pytest.mark.parametrize(
    "activation, params", [("Relu", []), ("LeakyRelu", [0.2]), ("Clip", [-0.5, 0.25]),
                           ("HardSigmoid", [0.3, 0.4])]
)  # fmt: skip
def test_fused_conv(activation, params):
    attributes = {"activation": activation, "pads": [1] * 4, "strides": [2, 1]}
    if params:
        attributes["activation_params"] = params
    operands = [data(2, 3, 6, 5), data(4, 3, 3, 3), data(4), data(2, 4, 3, 5)]
    check("FusedConv", operands, attributes)


def test_nhwc_conv():
    x, w, bias = data(1, 6, 5, 4), data(6, 3, 3, 2), data(6)
    attributes = {"group": 2, "pads": [1] * 4}
    model = helper.make_node("Conv", ["x", "w", "b"], ["y"], **attributes)
    reference = onnx.reference.ReferenceEvaluator(model)
    feeds = {"x": x.transpose(0, 3, 1, 2), "w": w.transpose(0, 3, 1, 2), "b": bias}
    expected = reference.run(None, feeds)[0].transpose(0, 2, 3, 1)
    check("NhwcConv", [x, w, bias], attributes, expected=[expected])


@pytest.mark.parametrize("depth", [32, 40])
@pytest.mark.parametrize(
    "bits, zeros", [(2, "none"), (2, "packed"), (4, "none"), (4, "packed"), (4, "float"),
                    (8, "none"), (8, "packed")]
)  # fmt: skip
def test_matmul_nbits(bits, zeros, depth):
    block, columns = 16, 5
    blocks = -(-depth // block)
    weights, scales = codes(columns, blocks, block * bits // 8), abs(data(columns * blocks))
    points = {
        "none": None,
        "packed": codes(columns * -(-blocks * bits // 8)),
        "float": RNG.integers(0, 1 << bits, columns * blocks).astype("float32"),
    }[zeros]
    attributes = {"K": depth, "N": columns, "bits": bits, "block_size": block}
    check("MatMulNBits", [data(2, 3, depth), weights, scales, points], attributes,
          constants=(1, 2, 3), rtol=1e-4, atol=1e-3)  # fmt: skip


@pytest.mark.parametrize("scales", [(), (7,)])
def test_integer_products_to_float(scales):
    b, b_scale = codes(5, 7, dtype="int8"), np.asarray(abs(data(*scales)))
    zero, bias = codes(*scales, dtype="int8"), data(7)
    check("MatMulIntegerToFloat",
          [codes(2, 3, 5), b, number(0.1), b_scale, number(7, "uint8"), zero, bias],
          types=["float32"], rtol=1e-4, atol=1e-3)  # fmt: skip
    check("DynamicQuantizeMatMul", [data(3, 5), b, b_scale, zero, bias], rtol=1e-4, atol=1e-3)
    check("DynamicQuantizeMatMul", [data(3, 5), b, b_scale], rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("op_type", ["SkipLayerNormalization", "SkipSimplifiedLayerNormalization"])
def test_normalisation_of_a_sum(op_type, bias):
    simplified = "Simplified" in op_type
    inputs = [data(2, 3, 8) + 9, data(2, 3, 8), data(8), *([] if simplified else [data(8)])]
    inputs += [data(8)] if bias else []
    check(op_type, inputs, {"epsilon": 1e-5}, outputs=4, types=["float32", None, None],
          rtol=1e-4, atol=1e-5)  # fmt: skip


def test_simplified_layer_normalization():
    check("SimplifiedLayerNormalization", [data(2, 3, 8), data(8)], {"axis": -1}, domain="",
          symbolic=True)  # fmt: skip


@pytest.mark.parametrize("full", [False, True])
def test_embed_layer_normalization(full):
    words, places, segments = data(11, 8), data(6, 8), data(2, 8)
    ids = RNG.integers(0, 11, (3, 5)).astype("int32")
    inputs = [ids, None, words, places, None, data(8), data(8)]
    if full:
        inputs[1], inputs[4] = (ids % 2).astype("int32"), segments
        inputs += [(ids % 3 > 0).astype("int32"), RNG.integers(0, 6, (3, 5)).astype("int32")]
    check("EmbedLayerNormalization", inputs, {"epsilon": 1e-5}, outputs=3,
          types=["float32", "int32", "float32"])  # fmt: skip


def group_normalised(x, gamma, beta, groups):
    """Channels last, in float64, with x sigmoid(x)."""
    split = x.reshape(*x.shape[:3], groups, -1).astype("float64")
    mean, variance = (f(split, axis=(1, 2, 4), keepdims=True) for f in (np.mean, np.var))
    y = ((split - mean) / np.sqrt(variance + 1e-5)).reshape(x.shape) * gamma + beta
    return (y / (1 + np.exp(-y))).astype("float32")


def test_group_norm():
    x, gamma, beta, skip, bias = data(2, 3, 5, 6), data(6), data(6), data(2, 6), data(6)
    attributes = {"groups": 3, "activation": 1}
    check("GroupNorm", [x, gamma, beta], attributes,
          expected=[group_normalised(x, gamma, beta, 3)])  # fmt: skip
    total = x + skip[:, None, None] + bias
    check("SkipGroupNorm", [x, gamma, beta, skip, bias], attributes, outputs=2,
          expected=[group_normalised(total, gamma, beta, 3), total])  # fmt: skip


SCALES = number(0.05), number(0.07), number(0.1)
QUANTISED = {"rtol": 0, "atol": 1}  # onnxruntime rounds at another step


@pytest.mark.parametrize("dtype", ["uint8", "int8"])
@pytest.mark.parametrize("op_type", ["QLinearAdd", "QLinearMul"])
def test_quantised_arithmetic(op_type, dtype):
    a, b = codes(2, 3, 5, dtype=dtype), codes(3, 1, dtype=dtype)
    zeros = [number(value, dtype) for value in (3, 7, 5)]
    check(op_type, [a, SCALES[0], zeros[0], b, SCALES[1], zeros[1], SCALES[2], zeros[2]],
          **QUANTISED)  # fmt: skip


@pytest.mark.parametrize(
    "op_type, attributes",
    [
        ("QLinearSigmoid", {}),
        ("QLinearLeakyRelu", {"alpha": 0.2}),
        ("QLinearSoftmax", {"axis": -1, "opset": 13}),
        ("QLinearSoftmax", {"axis": 1, "opset": 13}),
        ("QLinearSoftmax", {"axis": 2, "opset": 11}),
        ("QLinearGlobalAveragePool", {}),
        ("QLinearGlobalAveragePool", {"channels_last": 1}),
        ("QLinearAveragePool", {"kernel_shape": [2, 2], "strides": [2, 1], "pads": [1, 0, 0, 1]}),
        ("QLinearAveragePool", {"kernel_shape": [2, 2], "channels_last": 1,
                                "count_include_pad": 1, "pads": [1] * 4}),
    ],
)  # fmt: skip
def test_quantised_functions(op_type, attributes):
    x, zero = codes(2, 3, 6, 5), number(100, "uint8")
    scale = number(1 / 256) if op_type in ("QLinearSigmoid", "QLinearSoftmax") else SCALES[0]
    operands = [x, SCALES[0], zero, scale, number(0 if scale is not SCALES[0] else 90, "uint8")]
    check(op_type, operands, attributes, **QUANTISED)


def test_quantised_concat():
    parts = [codes(2, 3), number(0.1), number(3, "uint8"), codes(2, 4), number(0.3),
             number(9, "uint8")]  # fmt: skip
    check("QLinearConcat", [number(0.2), number(50, "uint8"), *parts], {"axis": 1},
          types=["uint8"], **QUANTISED)  # fmt: skip


@pytest.mark.parametrize("quantised", [False, True])
def test_quantised_gemm(quantised):
    scale = RNG.uniform(0.01, 0.1, 7).astype("float32")
    operands = [codes(5, 3), number(0.1), number(9, "uint8"), codes(7, 5, dtype="int8"), scale,
                codes(7, dtype="int8"), codes(7, dtype="int16").astype("int32")]  # fmt: skip
    operands += [number(5.0), number(120, "uint8")] if quantised else []
    check("QGemm", operands, {"transA": 1, "transB": 1, "alpha": 0.5},
          types=["uint8" if quantised else "float32"], rtol=0 if quantised else 1e-5,
          atol=1 if quantised else 1e-4)  # fmt: skip


def test_what_onnx_took_over():
    x = data(2, 4, 5)
    check("Trilu", [x, number(1, "int64")], {"upper": 0})
    check("Pad", [x, np.array([0, 1, 2, 1, 0, 3]), number(1.5)])
    check("GridSample", [data(1, 2, 4, 5), data(1, 3, 3, 2)], {"padding_mode": "border"})
    check("Unique", [RNG.integers(0, 5, 20).astype("float32")], outputs=3,
          types=["float32", "int64", "int64"])  # fmt: skip


@pytest.mark.parametrize("shape", [(1, 1), (4, 4), (2, 3, 5, 5)])
def test_inverse(shape):
    x = data(*shape)
    x[..., 0, 0] = 0 if shape[-1] > 1 else 3  # a pivot is needed
    check("Inverse", [x], expected=[np.linalg.inv(x.astype("float64")).astype("float32")],
          rtol=1e-4)  # fmt: skip


@pytest.mark.parametrize("constants", [(), (3,)])
@pytest.mark.parametrize("size", [(1, 1), (3, 4)])
@pytest.mark.parametrize("mode", ["bilinear", "nearest"])
def test_crop_and_resize(mode, size, constants):
    boxes = np.array(
        [[0.13, 0.2, 0.9, 0.71], [0.5, -0.3, 1.4, 0.6], [0.8, 0.95, 0.05, 0.02]], "float32"
    )
    operands = [data(2, 3, 6, 5), boxes, np.array([1, 0, 1], "int32"), np.array(size, "int32")]
    check("CropAndResize", operands, {"mode": mode, "extrapolation_value": 0.5},
          constants=constants)  # fmt: skip


def softmax(x):
    power = np.exp(x.astype("float64") - x.max(-1, keepdims=True))
    return (power / power.sum(-1, keepdims=True)).astype("float32")


def test_softmax_of_a_sum():
    x, mask, flat = data(2, 3, 4, 5), data(2, 1, 1, 5), data(1, 1, 4, 5)
    inner = {"axis": 3, "is_inner_broadcast": 1}
    outer = {"axis": 2, "is_inner_broadcast": 0}
    rows = softmax((x + flat).reshape(2, 3, 20)).reshape(x.shape)
    check_together(
        case("BiasSoftmax", [x, mask], inner, expected=[softmax(x + mask)], symbolic=(2, 5)),
        case("BiasSoftmax", [x, flat], outer, expected=[rows]),
    )


def test_dropout_of_a_sum():
    x, bias, residual, words = data(2, 3, 7), data(7), data(2, 3, 7), [0xFFFFFFFF, 0x3FF]
    bits = {"outputs": 2, "types": ["float32", "uint32"]}
    packed = np.array(words, "uint32")
    check_together(
        case("BiasDropout", [x, bias, residual, number(0.5)], outputs=2, types=["float32", "bool"],
             expected=[x + bias + residual, np.ones(x.shape, bool)]),
        case("BitmaskBiasDropout", [x, bias], expected=[x + bias, packed], **bits),
        case("BitmaskDropout", [x, number(0.5)], expected=[x, packed], **bits),
    )  # fmt: skip


def parts(z):
    return np.stack([z.real, z.imag], -1).astype("float32")


def test_complex_numbers():
    a, b, x = data(2, 3, 4, 2), data(4, 2), data(2, 3, 10)
    z, w = (v[..., 0] + 1j * v[..., 1] for v in (a, b))
    check_together(
        case("ComplexMul", [a, b], expected=[parts(z * w)]),
        case("ComplexMulConj", [a, b], expected=[parts(z * w.conj())], symbolic=(3, 4)),
        case("Rfft", [x], {"signal_ndim": 1}, expected=[parts(np.fft.rfft(x))]),
        case("Irfft", [parts(np.fft.rfft(x))], {"signal_ndim": 1}, expected=[x]),
    )


def test_whether_all_is_finite():
    good, nan, inf = data(5), data(5), data(4)
    nan[2], inf[1] = np.nan, -np.inf
    rows = [([good, nan], {}, False), ([good, data(0, 3)], {}, True), ([inf], {}, False),
            ([nan], {"isinf_only": 1}, True), ([good, inf], {"isnan_only": 1}, True)]  # fmt: skip
    check_together(
        *(case("IsAllFinite", inputs, options, types=["bool"], expected=[np.array(finite)])
          for inputs, options, finite in rows)
    )  # fmt: skip


def swiglu(gate, up, alpha, beta, limit):
    gate, up = np.minimum(gate.astype("float64"), limit), np.clip(up, -limit, limit)
    return (gate / (1 + np.exp(-alpha * gate)) * (up + beta)).astype("float32")


def test_products_with_an_activation():
    a, b, gate, up = data(3, 4), data(4, 9), 3 * data(2, 6), 3 * data(2, 6)
    y = (a @ b).astype("float64")
    tanh = y * 0.5 * (1 + np.tanh(np.sqrt(2 / np.pi) * (y + 0.044715 * y**3)))
    limited = {"activation_alpha": 1.702, "activation_beta": 1.0, "limit": 2.0}
    router = [a @ b[:, :3], swiglu(y[:, 3:6], y[:, 6:], 1.0, 0.0, np.inf)]
    check_together(
        case("FusedMatMulActivation", [a, b], {"activation": "Relu", "alpha": 0.5},
             expected=[np.maximum(0.5 * (a @ b), 0)]),
        case("GemmFastGelu", [a, b, np.zeros(9, "float32")], expected=[tanh.astype("float32")]),
        case("RouterGateUpProj", [a, b], {"router_size": 3}, outputs=2, expected=router),
        case("SwiGLU", [gate, up], limited, expected=[swiglu(gate, up, 1.702, 1.0, 2.0)]),
        case("SwiGLU", [np.concatenate([gate, up], -1)],
             expected=[swiglu(gate, up, 1.0, 0.0, np.inf)]),
    )  # fmt: skip
    check("SwiGLU", [gate, up], {"alpha": 0.7}, domain="", opset=28,
          expected=[swiglu(gate, up, 0.7, 0.0, np.inf)])  # fmt: skip


def test_integers_of_8_bits():
    a, b, signed = codes(2, 3, 5), codes(3, 1), codes(2, 3, dtype="int8")
    wide = (a.astype("int32") - 7) * (b.astype("int32") - 9)
    mean = ((a.astype("float64") - 100) * 0.05).mean((0, 2), keepdims=True)
    codes_of_mean = np.clip(np.rint(mean / 0.1) + 90, 0, 255).astype("uint8")
    check_together(
        case("MulInteger", [a, number(7, "uint8"), b, number(9, "uint8")], types=["int32"],
             expected=[wide]),
        case("ReduceSumInteger", [a], {"axes": [1, -1], "keepdims": 0}, types=["uint32"],
             expected=[a.sum((1, 2), dtype="uint32")]),
        case("ReduceSumInteger", [signed], {"axes": [0], "keepdims": 1}, types=["int32"],
             expected=[signed.sum(0, dtype="int32", keepdims=True)]),
        rtol=0, atol=0,
    )  # fmt: skip
    quantised = [a, number(0.05), number(100, "uint8"), number(0.1), number(90, "uint8")]
    check_together(
        case("QLinearReduceMean", quantised, {"axes": [0, 2], "keepdims": 1},
             expected=[codes_of_mean]), **QUANTISED,
    )  # fmt: skip


def test_lookup_and_echo():
    table, indices = data(6, 4), RNG.integers(0, 6, (2, 3))
    check_together(
        case("TorchEmbedding", [table, indices], expected=[table[indices]]),
        case("SampleOp", [data(3, 2)]),
    )


def test_convolutions_with_more():
    x, w, pads = data(2, 3, 4, 5), data(3, 4, 3, 3), np.array([1, 0, 1, 2])
    attributes = {"strides": [2, 1], "kernel_shape": [3, 3]}
    nhwc, kernel, z = data(2, 6, 5, 3), data(4, 3, 3, 3), data(2, 6, 5, 4)
    fused = {"activation": "Relu", "pads": [1] * 4}
    second = [nhwc.transpose(0, 3, 1, 2), kernel, data(4), z.transpose(0, 3, 1, 2)]
    _, _, (expected,) = case("FusedConv", second, fused)
    row, image = np.arange(9) % 4 != 2, RNG.integers(0, 2, (1, 1, 5, 6))
    check_together(
        case("ConvTransposeWithDynamicPads", [x, w, pads, data(4)], attributes),
        case("ConvTransposeWithDynamicPads", [x, w, pads], attributes, constants=(2,)),
        case("NhwcFusedConv", [nhwc, kernel, second[2], z], fused,
             expected=[expected.transpose(0, 2, 3, 1)]),
        case("MaxpoolWithMask", [data(2, 3, 9), row.astype("int32")[None, None]],
             {"kernel_shape": [3], "strides": [2], "pads": [1, 1]}),
        case("MaxpoolWithMask", [data(2, 3, 5, 6), image.astype("int32")],
             {"kernel_shape": [3, 2], "strides": [2, 1], "pads": [1, 0, 1, 1]}),
    )  # fmt: skip
