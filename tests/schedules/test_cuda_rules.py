"""Each cuda rule on its own: what it takes, what it declines, how it binds."""

import logging
import re
from collections import defaultdict
from math import prod

import pytest
import tvm_ffi
from tvm import IRModule, s_tir, te, tirx, topi
from tvm.error import InternalError
from tvm.s_tir import dlight as dl
from tvm.s_tir.dlight.gpu.base import GPUScheduleRule
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as T
from tvm.target import Target

from tvm_ext import schedules
from tvm_ext.executors import lowering  # noqa: F401  registers what rules are tried by
from tvm_ext.ops import gather_scatter
from tvm_ext.ops.instance_norm import instance_norm as instance_norm_te
from tvm_ext.schedules import rules
from tvm_ext.schedules.cuda import (
    CUDA,
    SAFE,
    Checked,
    ColumnSums,
    ElementThreads,
    OwnThreads,
    RowReduction,
    SingleThread,
    TiledMatmul,
    TiledTranspose,
)
from tvm_ext.schedules.cuda.checked import flaw
from tvm_ext.schedules.cuda.serial_program import TOGETHER
from tvm_ext.schedules.cuda.tiled_matmul import TILES, Tile

CUDA_TARGET = Target({"kind": "cuda", "arch": "sm_80"}, host="llvm")
LLVM = Target("llvm")


def tensor(*shape, dtype="float32"):
    return te.placeholder(shape, dtype, name=f"p{len(shape)}")


def instance_norm(n, c, *spatial):
    x, scale, bias = tensor(n, c, *spatial), tensor(c), tensor(c)
    return te.create_prim_func([x, scale, bias, topi.nn.relu(instance_norm_te(x, scale, bias))])


def matmul_relu():
    a, b = tensor(5, 64), tensor(64, 33)
    return te.create_prim_func([a, b, topi.nn.relu(topi.matmul(a, b))])


def unary(compute, *shape):
    x = tensor(*shape)
    return te.create_prim_func([x, compute(x)])


def transpose(axes, *shape):
    x = wide(*shape)
    return te.create_prim_func([x, topi.nn.relu(topi.transpose(x, axes))])


def symbolic_softmax():
    n = tirx.Var("n", "int64")
    return unary(topi.nn.softmax, n, n)


def wide(*shape, dtype="float32"):
    """A placeholder whose extents are int64, as in kernels of Relax."""
    extents = [tirx.const(dim, "int64") if isinstance(dim, int) else dim for dim in shape]
    return te.placeholder(extents, dtype, name=f"w{len(shape)}")


def product(m, k, n, batch=2, transposed=False):
    a, b = wide(batch, m, k), wide(batch, *((n, k) if transposed else (k, n)))
    depth = te.reduce_axis((0, tirx.const(k, "int64")), "depth")

    def element(s, i, j):
        return te.sum(a[s, i, depth] * (b[s, j, depth] if transposed else b[s, depth, j]), depth)

    shape = (*a.shape[:2], tirx.const(n, "int64"))
    return te.create_prim_func([a, b, topi.nn.relu(te.compute(shape, element))])


