"""Loops whose values change at places whose order differs by size."""

import numpy as np
import pytest
import tvm
from tvm import te, tirx

from tvm_ext.executors import loop_cuts, lowering

LANES, LEFT, RIGHT = 16, 1, 2

# The condition as TIR sees it and as numpy does, of row q and column k among n columns.
CONDITIONS = {
    "between two that move": lambda both, q, k, n: both(q - k <= LEFT, k - q <= RIGHT),
    "from and up to sizes": lambda both, q, k, n: both(k >= 3, k < n - 5),
    "below two": lambda both, q, k, n: both(k < q, k < n - 2),
    "above two": lambda both, q, k, n: both(k >= q, k >= 3),
    "below three": lambda _both, q, k, n: k < 3,
    "above three": lambda _both, q, k, n: k >= 3,
    "up to a diagonal": lambda _both, q, k, n: k - q <= RIGHT,
    "from a diagonal": lambda _both, q, k, n: k - q >= RIGHT,
    "below a size": lambda _both, q, k, n: k < n - 5,
    "below another diagonal": lambda _both, q, k, n: k + q < n,
    "of floats": lambda both, q, k, n: both(
        k.astype("float64") * (q - 9).astype("float64") < 9.5, k >= 3
    ),
}


def hinted(condition, columns, rows=None):
    """A kernel that chooses by ``condition`` among ``columns(n)`` columns, its loop to be cut."""
    rows, n = rows or tirx.Var("rows", "int64"), tirx.Var("n", "int64")
    x = te.placeholder((rows, n), "float32", "x")
    y = te.compute(
        (rows, columns(n)),
        lambda q, k: tirx.Select(
            condition(tirx.all, q, k, n), x[q, tirx.min(k, n - 1)], tirx.const(-1.0, "float32")
        ),
        "y",
    )
    sch = tvm.s_tir.Schedule(te.create_prim_func([x, y]))
    _, column = sch.get_loops(sch.get_sblock("y"))
    outer, lane = sch.split(column, [None, LANES])
    sch.vectorize(lane)
    sch.annotate(outer, "pragma_loop_partition_hint", tirx.const(1, "int32"))
    return sch.mod


SIZES = (5, 5), (40, 33), (33, 40), (100, 70), (50, 1), (1, 50), (4, 2), (4, 17), (4, 32)


@pytest.mark.parametrize("static", [None, 4])
@pytest.mark.parametrize("name", CONDITIONS)
def test_conditions_in_any_order_choose_and_stay_inside(name, static):
    condition = CONDITIONS[name]
    library = tvm.compile(
        hinted(condition, lambda n: n, static),
        tvm.target.Target("llvm"),
        tir_pipeline=lowering.TIR_PIPELINE,
    )
    around = 512  # what lies behind and before the result
    for rows, n in [(static or rows, n) for rows, n in SIZES]:
        x = np.random.default_rng(rows * n).normal(size=(rows, n)).astype(np.float32)
        memory = np.full(2 * around + rows * n, 7, np.float32)
        inside = memory[around : around + rows * n]
        library["main"](x, inside.reshape(rows, n))
        q, k = np.ogrid[:rows, :n]
        np.testing.assert_array_equal(
            inside.reshape(rows, n), np.where(condition(np.logical_and, q, k, n), x, -1)
        )
        assert (memory[:around] == 7).all() and (memory[-around:] == 7).all()


def test_places_in_one_order_are_cut():
    def crossing(condition, columns):
        module = hinted(condition, columns)
        found = []

        @tvm.transform.module_pass(opt_level=0)
        def look(module, _context):
            kernel = loop_cuts._with_hidden_conditions(module["main"])
            found.append("tvmx_hidden" in kernel.script())
            return module

        passes = lowering._passes()
        cuts = passes.index(loop_cuts.partition_loops)
        tvm.ir.transform.Sequential([*passes[:cuts], look])(
            tirx.transform.BindTarget(tvm.target.Target("llvm"))(module)
        )
        return found[0]

    assert not crossing(lambda both, q, k, n: both(k >= 3, k < n + 3), lambda n: n + 5)
    assert not crossing(lambda both, q, k, n: k >= q, lambda n: n)
    assert crossing(lambda both, q, k, n: k <= q, lambda n: n)
    assert crossing(CONDITIONS["between two that move"], lambda n: n)
