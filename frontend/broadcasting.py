"""Element-wise operators of several tensors that broadcast, as every opset defined it."""

from collections.abc import Callable, Sequence

from tvm import relax, tirx

from tvm_ext.ops.elementwise import broadcast_shape

from .axes import placed
from .builder import Builder, Dim

__all__ = [
    "BROADCASTING",
    "MISFIT",
    "align",
    "demand_broadcast",
    "demanded_dims",
    "emit_broadcast",
]

#: What a run tells of an axis that is to be stretched and is not 1.
MISFIT = "is {given}, which does not broadcast to {wanted}"

#: The operators of ONNX to whose result a dim of 1 in front of an operand makes no difference, if
#: another operand has as many dims.
BROADCASTING = frozenset({
    "Add", "And", "BitwiseAnd", "BitwiseOr", "BitwiseXor", "Div", "Equal", "Greater",
    "GreaterOrEqual", "Less", "LessOrEqual", "Max", "Mean", "Min", "Mod", "Mul", "Or", "Pow",
    "Sub", "Sum", "Where", "Xor",
})  # fmt: skip


def emit_broadcast(
    bb: Builder,
    relax_op: Callable[..., relax.Expr] | None,
    compute: Callable[..., object],
    *operands: relax.Expr,
    **attributes: object,
) -> relax.Var:
    """``operands`` broadcast together: ``relax_op`` of them where its result shape is known.

    Where the sizes of two dims, and so which of them is stretched, are known only at run time,
    the TE function ``compute`` is emitted instead, behind a run-time check that they fit.
    """
    shapes = [bb.shape(x) for x in operands]
    shape = bb.measured(broadcast_shape(*shapes))
    demanded = [demanded_dims(bb, dims, shape[len(shape) - len(dims) :]) for dims in shapes]
    fits = all(wanted is None for wanted in demanded)
    if fits and relax_op is not None and not attributes:
        return bb.emit(relax_op(*operands))
    for operand, wanted in zip(operands, demanded, strict=True):
        if wanted is not None:
            bb.demand(operand, wanted, MISFIT)
    if not fits:
        attributes["shape"] = shape
    return bb.emit_te(compute, *operands, **attributes)


def demand_broadcast(bb: Builder, operand: relax.Expr, outs: Sequence[Dim]) -> None:
    """Assert that ``operand`` broadcasts to the dims ``outs``.

    Raises:
        ValueError: it does not.
    """
    dims = bb.shape(operand)
    if len(dims) > len(outs):
        raise ValueError(f"dims {dims} do not broadcast to {list(outs)}")
    outs = outs[len(outs) - len(dims) :]
    wanted = demanded_dims(bb, dims, outs)
    if wanted is not None:
        bb.demand(operand, wanted, MISFIT)
    for dim, out in zip(dims, outs, strict=True):
        if isinstance(dim, int) and dim != 1:
            bb.demand_dims([out], [dim], "a dim is {given}, to which {wanted} does not broadcast")


def demanded_dims(bb: Builder, dims: Sequence[Dim], outs: Sequence[Dim]) -> list[Dim] | None:
    """What ``dims`` must be at run time to broadcast to ``outs``; None if they are known to."""
    wanted = [_demanded(bb, dim, out) for dim, out in zip(dims, outs, strict=True)]
    return None if all(map(bb.equal, dims, wanted)) else wanted


def _demanded(bb: Builder, dim: Dim, out: Dim) -> Dim:
    """The only sizes ``dim`` may have under a result of size ``out``: 1, or that."""
    if isinstance(dim, int) and isinstance(out, int) and dim not in (1, out):
        raise ValueError(f"dims {dim} and {out} do not broadcast")
    if isinstance(dim, int) or bb.equal(dim, out):
        return dim
    one, out = (tirx.const(d, "int64") if isinstance(d, int) else d for d in (1, out))
    return tirx.Select(dim == 1, one, out)


def align(
    bb: Builder, a: relax.Expr, b: relax.Expr, axis: int | None, broadcast: int
) -> relax.Expr:
    """``b`` reshaped so that it broadcasts to ``a`` as opsets 1 to 6 define it.

    Its shape is a run of the dims of ``a`` that begins at ``axis`` (default: the last ones).
    """
    if not broadcast and bb.rank(a) != bb.rank(b):
        raise ValueError(f"ranks {bb.rank(a)} and {bb.rank(b)} differ without broadcast=1")
    if not broadcast or axis is None:
        return b
    trailing = bb.rank(a) - placed(axis, bb.rank(a)) - bb.rank(b)
    if trailing <= 0:
        return b
    return bb.reshape(b, [*bb.shape(b), *[1] * trailing])
