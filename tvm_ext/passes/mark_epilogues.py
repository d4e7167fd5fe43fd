"""Say which kernels are epilogues.

FuseOps hangs a kernel behind a convolution only if it is classified as element-wise.
AnnotateTIROpPattern says so of ``x[1, 2, 8, 8] + b[1, 2, 1, 1]`` but not of
``x[1, 1, 8, 8] + b[1, 1, 1, 1]``, whose unit dims it sees as broadcast.

Before: ``op_pattern = 1`` (broadcast), an operand has the result's shape
After:  ``op_pattern = 0`` (element-wise), also of a function of bytes that a table has

Behind the product that makes ``b``, such a kernel would compute it again for each pixel: gates of
squeeze and excitation.

Before: ``gate = sigmoid(conv(s)); y = x * gate``, the kernel of ``x * gate`` is element-wise
After:  that of this call is broadcast

Of two products that are summed, one is a kernel of its own. Where it ends in 8 bits, these are
what is stored.

Before: ``a = dequantize(conv(x)); b = dequantize(conv(y)); a + b``, both element-wise
After:  that of ``a`` is broadcast, and computed with the sum
"""

import tvm
from tvm import relax, tirx
from tvm.ir import GlobalVar, Op
from tvm.relax.expr_functor import PyExprMutator, mutator
from tvm_ffi import structural_equal

from tvm_ext.ops.byte_table import LOOKUP

from .facts import OUT_ELEMWISE_FUSABLE, dtype_of, have_equal_dims, static_dims
from .graph import Graph

__all__ = ["mark_epilogues"]

ELEMENTWISE, BROADCAST = 0, 1

_NARROW = ("int8", "uint8")

_CALL_TIR = Op.get("relax.call_tir")


@tvm.transform.module_pass(opt_level=0, name="MarkEpilogues")
def mark_epilogues(module, _context):
    """The module pass; kernels follow the convention that the last parameter is the result."""
    for symbol, func in module.functions_items():
        if not isinstance(func, tirx.PrimFunc):
            continue
        if func.attrs.get("op_pattern", None) != BROADCAST and LOOKUP not in func.attrs:
            continue
        *operands, result = (p.ty.shape for p in func.params if tirx.is_buffer_var(p))
        if any(structural_equal(shape, result) for shape in operands):
            module.update_func(symbol, func.with_attr("op_pattern", ELEMENTWISE))
    return _Widening(module).transform()


@mutator
class _Widening(PyExprMutator):
    """Calls whose kernel must not follow the product that makes a smaller operand."""

    def __init__(self, module: tvm.IRModule):
        super().__init__(module)
        self.module = module
        self.graph = Graph(module["main"])
        self.ends: dict[relax.Var, relax.Var | None] = {}
        self.places = {var: place for place, var in enumerate(self.graph.values)}

    def transform(self) -> tvm.IRModule:
        main = self.visit_expr(self.module["main"])
        self.builder_.update_func(self.module.get_global_var("main"), main)
        return self.builder_.get()

    def visit_call_(self, call: relax.Call) -> relax.Expr:
        if not self._widens(call) and not self._is_other_summand(call):
            return super().visit_call_(call)
        symbol, *rest = call.args
        kernel = self.module[symbol].with_attr("op_pattern", BROADCAST)
        symbol = self.builder_.add_func(kernel, symbol.name_hint)
        return super().visit_call_(relax.Call(call.op, [symbol, *rest], call.attrs, call.ty_args))

    def _widens(self, call: relax.Call) -> bool:
        """Whether a smaller operand is the end of a product, and no other operand is."""
        if self._pattern(call) != ELEMENTWISE:
            return False
        ends = [x for x in call.args[1] if self._product(x) is not None]
        return bool(ends) and not any(have_equal_dims(call, end) for end in ends)

    def _is_other_summand(self, call: relax.Call) -> bool:
        """Whether ``call`` makes floats of 8 bits, to be summed with the end of a later product."""
        var = self.graph.owner.get(call)
        reader = None if var is None else self.graph.reader(var)
        dims = None if reader is None else static_dims(var)  # None of several results, too
        if dims is None or self._pattern(call) != ELEMENTWISE or dtype_of(var) in _NARROW:
            return False
        total = self.graph.values[reader]
        if self._pattern(total) != ELEMENTWISE:
            return False
        if not any(dtype_of(x) in _NARROW for x in call.args[1] if static_dims(x) == dims):
            return False
        others = [x for x in total.args[1] if x is not var and static_dims(x) == dims]
        products = [end for end in map(self._product, others) if end is not None]
        own = self._product(var)
        return any(own is None or self.places[own] < self.places[end] for end in products)

    def _product(self, x: relax.Expr) -> relax.Var | None:
        """The product that ``x``, read once, is, or that element-wise kernels before it end."""
        passed, end = [], None
        while isinstance(x, relax.Var) and self.graph.uses[x] == 1:
            if x in self.ends:  # else long chains of kernels are walked again from each of them
                end = self.ends[x]
                break
            passed.append(x)
            value = self.graph.values.get(x)
            if self._pattern(value) == OUT_ELEMWISE_FUSABLE:
                end = x
                break
            if value is None or self._pattern(value) != ELEMENTWISE:
                break
            x = next((a for a in value.args[1] if have_equal_dims(a, x)), None)
        self.ends.update(dict.fromkeys(passed, end))
        return end

    def _pattern(self, value: relax.Expr | None) -> int | None:
        """FuseOps' kind of the kernel that ``value`` calls."""
        if not isinstance(value, relax.Call) or value.op != _CALL_TIR:
            return None
        symbol = value.args[0]
        func = self.module[symbol] if isinstance(symbol, GlobalVar) else None
        return func.attrs.get("op_pattern", None) if isinstance(func, tirx.PrimFunc) else None
