"""Products and convolutions by AMX, of bfloat16 against float64, of bytes exact; their code."""

import re

import numpy as np
import onnx
import pytest

from tests.export.programs import compiled, ran
from tests.oracle import node_model, reference
from tests.passes.test_bfloat16 import CONVOLUTIONS, PRODUCTS, factors, product, rounded
from tests.this_cpu import WITHOUT_TILES, needs_tiles
from tvm_ext import convert_and_build, export
from tvm_ext.errors import TargetError
from tvm_ext.executors import cpu, cpu_features
from tvm_ext.executors.cpu import CpuNeeds
from tvm_ext.targets import host_target

SAPPHIRE_RAPIDS = {"kind": "llvm", "mcpu": "sapphirerapids", "num-cores": 2}

# Rows and columns of no whole tile, one of each, several panels; several images, windows, groups.
TILED = [
    *PRODUCTS,
    ("MatMul", (197, 80), (80, 97), {}),
    ("MatMul", (2, 3, 16, 33), (33, 1), {}),
    ("Conv", (1, 40, 7, 7), (64, 40, 3, 3), {"pads": [1, 1, 1, 1]}),
    ("Conv", (3, 33, 5, 29), (65, 33, 1, 1), {}),
    ("Conv", (1, 64, 1, 1), (24, 64, 1, 1), {}),
    ("Conv", (1, 64, 1, 101), (32, 64, 1, 1), {}),
    ("Conv", (2, 64, 1, 101), (48, 64, 1, 3), {"pads": [0, 1, 0, 1]}),
    ("Conv", (1, 40, 3, 101), (32, 40, 3, 3), {}),
    ("Conv", (1, 256, 60, 50), (32, 256, 3, 3), {"pads": [1, 1, 1, 1]}),
    ("Conv", (1, 272, 61, 50), (48, 272, 1, 1), {}),
    ("Conv", (2, 64, 17, 19), (128, 32, 3, 3), {"group": 2, "pads": [1, 0, 2, 1]}),
    ("Conv", (1, 32, 35, 35), (32, 32, 3, 3), {"strides": [2, 2]}),
    ("Conv", (1, 16, 23, 21), (16, 16, 3, 3), {"pads": [1, 1, 1, 1]}),
    ("Conv", (2, 24, 9, 10), (8, 24, 3, 3), {"pads": [1, 1, 0, 0]}),
    ("Conv", (1, 40, 9, 10), (24, 40, 1, 1), {}),
    ("Conv", (1, 20, 11, 7), (20, 20, 2, 5), {}),
    ("Conv", (1, 48, 12, 37), (72, 48, 1, 3), {"dilations": [1, 3], "pads": [0, 3, 0, 3]}),
    # Of few channels those of a line of the window together.
    ("Conv", (1, 3, 19, 17), (20, 3, 7, 7), {}),
    ("Conv", (2, 3, 23, 30), (33, 3, 7, 7), {"strides": [2, 2], "pads": [3, 3, 3, 3]}),
    ("Conv", (1, 3, 16, 35), (32, 3, 3, 3), {"strides": [1, 2], "pads": [0, 1, 2, 0]}),
    ("Conv", (1, 4, 12, 40), (48, 4, 9, 9), {"pads": [4, 4, 4, 4]}),
    ("Conv", (3, 7, 14, 15), (32, 7, 2, 5), {"dilations": [3, 1], "strides": [3, 1]}),
    *(case for case in CONVOLUTIONS if case[1][1] >= 24 and case[3].get("group") is None),
]


def has_tiles(built):
    return "tvmx_tiles" in built.sources()["schedule"]


@needs_tiles
@pytest.mark.parametrize(("op_type", "x", "w", "attributes"), TILED)
def test_only_the_factors_are_rounded(op_type, x, w, attributes):
    x, w = factors(x, w)
    model, answer = product(op_type, x, w, attributes)
    built = convert_and_build(model, "llvm", precision="bf16")
    assert has_tiles(built)
    (got,) = built.run(None, {"x0": x})
    terms = answer(abs(x), abs(w))
    assert (abs(got - answer(rounded(x), rounded(w))) <= 2.0**-18 * terms).all()


