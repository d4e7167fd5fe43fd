"""Channels between convolutions, whose number fills no vectors, with copies of some beside them.

Before::

    c = Conv (x, w)                        58 filters
    d = Conv <group = 58> (Relu (c), v)
    y = Conv (d, u)

After::

    c = Conv (x, w')                       64 filters, the last six those of the first six again
    d = Conv <group = 64> (Relu (c), v')
    y = Conv (d, u')                       that weigh each of both by half

Between convolutions that mix channels nobody sees how many there are. Halves are exact, but of
subnormal numbers, and what is infinite in a channel is so in its copy; zeros times it would be NaN.
Where codes of 8 bits are dequantised to weights, copies are weighed by zero: codes have no halves.
ShuffleNet and ReXNet have such channels.

Of windows that mix channels, Winograd's method is worth more multiplications: 64 channels to 61 to
64, 3x3 at 56 x 56, two Zen 5 cores: 1.65 ms, with 64 in the place of 61 0.46 ms.
"""

from __future__ import annotations

from math import gcd

import numpy as np
import onnx_ir as ir

from .rule import constant, known, rank, scalar

__all__ = ["widen_channels", "widen_filters"]

_VECTOR = 16  # numbers of float32 in the widest; a half and a quarter of it divide it
_ENOUGH = 4  # channels that fill a part of a vector well enough
_MOST = 1.25  # times as many channels
# The same between windows of Winograd's method, which takes half of the time where vectors are not
# half full any more, and less from smaller parts of them; and between other windows.
_MOST_OF_HALVES, _MOST_OF_PARTS, _MOST_OF_PIXELS = 1.34, 1.8, 1.1
_FEWEST = 8  # channels on either side of a window of Winograd's method

# What does the same to each channel.
_ALIKE = frozenset({
    "AveragePool", "Cast", "Clip", "DequantizeLinear", "Elu", "Gelu", "GlobalAveragePool",
    "GlobalMaxPool", "HardSigmoid", "HardSwish", "Identity", "LeakyRelu", "MaxPool",
    "QuantizeLinear", "Relu", "Selu", "Sigmoid", "Softplus", "Swish", "Tanh",
})  # fmt: skip
_JOINING = frozenset({"Add", "Mul", "Sub"})
_REDUCING = frozenset({"ReduceMax", "ReduceMean", "ReduceSum"})


