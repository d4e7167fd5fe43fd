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
# Far beyond the last-level cache.
STREAM_BYTES = 128 << 20


@lru_cache(maxsize=1)
def measure(repeat: int = 7) -> Peak:
    """Measure the CPU once per process, with the threads that TVM uses (0.3 s)."""
    threads = int(tvm.get_global_func("runtime.NumThreads")())
    target = targets.host_target(threads)
    flops, flop_count = _multiply_add(target, threads)
    stream, byte_count = _copy(target)
    return Peak(
        flop_count / _best(flops, repeat) / 1e9, byte_count / _best(stream, repeat) / 1e9, threads
    )


def _best(run, repeat: int) -> float:
    run()
    seconds = []
    for _ in range(repeat):
        start = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - start)
    return min(seconds)


def _multiply_add(target, threads: int):
    """``c[t, i] += a[k] * b[i]`` with c and b in registers."""
    lanes = Machine.of(target).lanes("float32")
    repeats, width = 16, VECTORS * lanes
    a, b = te.placeholder((STEPS,), name="a"), te.placeholder((width,), name="b")
    k = te.reduce_axis((0, STEPS), "k")
    c = te.compute((threads * repeats, width), lambda t, i: te.sum(a[k] * b[i], axis=k), "c")
    sch = s_tir.Schedule(te.create_prim_func([a, b, c]))
    block = sch.get_sblock("c")
    t, i, k = sch.get_loops(block)
    vector, lane = sch.split(i, [None, lanes])
    sch.reorder(t, k, vector, lane)
    local = sch.cache_write(block, 0, "local")
    sch.reverse_compute_at(local, t)
    sch.vectorize(lane)
    sch.unroll(vector)
    sch.parallel(t)
    sch.decompose_reduction(block, k)
    arrays = [
        np.ones(STEPS, "float32"),
        np.ones(width, "float32"),
        np.empty((threads * repeats, width), "float32"),
    ]
    return _runner(sch, target, arrays), 2 * threads * repeats * width * STEPS


def _copy(target):
    """``y[i] = x[i]`` on more than the caches hold."""
    lanes = Machine.of(target).lanes("float32")
    x = te.placeholder((STREAM_BYTES // 4,), name="x")
    y = te.compute(x.shape, lambda i: x[i], "y")
    sch = s_tir.Schedule(te.create_prim_func([x, y]))
    (i,) = sch.get_loops(sch.get_sblock("y"))
    outer, lane = sch.split(i, [None, lanes])
    sch.vectorize(lane)
    sch.parallel(outer)
    arrays = [np.ones(STREAM_BYTES // 4, "float32"), np.empty(STREAM_BYTES // 4, "float32")]
    return _runner(sch, target, arrays), 2 * STREAM_BYTES


def _runner(sch, target, arrays):
    function = tvm.compile(sch.mod, target=target)["main"]
    tensors = [tvm.runtime.tensor(array) for array in arrays]
    return lambda: function(*tensors)
