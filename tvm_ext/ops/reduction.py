"""Reductions over some axes of a tensor.

``reduced`` says for each axis whether it is reduced: True, False, or, for axes given at run
time, a condition. Sums of float16 and bfloat16 run in float32. Why not TVM's own: they drop
NaN, and leave the result uninitialised where a reduced axis is empty.
"""

from collections.abc import Callable, Sequence
from math import inf, nan

from tvm import te, tirx
from tvm.topi.utils import prod

from .approximations import exp, log
from .elementwise import dtype_of, float_compute
from .ordering import from_key, key_dtype, to_key

__all__ = [
    "reduce_l1", "reduce_l2", "reduce_log_sum", "reduce_log_sum_exp", "reduce_max", "reduce_mean",
    "reduce_min", "reduce_prod", "reduce_sum", "reduce_sum_square", "reduced_flags",
    "remaining_dims",
]  # fmt: skip

Reduced = Sequence[bool | tirx.Expr]
Scalar = Callable[[tirx.Expr], tirx.Expr]

_product = te.comm_reducer(lambda a, b: a * b, lambda t: tirx.const(1, t), "product")


def reduce_sum(x: te.Tensor, reduced: Reduced, keepdims: bool = True) -> te.Tensor:
    """The sum of ``x``; 0 over no elements."""
    return _summed(x, reduced, keepdims, lambda v: v, "reduce_sum")


def reduce_l1(x: te.Tensor, reduced: Reduced, keepdims: bool = True) -> te.Tensor:
    """The sum of ``|x|``; 0 over no elements."""
    return _summed(x, reduced, keepdims, tirx.abs, "reduce_l1")


def reduce_sum_square(x: te.Tensor, reduced: Reduced, keepdims: bool = True) -> te.Tensor:
    """The sum of ``x**2``; 0 over no elements."""
    return _summed(x, reduced, keepdims, lambda v: v * v, "reduce_sum_square")


def reduce_l2(x: te.Tensor, reduced: Reduced, keepdims: bool = True) -> te.Tensor:
    """The square root of the sum of ``x**2``; 0 over no elements."""
    return _summed(x, reduced, keepdims, lambda v: v * v, "reduce_l2", _as_float(tirx.sqrt))


def reduce_log_sum(x: te.Tensor, reduced: Reduced, keepdims: bool = True) -> te.Tensor:
    """The logarithm of the sum of ``x``; -inf over no elements."""
    return _summed(x, reduced, keepdims, lambda v: v, "reduce_log_sum", _as_float(log))


def reduce_mean(x: te.Tensor, reduced: Reduced, keepdims: bool = True) -> te.Tensor:
    """The sum of ``x`` by the number of elements; integers truncate. NaN over no elements."""
    extents = [_extent(d, flag) for d, flag in zip(x.shape, reduced, strict=True)]
    count = prod([e for e, flag in zip(extents, reduced, strict=True) if flag is not False])

    def divided(total):
        if "float" in dtype_of(total):
            # TVM refuses to divide by a constant 0.
            return total * nan if _is_zero(count) else total / count.astype(dtype_of(total))
        return tirx.truncdiv(total, tirx.max(count, 1).astype(dtype_of(total)))

    return _summed(x, reduced, keepdims, lambda v: v, "reduce_mean", divided)


def reduce_prod(x: te.Tensor, reduced: Reduced, keepdims: bool = True) -> te.Tensor:
    """The product of ``x``; 1 over no elements."""
    dtype = float_compute(dtype_of(x))
    term = lambda *i: x(*i).astype(dtype)  # noqa: E731
    result = _fold(x, reduced, keepdims, _product, term, tirx.const(1, dtype), "reduce_prod")
    return _mapped(result, None, dtype_of(x), "reduce_prod")


def reduce_max(x: te.Tensor, reduced: Reduced, keepdims: bool = True) -> te.Tensor:
    """The maximum of ``x``, NaN if there is one; over no elements the least value there is."""
    return _extremum(x, reduced, keepdims, te.max, "reduce_max")


