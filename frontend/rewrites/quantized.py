"""Layers between quantised tensors as integer products.

Before::

    y = Conv(DequantizeLinear(x, sx, zx), DequantizeLinear(w, sw, zw), b)      also MatMul, Gemm

After::

    t = ConvInteger(x, w, zx, zw)          MatMulInteger
    y = Cast(t + integer_b) * (sx * sw)    or  Cast(t) * (sx * sw) + b

The sum is exact in int32; what differs from the products of floats is their rounding. A bias that
is quantised with ``sx * sw`` is added in int32, too.
"""

import numpy as np
import onnx_ir as ir
from onnxscript.rewriter import MatchContext

from .conv_transpose import ConvTransposeIntoConv, groups_of
from .rule import FUSED, Rule, attribute_refusal, constant, initializer, rank, scalar

__all__ = [
    "MOVES",
    "BatchedGemmOfQuantized",
    "ConvOfQuantized",
    "ConvTransposeOfQuantized",
    "ConvTransposeOfQuantizedIntoConv",
    "GatherOfQuantized",
    "GemmOfQuantized",
    "MatMulOfQuantized",
    "QuantizeBeforeMove",
    "QuantizeByProduct",
    "RoundToCodes",
    "ScaleOfDynamic",
    "scales_with_dims",
]

_NARROW = frozenset({ir.DataType.INT8, ir.DataType.UINT8})


class _Quantized:
    """An 8-bit tensor, its constant scale and zero point, as a DequantizeLinear reads them."""

    def __init__(self, value: ir.Value | None):
        node = None if value is None else value.producer()
        self.node = node if node is not None and _is(node, "DequantizeLinear") else None
        if self.node is None:
            return
        self.data, scale, *zero = self.node.inputs
        self.scale = constant(scale)
        self.zero = zero[0] if zero else None
        if self.scale is not None and (
            self.scale.dtype != np.float32 or self.node.attributes.get_int("block_size", 0)
        ):
            self.scale = None

    @property
    def known(self) -> bool:
        """Whether it is one, of known float32 scale and zero point."""
        ok = self.node is not None and self.scale is not None
        return ok and (self.zero is None or constant(self.zero) is not None)

    @property
    def is_activation(self) -> bool:
        """8 bits, with one scale."""
        return self.known and self.data.dtype in _NARROW and self.scale.size == 1

    def is_weight(self, axis: int) -> bool:
        """Constant, 8 bits, with one scale or one for each element along ``axis``."""
        if not self.known or self.data.dtype not in _NARROW or constant(self.data) is None:
            return False
        along = self.node.attributes.get_int("axis", 1) % constant(self.data).ndim
        return self.scale.size == 1 or (self.scale.ndim == 1 and along == axis)


def _is(node: ir.Node, op_type: str) -> bool:
    return node.op_type == op_type and node.domain in ("", "ai.onnx")


class _LayerOfQuantized(Rule):
    layer: str
    domain = ""
    integer: str  # the operator that multiplies

    def pattern(self, op, x, w):
        return getattr(op, self.layer)(
            x, w, _domain=self.domain, _allow_other_inputs=True, _outputs=["product"]
        )

    def refusal(self, context: MatchContext, x: ir.Value, w: ir.Value, product: ir.Value):
        node = product.producer()
        if not _Quantized(x).is_activation:
            return "the input is not of 8 bits with one known scale"
        if not _Quantized(w).is_weight(self._axis(node)):
            return "the weights are not constant, of 8 bits, with a scale per output"
        if rank(x) is None or rank(product) is None:
            return "the rank is not known"
        return attribute_refusal(node) or self._misfit(node)

    def _misfit(self, node: ir.Node) -> str | None:
        if len(node.inputs) < 3 or node.inputs[2] is None:
            return None
        return None if _bias(node) is not None else "the bias is not one number per output"

    def rewrite(self, op, x: ir.Value, w: ir.Value, product: ir.Value) -> ir.Value:
        node, left, right = product.producer(), _Quantized(x), _Quantized(w)
        total = getattr(op, self.integer)(
            left.data, *self._weight(op, node, right, left.zero), **self._attributes(node)
        )
        scale = left.scale.reshape(-1) * right.scale.reshape(-1)
        bias, bias_scale = _bias(node) or (None, None)
        exact = bias_scale is not None and np.allclose(bias_scale, scale, rtol=1e-5, atol=0)
        if exact:
            total = op.Add(total, self._along(op, node, bias))
        y = op.Mul(op.Cast(total, to=ir.DataType.FLOAT), self._along(op, node, scale))
        if bias is None or exact:
            return y
        if bias_scale is not None:
            bias = bias.astype("float32") * bias_scale
        return op.Add(y, self._along(op, node, bias))

    def _weight(self, op, node: ir.Node, right: _Quantized, left_zero: ir.Value | None) -> list:
        """The weights and the zero points, as the integer operator takes them."""
        if right.zero is None or not constant(right.zero).any():
            return [right.data, *([] if left_zero is None else [left_zero])]
        if left_zero is None:
            dtype = _Quantized(node.inputs[0]).data.dtype.numpy()
            left_zero = op.Constant(value=ir.tensor(np.zeros((), dtype)))
        return [right.data, left_zero, right.zero]

    def _along(self, op, node: ir.Node, array: np.ndarray) -> ir.Value:
        """One number, or one per output, as it broadcasts against the result.

        One number has a dim: a scalar would be part of the kernel, which no other layer shares.
        """
        shape = (1,) if array.size == 1 else self._shape(node, array.size)
        return op.Constant(value=ir.tensor(array.reshape(shape)))

    def _shape(self, node: ir.Node, outputs: int) -> tuple[int, ...]:
        """Of one number per output, against the result."""
        return (outputs,)

    def _axis(self, node: ir.Node) -> int:
        """The axis of the outputs, in the weights."""
        return 1

    def _attributes(self, node: ir.Node) -> dict:
        return {}


