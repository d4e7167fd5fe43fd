"""Converters for If, Loop and Scan.

A branch of If is a block of the same function; where the branches differ in the rank of a result,
so that what follows differs, too, each holds all that follows. The body of a Loop or Scan is a
function of its own, which a driver calls once per trip (``tvm_ext.executors.loops``): no recursion,
no unrolling, memory does not grow with the trips.
"""

import logging
from dataclasses import dataclass
from itertools import zip_longest

import numpy as np
from tvm import relax, tirx

from tvm_ext.interface import TensorType
from tvm_ext.ops import scan as ops

from .. import host
from ..axes import placed
from ..graph import BodyFunction, Unfit
from ..known import as_expr
from ..precision import constant
from ..table import converter
from .shape import te_dims

_log = logging.getLogger(__name__)

_SINCE = (11, 13, 16, 19, 21, 23, 24, 25)


@converter("If", 1, *_SINCE)
def if_(bb, condition, *, then_branch, else_branch):
    known = constant(bb, condition)
    if known is not None:
        chosen = then_branch if known.item() else else_branch
        return tuple(bb.walk.inline(chosen, []))
    flag = bb.emit(relax.op.reshape(condition, []))
    results: list[list[relax.Expr]] = []

    def emit(graph, ranks=()):
        found = [host.hosted(bb, x) for x in bb.walk.inline(graph, [])]
        results.append([_of_rank(bb, x, rank) for x, rank in zip_longest(found, ranks)])
        return results[-1]

    branches = then_branch, else_branch
    blocks = [bb.branch(lambda g=graph: emit(g)) for graph in branches]
    try:
        ranks = _common_ranks(bb, results)
    except NotImplementedError as reason:
        return _with_rest(bb, flag, branches, reason)
    if any(ranks):
        results.clear()
        blocks = [bb.branch(lambda g=graph: emit(g, ranks)) for graph in branches]
    return tuple(_chosen(bb, flag, blocks, results))


def _common_ranks(bb, results):
    """The rank that both get of branches that differ in that of a result; else None."""
    ranks = [
        {x.ty.ndim for x in pair if isinstance(x.ty, relax.TensorType)}
        for pair in zip(*results, strict=True)
    ]
    outputs = bb.node.outputs
    common = [  # where a shape is declared, the model says which
        max(found) if len(found) > 1 and value.shape is None else None
        for value, found in zip(outputs, ranks, strict=True)
    ]
    bb.walk.widen({v: rank for v, rank in zip(outputs, common, strict=True) if rank})
    return common


def _of_rank(bb, x, rank):
    """``x`` with dims of 1 in front."""
    if rank is None or x.ty.ndim == rank:
        return x
    return bb.reshape(x, [*[1] * (rank - x.ty.ndim), *bb.shape(x)])


def _chosen(bb, flag, blocks, results):
    """The results of an If whose branches end in ``results``."""
    chosen = bb.emit(relax.If(flag, *blocks))
    return [
        host.like(
            bb,
            bb.emit(relax.TupleGetItem(chosen, k)),
            host.merged(host.kind_of(bb, one), host.kind_of(bb, other)),
        )
        for k, (one, other) in enumerate(zip(*results, strict=True))
    ]


def _with_rest(bb, flag, branches, reason):
    """The If with all that follows it in each branch, where a result has a rank of its own.

    A branch that this cannot follow is refused when it is taken, as it is by runtimes that find
    shapes as they run.
    """
    rest = bb.walk.rest()
    blocks, results, unfit = [None, None], [None, None], {}

    def emit(k):
        results[k] = bb.walk.after(branches[k], rest)
        return results[k]

    for k in range(2):
        try:
            blocks[k] = bb.branch(lambda k=k: emit(k))
        except Unfit as error:
            unfit[k] = error
    if len(unfit) == 2:
        raise NotImplementedError(f"{reason}; neither branch goes: {unfit[0]}; {unfit[1]}")
    for k, error in unfit.items():
        _log.warning(
            "the %s of %s is refused when it is taken: %s",
            ("then_branch", "else_branch")[k],
            bb.node.name or bb.node.outputs[0].name,
            error,
        )
        results[k] = results[1 - k]
        blocks[k] = bb.branch(lambda k=k, e=error: [_refused(bb, str(e), x) for x in results[k]])
    bb.walk.end(rest, _chosen(bb, flag, blocks, results))
    return ()


