"""The same computation in the words of another version of its operator.

What a version has no words for is refused, so the results that the suite expects stay what must
come out: no evaluator has to know what a version means.
"""

import copy
from typing import NamedTuple

import numpy as np
import onnx
from onnx import helper
from onnx.defs import OpSchema

from .variant import Value, Variant

__all__ = ["Unsayable", "restated"]


class Unsayable(Exception):
    """The version has no words for this node."""


class _Move(NamedTuple):
    """From ``since`` on it is input ``place``, before it was an attribute."""

    since: int
    attribute: str
    place: int
    dtype: str  # of the input; "" is that of the first input
    scalar: bool = False


_AXES_18 = [_Move(18, "axes", 1, "int64")]
_MOVES = {
    "BatchNormalization": [],
    "Clip": [_Move(11, "min", 1, "", True), _Move(11, "max", 2, "", True)],
    "Dropout": [_Move(12, "ratio", 1, "float32", True)],
    "Pad": [_Move(11, "pads", 1, "int64"), _Move(11, "value", 2, "", True)],
    "ReduceSum": [_Move(13, "axes", 1, "int64")],
    "Reshape": [_Move(5, "shape", 1, "int64")],
    "Slice": [
        _Move(10, "starts", 1, "int64"), _Move(10, "ends", 2, "int64"),
        _Move(10, "axes", 3, "int64"),
    ],
    "Split": [_Move(13, "split", 1, "int64")],
    "Squeeze": [_Move(13, "axes", 1, "int64")],
    "TopK": [_Move(10, "k", 1, "int64", True)],
    "Unsqueeze": [_Move(13, "axes", 1, "int64")],
    "Upsample": [_Move(9, "scales", 1, "float32")],
    **{
        f"Reduce{kind}": _AXES_18
        for kind in ("L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "SumSquare")
    },
}  # fmt: skip

_ARITHMETIC = ("Add", "And", "Div", "Equal", "Greater", "Less", "Mul", "Or", "Pow", "Sub", "Xor")
_NARY = ("Max", "Mean", "Min", "Sum")
_FLATTENING = ("Hardmax", "LogSoftmax", "Softmax")
_INFERENCE = {"BatchNormalization": 7, "Dropout": 7}  # before, is_test=1 said that it is inference

#: What an attribute means where a version does not have it, if that is not its later default.
_IMPLIED = {
    ("Resize", "coordinate_transformation_mode"): b"asymmetric",
    ("Resize", "nearest_mode"): b"floor",
    ("RoiAlign", "coordinate_transformation_mode"): b"output_half_pixel",
}
#: The values that an attribute may have before a version.
_VALUES = {
    ("ScatterElements", "reduction"): (18, (b"none", b"add", b"mul")),
    ("ScatterND", "reduction"): (18, (b"none", b"add", b"mul")),
    ("Pad", "mode"): (19, (b"constant", b"reflect", b"edge")),
    ("Resize", "coordinate_transformation_mode"): (
        19, (b"half_pixel", b"pytorch_half_pixel", b"align_corners", b"asymmetric",
             b"tf_crop_and_resize"),
    ),
}  # fmt: skip
#: Attribute values of another name before a version.
_NAMES = {
    ("GridSample", "mode"): (20, {b"linear": b"bilinear", b"cubic": b"bicubic"}),
}


def restated(variant: Variant, since: int) -> Variant:
    """``variant`` at another since_version of its operator, with the same results.

    Raises:
        Unsayable: with the reason.
    """
    words = _Words(variant, since)
    if since < variant.since:
        words.negative_axes()
        words.broadcasting()
        words.flattening()
        words.indices()
        words.quantized()
        words.values()
    words.moves()
    words.special()
    words.attributes()
    words.arity()
    words.subgraphs()
    result = words.variant()
    _check(result)
    return result


class _Words:
    """A copy of a variant on its way to another version."""

    def __init__(self, variant: Variant, since: int):
        self.old = variant.schema
        self.source, self.since, self.op_type = variant.since, since, variant.node.op_type
        self.domain = variant.node.domain
        self.result = copy.deepcopy(variant)
        self.result.name, self.result.since = f"{variant.name}-{since}", since
        self.new = self.result.schema
        self.node = self.result.node
        self.given = {a.name: helper.get_attribute_value(a) for a in self.node.attribute}

    def crosses(self, since: int) -> bool:
        """Whether the way is down past ``since``."""
        return self.since < since <= self.source

    def variant(self) -> Variant:
        del self.node.attribute[:]
        self.node.attribute.extend(
            helper.make_attribute(name, value, attr_type=self._kind(name))
            for name, value in self.given.items()
            if value is not None
        )
        while self.node.input and not self.node.input[-1]:
            del self.node.input[-1]
        self.result.inputs = [x for x in self.result.inputs if x.name in self.node.input]
        return self.result

    def _kind(self, name: str) -> int:
        if name not in self.new.attributes:
            raise Unsayable(f"it has no attribute {name}")
        return int(self.new.attributes[name].type.value)

    def shape(self, place: int) -> tuple[int, ...]:
        return np.shape(self.result.value(place).data)

    # --- one thing that versions say differently each ----------------------------------------

    def moves(self) -> None:
        """Attributes that became inputs."""
        for move in _MOVES.get(self.op_type, ()):
            if self.crosses(move.since):
                value = self.result.value(move.place)
                if value is not None:
                    self.given[move.attribute] = _plain(value.data, move.scalar)
                    self.node.input[move.place] = ""
            elif self.source < move.since <= self.since and move.attribute in self.given:
                self._input(move, self.given.pop(move.attribute))

    def _input(self, move: _Move, value: object) -> None:
        dtype = move.dtype or self.result.value(0).data.dtype
        array = np.asarray(value, dtype)
        if not move.scalar or move.attribute == "k":
            array = np.atleast_1d(array)
        kind = helper.np_dtype_to_tensor_dtype(array.dtype)
        info = helper.make_tensor_value_info(f"moved_{move.attribute}", kind, array.shape)
        self.node.input.extend([""] * (move.place + 1 - len(self.node.input)))
        self.node.input[move.place] = info.name
        self.result.inputs.append(Value(info, array))

    def attributes(self) -> None:
        """What an attribute is that is not given, or that the version does not have."""
        for name in self.old.attributes:
            implied = _IMPLIED.get((self.op_type, name))
            if name not in self.given and name not in self.new.attributes and implied is not None:
                raise Unsayable(f"{name} cannot be its default")
        for name in list(self.given):
            if name not in self.new.attributes:
                implied = _IMPLIED.get((self.op_type, name), _default(self.old, name))
                if not _same(self.given[name], implied):
                    raise Unsayable(f"{name}={self.given[name]!r}: it has no such attribute")
                del self.given[name]
        for name in self.new.attributes:
            if name not in self.given and name in self.old.attributes:
                value = _default(self.old, name)
                if not _same(value, _default(self.new, name)):
                    if value is None:
                        raise Unsayable(f"{name} has a default only here")
                    self.given[name] = value
        for name, value in self.given.items():
            if isinstance(value, int | float):
                floats = self._kind(name) == onnx.AttributeProto.FLOAT
                self.given[name] = float(value) if floats else int(value)

    def arity(self) -> None:
        """Optional inputs at the end that say nothing; optional outputs at the end."""
        while len(self.node.input) > self.new.max_input:
            if self.node.input[-1]:
                raise Unsayable(f"it has {self.new.max_input} inputs")
            del self.node.input[-1]
        surplus = len(self.node.output) - self.new.max_output
        if surplus > 0:
            del self.node.output[-surplus:]
            self.result.outputs = [y for y in self.result.outputs if y.name in self.node.output]

    def negative_axes(self) -> None:
        if not (self.crosses(11) and self.node.input):
            return
        rank = len(self.shape(0))
        if self.op_type == "OneHot":
            rank += 1
        axes = self.result.value(3) if self.op_type == "Slice" else None
        if self.op_type == "Unsqueeze":
            rank += np.size(self.result.value(1).data)
        if axes is None and any(m.attribute == "axes" for m in _MOVES.get(self.op_type, ())):
            axes = self.result.value(1) if self.op_type != "Slice" else None
        if axes is not None:
            axes.data = np.where(axes.data < 0, axes.data + rank, axes.data)
        if self.given.get("axis", _default(self.old, "axis") or 0) < 0:
            self.given["axis"] = self.given.get("axis", _default(self.old, "axis")) + rank
        if "axes" in self.given:
            self.given["axes"] = [a + rank if a < 0 else a for a in self.given["axes"]]

    def broadcasting(self) -> None:
        """Shapes are equal, or the second is a part of the first and an attribute says so."""
        operands = [x.data for x in self.result.inputs]
        if self.op_type in _NARY and self.crosses(8):
            if len({np.shape(x) for x in operands}) > 1:
                raise Unsayable("it does not broadcast")
        elif self.op_type in _ARITHMETIC and self.crosses(7):
            self._unidirectional(*map(np.shape, operands))
        elif self.op_type == "PRelu" and self.crosses(7):
            x, slope = map(np.shape, operands)
            if x != slope and np.prod(slope) != 1:
                raise Unsayable("slopes are one per channel, or one")
            if x != slope:
                self.result.inputs[1].data = operands[1].reshape(1)
                _declare(self.result.inputs[1])
        elif self.op_type == "Gemm" and self.crosses(7):
            if len(operands) < 3:
                raise Unsayable("C is not optional")
            self.given["broadcast"] = 1
        elif self.op_type == "Gemm" and self.crosses(11) and len(operands) < 3:
            raise Unsayable("C is not optional")

    def _unidirectional(self, x: tuple[int, ...], y: tuple[int, ...]) -> None:
        if x == y:
            return
        if not y:
            self.given["broadcast"] = 1
            return
        for axis in range(len(x) - len(y) + 1):
            if x[axis : axis + len(y)] == y:
                self.given |= {"broadcast": 1, "axis": axis}
        if "broadcast" not in self.given:
            raise Unsayable(f"{y} is no part of {x}")

    def flattening(self) -> None:
        """Before 13 the axis and all behind it are one."""
        if self.op_type in _FLATTENING and self.crosses(13):
            shape = self.shape(0)
            axis = self.given.get("axis", -1) % len(shape)
            if np.prod(shape[axis + 1 :]) != 1:
                raise Unsayable("it joins the axes behind")
            self.given["axis"] = axis

    def indices(self) -> None:
        places = {"Gather": 1, "OneHot": 0, "Scatter": 1}
        if self.op_type in places and self.crosses(11):
            if (self.result.value(places[self.op_type]).data < 0).any():
                raise Unsayable("indices are not negative")

    def quantized(self) -> None:
        if self.op_type in ("QuantizeLinear", "DequantizeLinear"):
            rank = len(self.shape(1))
            if (self.crosses(21) and rank > 1) or (self.crosses(13) and rank):
                raise Unsayable("scales are per axis from 13 on, of blocks from 21 on")
            if self.crosses(13):
                self.given.pop("axis", None)
            if self.crosses(19) and self.result.value(1).data.dtype != "float32":
                raise Unsayable("scales are float")

    def values(self) -> None:
        for (op_type, name), (since, allowed) in _VALUES.items():
            value = self.given.get(name, allowed[0])
            if op_type == self.op_type and self.crosses(since) and value not in allowed:
                raise Unsayable(f"{name} is one of {allowed}")
        for (op_type, name), (since, names) in _NAMES.items():
            if op_type == self.op_type and self.crosses(since):
                value = self.given.get(name, _default(self.old, name))
                self.given[name] = names.get(value, value)

    def special(self) -> None:
        """What one operator only says differently."""
        if self.op_type in _INFERENCE and self.crosses(_INFERENCE[self.op_type]):
            self.given["is_test"] = 1
        if self.op_type == "BatchNormalization" and self.since == 1:
            self.given["consumed_inputs"] = [0, 0, 0, 1, 1]
        if self.op_type == "Cast" and self.crosses(6):
            self.given["to"] = onnx.TensorProto.DataType.Name(self.given["to"])
        if self.op_type == "Pad" and self.crosses(2):
            self.given["paddings"] = self.given.pop("pads")
        if self.op_type == "Upsample" and self.crosses(7):
            *outer, self.given["height_scale"], self.given["width_scale"] = self.given.pop("scales")
            if outer != [1, 1]:
                raise Unsayable("it scales height and width")
        if self.op_type == "Slice" and self.crosses(10):
            steps = self.result.value(4)
            if steps is not None and (steps.data != 1).any():
                raise Unsayable("steps are 1")
            del self.node.input[4:]
        if self.op_type == "Dropout" and self.crosses(12):
            self._inference()
        if self.op_type == "Resize" and self.crosses(11):
            self._scales()
        if self.op_type == "Resize" and self.since == 11:
            self._absent_as_empty()
        if self.op_type == "Tile" and self.crosses(6):
            self._one_axis()
        if self.op_type == "Split":
            self._number_of_parts()
        if self.op_type == "Scan" and _between(9, self.source, self.since):
            raise Unsayable("it scans the members of a batch")
        if self.op_type == "GroupNormalization" and self.since < 21 <= self.source:
            raise Unsayable("scales are per group")
        if self.op_type == "ReduceSum" or _MOVES.get(self.op_type) is _AXES_18:
            if self.given.get("axes") == []:
                del self.given["axes"]

    def _number_of_parts(self) -> None:
        """From 18 on it is said where the lengths are not; before, the parts are equal."""
        if self.crosses(18) and "num_outputs" in self.given:
            axis = self.given.get("axis", 0)
            if self.shape(0)[axis] % self.given.pop("num_outputs"):
                raise Unsayable("parts are equal")
        elif self.source < 18 <= self.since and self.result.value(1) is None:
            self.given["num_outputs"] = len(self.node.output)

    def _inference(self) -> None:
        training = self.result.value(2)
        if training is not None and training.data.any():
            raise Unsayable("it draws numbers")
        del self.node.input[2:]

    def _scales(self) -> None:
        scales, sizes = self.result.value(2), self.result.value(3)
        if sizes is not None or scales is None or "axes" in self.given:
            raise Unsayable("it takes scales of all axes")
        if self.given.get("mode", b"nearest") != b"nearest":
            self.given["nearest_mode"] = b"floor"  # which says nothing then
        self.node.input[:] = [self.node.input[0], scales.name]
        for name, default in (("cubic_coeff_a", None), ("exclude_outside", 0)):
            if self.given.get(name, default) == default:
                self.given.pop(name, None)

    def _absent_as_empty(self) -> None:
        """Regions and scales are not optional, and empty where they say nothing."""
        kinds = {1: self.result.value(0).info.type.tensor_type.elem_type, 2: 1}
        for place, kind in kinds.items():
            if self.result.value(place) is None:
                info = helper.make_tensor_value_info(f"empty_{place}", kind, (0,))
                self.node.input[place] = info.name
                data = np.empty(0, helper.tensor_dtype_to_np_dtype(kind))
                self.result.inputs.append(Value(info, data))

    def _one_axis(self) -> None:
        repeats = self.result.value(1).data
        axes = np.flatnonzero(repeats != 1)
        if len(axes) > 1:
            raise Unsayable("it repeats one axis")
        axis = int(axes[0]) if len(axes) else 0
        tensor = self.result.value(0).info.type.tensor_type.elem_type
        del self.node.input[1:]
        for name, number in (("tiles", repeats[axis]), ("axis", axis)):
            info = helper.make_tensor_value_info(name, tensor, ())
            self.node.input.append(name)
            data = np.array(number, self.result.value(0).data.dtype)
            self.result.inputs.append(Value(info, data))

    def subgraphs(self) -> None:
        """Nodes inside have no values here: they must be of one version, or only types differ."""
        target = max(self.since, *self.result.opsets.values(), 1)
        if not any(isinstance(value, onnx.GraphProto) for value in self.given.values()):
            return
        if self.domain:
            raise Unsayable("a subgraph in another domain")
        for graph in [v for v in self.given.values() if isinstance(v, onnx.GraphProto)]:
            for node in graph.node:
                _restate_inside(node, self.source, target)


def _restate_inside(node: onnx.NodeProto, source: int, since: int) -> None:
    try:
        old, new = (onnx.defs.get_schema(node.op_type, v, node.domain) for v in (source, since))
    except onnx.defs.SchemaError as error:
        raise Unsayable(str(error)) from error
    if old.since_version == new.since_version:
        return
    moved = [m for m in _MOVES.get(node.op_type, ()) if _between(m.since, source, since)]
    changed = node.op_type in (*_ARITHMETIC, *_NARY) and _between(8, source, since)
    unknown = [a.name for a in node.attribute if a.name not in new.attributes]
    if moved or changed or unknown or node.op_type in _FLATTENING:
        raise Unsayable(f"{node.op_type} inside differs")


def _between(since: int, one: int, other: int) -> bool:
    return min(one, other) < since <= max(one, other)


def _plain(data: np.ndarray, scalar: bool) -> object:
    """An array as the value of an attribute."""
    values = data.reshape(-1).tolist()
    return values[0] if scalar else values


def _default(schema: OpSchema, name: str) -> object:
    attribute = schema.attributes.get(name)
    if attribute is None or not attribute.default_value.name:
        return None
    return helper.get_attribute_value(attribute.default_value)


def _same(one: object, other: object) -> bool:
    if one is None or other is None:
        return one is other
    return bool(np.all(np.asarray(one) == np.asarray(other)))


def _declare(value: Value) -> None:
    """The shape that the data has."""
    kind = value.info.type.tensor_type.elem_type
    value.info.CopyFrom(helper.make_tensor_value_info(value.name, kind, np.shape(value.data)))


def _check(variant: Variant) -> None:
    """The version takes these types, and onnx the node."""
    for formal, value in variant.formals():
        if value.dtype not in formal.types:
            raise Unsayable(f"{formal.name} is no {value.dtype}")
    if variant.schema.deprecated:
        return  # which the checker takes nowhere, and runtimes do
    context = onnx.checker.C.CheckerContext()
    context.ir_version = onnx.IR_VERSION
    context.opset_imports = {**variant.opsets, variant.node.domain: variant.since}
    try:
        onnx.checker.check_node(variant.node, context)
    except onnx.checker.ValidationError as error:
        raise Unsayable(str(error).splitlines()[0]) from error