def _bias(node: ir.Node) -> tuple[np.ndarray, np.ndarray | None] | None:
    """A constant bias, one number per output, and its scale where it is quantised."""
    value = node.inputs[2] if len(node.inputs) > 2 else None
    if value is None:
        return None
    array, scale = constant(value), None
    quantized = _Quantized(value)
    if quantized.known and constant(quantized.data) is not None:
        zero = 0 if quantized.zero is None else constant(quantized.zero)
        array, scale = constant(quantized.data).astype("int32") - zero, quantized.scale.reshape(-1)
        array = array.astype("int32")
    if array is None or array.size != max(array.shape[-1:], default=1):
        return None
    return array.reshape(-1), scale


class ConvOfQuantized(_LayerOfQuantized):
    """``w[M, C / group, k...]``."""

    layer, integer = "Conv", "ConvInteger"

    def _shape(self, node, outputs):
        return (1, outputs, *[1] * (rank(node.outputs[0]) - 2))

    def _axis(self, node):
        return 0

    def _attributes(self, node):
        return dict(node.attributes)


class MatMulOfQuantized(_LayerOfQuantized):
    """``w[K, N]``."""

    layer, integer = "MatMul", "MatMulInteger"

    def _misfit(self, node):
        return None if rank(node.inputs[1]) == 2 and rank(node.inputs[0]) > 1 else "not matrices"


class GemmOfQuantized(_LayerOfQuantized):
    """``w[K, N]``, or ``w[N, K]`` with ``transB``."""

    layer, integer = "Gemm", "MatMulInteger"

    def _axis(self, node):
        return 0 if node.attributes.get_int("transB", 0) else 1

    def _weight(self, op, node, right, left_zero):
        weight, *zeros = super()._weight(op, node, right, left_zero)
        if not node.attributes.get_int("transB", 0):
            return [weight, *zeros]
        columns = np.ascontiguousarray(constant(weight).T)
        return [op.Constant(value=ir.tensor(columns)), *zeros]


class BatchedGemmOfQuantized(GemmOfQuantized):
    """The same of ``tvm_ext.Gemm``."""

    domain = FUSED


class QuantizeByProduct(Rule):
    """``QuantizeLinear(x, s, z) -> QuantizeLinear(x * (1 / s), 1, z)`` for one known scale.

    A division costs ten products. The result differs where ``x / s`` is within rounding of half
    a unit: then by one unit.
    """

    def pattern(self, op, x, scale):
        return op.QuantizeLinear(x, scale, _allow_other_inputs=True, _outputs=["quantized"])

    def refusal(self, context: MatchContext, x: ir.Value, scale: ir.Value, quantized: ir.Value):
        factor, attributes = scalar(scale), quantized.producer().attributes
        if factor is None or x.dtype != ir.DataType.FLOAT or scale.dtype != ir.DataType.FLOAT:
            return "not float32 with one known scale"
        if attributes.get_int("precision", 0) or attributes.get_int("block_size", 0):
            return "it has a precision or blocks"
        if factor == 1 or not 1e-37 < factor < 1e37:  # the inverse is no subnormal number
            return f"the scale is {factor}"
        return None

    def rewrite(self, op, x: ir.Value, scale: ir.Value, quantized: ir.Value) -> ir.Value:
        node, factor = quantized.producer(), constant(scale)
        # With a dim: a scalar would be part of the kernel, which no other layer shares.
        shape = () if rank(x) == 0 else (1,)
        inverse = np.float32(1) / factor.astype("float32").reshape(shape)
        x, inverse = _unscaled(x, inverse)
        product = op.Mul(x, op.Constant(value=ir.tensor(inverse)))
        one = op.Constant(value=ir.tensor(np.ones(factor.shape, "float32")))
        return op.QuantizeLinear(product, one, *node.inputs[2:], **node.attributes)


