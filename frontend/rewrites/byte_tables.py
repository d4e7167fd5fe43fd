"""Functions of one quantised tensor, element by element, as tables of their 256 values.

Before::

    f = DequantizeLinear(x, sx, zx)                  x and y of 8 bits; all else is constant
    y = QuantizeLinear(Mul(f, Sigmoid(f)), sy, zy)

After::

    y = tvm_ext.ByteTable(x, table)                  table[b] is the y of the byte b

The values are those that onnx's reference computes, in the float type of the model. Operators of
com.microsoft that are such functions by themselves, as QLinearSigmoid, are taken in, too.
"""

from collections.abc import Iterable, Sequence

import numpy as np
import onnx_ir as ir

from ..microsoft import DOMAIN as MICROSOFT
from .fold import evaluated
from .rule import FUSED, constant, initializer, rank

__all__ = ["tabulate"]

_TABLE = "ByteTable"
_BYTES = 256
_LARGEST = 64  # nodes of a function
_QUANTISES = 19  # the opset whose operators of quantisation onnx's reference has
_NARROW = (ir.DataType.INT8, ir.DataType.UINT8)

# What costs more than to look a byte up, and what may stand around it.
_COSTLY = frozenset({
    "Celu", "Elu", "Erf", "Exp", "Gelu", "HardSigmoid", "HardSwish", "Log", "Mish", "Pow", "Selu",
    "Sigmoid", "Softplus", "Softsign", "Swish", "Tanh", _TABLE,
})  # fmt: skip
_ELEMENTWISE = _COSTLY | {
    "Abs", "Add", "Ceil", "Clip", "DequantizeLinear", "Div", "Floor", "LeakyRelu", "Max", "Min",
    "Mul", "Neg", "QuantizeLinear", "Reciprocal", "Relu", "Round", "Sign", "Sqrt", "Sub",
    "ThresholdedRelu",
}  # fmt: skip

# Those of com.microsoft -> ONNX's own of floats.
_QLINEAR = {
    "QLinearAdd": "Add", "QLinearLeakyRelu": "LeakyRelu", "QLinearMul": "Mul",
    "QLinearSigmoid": "Sigmoid",
}  # fmt: skip


def tabulate(model: ir.Model) -> ir.Model:
    """Replace each such function that costs more than a table, in all graphs of ``model``."""
    found = False
    for graph in (model.graph, *model.graph.subgraphs()):
        functions = _Functions(graph, model.opset_imports.get("", 1))
        for node in list(graph):
            found |= functions.visit(node)
    if found:
        model.opset_imports.setdefault(FUSED, 1)
    return model


