"""Walk an ONNX graph and emit Relax. No operator is named here."""

import inspect
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from itertools import chain

import numpy as np
import onnx_ir as ir
from tvm import IRModule, relax, tirx
from tvm.error import InternalError
from tvm.ir import GlobalVar, Type

from tvm_ext.checks import CHECKS
from tvm_ext.errors import ConversionError, InputRankError, ModelError, UnsupportedNode
from tvm_ext.interface import (
    Info,
    MapsInfo,
    TensorInfo,
    TensorType,
    ValueInfo,
    ValueType,
)
from tvm_ext.ops.narrow import STORAGE, STRING

from . import host, shape_arithmetic
from .broadcasting import BROADCASTING
from .builder import Builder
from .declared import Contradiction, checked, dtype_of
from .known import Known
from .limits import Limits, check_value
from .refusal import UnknownRank, is_told, misfit, refusal, unsupported
from .table import lookup
from .traverse import subgraphs
from .whole import whole_kernels, with_calls

__all__ = ["BodyFunction", "Conversion", "Unfit", "convert"]

_NESTING = 4  # nodes in a row that are followed by the rest once per subgraph: it doubles with each

# What a converter, or TVM below it, may raise for a node it cannot serve.
_REFUSALS = (
    NotImplementedError,
    ValueError,
    TypeError,
    KeyError,
    IndexError,
    AttributeError,
    ArithmeticError,
    AssertionError,
    InternalError,
    RuntimeError,
)


@dataclass(frozen=True)
class Conversion:
    """The Relax module of an ONNX model, and where each of its variables comes from.

    Attributes:
        module: ``main`` takes the inputs in order and returns a tuple of the outputs.
        origin: variable name in ``main``, or function, dot and variable name -> the ONNX node that
            emitted it.
        inputs, outputs: ONNX name -> Relax type, in order.
        elements: ONNX name -> element type, of inputs and outputs that TVM has no type for.
        kinds: ONNX name -> type, of inputs and outputs that are no tensors.
        labels: ONNX name -> the labels of the columns, of outputs that are lists of maps.
        strings: those of the model, by their numbers; None where no value holds strings.
        values: variable name in ``main`` -> the ONNX value that it is.
        not_one: dims that are taken to be other than 1.
    """

    module: IRModule
    origin: dict[str, ir.Node]
    inputs: dict[str, Type]
    outputs: dict[str, Type]
    elements: dict[str, str]
    kinds: dict[str, ValueType]
    labels: dict[str, tuple[int | str, ...]]
    strings: list[str] | None
    values: dict[str, str]
    not_one: list[tirx.Var]

    @property
    def input_infos(self) -> list[Info]:
        """The inputs as a user sees them."""
        return [self._info(name, ty) for name, ty in self.inputs.items()]

    @property
    def output_infos(self) -> list[Info]:
        """The outputs likewise."""
        return [self._info(name, ty) for name, ty in self.outputs.items()]

    @property
    def places_not_one(self) -> list[tuple[str, int]]:
        """Inputs and axes of sizes that change the rank of a value where they are 1."""
        return [
            (name, axis)
            for name, ty in self.inputs.items()
            if isinstance(ty, relax.TensorType)
            for axis, dim in enumerate(ty.shape.values)
            if any(dim.same_as(other) for other in self.not_one)
        ]

    def _info(self, name: str, ty: Type) -> Info:
        if name in self.kinds:
            return ValueInfo(name, self.kinds[name])
        tensor = TensorInfo.of(name, ty, self.elements)
        return MapsInfo.of(tensor, self.labels[name]) if name in self.labels else tensor


