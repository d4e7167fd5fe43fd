"""Running sums and the largest of many as kernels that read their operand once.

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
from tvm_ext.ops.top_k import top_k

from .compound import Compound, Kernel, Match, Pattern

__all__ = ["RUNNING", "TOP_K"]

# Elements of a row for each that is wanted, from which on a heap is faster than a sort.
_FEW = 8
_KEYED = ("float32", "float16", "bfloat16", "int32", "int16", "int8")
_STARTS = {"relax.cumsum": (add, 0), "relax.cumprod": (mul, 1)}

_ROWS, _MANY = wildcard(), wildcard()
_SCAN = is_op("relax.cumsum")(_ROWS) | is_op("relax.cumprod")(_ROWS)
_TOP = is_op("relax.topk")(_MANY)


def _running(match: Match, _target: Target) -> Kernel | None:
    """Of ``[before, extent, after]``, the form that the converter gives it."""
    call, x = match["scan"], match["x"]
    if call.ty.ndim != 3 or int(call.attrs.axis) != 1 or match.dtype() != match.dtype("x"):
        return None
    combine, start = _STARTS[call.op.name]
    compute = partial(running, combine=combine, start=start, exclusive=bool(call.attrs.exclusive))
    return Kernel((x,), compute, name=call.op.name.removeprefix("relax."))


def _top_k(match: Match, _target: Target) -> Kernel | None:
    """Few of many: more, or rows of symbolic length, are sorted."""
    call, x = match["top"], match["x"]
    k, axis = int(call.attrs.k), int(call.attrs.axis) % x.ty.ndim
    along = None if x.ty.shape is None else x.ty.shape.values[axis]
    if not isinstance(along, tirx.IntImm) or not 0 < k * _FEW <= int(along):
        return None
    if match.dtype("x") not in _KEYED or (call.attrs.ret_type, call.attrs.dtype) != _BOTH:
        return None
    return Kernel((x,), top_k, (axis, k, bool(call.attrs.largest)), name="top_k")


_BOTH = ("both", "int64")

RUNNING = Compound("RunningSum", Pattern(_SCAN, {"x": _ROWS, "scan": _SCAN}), _running)
TOP_K = Compound("TopK", Pattern(_TOP, {"x": _MANY, "top": _TOP}), _top_k)
