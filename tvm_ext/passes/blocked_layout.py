"""Run what stands between blocked convolutions in their layout NCHW[x]c, too.

Before::

    yb = conv2d_blocked(block(x), packed_w)             # NCHW16c
    y = R.nn.relu(R.add(unblock(yb), bias))             # NCHW

After::

    zb = relu(add(conv2d_blocked(block(x), packed_w), bias16c))
    y = unblock(zb)                                     # dead where all consumers are blocked

Conversions that compounds ask for vanish where a blocked twin is there. Transposes from and to
tokens, channels last, are conversions that copy whole blocks of channels::

    t = R.permute_dims(R.reshape(unblock(zb), (N, C, H * W)), (0, 2, 1))    # before
    t = unblock_channels_last(zb)                                           # after
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import gcd, prod

import numpy as np
import tvm
from tvm import relax, tirx
from tvm.ir import GlobalVar, Op
from tvm.ir.expr import GenericConst
from tvm.relax.expr_functor import PyExprMutator, mutator
from tvm.target import Target
from tvm_ffi import structural_equal, structural_hash

from tvm_ext.ops import conv2d_blocked as ops
from tvm_ext.schedules.machine import Machine

from .blocked_conv2d import MIN_LANES, lanes_of
from .compound import COMPOSITE, LAYOUT
from .facts import OUT_ELEMWISE_FUSABLE, axes_of, have_equal_dims, image_dims, is_empty
from .graph import BLOCKED, OPERAND
from .legalize import to_kernel
from .lift_channels import lift_channels

__all__ = ["blocked_layout"]


def blocked_layout(target: Target) -> tvm.ir.transform.Pass:
    """The pass for ``target``; block and tile sizes follow its vector width."""

    @tvm.transform.module_pass(opt_level=0, name="BlockedLayout")
    def run(module, _context):
        return _BlockedLayout(module, target).transform()

    return run


@mutator
class _BlockedLayout(PyExprMutator):
    """``blocked[v]`` is the blocked twin of the NCHW variable ``v``, where this block has one."""

    def __init__(self, module: tvm.IRModule, target: Target):
        super().__init__(module)
        self.module = module
        self.target = target
        self.blocked: dict[relax.Var, relax.Var] = {}
        self.lifted: dict[
            tuple[int, int, int], list[tuple[tirx.PrimFunc, tirx.PrimFunc | None]]
        ] = {}
        self.name = ""
        self.changed = False

    def transform(self) -> tvm.IRModule:
        main = self.visit_expr(self.module["main"])
        if not self.changed:
            return self.module
        self.builder_.update_func(self.module.get_global_var("main"), main)
        return relax.transform.DeadCodeElimination()(self.builder_.get())

    def visit_dataflow_block_(self, block: relax.DataflowBlock) -> relax.BindingBlock:
        """A twin is known in its block alone."""
        self.blocked = {}
        return super().visit_dataflow_block_(block)

    def visit_var_binding_(self, binding: relax.VarBinding) -> None:
        """A variable that is another one vanishes.

        CanonicalizeBindings, which does so, too, puts what a match_cast found to be equal to a dim
        in the place of that dim, and so on for ever where the dim is a part of it.
        """
        self.name = binding.var.name
        value = self.visit_expr(binding.value)
        if isinstance(value, relax.DataflowVar) and isinstance(binding.var, relax.DataflowVar):
            self.set_var_remap(binding.var, value)
        else:
            super().visit_var_binding_(relax.VarBinding(binding.var, value))

    def visit_call_(self, call: relax.Call) -> relax.Expr:
        call = self.visit_expr_post_order(call)
        if not self.builder_.current_block_is_dataflow():
            return call
        result = self._as_told(call)
        if result is None:
            result = self._channels_last(call)
        if result is None and self._common_lanes(call) >= MIN_LANES:
            result = self._lift(call)
        self.changed |= result is not None
        return call if result is None else result

    def visit_tuple_getitem_(self, item: relax.TupleGetItem) -> relax.Expr:
        item = self.visit_expr_post_order(item)
        value = self.builder_.lookup_binding(item.tuple_value)
        return value.fields[item.index] if isinstance(value, relax.Tuple) else item

    def _as_told(self, call: relax.Call) -> relax.Expr | None:
        """What a compound asks for: a tensor blocked, or its blocked result as NCHW."""
        if call.op != _CALL_TIR or not isinstance(call.args[0], GlobalVar):
            return None
        asked = self._kernel_attrs(call).get(LAYOUT, None)
        if asked == "block":
            return self._block(call.args[1][0], _dims(call)[-1])
        return self._unblock(call.args[1][0], _dims(call)[1]) if asked == "unblock" else None

    # --- tokens -----------------------------------------------------------------------------

    def _channels_last(self, call: relax.Call) -> relax.Expr | None:
        """What is transposed to tokens, from its blocked twin."""
        if call.op != _PERMUTE or axes_of(call) != _to_last(call.args[0].ty.ndim):
            return None
        image = call.args[0]
        twin = self._twin(image) if isinstance(image, relax.Var) else None
        flat = twin is None
        if flat:  # one axis of pixels
            image = self._reshaped(image)
            twin = None if image is None else self._twin(image)
        if twin is None or not _has_pixels(call.args[0], image):
            return None
        kernel = self.builder_.call_te(
            ops.unblock_channels_last, twin, flat, primfunc_name_hint="unblock"
        )
        return self.builder_.emit(kernel, self.name)

    def _tokens(self, image: relax.Expr) -> relax.Var | None:
        """What ``image`` is a transpose of, channels last."""
        direct = self._call(image, _PERMUTE) is not None
        source = image if direct else self._reshaped(image)
        call = self._call(source, _PERMUTE)
        if source is None or call is None or axes_of(call) != _from_last(source.ty.ndim):
            return None
        return call.args[0] if _has_pixels(source, image) else None

    def _call(self, expr: relax.Expr | None, op: Op) -> relax.Call | None:
        """The call of ``op`` that ``expr`` is bound to."""
        value = self.builder_.lookup_binding(expr) if isinstance(expr, relax.Var) else None
        return value if isinstance(value, relax.Call) and value.op == op else None

    def _reshaped(self, expr: relax.Expr) -> relax.Var | None:
        """The variable that ``expr`` is a reshape of."""
        call = self._call(expr, _RESHAPE)
        source = None if call is None else call.args[0]
        return source if isinstance(source, relax.Var) else None

    # --- everything else --------------------------------------------------------------------

    def _lift(self, call: relax.Call) -> relax.Expr | None:
        """The kernel of ``call`` on blocked operands, if one is blocked already."""
        lanes = self._common_lanes(call)
        if not any(self._twin(x) is not None for x in _variables(call.args)):
            return None
        kernel = self._legalized(call)
        if kernel is None:
            return None
        operands, func = list(kernel.args[1]), self.builder_.get()[kernel.args[0]]
        lifted = self._lifted(func, lanes, _results(call)[0].ndim)
        if lifted is None or not all(map(_can_be_blocked, operands)):
            return None
        arguments = [
            self._operand(x, param, lanes)
            for x, param in zip(operands, lifted.params, strict=False)
        ]
        symbol = self.builder_.add_func(lifted, kernel.args[0].name_hint)
        types = [_blocked_type(ty, lanes) for ty in _results(call)]
        result = self.builder_.emit(
            relax.call_tir(symbol, arguments, types if len(types) > 1 else types[0]),
            self.name + BLOCKED,
        )
        channels = [int(ty.shape.values[1]) for ty in _results(call)]
        if len(types) == 1:
            return self._unblock(result, channels[0])
        parts = [
            self.builder_.emit(relax.TupleGetItem(result, k), self.name + BLOCKED)
            for k in range(len(types))
        ]
        return relax.Tuple([self._unblock(p, c) for p, c in zip(parts, channels, strict=True)])

    def _lifted(self, func: tirx.PrimFunc, lanes: int, rank: int) -> tirx.PrimFunc | None:
        """``func`` on blocks of ``lanes``, made once for all layers that are alike."""
        known = self.lifted.setdefault((structural_hash(func), lanes, rank), [])
        for other, lifted in known:
            if structural_equal(func, other):
                return lifted
        lifted = lift_channels(func, lanes, rank)
        if lifted is not None:
            lifted = _fusable(lifted)
        known.append((func, lifted))
        return lifted

    def _legalized(self, call: relax.Call) -> relax.Call | None:
        """``call`` as a call_tir of one kernel; that of a compound keeps its layout."""
        call = to_kernel(self.builder_, call)
        ok = (
            isinstance(call, relax.Call)
            and call.op == _CALL_TIR
            and len(call.args) == 2
            and isinstance(call.args[0], GlobalVar)
        )
        return call if ok and COMPOSITE not in self._kernel_attrs(call) else None

    def _kernel_attrs(self, call: relax.Call) -> Mapping[str, object]:
        return self.builder_.get()[call.args[0]].attrs or {}

    def _operand(self, x: relax.Expr, param: tirx.Var, lanes: int) -> relax.Expr:
        """``x`` in the layout that the lifted kernel's parameter has."""
        if tirx.is_buffer_var(param) and len(param.ty.shape) == x.ty.ndim + 1:
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
        if twin is not None and _dims(twin)[-1] == lanes:
            return twin
        n, c, *image = _dims(x)
        tokens = self._tokens(x)
        if tokens is not None:
            kernel = self.builder_.call_te(
                ops.block_channels_last, tokens, image, lanes, primfunc_name_hint="block"
            )
            twin = self.builder_.emit(kernel, self.name + OPERAND)
        elif _is_one_pixel(image):
            twin = self._reshape(x, [n, c // lanes, *image, lanes], self.name + OPERAND)
        elif twin is not None:
            parts = self._emit_te(ops.reblock, twin, lanes, self.name)
            twin = self._reshape(parts, [n, c // lanes, *image, lanes], self.name + OPERAND)
        else:
            twin = self._emit_te(ops.block, x, lanes, self.name + OPERAND)
        if isinstance(x, relax.Var):
            self.blocked.setdefault(x, twin)
        return twin

    def _unblock(self, result: relax.Var, channels: int) -> relax.Var:
        n, blocks, *image, lanes = _dims(result)
        exact = blocks * lanes == channels
        if exact and _is_one_pixel(image):
            plain = self._reshape(result, [n, channels, *image], self.name)
        else:
            plain = self._emit_te(ops.unblock, result, channels, self.name)
        if exact:
            self.blocked[plain] = result
        return plain

    def _reshape(self, x: relax.Expr, dims: list[int | tirx.Expr], name: str) -> relax.Var:
        """``x`` with other dims; one pixel of each channel lies the same in both layouts."""
        return self.builder_.emit(relax.op.reshape(x, dims), name)

    def _emit_te(self, compute, x: relax.Expr, size: int, name: str) -> relax.Var:
        call = self.builder_.call_te(compute, x, size, primfunc_name_hint=compute.__name__)
        return self.builder_.emit(call, name)

    def _common_lanes(self, call: relax.Call) -> int:
        """The block that serves all results of ``call``; 0 unless they are NC.. numbers.

        C is static. Narrow ones are blocked as the 32 bits that they come from.
        """
        lanes, results = 0, _results(call)
        for ty in results:
            dims = image_dims(ty)  # None of shapes as well, which have no dtype
            if dims is None or len(dims) not in _RANKS or is_empty(dims):
                return 0
            if len(dims) != results[0].ndim:
                return 0
            dtype = str(ty.dtype.dtype)
            if not _is_blocked(dtype):
                return 0
            vector = Machine.of(self.target).lanes(dtype if dtype == "float64" else "float32")
            lanes = gcd(lanes, lanes_of(int(dims[1]), vector))
        return gcd(lanes, *self._channels(call)) if lanes else 0

    def _channels(self, call: relax.Call) -> list[int]:
        """Those of the operands whose blocks the result must share: joined, or blocked already."""
        joins = call.op == _CONCAT and int(call.attrs.axis) == 1
        images = [x for x in _variables(call.args) if joins or self._twin(x) is not None]
        found = [image_dims(x.ty) for x in images]
        return [dims[1] for dims in found if dims is not None and len(dims) in _RANKS]


_CALL_TIR, _CONCAT = Op.get("relax.call_tir"), Op.get("relax.concat")
_PERMUTE, _RESHAPE = Op.get("relax.permute_dims"), Op.get("relax.reshape")
_RANKS = (3, 4, 5)  # of N, C and the axes that convolutions move along
_QUANTISED = ("int8", "uint8")


def _has_pixels(flat: relax.Expr, image: relax.Expr) -> bool:
    """Whether ``flat`` has the dims of ``image``, or, of a static one, its pixels on one axis."""
    dims, whole = image_dims(flat.ty), image_dims(image.ty)
    if dims is None or whole is None or dims[:2] != whole[:2]:
        return False
    static = all(isinstance(size, int) for size in whole[1:])
    return have_equal_dims(flat, image) or (static and dims[2:] == [prod(whole[2:])])


def _to_last(rank: int) -> tuple[int, ...]:
    """The axes of a transpose that puts channels last."""
    return (0, *range(2, rank), 1)


def _from_last(rank: int) -> tuple[int, ...]:
    """The inverse."""
    return (0, rank - 1, *range(1, rank - 1))


def _is_blocked(dtype: str) -> bool:
    return "float" in dtype or dtype in (*_QUANTISED, "int32")


def _fusable(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Reductions keep their epilogue; the rest is classified by its own structure."""
    annotated = relax.transform.AnnotateTIROpPattern()(tvm.IRModule({"main": func}))["main"]
    if int(annotated.attrs["op_pattern"]) > OUT_ELEMWISE_FUSABLE:
        return annotated.with_attr("op_pattern", OUT_ELEMWISE_FUSABLE)
    return annotated


def _can_be_blocked(operand: relax.Expr) -> bool:
    """Whether ``operand`` has dims that :func:`_dims` tells, or is no tensor of images."""
    if not isinstance(operand.ty, relax.TensorType):  # a size
        return True
    return operand.ty.ndim not in _RANKS or image_dims(operand.ty) is not None


def _blocked_type(ty: relax.TensorType, lanes: int) -> relax.TensorType:
    n, c, *image = ty.shape.values
    return relax.TensorType([n, int(c) // lanes, *image, lanes], ty.dtype.dtype)


def _is_one_pixel(image: Sequence[int | tirx.Expr]) -> bool:
    return all(isinstance(size, int) and size == 1 for size in image)


def _dims(expr: relax.Expr) -> list[int | tirx.Expr]:
    """The dims of a tensor of images."""
    found = image_dims(expr.ty)
    assert found is not None
    return found


def _results(call: relax.Call) -> list[relax.Type]:
    return list(call.ty.fields) if isinstance(call.ty, relax.TupleType) else [call.ty]


def _variables(exprs: Iterable[relax.Expr]) -> Iterator[relax.Var]:
    """The variables among operands, tuples looked into."""
    for expr in exprs:
        if isinstance(expr, relax.Var):
            yield expr
        elif isinstance(expr, relax.Tuple):
            yield from _variables(expr.fields)


def _const(array: np.ndarray) -> relax.Expr:
    return relax.const(array, array.dtype.name)
