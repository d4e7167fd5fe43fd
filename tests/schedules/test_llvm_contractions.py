"""Convolution and matrix product rules: tiles, loop structure, refusal, numbers."""

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import te, tirx, topi
from tvm.ir import Call
from tvm.s_tir import SBlock, Schedule
from tvm.tirx import For, ForKind

from tvm_ext import targets
from tvm_ext.ops.bfloat16_pairs import matmul_pairs
from tvm_ext.ops.conv2d_blocked import (
    conv2d_blocked,
    depthwise_conv2d_blocked,
    pack_channels,
    pack_depthwise_weight,
    pack_weight,
)
from tvm_ext.ops.matmul_packed import matmul_packed, matmul_plain, matmul_tiled, pack_columns
from tvm_ext.schedules.llvm.contraction import split_steps
from tvm_ext.schedules.llvm.conv2d import (
    Conv2dBlocked,
    DepthwiseBlocked,
    choose_columns,
    choose_tile,
    holds_taps,
)
from tvm_ext.schedules.llvm.matmul import MatmulTiled, choose_matmul_tile
from tvm_ext.schedules.statements import substituted

X86 = {
    level: targets.resolve({"kind": "llvm", "mcpu": f"x86-64-{level}", "num-cores": 2})
    for level in ("v2", "v3", "v4")
}


def run(schedule_or_func, *arrays):
    module = schedule_or_func.mod if isinstance(schedule_or_func, Schedule) else schedule_or_func
    tensors = [tvm.runtime.tensor(array) for array in arrays]
    tvm.compile(module, targets.host_target())["main"](*tensors)
    return tensors[-1].numpy()


@pytest.mark.parametrize("level", X86)
@pytest.mark.parametrize(("oc_blocks", "width"), [(1, 1), (4, 56), (5, 113), (2, 7), (64, 14)])
def test_tiles_fit_the_registers(level, oc_blocks, width):
    tile = choose_tile(X86[level], oc_blocks, width)
    registers = 32 if level == "v4" else 16
    assert tile.accumulators + tile.vectors < registers
    assert oc_blocks % tile.vectors == 0
    assert tile.columns <= width


@pytest.mark.parametrize("width", [8, 16, 32, 64])
def test_among_equal_tiles_the_wider_reads_weights_less_often(width):
    tile = choose_tile(X86["v4"], 32, width)
    assert (tile.vectors, tile.columns) == (2, 8)


@pytest.mark.parametrize("level", X86)
@pytest.mark.parametrize(("width", "taps"), [(1, 3), (7, 5), (28, 5), (113, 3), (9, 41)])
def test_a_row_of_a_depthwise_convolution_fits_the_registers(level, width, taps):
    columns, registers = choose_columns(X86[level], width, taps), 32 if level == "v4" else 16
    assert 1 <= columns <= width
    assert columns + (taps if holds_taps(registers, taps) else 1) < registers
    assert columns >= min(width, 4)


@pytest.mark.parametrize(
    "name, registers",
    [("aarch64", 32), ("armv7", 16), ("wasm32", 16), ("riscv64", 8), ("riscv64-v", 32)],
)
def test_tiles_fit_the_registers_of_other_machines(name, registers):
    machine = targets.resolve(name)
    tile = choose_tile(machine, 4, 56)
    assert registers // 2 <= tile.accumulators + tile.vectors < registers
    tile = choose_matmul_tile(machine, 128, 768, "float32", 3072)
    assert tile.lanes == 4
    assert registers // 2 <= tile.rows * tile.vectors + tile.vectors < registers


@pytest.mark.parametrize(("rows", "columns"), [(1, 8), (1, 1000), (128, 768), (197, 21), (3, 1)])
def test_matmul_tiles_fit_the_registers(rows, columns):
    tile = choose_matmul_tile(X86["v3"], rows, columns, "float32", 256)
    assert tile.rows * tile.vectors + tile.vectors < 16
    assert tile.rows <= rows
    assert tile.lanes == 8


