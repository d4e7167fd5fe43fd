"""A transposed convolution as a convolution that gives all phases of the output, and a move.

Before::

    y = ConvTranspose <strides = [s, s], pads = [p, p, p, p]> (x, w, b)     w[C, M, k, k]

After, with ``t = ceil(k / s)``::

    c = Conv <pads = [...]> (x, v, e)                   v[s s M, C, t, t], b repeated s s times
    d = DepthToSpace <mode = "DCR"> (c)
    y = Slice (d, ...)                                  where more is left than y has

The outputs ``s m + r`` of a phase ``r`` see the taps ``r, r + s, ...`` of the window at the inputs
``m, m - 1, ...``: the same sums as before, and taps of zero where ``s`` does not divide ``k``. Of
two strides of 2 each phase of many filters is a convolution of its own then, without these taps,
and ``c`` their Concat. Of several groups the phases of a filter follow each other, and the mode is
CRD. Other than two equal strides are moved by PhasesToSpace, of several groups by Reshape and
Transpose. Of weights that are known at run time only, ``v`` is computed then. Dilations of a stride
of 1 are those of the convolution; of others ``w`` gets zeros between its taps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from math import prod

import numpy as np
import onnx_ir as ir
from onnxscript.rewriter import MatchContext

from .rule import FLOATS, FUSED, Rule, constant, rank

__all__ = ["ConvTransposeIntoConv", "groups_of"]

_MODES = 11  # the opset from which on DepthToSpace has modes, and Pad its pads as an input
_BOUNDS = 10  # that from which on Slice has its bounds as inputs
_MANY = 16  # filters that fill vectors by themselves


@dataclass(frozen=True)
class _Axis:
    """One spatial axis: the stride, taps, pads and output padding of the transposed convolution.

    ``apart``: from tap to tap, of a stride of 1; of others, taps of zero lie between.
    """

    stride: int
    taps: int
    apart: int
    before: int
    after: int
    extra: int

    @property
    def depth(self) -> int:
        """Taps of a phase."""
        return -(-self.taps // self.stride)

    @property
    def pads(self) -> tuple[int, int]:
        """Of the convolution: its first output is the first that a phase gives and y keeps."""
        first = (self.depth - 1) * self.apart - self.before // self.stride
        return first, (self._reach - 1) // self.stride

    @property
    def cut(self) -> tuple[int, int]:
        """What is left over before and after y."""
        return self.before % self.stride, -self._reach % self.stride

    @property
    def _reach(self) -> int:
        """How many outputs there are from the first that the last input gives."""
        return self.extra + (self.taps - 1) * self.apart + 1 - self.after


class ConvTransposeIntoConv(Rule):
    """``ConvTranspose(x, w, b) -> Slice(DepthToSpace(Conv(x, v, e)))``."""

    def pattern(self, op, x):
        return op.ConvTranspose(x, _allow_other_inputs=True, _outputs=["spread"])

    def refusal(self, context: MatchContext, x: ir.Value, spread: ir.Value) -> str | None:
        node = spread.producer()
        weight, *bias = self._parameters(node)
        if x.dtype not in FLOATS or weight is None or any(b is None for b in bias):
            return "not numbers of the model's types, or quantised ones that are not constant"
        if rank(x) not in (3, 4, 5) or weight.shape is None or len(weight.shape) != rank(x):
            return "other than 1 to 3 spatial dims"
        if not all(isinstance(size, int) for size in weight.shape):
            return "weights of a size known only at run time"
        if 0 in weight.shape:
            return "weights without elements"
        known = all(isinstance(value, np.ndarray) for value in (weight, *bias))
        if _opset(node) < _MODES and (groups_of(node) > 1 or not known):
            return f"before opset {_MODES} DepthToSpace has one mode, and Pad constant pads"
        if isinstance(weight, ir.Value) and _has_gaps(node):
            return "dilations of strides, and weights of run time"
        if "output_shape" in node.attributes and not all(_static(x)):
            return "an output_shape of an input of unknown size"
        if groups_of(node) > 1 and weight.shape[1] == 1:
            return "groups of one filter, whose taps are few enough to gather"
        axes = _axes(node, x, weight)
        if any(min(axis.pads) < 0 for axis in axes):
            return "pads cut off whole pixels of the input"
        moved = groups_of(node) > 1 and len(axes) > 1 and not _is_square(axes)
        if moved and not all(_static(x)):
            return "strides that differ, of several groups, need static sizes"
        return None

    def rewrite(self, op, x: ir.Value, spread: ir.Value) -> ir.Value:
        node = spread.producer()
        weight, *bias = self._parameters(node)
        axes = _axes(node, x, weight)
        phases = prod(axis.stride for axis in axes)
        groups = groups_of(node)
        known = isinstance(weight, np.ndarray)
        if known:
            weight = _with_gaps(weight, axes)
        filters = (_filters if known else partial(_computed_filters, op))(weight, axes, groups)

        def convolved(part, pads, bias):
            part = self._operand(op, node, part) if known else part
            operands = [part, *(_operand(op, b) for b in bias)]
            return _convolved(op, x, operands, pads, [axis.apart for axis in axes], groups)

        if groups == 1 and _leaves_taps(axes) and weight.shape[1] >= _MANY:
            cuts = (_cut(axes, phase, weight.shape[1]) for phase in np.ndindex(2, 2))
            convs = (convolved(_part(op, filters, first), pads, bias) for first, pads in cuts)
            y = op.Concat(*convs, axis=1)
        else:
            pads = [axis.pads for axis in axes]
            y = convolved(filters, pads, [_repeated(op, b, phases, groups) for b in bias])
        if phases > 1:
            y = _spread(op, y, spread, x, axes, weight.shape[1] * groups)
        starts, cuts = zip(*(axis.cut for axis in axes), strict=True)
        if not any((*starts, *cuts)):
            return y
        ends = [-cut if cut else np.iinfo(np.int64).max for cut in cuts]
        bounds = {"starts": list(starts), "ends": ends, "axes": list(range(2, 2 + len(axes)))}
        if _opset(node) < _BOUNDS:
            return op.Slice(y, **bounds)
        return op.Slice(y, *(_const(op, np.array(bound)) for bound in bounds.values()))

    def _parameters(self, node: ir.Node) -> list[np.ndarray | ir.Value | None]:
        """The weights and the bias, if there is one, as arrays where they are constant.

        None for what does not serve.
        """
        given = [value for value in node.inputs[1:] if value is not None]
        return [value if constant(value) is None else constant(value) for value in given]

    def _operand(self, op, node: ir.Node, filters: np.ndarray) -> ir.Value:
        """Weights of a convolution in the place of ``node``."""
        return _const(op, filters)


def groups_of(node: ir.Node) -> int:
    """Those of a convolution."""
    return node.attributes.get_int("group", 1)


def _opset(node: ir.Node) -> int:
    return node.graph.opset_imports[""]


def _has_gaps(node: ir.Node) -> bool:
    """Whether there are dilations along axes with strides."""
    strides, dilations = (node.attributes.get_ints(name, []) for name in ("strides", "dilations"))
    return any(stride > 1 < apart for stride, apart in zip(strides, dilations, strict=False))


def _axes(node: ir.Node, x: ir.Value, weight: np.ndarray | ir.Value) -> list[_Axis]:
    """The spatial axes of a ConvTranspose."""
    taps = weight.shape[2:]
    count = len(taps)
    strides, dilations = (
        node.attributes.get_ints(name, [1] * count) for name in ("strides", "dilations")
    )
    extra = node.attributes.get_ints("output_padding", [0] * count)
    made = []
    for k, (stride, apart) in enumerate(zip(strides, dilations, strict=True)):
        extent = (taps[k] - 1) * apart + 1
        before, after = _pads(node, x, k, stride, extra[k] + extent)
        shape = (stride, taps[k], apart) if stride == 1 else (stride, extent, 1)
        made.append(_Axis(*shape, before, after, extra[k]))
    return made


def _pads(node: ir.Node, x: ir.Value, k: int, stride: int, reach: int) -> tuple[int, int]:
    """Those of spatial axis ``k``, along which an input gives ``reach`` outputs from its first.

    Fewer than 0 where the result is longer than that of the last input.
    """
    mode = node.attributes.get_string("auto_pad", "NOTSET")
    sizes = node.attributes.get_ints("output_shape", [])
    count = rank(x) - 2
    if sizes:
        total = stride * (_static(x)[k] - 1) + reach - sizes[len(sizes) - count + k]
    elif mode.startswith("SAME"):
        total = max(reach - stride, 0)  # windows that leave gaps between them reach less far
    else:
        given = [0] * 2 * count
        if mode == "NOTSET":
            given = node.attributes.get_ints("pads", given)
        return given[k], given[k + count]
    half = max(total, 0) // 2
    before = half if mode == "SAME_UPPER" else max(total, 0) - half
    return before, total - before


def _with_gaps(weight: np.ndarray, axes: list[_Axis]) -> np.ndarray:
    """``weight`` with taps of zero between those that dilations part."""
    sizes = [axis.taps for axis in axes]
    steps = (
        max((size - 1) // (taps - 1), 1) if taps > 1 else 1
        for size, taps in zip(sizes, weight.shape[2:], strict=True)
    )
    whole = np.zeros((*weight.shape[:2], *sizes), weight.dtype)
    whole[(..., *(slice(None, None, step) for step in steps))] = weight
    return whole


def _filters(weight: np.ndarray, axes: list[_Axis], groups: int) -> np.ndarray:
    """``[C, M, k...]`` -> ``[phases * M, C, t...]``: the taps of each phase, the last one first.

    Of several groups each has its own: ``[groups * M * phases, C / groups, t...]``.
    """
    channels, filters = weight.shape[:2]
    grown = [(0, axis.depth * axis.stride - axis.taps) for axis in axes]
    whole = np.pad(weight, [(0, 0), (0, 0), *grown])
    split = whole.reshape(channels, filters, *(n for a in axes for n in (a.depth, a.stride)))
    depth, phase = range(2, split.ndim, 2), range(3, split.ndim, 2)
    flipped, window = np.flip(split, depth), [axis.depth for axis in axes]
    if groups == 1:
        return flipped.transpose(*phase, 1, 0, *depth).reshape(-1, channels, *window)
    parts = (
        part.transpose(1, *phase, 0, *depth).reshape(-1, channels // groups, *window)
        for part in np.split(flipped, groups)
    )
    return np.concatenate([*parts])


def _computed_filters(op, weight: ir.Value, axes: list[_Axis], groups: int) -> ir.Value:
    """The same of weights that are known at run time."""
    (channels, filters), count = weight.shape[:2], len(axes)
    grown = [axis.depth * axis.stride - axis.taps for axis in axes]
    whole = weight
    if any(grown):
        whole = op.Pad(weight, _const(op, np.array([0] * (4 + count) + grown)))
    pairs = [n for axis in axes for n in (axis.depth, axis.stride)]
    split = [groups, channels // groups, filters, *pairs]
    parts = op.Reshape(whole, _const(op, np.array(split)))
    depth, phase = range(3, len(split), 2), range(4, len(split), 2)
    last, before = np.full(count, -1), np.full(count, np.iinfo(np.int64).min)
    flipped = op.Slice(parts, *(_const(op, v) for v in (last, before, np.array(depth), last)))
    outputs = [0, *phase, 2] if groups == 1 else [0, 2, *phase]
    moved = op.Transpose(flipped, perm=[*outputs, 1, *depth])
    dims = [-1, channels // groups, *(axis.depth for axis in axes)]
    made = op.Reshape(moved, _const(op, np.array(dims)))
    made.dtype, made.shape = weight.dtype, ir.Shape([None, *dims[1:]])
    return made


def _cut(
    axes: list[_Axis], phase: tuple[int, ...], filters: int
) -> tuple[tuple[slice, ...], list[tuple[int, int]]]:
    """Where among all filters those of one phase are, and their pads, without taps of zero, which
    come first."""
    taps, pads, number = [], [], 0
    for axis, first in zip(axes, phase, strict=True):
        begin, end = axis.pads
        zeros = min(axis.depth - -(-(axis.taps - first) // axis.stride), begin, axis.depth - 1)
        taps.append(slice(zeros, axis.depth))
        pads.append((begin - zeros, end))
        number = number * axis.stride + first
    return (slice(number * filters, (number + 1) * filters), *taps), pads


def _part(op, filters: np.ndarray | ir.Value, place: tuple[slice, ...]) -> np.ndarray | ir.Value:
    """The ``place`` of ``filters`` along all axes but that of channels."""
    outputs, *taps = place
    if isinstance(filters, np.ndarray):
        return filters[(outputs, slice(None), *taps)]
    starts, ends = ([getattr(each, name) for each in place] for name in ("start", "stop"))
    axes = [0, *range(2, 2 + len(taps))]
    return op.Slice(filters, *(_const(op, np.array(v)) for v in (starts, ends, axes)))


def _repeated(op, bias: np.ndarray | ir.Value, phases: int, groups: int) -> np.ndarray | ir.Value:
    """``bias`` for all phases of each filter: of one group all filters of a phase follow each
    other, else all phases of a filter."""
    if isinstance(bias, np.ndarray):
        return np.tile(bias, phases) if groups == 1 else np.repeat(bias, phases)
    if groups == 1:
        return op.Concat(*[bias] * phases, axis=0)
    column = op.Reshape(bias, _const(op, np.array([-1, 1])))
    rows = op.Concat(*[column] * phases, axis=1)
    return op.Reshape(rows, _const(op, np.array([-1])))


def _convolved(
    op,
    x: ir.Value,
    operands: Sequence[ir.Value],
    pads: list[tuple[int, int]],
    dilations: list[int],
    groups: int,
) -> ir.Value:
    """The convolution; later rules ask for its type and its rank."""
    begins, ends = zip(*pads, strict=True)
    y = op.Conv(x, *operands, pads=[*begins, *ends], dilations=dilations, group=groups)
    y.dtype, y.shape = x.dtype, ir.Shape([None] * rank(x))
    return y


def _spread(
    op, y: ir.Value, spread: ir.Value, x: ir.Value, axes: list[_Axis], filters: int
) -> ir.Value:
    """Phases, which are channels of ``y``, moved beside each other, as in ``spread``.

    Of one group all filters of a phase follow each other, else all phases of a filter.
    """
    strides, count, node = [axis.stride for axis in axes], len(axes), spread.producer()
    outermost = groups_of(node) == 1
    if _is_square(axes):
        mode = {"mode": "DCR" if outermost else "CRD"} if _opset(node) >= _MODES else {}
        return op.DepthToSpace(y, blocksize=strides[0], **mode)
    if outermost:
        return op.PhasesToSpace(y, strides=strides, _domain=FUSED)
    sizes = [-1]
    if count > 1:
        given = zip(_static(x), axes, strict=True)
        sizes = [size + sum(axis.pads) - axis.depth + 1 for size, axis in given]
    parted = op.Reshape(y, _const(op, np.array([0, filters, *strides, *sizes])))
    order = [place for k in range(count) for place in (2 + count + k, 2 + k)]
    moved = op.Transpose(parted, perm=[0, 1, *order])
    whole = [n * s for n, s in zip(sizes, strides, strict=True)] if count > 1 else [-1]
    return op.Reshape(moved, _const(op, np.array([0, filters, *whole])))


def _leaves_taps(axes: list[_Axis]) -> bool:
    """Whether of two strides of 2 some phases have fewer taps than others."""
    return _is_square(axes) and axes[0].stride == 2 and any(axis.taps % 2 for axis in axes)


def _is_square(axes: list[_Axis]) -> bool:
    return len(axes) == 2 and axes[0].stride == axes[1].stride


def _static(x: ir.Value) -> list[int]:
    """The spatial sizes; 0 for those that are not known."""
    return [dim if isinstance(dim, int) else 0 for dim in x.shape[2:]]


def _operand(op, value: np.ndarray | ir.Value) -> ir.Value:
    return _const(op, value) if isinstance(value, np.ndarray) else value


def _const(op, array: np.ndarray) -> ir.Value:
    return op.Constant(value=ir.tensor(np.ascontiguousarray(array)))
