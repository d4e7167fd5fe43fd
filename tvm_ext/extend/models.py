"""Small models around one operator, and what they should answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import onnx
from onnx import helper
from onnx.reference.op_run import OpRun

from ..errors import PluginError
from ..places import place, raised_at
from .plugin import INTERACTIVE, PLUGINS
from .samples import Sample, array_of
from .schema import refusals

if TYPE_CHECKING:
    from .operator import Operator

__all__ = [
    "element_types",
    "expected",
    "feeds_of",
    "fused_model",
    "initialised",
    "node_model",
    "random_array",
    "reference_operators",
    "text_model",
]


def text_model(graph: str, constants: Sequence[str]) -> onnx.ModelProto:
    """The model of a graph in ONNX's text; inputs among ``constants`` become initializers.

    Raises:
        ValueError: a constant is no input.
        onnx.parser.ParseError: the text is no graph.
    """
    version = onnx.defs.onnx_opset_version()
    head = f'<ir_version: 10, opset_import: ["": {version}]> sample '
    return initialised(onnx.parser.parse_model(head + graph), constants)


def initialised(model: onnx.ModelProto, constants: Sequence[str]) -> onnx.ModelProto:
    """``model``, its inputs among ``constants`` now initializers of seeded random numbers.

    Raises:
        ValueError: a constant is no input.
    """
    inputs = {info.name: info for info in model.graph.input}
    random = np.random.default_rng(0)
    for name in constants:
        if name not in inputs:
            raise ValueError(f"constant {name!r} is no input; there are {list(inputs)}")
        array = random_array(random, inputs[name])
        model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
        model.graph.input.remove(inputs[name])
    return onnx.shape_inference.infer_shapes(model)


def random_array(random: np.random.Generator, info: onnx.ValueInfoProto) -> np.ndarray:
    """Normal floats of a static input; integers and bools 0 or 1."""
    tensor = info.type.tensor_type
    shape = [dim.dim_value for dim in tensor.shape.dim]
    dtype = helper.tensor_dtype_to_np_dtype(tensor.elem_type)
    return array_of(random, shape, dtype.name)


def feeds_of(sample: Sample) -> dict[str, np.ndarray]:
    """The arrays of a sample by the input names of its models."""
    return {f"x{k}": array for k, array in enumerate(sample.inputs) if array is not None}


def node_model(operator: Operator, sample: Sample, *, symbolic: bool = False) -> onnx.ModelProto:
    """The model of one node, for the shapes of ``sample`` or for any of its family.

    Raises:
        PluginError: the types of its outputs cannot be inferred.
    """
    names = [f"x{k}" if array is not None else "" for k, array in enumerate(sample.inputs)]
    results = [f"y{k}" for k in range(_outputs(operator))]
    node = _node(operator, names, results, sample)
    return _model(operator, [node], _inputs(sample, symbolic), results)


def fused_model(operator: Operator, sample: Sample) -> onnx.ModelProto:
    """``Abs(operator(Neg(x0), ...))``, which fusion may make one kernel.

    Not takes the place of Neg or Abs on bools, Abs that of Neg on unsigned integers.
    """
    alone = node_model(operator, sample).graph.output
    kind = helper.tensor_dtype_to_np_dtype(alone[0].type.tensor_type.elem_type).kind
    names = [f"x{k}" if array is not None else "" for k, array in enumerate(sample.inputs)]
    results = [f"y{k}" for k in range(_outputs(operator))]
    nodes = [
        helper.make_node(_producer(sample)[0], ["x0"], ["produced"], "producer"),
        _node(operator, ["produced", *names[1:]], ["inner", *results[1:]], sample),
        helper.make_node("Not" if kind == "b" else "Abs", ["inner"], ["y0"], "consumer"),
    ]
    return _model(operator, nodes, _inputs(sample, False), results)


def _producer(sample: Sample) -> tuple[str, Callable[[np.ndarray], np.ndarray]]:
    """An operator for the first input, which is there, and what it means."""
    assert sample.inputs[0] is not None
    kind = sample.inputs[0].dtype.kind
    if kind == "b":
        return "Not", np.logical_not
    return ("Abs", np.abs) if kind == "u" else ("Neg", np.negative)


def expected(operator: Operator, sample: Sample, *, fused: bool = False) -> list[np.ndarray]:
    """What the numpy reference answers, computed in float64.

    Raises:
        PluginError: it raises, or gives another number of outputs than the schema.
    """
    inputs = [_wide(array) for array in sample.inputs]
    if fused and inputs[0] is not None:
        inputs[0] = _producer(sample)[1](inputs[0])
    arrays = _referred(operator, inputs, sample)
    if not fused:
        return arrays
    consumed = np.logical_not(arrays[0]) if arrays[0].dtype.kind == "b" else np.abs(arrays[0])
    return [consumed, *arrays[1:]]


def element_types(operator: Operator, sample: Sample) -> list[set[str]]:
    """The types that each output may have; empty where the reference does not tell.

    An integer, a bool, or a float that is not float64 is what the reference says. A float64 may
    be what it was given: then it is that of a float input, or of the reference on the sample's own
    types.
    """
    floats = {x.dtype.name for x in sample.inputs if x is not None and x.dtype.kind not in "biu"}
    told = [array.dtype.name for array in expected(operator, sample)]
    if "float64" not in told:
        return [{name} for name in told]
    own = [array.dtype.name for array in _referred(operator, sample.inputs, sample)]
    return [
        {name} if name != "float64" else floats and {*floats, another}
        for name, another in zip(told, own, strict=True)
    ]


def _referred(
    operator: Operator, inputs: Sequence[np.ndarray | None], sample: Sample
) -> list[np.ndarray]:
    assert operator.numpy is not None  # asked for by the contract first
    at = place(operator.numpy.__code__)
    try:
        results = operator.numpy(*inputs, **sample.attributes)
    except Exception as error:
        where = raised_at(error, at)
        raise PluginError(f"{where}: {type(error).__name__}: {error}") from error
    arrays = [np.asarray(r) for r in (results if isinstance(results, tuple | list) else [results])]
    if len(arrays) != _outputs(operator):
        raise PluginError(f"{at}: {len(arrays)} outputs, the schema has {_outputs(operator)}")
    return arrays


def reference_operators() -> list[type[OpRun]]:
    """The numpy references of all plugins, as ``onnx.reference.ReferenceEvaluator`` takes them."""
    plugins = [INTERACTIVE, *PLUGINS.values()]
    operators = [operator for plugin in plugins for operator in plugin.operators]
    return [_op_run(operator, operator.numpy) for operator in operators if operator.numpy]


def _op_run(operator: Operator, function: Callable[..., object]) -> type[OpRun]:
    """The class for ONNX's evaluator; floats are computed in float64, as everywhere."""

    def run(_self: OpRun, *inputs: np.ndarray | None, **attributes: object) -> tuple:
        results = function(*map(_wide, inputs), **attributes)
        results = results if isinstance(results, tuple | list) else [results]
        floats = [x.dtype for x in inputs if x is not None and x.dtype.kind not in "biu"]
        return tuple(
            r.astype(floats[0]) if floats and r.dtype == np.float64 else r
            for r in map(np.asarray, results)
        )

    return type(operator.op_type, (OpRun,), {"op_domain": operator.domain, "_run": run})


