"""Loops of symbolic size are parallel where their work pays for that."""

import pytest
import tvm_ffi
from tvm import IRModule, tirx
from tvm.sym import Analyzer

from tvm_ext.executors.small_loops import serial_where_small


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
    (func,) = serial_where_small(rows_of_half(n, divided)).functions.values()
    choice = func.body
    assert isinstance(choice, tirx.IfThenElse)
    assert choice.then_case.kind == tirx.ForKind.SERIAL
    assert choice.else_case.kind == tirx.ForKind.PARALLEL

    def serial(size):
        number = tirx.const(size, "int64")
        at = tvm_ffi.structural_map(
            choice.condition, (tirx.Var, lambda var: number if var.same_as(n) else var)
        )
        return bool(Analyzer().simplify(at))

    assert (serial(few), serial(many)) == (True, False)