def _refused(bb, text, like):
    """Emit what ends the run, in the place of a value such as ``like``."""
    kind = host.kind_of(bb, like)
    call = host.call_for_tensor if isinstance(kind, TensorType) else host.call
    return call(bb, "refuse", text, kind=kind)


@converter("Loop", 1, *_SINCE)
def loop(bb, trips=None, condition=None, *state, body):
    trips = bb.const(np.array(np.iinfo("int64").max)) if trips is None else trips
    condition = bb.const(np.array(True)) if condition is None else condition

    def trip(iteration, flag, carried):
        going, *results = bb.walk.inline(body, [iteration, flag, *carried])
        return (bb.emit(relax.op.reshape(going, [])) if bb.rank(going) else going), results

    return run_trips(bb, body, trips, condition, list(state), trip)


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
    state, sequences = list(operands[:carried]), list(operands[carried:])
    axes = [
        placed(axis, bb.rank(x))
        for axis, x in zip(scan_input_axes or [0] * len(sequences), sequences, strict=True)
    ]
    backward = scan_input_directions or [0] * len(sequences)
    trips = bb.emit_te(ops.scan_trips, *te_dims(bb, sequences[0])[axes[0] : axes[0] + 1])
    results = _scan(bb, body, trips, state, sequences, axes, backward)
    stacked = results[carried:]
    places = scan_output_axes or [0] * len(stacked)
    reverse = scan_output_directions or [0] * len(stacked)
    length = bb.shape(sequences[0])[axes[0]]
    outputs = []
    for x, place, flipped in zip(stacked, places, reverse, strict=True):
        x = bb.match(x, [length, *bb.shape(x)[1:]])
        x = bb.emit(relax.op.flip(x, 0)) if flipped else x
        outputs.append(_move_first_axis(bb, x, placed(place, bb.rank(x))))
    return (*results[:carried], *outputs)


@converter("Scan", 8)
def scan_batched(bb, lengths, *operands, body, num_scan_inputs, directions=None):
    """The first version scans each member of a batch; shorter ones are followed by zeros."""
    carried = len(operands) - num_scan_inputs
    backward = directions or [0] * num_scan_inputs
    everything = [*operands, *([] if lengths is None else [lengths])]

    def member(iteration, flag, values):
        own = [bb.copy_knowledge(x, bb.emit_te(ops.scan_step, x, iteration, 0)) for x in values]
        state, sequences = own[:carried], own[carried : len(operands)]
        trips = bb.emit_te(ops.scan_trips, *te_dims(bb, sequences[0])[:1], *own[len(operands) :])
        results = _scan(bb, body, trips, state, sequences, [0] * num_scan_inputs, backward)
        rows = te_dims(bb, sequences[0])[0]
        padded = [bb.emit_te(ops.padded_rows, x, rows) for x in results[carried:]]
        return flag, [*results[:carried], *padded]

    trips = bb.emit_te(ops.scan_trips, *te_dims(bb, operands[carried])[:1])
    return run_trips(bb, body, trips, bb.const(np.array(True)), [], member, everything)


def _scan(bb, body, trips, state, sequences, axes, backward):
    """The final state, then what the trips gave, stacked along axis 0."""

    def trip(iteration, flag, values):
        state, (*whole, count) = values[: len(values) - len(axes) - 1], values[-len(axes) - 1 :]
        slices = [
            bb.copy_knowledge(x, bb.emit_te(ops.scan_step, x, iteration, axis, *[count] * reverse))
            for x, axis, reverse in zip(whole, axes, backward, strict=True)
        ]
        return flag, bb.walk.inline(body, [*state, *slices])

    fixed = [*sequences, trips]
    return run_trips(bb, body, trips, bb.const(np.array(True)), state, trip, fixed)


def _move_first_axis(bb, x, place):
    if place == 0:
        return x
    order = list(range(1, bb.rank(x)))
    order.insert(place, 0)
    return bb.emit(relax.op.permute_dims(x, order))


