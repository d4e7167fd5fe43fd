"""The example accelerator: its device, its tiles, its memory, whole networks."""

import re
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from itertools import combinations, pairwise
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch
from onnx import numpy_helper, parser
from torch.nn import functional

import examples.npu
from examples.npu.__main__ import main as demonstrate
from examples.npu.commands import Copy, Does, Opcode, Sum, Window
from examples.npu.emit import region_source, support_source
from examples.npu.memory import Life, allocate
from examples.npu.network import small_cnn
from examples.npu.operators import Addition, Convolution, NoTile, Pooling, Tensor
from examples.npu.program import Device, Program, Region, compile_regions
from examples.npu.simulator import DEVICE, DeviceError, Simulator
from examples.npu.tiling import Geometry, conv_tile, halves
from tvm_ext import convert_and_build, load
from tvm_ext.cli import main as command_line
from tvm_ext.errors import BuildError, RunError
from tvm_ext.executors.toolchain import compiler
from tvm_ext.extend import load as load_plugin
from tvm_ext.extend.plugin import PLUGINS


def floats(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype("float32")


def copy(opcode, dram, local, *count, dram_stride=None, local_stride=None):
    dense = (count[1] * count[2], count[2])
    return Copy(
        opcode=opcode,
        dram=dram,
        local=local,
        count=count,
        dram_stride=dram_stride or dense,
        local_stride=local_stride or dense,
    )


# --- the device: each command against numpy and torch -----------------------------------------


def test_load_and_store_move_blocks():
    x = floats(4, 7, 9)
    device = Simulator(1000, 200)
    device.write(0, x)
    commands = [
        copy(Opcode.LOAD, 63 + 2 * 9 + 4, 10, 2, 3, 5, dram_stride=(63, 9)),
        copy(Opcode.STORE, 500, 10, 2, 3, 5, dram_stride=(40, 6)),
    ]
    cost = device.cost(commands)
    assert device.statistics.cycles["LOAD"] == 0
    device.submit(commands)
    got = device.read(500, (2, 40))[:, :18].reshape(2, 3, 6)[..., :5]
    np.testing.assert_array_equal(got, x[1:3, 2:5, 4:9])
    assert cost == device.statistics
    assert cost.bytes_loaded == cost.bytes_stored == 4 * 30


def window(opcode, x, shape, **operands):
    sizes = dict(zip(("channels", "height", "width"), x.shape, strict=True))
    outputs = dict(zip(("filters", "rows", "columns"), shape, strict=True))
    return Window(opcode=opcode, input=0, **sizes, **outputs, **operands)


def on_scratchpad(command, *arrays, output):
    """Run one command on arrays that lie one after the other; what is then at ``output``."""
    device = Simulator(4096, 4096)
    device.write(0, np.concatenate([a.ravel() for a in arrays]))
    place, shape = output
    device.submit(
        [
            copy(Opcode.LOAD, 0, 0, 1, 1, 4096),
            command,
            copy(Opcode.STORE, 0, 0, 1, 1, 4096),
        ]
    )
    return device.read(place, shape)


@pytest.mark.parametrize("flags", [Does(k) for k in range(8)])
@pytest.mark.parametrize("stride, pad", [((1, 1), (0, 0)), ((2, 3), (1, 2))])
def test_conv(flags, stride, pad):
    x, w, b = floats(3, 8, 11), floats(5, 3, 2, 3, seed=1), floats(5, seed=2)
    padded = np.pad(x, ((0, 0), (pad[0], 4), (pad[1], 4)))
    want = functional.conv2d(torch.tensor(padded), torch.tensor(w), stride=stride).numpy()
    held = floats(*want.shape, seed=3)
    if Does.ACCUMULATE in flags:
        want += held
    if Does.BIAS in flags:
        want += b[:, None, None]
    if Does.RELU in flags:
        want = np.maximum(want, 0)
    command = window(
        Opcode.CONV,
        x,
        want.shape,
        weight=x.size,
        bias=x.size + w.size,
        output=x.size + w.size + b.size,
        kernel=(2, 3),
        stride=stride,
        pad=pad,
        flags=flags,
    )
    got = on_scratchpad(command, x, w, b, held, output=(command.output, want.shape))
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


def test_pool_ignores_the_pad_and_keeps_nan():
    x = floats(3, 7, 5) - 10
    x[1, 3, 2] = np.nan
    want = functional.max_pool2d(torch.tensor(x), 3, 2, 1).numpy()
    command = window(
        Opcode.POOL, x, want.shape, output=x.size, kernel=(3, 3), stride=(2, 2), pad=(1, 1)
    )
    got = on_scratchpad(command, x, output=(x.size, want.shape))
    np.testing.assert_array_equal(got, want)
    assert np.isnan(got).any()


@pytest.mark.parametrize("flags", [Does(0), Does.RELU])
def test_add_in_place(flags):
    a, b = floats(37), floats(37, seed=1)
    got = on_scratchpad(Sum(a=0, b=37, output=0, count=37, flags=flags), a, b, output=(0, (37,)))
    np.testing.assert_array_equal(got, np.maximum(a + b, 0) if flags else a + b)


LEGAL = window(
    Opcode.CONV,
    np.empty((2, 4, 4)),
    (3, 4, 4),
    weight=32,
    bias=86,
    output=89,
    kernel=(3, 3),
    stride=(1, 1),
    pad=(1, 1),
)


def changed(command, **fields):
    return type(command)(**{**vars(command), **fields})


ILLEGAL = [
    (copy(Opcode.LOAD, 990, 0, 1, 1, 11), "block of 11 floats at 990 leaves the DRAM of 1000"),
    (copy(Opcode.LOAD, 0, 190, 1, 1, 11), "leaves the scratchpad of 200"),
    (copy(Opcode.STORE, 2**32 - 1, 0, 2, 1, 2, dram_stride=(2**32 - 1, 0)), "leaves the DRAM"),
    (copy(Opcode.LOAD, 0, 0, 2**32 - 1, 2**32 - 1, 2**32 - 1,
          dram_stride=(0, 0), local_stride=(2**32 - 1,) * 2), "overlaps itself"),
    (copy(Opcode.LOAD, 0, 0, 1, 0, 1), "a count is zero"),
    (copy(Opcode.LOAD, 0, 0, 1, 3, 5, local_stride=(0, 4)), "overlaps itself"),
    (changed(LEGAL, output=85), "output overlaps weight"),
    (changed(LEGAL, output=88, flags=Does.BIAS), "output overlaps bias"),
    (changed(LEGAL, output=31, weight=100), "output overlaps input"),
    (changed(LEGAL, output=160), "output of 48 floats at 160 leaves the scratchpad"),
    (changed(LEGAL, filters=2**31, channels=2**31, rows=2**31, kernel=(11, 11)), "leaves"),
    (changed(LEGAL, rows=0), "a size is zero"),
    (changed(LEGAL, kernel=(3, 12)), "no kernel of 12"),
    (changed(LEGAL, stride=(0, 1)), "no stride of 0"),
    (changed(LEGAL, stride=(1, 5)), "no stride of 5"),
    (changed(LEGAL, pad=(3, 0)), "pad 3 hides the kernel"),
    (changed(LEGAL, opcode=Opcode.POOL), "filters differ from channels"),
    (changed(LEGAL, opcode=Opcode.POOL, filters=2, flags=Does.RELU), "POOL has no flags"),
    (Sum(a=0, b=10, output=5, count=10), "output overlaps a part of a"),
    (Sum(a=0, b=195, output=0, count=10), "b of 10 floats at 195 leaves the scratchpad"),
    (Sum(a=0, b=0, output=0, count=0), "the count is zero"),
    (Sum(a=0, b=0, output=0, count=1, flags=Does.BIAS), "knows no flag but RELU"),
]  # fmt: skip


@pytest.mark.parametrize("command, reason", ILLEGAL)
def test_an_illegal_command_is_named_and_nothing_runs(command, reason):
    device = Simulator(1000, 200)
    with pytest.raises(DeviceError, match=rf"^command 1 \({command.opcode.name}\): .*{reason}"):
        device.submit([LEGAL, command])
    assert sum(device.statistics.commands.values()) == 0
    device.submit([LEGAL])


def test_an_unknown_opcode_is_refused():
    class Unknown(Sum):
        def words(self):
            return [77, *super().words()[1:]]

    with pytest.raises(DeviceError, match=r"command 0 \(\?\): no such opcode: 77"):
        Simulator(10, 10).submit([Unknown(a=0, b=0, output=0, count=1)])


def test_the_host_cannot_leave_the_dram():
    device = Simulator(10, 10)
    with pytest.raises(DeviceError, match="write: 3 floats at 8 leave the DRAM of 10"):
        device.write(8, floats(3))
    with pytest.raises(DeviceError, match="read: 3 floats at 8"):
        device.read(8, (3,))


FUZZ = """
#include "npu.h"
#include <stdlib.h>
static const npu_command legal[NPU_OPCODES] = {
  {NPU_LOAD, 0, .copy = {5, 0, {2, 3, 4}, {20, 5}, {12, 4}}},
  {NPU_STORE, 0, .copy = {5, 0, {2, 3, 4}, {20, 5}, {12, 4}}},
  {NPU_CONV, 7, .window = {0, 32, 86, 89, 2, 4, 4, 3, 4, 4, {3, 3}, {1, 1}, {1, 1}}},
  {NPU_POOL, 0, .window = {0, 0, 0, 32, 2, 4, 4, 2, 2, 2, {3, 3}, {2, 2}, {1, 1}}},
  {NPU_ADD, 4, .sum = {0, 20, 40, 20}},
};
int main(void) {
  npu_device *device = npu_open(150, 140);
  srand(7);
  for (int round = 0; round < 100000; round++) {
    npu_command command = legal[rand() % NPU_OPCODES];
    uint32_t *words = (uint32_t *)&command;
    for (int k = rand() % 3; k >= 0; k--)
      words[rand() % (sizeof command / 4)] =
          rand() % 9 ? (uint32_t)rand() % (rand() % 2 ? 6 : 150) : UINT32_MAX - rand() % 3;
    npu_submit(device, &command, 1);
  }
  int rare = 0;
  for (int k = 0; k < NPU_OPCODES; k++) rare |= npu_get_statistics(device)->commands[k] < 2000;
  npu_close(device);
  return rare;
}
"""


def sanitized(*arguments):
    """Compile C with all warnings and sanitizers, and run it. Needs no TVM, nor is any linked."""
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder, "program")
        checks = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-g", "-O1"]
        command = [*compiler(), "-std=c11", "-Wall", "-Wextra", "-Werror", f"-I{DEVICE}", *checks]
        command += ["-o", str(program), *map(str, arguments), "-lm", "-lpthread"]
        subprocess.run(command, check=True)
        done = subprocess.run([program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_random_commands_never_leave_the_memory(tmp_path):
    (tmp_path / "fuzz.c").write_text(FUZZ)
    sanitized(tmp_path / "fuzz.c", DEVICE / "npu.c")


# --- tiles, operators, memory -----------------------------------------------------------------


def constant(name, array):
    return Tensor(name, array.shape, array)


def simulate(operator, *arrays, scratchpad, dram=1 << 18):
    region = Region("r", operator.reads, (operator.output,), (operator,))
    (program,) = compile_regions([region], Device(dram, scratchpad))
    (output,) = program.simulate(*arrays)
    return output, program.cost()


CONVOLUTIONS = [
    # x[N, C, H, W], filters, kernel, strides, pads
    ((1, 1, 1, 1), 1, (1, 1), (1, 1), (0, 0)),
    ((2, 3, 17, 19), 5, (3, 3), (1, 1), (1, 1)),
    ((1, 13, 16, 16), 7, (3, 3), (2, 2), (1, 1)),
    ((1, 67, 9, 9), 31, (1, 1), (1, 1), (0, 0)),
    ((1, 5, 23, 11), 4, (5, 2), (3, 1), (2, 0)),
    ((3, 4, 7, 29), 9, (1, 7), (1, 4), (0, 3)),
    ((1, 2, 3, 40), 3, (3, 11), (1, 1), (2, 10)),
]


@pytest.mark.parametrize("scratchpad", [260, 1500, 16384])
@pytest.mark.parametrize("shape, filters, kernel, strides, pads", CONVOLUTIONS)
@pytest.mark.parametrize("fused", [False, True])
def test_convolution_in_tiles(shape, filters, kernel, strides, pads, fused, scratchpad):
    x, w = floats(*shape), floats(filters, shape[1], *kernel, seed=1)
    b = floats(filters, seed=2)
    want = functional.conv2d(
        torch.tensor(x), torch.tensor(w), torch.tensor(b) if fused else None, strides, pads
    ).numpy()
    tensor, output = Tensor("x", shape), Tensor("y", want.shape)
    arrays, residual = [x], None
    if fused:
        arrays.append(floats(*want.shape, seed=3))
        residual = Tensor("r", want.shape)
        want = np.maximum(want + arrays[1], 0)
    convolution = Convolution(
        "conv",
        output,
        tensor,
        kernel,
        strides,
        pads,
        constant("w", w),
        constant("b", b) if fused else None,
        residual,
        relu=fused,
    )
    got, statistics = simulate(convolution, *arrays, scratchpad=scratchpad)
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)
    assert statistics.bytes_stored == want.nbytes


@pytest.mark.parametrize("scratchpad", [20, 100, 16384])
@pytest.mark.parametrize("kernel, strides, pads", [(3, 2, 1), (2, 2, 0), (2, 3, 1)])
def test_pooling_in_tiles(kernel, strides, pads, scratchpad):
    x = floats(2, 5, 13, 17)
    want = functional.max_pool2d(torch.tensor(x), kernel, strides, pads).numpy()
    pooling = Pooling(
        "pool",
        Tensor("y", want.shape),
        Tensor("x", x.shape),
        (kernel,) * 2,
        (strides,) * 2,
        (pads,) * 2,
    )
    got, _ = simulate(pooling, x, scratchpad=scratchpad)
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("scratchpad", [2, 37, 1000])
def test_addition_in_tiles(scratchpad):
    a, b = floats(2, 3, 5), floats(2, 3, 5, seed=1)
    x, y = Tensor("a", a.shape), Tensor("b", b.shape)
    got, _ = simulate(Addition("add", Tensor("y", a.shape), x, y, relu=True), a, b,
                      scratchpad=scratchpad)  # fmt: skip
    np.testing.assert_array_equal(got, np.maximum(a + b, 0))


def test_what_fits_nowhere_is_refused():
    x, y = Tensor("x", (1, 1, 5, 5)), Tensor("y", (1, 1, 1, 1))
    w = constant("w", floats(1, 1, 5, 5))
    conv = Convolution("c", y, x, (5, 5), (1, 1), (0, 0), w)
    with pytest.raises(NoTile, match="one 5x5 window exceeds the scratchpad"):
        list(conv.commands({x: 0, y: 25, w: 26}, 51))
    assert list(conv.commands({x: 0, y: 25, w: 26}, 52))


def test_a_tile_is_whole_where_it_fits():
    over = Geometry(16, (14, 14), 24, (14, 14), (3, 3), (1, 1), (1, 1))
    tile = conv_tile(over, 16384)
    assert (tile.filters, tile.channels, tile.rows, tile.columns) == (24, 16, 14, 14)
    small = conv_tile(over, 2000)
    floats_used = small.input_floats(over) + small.weight_floats(over) + small.output_floats
    assert floats_used + small.filters <= 2000
    assert halves(13) == [13, 7, 4, 2, 1]


def test_weights_stay_where_they_are_used_again():
    """With all channels in one tile, each weight crosses the bus once."""
    x, y = Tensor("x", (1, 8, 32, 32)), Tensor("y", (1, 8, 32, 32))
    w = floats(8, 8, 3, 3)
    conv = Convolution("c", y, x, (3, 3), (1, 1), (1, 1), constant("w", w))
    _, statistics = simulate(conv, floats(*x.shape), scratchpad=4096)
    halo = 1.5 * 4 * x.size
    assert w.nbytes <= statistics.bytes_loaded < w.nbytes + halo


def test_no_two_live_tensors_share_memory():
    random = np.random.default_rng(5)
    for _ in range(50):
        starts = random.integers(0, 12, 20)
        lives = [
            Life(int(random.integers(1, 40)), int(s), int(s + random.integers(0, 5)))
            for s in starts
        ]
        places = [(at, at + life.size) for at, life in zip(allocate(lives), lives, strict=True)]
        for (one, a), (two, b) in combinations(zip(lives, places, strict=True), 2):
            assert not one.meets(two) or a[1] <= b[0] or b[1] <= a[0]


def chain(length, shape=(1, 4, 8, 8)):
    """Additions one after the other, each of the last two tensors."""
    tensors = [Tensor(f"t{k}", shape) for k in range(length + 2)]
    operators = tuple(
        Addition(f"add{k}", tensors[k + 2], *pair) for k, pair in enumerate(pairwise(tensors[:-1]))
    )
    return Region("r", tuple(tensors[:2]), (tensors[-1],), operators)


def test_memory_is_used_again():
    (program,) = compile_regions([chain(20)], Device(3 * 256, 64))
    a, b = floats(1, 4, 8, 8), floats(1, 4, 8, 8, seed=1)
    (got,) = program.simulate(a, b)
    for _ in range(20):
        a, b = b, a + b
    np.testing.assert_array_equal(got, b)


def test_outputs_are_alive_to_the_end():
    region = chain(20)
    early = region.operators[0].output
    (program,) = compile_regions([replace(region, outputs=(early, *region.outputs))], Device())
    a, b = floats(1, 4, 8, 8), floats(1, 4, 8, 8, seed=1)
    np.testing.assert_array_equal(program.simulate(a, b)[0], a + b)


def test_a_dram_too_small_names_the_operator():
    with pytest.raises(BuildError, match=r"operator 'add0' needs 3072 bytes .* which has 3068"):
        compile_regions([chain(3)], Device(3 * 256 - 1, 64))


# --- whole models -----------------------------------------------------------------------------


@pytest.fixture
def npu():
    """The accelerator's target, while every model is built for it."""
    plugin = load_plugin("examples.npu.target")
    yield sys.modules["examples.npu.target"]
    plugin.unload()


def network(body, inputs, outputs, **weights):
    """A model in ONNX's text form; ``weights`` are its initializers."""
    text = f'<ir_version: 9, opset_import: ["" : 17]> g ({inputs}) => ({outputs}) {{ {body} }}'
    model = parser.parse_model(text)
    for name, array in weights.items():
        model.graph.initializer.append(numpy_helper.from_array(array, name))
    return model


def agrees(npu, model, *arrays, **options):
    """The built model, once it has given what onnxruntime gives, and the report."""
    built, report = npu.build(model, **options)
    check_answer(built, model, *arrays)
    return built, report


def check_answer(built, model, *arrays):
    session = onnxruntime.InferenceSession(model.SerializeToString())
    feeds = dict(zip((i.name for i in session.get_inputs()), arrays, strict=True))
    expected = session.run(None, feeds)
    for got, want in zip(built.run(None, feeds), expected, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)


def kinds(report):
    """What the device computes, region by region."""
    return [[op.kind for op in program.region.operators] for program in report.programs]


def reasons(report):
    return {operator: reason for _, operator, reason in report.host}


@pytest.mark.parametrize("opt_level", range(4))
def test_a_small_cnn(npu, opt_level):
    image = floats(1, 3, 64, 64)
    built, report = agrees(npu, small_cnn(), image, opt_level=opt_level)
    conv = "conv+bias+relu"
    assert kinds(report) == [
        [conv, "max pool", conv, "conv+bias+residual+relu", "conv+bias"],
        [conv],
    ]
    assert "hard_swish" in reasons(report)
    assert "npu_run(&region" in built.sources()["c"]


@pytest.mark.parametrize(
    "shape, kernel, attributes",
    [
        ((1, 1, 1, 1), (1, 1), ""),
        ((2, 5, 13, 7), (3, 3), "pads = [1, 0, 2, 1]"),
        ((3, 7, 11, 17), (5, 2), "strides = [2, 3], pads = [4, 1, 4, 0]"),
        ((1, 3, 40, 40), (7, 7), "strides = [2, 2], pads = [3, 3, 3, 3]"),
    ],
)
@pytest.mark.parametrize("scratchpad", [400, 1 << 14])
def test_convolutions_of_odd_shapes(npu, shape, kernel, attributes, scratchpad):
    model = network(
        f"c = Conv <{attributes}> (x, w, b) y = Relu(c)".replace("<>", ""),
        f"float[{', '.join(map(str, shape))}] x",
        "float[n, c, h, w] y",
        w=floats(6, shape[1], *kernel, seed=1),
        b=floats(6, seed=2),
    )
    _, report = agrees(npu, model, floats(*shape), device=Device(scratchpad=scratchpad))
    assert kinds(report) == [["conv+bias+relu"]]


def residual_block(add):
    return network(
        f"c = Conv <pads = [1, 1, 1, 1]> (x, w) s = Add({add}) y = Relu(s)",
        "float[1, 4, 9, 9] x",
        "float[1, 4, 9, 9] y",
        w=floats(4, 4, 3, 3, seed=1),
    )


@pytest.mark.parametrize("add", ["c, x", "x, c"])
def test_a_convolution_is_added_to_its_own_input(npu, add):
    _, report = agrees(npu, residual_block(add), floats(1, 4, 9, 9))
    assert kinds(report) == [["conv+residual+relu"]]


def test_values_with_several_readers(npu):
    """What the host or the caller reads is stored; what is read twice is no part of a compound."""
    model = network(
        """c = Conv <pads = [1, 1, 1, 1]> (x, w, b) r = Relu(c)
           d = Conv <pads = [1, 1, 1, 1]> (r, w) s = Add(d, r) q = Relu(s)
           e = Exp(r) t = Add(c, e)""",
        "float[1, 4, 9, 9] x",
        "float[1, 4, 9, 9] r, float[1, 4, 9, 9] q, float[1, 4, 9, 9] t",
        w=floats(4, 4, 3, 3, seed=1) / 6,
        b=floats(4, seed=2),
    )
    _, report = agrees(npu, model, floats(1, 4, 9, 9))
    assert kinds(report) == [["conv+bias"], ["conv+residual+relu", "add"]]


def test_the_profile_names_the_nodes_of_a_region(npu):
    """Also of one with several results."""
    model = network(
        """c = Conv <pads = [1, 1, 1, 1]> (x, w) r = Relu(c) p = MaxPool <kernel_shape = [2, 2]> (r)
           q = Conv <pads = [1, 1, 1, 1]> (p, w) y = Exp(q) z = Exp(p)""",
        "float[1, 4, 9, 9] x",
        "float[n, c, h, w] y, float[n, c, h, w] z",
        w=floats(4, 4, 3, 3, seed=1) / 6,
    )
    built, _ = agrees(npu, model, floats(1, 4, 9, 9))
    (region,) = (k for k in built.profile(repeat=1).kernels if k.kernel == "npu_region_0")
    assert [node.split()[0] for node in region.nodes] == ["Conv", "Relu", "MaxPool", "Conv"]
    assert region.compounds[0].startswith("npu.region(commands=")


def test_the_host_in_the_middle(npu):
    """One branch crosses the host: what waits for it is a region of its own."""
    model = network(
        """a = Conv(x, w) h = Sigmoid(a) c = Conv(a, w) d = Conv(c, w) e = Conv(h, w)
           f = Conv(e, w) s = Add(d, f) y = MaxPool <kernel_shape = [2, 2]> (s)""",
        "float[1, 4, 9, 9] x",
        "float[n, c, h, w] y",
        w=floats(4, 4, 1, 1, seed=1),
    )
    _, report = agrees(npu, model, floats(1, 4, 9, 9))
    assert kinds(report) == [["conv"] * 2, ["conv", "conv", "conv+residual", "max pool"]]


def test_regions_of_one_form_have_weights_of_their_own(npu):
    model = network(
        "a = Conv(x, w) b = Exp(a) c = Conv(b, v) d = Exp(c) y = Conv(d, w)",
        "float[1, 4, 5, 5] x",
        "float[1, 4, 5, 5] y",
        w=floats(4, 4, 1, 1, seed=1) / 4,
        v=floats(4, 4, 1, 1, seed=2) / 4,
    )
    _, report = agrees(npu, model, floats(1, 4, 5, 5))
    assert len(report.programs) == 3


REFUSED = [
    ("y = Conv <group = 2> (x, w)", "relax.nn.conv2d", (4, 2, 3, 3), "2 groups"),
    ("y = Conv <dilations = [2, 2]> (x, w)", "relax.nn.conv2d", (4, 4, 3, 3), "dilation [2, 2]"),
    ("y = Conv <strides = [5, 1]> (x, w)", "relax.nn.conv2d", (4, 4, 3, 3), "strides (5, 1)"),
    ("y = Conv <pads = [0, 3, 0, 0]> (x, w)", "relax.nn.conv2d", (4, 4, 3, 3), "pads [0, 3, 0, 0]"),
    ("y = Conv(x, w)", "relax.nn.conv2d", (4, 4, 12, 3), "kernel (12, 3)"),
    ("c = Conv(x, w) r = ReduceMax <axes = [2, 3]> (x) y = Add(c, r)", "relax.add", (4, 4, 3, 3),
     "would be broadcast"),
    ("c = Conv(x, w) y = Add(c, w)", "relax.add", (1, 4, 13, 1), "no bias"),
    ("p = Exp(x) y = Add(p, w)", "relax.add", (1, 4, 13, 15), "an activation is a constant"),
]  # fmt: skip


@pytest.mark.parametrize("body, operator, weight, reason", REFUSED)
def test_what_the_device_cannot_stays_on_the_host(npu, body, operator, weight, reason):
    model = network(body, "float[1, 4, 13, 15] x", "float[n, c, h, w] y", w=floats(*weight, seed=1))
    _, report = agrees(npu, model, floats(1, 4, 13, 15))
    assert reason in reasons(report)[operator]


def test_other_types_stay_on_the_host(npu):
    body = "y = MaxPool <kernel_shape = [2, 2]> (x)"
    model = network(body, "double[1, 4, 5, 5] x", "double[n, c, h, w] y")
    _, report = agrees(npu, model, floats(1, 4, 5, 5).astype("float64"))
    assert reasons(report) == {"relax.nn.max_pool2d": "the device computes in float32, not float64"}


def test_dynamic_shapes_stay_on_the_host(npu):
    model = network(
        "y = Conv(x, w)", "float[n, 4, 5, 5] x", "float[n, 4, 5, 5] y", w=floats(4, 4, 1, 1)
    )
    _, report = agrees(npu, model, floats(3, 4, 5, 5))
    assert reasons(report) == {"relax.nn.conv2d": "a shape is known only at run time"}


# For executors of their own: what is computed in stages, and what the VM runs.
MORE = {"NonZero": "int64[4, k]", "SequenceConstruct": "seq(float[1, 4, 2, 2])"}


@pytest.mark.parametrize("kept", ["built", "saved"])
@pytest.mark.parametrize("operator, result", MORE.items())
def test_the_device_computes_in_models_of_other_executors(npu, operator, result, kept, tmp_path):
    model = network(
        f"c = Conv(x, w) r = Relu(c) p = MaxPool <kernel_shape = [2, 2]> (r) z = {operator}(p)",
        "float[1, 4, 5, 5] x",
        f"{result} z, float[n, c, h, w] p",
        w=floats(4, 4, 1, 1),
    )
    built, report = agrees(npu, model, floats(1, 4, 5, 5))
    assert kinds(report) == [["conv+relu", "max pool"]]
    assert "npu_run(&region" in built.sources()["c"]
    if kept == "saved":
        built.save(tmp_path / "model.tvmx")
        built = load(tmp_path / "model.tvmx")
    with ThreadPoolExecutor(4) as pool:
        inputs = [floats(1, 4, 5, 5, seed=seed) for seed in range(8)]
        assert len(list(pool.map(partial(check_answer, built, model), inputs))) == 8
    assert "npu_region_0" in [kernel.kernel for kernel in built.profile().kernels]


def test_an_operator_too_large_for_the_scratchpad_stays_on_the_host(npu):
    model = network(
        "c = Conv(x, w) y = Conv(c, v)", "float[1, 2, 9, 9] x", "float[n, c, h, w] y",
        w=floats(3, 2, 5, 5), v=floats(2, 3, 2, 2),
    )  # fmt: skip
    _, report = agrees(npu, model, floats(1, 2, 9, 9), device=Device(scratchpad=30))
    assert kinds(report) == [["conv"]]
    assert reasons(report) == {"relax.nn.conv2d": "one window of (5, 5) exceeds the scratchpad"}


@pytest.mark.parametrize("dram, operator", [(35799, "narrow"), (40000, "stem")])
def test_a_device_with_too_little_memory_names_the_operator(npu, dram, operator):
    """First the weights of all must fit, then each operator's tensors."""
    with pytest.raises(BuildError, match=rf"operator '{operator}' needs .* has {4 * dram}"):
        npu.build(small_cnn(), Device(dram=dram))


def test_a_device_that_cannot_be_opened_is_an_error(npu, monkeypatch, capfd):
    cost = compile_regions([chain(1)], Device())[0].cost()
    monkeypatch.setattr(Program, "cost", lambda program: cost)
    built, _ = npu.build(residual_block("c, x"), Device(dram=1 << 60))
    with pytest.raises(RunError, match="C code returned"):
        built(floats(1, 4, 9, 9))
    assert "npu: no memory for the device" in capfd.readouterr().err


def test_each_model_has_the_device_of_its_target(npu, tmp_path):
    """Two devices, builds and calls from several threads: neither sees anything of the other."""
    model, image = small_cnn(), floats(1, 3, 64, 64)
    devices = [Device(), Device(scratchpad=2000)] * 2
    with ThreadPoolExecutor(4) as pool:
        both = list(pool.map(lambda device: npu.build(model, device), devices))
        answers = list(pool.map(lambda built: built[0](image), both * 4))
    for device, (_, report) in zip(devices, both, strict=True):
        assert {program.device for program in report.programs} == {device}
    counts = [[len(program.commands) for program in report.programs] for _, report in both]
    assert counts[0] == counts[2] < counts[1] == counts[3]
    check_answer(both[1][0], model, image)
    for answer in answers:
        np.testing.assert_allclose(answer, answers[0], rtol=1e-4, atol=1e-5)


def test_reasons_are_in_the_program(npu):
    model = network(
        "y = Conv <group = 2> (x, w)", "float[1, 4, 5, 5] x", "float[1, 4, 5, 5] y",
        w=floats(4, 2, 1, 1),
    )  # fmt: skip
    text = convert_and_build(model, "llvm").sources()["select"]
    assert '"declined": {"y": ["npu.conv: 2 groups: the array has one"]}' in text


def test_saved_models_and_threads(npu, tmp_path):
    built, _ = agrees(npu, residual_block("c, x"), floats(1, 4, 9, 9))
    built.save(tmp_path / "block.tvmx")
    saved = load(tmp_path / "block.tvmx")
    inputs = [floats(1, 4, 9, 9, seed=k) for k in range(8)]
    expected = [built(x) for x in inputs]
    with ThreadPoolExecutor(4) as pool:
        for model in (built, saved):
            for got, want in zip(pool.map(model, inputs * 10), expected * 10, strict=True):
                np.testing.assert_array_equal(got, want)


def test_every_pass_keeps_the_answer(npu):
    agrees(npu, residual_block("c, x"), floats(1, 4, 9, 9), verify="each-pass")


def test_without_the_plugin_nothing_is_on_the_device():
    built = convert_and_build(residual_block("c, x"), "llvm")
    check_answer(built, residual_block("c, x"), floats(1, 4, 9, 9))
    assert "npu_run" not in built.sources()["c"]


@pytest.mark.parametrize("name", ["npu.offload", "npu.conv", "npu.add"])
def test_steps_can_be_left_out(npu, name):
    """Without ``npu.offload`` the host computes the compounds."""
    model = residual_block("c, x")
    built = convert_and_build(model, "llvm", without=[name])
    check_answer(built, model, floats(1, 4, 9, 9))
    assert ("npu_run" in built.sources()["c"]) == (name != "npu.offload")


def test_the_tutorial_runs_command_by_command(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    text = (Path(examples.npu.__file__).parent / "README.md").read_text()
    commands = re.findall(r"^    python -m (\S+) *([^#\n]*)", text, re.M)
    assert {name for name, _ in commands} == {"examples.npu", "tvm_ext"}
    for name, arguments in commands:
        argv = arguments.split()
        if "--verify" in argv:  # slow; test_every_pass_keeps_the_answer does that
            continue
        if name == "examples.npu":
            monkeypatch.setattr(sys, "argv", [name, *argv])
            demonstrate()
        else:
            try:
                assert command_line(argv) == 0, argv
            finally:
                if "examples.npu.target" in PLUGINS:
                    PLUGINS["examples.npu.target"].unload()
    printed = capsys.readouterr().out
    assert "npu_region_1: 14 commands" in printed
    assert float(printed.split("onnxruntime: ")[1].split()[0]) < 1e-5


MAIN = """
#include <stdlib.h>
int main(void) {{
  float *operands[{count}];
  static const size_t sizes[{count}] = {{{sizes}}};
  for (int k = 0; k < {count}; k++) operands[k] = calloc(sizes[k], sizeof(float));
  int code = 0;
  for (int run = 0; run < 2; run++) code |= TVMX_KERNEL({arguments});
  for (int k = 0; k < {count}; k++) free(operands[k]);
  return code;
}}
"""


def test_emitted_c_is_clean_under_the_sanitizers(tmp_path):
    region = chain(3)
    (program,) = compile_regions([region], Device(4 * 256, 100))
    tensors = (*region.inputs, *region.outputs)
    main = MAIN.format(
        count=len(tensors),
        sizes=", ".join(str(tensor.size) for tensor in tensors),
        arguments=", ".join(f"operands[{k}]" for k in range(len(tensors))),
    )
    (tmp_path / "region.c").write_text(region_source(program, []) + main)
    (tmp_path / "device.c").write_text(support_source())
    sanitized("-DTVMX_KERNEL=region", tmp_path / "region.c", tmp_path / "device.c")
