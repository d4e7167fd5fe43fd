"""Matrix products as register-tiled kernels; constant right-hand sides are packed now.

Before: ``R.matmul(x, w)``, ``w`` a constant ``[K, N]``
After:  ``R.call_tir(matmul_packed, (x, packed_w))``
"""

import tvm
from tvm import relax, tirx
from tvm.ir.expr import GenericConst
from tvm.target import Target

from tvm_ext.ops.matmul_packed import matmul_packed, matmul_tiled, pack_columns
from tvm_ext.schedules.llvm.matmul import choose_matmul_tile

__all__ = ["legalize_matmul"]

# relax's pattern kind "output may be fused with element-wise consumers".
_FUSABLE = {"op_pattern": 4}


def legalize_matmul(target: Target):
    """The legalization of ``relax.matmul`` for ``target``; declines to TVM's own where it must."""
    generic = tvm.ir.Op.get("relax.matmul").get_attr("FLegalize")

    def legalize(bb: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
        x, weight = call.args
        shapes = [_static(x), _static(weight)]
        dtypes = {str(arg.ty.dtype.dtype) for arg in (x, weight, call)}
        if dtypes not in ({"float32"}, {"float64"}) or None in shapes:
            return generic(bb, call)
        left, right = shapes
        if min(len(left), len(right)) < 2 or 0 in (*left, *right):
            return generic(bb, call)
        (dtype,) = dtypes
        if len(right) == 2 and isinstance(weight, GenericConst):
            rows = 1
            for d in left[:-1]:
                rows *= d
            tile = choose_matmul_tile(target, rows, right[1], dtype)
            packed = relax.const(pack_columns(weight.value.numpy(), tile.columns), dtype)
            return bb.call_te(
                matmul_packed,
                x,
                packed,
                right[1],
                tile.rows,
                primfunc_name_hint="matmul",
                primfunc_attrs=_FUSABLE,
            )
        tile = choose_matmul_tile(target, left[-2], right[-1], dtype)
        return bb.call_te(
            matmul_tiled,
            x,
            weight,
            tile.rows,
            tile.columns,
            primfunc_name_hint="matmul",
            primfunc_attrs=_FUSABLE,
        )

    return legalize


def _static(expr: relax.Expr) -> list[int] | None:
    if expr.ty.shape is None:
        return None
    dims = expr.ty.shape.values
    return [int(d) for d in dims] if all(isinstance(d, tirx.IntImm) for d in dims) else None