def run_trips(bb, graph, trips, condition, state, trip, constant=()):
    """Results of the driver: the final state, then what the trips gave, stacked.

    ``trip(iteration, flag, values)`` emits a trip; ``values`` are the state, then ``constant``.
    """
    body = _body(bb, graph, state, trip, constant)
    state, made, kinds, shapes, first = body.state, body.made, body.kinds, body.shapes, body.first
    without, other = "", _of_other_rank(state, shapes)
    for k in other:
        if _is_read(bb.node.outputs[k : k + 1]):
            without = without or _without_trips(bb, k, state[k].ty.ndim, len(shapes[k]))
        else:
            shapes[k] = None
    types = [
        relax.AnyType() if dims is None else relax.TensorType(ndim=len(dims), dtype=x.ty.dtype)
        for x, dims in zip(state, shapes, strict=True)
    ]
    stacked = _stacked(made, state)
    if not all(isinstance(x.ty, relax.TensorType) for x in stacked):
        raise NotImplementedError("trips give values to stack that are no tensors")
    if first and [x.ty.ndim for x in stacked] != [x.ty.ndim for x in _stacked(first, state)]:
        raise NotImplementedError("the first trip gives values of another rank to stack")
    empty = [bb.const(np.zeros([0, *_static_or_0(x.ty)], bb.dtype(x))) for x in stacked]
    types += [relax.TensorType(ndim=x.ty.ndim + 1, dtype=x.ty.dtype) for x in stacked]
    arguments = [
        bb.emit((first or made).function),
        bb.emit(made.function),
        bb.emit(relax.op.reshape(trips, [])),
        bb.emit(relax.op.reshape(condition, [])),
        relax.Tuple(state),
        relax.Tuple(empty),
        relax.Tuple([*constant, *made.captured]),
        host.text(bb.told("")),
        host.text(without),
    ]
    final = bb.emit(
        relax.op.call_builtin_with_ctx(
            "tvm_ext.loop", relax.Tuple(arguments), ty_args=relax.TupleType(types)
        )
    )
    items = [bb.emit(relax.TupleGetItem(final, k)) for k in range(len(types))]
    count = _count(bb, trips, condition) if body.stays and first is None else None
    count = bb.fresh_dim("trips") if count is None else count
    own = [x.ty if first is None else relax.TensorType(ndim=x.ty.ndim) for x in stacked]
    shapes += [[count, *_own_dims(bb, ty)] for ty in own]
    items = [
        x if dims is None else _sized(bb, x, dims) for x, dims in zip(items, shapes, strict=True)
    ]
    for source, item in zip([*state, *stacked], items, strict=True):
        bb.copy_knowledge(source, item)
    return tuple(
        host.like(bb, item, kind) if kind is not None else item
        for item, kind in zip_longest(items, kinds)
    )


def _count(bb, trips, condition):
    """How many trips there are, where that is known, of a loop that no trip ends."""
    count = bb.static(trips)
    if count is None or not _holds(bb, condition):
        return None
    return bb.simplify(tirx.max(as_expr(count.item()), as_expr(0)))


def _holds(bb, flag):
    """Whether ``flag`` is known to be true."""
    known = constant(bb, flag)
    return known is not None and bool(known.all())


def _sized(bb, x, dims):
    """``x`` of ``dims``, of which its shape binds those that are new.

    TVM drops a match_cast of a tensor that nothing reads, also where dims that it binds are read.
    """
    if any(isinstance(dim, tirx.Var) for dim in dims):
        new = [dim if isinstance(dim, tirx.Var) else bb.fresh_dim() for dim in dims]
        bb.bb.match_cast(bb.emit(relax.op.shape_of(x)), relax.ShapeType(new))
    return bb.match(x, dims)


def _stacked(made, state):
    """What a trip gives beside the condition and the state."""
    return made.results[1 + len(state) :]


def _of_other_rank(state, shapes):
    """Which tensors of the state begin with another rank than they go on with."""
    pairs = enumerate(zip(state, shapes, strict=True))
    return [k for k, (x, dims) in pairs if dims is not None and x.ty.ndim != len(dims)]


def _is_read(values):
    return any(value.uses() or value.is_graph_output() for value in values)


