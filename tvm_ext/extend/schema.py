"""What ONNX knows of an operator: derived from its converter, registered with ``onnx.defs``.

A registered operator is checked by ``onnx.checker`` when a model is loaded, and takes part in
ONNX shape inference, so that rewrites around it know its shapes.
"""

from __future__ import annotations

import logging
import traceback
import types
import typing
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from functools import partial
from inspect import Parameter, signature

import numpy as np
import onnx
from onnx import AttributeProto, defs, helper, shape_inference
from onnx.defs import OpSchema
from tvm import relax

from ..errors import PluginError
from ..frontend.builder import Builder
from ..places import place
from .converting import converted

__all__ = ["derive_schema", "refusals", "register_schema"]

_log = logging.getLogger("tvm_ext.extend")

Inference = Callable[[shape_inference.InferenceContext], None]

_Option = OpSchema.FormalParameterOption
_ATTRIBUTES = {
    float: "FLOAT",
    int: "INT",
    bool: "INT",
    str: "STRING",
    (list, float): "FLOATS",
    (list, int): "INTS",
    (list, str): "STRINGS",
}


def derive_schema(
    function: Callable[..., object], op_type: str, domain: str, version: int, outputs: int
) -> OpSchema:
    """The schema that the signature of a converter states.

    Raises:
        PluginError: an attribute has neither a default nor an annotation that tells its type.
    """
    parameters = list(signature(function, eval_str=True).parameters.values())[1:]
    inputs = [p for p in parameters if p.kind is not Parameter.KEYWORD_ONLY]
    attributes = [p for p in parameters if p.kind is Parameter.KEYWORD_ONLY]
    results = [f"output{k}" for k in range(outputs)]
    # Every tensor has a type of its own: what combinations are served, the converter says.
    return OpSchema(
        op_type,
        domain,
        version,
        (function.__doc__ or "").strip(),
        inputs=[
            OpSchema.FormalParameter(p.name, f"T_{p.name}", param_option=_option(p)) for p in inputs
        ],
        outputs=[OpSchema.FormalParameter(name, f"T_{name}") for name in results],
        type_constraints=[
            (f"T_{name}", _tensors(), "") for name in [*(p.name for p in inputs), *results]
        ],
        attributes=[_attribute(p, function) for p in attributes],
    )


def _option(parameter: Parameter) -> _Option:
    if parameter.kind is Parameter.VAR_POSITIONAL:
        return _Option.Variadic
    return _Option.Single if parameter.default is Parameter.empty else _Option.Optional


def _tensors() -> list[str]:
    """The names of all tensor types, as schemas write them: those of Identity."""
    allowed = defs.get_schema("Identity").type_constraints[0].allowed_type_strs
    return [name for name in allowed if name.startswith("tensor(")]


def _attribute(parameter: Parameter, function: Callable[..., object]) -> OpSchema.Attribute:
    kind = _ATTRIBUTES.get(_type(parameter))
    if kind is None:
        raise PluginError(
            f"{place(function.__code__)}: attribute {parameter.name!r} has no type that ONNX "
            "knows: give it a default or an annotation (float, int, str, or a list of one of them)"
        )
    if parameter.default is Parameter.empty or parameter.default is None:
        required = parameter.default is Parameter.empty
        declared = getattr(OpSchema.AttrType, kind)
        return OpSchema.Attribute(parameter.name, declared, required=required)
    default = helper.make_attribute(
        parameter.name, parameter.default, attr_type=AttributeProto.AttributeType.Value(kind)
    )
    return OpSchema.Attribute(parameter.name, default)


def _type(parameter: Parameter) -> object:
    """``float``, or ``(list, float)``, by the annotation or else by the default."""
    noted, default = parameter.annotation, parameter.default
    if noted is Parameter.empty:
        if isinstance(default, list | tuple):
            return list, type(default[0]) if default else None
        return type(default)
    if typing.get_origin(noted) in (typing.Union, types.UnionType):  # float | None
        noted = next(t for t in typing.get_args(noted) if t is not type(None))
    origin = typing.get_origin(noted)
    return (list, typing.get_args(noted)[0]) if origin in (list, tuple) else noted


def register_schema(
    schema: OpSchema,
    versions: Sequence[int],
    function: Callable[..., object],
    undo: ExitStack,
) -> None:
    """Make ``schema`` known to onnx for all ``versions``, with inference by the converter."""
    if schema.has_type_and_shape_inference_function:
        infer = schema.get_type_and_shape_inference_function()
    else:
        infer = partial(_infer, function=function, schema=schema)
    for version in versions:
        own = schema if version == schema.since_version else _at(schema, version)
        own.set_type_and_shape_inference_function(_tolerant(infer))
        defs.register_schema(own)
        undo.callback(defs.deregister_schema, schema.name, version, schema.domain)


