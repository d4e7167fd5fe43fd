"""Run convolutions, and what stands between them, in the blocked layout NCHW[x]c.

Before::

    y = R.nn.relu(R.add(R.nn.conv2d(x, w), bias))      # x, y: NCHW

After::

    xb = block(x)                                       # NCHW16c
    yb = relu(add(conv2d_blocked(xb, packed_w), bias16c))
    y = unblock(yb)                                     # dead where all consumers are blocked
"""

from math import gcd

import numpy as np
import tvm
from tvm import relax, tirx
from tvm.ir import GlobalVar, Op
from tvm.ir.expr import GenericConst
from tvm.relax.expr_functor import PyExprMutator, mutator
from tvm.target import Target

from tvm_ext.ops import conv2d_blocked as ops
from tvm_ext.schedules.machine import Machine

from ..schedules.llvm.conv2d import choose_tile
from .legalize import to_kernel
from .lift_channels import lift_channels

__all__ = ["blocked_layout"]

# Fewer lanes than this leave vector registers mostly empty: such tensors stay NCHW.
MIN_LANES = 4

# relax's pattern kinds: what may be fused behind a kernel.
OUT_ELEMWISE_FUSABLE = 4


def blocked_layout(target: Target) -> tvm.ir.transform.Pass:
    """The pass for ``target``; block and tile sizes follow its vector width."""

    @tvm.transform.module_pass(opt_level=0, name="BlockedLayout")
    def run(module, _context):
        return _BlockedLayout(module, target).transform()

    return run


