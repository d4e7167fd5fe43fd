"""Running sums, sorts and the largest of many as kernels that read their operand once.

Before: ``R.cumsum(x, axis=1)``, ``R.topk(x, k)``
After:  ``R.call_tir(running, (x,))``, ``R.call_tir(top_k, (x,))``

For CPUs: on GPUs TVM has scans and sorts of many threads.
"""

from functools import partial
from operator import add, mul

from tvm import tirx
from tvm.relax.dpl import is_op, wildcard
from tvm.target import Target

from tvm_ext.ops.cumulative import running
from tvm_ext.ops.radix_sort import argsort, sort_leading
from tvm_ext.ops.top_k import top_k

from .compound import Compound, Kernel, Match, Pattern

__all__ = ["ARGSORT", "RUNNING", "TOP_K"]

# Elements of a row for each that is wanted from which on a heap, of so many at most, is faster than
# a sort.
_FEW, _HEAP = 8, 512
_KEYED = ("float64", "float32", "float16", "bfloat16", "int64", "int32", "int16", "int8")
_STARTS = {"relax.cumsum": (add, 0), "relax.cumprod": (mul, 1)}

_ROWS, _MANY = wildcard(), wildcard()
_SCAN = is_op("relax.cumsum")(_ROWS) | is_op("relax.cumprod")(_ROWS)
_TOP = is_op("relax.topk")(_MANY)
_SORTED = is_op("relax.argsort")(_MANY)


def _running(match: Match, _target: Target) -> Kernel | None:
    """Of ``[before, extent, after]``, the form that the converter gives it."""
    call, x = match["scan"], match["x"]
    if call.ty.ndim != 3 or int(call.attrs.axis) != 1 or match.dtype() != match.dtype("x"):
        return None
    combine, start = _STARTS[call.op.name]
    compute = partial(running, combine=combine, start=start, exclusive=bool(call.attrs.exclusive))
    return Kernel((x,), compute, name=call.op.name.removeprefix("relax."))


def _top_k(match: Match, _target: Target) -> Kernel | None:
    """Few of many, of 32 bits at most, by a heap; others by counting their digits."""
    call, x = match["top"], match["x"]
    k, axis = int(call.attrs.k), int(call.attrs.axis) % x.ty.ndim
    if match.dtype("x") not in _KEYED or (call.attrs.ret_type, call.attrs.dtype) != _BOTH:
        return None
    largest, along = bool(call.attrs.largest), x.ty.shape.values[axis]
    few = isinstance(along, tirx.IntImm) and 0 < k * _FEW <= int(along) and k <= _HEAP
    if few and "64" not in match.dtype("x"):
        return Kernel((x,), top_k, (axis, k, largest), name="top_k")
    return Kernel((x,), sort_leading, (axis, k if k > 0 else None, largest), name="top_k")


def _argsort(match: Match, _target: Target) -> Kernel | None:
    call, x = match["sorted"], match["x"]
    if match.dtype("x") not in _KEYED:
        return None
    axis, dtype = int(call.attrs.axis) % x.ty.ndim, match.dtype()
    return Kernel((x,), argsort, (axis, bool(call.attrs.descending), dtype), name="argsort")


_BOTH = ("both", "int64")

RUNNING = Compound("RunningSum", Pattern(_SCAN, {"x": _ROWS, "scan": _SCAN}), _running)
TOP_K = Compound("TopK", Pattern(_TOP, {"x": _MANY, "top": _TOP}), _top_k)
ARGSORT = Compound("ArgSort", Pattern(_SORTED, {"x": _MANY, "sorted": _SORTED}), _argsort)
