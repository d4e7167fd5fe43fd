"""The sizes that kernels take as numbers: one order, whatever their addresses are."""

import tvm_ffi
from tvm import relax, te, tirx
from tvm.relax import block_builder
from tvm_ext.patches.number_order import numbers_in_order

NAMES = "abcdefgh"


def halves(x):
    """``y`` of half the rows, columns, ...: formulas of eight sizes, which no operand has."""
    shape = [tirx.floordiv(dim + 1, 2) for dim in x.shape]
    return te.compute(shape, lambda *index: x(*index) + 1.0, "halves")


def call():
    sizes = [tirx.Var(name, "int64") for name in NAMES]
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType([tirx.floordiv(size + 2, 3) for size in sizes], "float32"))
    made = builder.call_te(halves, x)
    return builder.get()[made.args[0]], [str(value) for value in made.args[1].fields[1:]]


def test_numbers_come_as_operands_show_them():
    with numbers_in_order():
        made = [call() for _ in range(4)]
    assert [given for _, given in made] == [list(NAMES)] * 4
    first, *others = [kernel for kernel, _ in made]
    assert all(tvm_ffi.structural_equal(first, other) for other in others)
    assert [param.name for param in first.params[1:-1]] == list(NAMES)


def test_the_function_is_put_back():
    before = block_builder.gen_call_tir_inputs
    with numbers_in_order():
        assert block_builder.gen_call_tir_inputs is not before
    assert block_builder.gen_call_tir_inputs is before