@mutator
class _BlockedLayout(PyExprMutator):
    """``blocked[v]`` is the blocked twin of the NCHW variable ``v``, where there is one."""

    def __init__(self, module: tvm.IRModule, target: Target):
        super().__init__(module)
        self.module = module
        self.target = target
        self.blocked: dict[relax.Var, relax.Var] = {}
        self.name = ""

    def transform(self) -> tvm.IRModule:
        main = self.visit_expr(self.module["main"])
        self.builder_.update_func(self.module.get_global_var("main"), main)
        module = self.builder_.get()
        return tvm.ir.transform.Sequential([
            relax.transform.CanonicalizeBindings(), relax.transform.DeadCodeElimination(),
        ])(module)

    def visit_var_binding_(self, binding: relax.VarBinding) -> None:
        self.name = binding.var.name
        super().visit_var_binding_(binding)

    def visit_call_(self, call: relax.Call) -> relax.Expr:
        call = self.visit_expr_post_order(call)
        if not self.builder_.current_block_is_dataflow() or _lanes_of(call, self.target) is None:
            return call
        result = self._conv2d(call) if call.op == _CONV2D else self._lift(call)
        return call if result is None else result

    # --- convolution ----------------------------------------------------------------------

    def _conv2d(self, call: relax.Call) -> relax.Expr | None:
        x, weight = call.args
        attrs = call.attrs
        if (attrs.data_layout, attrs.kernel_layout) != ("NCHW", "OIHW"):
            return None
        if not isinstance(weight, GenericConst) or _shape(x) is None:
            return None
        geometry = [[int(v) for v in field] for field in (attrs.strides, attrs.padding,
                                                          attrs.dilation)]
        array = weight.value.numpy()
        groups, channels = int(attrs.groups), _shape(x)[1]
        if groups == channels == array.shape[0] and groups > 1:
            return self._depthwise(call, array, geometry)
        return self._dense(call, array, groups, geometry)

    def _depthwise(self, call, weight: np.ndarray, geometry: list) -> relax.Expr | None:
        lanes = _lanes(weight.shape[0], self._vector(call))
        if lanes < MIN_LANES:
            return None
        packed = _const(ops.pack_depthwise_weight(weight, lanes))
        x = self._block(call.args[0], lanes)
        result = self._emit_te(ops.depthwise_conv2d_blocked, x, packed, *geometry)
        return self._unblock(result, weight.shape[0])

    def _dense(self, call, weight: np.ndarray, groups: int, geometry: list) -> relax.Expr | None:
        oc, ic = weight.shape[:2]
        vector = self._vector(call)
        lanes = _lanes(oc, vector)
        if lanes < MIN_LANES:  # odd channel counts: whole registers, the rest is cut off
            lanes = vector
        in_lanes = _lanes(ic * groups, vector)
        if in_lanes < MIN_LANES:
            in_lanes = ic * groups if ic * groups <= vector else gcd(ic, vector)
        if groups > 1 and (ic % in_lanes or (oc // groups) % lanes):
            return None
        height, width = _shape(call)[2:]
        tile = choose_tile(self.target, -(-oc // groups // lanes), height, width, lanes)
        packed = _const(ops.pack_weight(weight, in_lanes, lanes, tile.vectors))
        x = self._block(call.args[0], in_lanes)
        result = self._emit_te(ops.conv2d_blocked, x, packed, lanes, groups, *geometry)
        return self._unblock(result, oc)

    # --- everything else --------------------------------------------------------------------

    def _lift(self, call: relax.Call) -> relax.Expr | None:
        """The kernel of ``call`` on blocked operands, if one is blocked already."""
        channels = _shape(call)[1]
        lanes = _lanes(channels, self._vector(call))
        operands = list(call.args[1]) if call.op == _CALL_TIR else list(call.args)
        if lanes < MIN_LANES or not any(self._twin(x) is not None for x in operands
                                        if isinstance(x, relax.Var)):
            return None
        kernel = self._legalized(call)
        if kernel is None:
            return None
        func = self.builder_.get()[kernel.args[0]]
        operands = list(kernel.args[1])
        lifted = lift_channels(func, lanes)
        if lifted is None:
            return None
        arguments = [self._operand(x, param, lanes)
                     for x, param in zip(operands, lifted.params, strict=False)]
        if any(argument is None for argument in arguments):
            return None
        symbol = self.builder_.add_func(_fusable(lifted), kernel.args[0].name_hint)
        ty = relax.TensorType([int(d) for d in lifted.params[-1].ty.shape], _dtype(call))
        result = self.builder_.emit(relax.call_tir(symbol, arguments, ty), self.name)
        return self._unblock(result, channels)

    def _legalized(self, call: relax.Call) -> relax.Call | None:
        """``call`` as a call_tir of one kernel with one result."""
        call = to_kernel(self.builder_, call)
        ok = (isinstance(call, relax.Call) and call.op == _CALL_TIR and len(call.args) == 2
              and isinstance(call.args[0], GlobalVar)
              and isinstance(call.ty_args[0], relax.TensorType))
        return call if ok else None

    def _operand(self, x: relax.Expr, param: tirx.Var, lanes: int) -> relax.Expr | None:
        """``x`` in the layout that the lifted kernel's parameter has."""
        if len(param.ty.shape) == 5 and len(_shape(x) or ()) == 4:
            if isinstance(x, GenericConst):
                return _const(ops.pack_channels(x.value.numpy(), lanes))
            return self._block(x, lanes)
        return x

    # --- twins ------------------------------------------------------------------------------

    def _twin(self, var: relax.Var) -> relax.Var | None:
        """The blocked twin of ``var``, seen through plain renamings."""
        while var not in self.blocked:
            bound = self.builder_.lookup_binding(var)
            if not isinstance(bound, relax.Var):
                return None
            var = bound
        return self.blocked[var]

    def _block(self, x: relax.Expr, lanes: int) -> relax.Var:
        twin = self._twin(x) if isinstance(x, relax.Var) else None
        if twin is not None and _shape(twin)[4] == lanes:
            return twin
        twin = self._emit_te(ops.block, x, lanes, pattern=None)
        if isinstance(x, relax.Var):
            self.blocked.setdefault(x, twin)
        return twin

    def _unblock(self, result: relax.Var, channels: int) -> relax.Var:
        plain = self._emit_te(ops.unblock, result, channels, pattern=None)
        _, blocks, _, _, lanes = _shape(result)
        if blocks * lanes == channels:
            self.blocked[plain] = result
        return plain

    def _emit_te(self, compute, *args, pattern: int | None = OUT_ELEMWISE_FUSABLE) -> relax.Var:
        attrs = None if pattern is None else {"op_pattern": pattern}
        call = self.builder_.call_te(compute, *args, primfunc_name_hint=compute.__name__,
                                     primfunc_attrs=attrs)
        return self.builder_.emit(call, self.name)

    def _vector(self, call: relax.Call) -> int:
        return Machine.of(self.target).lanes(_dtype(call))


_CALL_TIR = Op.get("relax.call_tir")
_CONV2D = Op.get("relax.nn.conv2d")


def _lanes(channels: int, vector: int) -> int:
    """The block of a tensor of ``channels``: as much of a vector as divides them."""
    return gcd(channels, vector)


def _fusable(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Reductions keep their epilogue; the rest is classified by its own structure."""
    annotated = relax.transform.AnnotateTIROpPattern()(tvm.IRModule({"main": func}))["main"]
    if int(annotated.attrs["op_pattern"]) > OUT_ELEMWISE_FUSABLE:
        return annotated.with_attr("op_pattern", OUT_ELEMWISE_FUSABLE)
    return annotated


def _lanes_of(call: relax.Call, target: Target) -> int | None:
    """The block size for the result of ``call``; None where it is no static NCHW float tensor."""
    shape = _shape(call)
    if shape is None or len(shape) != 4 or 0 in shape or "float" not in _dtype(call):
        return None
    return _lanes(shape[1], Machine.of(target).lanes(_dtype(call)))


def _shape(expr: relax.Expr) -> list[int] | None:
    ty = expr.ty
    if not isinstance(ty, relax.TensorType) or ty.shape is None:
        return None
    dims = ty.shape.values
    return [int(d) for d in dims] if all(isinstance(d, tirx.IntImm) for d in dims) else None


def _dtype(expr: relax.Expr) -> str:
    return str(expr.ty.dtype.dtype)


def _const(array: np.ndarray) -> relax.Expr:
    return relax.const(array, array.dtype.name)
