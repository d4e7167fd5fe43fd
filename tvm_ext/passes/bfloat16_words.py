"""Activations between convolutions of bfloat16 factors as the words that these read.

Before::

    v = relu(conv2d_pairs(x, w0))                       # float32, blocked
    y = conv2d_pairs(v, w1)
    z = add(v, u)

After::

    words = channel_pairs(relu(conv2d_pairs(x, w0)))    # one kernel
    y = conv2d_words(words, w1)
    z = add(channel_floats(words), u)                   # one kernel, too

They are half as many bytes, and nobody rounds what is read again. Whoever else reads ``v`` gets
it rounded: by at most 2**-8 of it.
"""

from collections.abc import Iterator

import tvm
from tvm import relax, s_tir, tirx
from tvm.ir import GlobalVar, Op
from tvm.relax.expr_functor import PyExprMutator, mutator
from tvm_ffi import structural_equal

from tvm_ext.ops import bfloat16_pairs as ops
from tvm_ext.schedules.statements import with_block

from .blocked_conv2d import BLOCKED_CONV2D
from .compound import COMPOSITE
from .facts import OUT_ELEMWISE_FUSABLE, dtype_of, image_dims, known_dims
from .graph import WORDS, Graph, variables

__all__ = ["bfloat16_words"]

ELEMENTWISE, BROADCAST = 0, 1

_CALL_TIR = Op.get("relax.call_tir")


@tvm.transform.module_pass(opt_level=0, name="BFloat16Words")
def bfloat16_words(module, _context):
    """The module pass; kernels follow the convention that the last parameter is the result."""
    return _Words(module).transform()


@mutator
class _Words(PyExprMutator):
    """``words[v]`` are those that stand for the variable ``v``."""

    def __init__(self, module: tvm.IRModule):
        super().__init__(module)
        self.module = module
        self.graph = Graph(module["main"])
        self.kept = {var for var in self.graph.values if self._pays(var)}
        self.words: dict[relax.Var, relax.Var] = {}

    def transform(self) -> tvm.IRModule:
        if not self.kept:
            return self.module
        main = self.visit_expr(self.module["main"])
        self.builder_.update_func(self.module.get_global_var("main"), main)
        return relax.transform.DeadCodeElimination()(self.builder_.get())

    def visit_var_binding_(self, binding: relax.VarBinding) -> None:
        super().visit_var_binding_(binding)
        if binding.var in self.kept:
            value = self.visit_expr(binding.var)
            name = binding.var.name + WORDS
            self.words[binding.var] = self._emit(ops.channel_pairs, value, "blocks", name=name)

    def visit_call_(self, call: relax.Call) -> relax.Expr:
        if call.op != _CALL_TIR or self.words.keys().isdisjoint(variables(call.args[1])):
            return super().visit_call_(call)
        symbol, given, *rest = call.args
        of_words = self._of_words(call)
        operands = [self._operand(x, k == 0 and of_words is not None) for k, x in enumerate(given)]
        if of_words is not None:
            symbol = self.builder_.add_func(of_words, symbol.name_hint)
        return relax.Call(call.op, [symbol, relax.Tuple(operands), *rest], call.attrs, call.ty_args)

    def _operand(self, x: relax.Expr, as_words: bool) -> relax.Expr:
        words = self.words.get(x) if isinstance(x, relax.Var) else None
        if words is None:
            return self.visit_expr(x)
        return words if as_words else self._emit(ops.channel_floats, words, name=x.name)

    def _emit(self, compute, *args: object, name: str) -> relax.Var:
        call = self.builder_.call_te(
            compute,
            *args,
            primfunc_name_hint=compute.__name__,
            primfunc_attrs={"op_pattern": ELEMENTWISE},
        )
        return self.builder_.emit(call, name)

    # --- where ------------------------------------------------------------------------------

    def _pays(self, var: relax.Var) -> bool:
        """Whether convolutions read ``var`` as words, others element by element, and its own
        kernel can write words."""
        readers = self.graph.readers.get(var, [])
        if image_dims(var.ty, batched=True) is None or dtype_of(var) != "float32":
            return False
        if not isinstance(var, relax.DataflowVar) or self.graph.uses[var] != len(readers):
            return False  # the result of the function is float32
        calls = [self.graph.values[reader] for reader in readers]
        others = [c for c in calls if self._of_words(c) is None or not c.args[1][0].same_as(var)]
        if len(others) == len(calls):
            return False
        if any(self._pattern(c) not in (ELEMENTWISE, BROADCAST) for c in others):
            return False
        if not all(structural_equal(call.ty, var.ty) for call in others):
            return False
        return all(self._writes_words(end) for end in self._ends(var))

    def _ends(self, var: relax.Var) -> Iterator[relax.Call | None]:
        """The kernels that ``var`` may become the end of, None for what is no such kernel."""
        value = self.graph.values.get(var)
        if not isinstance(value, relax.Call) or self._pattern(value) != ELEMENTWISE:
            yield value
            return
        for x in variables(value.args[1]):
            if structural_equal(x.ty, var.ty) and self.graph.uses[x] == 1:
                if self._pattern(self.graph.values.get(x)) in (ELEMENTWISE, OUT_ELEMWISE_FUSABLE):
                    yield from self._ends(x)

    def _writes_words(self, product: relax.Expr | None) -> bool:
        """Whether a register tile of ``product`` holds pairs of blocks, or may."""
        func = self._kernel(product)
        if product is None or func is None:
            return False
        if _is_depthwise(func):
            return True
        lanes = int(product.ty.shape.values[-1])
        return _is_convolution(func) and known_dims(product.args[1][1])[-1] % (2 * lanes) == 0

    def _of_words(self, call: relax.Expr) -> tirx.PrimFunc | None:
        """The kernel of ``call`` without its first step, if that pairs blocks of ``x``."""
        func = self._kernel(call)
        return None if func is None or not _is_convolution(func) else _without_rounding(func)

    def _kernel(self, value: relax.Expr | None) -> tirx.PrimFunc | None:
        if not isinstance(value, relax.Call) or value.op != _CALL_TIR:
            return None
        symbol = value.args[0]
        func = self.module[symbol] if isinstance(symbol, GlobalVar) else None
        return func if isinstance(func, tirx.PrimFunc) else None

    def _pattern(self, value: relax.Expr | None) -> int | None:
        """FuseOps' kind of the kernel that ``value`` calls."""
        func = self._kernel(value)
        return None if func is None else func.attrs.get("op_pattern", None)


