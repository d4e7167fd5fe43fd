"""Reductions: axes as an attribute, as an input, or known at run time only."""

from collections.abc import Callable

from tvm import relax

from tvm_ext.ops import reduction as ops

from ..axes import placed_all
from ..builder import Builder
from ..known import as_expr
from ..refusal import UnknownRank
from ..run_time import demand_axes
from ..table import converter
from .shape import merged, reshaped

# ONNX operator -> TE function, since_versions with axes as attribute, with axes as input
_REDUCTIONS = {
    "ReduceL1": (ops.reduce_l1, (1, 11, 13), (18,)),
    "ReduceL2": (ops.reduce_l2, (1, 11, 13), (18,)),
    "ReduceLogSum": (ops.reduce_log_sum, (1, 11, 13), (18, 28)),
    "ReduceLogSumExp": (ops.reduce_log_sum_exp, (1, 11, 13), (18, 28)),
    "ReduceMax": (ops.reduce_max, (1, 11, 12, 13), (18, 20)),
    "ReduceMean": (ops.reduce_mean, (1, 11, 13), (18,)),
    "ReduceMin": (ops.reduce_min, (1, 11, 12, 13), (18, 20)),
    "ReduceProd": (ops.reduce_prod, (1, 11, 13), (18,)),
    "ReduceSum": (ops.reduce_sum, (1, 11), (13,)),
    "ReduceSumSquare": (ops.reduce_sum_square, (1, 11, 13), (18,)),
}


def _register(op_type, compute, with_attribute, with_input):
    @converter(op_type, *with_attribute)
    def reduction_attribute(bb, data, *, axes=None, keepdims=1):
        # Absent axes mean all of them; an empty list is not distinguished by these versions.
        return _reduce(bb, compute, data, axes or range(bb.rank(data)), keepdims)

    @converter(op_type, *with_input)
    def reduction_input(bb, data, axes=None, *, keepdims=1, noop_with_empty_axes=0):
        if axes is None or bb.static_shape(axes) == [0]:
            everything = () if noop_with_empty_axes else range(bb.rank(data))
            return _reduce(bb, compute, data, everything, keepdims)
        if bb.static(axes) is None:
            demand_axes(bb, axes, bb.rank(data))
            flags = bb.emit_te(ops.reduced_flags, axes, bb.rank(data), not noop_with_empty_axes)
            return _reduce_run_time(bb, compute, data, axes, flags, keepdims)
        return _reduce(bb, compute, data, bb.ints(axes, "axes"), keepdims)


for _op_type, _row in _REDUCTIONS.items():
    _register(_op_type, *_row)


def _reduce(bb: Builder, compute: Callable, data: relax.Expr, axes, keepdims) -> relax.Var:
    shape = bb.shape(data)
    chosen = placed_all(axes, len(shape))
    flags = [k in chosen for k in range(len(shape))]
    # Images, and signals, may have their channels side by side then, and stay so.
    is_pool = len(shape) > 2 and flags == [k > 1 for k in range(len(shape))]
    flat, merged_flags = (data, flags) if is_pool else merged(bb, data, flags)
    if flat is data and (keepdims or not is_pool):
        return bb.emit_te(compute, data, flags, bool(keepdims))
    dims = [1 if flag else dim for flag, dim in zip(flags, shape, strict=True)]
    kept = [dim for flag, dim in zip(flags, dims, strict=True) if keepdims or not flag]
    return reshaped(bb, bb.emit_te(compute, flat, merged_flags, is_pool), kept)


def _reduce_run_time(
    bb: Builder,
    compute: Callable,
    data: relax.Expr,
    axes: relax.Expr,
    flags: relax.Var,
    keepdims: int,
) -> relax.Var:
    """Reduce over axes read at run time: a flag per axis says whether it is one of them."""
    rank = bb.rank(data)
    result = bb.emit_te(compute, data, [flag.equal(1) for flag in bb.dims(flags, least=None)])
    result = bb.match(result, [bb.fresh_dim() for _ in range(rank)])
    if keepdims:
        return result
    count = bb.static_shape(axes)
    kept = bb.declared_rank if count is None else rank - count[0]
    if kept is None:
        raise UnknownRank
    remaining = bb.emit_te(ops.remaining_dims, flags, kept, *bb.shape(result))
    *dims, number = bb.dims(remaining, least=None)
    bb.check((number, as_expr(kept), "{given} axes are left, and the result has {wanted}"))
    return bb.reshape(result, dims)
