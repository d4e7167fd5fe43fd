"""What passes ask of Relax expressions."""

from collections.abc import Iterable, Sequence
from typing import Any

import tvm_ffi
from tvm import relax, s_tir, tirx
from tvm.ir.expr import GenericConst

__all__ = [
    "OPAQUE",
    "OUT_ELEMWISE_FUSABLE",
    "allocated",
    "axes_of",
    "dims_of",
    "dtype_of",
    "have_equal_dims",
    "image_dims",
    "in_order_of_use",
    "is_empty",
    "known_dims",
    "number_of",
    "ordered_numbers",
    "static_dims",
    "tensors_of",
]

#: FuseOps' kind of a kernel behind which element-wise kernels may be fused.
OUT_ELEMWISE_FUSABLE = 4
#: FuseOps' kind of a kernel with which nothing is fused.
OPAQUE = 8


def static_dims(expr: relax.Expr) -> list[int] | None:
    """The dims of a tensor if its shape is static, else None."""
    return dims_of(expr.ty)


def have_equal_dims(a: relax.Expr, b: relax.Expr) -> bool:
    """Whether two tensors are of one shape, symbols included."""
    if not (isinstance(a.ty, relax.TensorType) and isinstance(b.ty, relax.TensorType)):
        return False
    if a.ty.shape is None or b.ty.shape is None:
        return False
    return tvm_ffi.structural_equal(a.ty.shape, b.ty.shape)


def known_dims(expr: relax.Expr) -> list[int]:
    """The dims of a tensor that is known to be static."""
    found = static_dims(expr)
    assert found is not None
    return found


def dims_of(ty: relax.Type) -> list[int] | None:
    """The dims of a tensor type if its shape is static, else None."""
    if not isinstance(ty, relax.TensorType) or ty.shape is None:
        return None
    dims = ty.shape.values
    return [int(d) for d in dims] if all(isinstance(d, tirx.IntImm) for d in dims) else None


def image_dims(ty: relax.Type, batched: bool = False) -> list[int | tirx.Expr] | None:
    """The dims of ``[N, C, ...]`` of which C is a number, else None.

    ``batched``: of the others, only N may be a symbol.
    """
    if not isinstance(ty, relax.TensorType) or ty.shape is None or not len(ty.shape.values):
        return None
    dims = [int(d) if isinstance(d, tirx.IntImm) else d for d in ty.shape.values]
    if batched:
        told = isinstance(dims[0], int | tirx.Var) and all(isinstance(d, int) for d in dims[1:])
    else:
        told = isinstance(dims[min(1, len(dims) - 1)], int)
    return dims if told else None


def in_order_of_use(sizes: Iterable[tirx.Var], nodes: Iterable[Any]) -> list[tirx.Var]:
    """``sizes`` in the order in which ``nodes`` show them, not in that of their addresses."""
    rank = {var: at for at, var in enumerate(_shown(nodes))}
    return sorted(sizes, key=lambda size: rank.get(size, len(rank)))


def _shown(nodes: Iterable[Any]) -> dict[tirx.Var, None]:
    found: dict[tirx.Var, None] = {}
    for node in nodes:
        tvm_ffi.structural_walk(node, (tirx.Var, found.setdefault))
    return found


def ordered_numbers(func: tirx.PrimFunc) -> tuple[tirx.PrimFunc, list[int]]:
    """A kernel with the numbers that it uses, in that order, and which of the former each is."""
    buffers = [*filter(tirx.is_buffer_var, func.params), *allocated(func.body)]
    dims = [dim for buffer in buffers for dim in buffer.ty.shape]
    numbers = [param for param in func.params if not tirx.is_buffer_var(param)]
    place = {number: k for k, number in enumerate(numbers)}
    ordered = [var for var in _shown([*dims, func.body]) if var in place]
    left = iter(ordered)
    slots = [p if tirx.is_buffer_var(p) else next(left, None) for p in func.params]
    params = [param for param in slots if param is not None]
    kernel = tirx.PrimFunc(params, func.body, func.ret_type, func.attrs)
    return kernel, [place[number] for number in ordered]


def allocated(body: tirx.Stmt) -> list[tirx.Var]:
    """The buffers that the blocks of ``body`` have of their own."""
    found: list[tirx.Var] = []
    tvm_ffi.structural_walk(body, (s_tir.SBlock, lambda block: found.extend(block.alloc_buffers)))
    return found


def is_empty(dims: Sequence[int | tirx.Expr]) -> bool:
    """Whether one of ``dims`` is known to be 0."""
    return any(isinstance(d, int | tirx.IntImm) and int(d) == 0 for d in dims)


def tensors_of(ty: relax.Type) -> list[list[int] | None]:
    """The dims of each tensor of a type, tuples flattened; None for one that is symbolic."""
    if isinstance(ty, relax.TupleType):
        return [dims for field in ty.fields for dims in tensors_of(field)]
    return [dims_of(ty)]


def axes_of(call: relax.Call) -> tuple[int, ...]:
    """Those of a transpose."""
    rank = call.args[0].ty.ndim
    given = call.attrs.axes
    return tuple(int(a) % rank for a in given) if given else tuple(reversed(range(rank)))


def dtype_of(expr: relax.Expr) -> str:
    """The element type of a tensor, as numpy names it."""
    return str(expr.ty.dtype.dtype)


def number_of(expr: relax.Expr) -> float | None:
    """The only element of a constant."""
    if not isinstance(expr, GenericConst):
        return None
    array = expr.value.numpy()
    return float(array.item()) if array.size == 1 else None
