"""The converters of tvm_ext in the table of TVM's own ONNX importer.

``tvm.relax.frontend.onnx.from_onnx`` (0.27) knows 164 operators of the default domain by name
alone; others raise ``OpNotImplemented``, as do versions and run-time operands that it does not
take, and some that it takes come out wrong. Within ::

    with converters_in_tvm():
        module = from_onnx(model)

it finds the converters that are registered here, those of plugins and of other domains too: for
what it lacks or refuses, for the operators :data:`WRONG`, and for those that the call names.

What stays as it is: operators whose attributes are graphs, as Loop and Scan (TVM walks graphs
itself), and dtypes that Relax has not.

Of the node cases of the official suite of onnx 1.23.2, 38 % pass without the patch and 82 % with
it (541 drawn at random, 2026-11-21; ``python -m tests.patches.upstream_suite`` runs all).

Upstream: ``_get_convert_map`` in ``tvm/relax/frontend/onnx/onnx_frontend.py`` builds the table anew
on every call, so there is no table to register in; the function is replaced while in the context.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar

import numpy as np
import onnx
import onnx_ir as ir
from tvm import relax, tirx
from tvm.relax.frontend.onnx import onnx_frontend
from tvm.sym import ConstIntBound
from tvm.tirx.analysis import undefined_vars
from tvm_ext.frontend import shape_arithmetic
from tvm_ext.frontend.builder import Builder
from tvm_ext.frontend.known import MAX_ELEMENTS, Known
from tvm_ext.frontend.table import TABLE, lookup

from .replacement import of_attribute

__all__ = ["WRONG", "converters_in_tvm"]

#: What TVM's importer takes and computes wrongly, or cannot build, by the official suite.
WRONG = frozenset(
    "BatchNormalization BitShift Cast CastLike ConstantOfShape ConvTranspose Dropout Expand "
    "InstanceNormalization IsInf LayerNormalization MaxPool Mish Mod NonMaxSuppression OneHot "
    "ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean ReduceMin ReduceProd "
    "ReduceSum ReduceSumSquare RoiAlign Shape SpaceToDepth".split()
)

_SHAPES = {"Size", "Shape"}  # TVM's results of these are no tensors, which most operators refuse

_CONTROL_FLOW = {"If", "Loop", "Scan", "SequenceMap"}  # their graphs need our own walk
_LARGEST_DIM = 1 << 40  # more than memory holds; products of two still fit int64
_chosen: list[frozenset[str]] = []  # by the contexts that are open
_builder: ContextVar = ContextVar("builder")  # of the import that is going on


@contextmanager
def converters_in_tvm(*operators: str) -> Iterator[None]:
    """Within the context TVM's importer uses our converters where its own fail.

    Args:
        operators: further ones to prefer ours for, by name; ``"domain.Name"`` in other domains.

    Raises:
        ValueError: an operator that tvm_ext has no converter for.
    """
    unknown = sorted(set(operators) - _ours())
    if unknown:
        raise ValueError(f"tvm_ext converts no {', '.join(unknown)}")
    choice = frozenset(operators)
    with ExitStack() as stack:
        for replacement in _REPLACEMENTS:
            stack.enter_context(replacement.open())
        _chosen.append(choice)
        stack.callback(_chosen.remove, choice)
        yield


def _ours() -> set[str]:
    names = {f"{domain}.{op}" if domain else op for domain, op, _ in TABLE}
    return names - _CONTROL_FLOW


def _with_ours(original: Callable) -> Callable:
    def table() -> dict[str, object]:
        theirs = original()
        ours = {
            name: _Entry(name, theirs.get(name), name in WRONG.union(_SHAPES, *_chosen))
            for name in _ours()
        }
        return theirs | ours

    return table


def _with_domains(original: Callable) -> Callable:
    def from_onnx(importer, graph: onnx.GraphProto, opset: int):
        token = _builder.set(_Import(importer.bb, opset))
        try:
            return original(importer, _qualified(graph), opset)
        finally:
            _builder.reset(token)

    return from_onnx


_REPLACEMENTS = (
    of_attribute(onnx_frontend, "_get_convert_map", _with_ours),
    of_attribute(onnx_frontend.ONNXGraphImporter, "from_onnx", _with_domains),
)


def _qualified(graph: onnx.GraphProto) -> onnx.GraphProto:
    """``graph`` with nodes of other domains called "domain.Name", where we convert those."""
    ours = _ours()
    if not any(f"{node.domain}.{node.op_type}" in ours for node in graph.node):
        return graph
    renamed = onnx.GraphProto()
    renamed.CopyFrom(graph)
    for node in renamed.node:
        name = f"{node.domain}.{node.op_type}"
        if name in ours:
            node.op_type = name
    return renamed


class _Entry:
    """What TVM's table holds for an operator: ``get_converter`` by opset."""

    def __init__(self, name: str, theirs: type | None, prefer_ours: bool):
        self.domain, _, self.op_type = name.rpartition(".")
        self.theirs = theirs
        self.prefer_ours = prefer_ours

    def get_converter(self, opset: int) -> Callable:
        """A converter that tries ours and TVM's, whichever is preferred first."""
        ours, theirs = self._of_ours(opset), self._of_tvm(opset)
        if ours is None and theirs is None:
            raise NotImplementedError(f"{self.op_type} in opset {opset}")

        def convert(bb, inputs, attr: dict, params):
            known = any(value in _builder.get().known for value in inputs)
            order = (ours, theirs) if self.prefer_ours or known else (theirs, ours)
            *first, last = [candidate for candidate in order if candidate is not None]
            for candidate in first:
                try:
                    result = candidate(bb, type(inputs)(inputs), dict(attr), params)
                    # Some calls are refused only when their type is asked for.
                    return bb.normalize(result) if isinstance(result, relax.Expr) else result
                except Exception:  # noqa: BLE001  TVM's converters refuse by any class
                    continue
            return last(bb, inputs, attr, params)

        return convert

    def _of_tvm(self, opset: int) -> Callable | None:
        try:
            return self.theirs and self.theirs.get_converter(opset)
        except NotImplementedError:
            return None

    def _of_ours(self, opset: int) -> Callable | None:
        if self.domain:
            function = _only_version(self.domain, self.op_type)
        else:
            _, function = lookup("", self.op_type, opset)
        if function is None:
            return None

        def convert(bb, inputs, attr: Mapping[str, object], params):
            attributes = {name: _attribute(value) for name, value in attr.items()}
            outputs = attributes.pop("tvm_custom", {}).get("num_outputs", 1)
            attributes.pop("consumed_inputs", None)  # opset 1's hint on memory: no meaning
            builder = _builder.get()
            operands = [builder.operand(value, params[1]) for value in inputs]
            node = ir.Node(self.domain, self.op_type, [None] * len(inputs), num_outputs=outputs)
            return builder.call(node, function, operands, attributes)

        return convert