class _Functions:
    """The functions of bytes in a graph whose nodes are visited in order.

    ``source[v]`` are the bytes that ``v`` is a function of, ``nodes[v]`` compute it from these.
    """

    def __init__(self, graph: ir.Graph, opset: int):
        self.graph, self.opset = graph, opset
        self.source: dict[ir.Value, ir.Value] = {}
        self.nodes: dict[ir.Value, tuple[ir.Node, ...]] = {}

    def visit(self, node: ir.Node) -> bool:
        """Note what ``node`` is a function of; whether a table stands for it now."""
        source = self._source(node)
        if source is None:
            return False
        (y,) = node.outputs
        before = dict.fromkeys(n for x in node.inputs for n in self.nodes.get(x, ()))
        nodes = (*before, node)
        if len(nodes) > _LARGEST:
            return False
        self.source[y], self.nodes[y] = source, nodes
        costly = any(n.op_type in _COSTLY or n.domain for n in nodes)
        dtype = source.dtype if _is_qlinear(node) else y.dtype  # onnx does not infer the former
        if not costly or dtype not in _NARROW or not _keeps_dims(source, nodes):
            return False
        table = self._table(source, nodes)
        if table is None:
            return False
        self._replace(node, source, table)
        return True

    def _source(self, node: ir.Node) -> ir.Value | None:
        """The bytes that the only result of ``node`` is a function of; None: it is of others."""
        reads_bytes = node.op_type == "DequantizeLinear" or _is_qlinear(node)
        elementwise = _is_qlinear(node) or (not node.domain and node.op_type in _ELEMENTWISE)
        if not elementwise or len(node.outputs) != 1 or not _is_plain(node):
            return None
        found = set()
        for k, x in enumerate(node.inputs):
            if x in self.source:
                found.add(self.source[x])
            elif x is not None and constant(x) is None:
                is_data = reads_bytes and k % 3 == 0  # its scale and its zero point follow
                found.add(x if is_data and _type_of(node, k) in _NARROW else None)
        return found.pop() if len(found) == 1 else None

    def _table(self, source: ir.Value, nodes: Sequence[ir.Node]) -> np.ndarray | None:
        """What the last of ``nodes`` gives for each byte; None where that is unknown."""
        known: dict[ir.Value | None, np.ndarray | None] = {None: None}
        known[source] = np.arange(_BYTES, dtype=np.uint8).view(source.dtype.numpy())
        for node in nodes:
            arrays = [known[x] if x in known else constant(x) for x in node.inputs]
            result = self._evaluated(node, arrays)
            if result is None or np.isnan(result.astype("float32")).any():
                return None
            known[node.outputs[0]] = result
        return result.reshape(_BYTES)

    def _evaluated(self, node: ir.Node, arrays: list[np.ndarray | None]) -> np.ndarray | None:
        if node.op_type == _TABLE:
            return arrays[1][arrays[0].view(np.uint8)]
        if _is_qlinear(node):
            return _of_quantized(node, arrays)
        # To quantise is older than what the reference has of it.
        opset = max(self.opset, _QUANTISES) if node.op_type.endswith("Linear") else self.opset
        results = evaluated(node, opset, arrays)
        return None if results is None else results[0]

    def _replace(self, node: ir.Node, source: ir.Value, table: np.ndarray) -> None:
        """Let a table stand for ``node``."""
        (y,) = node.outputs
        values = initializer(self.graph, f"{y.name}_table", table)
        lookup = ir.Node(FUSED, _TABLE, [source, values], num_outputs=1, name=node.name,
                         metadata_props=node.metadata_props)  # fmt: skip
        result = lookup.outputs[0]
        result.type, result.shape = values.type, source.shape
        ir.convenience.replace_nodes_and_values(self.graph, node, [node], [lookup], [y], [result])
        self.source[result], self.nodes[result] = source, (lookup,)


def _keeps_dims(source: ir.Value, nodes: Iterable[ir.Node]) -> bool:
    """Whether no constant of ``nodes``, of one element each, has more axes than ``source``."""
    operators = (node for node in nodes if node.op_type != _TABLE)
    axes = [array.ndim for node in operators for array in _constants(node.inputs)]
    return max(axes, default=0) <= (rank(source) or 0)


def _is_qlinear(node: ir.Node) -> bool:
    return node.domain == MICROSOFT and node.op_type in _QLINEAR


def _of_quantized(node: ir.Node, arrays: Sequence[np.ndarray | None]) -> np.ndarray | None:
    """``QuantizeLinear(operator(DequantizeLinear(..), ..))`` of one operator or two."""
    count = 2 if node.op_type in ("QLinearAdd", "QLinearMul") else 1
    floats = [
        (data.astype("int32") - (0 if zero is None else zero)).astype("float32") * scale
        for data, scale, zero in (arrays[3 * k : 3 * k + 3] for k in range(count))
    ]
    scale, zero = [*arrays[3 * count :], None][:2]
    operator = ir.Node("", _QLINEAR[node.op_type], [], node.attributes.values())
    results = evaluated(operator, _QUANTISES, floats)
    if results is None:
        return None
    info = np.iinfo(arrays[0].dtype)
    codes = np.rint(results[0] / scale) + (0 if zero is None else zero)
    return np.clip(codes, info.min, info.max).astype(info.dtype)


def _type_of(node: ir.Node, k: int) -> ir.DataType | None:
    """The type of quantised input ``k``; its zero point has it, where onnx inferred none."""
    x, zero = node.inputs[k], node.inputs[k + 2] if len(node.inputs) > k + 2 else None
    if x.dtype is None and constant(zero) is not None:
        x.type = ir.TensorType(zero.dtype)
    return x.dtype


def _is_plain(node: ir.Node) -> bool:
    """Whether the constants of ``node`` are single numbers, and its attributes no shape."""
    if any(node.attributes.get_int(name, 0) for name in ("block_size", "precision")):
        return False
    placed = "axis" in node.attributes and not node.op_type.endswith("Linear")
    return not placed and all(array.size == 1 for array in _constants(node.inputs))


def _constants(values: Iterable[ir.Value | None]) -> Iterable[np.ndarray]:
    arrays = map(constant, values)
    return (array for array in arrays if array is not None)