def _at(schema: OpSchema, version: int) -> OpSchema:
    return OpSchema(
        schema.name,
        schema.domain,
        version,
        schema.doc or "",
        inputs=list(schema.inputs),
        outputs=list(schema.outputs),
        type_constraints=[
            (c.type_param_str, c.allowed_type_strs, c.description) for c in schema.type_constraints
        ],
        attributes=list(schema.attributes.values()),
    )


_refusals: ContextVar[list[str] | None] = ContextVar("refusals", default=None)


@contextmanager
def refusals() -> Iterator[list[str]]:
    """Collects why converters could not tell types within the block."""
    reasons: list[str] = []
    token = _refusals.set(reasons)
    try:
        yield reasons
    finally:
        _refusals.reset(token)


def _tolerant(infer: Inference) -> Inference:
    """``infer``, whose failure leaves types unknown: onnx would give up the whole model.

    What a converter refuses, conversion reports with the node.
    """

    def tolerant(context: shape_inference.InferenceContext) -> None:
        try:
            infer(context)
        except Exception as error:  # noqa: BLE001  it is told to those who ask
            last = traceback.extract_tb(error.__traceback__)[-1]
            reason = f"{last.filename}:{last.lineno}: {type(error).__name__}: {error}"
            reason = str(error) if isinstance(error, NotImplementedError) else reason
            _log.debug("no shapes: %s", reason)
            reasons = _refusals.get()
            if reasons is not None:
                reasons.append(reason)

    return tolerant


def _infer(
    context: shape_inference.InferenceContext, function: Callable[..., object], schema: OpSchema
) -> None:
    """The types of the outputs: those of what the converter emits for the types of the inputs."""
    results = _emitted(context, function, schema)
    for index, result in enumerate(results[: context.get_num_outputs()]):
        if isinstance(result.ty, relax.TensorType) and result.ty.shape is not None:
            context.set_output_type(index, _type_proto(result.ty))


def _emitted(
    context: shape_inference.InferenceContext, function: Callable[..., object], schema: OpSchema
) -> tuple[relax.Expr, ...]:
    builder = Builder({})
    dims: dict[str, object] = {}
    inputs: list[relax.Expr | None] = []
    for index in range(context.get_num_inputs()):
        inputs.append(_operand(context, index, builder, dims))
    attributes = {
        p.name: _text(helper.get_attribute_value(context.get_attribute(p.name)))
        for p in signature(function).parameters.values()
        if p.kind is Parameter.KEYWORD_ONLY and context.get_attribute(p.name) is not None
    }
    params = [value for value in inputs if isinstance(value, relax.Var)]
    with builder.bb.function("main", params):
        try:
            return converted(function, builder, inputs, attributes, schema)
        finally:
            builder.bb.emit_func_output(relax.Tuple([]))


def _text(value: object) -> object:
    """Strings, where ONNX keeps bytes."""
    if isinstance(value, list):
        return [_text(item) for item in value]
    return value.decode() if isinstance(value, bytes) else value


def _operand(
    context: shape_inference.InferenceContext, index: int, builder: Builder, dims: dict
) -> relax.Expr | None:
    """A constant, or a variable of the input's type; equal names are equal dims."""
    data = context.get_input_data(index)
    if data is not None:
        return builder.const(onnx.numpy_helper.to_array(data))
    ty = context.get_input_type(index)
    if ty is None or not ty.HasField("tensor_type"):
        return None
    if not ty.tensor_type.HasField("shape"):
        raise NotImplementedError(f"the rank of input {index} is not known")
    shape = []
    for axis, dim in enumerate(ty.tensor_type.shape.dim):
        name = dim.dim_param or f"input{index}_{axis}"
        if not dim.HasField("dim_value") and name not in dims:
            dims[name] = builder.fresh_dim(name)
        shape.append(dim.dim_value if dim.HasField("dim_value") else dims[name])
    dtype = helper.tensor_dtype_to_np_dtype(ty.tensor_type.elem_type)
    return relax.Var(f"x{index}", relax.TensorType(shape, np.dtype(dtype).name))


def _type_proto(ty: relax.TensorType) -> onnx.TypeProto:
    """Static dims, and dims that are one of the inputs' names; others stay unknown."""
    dims = [int(d) if hasattr(d, "value") else str(d) for d in ty.shape.values]
    known = [d if isinstance(d, int) or d.isidentifier() else None for d in dims]
    dtype = np.dtype(str(ty.dtype.dtype))
    return helper.make_tensor_type_proto(helper.np_dtype_to_tensor_dtype(dtype), known)
