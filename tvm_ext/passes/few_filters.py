"""Convolutions of a few filters as ones of more filters, whose results are shifted and added.

Before: ``y = R.nn.conv2d(x, w)``, w ``[OC, IC, KH, KW]``
After::

    parts = R.nn.conv2d(x, columns_of_w)    # [KW * OC, IC, KH, 1]
    y[n, o, i, j] = sum of parts[n, k * OC + o, i, S * j + D * k] over k

Three filters, an image's colours, fill 3 of 16 lanes; the 27 of 9 columns fill 27 of 32. "kn2col"
of Anderson, Vasudevan, Keane and Gregg, Low-memory GEMM-based convolution algorithms for deep
neural networks, 2017.
"""

from __future__ import annotations

from math import prod

import numpy as np
import tvm
from tvm import relax
from tvm.ir.expr import GenericConst
from tvm.relax.expr_functor import PyExprMutator, mutator
from tvm.target import Target

from tvm_ext.ops.convolution import shifted_sums
from tvm_ext.schedules.machine import Machine

from .facts import dtype_of, image_dims
from .graph import OPERAND

__all__ = ["few_filters"]

# What a filter's part costs to be stored and read again, in multiplications of vectors.
_STORED = 2.0
# The part of the direct convolution's cost that is worth two kernels in the place of one.
_GAIN = 0.6
# Square windows of this size are Winograd's, which costs less still.
_WINOGRAD = 3

# The type of sums -> the factors of a lane that an instruction multiplies.
_FACTORS = {"float32": 1, "int32": 4}

_CONVOLVE = {"relax.nn.conv1d": relax.op.nn.conv1d, "relax.nn.conv2d": relax.op.nn.conv2d}
_LAYOUTS = (("NCW", "OIW"), ("NCHW", "OIHW"))


def few_filters(target: Target) -> tvm.ir.transform.Pass:
    """The module pass: weights known here, float32 or sums of bytes, one group.

    32 channels to 3 by 9x9 at 224 x 224, two Emerald Rapids cores: 12.7 ms, by parts 3.5 ms.
    """

    @tvm.transform.module_pass(opt_level=0, name="FewFilters")
    def run(module: tvm.IRModule, _context: object) -> tvm.IRModule:
        return _Rewriter(module, Machine.of(target)).transform()

    return run


@mutator
class _Rewriter(PyExprMutator):
    def __init__(self, module: tvm.IRModule, machine: Machine):
        super().__init__(module)
        self.module = module
        self.machine = machine
        self.name = ""  # of the variable whose value is visited

    def transform(self) -> tvm.IRModule:
        for symbol, func in self.module.functions_items():
            if isinstance(func, relax.Function):
                self.builder_.update_func(symbol, self.visit_expr(func))
        return self.builder_.get()

    def visit_var_binding_(self, binding: relax.VarBinding) -> None:
        self.name = binding.var.name
        super().visit_var_binding_(binding)

    def visit_call_(self, call: relax.Call) -> relax.Expr:
        call = super().visit_call_(call)
        convolve = _CONVOLVE.get(getattr(call.op, "name", ""))
        if convolve is None or not self._pays(call):
            return call
        x, weight = call.args
        array, attrs = weight.value.numpy(), call.attrs
        parts = np.moveaxis(array, -1, 0).reshape(-1, *array.shape[1:-1], 1)
        geometry = attrs.strides, attrs.padding, attrs.dilation
        strides, pads, dilations = ([int(n) for n in numbers] for numbers in geometry)
        wide = self.builder_.emit(
            convolve(
                x,
                relax.const(parts, dtype_of(weight)),
                strides=[*strides[:-1], 1],
                padding=pads,
                dilation=[*dilations[:-1], 1],
            ),
            self.name + OPERAND,
        )
        return self.builder_.call_te(
            shifted_sums,
            wide,
            array.shape[0],
            strides[-1],
            dilations[-1],
            primfunc_name_hint=shifted_sums.__name__,
        )

    def _pays(self, call: relax.Call) -> bool:
        x, weight = call.args
        attrs = call.attrs
        if not isinstance(weight, GenericConst) or int(attrs.groups) > 1:
            return False
        if (attrs.data_layout, attrs.kernel_layout) not in _LAYOUTS:
            return False
        factors = _FACTORS.get(dtype_of(call), 0)
        if {dtype_of(x), dtype_of(weight)} != {dtype_of(call)} or not factors:
            return False
        if image_dims(x.ty) is None:
            return False
        filters, *depth, columns = weight.value.shape
        if depth[1:] == [_WINOGRAD] and columns == _WINOGRAD:
            return False
        lanes = self.machine.lanes("float32")
        direct, parts = _costs(filters, prod(depth) / factors, columns, lanes)
        return int(attrs.strides[-1]) * parts <= _GAIN * direct


def _costs(filters: int, depth: float, columns: int, lanes: int) -> tuple[float, float]:
    """Of a pixel, directly and by parts, in multiplications of vectors."""
    parts = filters * columns
    return depth * columns * -(-filters // lanes), depth * -(-parts // lanes) + _STORED * parts
