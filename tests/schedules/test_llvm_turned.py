"""Transposes in registers against numpy: hostile sides, element types, what is fused to them."""

import numpy as np
import pytest
from tvm import te, tirx, topi

from tests.bounds import unproven
from tests.schedules.kernels import WIDE, here, prim_func, run, schedule
from tvm_ext.ops.conv2d_blocked import block, pack_weight, packed_weight, unblock
from tvm_ext.schedules.llvm import Elementwise

N = tirx.Var("n", "int64")


def int64(size):
    return tirx.const(size, "int64") if isinstance(size, int) else size


def placeholder(shape, dtype="float32", name="x"):
    return te.placeholder(list(map(int64, shape)), dtype, name)


def kernel(*tensors, target=None):
    return schedule((Elementwise(),), prim_func(*tensors), target or here())


def is_turned(sch):
    return "T.Shuffle" in sch.mod.script()


@pytest.mark.parametrize("shape, axes, dtype", [
    ((17, 33), (1, 0), "float32"), ((3, 24, 5, 5), (0, 2, 3, 1), "float32"),
    ((128, 769), (1, 0), "float32"), ((7, 6, 5, 4), (3, 2, 1, 0), "float32"),
    ((1, 4, 4, 8, 32, 33), (0, 3, 4, 1, 5, 2), "float32"), ((2, 5, 16, 18), (0, 3, 1, 2), "int8"),
    ((2, 5, 16, 18), (0, 3, 1, 2), "float16"), ((4, 70, 31), (0, 2, 1), "float64"),
    ((4, 70, 31), (2, 1, 0), "int64"), ((5, 1, 7), (2, 1, 0), "uint8"),
    ((3, 37, 21), (0, 2, 1), "bool"),
], ids=str)  # fmt: skip
def test_transpose(shape, axes, dtype):
    x = placeholder(shape, dtype)
    sch = kernel(x, topi.transpose(x, axes))
    array = (np.random.default_rng(0).standard_normal(shape) * 50).astype(dtype)
    expected = array.transpose(axes)
    (got,) = run(sch, [array], [(expected.shape, dtype)])
    np.testing.assert_array_equal(got, expected)
    assert is_turned(sch)


def test_the_number_of_transposes_may_be_symbolic():
    x = placeholder((N, 19, 37))
    sch = kernel(x, topi.transpose(x, (0, 2, 1)))
    assert is_turned(sch)
    for count in (0, 1, 5):
        array = np.random.default_rng(0).standard_normal((count, 19, 37)).astype("float32")
        (got,) = run(sch, [array], [((count, 37, 19), "float32")])
        np.testing.assert_array_equal(got, array.transpose(0, 2, 1))


def test_what_is_fused_reads_its_own_places():
    x, bias, z = placeholder((3, 21, 50)), placeholder((50,), name="b"), placeholder((3, 50, 21))
    turned = topi.transpose(x, (0, 2, 1))
    y = te.compute(
        z.shape, lambda n, i, j: te.max(turned[n, i, j] * z[n, i, j] + bias[i], 0.0), "y"
    )
    sch = kernel(x, bias, z, y)
    rng = np.random.default_rng(0)
    a, b, c = (rng.standard_normal(s).astype("float32") for s in ((3, 21, 50), (50,), (3, 50, 21)))
    (got,) = run(sch, [a, b, c], [(c.shape, "float32")])
    expected = np.maximum(a.transpose(0, 2, 1).astype("f8") * c + b[:, None], 0)
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)
    assert is_turned(sch)


