"""Matrix products as register-tiled kernels; constant right-hand sides are packed now.

Before: ``R.matmul(x, w)``, ``w`` a constant ``[K, N]``
After:  ``R.call_tir(matmul, (x, packed_w))``
"""

from math import prod

import tvm
from tvm import relax
from tvm.ir.expr import GenericConst
from tvm.target import Target

from tvm_ext.ops.matmul_packed import matmul_packed, matmul_tiled, pack_columns
from tvm_ext.schedules.llvm.matmul import choose_matmul_tile

from .facts import OUT_ELEMWISE_FUSABLE, dtype_of, static_dims
from .legalize import Legalization

__all__ = ["legalize_matmul"]


def legalize_matmul(target: Target) -> Legalization:
    """The legalization of ``relax.matmul`` for ``target``.

    Vectors, symbolic shapes, empty operands and types other than float32 and float64 go to
    TVM's own.
    """
    generic = tvm.ir.Op.get("relax.matmul").get_attr("FLegalize")

    def legalize(bb: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
        left, right = (static_dims(operand) for operand in call.args)
        dtypes = {dtype_of(expr) for expr in (*call.args, call)}
        if left is None or right is None or dtypes not in ({"float32"}, {"float64"}):
            return generic(bb, call)
        if min(len(left), len(right)) < 2 or 0 in (*left, *right):
            return generic(bb, call)
        packed = len(right) == 2 and isinstance(call.args[1], GenericConst)
        return (_packed if packed else _tiled)(bb, call, left, right, target)

    return legalize


def _packed(bb, call, left: list[int], right: list[int], target: Target) -> relax.Call:
    x, weight = call.args
    tile = choose_matmul_tile(target, prod(left[:-1]), right[1], dtype_of(call))
    panels = relax.const(pack_columns(weight.value.numpy(), tile.columns), dtype_of(call))
    return _kernel(bb, matmul_packed, x, panels, right[1], tile.rows)


def _tiled(bb, call, left: list[int], right: list[int], target: Target) -> relax.Call:
    tile = choose_matmul_tile(target, left[-2], right[-1], dtype_of(call))
    return _kernel(bb, matmul_tiled, *call.args, tile.rows, tile.columns)


def _kernel(bb: relax.BlockBuilder, *compute_and_args: object) -> relax.Call:
    attrs = {"op_pattern": OUT_ELEMWISE_FUSABLE}
    return bb.call_te(*compute_and_args, primfunc_name_hint="matmul", primfunc_attrs=attrs)
