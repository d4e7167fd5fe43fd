"""The TIR pipeline of our builds."""

import re

import numpy as np
import pytest
import tvm
from onnx import parser
from tvm import IRModule, s_tir, te, tirx
from tvm.target import Target

from tests.onnxruntime_oracle import run_onnxruntime
from tests.schedules.kernels import WIDE, prim_func, schedule
from tvm_ext import convert_and_build
from tvm_ext.executors import common_subexpressions, lowering
from tvm_ext.schedules.llvm import Elementwise


@pytest.mark.parametrize("index", ["int32", "int64"])
def test_vectors_stay_vectors_where_they_do_not_divide_a_loop(index):
    """The hint at which a loop is cut got lost when its int64 variable was narrowed."""
    x = te.placeholder((tirx.IntImm(index, 3), tirx.IntImm(index, 197)), "float32", "x")
    y = te.compute(x.shape, lambda i, j: x[i, 196 - j] + 1.0, "y")
    func = schedule((Elementwise(),), prim_func(x, y), WIDE).mod["main"]
    func = func.with_attr("target", WIDE.with_host(Target("llvm")))
    assert "T.Ramp" in lowering.lower(IRModule({"main": func})).script()


UNEXACT = {
    "rounding by a large number": "a = Add(x, large) y = Sub(a, large)",
    "the rest of a sum": "a = Add(x, w) b = Sub(a, x) y = Sub(w, b)",
    "zeros that keep NaN": "a = Sub(x, x) y = Add(a, w)",
    "a product that overflows": "a = Mul(x, w) b = Mul(a, large) c = Mul(a, large) y = Sub(b, c)",
    "differences of choices": """l = Less(x, one) a = Where(l, x, w) b = Where(l, x, one)
        y = Sub(a, b)""",
    "not less": "l = Less(x, w) n = Not(l) y = Where(n, x, one)",
    "less or not": "l = Less(x, w) g = GreaterOrEqual(x, w) b = Or(l, g) y = Where(b, x, one)",
}


@pytest.mark.parametrize("dims", ["9", "n"])
@pytest.mark.parametrize("body", UNEXACT.values(), ids=UNEXACT)
def test_fused_floats_are_rounded_overflow_and_are_nan(body, dims):
    """TVM's simplifier takes floats for numbers that do none of this."""
    model = parser.parse_model(
        f"""<ir_version: 8, opset_import: ["" : 17]> g (float[{dims}] x, float[{dims}] w)
        => (float[{dims}] y) <float large = {{12582912}}, float one = {{1}}>
        {{ {body} }}"""
    )
    special = [0.3, 1.7, np.nan, np.inf, -np.inf, 1e30, -3.6, 2, np.nan]
    x, w = np.array(special, "float32"), np.array(special[::-1], "float32")
    (expected,) = run_onnxruntime(model, {"x": x, "w": w})
    compiled = convert_and_build(model, "llvm")
    np.testing.assert_array_equal(compiled(x=x, w=w), expected)