def reduce_min(x: te.Tensor, reduced: Reduced, keepdims: bool = True) -> te.Tensor:
    """The minimum of ``x``, NaN if there is one; over no elements the greatest value there is."""
    return _extremum(x, reduced, keepdims, te.min, "reduce_min")


def reduce_log_sum_exp(x: te.Tensor, reduced: Reduced, keepdims: bool = True) -> te.Tensor:
    """The logarithm of the sum of ``e**x``, shifted by the maximum; -inf over no elements."""
    compute = float_compute(dtype_of(x)) if "float" in dtype_of(x) else "float64"
    wide = te.compute(x.shape, lambda *i: x(*i).astype(compute), "widened")
    largest = reduce_max(wide, reduced, keepdims=True)

    def shift(*index):
        value = largest(*index)
        return tirx.Select(tirx.abs(value) < inf, value, tirx.const(0, compute))

    shift = te.compute(largest.shape, shift, "shift")

    def term(*index):
        kept = [0 if flag is True else i for i, flag in zip(index, reduced, strict=True)]
        if any(isinstance(flag, tirx.Expr) for flag in reduced):
            kept = [tirx.Select(flag, tirx.const(0, "int64"), i.astype("int64"))
                    for i, flag in zip(index, reduced, strict=True)]  # fmt: skip
        return exp(wide(*index) - shift(*kept))

    zero = tirx.const(0, compute)
    total = _fold(x, reduced, True, te.sum, term, zero, "exp_sum")
    result = te.compute(total.shape, lambda *i: log(total(*i)) + shift(*i), "log_sum_exp")
    return _mapped(result, None, dtype_of(x), "reduce_log_sum_exp",
                   () if keepdims else reduced)  # fmt: skip


def reduced_flags(axes: te.Tensor, rank: int, none_is_all: bool) -> te.Tensor:
    """``axes[k] -> flags[rank]`` (int64): 1 for the axes listed, negative ones from the end.

    ``k`` may be known only at run time; with ``none_is_all``, no axes are all of them.
    """
    count = axes.shape[0]
    j = te.reduce_axis((0, count), "j")

    def listed(k):
        hit = tirx.any(axes(j).equal(k), axes(j).equal(k - rank))
        return te.max(hit.astype("int64"), axis=j)

    hits = te.compute((rank,), listed, "listed")
    everything = count.equal(0) if none_is_all else tirx.const(False, "bool")
    return te.compute(
        (rank,),
        lambda k: tirx.any(hits(k) > 0, everything).astype("int64"),
        "reduced_flags",
    )


def remaining_dims(flags: te.Tensor, count: int, *dims: tirx.Expr) -> te.Tensor:
    """The ``count`` of ``dims`` whose flag is 0, in order, then how many those are: a tensor."""
    zero = tirx.const(0, "int64")

    def remaining(k):
        total, position = zero, zero
        for axis, dim in enumerate(dims):
            is_kept = flags(axis).equal(0)
            is_here = tirx.all(is_kept, position.equal(k))
            total = total + tirx.Select(is_here, dim + zero, zero)
            position = position + is_kept.astype("int64")
        return tirx.Select(k.equal(count), position, total)

    return te.compute((count + 1,), remaining, "remaining_dims")


def _summed(
    x: te.Tensor, reduced: Reduced, keepdims: bool, term: Scalar, name: str,
    finish: Scalar | None = None,
) -> te.Tensor:  # fmt: skip
    """``finish`` of the sum of ``term`` over the elements of ``x``."""
    dtype = float_compute(dtype_of(x))
    zero = tirx.const(0, dtype)
    total = _fold(x, reduced, keepdims, te.sum, lambda *i: term(x(*i).astype(dtype)), zero, name)
    return _mapped(total, finish, dtype_of(x), name)