def convert(model: ir.Model, limits: Limits | None = None) -> Conversion:
    """Convert ``model``; ``main`` takes the graph inputs in order, initializers are constants.

    Raises:
        ConversionError: lists every node that cannot be converted.
        InputRankError: an input has no shape.
        ModelError: an inferred element type contradicts the declared one.
        Contradiction: an inferred shape does.
        ModelLimitError: a value is larger than ``limits`` allow.
    """
    missing = unsupported(model)
    if missing:
        raise ConversionError(missing)

    graph = model.graph
    builder = Builder(dict(model.opset_imports), limits)
    walk = _Walk(builder)
    inputs = [value for value in graph.inputs if value.name not in graph.initializers]
    params = [walk.parameter(value) for value in inputs]
    # Control flow cannot stand in a dataflow block; the pure stretches become blocks afterwards.
    straight = not any(_subgraphs(node) for node in graph)
    with builder.bb.function("main", params, pure=straight):
        with builder.bb.dataflow() if straight else nullcontext():
            with builder.checked({}):
                walk.graph(graph)
                # After a failure the block is incomplete; leave the builder before reporting.
                outputs = [] if walk.failed else walk.outputs(graph)
            results = relax.Tuple(outputs)
            if straight:
                results = builder.bb.emit_output(results)
        builder.bb.emit_func_output(results)
    if walk.errors:
        raise walk.errors[0]
    if builder.contradictions:  # which may be why there are failures
        raise Contradiction(builder.contradictions)
    if walk.failures:
        raise ConversionError(walk.failures) from walk.cause
    module = with_calls(builder.bb.get(), walk.whole).with_attr(CHECKS, builder.checks)
    for function in walk.discarded:
        del module[function]
    return Conversion(
        module if straight else relax.transform.ConvertToDataflow(min_size=1)(module),
        builder.origin,
        {value.name: param.ty for value, param in zip(inputs, params, strict=True)},
        {value.name: out.ty for value, out in zip(graph.outputs, outputs, strict=True)},
        {
            value.name: element
            for value in (*inputs, *graph.outputs)
            if isinstance(walk.values[value].ty, relax.TensorType)
            and (element := builder.element(walk.values[value])) in STORAGE
        },
        {
            value.name: builder.kinds[result]
            for value, result in zip((*inputs, *graph.outputs), (*params, *outputs), strict=True)
            if result in builder.kinds
        },
        {
            value.name: builder.labels[result]
            for value, result in zip(graph.outputs, outputs, strict=True)
            if result in builder.labels
        },
        builder.strings.texts if builder.holds_strings else None,
        {e.name: v.name for v, e in walk.values.items() if isinstance(e, relax.Var) and v.name},
        builder.not_one,
    )


@dataclass(frozen=True)
class BodyFunction:
    """The function made of a subgraph; ``captured`` are its last arguments.

    ``results`` are values inside of it: only what is known of them has a meaning outside.
    """

    function: GlobalVar
    captured: list[relax.Expr]
    parameters: list[Type]
    results: list[relax.Expr]


@dataclass(frozen=True)
class Rest:
    """The nodes of a graph that depend on one of its nodes, and the outputs that they give."""

    node: ir.Node
    nodes: list[ir.Node]
    outputs: list[ir.Value]


class Unfit(Exception):
    """A subgraph that what follows cannot be converted behind; ``failures`` say why."""

    def __init__(self, failures: list[UnsupportedNode]):
        self.failures = failures
        super().__init__("; ".join(map(str, failures)))