def _only_version(domain: str, op_type: str) -> Callable | None:
    """The converter of an operator whose domain's version TVM does not tell.

    Raises:
        NotImplementedError: it depends on the version.
    """
    functions = {f for (d, o, _), f in TABLE.items() if (d, o) == (domain, op_type)}
    if len(functions) > 1:
        raise NotImplementedError(
            f"{domain}.{op_type}: TVM's importer knows no version of {domain}"
        )
    return functions.pop()


class _Import(Builder):
    """Emits into the block builder of TVM's importer."""

    def __init__(self, bb: relax.BlockBuilder, opset: int):
        super().__init__({"": opset})
        self.bb = bb
        self._bounded: set[tirx.Var] = set()

    def call(
        self,
        node: ir.Node,
        function: Callable,
        operands: Sequence[relax.Expr | None],
        attributes: Mapping[str, object],
    ) -> relax.Expr:
        """The result of a converter; a tuple of several, of which ``node`` may lack the last."""
        folded = self._folded(node.op_type, operands, attributes)
        if folded is not None:
            return folded
        self.node = node
        try:
            results = function(self, *operands, **attributes)
        finally:
            self.node = None
        if not isinstance(results, tuple):
            return results
        results = results[: len(node.outputs)]
        return results[0] if len(results) == 1 else relax.Tuple(list(results))

    @property
    def known(self) -> Mapping[relax.Var, Known]:
        """Values known at compile time of which TVM's converters do not know."""
        return self._known

    def _folded(
        self,
        op_type: str,
        operands: Sequence[relax.Expr | None],
        attributes: Mapping[str, object],
    ) -> relax.Expr | None:
        """The result of shape arithmetic on what is known."""
        arrays = [None if value is None else self.static(value) for value in operands]
        if not shape_arithmetic.is_shape_arithmetic(op_type) or any(a is None for a in arrays):
            return None
        inputs = [
            Known(array, self.dtype(value)) for array, value in zip(arrays, operands, strict=True)
        ]
        result = shape_arithmetic.evaluate(op_type, inputs, dict(attributes), self._analyzer)
        return None if result is None else self.materialise(result)

    def operand(self, value: relax.Expr | None, params: Mapping) -> relax.Expr | None:
        """An operand as our converters expect it: a tensor, whose known elements are known."""
        if value is None:
            return None
        if isinstance(value, relax.ShapeExpr):  # TVM's form of the elements of a shape
            dims = np.array([self._bound(dim) for dim in value.values], object)
            return self.materialise(Known(dims, "int64"))
        if isinstance(value, relax.Var) and value.name in params:
            self._remember(value, params[value.name][1].numpy())
        if not isinstance(value.ty, relax.TensorType):
            return value
        if value.ty.shape is None and value.ty.ndim >= 0:  # TVM gave up; sizes can still be read
            return self.match(value, [self.fresh_dim() for _ in range(value.ty.ndim)])
        for dim in getattr(value.ty.shape, "values", ()):
            self._bound(dim)
        return value

    def _bound(self, dim: tirx.Expr) -> int | tirx.Expr:
        """A dim of TVM's importer, of whose variables it is now known that they are sizes."""
        for variable in undefined_vars(dim):
            if variable not in self._bounded:
                self._bounded.add(variable)
                self._analyzer.update(variable, ConstIntBound(0, _LARGEST_DIM))
        return self.simplify(dim)

    def _remember(self, value: relax.Var, array: np.ndarray) -> None:
        """Initializers that are inputs: what they hold is known where it can be axes or a shape."""
        if array.dtype.kind == "i" and array.ndim <= 1 and array.size <= MAX_ELEMENTS:
            self._known[value] = Known(array, array.dtype.name)


def _attribute(value: object) -> object:
    """An attribute as ``onnx_ir`` gives it."""
    if isinstance(value, onnx.TensorProto):
        return ir.from_proto(value)
    if isinstance(value, tuple):
        return [_attribute(item) for item in value]
    return value.decode() if isinstance(value, bytes) else value
