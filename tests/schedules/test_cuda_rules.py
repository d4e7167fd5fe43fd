"""Each cuda rule on its own: what it takes, what it declines, how it binds."""

import logging
import re

import pytest
from tvm import IRModule, s_tir, te, tirx, topi
from tvm.s_tir import dlight as dl
from tvm.s_tir.dlight.gpu.base import GPUScheduleRule
from tvm.target import Target

from tvm_ext.ops.instance_norm import instance_norm as instance_norm_te
from tvm_ext.schedules import rules
from tvm_ext.schedules.cuda import (
    CUDA,
    SAFE,
    Checked,
    ElementThreads,
    OwnThreads,
    RowReduction,
    SingleThread,
)
from tvm_ext.schedules.cuda.checked import flaw

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


def symbolic_softmax():
    n = tirx.Var("n", "int64")
    return unary(topi.nn.softmax, n, n)


KERNELS = {
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
    [RowReduction(), ElementThreads(), SingleThread(), OwnThreads(), Checked(ElementThreads())],
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
