"""What no pattern of llvm covers still builds, and a rule that fails is passed over."""

import numpy as np
import pytest
from tvm import te, topi
from tvm.s_tir import Schedule, ScheduleError
from tvm.s_tir.dlight.base import ScheduleRule
from tvm.target import Target

from tests.schedules.kernels import WIDE, prim_func, run, schedule
from tvm_ext import schedules
from tvm_ext.schedules.llvm import LLVM_GENERIC, LLVM_SIMPLE
from tvm_ext.schedules.machine import Machine
from tvm_ext.targets import MACHINES


@pytest.mark.parametrize("rules", [LLVM_GENERIC, LLVM_SIMPLE], ids=["generic", "simple"])
@pytest.mark.parametrize("compute, oracle", [
    (lambda x: topi.cumsum(x, 1), lambda a: a.cumsum(1)),
    (lambda x: topi.sort(x, 1), lambda a: np.sort(a, 1)),
    (lambda x: topi.nn.matmul(x, topi.transpose(x)), lambda a: a @ a.T),
], ids=["scan", "sort", "product"])  # fmt: skip
def test_kernels_of_any_form(rules, compute, oracle):
    x = te.placeholder((6, 33), "float32", "x")
    a = np.random.default_rng(0).standard_normal((6, 33)).astype("float32")
    expected = oracle(a)
    sch = schedule(rules, prim_func(x, compute(x)), WIDE)
    (got,) = run(sch, [a], [(expected.shape, "float32")])
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-4)


class Failing(ScheduleRule):
    def apply(self, func, _target, _tunable):
        sch = Schedule(func)
        sch.get_sblock("no such block")


@pytest.mark.rule_fails
def test_a_rule_that_fails_leaves_the_kernel_to_the_next(monkeypatch):
    x = te.placeholder((1 << 20,), "float32", "x")
    module = Schedule(prim_func(x, topi.exp(x))).mod
    with pytest.raises(ScheduleError):
        Failing().apply(module["main"], WIDE, False)
    monkeypatch.setattr(schedules, "rules", lambda *_: (Failing(), *LLVM_GENERIC))
    assert "T.parallel" in schedules.apply(WIDE, 3)(module).script()


@pytest.mark.parametrize("target, bits, lanes", [
    ({"kind": "llvm", "mcpu": "skylake-avx512"}, 512, 16),
    ({"kind": "llvm", "mcpu": "x86-64-v3"}, 256, 8),
    ({"kind": "llvm", "mcpu": "x86-64"}, 128, 4),
    ({"kind": "llvm", "mtriple": "aarch64-linux-gnu", "mattr": ["+neon"]}, 128, 4),
    ({"kind": "llvm", **MACHINES["armv7"]}, 128, 4),
    ({"kind": "llvm", **MACHINES["riscv64"]}, 128, 4),
    ({"kind": "llvm", **MACHINES["riscv64-v"]}, 128, 4),
    ({"kind": "llvm", **MACHINES["wasm32"]}, 128, 4),
], ids=["avx512", "avx2", "sse2", "neon", "armv7", "riscv64", "riscv64-v", "wasm32"])  # fmt: skip
def test_the_machine_is_read_from_the_target(target, bits, lanes):
    machine = Machine.of(Target(target))
    assert (machine.vector_bits, machine.lanes("float32"), machine.cores) == (bits, lanes, 1)
    assert machine.lanes("int8", "float32") == lanes