def _unscaled(x: ir.Value, factor: np.ndarray) -> tuple[ir.Value, np.ndarray]:
    """``x * factor`` without a product that only it reads: the other side, and both factors."""
    node = x.producer()
    if node is None or not _is(node, "Mul") or len(x.uses()) > 1 or x.is_graph_output():
        return x, factor
    source, scale = node.inputs
    tensor = ir.convenience.get_const_tensor(scale)  # a rule may have made it
    if tensor is None or tensor.dtype != ir.DataType.FLOAT:
        return x, factor
    both = tensor.numpy() * factor
    fits = ((1e-30 < np.abs(both)) & (np.abs(both) < 1e30)).all()
    return (source, both) if fits else (x, factor)


class RoundToCodes(Rule):
    """``DequantizeLinear(QuantizeLinear(x, 1, z), s, z) -> Min(Max(Round(x), low), high) * s``.

    ``low`` and ``high`` are the bounds of 8 bits, less ``z``. Of a layer's result that is added to
    a residual: what computes the layer adds, too, and never stores its codes; those of the
    residual are stored.
    """

    def pattern(self, op, x, scale):
        codes = op.QuantizeLinear(x, _allow_other_inputs=True, _outputs=["codes"])
        return op.DequantizeLinear(codes, scale, _allow_other_inputs=True, _outputs=["y"])

    def refusal(self, context: MatchContext, codes: ir.Value, y: ir.Value, **_):
        wide, narrow = codes.producer(), y.producer()
        # Of what a rule has made, which is float32, the type is not noted.
        if scalar(wide.inputs[1]) != 1 or wide.inputs[0].dtype not in (None, ir.DataType.FLOAT):
            return "not float32 that is quantised with a scale of 1"
        if wide.attributes.get_int("precision", 0) or y.dtype != ir.DataType.FLOAT:
            return "it has another precision, or the result another type"
        if not _Quantized(y).is_activation:
            return "not of 8 bits with one known scale"
        if _zero_of(wide) is None or _zero_of(wide) != _zero_of(narrow):
            return "not one known zero point"
        if not _is_passed_on(y):
            return "the codes or their values are read by others, too"
        return None if _is_added_last(y) else "the codes are not added to others, or are stored"

    def rewrite(self, op, x: ir.Value, scale: ir.Value, codes: ir.Value, y: ir.Value) -> ir.Value:
        info, zero = np.iinfo(codes.dtype.numpy()), _zero_of(y.producer())
        # With a dim: scalars would be part of the kernel, which no other layer shares.
        shape = () if rank(x) == 0 else (1,)
        low, high, factor = (
            op.Constant(value=ir.tensor(np.asarray(number, "float32").reshape(shape)))
            for number in (info.min - zero, info.max - zero, constant(scale))
        )
        return op.Mul(op.Min(op.Max(op.Round(x), low), high), factor)


def _is_passed_on(y: ir.Value) -> bool:
    """Whether what a QuantizeLinear gives, goes to a DequantizeLinear, and on to one reader."""
    node = y.producer()
    if node is None or not _is(node, "DequantizeLinear") or len(y.uses()) != 1:
        return False
    codes = node.inputs[0]
    made = codes.producer() is not None and _is(codes.producer(), "QuantizeLinear")
    return made and len(codes.uses()) == 1 and not (codes.is_graph_output() or y.is_graph_output())


def _is_added_last(y: ir.Value) -> bool:
    """Whether ``y`` is added to what is dequantised, too, and was stored before."""
    ((reader, index),) = y.uses()
    if not _is(reader, "Add"):
        return False
    other = reader.inputs[1 - index]
    if other is y or other.producer() is None or not _is(other.producer(), "DequantizeLinear"):
        return False
    if not _is_passed_on(other):
        return True
    pair = y.producer(), other.producer()
    return next(node for node in y.producer().graph if node in pair) is other.producer()


