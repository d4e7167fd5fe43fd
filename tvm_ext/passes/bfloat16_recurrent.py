"""Recurrent weights as bfloat16: half of what each step reads.

Before: ``R.call_tir(lstm, (gates, panels, ...))``, whose steps sum ``h[k] * panels[.., k, .., j]``
After:  the same with ``panels`` as bits, which the kernel widens in registers

The hidden state, all products and sums stay float32: a weight moves by at most 2**-8 of it.
"""

import ml_dtypes
import numpy as np
import tvm
import tvm_ffi
from tvm import ir, relax, s_tir, tirx
from tvm.ir import GlobalVar, Op
from tvm.ir.expr import GenericConst
from tvm.relax.expr_functor import PyExprMutator, mutator

from .facts import dtype_of

__all__ = ["bfloat16_recurrent"]

_CALL_TIR = Op.get("relax.call_tir")
_BITS = "uint16"


@tvm.transform.module_pass(opt_level=0, name="BFloat16Recurrent")
def bfloat16_recurrent(module, _context):
    """The module pass."""
    return _Recurrent(module).transform()


@mutator
class _Recurrent(PyExprMutator):
    """``kernels[symbol, k]`` is the kernel whose operand ``k`` is of bits."""

    def __init__(self, module: tvm.IRModule):
        super().__init__(module)
        self.module = module
        self.kernels: dict[tuple[GlobalVar, int], GlobalVar] = {}

    def transform(self) -> tvm.IRModule:
        main = self.visit_expr(self.module["main"])
        if not self.kernels:
            return self.module
        self.builder_.update_func(self.module.get_global_var("main"), main)
        return relax.transform.DeadCodeElimination()(self.builder_.get())

    def visit_call_(self, call: relax.Call) -> relax.Expr:
        call = super().visit_call_(call)
        if call.op != _CALL_TIR or not isinstance(call.args[0], GlobalVar):
            return call
        symbol, given, *rest = call.args
        operands = list(given)
        for k, x in enumerate(operands):
            if isinstance(x, GenericConst) and dtype_of(x) == "float32":
                narrow = self._kernel(symbol, k)
                if narrow is not None:
                    symbol, operands[k] = narrow, _bits(x)
        if symbol.same_as(call.args[0]):
            return call
        return relax.Call(call.op, [symbol, relax.Tuple(operands), *rest], call.attrs, call.ty_args)

    def _kernel(self, symbol: GlobalVar, k: int) -> GlobalVar | None:
        """The kernel of bits in the place of ``symbol``, if ``k`` are recurrent weights."""
        if (symbol, k) not in self.kernels:
            func = self.builder_.get()[symbol]
            if not isinstance(func, tirx.PrimFunc) or not _are_weights(func, func.params[k]):
                return None
            self.kernels[symbol, k] = self.builder_.add_func(_of_bits(func, k), symbol.name_hint)
        return self.kernels[symbol, k]


def _are_weights(func: tirx.PrimFunc, param: tirx.Var) -> bool:
    """Whether ``param`` weighs the states before a step: in a panel of the step, by a product over
    rows, depth, gates and units."""
    readers: list[list[int]] = []

    def visit(block: s_tir.SBlock) -> None:
        if any(region.source.same_as(param) for region in block.reads):
            readers.append([int(axis.iter_type) for axis in block.iter_vars])

    tvm_ffi.structural_walk(func.body, (s_tir.SBlock, visit))
    return _PRODUCT in readers and _PANEL in readers


_SPATIAL, _REDUCED, _OPAQUE = (
    int(kind) for kind in (tirx.IterVar.DataPar, tirx.IterVar.CommReduce, tirx.IterVar.Opaque)
)
# Steps and panels; rows, depth, gates and units: as schedules.llvm.recurrent knows them.
_PANEL = [_OPAQUE, _SPATIAL]
_PRODUCT = [_SPATIAL, _REDUCED, _SPATIAL, _SPATIAL]


def _of_bits(func: tirx.PrimFunc, k: int) -> tirx.PrimFunc:
    """``func`` whose parameter ``k`` holds the upper halves of its numbers."""
    old = func.params[k]
    new = tirx.decl_buffer(old.ty.shape, _BITS, old.name)

    def load(value: ir.TensorLoad) -> tirx.Expr:
        if not value.source.same_as(old):
            return value
        bits = tirx.BufferLoad(new, value.indices).astype("uint32")
        return tirx.reinterpret("float32", bits << 16)

    def region(read: ir.TensorRegion) -> ir.TensorRegion:
        return tirx.BufferRegion(new, read.region) if read.source.same_as(old) else read

    body = tvm_ffi.structural_map(func.body, (ir.TensorLoad, load))
    body = tvm_ffi.structural_map(body, (ir.TensorRegion, region))
    params = [new if param.same_as(old) else param for param in func.params]
    return tirx.PrimFunc(params, body, func.ret_type, func.attrs)


def _bits(weights: GenericConst) -> relax.Expr:
    narrow = weights.value.numpy().astype(ml_dtypes.bfloat16)
    return relax.const(np.ascontiguousarray(narrow).view(_BITS), _BITS)
