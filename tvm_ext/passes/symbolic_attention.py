"""Attention of symbolic sizes, or of few queries: keys and values are read as they lie in memory.

Before::

    keys = R.reshape(R.broadcast_to(R.reshape(k, [B, G, 1, T, D]), ..), [B, H, T, D])
    s = R.matmul(q, R.permute_dims(keys, [0, 1, 3, 2]))
    w = R.nn.softmax(R.add(R.multiply(s, 0.125), mask), -1)
    y = R.permute_dims(R.matmul(w, v), [0, 2, 1, 3])

After: ``y = R.call_tir(attention, (q, k, v, mask))``. Transposes around it are read through, and
heads that are repeated, also as rows: ``R.reshape(q, [B, G, H // G * S, D])``. Between the products
there may be any kernels that make one score of one score, and guards as in
:mod:`.tiled_attention`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import tvm_ffi
from tvm import ir, relax, s_tir, te, tirx
from tvm.s_tir import ScheduleError
from tvm.sym import Analyzer
from tvm.target import Target

from tvm_ext.ops.attention_symbolic import attention_symbolic
from tvm_ext.schedules.llvm.attention_symbolic import are_few
from tvm_ext.schedules.machine import Machine

from .compound import Compound, Kernel, Match
from .facts import axes_of, dtype_of, static_dims
from .fused import fused
from .graph import Graph
from .tiled_attention import softmax_of, untransposed

__all__ = ["SYMBOLIC_ATTENTION"]

_FLOAT = "float32"
_ANALYZER = Analyzer()


@dataclass(frozen=True)
class _View:
    """A tensor read through the transpose ``axes``, each head ``repeat`` times."""

    tensor: relax.Expr
    axes: tuple[int, ...]
    repeat: int = 1

    @property
    def dims(self) -> list[tirx.Expr]:
        """Of what is read."""
        dims = _dims(self.tensor)
        dims = [dims[axis] for axis in self.axes]
        return [*dims[:-3], dims[-3] * self.repeat, *dims[-2:]] if len(dims) > 2 else dims


@dataclass(frozen=True)
class _Attention:
    """``softmax(steps(q @ k^T)) @ v``; ``axes`` are those of its result.

    ``steps`` are the variables from the product to the scores of the softmax, ``operands`` what
    they read besides.
    """

    q: _View
    k: _View
    v: _View
    axes: tuple[int, ...]
    steps: tuple[relax.Var, ...]
    operands: tuple[relax.Expr, ...]
    guard: str | None

    @property
    def reads(self) -> tuple[relax.Expr, ...]:
        """The operands of the kernel."""
        return (self.q.tensor, self.k.tensor, self.v.tensor, *self.operands)


def _find(graph: Graph, var: relax.Var) -> Match | None:
    """The attention whose product with the values is ``var``, and what follows: its result."""
    product = graph.call(var, "relax.matmul")
    if product is None or dtype_of(var) != _FLOAT:
        return None
    weights, v = product.args
    rows = graph.call(weights, "relax.reshape") if graph.uses[weights] == 1 else None
    softmax, guard = softmax_of(graph, weights if rows is None else rows.args[0])
    if softmax is None:
        return None
    end = var if rows is None else graph.reader(var)
    if end is None or (rows is not None and not graph.is_call(end, "relax.reshape")):
        return None
    dims = _dims(end)
    steps = _path(graph, softmax.args[0], 2 if guard == "empty" else 1, rows is not None)
    views = None if steps is None or not dims else _views(graph, steps[0], v, dims)
    if steps is None or views is None:
        return None
    axes, reader = tuple(range(len(dims))), graph.reader(end)
    if reader is not None and graph.is_call(reader, "relax.permute_dims"):
        outer = axes_of(graph.values[reader])
        if outer[-1] == axes[-1]:  # columns stay the vector lanes
            end, axes = reader, outer
    attention = _Attention(*views, axes, tuple(steps), _besides(graph, steps), guard)
    return Match(graph, end, graph.between(end, attention.reads), detail=attention)


def _kernel(match: Match, target: Target) -> Kernel | None:
    attention: _Attention = match.detail
    length, lanes = attention.q.dims[-2], Machine.of(target).lanes(_FLOAT)
    static = all(static_dims(x) is not None for x in (match.root, *attention.reads[:3]))
    if static and not are_few(int(length), lanes):
        return None
    found = _element(match.graph, attention)
    if found is None:
        return None
    steps, dims = found
    views = attention.q, attention.k, attention.v
    compute = partial(
        attention_symbolic,
        axes=[*(view.axes for view in views), attention.axes],
        repeats=[view.repeat for view in views[1:]],
        steps=steps,
        guard=attention.guard,
    )
    return Kernel(attention.reads, compute, tuple(dims), name="attention")


#: Queries, keys or batch of symbolic number, or few queries, float32; others have another.
SYMBOLIC_ATTENTION = Compound("SymbolicAttention", _find, _kernel)


def _path(graph: Graph, expr: relax.Expr, uses: int, regrouped: bool) -> list[relax.Var] | None:
    """The variables from the product of queries and keys to ``expr``, which is read so often.

    ``regrouped``: the first is the product with its rows as heads again.
    """
    if not isinstance(expr, relax.Var) or graph.uses[expr] != uses or dtype_of(expr) != _FLOAT:
        return None
    inner = graph.values[expr].args[0] if _is_reshape(graph, expr) else None
    if graph.is_call(inner if regrouped else expr, "relax.matmul"):
        return [expr] if not regrouped or graph.uses[inner] == 1 else None
    dims = _dims(expr)
    for operand in _operands(graph.values.get(expr)):
        before = _dims(operand)
        if not dims or len(before) != len(dims) or not _equal(before[:-1], dims[:-1]):
            continue
        found = _path(graph, operand, 1, regrouped)
        if found is not None:
            return [*found, expr]
    return None


def _is_reshape(graph: Graph, expr: relax.Expr) -> bool:
    return graph.is_call(expr, "relax.reshape")


def _besides(graph: Graph, steps: Sequence[relax.Var]) -> tuple[relax.Expr, ...]:
    """What ``steps`` behind the first read that are none of them."""
    read = [x for step in steps[1:] for x in _operands(graph.values[step]) if x not in steps]
    return tuple(dict.fromkeys(read))


def _operands(value: relax.Expr | None) -> list[relax.Expr]:
    """The tensors that a call reads."""
    if not isinstance(value, relax.Call):
        return []
    is_kernel = getattr(value.op, "name", None) == "relax.call_tir"
    args = list(value.args[1].fields) if is_kernel else list(value.args)
    return [x for x in args if isinstance(getattr(x, "ty", None), relax.TensorType)]


def _views(
    graph: Graph, scores: relax.Var, v: relax.Expr, dims: list
) -> tuple[_View, _View, _View] | None:
    """Queries, keys and values of ``scores``, where these serve for a result of ``dims``."""
    regrouped = _is_reshape(graph, scores)
    product = graph.values[scores].args[0] if regrouped else scores
    q, keys = graph.values[product].args
    if regrouped:
        if not _is_reshape(graph, q):
            return None
        q = graph.values[q].args[0]
    if any(dtype_of(x) != _FLOAT or len(_dims(x)) < 2 for x in (q, keys, v)):
        return None
    query = _View(*untransposed(graph, q))
    given = _repeated(graph, keys, turned=True), _repeated(graph, v)
    key, value = (_grouped(view, dims) if regrouped else view for view in given)
    if key is None or value is None:
        return None
    views = query, key, value
    if any(len(view.dims) != len(dims) for view in views):
        return None
    *_, depth = query.dims
    count, size = key.dims[-2:]
    numbers = [isinstance(d, tirx.IntImm) and int(d) > 0 for d in (depth, size, value.dims[-1])]
    fits = _equal([*query.dims[:-1], size, count], [*dims[:-1], depth, value.dims[-2]])
    lead = all(_serves(view.dims[:-2], dims[:-2]) for view in (key, value))
    return views if all(numbers) and fits and lead else None


def _repeated(graph: Graph, expr: relax.Expr, turned: bool = False) -> _View:
    """``expr`` behind transposes and, between them, a repetition of heads; ``turned``: the last two
    axes are read in the other order."""
    tensor, axes = untransposed(graph, expr)
    if turned:
        axes = (*axes[:-2], axes[-1], axes[-2])
    rank = len(axes)
    flat = graph.call(tensor, "relax.reshape")
    wide = None if flat is None else graph.call(flat.args[0], "relax.broadcast_to")
    if flat is None or wide is None or rank < 3 or axes[-3] != rank - 3:
        return _View(tensor, axes)
    thin = graph.call(wide.args[0], "relax.reshape", "relax.expand_dims")
    if thin is None:
        return _View(tensor, axes)
    heads, dims, repeated = _dims(thin.args[0]), _dims(wide.args[0]), _dims(flat.args[0])
    if (len(heads), len(dims), len(repeated)) != (rank, rank + 1, rank + 1):
        return _View(tensor, axes)
    times, one = repeated[-3], dims[-3]
    stays = _equal([*heads[:-2], *heads[-2:]], [*repeated[:-3], *repeated[-2:]])
    if not stays or not isinstance(times, tirx.IntImm) or not _equal([one], [1]):
        return _View(tensor, axes)
    if not _equal(_dims(tensor), [*heads[:-3], heads[-3] * times, *heads[-2:]]):
        return _View(tensor, axes)
    inner, places = untransposed(graph, thin.args[0])
    return _View(inner, tuple(places[axis] for axis in axes), int(times))


def _grouped(view: _View, dims: list) -> _View | None:
    """``view``, whose heads are read by as many of ``dims`` as these are more."""
    if len(dims) < 3 or view.repeat != 1 or len(view.dims) != len(dims):
        return None
    heads, groups = dims[-3], view.dims[-3]
    if not all(isinstance(n, tirx.IntImm) and int(n) > 0 for n in (heads, groups)):
        return None
    return _View(view.tensor, view.axes, int(heads) // int(groups))


def _serves(given: list, wanted: list) -> bool:
    """Whether dims broadcast to others without stretching these."""
    return all(_equal([a], [b]) or _equal([a], [1]) for a, b in zip(given, wanted, strict=True))


def _equal(a: Sequence, b: Sequence) -> bool:
    pairs = zip(a, b, strict=True)
    return all(_ANALYZER.can_prove_equal(tirx.convert(x), tirx.convert(y)) for x, y in pairs)


def _dims(expr: relax.Expr) -> list[tirx.Expr]:
    """The dims of a tensor; none where nobody knows them."""
    return list(getattr(getattr(expr.ty, "shape", None), "values", None) or [])


def _element(graph: Graph, attention: _Attention) -> tuple[Callable, list[tirx.Var]] | None:
    """The score of one place after all steps, as a function of the tensor of scores, the place, the
    operands and numbers; and these numbers. None where a score depends on others."""
    first, *steps = attention.steps
    if not steps:
        return lambda scores, place: scores(*place), []
    match = Match(graph, steps[-1], tuple(steps))
    func, dims = fused(match, [first, *attention.operands], graph.module)
    sch = s_tir.Schedule(func)
    *inner, last = sch.get_child_blocks(sch.get_sblock(sch.mod["main"].body.block.name_hint))
    try:
        for block in inner:
            sch.compute_inline(block)
    except ScheduleError:
        return None
    func, block = sch.mod["main"], sch.get(last)
    buffers = [param for param in func.params if tirx.is_buffer_var(param)]
    numbers = [param for param in func.params if not tirx.is_buffer_var(param)]
    if not isinstance(block.body, tirx.BufferStore) or not _is_own(block, block.body, buffers[0]):
        return None

    def element(scores: te.Tensor, place: Sequence, *rest):
        tensors = [scores, *rest[: len(buffers) - 2]]
        known = dict(zip(numbers, rest[len(buffers) - 2 :], strict=True))
        for buffer, tensor in zip(buffers, tensors, strict=False):
            known |= zip(buffer.ty.shape, tensor.shape, strict=True)
        known |= zip((axis.var for axis in block.iter_vars), place, strict=True)

        def load(node: ir.TensorLoad):
            if node.source.same_as(buffers[0]):
                return scores(*place)
            at = (k for k, buffer in enumerate(buffers) if node.source.same_as(buffer))
            return tensors[next(at)](*node.indices)

        value = tvm_ffi.structural_map(block.body.value, (ir.TensorLoad, load))
        variables = [(old, new) for old, new in known.items() if isinstance(old, tirx.Var)]
        return tvm_ffi.structural_map(
            value,
            (tirx.Var, lambda v: next((new for old, new in variables if old.same_as(v)), v)),
        )

    return element, dims


def _is_own(block: s_tir.SBlock, store: tirx.BufferStore, scores: tirx.Var) -> bool:
    """Whether an element of the result depends on no score but that of its place."""
    axes = [axis.var for axis in block.iter_vars]
    own = True

    def note(load: ir.TensorLoad) -> None:
        nonlocal own
        own &= not load.source.same_as(scores) or all(map(_is_place, load.indices, axes))

    tvm_ffi.structural_walk(store.value, (ir.TensorLoad, note))
    places = zip(store.indices, axes, strict=True)
    return own and all(index.same_as(axis) for index, axis in places)


def _is_place(index: tirx.Expr, axis: tirx.Var) -> bool:
    """Whether ``index`` is ``axis``, or 0 where that is: along a dim of 1."""
    if isinstance(index, tirx.Select):
        return _equal([index.true_value], [0]) and index.false_value.same_as(axis)
    return index.same_as(axis) or _equal([index], [0])
