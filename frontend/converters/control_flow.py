"""Converters for If, Loop and Scan.

A branch of If is a block of the same function. The body of a Loop or Scan is a function of its
own, which a driver calls once per trip (``tvm_ext.executors.loops``): no recursion, no unrolling,
memory does not grow with the trips.
"""

import numpy as np
from tvm import relax, tirx

from tvm_ext.ops import scan as ops

from ..axes import placed
from ..table import converter
from .shape import te_dims

_SINCE = (11, 13, 16, 19, 21, 23, 24, 25)


@converter("If", 1, *_SINCE)
def if_(bb, condition, *, then_branch, else_branch):
    known = bb.static(condition)
    if known is not None:
        chosen = then_branch if known.item() else else_branch
        return tuple(bb.walk.inline(chosen, []))
    flag = bb.emit(relax.op.reshape(condition, []))
    blocks = [
        bb.branch(lambda graph=graph: bb.walk.inline(graph, []))
        for graph in (then_branch, else_branch)
    ]
    result = bb.emit(relax.If(flag, *blocks))
    return tuple(bb.emit(relax.TupleGetItem(result, k)) for k in range(len(bb.node.outputs)))


@converter("Loop", 1, *_SINCE)
def loop(bb, trips=None, condition=None, *state, body):
    trips = bb.const(np.array(np.iinfo("int64").max)) if trips is None else trips
    condition = bb.const(np.array(True)) if condition is None else condition

    def trip(iteration, flag, carried):
        going, *results = bb.walk.inline(body, [iteration, flag, *carried])
        return bb.emit(relax.op.reshape(going, [])), results

    return _run(bb, body, trips, condition, list(state), trip)


@converter("Scan", 9, 11, 16, 19, 21, 23, 24, 25)
def scan(
    bb,
    *operands,
    body,
    num_scan_inputs,
    scan_input_axes=None,
    scan_input_directions=None,
    scan_output_axes=None,
    scan_output_directions=None,
):
    carried = len(operands) - num_scan_inputs
    state, sequences = list(operands[:carried]), operands[carried:]
    axes = [
        placed(axis, bb.rank(x))
        for axis, x in zip(scan_input_axes or [0] * len(sequences), sequences, strict=True)
    ]
    backward = scan_input_directions or [0] * len(sequences)
    length = bb.shape(sequences[0])[axes[0]]

    def trip(iteration, flag, values):
        state, whole = values[:carried], values[carried:]
        slices = [
            bb.emit_te(ops.scan_step, x, iteration, axis, bool(reverse))
            for x, axis, reverse in zip(whole, axes, backward, strict=True)
        ]
        return flag, bb.walk.inline(body, [*state, *slices])

    trips = bb.emit_te(ops.scan_trips, *te_dims(bb, sequences[0])[axes[0] : axes[0] + 1])
    results = _run(bb, body, trips, bb.const(np.array(True)), state, trip, list(sequences))
    stacked = results[carried:]
    places = scan_output_axes or [0] * len(stacked)
    reverse = scan_output_directions or [0] * len(stacked)
    outputs = []
    for x, place, flipped in zip(stacked, places, reverse, strict=True):
        x = bb.match(x, [length, *bb.shape(x)[1:]])
        x = bb.emit(relax.op.flip(x, 0)) if flipped else x
        outputs.append(_move_first_axis(bb, x, placed(place, bb.rank(x))))
    return (*results[:carried], *outputs)


def _move_first_axis(bb, x, place):
    if place == 0:
        return x
    order = list(range(1, bb.rank(x)))
    order.insert(place, 0)
    return bb.emit(relax.op.permute_dims(x, order))


def _run(bb, graph, trips, condition, state, trip, constant=()):
    """Results of the driver: the final state, then what the trips gave, stacked.

    ``trip(iteration, flag, values)`` emits a trip; ``values`` are the state, then ``constant``.
    """
    scalars = [relax.TensorType([], "int64"), relax.TensorType([], "bool")]
    shapes = [bb.shape(x) for x in state]
    fixed = [x.ty for x in constant]

    def emit(params):
        flag, results = trip(params[0], params[1], params[2:])
        return [flag, *results]

    varying: set[tuple[int, int]] = set()  # (state, axis) whose dim a trip changes
    while True:
        types = [relax.TensorType(dims, bb.dtype(x)) for dims, x in zip(shapes, state, strict=True)]
        made = bb.walk.function("loop_body", graph, [*scalars, *types, *fixed], emit)
        changed = _changed_dims(bb, made.parameters[2:], made.results[1 : 1 + len(state)])
        if changed <= varying:
            break
        varying |= changed
        bb.walk.discard(made.function)
        for k, axis in changed:
            shapes[k][axis] = bb.fresh_dim("carried")

    stacked = made.results[1 + len(state) :]
    empty = [bb.const(np.zeros([0, *_static_or_0(ty)], str(ty.dtype.dtype))) for ty in stacked]
    outputs = [relax.TensorType(ndim=ty.ndim, dtype=ty.dtype) for ty in types]
    outputs += [relax.TensorType(ndim=ty.ndim + 1, dtype=ty.dtype) for ty in stacked]
    arguments = [
        bb.emit(made.function),
        bb.emit(relax.op.reshape(trips, [])),
        bb.emit(relax.op.reshape(condition, [])),
        relax.Tuple(state),
        relax.Tuple(empty),
        relax.Tuple([*constant, *made.captured]),
    ]
    final = bb.emit(
        relax.op.call_builtin_with_ctx(
            "tvm_ext.loop", relax.Tuple(arguments), ty_args=relax.TupleType(outputs)
        )
    )
    items = [bb.emit(relax.TupleGetItem(final, k)) for k in range(len(outputs))]
    count = bb.fresh_dim("trips")
    shapes += [[count, *_own_dims(bb, ty)] for ty in stacked]
    return tuple(bb.match(x, dims) for x, dims in zip(items, shapes, strict=True))


def _changed_dims(bb, before, after):
    """(tensor, axis) of the dims that are not provably the same after a trip."""
    changed = set()
    for k, (old, new) in enumerate(zip(before, after, strict=False)):
        if old.ndim != new.ndim:
            raise NotImplementedError("the rank of a carried value changes between trips")
        dims = [None] * new.ndim if new.shape is None else new.shape.values
        pairs = zip(old.shape.values, dims, strict=True)
        changed |= {
            (k, axis) for axis, (a, b) in enumerate(pairs) if b is None or not bb.equal(a, b)
        }
    return changed


def _static_or_0(ty):
    if ty.shape is None:
        return [0] * ty.ndim
    return [int(d) if isinstance(d, tirx.IntImm) else 0 for d in ty.shape.values]


def _own_dims(bb, ty):
    """Dims of a result outside of the function that computes it."""
    dims = [None] * ty.ndim if ty.shape is None else ty.shape.values
    return [int(d) if isinstance(d, tirx.IntImm) else bb.fresh_dim("stacked") for d in dims]