class _Walk:
    """One pass over a graph in topological order; ``values`` maps ONNX values to Relax."""

    def __init__(self, builder: Builder):
        self.builder = builder
        builder.walk = self
        self.values: dict[ir.Value, relax.Expr] = {}
        self.dims: dict[str, tirx.Var] = {}  # symbolic dims of the model by name
        self.errors: list[ModelError] = []  # raised when the builder has been left
        self.failures: list[UnsupportedNode] = []
        self.cause: Exception | None = None  # of the first failure
        self.whole: dict[relax.Var, relax.Call] = {}  # kernels that are a whole node
        self.functions = 0  # made of subgraphs
        self.owners: dict[ir.Graph, ir.Node] = {}  # of the subgraphs met so far
        self.widened: dict[ir.Node, dict[int, int]] = {}  # see ``widen``
        self.left: deque[ir.Node] = deque()  # of the graph that is converted, still to be
        self.continued: set[ir.Node] = set()  # see ``rest``
        self.nesting = 0  # how many of these the builder stands behind
        self.discarded: list[GlobalVar] = []

    def parameter(self, value: ir.Value) -> relax.Var:
        """The Relax parameter of a graph input."""
        held = host.declared_kind(value)
        if held is not None and not isinstance(held, TensorType):
            var = relax.Var(_identifier(value.name), relax.AnyType())
            self.values[value] = host.like(self.builder, var, held)
            return var
        if not isinstance(value.type, ir.TensorType):
            raise ModelError(f"input {value.name!r} is {value.type}; needs a tensor")
        if value.shape is None:
            raise InputRankError(f"input {value.name!r} has no shape: give its rank by shapes")
        shape = [self._dim(dim, value.name, axis) for axis, dim in enumerate(value.shape)]
        dtype = dtype_of(value.dtype, value.name)
        check_value(
            value.name, shape, np.dtype(STORAGE.get(dtype, dtype)).itemsize, self.builder.limits
        )
        held = relax.TensorType(shape, STORAGE.get(dtype, dtype))
        var = self.builder.of_element(relax.Var(_identifier(value.name), held), dtype)
        self.values[value] = var
        return var

    def _dim(self, dim: object, name: str, axis: int) -> int | tirx.Var:
        if isinstance(dim, int):
            return dim
        label = dim.value or f"{name}_{axis}"
        if label not in self.dims:
            self.dims[label] = self.builder.parameter_dim(label)
        return self.dims[label]

    def graph(self, nodes: Iterable[ir.Node]) -> None:
        """Convert the nodes of a graph; failures are collected, their consumers skipped."""
        outer, self.left = self.left, deque(nodes)
        try:
            while self.left:
                self._visit(self.left.popleft())
        finally:
            self.left = outer

    def _visit(self, node: ir.Node) -> None:
        operands = [None if value is None else self.tensor(value) for value in node.inputs]
        absent = (
            value is not None and operand is None
            for value, operand in zip(node.inputs, operands, strict=True)
        )
        if not any(absent):
            self.node(node, operands)

    def tensor(self, value: ir.Value) -> relax.Expr | None:
        """The Relax expression of an ONNX value; None after a failure upstream."""
        if value not in self.values and value.const_value is not None:
            array = value.const_value.numpy()
            self.values[value] = self.builder.const(array)
        return self.values.get(value)

    @property
    def failed(self) -> bool:
        """Whether anything could not be converted."""
        return bool(self.errors or self.failures)

    def outputs(self, graph: ir.Graph) -> list[relax.Expr]:
        """The Relax expressions of the outputs of a model."""
        return [self._output(value) for value in graph.outputs]

    def _output(self, value: ir.Value) -> relax.Expr:
        result = host.hosted(self.builder, self.tensor(value))
        if result in self.builder.kinds:  # what the model says is known better
            declared = host.declared_kind(value)
            self.builder.kinds[result] = declared or self.builder.kinds[result]
        return result

    # --- subgraphs, for the converters of control flow ------------------------------------

    def inline(self, graph: ir.Graph, arguments: Sequence[relax.Expr]) -> list[relax.Expr]:
        """Convert a subgraph where the builder stands; its results.

        Raises:
            NotImplementedError: it has nodes that cannot be converted.
        """
        node, failures = self.builder.node, len(self.failures) + len(self.errors)
        self.owners[graph] = node
        self.values.update(zip(graph.inputs, arguments, strict=True))
        self.graph(graph)
        self.builder.node = node
        if len(self.failures) + len(self.errors) > failures:
            raise NotImplementedError(f"subgraph {graph.name!r} cannot be converted")
        return [self.tensor(value) for value in graph.outputs]

    def rest(self) -> Rest:
        """Take over the nodes behind the one that is converted: nothing else converts them.

        Those that do not depend on it are converted here.

        Raises:
            NotImplementedError: it stands behind too many such nodes.
        """
        node = self.builder.node
        if self.nesting == _NESTING:
            raise NotImplementedError(f"it follows {_NESTING} others such")
        self.continued.add(node)
        reached, depending, free = set(node.outputs), [], []
        for each in self.left:
            if reached.isdisjoint(_read(each)):
                free.append(each)
            else:
                reached.update(each.outputs)
                depending.append(each)
        self.left.clear()
        self.graph(free)
        self.builder.node = node
        return Rest(node, depending, [v for v in dict.fromkeys(node.graph.outputs) if v in reached])

    def after(self, graph: ir.Graph, rest: Rest) -> list[relax.Expr]:
        """Convert a subgraph and ``rest`` behind it, where the builder stands: what rest gives.

        Raises:
            Unfit: with the nodes that cannot be converted; the model may yet be.
        """
        failures, values, widened = self.failures, self.values, self.widened
        self.failures, self.values, self.widened = [], dict(values), dict(widened)
        self.nesting += 1
        try:
            with suppress(NotImplementedError):  # its nodes are among the failures
                results = self.inline(graph, [])
                self.values.update(zip(rest.node.outputs, results, strict=True))
                self.graph(rest.nodes)
            if self.failures:
                raise Unfit(self.failures)
            found = [self.tensor(value) for value in rest.outputs]
            return [host.hosted(self.builder, x) for x in found if x is not None]
        finally:
            self.nesting -= 1
            self.failures, self.values, self.widened = failures, values, widened
            self.builder.node = rest.node

    def end(self, rest: Rest, results: Sequence[relax.Expr]) -> None:
        """Let ``results`` be what ``rest`` gives."""
        for value, result in zip(rest.outputs, results, strict=True):
            self.values[value] = checked(
                self.builder, value, host.of_any_rank(self.builder, result)
            )

    def widen(self, ranks: Mapping[ir.Value, int]) -> None:
        """Allow values, whose ranks depend on data, to have ``ranks``: more dims are 1, in front.

        Where they go they must be broadcast against operands of that rank, as :meth:`node` checks.

        Raises:
            UnknownRank: one goes elsewhere; nothing is allowed.
        """
        found: dict[ir.Node, dict[int, int]] = {}
        for value, rank in ranks.items():
            self._widen(value, rank, found)
        for use, places in found.items():
            self.widened[use] = self.widened.get(use, {}) | places

    def _widen(self, value: ir.Value, rank: int, found: dict[ir.Node, dict[int, int]]) -> None:
        owner = self.owners.get(value.graph) if value.graph is not None else None
        if value.is_graph_output():
            if owner is None or owner.op_type != "If":
                raise UnknownRank
            for place, output in enumerate(value.graph.outputs):
                if output is value:
                    self._widen(owner.outputs[place], rank, found)
        for use, place in value.uses():
            if use.op_type == "CastLike" and place == 1:
                continue
            if use.op_type not in BROADCASTING:
                raise UnknownRank(f"the result, which {use.op_type} takes,")
            found.setdefault(use, {})[place] = rank

    def _check_widened(self, node: ir.Node, operands: Sequence[relax.Expr | None]) -> None:
        """Another operand has the rank already, so that the rank of the result is that."""
        widened = self.widened.get(node)
        if widened is None:
            return
        others = [x.ty.ndim for k, x in enumerate(operands) if k not in widened and x is not None]
        if max(others, default=0) < max(widened.values()):
            raise UnknownRank

    def captured(self, graph: ir.Graph) -> list[ir.Value]:
        """The run-time values that ``graph`` takes from around it."""
        return [
            value
            for value in dict.fromkeys(_used(graph))
            if isinstance(self.values.get(value), relax.Var | relax.Tuple)
        ]

    def function(
        self,
        name: str,
        graph: ir.Graph,
        types: Sequence[Type],
        body: Callable[[list[relax.Var]], list[relax.Expr]],
    ) -> BodyFunction:
        """A function with parameters of ``types``, then what ``graph`` captures.

        ``body`` maps the parameters of ``types`` to the results. Dims are the function's own:
        equal dims outside are equal inside.
        """
        captured = self.captured(graph)
        outer = [self.values[value] for value in captured]
        own: dict[str, tirx.Var] = {}
        params = [
            relax.Var(f"p{k}", self._own(ty, own))
            for k, ty in enumerate([*types, *(value.ty for value in outer)])
        ]
        for param, value in zip(params[len(types) :], outer, strict=True):
            self.builder.copy_knowledge(value, param)
        outside, self.values = self.values, dict(self.values)
        self.values.update(zip(captured, params[len(types) :], strict=True))
        bb = self.builder.bb
        try:
            # Public: TVM takes unused parameters away from private functions.
            self.functions += 1
            scope, self.builder.scope = self.builder.scope, f"{name}_{self.functions}."
            with bb.function(f"{name}_{self.functions}", params, pure=False):
                results = None
                try:
                    with self.builder.checked({}):
                        results = body(params[: len(types)])
                finally:
                    self.builder.scope = scope
                    gvar = bb.emit_func_output(relax.Tuple(results or []))
        finally:
            self.values = outside
        return BodyFunction(gvar, outer, [p.ty for p in params], results)

    def discard(self, function: GlobalVar) -> None:
        """Take back a function that nothing calls."""
        self.discarded.append(function)

    def _own(self, ty: Type, own: dict[str, tirx.Var]) -> Type:
        if isinstance(ty, relax.AnyType):
            return ty
        if isinstance(ty, relax.TupleType):
            return relax.TupleType([self._own(field, own) for field in ty.fields])
        if not isinstance(ty, relax.TensorType) or ty.shape is None:
            raise NotImplementedError(f"a loop cannot carry a value of type {ty}")
        shape = []
        for dim in ty.shape.values:
            if not isinstance(dim, tirx.IntImm):
                if str(dim) not in own:
                    own[str(dim)] = self.builder.parameter_dim(f"d{len(own)}")
                dim = own[str(dim)]
            shape.append(dim)
        return relax.TensorType(shape, ty.dtype)

    def node(self, node: ir.Node, operands: list[relax.Expr | None]) -> None:
        """Convert one node: the only place where a converter's refusal is caught."""
        opset = self.builder.opsets.get(node.domain, 1)
        since, function = lookup(node.domain, node.op_type, opset)
        self.builder.node = node
        try:
            self._check_widened(node, operands)
            self._check_maps(node, operands)
            results = self._fold(node, operands) or _call(function, self.builder, operands, node)
            if node in self.continued and not results:
                return
            _check_number(node, results)
            self.whole |= whole_kernels(self.builder, node, function, operands, results)
            for value, result in zip(node.outputs, results, strict=False):
                self.values[value] = checked(self.builder, value, result)
        except ModelError as error:
            self.errors.append(error)
        except _REFUSALS as reason:
            text = str(reason) if is_told(reason) else misfit(self.builder, node, operands)
            needs_rank = isinstance(reason, UnknownRank)
            self.failures.append(refusal(node, opset, since, text, needs_rank))
            self.cause = self.cause or reason
        finally:
            self.builder.node = None

    def _check_maps(self, node: ir.Node, operands: Sequence[relax.Expr | None]) -> None:
        """Raise where ``node`` reads a list of maps: to converters it looks like its scores."""
        maps = [
            v.name for v, x in zip(node.inputs, operands, strict=True) if x in self.builder.labels
        ]
        if maps and node.op_type != "Identity":
            raise NotImplementedError(f"its input {maps[0]!r} is a list of maps")

    def _fold(self, node: ir.Node, operands: list[relax.Expr | None]) -> tuple | None:
        """The results of shape arithmetic, evaluated now."""
        if not shape_arithmetic.is_shape_arithmetic(node.op_type):
            return None
        while operands and operands[-1] is None:
            operands = operands[:-1]
        inputs = [self._known(operand) for operand in operands]
        attributes = {name: attr.value for name, attr in node.attributes.items()}
        result = shape_arithmetic.evaluate(node.op_type, inputs, attributes, self.builder._analyzer)
        return None if result is None else (self.builder.materialise(result),)

    def _known(self, operand: relax.Expr | None) -> Known | None:
        if operand is None or not isinstance(operand.ty, relax.TensorType):
            return None
        if self.builder.element(operand) == STRING:
            return None
        array = self.builder.static(operand)
        return None if array is None else Known(array, self.builder.dtype(operand))


