"""Element-wise operators of several tensors that broadcast, as every opset defined it."""

from collections.abc import Callable, Sequence

from tvm import relax, tirx

from tvm_ext.ops.elementwise import broadcast_dim

from .axes import placed
from .builder import Builder, Dim

__all__ = ["align", "demanded_dims", "emit_broadcast"]


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
    checks = _undecided(bb, shapes)
    if checks is None and relax_op is not None and not attributes:
        return bb.emit(relax_op(*operands))
    for operand, shape in zip(operands, checks or (), strict=False):
        bb.match(operand, shape)
    return bb.emit_te(compute, *operands, **attributes)


def _undecided(bb: Builder, shapes: Sequence[Sequence[Dim]]) -> list[list[Dim]] | None:
    """The shapes as the broadcast result demands them; None if they are known to fit."""
    rank = max(len(shape) for shape in shapes)
    padded = [[1] * (rank - len(shape)) + list(shape) for shape in shapes]
    result = padded[0]
    for other in padded[1:]:
        result = [broadcast_dim(a, b) for a, b in zip(result, other, strict=True)]
    demanded = [demanded_dims(bb, shape, result[rank - len(shape) :]) for shape in shapes]
    known = all(wanted is None for wanted in demanded)
    pairs = zip(shapes, demanded, strict=True)
    return None if known else [list(shape) if want is None else want for shape, want in pairs]


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
    return bb.emit(relax.op.reshape(b, [*bb.shape(b), *[1] * trailing]))
