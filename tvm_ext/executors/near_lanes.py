"""Vectors whose lanes lie near each other are loaded whole and shuffled.

LLVM loads the lanes of any other index than a ramp one by one.

Before: ``x[[4 * i, 4 * i, 4 * i + 1, 4 * i + 1, ..]]``, of ``y[j] = x[j // 2]`` in eight lanes
After:  ``T.Shuffle([x[4 * i : 4 * i + 4]], [0, 0, 1, 1, ..])``
"""

import tvm
import tvm_ffi
from tvm import IRModule, ir, tirx
from tvm.ir import TensorLoad
from tvm.sym import Analyzer

from ..schedules.statements import reads_memory

__all__ = ["lane", "load_near_lanes"]

# Vectors that a load may reach over for the lanes of one.
_REACH = 2


@tvm.transform.module_pass(opt_level=0, name="LoadNearLanes")
def load_near_lanes(module: IRModule, _context: object) -> IRModule:
    """The module pass, on kernels whose vectors are made."""
    functions = {
        symbol: function.with_body(tvm_ffi.structural_map(function.body, (TensorLoad, _shuffled)))
        if isinstance(function, tirx.PrimFunc)
        else function
        for symbol, function in module.functions_items()
    }
    return IRModule(functions, attrs=module.attrs)


def _shuffled(load: TensorLoad) -> ir.Expr:
    *outer, index = load.indices
    lanes = tvm.DataType(str(load.ty.dtype)).lanes
    if isinstance(index, tirx.Ramp | tirx.Broadcast) or lanes < 2 or reads_memory(index):
        return load
    first = lane(index, 0)
    offsets = [_ANALYZER.simplify(lane(index, k) - first) for k in range(lanes)]
    if not all(isinstance(offset, tirx.IntImm) for offset in offsets):
        return load
    low = min(map(int, offsets))
    places = [int(offset) - low for offset in offsets]
    reach = max(places) + 1
    start = _ANALYZER.simplify(first + low)
    if reach == 1:
        return tirx.Broadcast(tirx.BufferLoad(load.source, [*outer, start]), lanes)
    if reach > _REACH * lanes:
        return load
    near = tirx.BufferLoad(load.source, [*outer, tirx.Ramp(start, tirx.const(1, start.ty), reach)])
    # A shuffle gives at most as many lanes as it is given.
    return tirx.Shuffle([near] * -(-lanes // reach), [tirx.const(p, "int32") for p in places])


def lane(value: ir.Expr, k: int) -> ir.Expr:
    """Lane ``k`` of a vector; of a number itself."""
    if "x" not in str(getattr(value.ty, "dtype", "")):
        return value
    if isinstance(value, tirx.Ramp):
        return value.base + value.stride * k
    if isinstance(value, tirx.Broadcast):
        return value.value
    if isinstance(value, tirx.Var) or _is_of_vectors(value):
        return tirx.Shuffle([value], [tirx.const(k, "int32")])
    if isinstance(value, TensorLoad):
        *rest, last = value.indices
        return tirx.BufferLoad(value.source, [*rest, lane(last, k)])
    if isinstance(value, tirx.Cast):
        return lane(value.value, k).astype(str(value.ty.dtype).split("x")[0])
    if isinstance(value, tirx.Select):
        parts = value.condition, value.true_value, value.false_value
        return tirx.Select(*(lane(part, k) for part in parts))
    if isinstance(value, tirx.Not):
        return tirx.Not(lane(value.a, k))
    if isinstance(value, tirx.Let):
        return tirx.Let(value.var, value.value, lane(value.body, k))
    if isinstance(value, ir.Call):
        dtype = str(value.ty.dtype).split("x")[0]
        return tirx.call_intrin(dtype, value.op, *(lane(argument, k) for argument in value.args))
    return type(value)(lane(value.a, k), lane(value.b, k))


def _is_of_vectors(value: ir.Expr) -> bool:
    """Whether ``value`` is an element of an array of vectors."""
    return isinstance(value, TensorLoad) and "x" not in str(value.indices[-1].ty.dtype)


_ANALYZER = Analyzer()
