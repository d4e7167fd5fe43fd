"""What a target says, and what it leaves to be found."""

import pytest
from tvm.target import Target

from tvm_ext import targets
from tvm_ext.executors.threads import threads


def attributes(target: object, cores: int | None = None) -> dict[str, object]:
    return dict(targets.resolve(target, cores).attrs)


@pytest.mark.parametrize(
    "target", [{"kind": "llvm"}, Target("llvm"), "llvm -keys=cpu", "llvm -mcpu=native"], ids=str
)
def test_a_target_without_a_cpu_is_this_one(target):
    assert attributes(target) == attributes("llvm")
    assert attributes(target, cores=1) == attributes("llvm", cores=1)


def test_the_host_of_a_gpu_without_a_cpu_is_this_one():
    cuda = targets.resolve(Target({"kind": "cuda", "arch": "sm_80"}, host="llvm"))
    assert dict(cuda.host.attrs) == attributes("llvm")


def test_loops_are_shared_by_the_cores_here_unless_the_target_has_others():
    """Kernels of a target without ``num-cores`` ran on one core: half as fast on two."""
    assert attributes("llvm -mcpu=x86-64-v3")["num-cores"] == threads()
    assert attributes("llvm -mcpu=x86-64-v3", cores=1)["num-cores"] == 1
    assert attributes("llvm -mcpu=x86-64-v3 -num-cores=7", cores=1)["num-cores"] == 7
    assert attributes({"kind": "llvm", "num-cores": 3}) == attributes("llvm", cores=3)


def test_another_machine_has_several_cores_where_it_has_a_system():
    arm = attributes("llvm -mtriple=aarch64-linux-gnu")
    assert arm["num-cores"] == 4 and "mcpu" not in arm
    for alone in "llvm -mtriple=thumbv7em-none-eabi", "wasm32", "llvm -mtriple=wasm32-wasi":
        assert attributes(alone)["num-cores"] == 1
