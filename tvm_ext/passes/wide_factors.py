"""Products of narrow floats, which are summed in float32, as products of float32.

Before: ``y = R.matmul(x, w, out_dtype="float32")``, float16
After:  ``y = R.matmul(R.astype(x, "float32"), R.astype(w, "float32"))``

Factors that become wide in the innermost loop take as long as the products, so each does once.
Weights that are known do so now, but for those of matrix products, which stay as narrow in memory:
a tile of rows shares what becomes of them in registers. Nothing is rounded that was not before.
"""

import numpy as np
import tvm
from tvm import relax
from tvm.ir.expr import GenericConst
from tvm.relax.expr_functor import PyExprMutator, mutator
from tvm.target import Target, codegen

from tvm_ext.schedules.machine import Machine

from .facts import dtype_of
from .graph import visited

__all__ = ["wide_factors"]

_WIDE = "float32"
_MATRIX = 2  # axes
_PRODUCTS = {
    f"relax.{name}"
    for name in ("matmul", "nn.conv1d", "nn.conv2d", "nn.conv3d", "nn.conv1d_transpose",
                 "nn.conv2d_transpose", "nn.conv3d_transpose")
}  # fmt: skip
# What has an instruction from float16 to float32: of x86, and of other machines all these.
_HALVES, _ARM = "f16c", "aarch64"


def wide_factors(target: Target) -> tvm.ir.transform.Pass:
    """The module pass. Of bfloat16 only where ``target`` has no products of it."""
    narrow = {"float16"} if Machine.of(target).bfloat16 else {"float16", "bfloat16"}
    quick = {"bfloat16"} | ({"float16"} if _converts_halves(target) else set())

    @tvm.transform.module_pass(opt_level=0, name="WideFactors")
    def run(module, _context):
        return visited(module, _WideFactors(module, narrow, quick))

    return run


def _converts_halves(target: Target) -> bool:
    triple = str(target.attrs.get("mtriple", ""))
    return bool(codegen.target_has_features(_HALVES, target)) or triple.startswith(_ARM)


@mutator
class _WideFactors(PyExprMutator):
    """``narrow``: the types of products; ``quick``: those that weights may have in memory."""

    def __init__(self, module: tvm.IRModule, narrow: set[str], quick: set[str]):
        super().__init__(module)
        self.narrow, self.quick = narrow, quick

    def visit_call_(self, call: relax.Call) -> relax.Expr:
        call = super().visit_call_(call)
        if getattr(call.op, "name", "") not in _PRODUCTS or call.attrs.out_dtype != _WIDE:
            return call
        if dtype_of(call.args[0]) not in self.narrow:
            return call
        left, right = call.args
        packed = call.op.name == "relax.matmul" and right.ty.ndim == _MATRIX
        return relax.Call(call.op, [self._wide(left), self._wide(right, packed)], call.attrs)

    def _wide(self, x: relax.Expr, packed: bool = False) -> relax.Expr:
        stays = packed and dtype_of(x) in self.quick
        if isinstance(x, GenericConst) and not stays:
            return relax.const(x.value.numpy().astype(np.float32), _WIDE)
        return self.builder_.emit(relax.op.astype(x, _WIDE))
