"""Kernels for the schedule tests: small TE functions, and a runner against numpy."""

import numpy as np
import tvm
from tvm import te, tirx
from tvm.s_tir import Schedule
from tvm.target import Target

#: Two cores of the widest vectors that the rules know; kernels are also run on this machine.
WIDE = Target({"kind": "llvm", "mcpu": "skylake-avx512", "num-cores": 2})


def here(cores=2):
    """This CPU, with so many cores."""
    cpu = str(tvm.get_global_func("target.llvm_get_system_cpu")())
    return Target({"kind": "llvm", "mcpu": cpu, "num-cores": cores})


def prim_func(*tensors):
    """A schedulable function of these inputs and outputs."""
    return te.create_prim_func(list(tensors)).with_attr("global_symbol", "main")


def schedule(rules, func, target):
    """What the first of ``rules`` that takes ``func`` makes of it."""
    with target:
        for rule in rules:
            result = rule.apply(func, target, False)
            if result is not None:
                return result
    raise AssertionError("no rule took the kernel")


def run(sch, inputs, outputs):
    """The outputs of a scheduled function; ``outputs`` are their (shape, dtype)."""
    results = [tvm.runtime.tensor(np.full(shape, 77).astype(dtype)) for shape, dtype in outputs]
    arguments = [tvm.runtime.tensor(array) for array in inputs]
    tvm.compile(sch.mod, here())["main"](*arguments, *results)
    return [result.numpy() for result in results]


def loops(sch: Schedule, name: str) -> list[tirx.For]:
    """The loops around the first block of this name, outermost first."""
    blocks = sch.get_child_blocks(sch.get_sblock("root"))
    block = next(block for block in blocks if sch.get(block).name_hint == name)
    return [sch.get(loop) for loop in sch.get_loops(block)]


def kinds(sch: Schedule, name: str) -> list[tirx.ForKind]:
    """The kinds of the loops around a block."""
    return [loop.kind for loop in loops(sch, name)]
