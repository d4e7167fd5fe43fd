"""What this machine can do at most, measured: floating-point operations and bytes per second."""

import time
from functools import lru_cache

import numpy as np
import tvm
from tvm import s_tir, te

from . import targets
from .profile import Peak
from .schedules.machine import Machine

__all__ = ["measure"]

# Register vectors with independent sums: more than latency times units of any core.
VECTORS = 12
STEPS = 1 << 12
# Bytes, from what the inner caches hold to far beyond the last one.
STREAMS = tuple(1 << k for k in (18, 21, 24, 28))


@lru_cache(maxsize=1)
def measure(repeat: int = 7) -> Peak:
    """Measure the CPU once per process, with the threads that TVM uses (0.5 s)."""
    threads = int(tvm.get_global_func("runtime.NumThreads")())
    target = targets.host_target(threads)
    flops, flop_count = _multiply_add(target, threads)
    gflops = flop_count / _best(flops, repeat) / 1e9
    rates = []
    for size in STREAMS:
        stream, byte_count = _read(target, threads, size)
        rates.append((byte_count, byte_count / _best(stream, repeat) / 1e9))
    return Peak(gflops, rates[-1][1], threads, tuple(rates))


def _best(run, repeat: int) -> float:
    run()
    seconds = []
    for _ in range(repeat):
        start = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - start)
    return min(seconds)


def _multiply_add(target, threads: int):
    """``c[t, r, i] += a[k, r] * b[i]`` with c and b in registers, of which some CPUs have 16."""
    lanes = Machine.of(target).lanes("float32")
    repeats, rows, width = 16, VECTORS // 2, 2 * lanes
    a, b = te.placeholder((STEPS, rows), name="a"), te.placeholder((width,), name="b")
    k = te.reduce_axis((0, STEPS), "k")
    shape = threads * repeats, rows, width
    c = te.compute(shape, lambda t, r, i: te.sum(a[k, r] * b[i], axis=k), "c")
    sch = s_tir.Schedule(te.create_prim_func([a, b, c]))
    _in_registers(sch, lanes)
    arrays = [
        np.ones((STEPS, rows), "float32"),
        np.ones(width, "float32"),
        np.empty(shape, "float32"),
    ]
    return _runner(sch, target, arrays), 2 * threads * repeats * rows * width * STEPS


def _read(target, threads: int, size: int):
    """``c[t, i] += x[t, k, i]``: each thread reads its part of ``size`` bytes."""
    lanes = Machine.of(target).lanes("float32")
    width = VECTORS * lanes
    steps = size // (4 * threads * width)
    x = te.placeholder((threads, steps, width), name="x")
    k = te.reduce_axis((0, steps), "k")
    c = te.compute((threads, width), lambda t, i: te.sum(x[t, k, i], axis=k), "c")
    sch = s_tir.Schedule(te.create_prim_func([x, c]))
    _in_registers(sch, lanes)
    arrays = [np.ones((threads, steps, width), "float32"), np.empty((threads, width), "float32")]
    return _runner(sch, target, arrays), arrays[0].nbytes


def _in_registers(sch, lanes: int) -> None:
    """One task per ``t``, which keeps its row of ``c`` in registers."""
    block = sch.get_sblock("c")
    t, *rows, i, k = sch.get_loops(block)
    vector, lane = sch.split(i, [None, lanes])
    sch.reorder(t, k, *rows, vector, lane)
    local = sch.cache_write(block, 0, "local")
    sch.reverse_compute_at(local, t)
    sch.vectorize(lane)
    for axis in (*rows, vector):
        sch.unroll(axis)
    sch.parallel(t)
    sch.decompose_reduction(block, k)


def _runner(sch, target, arrays):
    function = tvm.compile(sch.mod, target=target)["main"]
    tensors = [tvm.runtime.tensor(array) for array in arrays]
    return lambda: function(*tensors)
