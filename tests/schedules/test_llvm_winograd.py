"""Winograd convolution: its error, its loops, which kernels it declines, when it is chosen."""

from math import prod

import numpy as np
import pytest
from tvm import te, topi
from tvm.tirx import ForKind

from tests.schedules.kernels import here, run
from tvm_ext import targets
from tvm_ext.ops.conv2d_blocked import conv2d_blocked, pack_channels
from tvm_ext.ops.conv2d_winograd import conv2d_winograd
from tvm_ext.ops.toom_cook import ERROR, parts_of, tiling, transform_weight
from tvm_ext.schedules.llvm.conv2d import Tile
from tvm_ext.schedules.llvm.winograd import (
    Conv2dWinograd,
    Convolution,
    WinogradModel,
    WinogradPlan,
)

V4 = targets.resolve({"kind": "llvm", "mcpu": "x86-64-v4", "num-cores": 2})


def kernel(image, filters, lanes, pads, plan, stride=1, dilation=1, taps=(3, 3)):
    """relu(convolution + residual) of ``image``, [N, C, H, W] or [N, C, W]."""
    n, c, *sides = image
    blocks, tile = filters // lanes, plan.register.vectors * lanes
    parts, own = parts_of(taps)
    points = prod(axis.m + axis.taps - 1 for axis in tiling(plan.m, own))
    x = te.placeholder((n, c // lanes, *sides, lanes), name="x")
    u = te.placeholder((points, filters // tile, parts * c // lanes, lanes, tile), name="u")
    phases = [dilation if count > 1 else 1 for count in taps]
    options = lanes, pads, plan.m, plan.group, plan.register.columns, (1, 1), stride, phases, 1
    y = conv2d_winograd(x, u, *options, taps)
    r = te.placeholder((n, blocks, *y.shape[2:-1], lanes), name="r")
    return te.create_prim_func([x, u, r, topi.nn.relu(topi.add(y, r))])


def exact(x, w, pads, stride, dilation):
    """The convolution in float64."""
    top, left, bottom, right = pads
    padded = np.pad(x.astype("float64"), ((0, 0), (0, 0), (top, bottom), (left, right)))
    seen = 2 * dilation + 1
    windows = np.lib.stride_tricks.sliding_window_view(padded, (seen, seen), (2, 3))
    windows = windows[:, :, ::stride, ::stride, ::dilation, ::dilation]
    return np.einsum("ncijhw,ochw->noij", windows, w.astype("float64"))


@pytest.mark.parametrize("m", [2, 4])
@pytest.mark.parametrize(
    ("image", "filters", "lanes", "pads", "group", "register", "steps"),
    [
        ((1, 16, 1, 1), 16, 16, (1, 1, 1, 1), (1, 1), (1, 1), (1, 1)),
        ((2, 8, 3, 2), 24, 8, (1, 1, 1, 1), (2, 2), (3, 5), (1, 1)),
        ((3, 32, 7, 5), 32, 16, (2, 0, 1, 3), (1, 2), (2, 3), (1, 1)),
        ((1, 64, 13, 11), 48, 16, (0, 0, 0, 0), (1, 1), (3, 4), (1, 1)),
        ((2, 20, 9, 17), 12, 4, (1, 1, 0, 2), (1, 5), (1, 7), (1, 1)),
        ((1, 16, 1, 1), 16, 16, (1, 1, 1, 1), (1, 1), (1, 1), (2, 1)),
        ((2, 64, 13, 18), 96, 16, (1, 0, 2, 1), (2, 2), (3, 4), (2, 1)),
        ((3, 12, 7, 17), 8, 4, (0, 0, 0, 0), (1, 1), (2, 3), (2, 1)),
        ((1, 16, 6, 6), 16, 16, (2, 2, 2, 2), (1, 1), (1, 1), (1, 2)),
        ((2, 32, 13, 11), 32, 16, (2, 3, 1, 0), (4, 2), (2, 3), (1, 2)),
        ((3, 20, 7, 10), 12, 4, (3, 3, 3, 3), (3, 1), (1, 5), (1, 3)),
        ((2, 8, 11, 19), 24, 8, (0, 0, 0, 0), (50, 1), (3, 4), (1, 5)),
    ],
)
def test_the_error_is_within_its_bound(m, image, filters, lanes, pads, group, register, steps):
    rng = np.random.default_rng(0)
    w = rng.standard_normal((filters, image[1], 3, 3)).astype("float32")
    plan, tile = WinogradPlan(m, *group, Tile(*register)), register[0] * lanes
    func = kernel(image, filters, lanes, pads, plan, *steps)
    sch = Conv2dWinograd().apply(func, here(), False)
    weight = transform_weight(w, m, lanes, tile, steps[0])
    for mean in 0, 1000:
        x = (rng.standard_normal(image) + mean).astype("float32")
        want = exact(x, w, pads, *steps)
        residual = rng.standard_normal(want.shape).astype("float32")
        blocked = pack_channels(residual, lanes)
        args = [pack_channels(x, lanes), weight, blocked]
        (got,) = run(sch, args, [(blocked.shape, "float32")])
        got = got.transpose(0, 1, 4, 2, 3).reshape(want.shape)
        scale = np.abs(x).max() * np.abs(w).sum((1, 2, 3)).max()
        error = np.abs(got - np.maximum(want + residual, 0)).max()
        assert error <= ERROR[m] * 2.0**-24 * scale


@pytest.mark.parametrize(
    ("m", "image", "filters", "lanes", "pads", "group", "register", "taps", "dilation"),
    [
        (2, (1, 32, 9, 13), 16, 16, (0, 1, 0, 1), (1, 2), (1, 5), (1, 3), 1),
        (4, (2, 16, 11, 3), 48, 16, (1, 0, 2, 0), (2, 1), (3, 4), (3, 1), 2),
        (2, (1, 64, 17, 6), 32, 16, (0, 2, 0, 2), (1, 3), (2, 3), (1, 5), 1),
        (4, (1, 32, 5, 30), 32, 8, (0, 0, 0, 0), (1, 2), (2, 3), (1, 4), 1),
        (4, (3, 16, 100), 32, 16, (1, 1), (1, 2, 5), (2, 5), (1, 3), 1),
        (2, (1, 48, 61), 16, 16, (4, 4), (1, 1, 16), (1, 7), (1, 5), 2),
        (4, (2, 32, 50), 48, 16, (3, 3), (2, 1, 4), (3, 4), (1, 4), 3),
        (2, (1, 48, 17, 13), 32, 16, (2, 2, 2, 2), (1, 2), (2, 3), (5, 5), 1),
        (4, (1, 32, 19, 9), 32, 16, (2, 1, 1, 2), (1, 2), (2, 3), (4, 4), 1),
    ],
)
def test_the_error_of_other_windows(
    m, image, filters, lanes, pads, group, register, taps, dilation
):
    rng = np.random.default_rng(0)
    w = rng.standard_normal((filters, image[1], *taps)).astype("float32")
    plan, tile = WinogradPlan(m, *group[:2], Tile(*register), 1, *group[2:]), register[0] * lanes
    func = kernel(image, filters, lanes, pads, plan, 1, dilation, taps)
    sch = Conv2dWinograd().apply(func, here(), False)
    weight = transform_weight(w, m, lanes, tile)
    around = [(0, 0), (0, 0), *zip(pads[: len(pads) // 2], pads[len(pads) // 2 :], strict=True)]
    seen = [(count - 1) * dilation + 1 for count in taps]
    for mean in 0, 1000:
        x = (rng.standard_normal(image) + mean).astype("float32")
        padded = np.pad(x.astype("float64"), around)
        rows = padded.reshape(*image[:2], -1, padded.shape[-1])  # a signal has one
        windows = np.lib.stride_tricks.sliding_window_view(rows, seen, (2, 3))
        windows = windows[..., ::dilation, ::dilation]
        want = np.einsum("ncijhw,ochw->noij", windows, w.astype("float64"))
        residual = rng.standard_normal(want.shape).astype("float32")
        signal = (*want.shape[:2], -1)
        blocked = pack_channels(residual.reshape(signal) if len(image) == 3 else residual, lanes)
        (got,) = run(sch, [pack_channels(x, lanes), weight, blocked], [(blocked.shape, "float32")])
        got = np.moveaxis(got, -1, 2).reshape(want.shape)
        scale = np.abs(x).max() * np.abs(w).sum((1, 2, 3)).max()
        error = np.abs(got - np.maximum(want + residual, 0)).max()
        assert error <= ERROR[m] * 2.0**-24 * scale


def parallel_loops(sch):
    """The parallel loops around each block, from the outside."""
    found = []
    for name in ("half_in", "inputs", "tiled_update", "outputs"):
        loops = map(sch.get, sch.get_loops(sch.get_sblock(name)))
        found.append([int(loop.extent) for loop in loops if loop.kind == ForKind.PARALLEL])
    return found


def test_small_groups_belong_to_a_core():
    plan = WinogradPlan(4, 1, 1, Tile(2, 14))
    sch = Conv2dWinograd().apply(kernel((1, 64, 56, 56), 64, 16, (1,) * 4, plan), V4, False)
    assert parallel_loops(sch) == [[14]] * 4
    loops = [sch.get(loop).kind for loop in sch.get_loops(sch.get_sblock("tiled_update"))]
    assert loops[-4:] == [ForKind.UNROLLED] * 3 + [ForKind.VECTORIZED]
    assert sch.get(sch.get_sblock("tiled_update")).writes[0].source.ty.storage_scope == "local"


def test_cores_share_a_large_group():
    plan = WinogradPlan(2, 1, 7, Tile(2, 10))
    sch = Conv2dWinograd().apply(kernel((1, 256, 14, 14), 256, 16, (1,) * 4, plan), V4, False)
    # blocks of channels times tiles; points times panels; blocks of channels times rows
    assert parallel_loops(sch) == [[16 * 49], [16 * 49], [16 * 8], [16 * 7]]


def test_foreign_kernels_are_declined():
    x, w = te.placeholder((1, 4, 9, 9, 16), name="x"), te.placeholder((4, 4, 3, 3, 16, 16))
    direct = conv2d_blocked(x, w, 16, 3, 1, (1, 1), (1, 1, 1, 1), (1, 1))
    n = te.var("n", dtype="int64")
    z = te.placeholder((n, 8), name="z")
    for tensors in ([x, topi.nn.relu(x)], [x, w, direct], [x, topi.sum(x, -1)], [z, topi.exp(z)]):
        assert Conv2dWinograd().apply(te.create_prim_func(tensors), V4, False) is None


@pytest.mark.parametrize(
    ("channels", "size", "images", "m"),
    [(64, 56, 1, 4), (128, 28, 1, 4), (256, 14, 1, 2), (256, 14, 8, 4), (512, 7, 1, 2)],
)
def test_weights_that_outweigh_tiles_ask_for_less(channels, size, images, m):
    conv = Convolution(images, channels, channels, size, size, 16, 16)
    plan = WinogradModel().choose(conv, V4)
    assert (plan and plan.m) == m


@pytest.mark.parametrize(("channels", "size", "m"), [(128, 28, 4), (256, 14, 2), (512, 7, 0)])
def test_stride_2_has_less_to_gain(channels, size, m):
    conv = Convolution(1, channels, channels, size, size, 16, 16, stride=2)
    plan = WinogradModel().choose(conv, V4)
    assert (plan.m if plan else 0) == m


@pytest.mark.parametrize(
    ("inputs", "outputs", "m"), [(512, 512, 4), (1024, 512, 2), (4096, 4096, 0)]
)
def test_weights_grow_by_a_bounded_number_of_bytes(inputs, outputs, m):
    conv, model = Convolution(1, inputs, outputs, 28, 28, 16, 16), WinogradModel()
    plan = model.choose(conv, V4)
    assert (plan.m if plan else 0) == m
    assert not plan or 4 * ((plan.m + 2) ** 2 - 9) * conv.pairs <= model.added


@pytest.mark.parametrize(("size", "dilation", "m"), [(28, 2, 4), (28, 4, 4), (28, 12, 0)])
def test_phases_are_images_that_may_be_small(size, dilation, m):
    """Those of 28 x 28 are 3 x 3 where every 12th row is seen: tiles waste as much as they save."""
    conv = Convolution(1, 32, 32, size, size, 16, 16, phases=(dilation, dilation))
    plan = WinogradModel().choose(conv, V4)
    assert (plan.m if plan else 0) == m


def test_a_tiny_image_stays_direct():
    conv = Convolution(1, 16, 16, 1, 1, 16, 16)
    assert WinogradModel().choose(conv, V4) is None


def test_weights_are_rounded_once():
    rng = np.random.default_rng(0)
    w = rng.standard_normal((16, 16, 3, 3)).astype("float32")
    wide, narrow = (transform_weight(a, 4, 16, 16) for a in (w.astype("float64"), w))
    np.testing.assert_array_equal(wide.astype("float32"), narrow)


@pytest.mark.parametrize(
    ("channels", "size", "rows"),
    [(64, 56, 1), (64, 224, 1), (128, 56, 1), (128, 28, 7), (256, 56, 7)],
)
def test_a_core_has_groups_of_its_own_while_weights_are_small(channels, size, rows):
    conv = Convolution(1, channels, channels, size, size, 16, 16)
    assert WinogradModel().plan(conv, 4, V4).rows == rows


def test_groups_never_exceed_the_shared_room():
    conv = Convolution(16, 512, 512, 28, 28, 16, 16)
    model = WinogradModel()
    plan = model.plan(conv, 4, V4)
    group_bytes = 4 * (plan.m + 2) ** 2 * 1024 * plan.images * plan.rows * 7
    assert group_bytes <= model.shared * (1 << 20) * 2
    assert conv.images % plan.images == 0