def test_a_division_of_a_sum_keeps_its_value_where_loops_are_fused():
    """FlattenBuffer makes ``(b % 14 + 1) // 2`` of fused loops ``(b + 1) % 14 // 2``."""
    extents = [tirx.const(extent, "int64") for extent in (8, 10, 14)]
    x = te.placeholder(extents[:1], "float32", "x")
    kernel = te.create_prim_func([x, te.compute(extents[1:], lambda i, j: x[(j + 1) // 2], "y")])
    schedule = s_tir.Schedule(kernel.with_attr("global_symbol", "main"))
    schedule.fuse(*schedule.get_loops(schedule.get_sblock("y")))
    built = tvm.tirx.build(schedule.mod, target=Target("llvm"), pipeline=lowering.TIR_PIPELINE)
    row = np.arange(8, dtype="float32")
    result = tvm.runtime.empty((10, 14), "float32")
    built["main"](tvm.runtime.tensor(row), result)
    expected = np.tile(row[(np.arange(14) + 1) // 2], (10, 1))
    np.testing.assert_array_equal(result.numpy(), expected)


def test_a_kernel_in_which_a_name_would_be_used_before_it_is_defined_stays(monkeypatch):
    """As TVM left an attention kernel whose mask has dims that are known at run time."""
    n, i, named = (tirx.Var(name, "int64") for name in ("n", "i", "named"))
    y = tirx.decl_buffer((n,), "float32", "y")

    def kernel(*body):
        return IRModule({"main": tirx.PrimFunc([y, n, i], tirx.SeqStmt(list(body)))})

    def store(place):
        return tirx.BufferStore(y, tirx.const(1.0, "float32"), [place])

    before = kernel(store(i % n), store(i % n))
    define = tirx.Bind(named, i % n)
    for after, kept in (
        (kernel(define, store(named), store(named)), False),
        (kernel(store(named), define, store(named)), True),
    ):
        monkeypatch.setattr(common_subexpressions, "_ELIMINATE", lambda _, after=after: after)
        chosen = common_subexpressions.common_subexpressions(before)["main"]
        assert chosen.same_as((before if kept else after)["main"])


def test_a_name_is_not_used_behind_the_loop_that_defines_it():
    """TVM counts nothing in the body of a ``Let``, and replaces there what it names elsewhere."""
    n, s, i, j = (tirx.Var(name, "int64") for name in ("n", "s", "i", "j"))
    x, y = (tirx.decl_buffer((n,), "float32", name) for name in ("x", "y"))
    named = tirx.Var("named", "float32")

    def loop(var, *values):
        stores = [tirx.BufferStore(y, value, [var]) for value in values]
        body = tirx.SeqStmt(stores) if len(stores) > 1 else stores[0]
        return tirx.For(var, 0, n, tirx.ForKind.SERIAL, body)

    def at(index):
        return tirx.BufferLoad(x, [index % n])

    first = loop(i, at(s // 7 + i), at(s // 7 * i) + tirx.BufferLoad(y, [i]))
    second = loop(j, tirx.Let(named, tirx.BufferLoad(y, [j]), named * at(s // 7 + j)))
    main = tirx.PrimFunc([x, y, n, s], tirx.SeqStmt([first, second]))
    main = main.with_attr("global_symbol", "main")
    built = tvm.tirx.build(main, target=Target("llvm"), pipeline=lowering.TIR_PIPELINE)
    given = np.arange(1, 12, dtype="float32")
    result = tvm.runtime.empty((11,), "float32")
    built["main"](tvm.runtime.tensor(given), result, 11, 30)
    k = np.arange(11)
    expected = (given[(4 * k) % 11] + given[(4 + k) % 11]) * given[(4 + k) % 11]
    np.testing.assert_array_equal(result.numpy(), expected)


def test_arrays_of_one_vector_of_booleans():
    """Their elements become int8, which no statement that is made again may hold or be."""
    model = parser.parse_model(
        """<ir_version: 10, opset_import: ["" : 18]> g (int64[2] x) => (int64[2] y)
        <int64 one = {1}, int64 two = {2}, int64 zero = {0}, bool yes = {1}> {
          less = Sub (x, one)
          below = Less (less, zero)
          odd = Mod (less, two)
          is_below = Equal (below, yes)
          is_odd = Cast <to = 9> (odd)
          both = And (is_below, is_odd)
          rest = Cast <to = 7> (both)
          half = Div (less, two)
          floor = Sub (half, rest)
          y = Add (floor, floor)
        }"""
    )
    built = convert_and_build(model, "llvm")
    for x in np.int64([[40, 31], [-3, 4], [0, 1], [-8, -5]]):
        np.testing.assert_array_equal(built(x), *run_onnxruntime(model, {"x": x}))


@pytest.mark.parametrize("elements", [100, 255])
def test_arrays_on_the_stack_begin_at_a_line_of_the_cache(elements):
    x, y = (tirx.decl_buffer((elements,), "float32", name) for name in "xy")
    t = tirx.decl_buffer((elements,), "float32", "t", scope="local")
    i, j = tirx.Var("i", "int32"), tirx.Var("j", "int32")

    def loop(place, target, value):
        store = tirx.BufferStore(target, value, [place])
        return tirx.For(place, tirx.const(0, "int32"), elements, tirx.ForKind.SERIAL, store)

    last = elements - 1
    body = [
        tirx.AllocBuffer(t),
        loop(i, t, tirx.BufferLoad(x, [i]) * 2.0),
        loop(j, y, tirx.BufferLoad(t, [last - j])),
    ]
    kernel = tirx.PrimFunc([x, y], tirx.SeqStmt(body)).with_attr("global_symbol", "main")
    built = tvm.tirx.build(IRModule({"main": kernel}), target=WIDE, pipeline=lowering.TIR_PIPELINE)
    (allocated,) = re.findall(r"%t\S* = alloca .*", built.inspect_source("ll"))
    assert "align 64" in allocated
    row = np.arange(elements, dtype="float32")
    result = tvm.runtime.empty((elements,), "float32")
    built["main"](tvm.runtime.tensor(row), result)
    np.testing.assert_array_equal(result.numpy(), 2 * row[::-1])
