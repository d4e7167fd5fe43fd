"""Products of com.microsoft with weights of a few bits; oracle: the documentation, onnxruntime."""

import ml_dtypes
import numpy as np
import pytest
from onnxruntime.capi.onnxruntime_pybind11_state import Fail

from tests.onnxruntime_oracle import case, check_together, operands

RNG, data, codes = operands(13)
K, N, BLOCK = 64, 6, 32
FLOAT8 = ml_dtypes.float8_e4m3fn


def layer(rows, depth=K, bits=4):
    blocks = -(-depth // BLOCK)
    return codes(rows, blocks, BLOCK * bits // 8), 0.1 * abs(data(rows, blocks))


def wide(packed, scales, bits=4, depth=K):
    """``(code - middle) * scale`` in float64; low bits come first."""
    shifts = np.arange(0, 8, bits)
    values = (packed[..., None] >> shifts & (1 << bits) - 1).reshape(*packed.shape[:2], -1)
    values = (values - float(1 << (bits - 1))) * scales[..., None]
    return values.reshape(len(packed), -1)[:, :depth]


def normalised(x, scale, epsilon):
    x = x.astype("float64")
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + epsilon) * scale


def single(*arrays):
    return [np.asarray(array, "float32") for array in arrays]


def test_layers_in_one_operator():
    x, skip, scale, bias = data(3, K), data(3, K), data(K), data(N)
    gate, up, other = layer(N), layer(N), layer(4)
    attributes = {"K": K, "bits": 4, "block_size": BLOCK}
    rows = normalised(x + skip, scale, 1e-5)
    hidden = rows @ wide(*gate).T + bias
    gated = hidden / (1 + np.exp(-hidden)) * (rows @ wide(*up).T)
    rows = normalised(x, scale, 1e-6)
    heads = (rows @ wide(*other).T, rows @ wide(*gate).T + bias, rows @ wide(*up).T)
    check_together(
        case("MatMulNBitsMlp", [x, skip, scale, *gate, bias, *up],
             attributes | {"N": N, "activation": "silu"}, outputs=2,
             expected=single(gated, x + skip)),
        case("MatMulNBitsQkv", [x, None, scale, *other, None, *gate, bias, *up],
             attributes | {"Nq": 4, "Nkv": N}, outputs=3, expected=single(*heads)),
    )  # fmt: skip


def test_adapters():
    x, base, down, up = data(3, K), layer(N), layer(20, K, 8), layer(N, 20, 8)
    adapted = x @ wide(*down, 8).T @ wide(*up, 8, 20).T
    plain = x @ wide(*base).T
    empty = codes(N, 0, BLOCK), up[1]
    check_together(
        case("MatMulNBitsQLoRA", [x, *base, *down, *up], {"K": K, "N": N},
             expected=single(plain + adapted)),
        case("MatMulNBitsQLoRA", [x, *base, *down, *empty], {"K": K, "N": N},
             expected=single(plain)),
        rtol=1e-3, atol=2e-2,
    )  # fmt: skip


def test_weights_of_float4_and_float8():
    x, bias = data(3, K).astype("float16"), data(N).astype("float16")
    packed, scales = codes(N, K // 2), abs(data(N, K // 16)).astype(FLOAT8)
    half = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])
    table = np.concatenate([half, -half])
    values = table[np.stack([packed & 15, packed >> 4], -1).reshape(N, K)]
    values = values * np.repeat(scales.astype("float64"), 16, 1) * 0.5
    bytes8, blocks = data(N, K).astype(FLOAT8), abs(data(N, 1))
    rounded = (x.astype("float32") / np.float32(0.02)).astype(FLOAT8).astype("float64") * 0.02
    weights = (bytes8.astype("float64") * blocks).T

    def half_of(y):
        return [y.astype("float16")]

    check_together(
        case("MatMulBlockQuantizedFp4Weight",
             [x, packed, scales.view("uint8"), np.float32(0.5).reshape(()), None, bias],
             expected=half_of(x.astype("float64") @ values.T + bias)),
        case("MatMulBlockQuantizedFp8Weight", [x, bytes8, blocks],
             expected=half_of(x.astype("float64") @ weights)),
        case("MatMulBlockQuantizedFp8Weight", [x, bytes8, blocks, np.array(0.02, "float32")],
             expected=half_of(rounded @ weights)),
        rtol=5e-3, atol=5e-2,
    )  # fmt: skip
    a = data(3, K).astype(FLOAT8)
    product = np.maximum(a.astype("float64") @ bytes8.astype("float64").T, 0)
    check_together(
        case("GemmFloat8", [a, bytes8, None, np.array(0.5, "float32"), np.array(2, "float32")],
             {"transB": 1, "activation": "RELU"}, types=["float32"], expected=single(product)),
    )  # fmt: skip


def test_products_with_blobs():
    def blob(kind, depth):
        parts = []
        for _ in range(N * -(-depth // 32)):
            zero = [codes(1) % 16] if kind == 1 else []
            parts += [abs(data(1)).view("uint8"), *zero, codes(16)]
        return np.concatenate(parts)

    try:
        cases = [
            case("MatMulFpQ4", [data(3, depth), blob(kind, depth), np.array([depth, N])],
                 {"blk_quant_type": kind}, constants=(1, 2))
            for kind, depth in ((0, 64), (1, 64), (0, 48))
        ]  # fmt: skip
    except Fail as error:
        if "not yet supported on this hardware" not in str(error):
            raise
        pytest.skip(f"onnxruntime: {error}")
    check_together(*cases, rtol=1e-3, atol=1e-2)