def widen_channels(model: ir.Model) -> ir.Model:
    """Widen the channels of each depthwise Conv where all that reads and writes them can be."""
    for node in list(model.graph):
        channels = _channels_of_depthwise(node)
        if channels and gcd(channels, _VECTOR) < _ENOUGH:
            wide = -(-channels // _VECTOR) * _VECTOR
            region = _Region(model.graph, channels, wide)
            if wide <= _MOST * channels and region.reaches(node.inputs[0]):
                region.widen()
    return model


def widen_filters(model: ir.Model, vector: int) -> ir.Model:
    """Widen what is between convolutions that mix channels to whole vectors of ``vector``."""
    for node in list(model.graph):
        channels = _filters_of_dense(node)
        if channels % vector:
            region = _Region(model.graph, channels, -(-channels // vector) * vector)
            if region.reaches(node.outputs[0]) and region.is_worth(vector):
                region.widen()
    return model


def _filters_of_dense(node: ir.Node) -> int:
    """How many filters of float32 ``node`` has that see all channels; 0 where it does not."""
    weights = constant(node.inputs[1]) if _mixes_channels(node) else None
    return len(weights) if weights is not None and weights.dtype == np.float32 else 0


def _mixes_channels(node: ir.Node) -> bool:
    """Whether ``node`` is a Conv, of known weights, each of whose filters sees all channels."""
    return _filters(node) is not None and node.attributes.get_int("group", 1) == 1


def _is_of_winograd(node: ir.Node) -> bool:
    """Whether Winograd's method may be right for the window of a Conv that mixes channels: not for
    those of a picture, or few others."""
    shape = _filters(node)
    if shape is None or not _mixes_channels(node) or min(shape[:2]) < _FEWEST:
        return False
    return max(shape[2:]) > 2 and set(node.attributes.get_ints("dilations", ())) <= {1}


def _channels_of_depthwise(node: ir.Node) -> int:
    """How many channels ``node`` convolves one by one; 0 where it does not."""
    shape = _filters(node)
    if shape is None or shape[1] != 1 or node.attributes.get_int("group", 1) != shape[0]:
        return 0
    return shape[0] if shape[0] > 1 else 0


def _filters(node: ir.Node) -> tuple[int, ...] | None:
    """The shape of the weights of a Conv that are known now."""
    if node.op_type != "Conv" or node.domain or not _is_known(node.inputs[1]):
        return None
    shape = node.inputs[1].shape
    if shape is None or not shape.is_static() or len(shape) < 3:
        return None
    return tuple(shape.numpy())


def _is_known(value: ir.Value | None) -> bool:
    """Whether ``value`` is a constant, or what dequantises one."""
    if constant(value) is not None:
        return True
    node = None if value is None else value.producer()
    if node is None or node.op_type != "DequantizeLinear" or node.domain:
        return False
    plain = not node.attributes.get_int("block_size", 0)
    return plain and all(constant(v) is not None for v in node.inputs if v is not None)


def _is_by_channel(node: ir.Node) -> bool:
    """Whether ``node`` does the same to its first input whatever channels there are beside one."""
    if len(node.outputs) > 1:
        return False
    if node.op_type == "BatchNormalization":
        plain = not node.attributes.get_int("training_mode", 0)
        return plain and all(constant(v) is not None for v in node.inputs[1:])
    if node.op_type in _REDUCING:
        return _is_of_pixels(node)
    if node.op_type == "Resize":
        return _resizes_pixels(node)
    alike = all(v is None or scalar(v) is not None for v in node.inputs[1:])
    return node.op_type in _ALIKE and alike


def _is_of_pixels(node: ir.Node) -> bool:
    """Whether a reduction keeps its axes, and all of these but the pixels whole."""
    axes = node.attributes.get_ints("axes", ())
    if len(node.inputs) > 1:
        array = constant(node.inputs[1])
        axes = () if array is None else array.tolist()
    ndim = rank(node.inputs[0])
    kept = node.attributes.get_int("keepdims", 1) == 1
    return kept and ndim is not None and len(axes) > 0 and all(a % ndim > 1 for a in axes)


def _resizes_pixels(node: ir.Node) -> bool:
    """Whether the factors of a Resize are known, and that of the channels is one."""
    given = dict(enumerate(node.inputs))
    mode = node.attributes.get_string("coordinate_transformation_mode", "")
    if given.get(3) is not None or "axes" in node.attributes or mode == "tf_crop_and_resize":
        return False
    factors = constant(given.get(2 if len(given) > 2 else 1))
    return factors is not None and factors.size > 1 and factors[1] == 1


class _Region:
    """The values whose axis 1 are the ``channels``, and the nodes that read or write them."""

    def __init__(self, graph: ir.Graph, channels: int, wide: int):
        self.graph, self.channels, self.wide = graph, channels, wide
        self.rank = 0  # of all values
        self.values: dict[ir.Value, None] = {}
        self.nodes: dict[ir.Node, None] = {}

    def reaches(self, value: ir.Value) -> bool:
        """Whether all that is connected with ``value`` may have more channels."""
        self.rank = rank(value) or 0
        waiting = [value]
        while waiting:
            value = waiting.pop()
            if value in self.values:
                continue
            if not self._has_channels(value) or value.is_graph_output():
                return False
            self.values[value] = None
            for node in (value.producer(), *value.consumers()):
                if node in self.nodes:
                    continue
                others = None if node is None else self._joined(node, value)
                if others is None:
                    return False
                self.nodes[node] = None
                waiting.extend(others)
        return True

    def _has_channels(self, value: ir.Value) -> bool:
        return rank(value) == self.rank >= 3 and value.shape[1] == self.channels

    def _joined(self, node: ir.Node, value: ir.Value) -> list[ir.Value] | None:
        """The other values with these channels; None where ``node`` must know how many."""
        if node.domain or node.graph is not self.graph:
            return None
        if node.op_type == "Conv":
            return self._of_convolution(node, value)
        if node.op_type in _JOINING and "axis" not in node.attributes:
            operands = [v for v in node.inputs if not self._is_beside(v)]
            return [*operands, *node.outputs] if all(map(self._has_channels, operands)) else None
        return [node.inputs[0], node.outputs[0]] if _is_by_channel(node) else None

    def _of_convolution(self, node: ir.Node, value: ir.Value) -> list[ir.Value] | None:
        shape, bias = _filters(node), node.inputs[2] if len(node.inputs) > 2 else None
        if shape is None or not (bias is None or _is_known(bias)):
            return None
        if value in node.inputs[1:]:
            return None
        if _channels_of_depthwise(node) == self.channels:
            return [node.inputs[0], node.outputs[0]]
        return [] if _mixes_channels(node) else None

    def _is_beside(self, value: ir.Value) -> bool:
        """Whether an operand is a constant, or one for all channels."""
        array = constant(value)
        if array is None:
            return rank(value) == self.rank and value.shape[1] == 1
        return self._channels_of(array) in (1, self.channels)

    def _channels_of(self, array: np.ndarray) -> int:
        """How many channels a constant has that broadcasts with the values."""
        return array.shape[1 - self.rank] if array.ndim >= self.rank - 1 else 1

    def is_worth(self, vector: int) -> bool:
        """Whether convolutions that mix these channels are quicker with as many as are wanted."""
        filled, times = gcd(self.channels, vector), self.wide / self.channels
        if any(map(_is_of_winograd, self.nodes)):
            return times <= (_MOST_OF_HALVES if 2 * filled == vector else _MOST_OF_PARTS)
        return filled < _ENOUGH and times <= _MOST_OF_PIXELS

    def widen(self) -> None:
        """Give all of them as many channels as fill whole vectors."""
        for node in self.nodes:
            if node.op_type == "Conv":
                self._widen_convolution(node)
            elif node.op_type == "BatchNormalization":
                for k, value in enumerate(node.inputs[1:], 1):
                    node.replace_input_with(k, self._wider(node, value, 0))
            elif node.op_type in _JOINING:
                for k, value in enumerate(node.inputs):
                    array = constant(value)
                    if array is not None and self._channels_of(array) == self.channels:
                        node.replace_input_with(k, self._wider(node, value, 1 - self.rank))
        for value in self.values:
            value.shape = ir.Shape([value.shape[0], self.wide, *value.shape[2:]])

    def _widen_convolution(self, node: ir.Node) -> None:
        if node.outputs[0] in self.values:
            node.replace_input_with(1, self._wider(node, node.inputs[1], 0))
            if len(node.inputs) > 2 and node.inputs[2] is not None:
                node.replace_input_with(2, self._wider(node, node.inputs[2], 0))
            if node.attributes.get_int("group", 1) > 1:
                node.attributes["group"] = ir.AttrInt64("group", self.wide)
                return
        if node.inputs[0] in self.values:
            node.replace_input_with(1, self._wider(node, node.inputs[1], 1, weighs=True))

    def _wider(self, node: ir.Node, value: ir.Value, axis: int, weighs: bool = False) -> ir.Value:
        """``value``, which is known, for ``node``, with copies of channels along ``axis``.

        ``weighs``: it is what channels are multiplied with and summed.
        """
        array = constant(value)
        if array is not None:
            array = self._with_copies(array, axis)
            if weighs:
                array[:, : self._copies] /= 2
                array[:, self.channels :] /= 2
            return self._before(node, known(array))
        source = value.producer()
        made = ir.node(
            "DequantizeLinear",
            [self._before(node, known(part)) for part in self._wider_codes(source, axis, weighs)],
            dict(source.attributes),
        )
        made.outputs[0].type, made.outputs[0].shape = value.type, made.inputs[0].shape
        return self._before(node, made)

    def _wider_codes(self, source: ir.Node, axis: int, weighs: bool) -> list[np.ndarray]:
        """The constants that ``source`` dequantises: those of copies, or what stands for zeros."""
        codes, scale, *zero = (constant(v) for v in source.inputs if v is not None)
        along = source.attributes.get_int("axis", 1) % codes.ndim
        codes = self._with_copies(codes, axis)
        if along == axis and scale.size > 1:
            scale, *zero = (self._with_copies(part, 0) for part in (scale, *zero))
        if weighs:
            codes[:, self.channels :] = 0
        for point in zero if weighs else ():
            lined = point.reshape([-1 if k == along else 1 for k in range(codes.ndim)])
            codes[:, self.channels :] = np.broadcast_to(lined, codes.shape)[:, self.channels :]
        return [codes, scale, *zero]

    @property
    def _copies(self) -> int:
        """How many channels have one: the first."""
        return self.wide - self.channels

    def _with_copies(self, array: np.ndarray, axis: int) -> np.ndarray:
        return np.concatenate([array, array.take(range(self._copies), axis)], axis)

    def _before(self, node: ir.Node, made: ir.Node) -> ir.Value:
        """What ``made`` gives, which is put before ``node``."""
        self.graph.insert_before(node, made)
        return made.outputs[0]