@pytest.mark.parametrize("rows", [128, 197, 1500])
def test_tiles_of_many_rows_are_tall(rows):
    """6x4 wastes less of 197 rows than 8x3, but reads the panel a third more often."""
    tile = choose_matmul_tile(X86["v4"], rows, 768, "float32", 3072)
    assert tile.rows >= 8 and tile.vectors >= 2
    assert -(-rows // tile.rows) * tile.rows <= 1.02 * rows


@pytest.mark.parametrize("columns", [32, 512, 1024])
def test_rows_whole_ways_of_the_cache_apart_fit_its_ways(columns):
    for row_bytes in (4096, 8192, 12288):
        assert choose_matmul_tile(X86["v4"], 128, columns, "float32", row_bytes).rows <= 8
    assert choose_matmul_tile(X86["v4"], 128, 512, "float32", 2048).rows > 8


@pytest.mark.parametrize(
    ("rows", "columns"), [(3136, 32), (785, 152), (3137, 152), (160, 24), (1500, 768)]
)
def test_threads_share_products_of_few_columns_evenly(rows, columns):
    tile = choose_matmul_tile(X86["v4"], rows, columns, "float32", 256)
    x = te.placeholder((rows, 64), "float32", name="x")
    panels = -(-columns // tile.columns)
    w = te.placeholder((panels, 64, tile.columns), "float32", name="w")
    y = matmul_packed(x, w, columns, tile.rows)
    sch = MatmulTiled().apply(te.create_prim_func([x, w, topi.nn.relu(y)]), X86["v4"], False)
    task = sch.get(sch.get_loops(sch.get_sblock("matmul_update"))[0])
    assert (task.kind, int(task.extent) % 2) == (ForKind.PARALLEL, 0)


def conv_func(image, weight, lanes, columns, pads):
    x, w = te.placeholder(image, name="x"), te.placeholder(weight, name="w")
    y = conv2d_blocked(x, w, lanes, columns, 1, (1, 1), pads, (1, 1))
    return te.create_prim_func([x, w, topi.nn.relu(y)])


def test_a_convolution_accumulates_in_vector_lanes_and_shares_rows():
    func = conv_func((1, 4, 56, 56, 16), (2, 4, 3, 3, 16, 32), 16, 14, (1, 1, 1, 1))
    sch = Conv2dBlocked().apply(func, X86["v4"], False)
    update = sch.get_sblock("convolution_update")
    kinds = [sch.get(loop).kind for loop in sch.get_loops(update)]
    assert kinds[0] == ForKind.PARALLEL
    assert kinds[-1] == ForKind.VECTORIZED
    assert kinds[-4:-1] == [ForKind.UNROLLED] * 3
    assert sch.get(update).writes[0].source.ty.storage_scope == "local"


def test_late_layers_share_channels():
    func = conv_func((1, 32, 7, 7, 16), (64, 32, 1, 1, 16, 32), 16, 7, (0, 0, 0, 0))
    sch = Conv2dBlocked().apply(func, X86["v4"], False)
    outer = sch.get(sch.get_loops(sch.get_sblock("convolution_update"))[0])
    assert isinstance(outer, For)
    assert (outer.kind, int(outer.extent)) == (ForKind.PARALLEL, 2)


def test_an_odd_number_of_rows_under_one_tile_of_channels_is_shared():
    func = conv_func((1, 4, 35, 35, 16), (1, 4, 5, 5, 16, 64), 16, 6, (2, 2, 2, 2))
    sch = Conv2dBlocked().apply(func, X86["v4"], False)
    outer = sch.get(sch.get_loops(sch.get_sblock("convolution_update"))[0])
    assert (outer.kind, int(outer.extent)) == (ForKind.PARALLEL, 35)


@pytest.mark.parametrize("rule", [Conv2dBlocked(), DepthwiseBlocked(), MatmulTiled()])
def test_foreign_kernels_are_declined(rule):
    x, w = te.placeholder((1, 8, 9, 9), name="x"), te.placeholder((8, 8, 3, 3), name="w")
    n = te.var("n", dtype="int64")
    z = te.placeholder((n, 8), name="z")
    for tensors in (
        [x, topi.nn.relu(x)],
        [x, topi.nn.softmax(x)],
        [x, topi.sum(x, -1)],
        [x, w, topi.nn.conv2d(x, w, 1, 0, 1, "NCHW", "OIHW")],
        [z, topi.exp(z)],
    ):
        assert rule.apply(te.create_prim_func(tensors), X86["v4"], False) is None


def test_a_padded_convolution_is_right():
    rng = np.random.default_rng(0)
    x = rng.standard_normal((2, 16, 5, 9)).astype("float32")
    w = rng.standard_normal((32, 16, 3, 3)).astype("float32")
    func = conv_func((2, 1, 5, 9, 16), (1, 1, 3, 3, 16, 32), 16, 4, (1, 1, 1, 1))
    sch = Conv2dBlocked().apply(func, targets.host_target(), False)
    out = run(
        sch, pack_channels(x, 16), pack_weight(w, 16, 16, 2), np.empty((2, 2, 5, 9, 16), "float32")
    )
    padded = np.pad(x.astype("float64"), ((0, 0), (0, 0), (1, 1), (1, 1)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), (2, 3))
    expected = np.maximum(np.einsum("ncijhw,ochw->noij", windows, w.astype("float64")), 0)
    np.testing.assert_allclose(
        out.transpose(0, 1, 4, 2, 3).reshape(expected.shape), expected, rtol=1e-4, atol=1e-4
    )


@pytest.mark.parametrize(
    ("image", "window", "strides", "pads", "dilations"),
    [
        ((12, 28), (3, 3), (1, 1), (1, 1, 1, 1), (1, 1)),
        ((13, 31), (3, 5), (2, 3), (0, 4, 2, 1), (1, 2)),
        ((1, 1), (5, 5), (1, 1), (2, 2, 2, 2), (1, 1)),
        ((9,), (4,), (2,), (3, 2), (1,)),
        ((3, 6, 5), (3, 3, 2), (1, 2, 1), (1, 2, 1, 1, 0, 1), (1, 1, 2)),
    ],
)
def test_a_depthwise_convolution_is_right_and_stores_no_zeros(
    image, window, strides, pads, dilations
):
    sch = check_depthwise(image, window, strides, pads, dilations)
    stored = sch.mod["main"].body.block.alloc_buffers
    assert [buffer.ty.storage_scope for buffer in stored] == ["local"]


@pytest.mark.parametrize(
    ("image", "window", "strides", "pads", "dilations"),
    [
        ((56,), (31,), (1,), (15, 15), (1,)),
        ((53,), (33,), (2,), (40, 16), (2,)),
        ((9, 10), (2, 30), (1, 1), (1, 15, 0, 14), (1, 1)),
        ((40,), (31,), (1,), (0, 0), (1,)),
    ],
)
def test_taps_that_registers_do_not_hold_are_read_for_many_pixels(
    image, window, strides, pads, dilations
):
    check_depthwise(image, window, strides, pads, dilations, images=1)


def check_depthwise(image, window, strides, pads, dilations, images=2):
    """The schedule of a depthwise convolution and ReLU, once its numbers are right."""
    rng = np.random.default_rng(3)
    x = rng.standard_normal((images, 32, *image)).astype("float32")
    w = rng.standard_normal((32, 1, *window)).astype("float32")
    packed = pack_channels(x, 16), pack_depthwise_weight(w, 16)
    a, b = (te.placeholder(array.shape, name="ab"[k]) for k, array in enumerate(packed))
    y = topi.nn.relu(depthwise_conv2d_blocked(a, b, 4, strides, pads, dilations))
    sch = DepthwiseBlocked().apply(te.create_prim_func([a, b, y]), targets.host_target(), False)
    ends = zip(pads[: len(image)], pads[len(image) :], strict=True)
    around = np.pad(x.astype("float64"), [(0, 0), (0, 0), *ends])
    reach = [(size - 1) * step + 1 for size, step in zip(window, dilations, strict=True)]
    axes = range(2, 2 + len(image))
    windows = np.lib.stride_tricks.sliding_window_view(around, reach, axes)
    windows = windows[(..., *(slice(None, None, step) for step in dilations))]
    windows = windows[(slice(None), slice(None), *(slice(None, None, step) for step in strides))]
    taps = w[:, 0].reshape(32, *[1] * len(image), *window)
    expected = np.maximum((windows * taps).sum(tuple(range(-len(image), 0))), 0)
    expected = pack_channels(expected, 16)
    out = run(sch, *packed, np.empty(expected.shape, "float32"))
    np.testing.assert_allclose(out, expected, rtol=1e-4, atol=1e-4)
    return sch


@pytest.mark.parametrize(
    ("leading", "k", "n"), [((1,), 7, 8), ((128,), 64, 48), ((1, 197), 33, 21), ((2, 3), 5, 1)]
)
def test_a_product_with_packed_weights_is_right(leading, k, n):
    rng = np.random.default_rng(1)
    target = targets.host_target()
    rows = int(np.prod(leading))
    tile = choose_matmul_tile(target, rows, n, "float32", 4 * k)
    x = rng.standard_normal((*leading, k)).astype("float32")
    w = rng.standard_normal((k, n)).astype("float32")
    packed = pack_columns(w, tile.columns)
    a, b = te.placeholder(x.shape, name="a"), te.placeholder(packed.shape, name="b")
    func = te.create_prim_func([a, b, topi.tanh(matmul_packed(a, b, n, tile.rows))])
    sch = MatmulTiled().apply(func, target, False)
    assert sch is not None
    out = run(sch, x, packed, np.empty((*leading, n), "float32"))
    np.testing.assert_allclose(out, np.tanh(x.astype("float64") @ w), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ((3, 5, 7), (3, 7, 11)),
        ((2, 3, 33, 16), (3, 16, 40)),
        ((1, 4, 1), (6, 1, 9)),
        ((13, 8), (2, 8, 5)),
    ],
)
def test_a_batched_product_is_right(a, b):
    rng = np.random.default_rng(2)
    target = targets.host_target()
    x, y = (rng.standard_normal(shape).astype("float32") for shape in (a, b))
    tile = choose_matmul_tile(target, a[-2], b[-1], "float32", 4 * a[-1])
    left, right = te.placeholder(a, name="left"), te.placeholder(b, name="right")
    product = matmul_tiled(left, right, tile.rows, tile.columns)
    sch = MatmulTiled().apply(te.create_prim_func([left, right, product]), target, False)
    assert sch is not None
    expected = x.astype("float64") @ y
    out = run(sch, x, y, np.empty(expected.shape, "float32"))
    np.testing.assert_allclose(out, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("leading", [(32,), (4, 16), (2, 3, 13)])
def test_accumulators_are_one_tile_whatever_the_leading_axes(leading):
    tile = choose_matmul_tile(X86["v4"], int(np.prod(leading)), 160, "float32", 256)
    x = te.placeholder((*leading, 16), name="x")
    w = te.placeholder((160 // tile.columns, 16, tile.columns), name="w")
    y = topi.nn.relu(matmul_packed(x, w, 160, tile.rows))
    sch = MatmulTiled().apply(te.create_prim_func([x, w, y]), X86["v4"], False)
    blocks = tvm.s_tir.transform
    lowered = tvm.ir.transform.Sequential(
        [
            blocks.LowerInitBlock(),
            blocks.PlanAndUpdateBufferAllocationLocation(),
            blocks.ConvertBlocksToOpaque(),
            blocks.CompactBufferAllocation(),
        ]
    )(sch.mod)
    local = [b for b in _allocated(lowered["main"]) if b.ty.storage_scope == "local"]
    assert [np.prod([int(d) for d in b.ty.shape]) for b in local] == [tile.rows * tile.columns]


def _allocated(func):
    found = []
    tvm_ffi.structural_walk(func.body, (SBlock, lambda block: found.extend(block.alloc_buffers)))
    return found


@pytest.mark.parametrize(("rows", "ahead"), [(128, True), (20, False), (1, False)])
def test_the_next_panel_is_fetched_ahead_where_one_is_used_long_enough(rows, ahead):
    x = te.placeholder((rows, 256), name="x")
    tile = choose_matmul_tile(X86["v4"], rows, 192, "float32", 256)
    panels = te.placeholder((192 // tile.columns, 256, tile.columns), name="w")
    func = te.create_prim_func([x, panels, matmul_packed(x, panels, 192, tile.rows)])
    text = MatmulTiled().apply(func, X86["v4"], False).mod["main"].script()
    assert ("prefetch" in text) == ahead


@pytest.mark.parametrize(("depth", "ahead"), [(1024, True), (256, False)])
def test_cold_weights_of_few_rows_are_fetched_some_way_ahead(depth, ahead):
    """As many lines as are used meanwhile: four steps of three vectors."""
    x, panels = te.placeholder((2, depth)), te.placeholder((4, depth, 48))
    func = te.create_prim_func([x, panels, matmul_packed(x, panels, 192, 2)])
    text = MatmulTiled().apply(func, X86["v4"], False).mod["main"].script()
    assert text.count("T.prefetch") == (12 if ahead else 0)


def test_the_next_panel_is_fetched_ahead_where_rows_are_rounded_first():
    x = te.placeholder((128, 512), name="x")
    tile = choose_matmul_tile(X86["v4"], 128, 192, "float32", 256)
    panels = te.placeholder((192 // tile.columns, 256, tile.columns), "int32", name="w")
    func = te.create_prim_func([x, panels, matmul_pairs(x, panels, 192, tile.rows)])
    assert "prefetch" in MatmulTiled().apply(func, X86["v4"], False).mod["main"].script()


@pytest.mark.parametrize(("channels", "ahead"), [(256, True), (64, False)])
def test_cold_weights_of_a_convolution_are_fetched_ahead(channels, ahead):
    func = conv_func(
        (1, channels // 16, 14, 14, 16), (channels // 32, channels // 16, 3, 3, 16, 32), 16, 7,
        (1, 1, 1, 1),
    )  # fmt: skip
    text = Conv2dBlocked().apply(func, X86["v4"], False).mod["main"].script()
    assert ("prefetch" in text) == ahead


@pytest.mark.parametrize(
    ("inputs", "rows", "columns"), [(512, 14, 14), (1024, 7, 7), (128, 28, 14)]
)
def test_turns_ask_for_the_next_panel_and_little_more(inputs, rows, columns):
    """The first turn for its first line, the last one for what ends it."""
    width, panel = 32, inputs * 32
    image, weight = (1, inputs // 16, rows, 28, 16), (8, inputs // 16, 1, 1, 16, width)
    func = conv_func(image, weight, 16, columns, (0, 0, 0, 0))
    sch = Conv2dBlocked(cold=0).apply(func, X86["v4"], False)
    loops, place = _prefetched(sch.mod["main"].body)
    first, last = (
        int(tvm.sym.Analyzer().simplify(substituted(place, {v: f(n) for v, n in loops.items()})))
        for f in (lambda n: tirx.const(0, n.ty), lambda n: n - 1)
    )
    turns = rows * -(-28 // columns) * inputs
    assert first == panel
    assert 0 <= last + 16 - 9 * panel < turns + 16  # elements, of which no turn asks for a part


def _prefetched(body):
    """The loops on which the only prefetch depends, with their extents, and where in the weights
    it is."""
    loops, calls = [], []
    tvm_ffi.structural_walk(body, (For, loops.append))
    tvm_ffi.structural_walk(body, (Call, calls.append))
    (fetch,) = (call for call in calls if getattr(call.op, "name", "") == "tirx.prefetch")
    place = fetch.args[0].args[0].indices[-1]
    used = tirx.analysis.undefined_vars(place)
    return {f.loop_var: f.extent for f in loops if any(f.loop_var.same_as(v) for v in used)}, place


@pytest.mark.parametrize(
    ("depth", "accumulators", "steps"),
    [(64, 28, 1), (64, 24, 1), (64, 12, 2), (64, 4, 4), (63, 4, 3), (7, 10, 1), (64, 1, 4)],
)
def test_few_accumulators_unroll_steps(depth, accumulators, steps):
    x, k = te.placeholder((accumulators, depth), name="x"), te.reduce_axis((0, depth), "k")
    y = te.compute((accumulators,), lambda i: te.sum(x[i, k], axis=k), "y")
    sch = Schedule(te.create_prim_func([x, y]))
    tile, loop = sch.get_loops(sch.get_sblock("y"))
    turns, inner = map(sch.get, split_steps(sch, loop, [tile]))
    assert (int(turns.extent), int(inner.extent)) == (depth // steps, steps)


@pytest.mark.parametrize("level", X86)
def test_a_plain_product_in_four_dims_is_no_register_tile(level):
    """Of few rows, as many columns as a vector has lanes."""
    a = te.placeholder((3, 2, 5, 3), "float32", "a")
    b = te.placeholder((3, 16), "float32", "b")
    product = matmul_plain(a, b)
    y = te.compute(product.shape, lambda *at: product(*at) + 1, "y")
    func = te.create_prim_func([a, b, y])
    assert MatmulTiled().apply(func, X86[level], False) is None
