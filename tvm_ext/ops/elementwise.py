"""From a scalar formula to a TE kernel that broadcasts.

An element-wise operator is written once, on one element. ``elementwise`` gives it tensors: it
broadcasts as ONNX (and numpy) do, also along dims known only at run time, and computes float16
and bfloat16 in float32, rounding once at the end.
"""

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

from tvm import te, tirx
from tvm.sym import Analyzer

from .formula import formula, once

__all__ = [
    "broadcast_dim", "broadcast_index", "broadcast_shape", "dtype_of", "elementwise",
    "float_compute",
]  # fmt: skip

Dim = Any  # an int or a tirx.Expr

NARROW_FLOATS = ("float16", "bfloat16")


def dtype_of(value: te.Tensor | tirx.Expr) -> str:
    """The element type of a tensor or the type of a scalar, by name."""
    return str((value.dtype if isinstance(value, te.Tensor) else value.ty).dtype)


def float_compute(dtype: str) -> str:
    """The type in which arithmetic on ``dtype`` is done: float32 for narrower floats."""
    return "float32" if dtype in NARROW_FLOATS else dtype


def elementwise(
    scalar: Callable[..., tirx.Expr], name: str | None = None
) -> Callable[..., te.Tensor]:
    """A TE function of broadcasting tensors from a function of one element of each.

    Operands that are no tensors, and keyword arguments, pass through to ``scalar``. A float
    result has the type of the first float tensor; other results (bool, integers) keep the
    type that ``scalar`` gives. The result has ``shape``, where that is given.
    """

    @wraps(scalar)
    def compute(
        *tensors: te.Tensor, shape: Sequence[Dim] | None = None, **attributes: object
    ) -> te.Tensor:
        if shape is None:
            shape = broadcast_shape(*(x.shape for x in tensors if isinstance(x, te.Tensor)))
        dtype = next((dtype_of(x) for x in tensors if "float" in dtype_of(x)), "")

        def narrowed(*operands):
            result = scalar(*map(once, operands), **attributes)
            is_narrowed = dtype in NARROW_FLOATS and dtype_of(result) == "float32"
            # By name: TVM writes a cast to bfloat16 with several copies of its operand.
            return once(result).astype(dtype) if is_narrowed else result

        evaluate = formula(narrowed)

        def element(*index):
            operands = (
                _broadcast_element(x, index, shape)
                if isinstance(x, te.Tensor)
                else x.astype(dtype_of(tensors[0]))
                for x in tensors
            )
            return evaluate(*map(_widened, operands))

        return te.compute(shape, element, name=compute.__name__)

    compute.__name__ = name or scalar.__name__
    return compute


def broadcast_shape(*shapes: Sequence) -> list:
    """The common shape; ``[a, 1, n] [3, n] -> [a, 3, n]``."""
    rank = max(len(shape) for shape in shapes)
    padded = [[1] * (rank - len(shape)) + list(shape) for shape in shapes]
    result = padded[0]
    for other in padded[1:]:
        result = [broadcast_dim(a, b) for a, b in zip(result, other, strict=True)]
    return result


def broadcast_dim(a: int | tirx.Expr, b: int | tirx.Expr) -> int | tirx.Expr:
    """What dims ``a`` and ``b`` broadcast to; an expression where that is known at run time.

    Raises:
        ValueError: they are known not to fit.
    """
    if _is_static(a) and _is_static(b) and 1 not in (int(a), int(b)) and int(a) != int(b):
        raise ValueError(f"dims {a} and {b} do not broadcast")
    if _is_one(a):
        return b
    if _is_one(b) or _equal(a, b) or _is_static(a):
        return a
    if _is_static(b) or _is_stretched(a, b):
        return b
    return a if _is_stretched(b, a) else tirx.Select(a == 1, b, a)


def _is_stretched(a: tirx.Expr, b: tirx.Expr) -> bool:
    """Whether ``a`` is known to be 1 where ``b`` is: ``min(n, 64)`` beside ``n``.

    Of dims that fit, the result is then ``b``, whatever it is.
    """
    if not isinstance(b, tirx.Var):
        return False
    analyzer = Analyzer()
    analyzer.bind(b, tirx.const(1, "int64"))
    return bool(analyzer.can_prove_equal(a, 1))


def _broadcast_element(x: te.Tensor, index: Sequence, shape: Sequence) -> tirx.Expr:
    offset = len(shape) - len(x.shape)
    return x(*map(broadcast_index, x.shape, index[offset:], shape[offset:]))


def broadcast_index(dim: Dim, i: tirx.Expr, extent: Dim) -> Dim:
    """Where a dim that broadcasts to ``extent`` is read for index ``i`` of that."""
    if _equal(dim, extent):
        return i
    if _is_one(dim):
        return 0
    # Known at run time only.
    return tirx.Select(dim == 1, tirx.const(0, "int64"), i.astype("int64"))


def _widened(x: tirx.Expr) -> tirx.Expr:
    dtype = dtype_of(x)
    return x if float_compute(dtype) == dtype else x.astype(float_compute(dtype))


def _is_static(dim: int | tirx.Expr) -> bool:
    return isinstance(dim, int | tirx.IntImm)


def _is_one(dim: int | tirx.Expr) -> bool:
    return _is_static(dim) and int(dim) == 1


def _equal(a: int | tirx.Expr, b: int | tirx.Expr) -> bool:
    if _is_static(a) and _is_static(b):
        return int(a) == int(b)
    return bool(Analyzer().can_prove_equal(a, b))