def convolution(groups=1, channels=12, stride=1, dilation=1):
    x, w = tensor(2, channels, 9, 11), te.placeholder((8, channels // groups, 3, 3), name="w")
    y = topi.nn.conv(x, w, stride, 1, dilation, groups, "NCHW", "OIHW")
    return te.create_prim_func([x, w, topi.nn.relu(y)])


def distances():
    """A sum over pairs that does not vanish where both elements are zero."""
    a, b = wide(17, 5), wide(19, 5)
    depth = te.reduce_axis((0, tirx.const(5, "int64")), "depth")

    def element(i, j):
        return te.sum(te.exp(a[i, depth] - b[j, depth]), depth)

    extents = [tirx.const(extent, "int64") for extent in (17, 19)]
    return te.create_prim_func([a, b, te.compute(extents, element, "distances")])


def scatter(rows):
    data, index, update = wide(7, 5), wide(rows, 5, dtype="int64"), wide(rows, 5)
    result = gather_scatter.scatter_elements(data, index, update, 0)
    return te.create_prim_func([data, index, update, result])


def recurrence(batch):
    """``h = h @ w + x[t]``, step by step."""
    x, w = wide(5, batch, 8), wide(8, 8)

    def body(ins, outs):
        (x, w), (h, total) = ins, outs
        with IRBuilder() as builder:
            with T.serial(0, 5) as t:
                with T.grid(batch, 8) as (b, j):
                    T.buffer_store(total, x[t, b, j], [b, j])
                with T.grid(batch, 8, 8) as (b, k, j):
                    T.buffer_store(total, total[b, j] + h[b, k] * w[k, j], [b, j])
                with T.grid(batch, 8) as (b, j):
                    T.buffer_store(h, total[b, j], [b, j])
            return builder.get()

    states = te.extern([(batch, 8)] * 2, [x, w], body, name="recurrence", dtype=["float32"] * 2)
    return te.create_prim_func([x, w, *states])


KERNELS = {
    "product": lambda: product(65, 33, 70),
    "symbolic_product": lambda: product(tirx.Var("m", "int64"), 33, 70),
    "grouped": lambda: convolution(groups=4),
    "dilated": lambda: convolution(stride=2, dilation=2),
    "distances": distances,
    "transpose": lambda: transpose((0, 2, 3, 1), 2, 19, 17, 33),
    "symbolic_transpose": lambda: transpose((0, 2, 1), tirx.Var("n", "int64"), 19, 17),
    "long_transpose": lambda: transpose((1, 0), 64, 1 << 20),
    "scatter": lambda: scatter(3),
    "recurrence": lambda: recurrence(2),
    "matmul_relu": matmul_relu,
    "instance_norm": lambda: instance_norm(2, 3, 7, 11),
    "softmax": lambda: unary(topi.nn.softmax, 3, 1000),
    "symbolic": symbolic_softmax,
    "sum_of_all": lambda: unary(topi.sum, 7, 13),
    "mean_of_all": lambda: unary(lambda x: topi.sum(x) / 91.0, 7, 13),
    "first_axis": lambda: unary(lambda x: topi.sum(x, 0), 7, 13),
    "arg_max": lambda: unary(lambda x: topi.argmax(x, 1), 7, 130),
    "scan": lambda: unary(lambda x: topi.cumsum(x, 1), 3, 5),
    "scalar": lambda: unary(topi.exp),
    "empty": lambda: unary(topi.exp, 0, 3),
    "empty_rows": lambda: unary(lambda x: topi.sum(x, 1), 0, 3),
    "empty_sum": lambda: unary(lambda x: topi.sum(x, 0), 0, 3),
    "pool": lambda: unary(
        lambda x: topi.nn.pool2d(x, [3, 3], [2, 2], [1, 1], [1] * 4, "max"), 1, 5, 9, 9
    ),
}


def schedule(kernel, rule_list):
    with CUDA_TARGET:
        module = dl.ApplyDefaultSchedule(*rule_list)(IRModule({"kernel": kernel}))
    return module["kernel"]


@pytest.mark.parametrize("rule_list", [CUDA, SAFE, (SingleThread(),)], ids=["all", "safe", "one"])
@pytest.mark.parametrize("kernel", KERNELS.values(), ids=KERNELS)
def test_every_kernel_builds(kernel, rule_list):
    assert flaw(schedule(kernel(), rule_list), CUDA_TARGET) is None


def test_the_lists_of_the_opt_levels():
    assert [rules(CUDA_TARGET, level) for level in range(4)] == [SAFE, SAFE, CUDA, CUDA]


@pytest.mark.parametrize(
    "rule",
    [
        RowReduction(),
        ElementThreads(),
        SingleThread(),
        OwnThreads(),
        TiledTranspose(),
        Checked(ElementThreads()),
    ],
)
def test_rules_decline_other_targets(rule):
    assert rule.apply(KERNELS["softmax"](), LLVM, False) is None


class OnlyTheMatmul(GPUScheduleRule):
    """The failure that this file's rules exist for: the relu behind a matmul stays unbound."""

    def apply(self, func, target, _tunable):
        sch = s_tir.Schedule(func)
        first, *_ = sch.get_child_blocks(sch.get_sblock("root"))
        sch.bind(sch.get_loops(first)[0], "blockIdx.x")
        return sch


class GreedyBlock(GPUScheduleRule):
    """One block of 4096 threads."""

    def apply(self, func, target, _tunable):
        sch = s_tir.Schedule(func)
        (block,) = sch.get_child_blocks(sch.get_sblock("root"))
        sch.bind(sch.fuse(*sch.get_loops(block)), "threadIdx.x")
        return sch


class Failing(GPUScheduleRule):
    def apply(self, func, target, _tunable):
        raise AssertionError("not for this kernel")


@pytest.mark.parametrize(
    "rule, kernel, reason",
    [
        (OnlyTheMatmul(), matmul_relu(), "outside of all threads"),
        (GreedyBlock(), unary(topi.exp, 64, 64), r"\[4096\] threads in a block"),
        (Failing(), matmul_relu(), "AssertionError: not for this kernel"),
        (dl.gpu.Transpose(), unary(topi.transpose, 64, 1 << 20), "131072 blocks along blockIdx.y"),
    ],
)
def test_a_bad_schedule_gives_way_and_the_log_says_why(rule, kernel, reason, caplog):
    with caplog.at_level(logging.DEBUG, "tvm_ext.schedules.cuda"):
        assert Checked(rule).apply(kernel, CUDA_TARGET, False) is None
        bound = schedule(kernel, (Checked(rule), *SAFE))
    assert flaw(bound, CUDA_TARGET) is None
    assert caplog.text.count(type(rule).__name__) == 2
    assert "scheduled by ElementThreads" in caplog.text
    assert re.search(reason, caplog.text)


def test_row_reduction_gives_a_block_of_threads_to_a_row():
    sch = RowReduction().apply(instance_norm(2, 3, 20, 20), CUDA_TARGET, False)
    for name in "row_sum", "row_square_sum":
        block = sch.get_sblock(name)
        row, *_, thread, _serial = map(sch.get, sch.get_loops(block))
        assert (row.thread_binding.thread_tag, int(row.extent)) == ("blockIdx.x", 6)
        assert (thread.thread_binding.thread_tag, int(thread.extent)) == ("threadIdx.x", 128)
        assert sch.get(block).writes[0].source.ty.storage_scope == "shared"


@pytest.mark.parametrize("kernel", ["first_axis", "pool", "scalar", "scan", "matmul_relu"])
def test_row_reduction_declines_what_is_not_row_work(kernel):
    assert RowReduction().apply(KERNELS[kernel](), CUDA_TARGET, False) is None


def test_row_reduction_leaves_short_rows_to_a_thread_each():
    short = unary(lambda x: topi.sum(x, 1), 100, 9)
    assert RowReduction().apply(short, CUDA_TARGET, False) is None


def test_element_threads_keep_a_window_in_a_register():
    sch = ElementThreads().apply(KERNELS["pool"](), CUDA_TARGET, False)
    block = sch.get_sblock("pool_max_update")
    *_, row, column = map(sch.get, sch.get_loops(block))
    assert sch.get(block).writes[0].source.ty.storage_scope == "local"
    assert row.kind == column.kind == tirx.ForKind.UNROLLED


def test_element_threads_leave_long_reductions_to_several_threads():
    rule = ElementThreads(longest=64)
    assert rule.apply(KERNELS["pool"](), CUDA_TARGET, False) is not None
    assert rule.apply(KERNELS["arg_max"](), CUDA_TARGET, False) is None
    assert rule.apply(symbolic_softmax(), CUDA_TARGET, False) is None


def test_element_threads_launch_one_idle_block_for_an_empty_tensor():
    sch = ElementThreads().apply(KERNELS["empty"](), CUDA_TARGET, False)
    (block,) = sch.get_child_blocks(sch.get_sblock("root"))
    grid, *_ = map(sch.get, sch.get_loops(block))
    assert int(grid.extent) == 1


def test_own_threads_takes_only_functions_that_launch():
    assert OwnThreads().apply(matmul_relu(), CUDA_TARGET, False) is None
    partly = OnlyTheMatmul().apply(matmul_relu(), CUDA_TARGET, False).mod["main"]
    bound = OwnThreads().apply(partly, CUDA_TARGET, False)
    assert flaw(bound.mod["main"], CUDA_TARGET) is None


@pytest.mark.parametrize(
    "kernel",
    [
        product(65, 33, 70),
        product(5, 7, 3, batch=6, transposed=True),
        convolution(),
        convolution(groups=4),
        convolution(stride=2, dilation=2),
    ],
    ids=["odd", "batched_transposed", "convolution", "grouped", "strided_dilated"],
)
def test_tiled_matmul_keeps_operands_in_shared_memory(kernel):
    scheduled = TiledMatmul().apply(kernel, CUDA_TARGET, False).mod["main"]
    assert flaw(scheduled, CUDA_TARGET) is None
    text = str(scheduled)
    # Two operands, and the sums of groups of threads where these share the depth.
    assert text.count('scope="shared"') in (2, 3)


@pytest.mark.parametrize(
    "kernel", ["softmax", "pool", "scan", "first_axis", "scatter", "distances"]
)
def test_tiled_matmul_declines_what_is_no_product(kernel):
    assert TiledMatmul().apply(KERNELS[kernel](), CUDA_TARGET, False) is None


@pytest.mark.parametrize("kernel", ["transpose", "symbolic_transpose", "long_transpose"])
def test_a_transposed_tile_passes_through_shared_memory(kernel):
    scheduled = TiledTranspose().apply(KERNELS[kernel](), CUDA_TARGET, False).mod["main"]
    assert flaw(scheduled, CUDA_TARGET) is None
    assert str(scheduled).count('scope="shared"') == 1


@pytest.mark.parametrize(
    "kernel",
    [
        transpose((0, 2, 1, 3), 2, 19, 17, 33),  # contiguous on both sides as it is
        transpose((0, 2, 3, 1), 2, 3, 17, 33),  # 3 columns of a tile of 32
        convolution(),
        unary(topi.exp, 33, 65),
    ],
    ids=["inner_axis_stays", "short_axis", "convolution", "elementwise"],
)
def test_tiled_transpose_declines_what_it_would_not_speed_up(kernel):
    assert TiledTranspose().apply(kernel, CUDA_TARGET, False) is None


def tile_of(rows, columns, depth):
    return min(TILES, key=lambda tile: tile.cycles((1, rows, columns, depth), 132))


def test_tiles_grow_with_the_matrix():
    assert tile_of(4096, 4096, 1024) == Tile(128, 128, (8, 8), 8)
    assert tile_of(49, 512, 512).rows * tile_of(49, 512, 512).columns <= 32 * 32
    assert tile_of(8, 1000, 512).rows <= 16
    assert tile_of(8, 100_000, 512).rows == 8


def test_groups_of_threads_share_the_depth_of_a_small_product():
    assert tile_of(49, 512, 4608).groups == 16
    assert tile_of(4096, 4096, 4608).groups == 1


def test_tiles_fit_shared_memory_and_the_threads_of_a_block():
    for tile in TILES:
        assert tile.shared_bytes(4, 4) <= 48 << 10
        assert prod(tile.threads) * tile.groups <= 1024
    assert any(tile.shared_bytes(8, 8) <= 48 << 10 for tile in TILES)


def bound_extents(func):
    """Of each launch dim, the extents of the loops that are bound to it, in order."""
    extents = defaultdict(list)

    def note(loop):
        if loop.kind == tirx.ForKind.THREAD_BINDING:
            extents[loop.thread_binding.thread_tag].append(int(loop.extent))

    tvm_ffi.structural_walk(func.body, (tirx.For, note), order="pre")
    return extents


def launches(func):
    """(blocks, threads) of each launch of a function that SingleThread scheduled."""
    extents = bound_extents(func)
    return list(zip(extents["blockIdx.x"], extents["threadIdx.x"], strict=True))


def test_scatter_spreads_what_cannot_collide():
    func = SingleThread().apply(scatter(3), CUDA_TARGET, False).mod["main"]
    assert launches(func) == [(1, 256), (1, 256)]  # the copy of 35 elements; 5 columns of updates


def test_recurrence_has_a_block_per_sequence_whose_threads_wait_for_each_other():
    func = SingleThread().apply(recurrence(3), CUDA_TARGET, False).mod["main"]
    assert launches(func) == [(3, TOGETHER)]
    # Behind each nest, and between the parts of the sums and their total.
    assert str(func).count("tvm_storage_sync") == 4


def test_groups_of_threads_share_the_terms_of_a_sum():
    func = SingleThread().apply(recurrence(3), CUDA_TARGET, False).mod["main"]
    # 8 sums of 8 terms for 512 threads: a term to a thread, what they leave in shared memory.
    left = [b for b in allocated(func) if b.ty.storage_scope == "shared"]
    assert [list(map(int, b.ty.shape)) for b in left] == [[8 * 8]]


def allocated(func):
    found = []
    tvm_ffi.structural_walk(func.body, (s_tir.SBlock, lambda b: found.extend(b.alloc_buffers)))
    return found


@pytest.mark.parametrize(
    "terms, elements, expected",
    [
        (2048, 1000, (125, 8, 64)),  # narrow blocks, to reach all multiprocessors
        (100, 4099, (129, 32, 8)),  # at least as many groups as have 16 terms each
        (70, 5, (1, 8, 8)),
    ],
)
def test_columns_of_long_sums(terms, elements, expected):
    func = te.create_prim_func([x := wide(terms, elements), topi.nn.relu(topi.sum(x, 0))])
    sch = ColumnSums().apply(func, CUDA_TARGET, False)
    blocks, columns, groups = expected
    assert bound_extents(sch.mod["main"]) == {
        "blockIdx.x": [blocks],
        "threadIdx.x": [columns],
        "threadIdx.y": [groups],
    }
    assert flaw(sch.mod["main"], CUDA_TARGET) is None


def test_sums_along_rows_are_no_columns():
    func = te.create_prim_func([x := wide(7, 300), topi.sum(x, 1)])
    assert ColumnSums().apply(func, CUDA_TARGET, False) is None


def test_what_depends_on_the_iteration_before_stays_in_order():
    x = wide(9)
    func = (
        SingleThread()
        .apply(te.create_prim_func([x, topi.cumsum(x)]), CUDA_TARGET, False)
        .mod["main"]
    )
    assert launches(func) == [(1, 1)]


@pytest.mark.rule_fails
def test_no_kernel_is_left_on_the_host(monkeypatch):
    """The last rule takes any kernel; should it fail, the build must, too."""

    class Broken(GPUScheduleRule):
        def apply(self, func, target, tunable):
            raise InternalError("broken")

    def module():
        kernel = te.create_prim_func([x := tensor(3, 5), topi.exp(x)])
        return IRModule({"main": kernel.with_attr("global_symbol", "main")})

    monkeypatch.setattr(schedules, "rules", lambda *_: (Broken(), SingleThread()))
    assert "blockIdx.x" in schedules.apply(CUDA_TARGET, 3)(module()).script()
    monkeypatch.setattr(schedules, "rules", lambda *_: (Broken(),))
    with pytest.raises(InternalError, match="broken"):
        schedules.apply(CUDA_TARGET, 3)(module())
