"""1x1 convolutions of enlarged images, done before they are enlarged.

Before::

    r = Resize (a, , , sizes)
    c = Concat <axis = 1> (x, r)
    y = Conv <kernel_shape = [1, 1]> (c, w)

After::

    p = Conv (x, w[:, :k])
    q = Conv (a, w[:, k:])
    r = Resize (q, , , sizes)
    y = Add (p, r)

One mixes channels, the other pixels, so that their order is free; the smaller image has less to
mix. The heads of SegFormer and HRNet are such.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import numpy as np
import onnx_ir as ir

from .rule import FLOATS, constant, known, rank

__all__ = ["convolve_before_resize"]

_ENLARGED = 2  # times as many pixels, from which on it is worth a sum of its own
_SIZES = 3  # among the inputs of Resize
_STRETCH = "stretch"  # to the sizes asked for
_CROPS = "tf_crop_and_resize"  # pixels beyond the image are given


@dataclass
class _Part:
    """Channels of the input of a convolution: ``value``, or what ``resize`` makes of a smaller."""

    value: ir.Value
    channels: int
    resize: ir.Node | None


def convolve_before_resize(model: ir.Model) -> ir.Model:
    """Split every 1x1 Conv of enlarged images into one for each, and enlarge what these give."""
    for node in list(model.graph):
        parts = _parts(node)
        if any(part.resize is not None for part in parts):
            _split(node, parts)
    return model


def _parts(conv: ir.Node) -> list[_Part]:
    """The operands of the Concat before ``conv``, or its one input; none where it is another."""
    if not _is_pointwise(conv):
        return []
    x, filters = conv.inputs[0], conv.inputs[1].shape[0]
    reader, values = conv, [x]
    if _is_only_for(conv, x, "Concat"):
        reader = x.producer()
        values = list(reader.inputs)
        if reader.attributes.get_int("axis", 0) % rank(x) != 1:
            return []
    if any(rank(value) != rank(x) or not isinstance(value.shape[1], int) for value in values):
        return []
    return [_Part(v, v.shape[1], _enlarging(v, filters, reader)) for v in values]


def _is_pointwise(node: ir.Node) -> bool:
    """Whether ``node`` only mixes channels, by constant weights."""
    if node.op_type != "Conv" or node.domain or rank(node.inputs[0]) is None:
        return False
    weight = constant(node.inputs[1])
    return (
        weight is not None
        and node.inputs[1].dtype in FLOATS
        and set(weight.shape[2:]) == {1}
        and set(node.attributes.get_ints("strides", ())) <= {1}
        and not any(node.attributes.get_ints("pads", ()))
        and node.attributes.get_int("group", 1) == 1
    )


def _is_only_for(reader: ir.Node, value: ir.Value, operator: str) -> bool:
    """Whether an ``operator`` of the same graph gives ``value``, and ``reader`` alone sees it."""
    node = value.producer()
    if node is None or node.op_type != operator or node.domain or node.graph is not reader.graph:
        return False
    return len(value.uses()) == 1 and not value.is_graph_output()


def _enlarging(value: ir.Value, filters: int, reader: ir.Node) -> ir.Node | None:
    """The Resize that makes ``value``, where to enlarge the result of ``filters`` is less work."""
    if not _is_only_for(reader, value, "Resize"):
        return None
    node = value.producer()
    before, after = node.inputs[0].shape, value.shape
    if before is None or len(before) != len(after) or before[:2] != after[:2]:
        return None
    if not all(isinstance(dim, int) for dim in (*before[1:], *after[1:])):
        return None
    pays = filters <= 2 * after[1] and prod(after[2:]) >= _ENLARGED * prod(before[2:])
    mixes = node.attributes.get_string("coordinate_transformation_mode", "") != _CROPS
    stretched = node.attributes.get_string("keep_aspect_ratio_policy", _STRETCH) == _STRETCH
    told = _sizes(node) is None or constant(_sizes(node)) is not None or stretched
    return node if pays and mixes and told else None


def _sizes(resize: ir.Node) -> ir.Value | None:
    return resize.inputs[_SIZES] if len(resize.inputs) > _SIZES else None


def _split(conv: ir.Node, parts: list[_Part]) -> None:
    """Replace ``conv`` by the sum of convolutions of the ``parts``, the plain ones together."""
    weight, first, plain, enlarged = constant(conv.inputs[1]), 0, [], []
    for part in parts:
        own = weight[:, first : first + part.channels]
        first += part.channels
        (plain if part.resize is None else enlarged).append((part, own))
    made = _Made(conv)
    results = []
    if plain:
        weights = np.concatenate([own for _, own in plain], 1)
        x = made.together([part.value for part, _ in plain], weights.shape[1])
        results.append(made.convolution(x, weights))
    for part, own in enlarged:
        small = made.convolution(part.resize.inputs[0], own)
        results.append(made.enlarged(part.resize, small, part.value.shape[2:]))
    total = results[0]
    for result in results[1:]:
        total = made.node("Add", [total, result])
    made.instead(total)


class _Made:
    """Nodes that stand where ``conv`` does."""

    def __init__(self, conv: ir.Node) -> None:
        self.conv, self.nodes, self.bias = conv, [], list(conv.inputs[2:])

    def node(self, operator: str, inputs: list, attributes: dict | None = None) -> ir.Value:
        made = ir.node(operator, inputs, attributes or {})
        made.outputs[0].type = self.conv.outputs[0].type
        self.nodes.append(made)
        return made.outputs[0]

    def constant(self, array: np.ndarray) -> ir.Value:
        self.nodes.append(known(array))
        return self.nodes[-1].outputs[0]

    def together(self, values: list[ir.Value], channels: int) -> ir.Value:
        """The channels of images of one size."""
        if len(values) == 1:
            return values[0]
        value = self.node("Concat", values, {"axis": 1})
        value.shape = ir.Shape([values[0].shape[0], channels, *values[0].shape[2:]])
        return value

    def convolution(self, x: ir.Value, weight: np.ndarray) -> ir.Value:
        """Convolve ``x``; the first has the bias, for interpolation gives equal pixels back."""
        result = self.node("Conv", [x, self.constant(weight), *self.bias])
        self.bias = []
        result.shape = ir.Shape([x.shape[0], len(weight), *x.shape[2:]])
        return result

    def enlarged(self, resize: ir.Node, x: ir.Value, image: Sequence[int]) -> ir.Value:
        """``x`` as ``resize`` does its own input, which may have another number of channels.

        ``image``: the size of the result.
        """
        inputs, attributes, ndim = [x, *resize.inputs[1:]], dict(resize.attributes), len(x.shape)
        given = _sizes(resize)
        if given is not None and constant(given) is None:
            attributes.pop("axes", None)
            inputs[_SIZES] = self.sizes(x, image)
        elif given is not None:
            axes = resize.attributes.get_ints("axes", None) or range(ndim)
            sizes = constant(given).copy()
            sizes[[axis % ndim == 1 for axis in axes]] = x.shape[1]
            inputs[_SIZES] = self.constant(sizes)
        return self.node("Resize", inputs, attributes)

    def sizes(self, x: ir.Value, image: Sequence[int]) -> ir.Value:
        """The shape of ``x``, of which only the run knows all, with the size of another image."""
        shape, places = self.numbers("Shape", [x]), self.constant(np.arange(2))
        first = self.numbers("Gather", [shape, places])
        return self.numbers("Concat", [first, self.constant(np.array(image))], {"axis": 0})

    def numbers(self, operator: str, inputs: list, attributes: dict | None = None) -> ir.Value:
        """A node that computes with sizes."""
        value = self.node(operator, inputs, attributes)
        value.type = ir.TensorType(ir.DataType.INT64)
        return value

    def instead(self, value: ir.Value) -> None:
        conv = self.conv
        for made in self.nodes:
            if made.op_type in ("Add", "Resize"):
                made.outputs[0].shape = conv.outputs[0].shape
        ir.convenience.replace_nodes_and_values(
            conv.graph, conv, [conv], self.nodes, conv.outputs, [value]
        )