def _wide(array: np.ndarray | None) -> np.ndarray | None:
    return array if array is None or array.dtype.kind in "biu" else array.astype("float64")


def _outputs(operator: Operator) -> int:
    return len(operator.schema.outputs)


def _node(
    operator: Operator, inputs: list[str], outputs: list[str], sample: Sample
) -> onnx.NodeProto:
    return helper.make_node(
        operator.op_type, inputs, outputs, "node", domain=operator.domain, **sample.attributes
    )


def _inputs(sample: Sample, symbolic: bool) -> Mapping[str, tuple[np.dtype, tuple]]:
    shapes = [array.shape if array is not None else () for array in sample.inputs]
    if symbolic and sample.symbolic is not None:
        shapes = list(sample.symbolic)
    elif symbolic:
        shapes = [tuple(f"d{size}" for size in shape) for shape in shapes]
    return {
        f"x{k}": (array.dtype, shape)
        for k, (array, shape) in enumerate(zip(sample.inputs, shapes, strict=True))
        if array is not None
    }


def _model(
    operator: Operator,
    nodes: list[onnx.NodeProto],
    inputs: Mapping[str, tuple[np.dtype, tuple]],
    outputs: list[str],
) -> onnx.ModelProto:
    graph = helper.make_graph(
        nodes,
        operator.op_type,
        [
            helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(dtype), shape)
            for name, (dtype, shape) in inputs.items()
        ],
        [helper.make_empty_tensor_value_info(name) for name in outputs],
    )
    versions = {"": onnx.defs.onnx_opset_version(), operator.domain: max(operator.versions)}
    imports = [helper.make_opsetid(domain, version) for domain, version in versions.items()]
    with refusals() as reasons:
        model = onnx.shape_inference.infer_shapes(helper.make_model(graph, opset_imports=imports))
    if any(not info.type.tensor_type.elem_type for info in model.graph.output):
        reason = reasons[0] if reasons else "the schema's inference gives none"
        raise PluginError(f"the types of the outputs are not known: {reason}")
    return model
