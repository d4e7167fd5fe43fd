"""Sizes that kernels take as numbers: one order for kernels that are the same but for it."""

import tvm_ffi
from tvm import relax, te, tirx

from tvm_ext.passes.order_numbers import order_numbers


def kernel(*order):
    """``y = x + 1`` of half of ``h`` and ``w``, which it takes in that ``order``."""
    sizes = {name: tirx.Var(name, "int64") for name in "hw"}
    x = te.placeholder([tirx.floordiv(size, 2) for size in sizes.values()], "float32", "x")
    y = te.compute(x.shape, lambda i, j: x[i, j] + 1.0, "y")
    func = te.create_prim_func([x, *(sizes[name] for name in order), y])
    return func.without_attr("global_symbol")


def calls(module):
    return [binding.value for binding in module["main"].body.blocks[0].bindings]


def test_kernels_that_differ_in_the_order_of_numbers_are_one():
    builder = relax.BlockBuilder()
    h, w = (tirx.Var(name, "int64") for name in "hw")
    ty = relax.TensorType([tirx.floordiv(h, 2), tirx.floordiv(w, 2)], "float32")
    x = relax.Var("x", ty)
    given = relax.Var("s", relax.ShapeType([h, w]))
    with builder.function("main", [x, given]):
        with builder.dataflow():
            one, other = (builder.add_func(kernel(*order), "k") for order in ("hw", "wh"))
            y = builder.emit(relax.call_tir(one, [x, h, w], ty))
            z = builder.emit_output(relax.call_tir(other, [y, w, h], ty))
        builder.emit_func_output(z)
    before = builder.get()
    assert len({call.args[0].name_hint for call in calls(before)}) == 2
    ordered = order_numbers(before)
    first, second = calls(ordered)
    assert first.args[0].same_as(second.args[0])
    assert tvm_ffi.structural_equal(ordered[first.args[0]], kernel("h", "w"))
    for call in first, second:
        assert [size.name for size in call.args[1].fields[1:]] == ["h", "w"]