def _without_trips(bb, k, begun, rank):
    """Why there has to be a trip: it gives a value that is read later its rank."""
    name = bb.node.outputs[k].name
    reason = f"there is no trip, and {name!r} stays as it was: of rank {begun}, not of {rank}"
    return bb.told(reason)


@dataclass(frozen=True)
class _Body:
    """The body of a loop.

    Attributes:
        state: what the first trip reads.
        made: its function.
        kinds, shapes: those of the state: values that are no tensors have a kind and no shape,
            tensors the reverse.
        first: the function of the first trip, where that gives a tensor another rank.
        stays: whether no trip changes the condition.
    """

    state: list
    made: BodyFunction
    kinds: list
    shapes: list
    first: BodyFunction | None
    stays: bool


def _body(bb, graph, state, trip, constant):
    """The body, made again until it holds for all trips: what a trip changes is not known of the
    next one."""
    scalars = [relax.TensorType([], "int64"), relax.TensorType([], "bool")]
    state = [host.hosted(bb, x) for x in state]
    kinds = [_first_kind(bb, graph, k, x) for k, x in enumerate(state)]
    shapes = [None if kind else bb.shape(x) for kind, x in zip(kinds, state, strict=True)]
    varying: set[tuple[int, int]] = set()  # (state, axis) whose dim a trip changes
    first, stays = None, False

    def emit(params):
        nonlocal stays
        for source, param, kind in zip_longest([*state, *constant], params[2:], kinds):
            bb.copy_knowledge(source, param)
            if kind is not None:
                host.like(bb, param, kind)
        flag, results = trip(params[0], params[1], params[2:])
        stays = flag.same_as(params[1]) or _holds(bb, flag)
        return [flag, *(host.hosted(bb, x) for x in results)]

    while True:
        types = [
            relax.AnyType() if dims is None else relax.TensorType(dims, bb.dtype(x))
            for dims, x in zip(shapes, state, strict=True)
        ]
        fixed = [x.ty for x in constant]
        made = bb.walk.function("loop_body", graph, [*scalars, *types, *fixed], emit)
        results = made.results[1 : 1 + len(state)]
        widened = _widened(bb, state, results, kinds, shapes)
        shapes = [None if kind else dims for kind, dims in zip(widened, shapes, strict=True)]
        other = _of_other_rank(results, shapes)
        changed = _changed_dims(bb, made.parameters[2:], results, shapes)
        if changed <= varying and widened == kinds and not other:
            return _Body(state, made, kinds, shapes, first, stays)
        if other and first:
            raise NotImplementedError("the rank of a carried value changes after the first trip")
        if other:
            first = made
        else:
            bb.walk.discard(made.function)
        for k in other:
            shapes[k] = [None] * results[k].ty.ndim
            changed |= {(k, axis) for axis in range(results[k].ty.ndim)}
        for k, axis in changed:
            shapes[k][axis] = bb.parameter_dim("carried")
        varying |= changed
        kinds = widened


def _widened(bb, state, results, kinds, shapes):
    """The kinds of the state that hold before and after a trip."""
    return [
        kind if dims is not None and isinstance(x.ty, relax.TensorType)
        else host.merged(kind or host.kind_of(bb, old), host.kind_of(bb, x))
        for old, x, kind, dims in zip(state, results, kinds, shapes, strict=True)
    ]  # fmt: skip


def _first_kind(bb, graph, k, value):
    """The kind of a carried value before the first trip; None of tensors."""
    if isinstance(value.ty, relax.TensorType):
        return None
    kind = host.kind_of(bb, value)
    if kind.element is None:  # of Loop, whose body has two inputs before the state
        declared = host.declared_kind(graph.inputs[2 + k])
        if not isinstance(declared, TensorType):  # onnx_ir infers only the element type of these
            kind = host.merged(kind, declared)
    return kind


def _changed_dims(bb, before, results, shapes):
    """(tensor, axis) of the dims that are not provably the same after a trip, which leaves the rank
    as it is."""
    changed = set()
    for k, (old, result) in enumerate(zip(before, results, strict=False)):
        if shapes[k] is None:
            continue
        new = result.ty
        if old.ndim != new.ndim:
            continue
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