@needs_tiles
@pytest.mark.parametrize("batch", [1, 2, 3, 5])
@pytest.mark.parametrize(
    ("image", "w", "pad"), [((64, 9, 8), (48, 64, 3, 3), 1), ((3, 21, 30), (24, 3, 5, 5), 2)]
)
def test_the_number_of_images_may_be_symbolic(batch, image, w, pad):
    x, w = factors((batch, *image), w)
    model, answer = product("Conv", x, w, {"pads": [pad] * 4})
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "n"
    model.graph.output[0].type.tensor_type.shape.dim[0].dim_param = "n"
    built = convert_and_build(model, "llvm", precision="bf16")
    assert has_tiles(built)
    (got,) = built.run(None, {"x0": x})
    assert (abs(got - answer(rounded(x), rounded(w))) <= 2.0**-18 * answer(abs(x), abs(w))).all()


@needs_tiles
def test_infinite_pixels_reach_their_windows_only():
    x, w = factors((1, 3, 20, 23), (32, 3, 7, 7))
    x[0, 1, 9, 11] = np.inf
    model, answer = product("Conv", x, w, {"pads": [3, 3, 3, 3]})
    built = convert_and_build(model, "llvm", precision="bf16")
    assert has_tiles(built)
    (got,) = built.run(None, {"x0": x})
    np.testing.assert_array_equal(np.isfinite(got), np.isfinite(answer(x, w)))


@needs_tiles
@pytest.mark.parametrize("rows", [1, 7, 16, 33, 100, 0])
def test_the_number_of_rows_may_be_symbolic(rows):
    x, w = factors((3, rows, 70), (70, 97))
    model, answer = product("MatMul", x, w, {})
    for info in (model.graph.input[0], model.graph.output[0]):
        info.type.tensor_type.shape.dim[1].dim_param = "n"
    built = convert_and_build(model, "llvm", precision="bf16")
    assert has_tiles(built)
    (got,) = built.run(None, {"x0": x})
    assert (abs(got - answer(rounded(x), rounded(w))) <= 2.0**-18 * answer(abs(x), abs(w))).all()


@needs_tiles
def test_a_chain_of_convolutions_passes_words():
    """Words between two of them, a residual, and an odd number of blocks of channels."""
    rng = np.random.default_rng(1)
    model = onnx.parser.parse_model("""
        <ir_version: 10, opset_import: ["" : 21]>
        g (float[2, 64, 14, 14] x) => (float[2, 48, 14, 14] y) {
          a = Conv <pads = [1, 1, 1, 1]> (x, w0)
          b = Relu (a)
          c = Conv (b, w1)
          d = Add (c, x)
          e = Relu (d)
          y = Conv <pads = [1, 1, 1, 1]> (e, w2)
        }""")
    shapes = (64, 64, 3, 3), (64, 64, 1, 1), (48, 64, 3, 3)
    for k, shape in enumerate(shapes):
        weight = (rng.standard_normal(shape) / 20).astype("float32")
        model.graph.initializer.append(onnx.numpy_helper.from_array(weight, f"w{k}"))
    feeds = {"x": rng.standard_normal((2, 64, 14, 14)).astype("float32")}
    built = convert_and_build(model, "llvm", precision="bf16")
    assert "channel_pairs" in built.sources()["fuse"] and has_tiles(built)
    (want,) = convert_and_build(model, WITHOUT_TILES).run(None, feeds)
    (got,) = built.run(None, feeds)
    np.testing.assert_allclose(got, want, rtol=2e-2, atol=2e-2)
    np.testing.assert_array_equal(got, built.run(None, feeds)[0])