def _extremum(x: te.Tensor, reduced: Reduced, keepdims: bool, reducer, name: str) -> te.Tensor:
    dtype, is_max = dtype_of(x), reducer is te.max
    if "float" in dtype:
        compute = float_compute(dtype)
        empty = to_key(tirx.const(-inf if is_max else inf, compute))
    else:
        limit = tirx.min_value if is_max else tirx.max_value
        empty = limit(key_dtype(dtype)) if dtype != "bool" else tirx.const(not is_max, "uint8")
    key = _fold(x, reduced, keepdims, reducer, lambda *i: to_key(x(*i), is_max), empty, name)
    return _mapped(key, lambda k: from_key(k, dtype), dtype, name)


def _fold(
    x: te.Tensor, reduced: Reduced, keepdims: bool, reducer: Callable,
    term: Callable[..., tirx.Expr], empty: tirx.Expr, name: str,
) -> te.Tensor:  # fmt: skip
    """Combine ``term(*index)`` over the reduced axes of ``x``; ``empty`` where there is nothing."""
    extents = [_extent(d, flag) for d, flag in zip(x.shape, reduced, strict=True)]
    shape = [_kept(d, flag) for d, flag in zip(x.shape, reduced, strict=True)
             if keepdims or flag is not True]  # fmt: skip
    over = [e for e, flag in zip(extents, reduced, strict=True) if flag is not False]
    if any(map(_is_zero, over)):
        return te.compute(shape, lambda *i: empty, name)
    unsure = [e > 0 for e in over if not isinstance(e, int | tirx.IntImm)]
    known = all(isinstance(flag, bool) for flag in reduced)
    loops = [te.reduce_axis((0, e if known else _trips(e)), f"r{k}") for k, e in enumerate(over)]

    def element(*index):
        outer, inner, position = iter(index), iter(loops), []
        for flag in reduced:
            at = next(outer) if keepdims or flag is not True else 0
            position.append(at if flag is False else next(inner).var + at)
        value = term(*position)
        if known or not unsure:
            return value
        return tirx.if_then_else(tirx.all(*unsure), value, empty)

    if not loops:
        return te.compute(shape, element, name)
    folded = te.compute(shape, lambda *i: reducer(element(*i), axis=loops), name)
    if not known or not unsure:
        return folded
    # A loop of no trips leaves the result unset.
    return te.compute(shape, lambda *i: tirx.Select(tirx.all(*unsure), folded(*i), empty), name)


def _trips(extent: int | tirx.Expr) -> int | tirx.Expr:
    """``extent``, but 1 for 0: a loop of no trips would leave the result unset.

    As a sum: of a maximum the compiler makes two bounds, and LoopPartition cuts at the wrong one.
    """
    if isinstance(extent, int | tirx.IntImm):
        return extent
    return extent + (extent <= 0).astype("int64")


def _is_zero(extent: int | tirx.Expr) -> bool:
    return isinstance(extent, int | tirx.IntImm) and int(extent) == 0


def _extent(dim: tirx.Expr, flag: bool | tirx.Expr) -> tirx.Expr:
    """How many elements are combined along one axis."""
    if isinstance(flag, bool):
        return dim if flag else tirx.const(1, "int64")
    return tirx.Select(flag, dim, tirx.const(1, "int64"))


def _kept(dim: tirx.Expr, flag: bool | tirx.Expr) -> tirx.Expr:
    """The size of one axis of the result, where it is kept."""
    return _extent(dim, not flag if isinstance(flag, bool) else tirx.Not(flag))


def _mapped(
    x: te.Tensor, function: Scalar | None, dtype: str, name: str, squeezed: Reduced = ()
) -> te.Tensor:
    """``function`` of each element as ``dtype``, without the axes of size 1 in ``squeezed``."""
    if function is None and dtype == dtype_of(x) and not any(squeezed):
        return x
    flags = squeezed or [False] * len(x.shape)
    shape = [d for d, flag in zip(x.shape, flags, strict=True) if not flag]

    def element(*index):
        index = iter(index)
        value = x(*(0 if flag else next(index) for flag in flags))
        return (function(value) if function else value).astype(dtype)

    return te.compute(shape, element, name)


def _as_float(function: Scalar) -> Scalar:
    """``function`` in float64 for integers."""

    def applied(x):
        return function(x if "float" in dtype_of(x) else x.astype("float64"))

    return applied
