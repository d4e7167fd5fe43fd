"""Blocked 3x3 convolutions of stride 1 by Winograd's method, where a cost model says it pays.

Before: ``R.call_tir(conv2d_blocked, (x, packed_w))``
After:  ``R.call_tir(conv2d_winograd, (x, transformed_w))``

Within the error bound that :mod:`tvm_ext.ops.conv2d_winograd` states; float32 only. Weights are
transformed here, and grow 16/9 (tiles of 2 x 2) or 4 times (4 x 4).
"""

import tvm
from tvm import relax
from tvm.ir import GlobalVar, Op
from tvm.ir.expr import GenericConst
from tvm.relax.expr_functor import PyExprMutator, mutator
from tvm.target import Target

from tvm_ext.ops.conv2d_blocked import unpack_weight
from tvm_ext.ops.conv2d_winograd import KERNEL, conv2d_winograd, transform_weight
from tvm_ext.schedules.llvm.winograd import Convolution, WinogradModel

from .blocked_layout import GEOMETRY
from .facts import OUT_ELEMWISE_FUSABLE, dtype_of

__all__ = ["winograd"]


def winograd(target: Target, model: WinogradModel | None = None) -> tvm.ir.transform.Pass:
    """The pass for ``target``; ``model`` chooses tile and grouping of each convolution."""
    model = model or WinogradModel()

    @tvm.transform.module_pass(opt_level=0, name="Winograd")
    def run(module, _context):
        return _Winograd(module, target, model).transform()

    return run


@mutator
class _Winograd(PyExprMutator):
    def __init__(self, module: tvm.IRModule, target: Target, model: WinogradModel):
        super().__init__(module)
        self.module, self.target, self.model = module, target, model

    def transform(self) -> tvm.IRModule:
        main = self.visit_expr(self.module["main"])
        self.builder_.update_func(self.module.get_global_var("main"), main)
        return relax.transform.DeadCodeElimination()(self.builder_.get())

    def visit_call_(self, call: relax.Call) -> relax.Expr:
        call = self.visit_expr_post_order(call)
        pads = self._pads(call)
        return call if pads is None else self._winograd(call, pads)

    def _pads(self, call: relax.Call) -> list[int] | None:
        """The padding of a 3x3 convolution with weights of its own and steps of one."""
        if call.op != _CALL_TIR or not isinstance(call.args[0], GlobalVar):
            return None
        geometry = self.module[call.args[0]].attrs.get(GEOMETRY, None)
        if geometry is None or dtype_of(call) != "float32":
            return None
        groups, *rest = (int(v) for v in geometry)
        strides, pads, dilations = rest[:2], rest[2:6], rest[6:]
        packed = call.args[1][1]
        window = [int(d) for d in packed.ty.shape.values[2:4]]
        simple = (groups, strides, dilations, window) == (1, [1, 1], [1, 1], [KERNEL, KERNEL])
        return pads if simple and isinstance(packed, GenericConst) else None

    def _winograd(self, call: relax.Call, pads: list[int]) -> relax.Call:
        x, packed = call.args[1]
        images, blocks, height, width, lanes = (int(d) for d in call.ty.shape.values)
        _, in_blocks, _, _, in_lanes = (int(d) for d in x.ty.shape.values)
        conv = Convolution(
            images, in_blocks * in_lanes, blocks * lanes, height, width, in_lanes, lanes
        )
        plan = self.model.choose(conv, self.target)
        if plan is None:
            return call
        weight = unpack_weight(packed.value.numpy())
        tile = plan.register.vectors * lanes
        return self.builder_.call_te(
            conv2d_winograd,
            x,
            relax.const(transform_weight(weight, plan.m, in_lanes, tile), "float32"),
            lanes,
            pads,
            plan.m,
            (plan.images, plan.rows),
            plan.register.columns,
            primfunc_name_hint=conv2d_winograd.__name__,
            primfunc_attrs={"op_pattern": OUT_ELEMWISE_FUSABLE},
        )


_CALL_TIR = Op.get("relax.call_tir")