@needs_tiles
@pytest.mark.parametrize("zero", [0, 3, -128])
def test_products_of_bytes_are_exact(zero):
    rng = np.random.default_rng(2)
    x = rng.integers(-128, 128, (2, 80, 9, 11)).astype("int8")
    w = rng.integers(-128, 128, (40, 80, 3, 3)).astype("int8")
    point = np.int8(zero)
    model = node_model("ConvInteger", [x, w, point], {"pads": [1, 0, 2, 1]}, constants=[1, 2])
    built = convert_and_build(model, "llvm")
    assert has_tiles(built)
    plain = convert_and_build(model, WITHOUT_TILES)
    assert not has_tiles(plain)
    (want,) = reference(model, {"x0": x})
    for compiled_model in built, plain:
        np.testing.assert_array_equal(compiled_model.run(None, {"x0": x})[0], want)
    a, b = x.reshape(-1, 88)[:37], w.reshape(-1, 72)[:88, :70]
    model = node_model("MatMulInteger", [a, b, point], constants=[1, 2])
    built = convert_and_build(model, "llvm")
    assert has_tiles(built)
    (want,) = reference(model, {"x0": a})
    np.testing.assert_array_equal(built.run(None, {"x0": a})[0], want)


@needs_tiles
@pytest.mark.parametrize("dtype", ["uint8", "int8"])
@pytest.mark.parametrize("window", [1, 3])
@pytest.mark.parametrize(
    ("channels", "filters", "together"), [(32, 16, 4), (96, 24, 4), (40, 24, 2), (144, 33, 4)]
)
def test_words_of_a_block_are_one_vector(channels, filters, together, window, dtype):
    rng = np.random.default_rng(3)
    bounds = np.iinfo(dtype)
    x = rng.integers(bounds.min, bounds.max + 1, (1, channels, 13, 10)).astype(dtype)
    w = rng.integers(-128, 128, (filters, channels, window, window)).astype("int8")
    point = np.array(bounds.min + 7, dtype)
    model = node_model("ConvInteger", [x, w, point], {"pads": [window // 2] * 4}, constants=[1, 2])
    built = convert_and_build(model, "llvm")
    (want,) = reference(model, {"x0": x})
    np.testing.assert_array_equal(built.run(None, {"x0": x})[0], want)
    text = built.sources()["schedule"]
    assert has_tiles(built)
    assert re.search(rf"for lane in T\.vectorized\(T\.int64\({together}\)\):\s+words", text)


@needs_tiles
@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("dtype", ["uint8", "int8"])
@pytest.mark.parametrize(
    ("x", "w", "attributes"),
    [
        ((2, 3, 23, 30), (61, 3, 7, 7), {"strides": [2, 2], "pads": [3, 3, 3, 3]}),
        ((1, 7, 16, 35), (32, 7, 3, 3), {"strides": [1, 2], "pads": [0, 1, 2, 0]}),
        ((1, 4, 12, 40), (48, 4, 2, 17), {"pads": [0, 9, 1, 4], "dilations": [3, 1]}),
        ((3, 2, 11, 15), (64, 2, 5, 11), {}),
    ],
)
def test_bytes_of_few_channels_are_those_of_lines(x, w, attributes, dtype, known):
    rng = np.random.default_rng(5)
    bounds = np.iinfo(dtype)
    x = rng.integers(bounds.min, bounds.max + 1, x).astype(dtype)
    w = rng.integers(-128, 128, w).astype("int8")
    point = np.array(bounds.min + 7, dtype)
    constants = [1, 2] if known else [1]
    model = node_model("ConvInteger", [x, w, point], attributes, constants=constants)
    feeds = {"x0": x} if known else {"x0": x, "x2": point}
    built = convert_and_build(model, "llvm")
    (want,) = reference(model, feeds)
    np.testing.assert_array_equal(built.run(None, feeds)[0], want)
    assert has_tiles(built) and "image_lines" in built.sources()["fuse"]


@needs_tiles
@pytest.mark.parametrize(("depth", "together"), [(96, 8), (36, 1), (776, 2), (49, 16), (256, 16)])
def test_words_behind_a_row_are_whole_vectors(depth, together):
    rng = np.random.default_rng(4)
    x = rng.integers(-128, 128, (37, depth)).astype("int8")
    w = rng.integers(-128, 128, (depth, 70)).astype("int8")
    model = node_model("MatMulInteger", [x, w, np.int8(-5)], constants=[1, 2])
    built = convert_and_build(model, "llvm")
    (want,) = reference(model, {"x0": x})
    np.testing.assert_array_equal(built.run(None, {"x0": x})[0], want)
    text = built.sources()["schedule"]
    vector = rf"for lane in T\.vectorized\(T\.int64\({together}\)\):\s+row_tiles"
    assert has_tiles(built) and (together == 1 or re.search(vector, text))


@needs_tiles
def test_a_c_program_asks_for_tiles_by_itself(tmp_path):
    x, w = factors((2, 64, 9, 8), (48, 64, 3, 3))
    model, _ = product("Conv", x, w, {"pads": [1, 1, 1, 1]})
    package = export(model, tmp_path / "package", precision="bf16")
    assert ran(compiled(package, ["main.c"]), package).splitlines()[-1] == "correct"


def test_the_instructions_of_a_cpu_with_tiles():
    x, w = factors((33, 96), (96, 40))
    model, _ = product("MatMul", x, w, {})
    code = convert_and_build(model, SAPPHIRE_RAPIDS, precision="bf16").sources()["asm"]
    blocks = re.split(r"^\.L\w+:", code, flags=re.MULTILINE)
    # Three steps of two tiles of columns by two of rows, or by one.
    assert {block.count("tdpbf16ps") for block in blocks} == {0, 6, 12}
    assert "ldtilecfg" in code and "tilerelease" in code


def test_what_has_too_few_channels_is_summed_in_float32():
    x, w = factors((1, 1, 19, 17), (20, 1, 3, 3))
    built = convert_and_build(product("Conv", x, w, {})[0], SAPPHIRE_RAPIDS, precision="bf16")
    assert not has_tiles(built) and "bfloat16_dot" not in built.sources()["select"]


def test_groups_that_fill_no_tile_are_left_to_winograd():
    """Each of 2 groups has 48 filters: a tile has 32. Of one group tiles are as full."""
    x, w = factors((1, 64, 28, 28), (96, 32, 3, 3))
    attributes = {"group": 2, "pads": [1, 1, 1, 1]}
    options = {"target": SAPPHIRE_RAPIDS, "precision": "bf16"}
    built = convert_and_build(product("Conv", x, w, attributes)[0], **options)
    assert not has_tiles(built) and "winograd" in built.sources()["select"]
    x, w = factors((1, 64, 28, 28), (96, 64, 3, 3))
    assert has_tiles(convert_and_build(product("Conv", x, w, {"pads": [1] * 4})[0], **options))


def test_only_models_with_tiles_need_them():
    x, w = factors((33, 96), (96, 40))
    model = node_model("MatMul", [x, w], {}, constants=[1])
    with_them = convert_and_build(model, SAPPHIRE_RAPIDS, precision="bf16")._executor.needs
    assert "amx-tile" in with_them.features
    assert "amx-tile" not in convert_and_build(model, SAPPHIRE_RAPIDS)._executor.needs.features


def test_a_system_that_does_not_grant_tiles(monkeypatch):
    needs = CpuNeeds("x86_64-unknown-linux-gnu", ("amx-bf16", "amx-tile"))
    if needs.foreign:
        pytest.skip("another kind of machine")
    monkeypatch.setattr(cpu, "_host_features", lambda: dict.fromkeys(needs.features, True))
    monkeypatch.setattr(cpu, "tiles_granted", lambda: False)
    with pytest.raises(TargetError, match="amx-tile, whose registers this system does not grant"):
        needs.check()


@needs_tiles
def test_this_cpu_without_the_grant_is_one_without_tiles(monkeypatch):
    monkeypatch.setattr(cpu_features, "tiles_granted", lambda: False)
    assert "-amx-bf16" in host_target().attrs["mattr"]