def _call(function: Callable, builder: Builder, operands: list, node: ir.Node) -> tuple:
    attributes = {name: attr.value for name, attr in node.attributes.items()}
    signature = inspect.signature(function)
    if "consumed_inputs" not in signature.parameters:  # a hint of opset 1: no meaning
        attributes.pop("consumed_inputs", None)
    _check_arguments(signature, operands, attributes)
    results = function(builder, *operands, **attributes)
    return results if isinstance(results, tuple) else (results,)


def _check_number(node: ir.Node, results: tuple) -> None:
    if any(value.uses() or value.is_graph_output() for value in node.outputs[len(results) :]):
        raise NotImplementedError(f"{len(node.outputs)} outputs; it gives {len(results)}")


def _check_arguments(
    signature: inspect.Signature, operands: list, attributes: dict[str, object]
) -> None:
    """Whether a converter can be called so: its signature is the schema of the operator."""
    _, *parameters = signature.parameters.values()
    unknown = sorted(attributes.keys() - {p.name for p in parameters})
    if unknown:
        raise NotImplementedError(f"unknown attribute {', '.join(unknown)}")
    inputs = [p for p in parameters if p.kind == p.POSITIONAL_OR_KEYWORD]
    many = any(p.kind == p.VAR_POSITIONAL for p in parameters)
    if not many and any(operand is not None for operand in operands[len(inputs) :]):
        raise NotImplementedError(f"{len(operands)} inputs; it has {len(inputs)} at most")
    given = {p.name for p in inputs[: len(operands)]} | attributes.keys()
    missing = [p.name for p in parameters if p.default is p.empty and p.name not in given
               and p.kind != p.VAR_POSITIONAL]  # fmt: skip
    if missing:
        raise NotImplementedError(f"it needs {', '.join(missing)}")


def _subgraphs(node: ir.Node) -> bool:
    kinds = ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS
    return any(attr.type in kinds for attr in node.attributes.values())


def _used(graph: ir.Graph) -> list[ir.Value]:
    """The values that ``graph`` reads or gives, its own and others."""
    every = ir.traversal.RecursiveGraphIterator(graph)
    return [x for node in every for x in node.inputs if x is not None] + list(graph.outputs)


def _read(node: ir.Node) -> set[ir.Value]:
    """The values that ``node`` and its subgraphs read."""
    inner = chain.from_iterable(map(_used, subgraphs(node)))
    return {value for value in chain(node.inputs, inner) if value is not None}


def _identifier(name: str | None) -> str:
    return "".join(c if c.isalnum() else "_" for c in name or "input")