def _zero_of(node: ir.Node) -> int | None:
    """The known zero point that a node quantises or dequantises by; 0 if it has none."""
    if len(node.inputs) < 3 or node.inputs[2] is None:
        return 0
    zero = scalar(node.inputs[2])
    return None if zero is None else int(zero)


class QuantizeBeforeMove(Rule):
    """``QuantizeLinear(DepthToSpace(x), s, z) -> DepthToSpace(QuantizeLinear(x, s, z))``.

    A quarter of the bytes is moved, and what computes ``x`` quantises it.
    """

    def pattern(self, op, x, scale):
        moved = op.DepthToSpace(x, _outputs=["moved"])
        return op.QuantizeLinear(moved, scale, _allow_other_inputs=True, _outputs=["quantized"])

    def refusal(self, context: MatchContext, scale: ir.Value, quantized: ir.Value, **_):
        zero = quantized.producer().inputs[2:]
        known = scalar(scale) is not None and all(scalar(value) is not None for value in zero)
        return None if known else "not one known scale and zero point"

    def rewrite(self, op, x: ir.Value, scale: ir.Value, moved: ir.Value, quantized: ir.Value):
        node = quantized.producer()
        codes = op.QuantizeLinear(x, *node.inputs[1:], **node.attributes)
        codes.dtype, codes.shape = quantized.dtype, ir.Shape([None] * 4)  # DepthToSpace has 4 dims
        return op.DepthToSpace(codes, **moved.producer().attributes)