@pytest.mark.parametrize("shape, lanes", [((2, 48, 7, 9), 16), ((1, 24, 33), 8)], ids=str)
def test_blocks_of_channels(shape, lanes):
    n, c, *image = shape
    array = np.random.default_rng(0).standard_normal(shape).astype("float32")
    blocked = np.moveaxis(array.reshape(n, c // lanes, lanes, *image), 2, -1).copy()
    for operator, given, wanted in (
        (lambda x: block(x, int64(lanes)), array, blocked),
        (lambda x: unblock(x, int64(c)), blocked, array),
    ):
        x = placeholder(given.shape)
        sch = kernel(x, operator(x))
        (got,) = run(sch, [given], [(wanted.shape, "float32")])
        np.testing.assert_array_equal(got, wanted)
        assert is_turned(sch)


@pytest.mark.parametrize("channels", [21, 33, 16, 5, 1])
@pytest.mark.parametrize("image", [(7, 9), (64,)], ids=str)
def test_channels_that_fill_no_block(channels, image):
    """The padded ones are read, and not stored; what is fused is done for those that are."""
    lanes, blocks = 16, -(-channels // 16)
    x, bias = placeholder((2, blocks, *image, lanes)), placeholder((channels,), name="b")
    plain = unblock(x, int64(channels))
    shape = [int64(2), int64(channels), *map(int64, image)]
    y = te.compute(shape, lambda n, c, *at: plain(n, c, *at) + bias[c], "y")
    sch = kernel(x, bias, y)
    rng = np.random.default_rng(0)
    array = rng.standard_normal((2, blocks, *image, lanes)).astype("float32")
    added = rng.standard_normal(channels).astype("float32")
    (got,) = run(sch, [array, added], [((2, channels, *image), "float32")])
    whole = np.moveaxis(array, -1, 2).reshape(2, -1, *image)[:, :channels]
    np.testing.assert_array_equal(got, whole + added.reshape(-1, *[1] * len(image)))
    assert is_turned(sch) == (channels > 1)


def test_a_symbolic_number_of_pixels_of_channels_that_fill_no_block():
    x = placeholder((2, N, 16))
    sch = kernel(x, te.compute((int64(21), N), lambda c, i: x[c // 16, i, c % 16], "y"))
    assert is_turned(sch)
    for count in (0, 3, 40):
        array = np.random.default_rng(0).standard_normal((2, count, 16)).astype("float32")
        (got,) = run(sch, [array], [((21, count), "float32")])
        np.testing.assert_array_equal(got, array.transpose(0, 2, 1).reshape(32, count)[:21])


def test_nothing_behind_a_tensor_is_read_for_channels_that_fill_no_block():
    x = placeholder((64, 16))
    sch = kernel(x, te.compute((int64(6), int64(64)), lambda c, i: x[i, c % 16 + 10], "y"))
    assert not unproven(sch.mod, here())
    array = np.random.default_rng(0).standard_normal((64, 16)).astype("float32")
    (got,) = run(sch, [array], [((6, 64), "float32")])
    np.testing.assert_array_equal(got, array.T[10:])


@pytest.mark.parametrize("times", [2, 9])
def test_blocks_of_repeated_channels(times):
    """A division that one variable is in hid the steps of the others."""
    x = placeholder((2, 16, 9, 8))
    sch = kernel(x, block(x, int64(16), int64(times)))
    assert is_turned(sch)
    array = np.random.default_rng(0).standard_normal((2, 16, 9, 8)).astype("float32")
    (got,) = run(sch, [array], [((2, times, 9, 8, 16), "float32")])
    expected = np.repeat(array, times, axis=1).reshape(2, times, 16, 9, 8)
    np.testing.assert_array_equal(got, np.moveaxis(expected, 2, -1))


@pytest.mark.parametrize("stride, start", [(2, 0), (2, 1), (3, 2)])
@pytest.mark.parametrize("shape", [(2, 8, 5, 9), (1, 64, 3, 16), (1, 48, 6, "w")], ids=str)
def test_phases_of_blocked_channels_beside_each_other(shape, stride, start):
    """As behind a transposed convolution: neighbours in a row are of different channels."""
    n, c, h, w = (N if size == "w" else size for size in shape)
    lanes, phases = 16 if c % 16 == 0 else 8, stride * stride
    x = placeholder((n, phases * c // lanes, h, w, lanes))

    def move(b, o, i, j, lane):
        i, j = i + start, j + start
        phase = i % stride * stride + j % stride
        return x[b, phase * (c // lanes) + o, i // stride, j // stride, lane]

    image = [size * stride - start for size in (h, w)]
    moved = te.compute(tuple(map(int64, (n, c // lanes, *image, lanes))), move, "moved")
    sch = kernel(x, unblock(moved, int64(c)))
    assert is_turned(sch)
    for columns in (1, 3, 16, 21) if w is N else (w,):
        given = np.random.default_rng(0).standard_normal((n, phases * c, h, columns), "float32")
        split = given.reshape(n, -1, lanes, h, columns)
        parts = given.reshape(n, stride, stride, c, h, columns).transpose(0, 3, 4, 1, 5, 2)
        expected = parts.reshape(n, c, h * stride, -1)[:, :, start:, start:]
        (got,) = run(sch, [np.moveaxis(split, 2, -1).copy()], [(expected.shape, "float32")])
        np.testing.assert_array_equal(got, expected)


def test_weights_are_packed_as_constants_are():
    weight = np.random.default_rng(0).standard_normal((40, 32, 3, 3)).astype("float32")
    for layout in ((16, 16, 2), (16, 8, 1)):
        x = placeholder(weight.shape)
        expected = pack_weight(weight, *layout)
        (got,) = run(kernel(x, packed_weight(x, *layout)), [weight], [(expected.shape, "float32")])
        np.testing.assert_array_equal(got, expected)


def test_rows_that_a_select_leaves_out_are_not_read():
    """Simplification takes the clamp from what packs 35 filters as 40."""
    x = placeholder((35, 16, 5, 5))

    def element(o, i, h, w, inner, lane):
        filter = o * 8 + lane
        value = x(filter, i * 8 + inner, h, w)
        return tirx.Select(filter < 35, value, tirx.const(0, "float32"))

    packed = te.compute(tuple(map(int64, (5, 2, 5, 5, 8, 8))), element, "packed")
    sch = kernel(x, packed)
    assert is_turned(sch)
    assert not unproven(sch.mod, here())
    array = np.random.default_rng(0).standard_normal((35, 16, 5, 5)).astype("float32")
    (got,) = run(sch, [array], [((5, 2, 5, 5, 8, 8), "float32")])
    np.testing.assert_array_equal(got, pack_weight(array, 8, 8, 1))


@pytest.mark.parametrize("shape, axes", [
    (("n", 64, "h", "w"), (0, 2, 3, 1)), (("n", "h", "w", 20), (0, 3, 1, 2)),
    (("h", "w"), (1, 0)), (("n", "h", "w"), (2, 1, 0)),
], ids=str)  # fmt: skip
def test_symbolic_sides_shorter_than_a_square_too(shape, axes):
    symbols = {name: tirx.Var(name, "int64") for name in "nhw"}
    x = te.placeholder([symbols[d] if isinstance(d, str) else int64(d) for d in shape], name="x")
    sch = kernel(x, topi.transpose(x, axes))
    assert is_turned(sch)
    for sizes in ((1, 3, 5), (2, 1, 16), (3, 17, 16), (1, 40, 33), (0, 5, 20)):
        dims = dict(zip("nhw", sizes, strict=True))
        full = [dims[d] if isinstance(d, str) else d for d in shape]
        array = np.random.default_rng(0).standard_normal(full).astype("float32")
        want = array.transpose(axes)
        (got,) = run(sch, [array], [(want.shape, "float32")])
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("shape, dtype", [((17, 33), "bfloat16"), ((3, 33), "float32")], ids=str)
def test_sides_and_types_that_are_left_to_loops(shape, dtype):
    x = placeholder(shape, dtype)
    assert not is_turned(kernel(x, topi.transpose(x, (1, 0)), target=WIDE))


def test_what_is_costly_is_turned_with_what_reads_it_in_another_order():
    """Phases beside each other, and their rectified values unblocked: one move, not two."""
    x = placeholder((1, 8, 11, 13, 16))
    spread = depth_to_space_of_blocks(x, 2)
    y = te.compute(spread.shape, lambda *i: tirx.max(te.exp(spread(*i)), 1.5), "costly")
    sch = kernel(x, unblock(y, int64(32)))
    array = np.random.default_rng(0).standard_normal([1, 8, 11, 13, 16]).astype("float32")
    phases = array.reshape(2, 2, 2, 11, 13, 16).transpose(2, 5, 3, 0, 4, 1).reshape(1, 32, 22, 26)
    (got,) = run(sch, [array], [((1, 32, 22, 26), "float32")])
    np.testing.assert_allclose(got, np.maximum(np.exp(phases), 1.5), rtol=1e-5)
    assert is_turned(sch)


def depth_to_space_of_blocks(x, step):
    n, o, h, w, lanes = map(int, x.shape)
    depth = o // step**2

    def element(n, o, i, j, lane):
        phase = i % step * step + j % step
        return x(n, phase * depth + o, i // step, j // step, lane)

    return te.compute(
        list(map(int64, (n, depth, h * step, w * step, lanes))), element, "depth_to_space"
    )