def _is_convolution(func: tirx.PrimFunc) -> bool:
    return func.attrs.get(COMPOSITE, None) == "BFloat16Conv2d"


def _is_depthwise(func: tirx.PrimFunc) -> bool:
    """Whether ``func`` convolves each channel by itself: its weights have one axis of channels."""
    if func.attrs.get(COMPOSITE, None) != BLOCKED_CONV2D.name:
        return False
    x, weight = (param.ty.shape for param in func.params[:2])
    return len(weight) == len(x) - 1


def _without_rounding(func: tirx.PrimFunc) -> tirx.PrimFunc | None:
    """``func`` that is given what its first step makes of its first parameter, if those are words
    of paired blocks."""
    (x, *others), root = func.params, func.body
    first, *rest = root.block.body.seq
    block = _innermost(first)
    (words,) = (region.source for region in block.writes)
    image, found = (list(b.ty.shape[1:]) for b in (x, words))
    if not all(isinstance(d, tirx.IntImm) for d in (*image, *found)):
        return None
    (blocks, *image), found = ([int(d) for d in dims] for dims in (image, found))
    paired = found == [blocks // 2, *image]
    if not paired or not all(region.source.same_as(x) for region in block.reads):
        return None
    kept = [buffer for buffer in root.block.alloc_buffers if not buffer.same_as(words)]
    body = with_block(root, tirx.SeqStmt(rest), kept)
    return tirx.PrimFunc([words, *others], body, func.ret_type, func.attrs)


def _innermost(stmt: tirx.Stmt) -> s_tir.SBlock:
    while isinstance(stmt, tirx.For):
        stmt = stmt.body
    return stmt.block
