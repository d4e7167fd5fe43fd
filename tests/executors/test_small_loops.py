"""Loops of symbolic size are parallel where their work pays for that."""

import ctypes

import pytest
import tvm
import tvm_ffi
from tvm import IRModule, tirx
from tvm.sym import Analyzer

from tvm_ext.executors import threads
from tvm_ext.executors.pool import one_pool
from tvm_ext.executors.small_loops import ALONE, alone_where_small, told_where_small


def rows_of_half(n, divided):
    """``for i in parallel(n): half = n // 2; for j in range(half): y[i * half + j] = ...``"""
    x, y = (tirx.decl_buffer((n * n,), "float32", name) for name in "xy")
    i, j, half = (tirx.Var(name, "int64") for name in ("i", "j", "half"))
    place = i * half + j
    value = tirx.BufferLoad(x, [place // n if divided else place + n * 3 + i * 5])
    store = tirx.BufferStore(y, value * 2.0, [place])
    zero = tirx.const(0, "int64")
    row = tirx.For(j, zero, half, tirx.ForKind.SERIAL, store)
    body = tirx.SeqStmt([tirx.Bind(half, n // 2), row])
    loop = tirx.For(i, zero, n, tirx.ForKind.PARALLEL, body)
    return IRModule({"main": tirx.PrimFunc([x, y, n], loop)})


@pytest.mark.parametrize(("divided", "few", "many"), [(False, 100, 200), (True, 40, 80)])
def test_the_work_counts_sizes_that_are_named_inside_and_no_indices_but_divisions(
    divided, few, many
):
    n = tirx.Var("n", "int64")
    (func,) = told_where_small(rows_of_half(n, divided)).functions.values()
    told, loop = func.body.seq
    assert loop.kind == tirx.ForKind.PARALLEL
    assert told.value.args[0].value == ALONE
    small = told.value.args[1].value  # as a number
    (func,) = alone_where_small(rows_of_half(n, divided)).functions.values()
    say, loop = func.body.seq
    assert loop.kind == tirx.ForKind.PARALLEL
    assert say.value.args[0].value == "tvmx_alone"
    same = tirx.Cast(say.value.args[1].ty, small)
    assert tvm_ffi.structural_equal(say.value.args[1], same, map_free_vars=True)

    def serial(size):
        number = tirx.const(size, "int64")
        at = tvm_ffi.structural_map(
            small, (tirx.Var, lambda var: number if var.same_as(n) else var)
        )
        return bool(Analyzer().simplify(at))

    assert (serial(few), serial(many)) == (True, False)


def test_the_work_of_no_rows_divides_by_no_zero():
    """``for i in parallel(n): for j in range(i % n): ...`` of which the work is asked at n = 0."""
    n = tirx.Var("n", "int64")
    x, y = (tirx.decl_buffer((n,), "float32", name) for name in "xy")
    i, j = (tirx.Var(name, "int64") for name in "ij")
    store = tirx.BufferStore(y, tirx.BufferLoad(x, [j]) * 2.0, [j])
    zero = tirx.const(0, "int64")
    row = tirx.For(j, zero, i % n, tirx.ForKind.SERIAL, store)
    loop = tirx.For(i, zero, n, tirx.ForKind.PARALLEL, row)
    module = IRModule({"main": tirx.PrimFunc([x, y, n], loop)})
    (func,) = alone_where_small(module).functions.values()
    small = tvm_ffi.structural_map(
        func.body.seq[0].value.args[1],
        (tirx.Var, lambda var: zero if var.same_as(n) else var),
    )
    assert int(Analyzer().simplify(small)) == 1


def test_a_loop_of_static_extents_in_scalable_vectors_stays_as_its_schedule_made_it():
    i, j = (tirx.Var(name, "int64") for name in "ij")
    y = tirx.decl_buffer((64,), "float32", "y")
    vectors = tirx.const(1024, "int64") // (tirx.vscale().astype("int64") * 4)
    store = tirx.BufferStore(y, tirx.const(1.0, "float32"), [i])
    row = tirx.For(j, tirx.const(0, "int64"), vectors, tirx.ForKind.SERIAL, store)
    trips = tirx.const(64, "int64")
    loop = tirx.For(i, tirx.const(0, "int64"), trips, tirx.ForKind.PARALLEL, row)
    (func,) = told_where_small(IRModule({"main": tirx.PrimFunc([y], loop)})).functions.values()
    assert isinstance(func.body, tirx.For) and func.body.kind == tirx.ForKind.PARALLEL


def test_what_tvm_calls_before_a_small_loop_leaves_it_to_the_caller():
    tasks = []
    body = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
    note = body(lambda task, _group, _data: tasks.append(task) or 0)
    with one_pool():
        region = ctypes.CFUNCTYPE(ctypes.c_int, body, ctypes.c_void_p, ctypes.c_int)(
            threads.entrances()[0]
        )
        tvm.get_global_func(ALONE)(1)
    assert region(note, None, 3) == 0 and tasks == [0]
    assert region(note, None, 3) == 0 and sorted(tasks) == [0, 0, 1, 2]