class ConvTransposeOfQuantizedIntoConv(ConvTransposeIntoConv):
    """The same of 8 bits, whose filters stay such: a ConvInteger in the end."""

    def refusal(self, context: MatchContext, x: ir.Value, spread: ir.Value) -> str | None:
        node = spread.producer()
        weight = _Quantized(node.inputs[1])
        if not _Quantized(x).is_activation or not weight.is_weight(1):
            return "not of 8 bits with known scales"
        if weight.zero is not None and constant(weight.zero).any():
            return "weights with a zero point, which taps that are added lack"
        if groups_of(node) > 1 and weight.scale.size > 1:
            return "groups whose filters have scales of their own"
        return super().refusal(context, x, spread)

    def _parameters(self, node):
        bias = [value for value in node.inputs[2:] if value is not None]
        arrays = [_floats(value) if constant(value) is None else constant(value) for value in bias]
        return [constant(_Quantized(node.inputs[1]).data), *arrays]

    def _operand(self, op, node, filters):
        scale = _Quantized(node.inputs[1]).scale
        codes = op.Constant(value=ir.tensor(np.ascontiguousarray(filters)))
        if scale.size == 1:
            return op.DequantizeLinear(codes, op.Constant(value=ir.tensor(scale.reshape(()))))
        phases = np.tile(scale, len(filters) // scale.size)
        return op.DequantizeLinear(codes, op.Constant(value=ir.tensor(phases)), axis=0)


class ConvTransposeOfQuantized(Rule):
    """``ConvTranspose(x, DequantizeLinear(w)) -> ConvTranspose(x, floats)``, ``w`` constant.

    What makes a convolution of it asks for constants.
    """

    def pattern(self, op, x, w):
        return op.ConvTranspose(x, w, _allow_other_inputs=True, _outputs=["y"])

    def refusal(self, context: MatchContext, x: ir.Value, w: ir.Value, y: ir.Value):
        if _floats(w) is None:
            return "the weights are no quantised constants of known scale"
        return None

    def rewrite(self, op, x: ir.Value, w: ir.Value, y: ir.Value) -> ir.Value:
        node = y.producer()
        operands = [
            value if value is None or (array := _floats(value)) is None
            else op.Constant(value=ir.tensor(array))
            for value in node.inputs[1:]
        ]  # fmt: skip
        return op.ConvTranspose(x, *operands, **node.attributes)


def _floats(value: ir.Value) -> np.ndarray | None:
    """What a DequantizeLinear makes of a constant; None of what is none."""
    quantized = _Quantized(value)
    if not quantized.known or constant(quantized.data) is None:
        return None
    array = constant(quantized.data).astype("float32")
    axis = quantized.node.attributes.get_int("axis", 1)
    shape = [-1 if k == axis % array.ndim else 1 for k in range(array.ndim)]
    if quantized.zero is not None:
        array = array - constant(quantized.zero).astype("float32").reshape(shape)
    return array * quantized.scale.reshape(shape)


class ScaleOfDynamic(Rule):
    """``total * (s * c) -> total * (s * [c])`` for the scale ``s`` of a DynamicQuantizeLinear.

    A scalar would be part of the kernel: each layer would have one of its own.
    """

    def pattern(self, op, total, scale, factor):
        return op.Mul(total, op.Mul(scale, factor))

    def refusal(self, context: MatchContext, total: ir.Value, scale: ir.Value, factor: ir.Value):
        node = scale.producer()
        if node is None or not _is(node, "DynamicQuantizeLinear"):
            return "the scale is not found at run time"
        if constant(factor) is None or rank(factor) != 0:
            return "the other scale is no constant scalar"
        return None if rank(total) else "the product has no axes"

    def rewrite(self, op, total: ir.Value, scale: ir.Value, factor: ir.Value) -> ir.Value:
        operand = op.Constant(value=ir.tensor(constant(factor).reshape(1)))
        return op.Mul(total, op.Mul(scale, operand))


class _MoveQuantized(Rule):
    """``QuantizeLinear(Move(DequantizeLinear(x))) -> Move(x)`` of the same scale and zero point.

    ``Move`` gives back elements of its input: what is only moved needs no numbers.
    """

    moves: str

    def pattern(self, op, x, scale):
        moved = getattr(op, self.moves)(x, _allow_other_inputs=True, _outputs=["moved"])
        return op.QuantizeLinear(moved, scale, _allow_other_inputs=True, _outputs=["quantized"])

    def refusal(
        self, context: MatchContext, x: ir.Value, moved: ir.Value, quantized: ir.Value, **_
    ):
        source, target = _Quantized(x), quantized.producer()
        if not source.is_activation or len(moved.producer().outputs) > 1:
            return "it is not dequantised 8 bits"
        pairs = zip(source.node.inputs[1:], target.inputs[1:], strict=False)
        same = len(source.node.inputs) == len(target.inputs) and all(
            constant(a) is not None and constant(b) is not None
            and np.array_equal(constant(a), constant(b))
            for a, b in pairs
        )  # fmt: skip
        if not same or quantized.dtype != source.data.dtype:
            return "another scale or zero point"
        return None

    def rewrite(self, op, x: ir.Value, moved: ir.Value, **_) -> ir.Value:
        node = moved.producer()
        return getattr(op, self.moves)(
            _Quantized(x).data, *node.inputs[1:], **dict(node.attributes)
        )


class GatherOfQuantized(Rule):
    """``Gather(DequantizeLinear(x), i) -> DequantizeLinear(Gather(x, i))``, ``x`` constant.

    A table stays 8 bits, of which few rows become floats.
    """

    def pattern(self, op, x, indices):
        return op.Gather(x, indices, _outputs=["rows"])

    def refusal(self, context: MatchContext, x: ir.Value, **_):
        table = _Quantized(x)
        if not table.is_activation or constant(table.data) is None:
            return "it is no constant of 8 bits with one known scale"
        return None

    def rewrite(self, op, x: ir.Value, indices: ir.Value, rows: ir.Value) -> ir.Value:
        table = _Quantized(x)
        codes = op.Gather(table.data, indices, **rows.producer().attributes)
        attributes = {k: v for k, v in table.node.attributes.items() if k != "axis"}
        return op.DequantizeLinear(codes, *table.node.inputs[1:], **attributes)


def scales_with_dims(model: ir.Model) -> ir.Model:
    """Known scales and zero points that are scalars become vectors of one.

    Scalars would be parts of the kernels: each layer would have some of its own.
    """
    for graph in (model.graph, *model.graph.subgraphs()):
        vectors: dict[ir.Value, ir.Value] = {}
        for node in graph:
            if not _has_scales(node) or not rank(node.outputs[0]):
                continue
            for k, value in enumerate(node.inputs):
                if k and rank(value) == 0 and constant(value) is not None:
                    if value not in vectors:
                        vectors[value] = _as_vector(graph, value)
                    node.replace_input_with(k, vectors[value])
    return model


def _has_scales(node: ir.Node) -> bool:
    """Whether ``node`` quantises, dequantises, or does both around something."""
    return node.op_type.startswith(("QuantizeLinear", "DequantizeLinear", "QLinear"))


def _as_vector(graph: ir.Graph, number: ir.Value) -> ir.Value:
    """A constant of ``graph`` that holds ``number`` and has one dim."""
    return initializer(graph, f"{number.name}_vector", constant(number).reshape(1), number.dtype)


#: One rule for each operator that only moves elements.
MOVES = tuple(
    type(f"{name}OfQuantized", (_MoveQuantized,), {"moves": name})
    for name in (
        "DepthToSpace", "Flatten", "MaxPool", "Reshape", "Slice", "SpaceToDepth", "Squeeze",
        "Transpose", "Unsqueeze",
    )
)  # fmt: skip
