"""What this machine can do at most, measured: floating-point operations and bytes per second."""

import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import cache, lru_cache
from operator import mul
from typing import NamedTuple

import numpy as np
import tvm
from tvm import s_tir, te, tirx

from . import targets
from .executors.lowering import TIR_PIPELINE
from .ops import bfloat16_pairs, integer_dots
from .profile import Peak
from .schedules.llvm.register_tiles import lanewise, local, loop, scheduled
from .schedules.llvm.tiles import COLUMNS, TILE, WORD_BYTES, begun, multiplied
from .schedules.machine import Machine

__all__ = ["DOTS", "Product", "measure"]

# Register vectors with independent sums: more than latency times units of any core.
VECTORS = 12
STEPS = 1 << 12
# Bytes, from what the inner caches hold to far beyond the last one.
STREAMS = tuple(1 << k for k in (18, 21, 24, 28))


class Product(NamedTuple):
    """The terms of a sum: their operator, if they call one, its function, the types of factors and
    terms, and the operations that one counts for, with that which adds it."""

    operator: str
    function: Callable[..., tirx.Expr]
    factor: str
    total: str
    operations: int


_PLAIN = Product("", mul, "float32", "float32", 2)
#: Of narrow numbers, several in a word, by the type of these.
DOTS = {
    "bfloat16": Product(bfloat16_pairs.DOT, bfloat16_pairs.dot, "int32", "float32", 4),
    "int16": Product(integer_dots.PAIR_DOT, integer_dots.pair_dot, "int32", "int32", 4),
    "int8": Product(integer_dots.DOT, integer_dots.dot, "int32", "int32", 8),
}


def measure(dots: Iterable[str] = ()) -> Peak:
    """Measure the CPU once per process, with the threads that TVM uses (0.5 s).

    Args:
        dots: kinds of products of narrow numbers to measure, too, of :attr:`Work.dots`.
    """
    return replace(_floats(), dots={kind: _narrow(kind) for kind in sorted(dots)})


@lru_cache(maxsize=1)
def _floats(repeat: int = 7) -> Peak:
    threads = int(tvm.get_global_func("runtime.NumThreads")())
    target = targets.host_target(threads)
    flops, flop_count = _multiply_add(target, threads, _PLAIN)
    gflops = flop_count / _best(flops, repeat) / 1e9
    rates = []
    for size in STREAMS:
        stream, byte_count = _read(target, threads, size)
        rates.append((byte_count, byte_count / _best(stream, repeat) / 1e9))
    return Peak(gflops, rates[-1][1], threads, tuple(rates))


@cache
def _narrow(kind: str, repeat: int = 7) -> float:
    """10^9 operations per second of products of narrow numbers."""
    threads = int(tvm.get_global_func("runtime.NumThreads")())
    target = targets.host_target(threads)
    machine = Machine.of(target)
    if {"bfloat16": machine.tiles, "int8": machine.integer_tiles}.get(kind, False):
        run, count = _tile_products(target, threads, DOTS[kind])
    else:
        run, count = _multiply_add(target, threads, DOTS[kind])
    return count / _best(run, repeat) / 1e9


def _best(run, repeat: int) -> float:
    run()
    seconds = []
    for _ in range(repeat):
        start = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - start)
    return min(seconds)


def _multiply_add(target, threads: int, product: Product):
    """``c[t, r, i] += a[k, r] * b[i]`` with c and b in registers, of which some CPUs have 16."""
    lanes = Machine.of(target).lanes("float32")
    repeats, rows, width = 16, VECTORS // 2, 2 * lanes
    a = te.placeholder((STEPS, rows), product.factor, "a")
    b = te.placeholder((width,), product.factor, "b")
    k = te.reduce_axis((0, STEPS), "k")
    shape = threads * repeats, rows, width

    def total(t, r, i):
        return te.sum(product.function(a[k, r], b[i]), axis=k)

    c = te.compute(shape, total, "c")
    sch = s_tir.Schedule(te.create_prim_func([a, b, c]))
    _in_registers(sch, lanes)
    arrays = [
        np.ones((STEPS, rows), product.factor),
        np.ones(width, product.factor),
        np.empty(shape, product.total),
    ]
    terms = threads * repeats * rows * width * STEPS
    return _runner(sch, target, arrays), product.operations * terms


def _tile_products(target, threads: int, product: Product):
    """Products of tiles of AMX that stay in the first cache."""
    repeats, steps = 64, 8
    left = tirx.decl_buffer((2, TILE, TILE), "int32", "left")
    right = tirx.decl_buffer((steps, TILE, COLUMNS), "int32", "right")
    sums = tirx.decl_buffer((threads, 2 * TILE, COLUMNS), product.total, "result")
    own = tirx.decl_buffer((2 * TILE, COLUMNS), product.total, "sums", scope="local")
    task, turn, row = (tirx.Var(name, "int64") for name in ("task", "turn", "row"))
    zero = tirx.const(0, "int64")
    tiles = [tirx.BufferLoad(left, [tirx.const(k, "int64"), zero, zero]) for k in range(2)]
    walk = [(1, 0), (1, 0), (steps, 0)]
    first = tirx.BufferLoad(right, [zero] * 3)
    multiply = multiplied(own, tiles, first, walk, TILE * WORD_BYTES)

    def store(lane):
        return tirx.BufferStore(sums, tirx.BufferLoad(own, [row, lane]), [task, row, lane])

    stores = loop(row, 2 * TILE, lanewise(zero, TILE, store))
    body = begun(local([loop(turn, repeats, multiply), stores], [own]), TILE)
    nest = loop(task, threads, body, tirx.ForKind.PARALLEL)
    func = tirx.PrimFunc([left, right, sums], nest).with_attr("global_symbol", "main")
    sch = scheduled(func, nest)
    arrays = [
        np.zeros((2, TILE, TILE), "int32"),
        np.zeros((steps, TILE, COLUMNS), "int32"),
        np.empty((threads, 2 * TILE, COLUMNS), product.total),
    ]
    words = threads * repeats * steps * (2 * TILE) * COLUMNS * TILE
    return _runner(sch, target, arrays), product.operations * words


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
    function = tvm.compile(sch.mod, target, tir_pipeline=TIR_PIPELINE)["main"]
    tensors = [tvm.runtime.tensor(array) for array in arrays]
    return lambda: function(*tensors)
