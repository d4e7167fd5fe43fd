"""Vectors whose lanes a Select leaves out: what it leaves out is not read."""

import numpy as np
import pytest
import tvm
from tvm import te, tirx

from tests.bounds import run_checked
from tvm_ext.executors import lowering

TARGET = tvm.target.Target("llvm")
LANES = 16

#: The place in ``x`` that element i of the result comes from, as TIR and numpy see it.
PLACES = {
    "in order": lambda i, n: i,
    "from behind": lambda i, n: n - 1 - i,
    "every third": lambda i, n: i * 3,
    "each twice": lambda i, n: i // 2,
    "before the first": lambda i, n: i - 5,
}


def vectors(function, rows=3):
    """A kernel of ``rows`` rows, made of whole vectors, of ``function(x, order, q, i, n)``."""
    n = tirx.Var("n", "int64")
    x = te.placeholder((n,), "float32", "x")
    order = te.placeholder((LANES,), "int64", "order")
    size = (n + LANES - 1) // LANES * LANES
    y = te.compute((rows, size), lambda q, i: function(x, order, q, i, n), "y")
    sch = tvm.s_tir.Schedule(te.create_prim_func([x, order, y]))
    _, column = sch.get_loops(sch.get_sblock("y"))
    sch.vectorize(sch.split(column, [None, LANES])[1])
    return sch.mod


def check(module, wanted):
    library = tvm.compile(module, TARGET, tir_pipeline=lowering.TIR_PIPELINE)
    order = np.random.default_rng(0).permutation(LANES)
    for n in (1, 15, 16, 17, 40, 64):
        x = np.arange(n, dtype="float32") + 1
        y = tvm.runtime.tensor(np.empty((3, -(-n // LANES) * LANES), "float32"))
        library["main"](tvm.runtime.tensor(x), tvm.runtime.tensor(order), y)
        q, i = np.ogrid[: y.shape[0], : y.shape[1]]
        np.testing.assert_array_equal(y.numpy(), wanted(x, order, q, i, n))


@pytest.mark.parametrize("name", PLACES)
def test_no_lane_lies_beyond(name):
    place = PLACES[name]

    def element(x, _order, q, i, n):
        at = place(i + q, n)
        inside = tirx.all(at >= 0, at < n)
        return tirx.Select(inside, x[at], tirx.const(-1.0, "float32"))

    def wanted(x, _order, q, i, n):
        at = place(i + q, n)
        return np.where((at >= 0) & (at < n), x[at.clip(0, n - 1)], -1)

    check(vectors(element), wanted)


def test_the_other_arm_too_and_one_inside_of_another():
    zero = tirx.const(0.0, "float32")

    def element(x, _order, q, i, n):
        inner = tirx.Select(i < 7, zero, x[i])
        return tirx.Select(i + q >= n, zero, inner)

    check(
        vectors(element),
        lambda x, _, q, i, n: np.where((i + q >= n) | (i < 7), 0, x[i.clip(0, n - 1)]),
    )


def test_places_that_are_read_themselves():
    """Nothing proves them: they are taken lane by lane, and a Select of one lane is a branch."""

    def element(x, order, q, i, n):
        at = order[tirx.floormod(i, LANES)] + i // LANES * LANES
        return tirx.Select(at < n, x[at], tirx.const(-1.0, "float32"))

    def wanted(x, order, q, i, n):
        at = order[i % LANES] + i // LANES * LANES + 0 * q
        return np.where(at < n, x[at.clip(0, n - 1)], -1)

    check(vectors(element), wanted)


def test_nothing_beyond_is_read():
    """The tests above, where an access beyond a tensor ends the process."""
    assert "7 passed" in run_checked(__file__, "beyond[ or other_arm or places")


X = te.placeholder((64,), "float32", "x")


@pytest.mark.parametrize(
    "shape, element",
    [
        ((60,), lambda i: tirx.Select(i < 9, X[i], X[i + 4])),
        (
            (5, 16),
            lambda q, i: tirx.if_then_else(
                q > 0, tirx.Select(tirx.isnan(X[q * 16 + i - 16]), 0.0, X[q * 16 + i - 16]), 1.0
            ),
        ),
    ],
    ids=["by themselves", "behind a branch of all lanes"],
)
def test_vectors_that_lie_inside_stay_as_they_are(shape, element):
    sch = tvm.s_tir.Schedule(te.create_prim_func([X, te.compute(shape, element, "y")]))
    sch.vectorize(sch.split(sch.get_loops(sch.get_sblock("y"))[-1], [None, 4])[1])
    passes = lowering._passes()
    place = [each.info.name for each in passes].index("KeepVectorsInside")
    before = tvm.ir.transform.Sequential(passes[:place])
    module = before(tirx.transform.BindTarget(TARGET)(sch.mod))
    assert "T.Select" in str(module)
    tvm.ir.assert_structural_equal(passes[place](module), module)
