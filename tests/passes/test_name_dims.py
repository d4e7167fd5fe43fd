"""Kernels of operands whose dims are formulas: these have names there."""

import numpy as np
import pytest
import tvm_ffi
from onnx import helper, numpy_helper
from tvm import IRModule, te, tirx

from tests.oracle import reference
from tests.passes.test_blocked_layout import conv_network
from tvm_ext import convert_and_build
from tvm_ext.passes.name_dims import name_dims


def halved(size, times=1):
    for _ in range(times):
        size = tirx.floordiv(size - 1, 2) + 1
    return size


def kernel(given, result, number=None):
    """``y[i] = x[i // 2] * x's size`` over dims ``result`` of an operand of ``given``."""
    x = te.placeholder((given,), "float32", "x")
    y = te.compute((result,), lambda i: x[i // 2] * tirx.Cast("float32", given), "y")
    func = te.create_prim_func([x, *([] if number is None else [number]), y])
    return func.without_attr("global_symbol")


def named(func):
    return name_dims(IRModule({"kernel": func}))["kernel"]


def dims(func):
    return [
        str(d).replace("T.int64", "") for p in (func.params[0], func.params[-1]) for d in p.ty.shape
    ]


def test_what_follows_from_an_operand_is_a_formula_of_its_name():
    h = tirx.Var("h", "int64")
    found = []
    for depth in 1, 3:
        given = tirx.floordiv(h - 1, 2**depth) + 1
        for result in tirx.floordiv(h - 1, 2 ** (depth + 1)) + 1, halved(given):
            found.append(named(kernel(given, result, h)))
    assert dims(found[0]) == ["d0", "(d0 + (1)) // (2)"]
    assert all(tvm_ffi.structural_equal(func, found[0], True) for func in found)
    assert "h" not in {var.name for var in tirx.analysis.undefined_vars(found[0].body, [])}


def test_what_does_not_follow_has_a_name_too():
    h = tirx.Var("h", "int64")
    assert dims(named(kernel(tirx.floordiv(h, 3), tirx.floordiv(h, 2), h))) == ["d0", "d1"]


def test_a_multiple_of_a_size_stays():
    """It is the size that formulas of it are simplified to."""
    h = tirx.Var("h", "int64")
    twice = 2 * halved(h) + 2
    assert dims(named(kernel(twice, twice - 2, h))) == dims(kernel(twice, twice - 2, h))
    mixed = dims(named(kernel(halved(h), twice, h)))
    assert mixed[0] == "d0" and "h" not in mixed[1]


def test_sums_of_elements_are_left_alone():
    """Those of bytes wrap around: their numbers are not added up."""
    h = tirx.Var("h", "int64")
    x = te.placeholder((halved(h),), "uint8", "x")
    high, more = tirx.const(250, "uint8"), tirx.const(10, "uint8")
    y = te.compute(x.shape, lambda i: x[i] + high + more, "y")
    text = named(te.create_prim_func([x, h, y]).without_attr("global_symbol")).script()
    assert "d0" in text and "T.uint8(250) + T.uint8(10)" in text


def test_formulas_of_the_dims_of_operands_stay():
    h = tirx.Var("h", "int64")
    func = kernel(h, halved(h))
    assert named(func).same_as(func)


def test_layers_that_differ_in_their_depth_alone_are_one_kernel():
    """Sizes that two pools leave differ in the formula, not in what the next layer does."""
    window = {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1] * 4}
    nodes = [
        helper.make_node("MaxPool", ["x"], ["p0"], **window),
        helper.make_node("Sigmoid", ["p0"], ["s0"]),
        helper.make_node("MaxPool", ["s0"], ["p1"], **window),
        helper.make_node("Sigmoid", ["p1"], ["y"]),
    ]
    model = conv_network(nodes, ("n", 3, "h", "w"), {})
    built = convert_and_build(model, "llvm")
    text = built.sources()["fuse"]
    assert text.count("def ") == 3  # main, the first pool, and that of a size with a name
    for shape in [(1, 3, 9, 14), (2, 3, 1, 1)]:
        x = np.random.default_rng(0).standard_normal(shape).astype("float32")
        (got,), (expected,) = built.run(None, {"x": x}), reference(model, {"x": x})
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("sizes", [("n", 64, "h", "w"), (1, 64, 33, "w"), (1, 64, "h", 33)])
@pytest.mark.parametrize("resized", [False, True])
def test_rules_know_layers_behind_others(resized, sizes):
    """Tiles of a layer are counted in its own sizes, as of one that sees the input."""
    nodes = [
        helper.make_node("MaxPool", ["x"], ["p"], kernel_shape=[3, 3], strides=[2, 2]),
        helper.make_node("Resize", ["p", "", "twice"], ["r"], mode="nearest"),
        helper.make_node("Conv", ["r" if resized else "p", "w"], ["c"], pads=[1] * 4),
        helper.make_node("Relu", ["c"], ["y"]),
    ]
    model = conv_network(nodes, sizes, {"w": (64, 64, 3, 3)})
    model.graph.initializer.append(numpy_helper.from_array(np.float32([1, 1, 2, 2]), "twice"))
    assert 'T.sblock("columns_' in convert_and_build(model, "llvm").sources()["schedule"]
