"""Operators without a converter replaced by the function that ONNX defines them by.

Before::

    y = Celu <alpha = 2.0> (x)

After::

    a = Constant <value_float = 2.0> ()     the body in onnx.defs, its attributes filled in
    ...
    y = Mul(a, elu)

Bodies that depend on the node's attributes and input types are asked of ONNX for that node.
"""

import logging

import onnx
import onnx_ir as ir
from onnx import defs
from onnx_ir.passes.common import InlinePass, ShapeInferencePass

from ..table import lookup
from .inline import changed_operators

__all__ = ["expand_functions"]

_log = logging.getLogger(__name__)

_DOMAIN = "tvm_ext.expanded"  # of the functions that exist while this pass runs
_ROUNDS = 8  # bodies use operators that are functions themselves; ONNX nests them 3 deep


def expand_functions(model: ir.Model) -> ir.Model:
    """Expand until every operator has a converter or has no function body.

    A node whose body cannot be had (types unknown, or written for an opset in which its
    operators differ) stays, and conversion reports it.
    """
    for _ in range(_ROUNDS):
        pending = [
            (node, schema)
            for node in ir.traversal.RecursiveGraphIterator(model.graph)
            if (schema := _expandable(node, model.opset_imports)) is not None
        ]
        if any(schema.has_context_dependent_function for _, schema in pending):
            ShapeInferencePass(check_type=False, strict_mode=False)(model)
        expanded = [_make_call(node, schema, model) for node, schema in pending]
        if not any(expanded):
            break
        InlinePass(lambda function: function.domain == _DOMAIN)(model)
    return model


def _expandable(node: ir.Node, opsets: dict[str, int]) -> defs.OpSchema | None:
    """The schema of a node that has a function body and no converter."""
    opset = opsets.get(node.domain, 1)
    since, converter = lookup(node.domain, node.op_type, opset)
    if converter is not None or since == 0 or not defs.has(node.op_type, node.domain):
        return None
    schema = defs.get_schema(node.op_type, opset, node.domain)
    return schema if schema.has_function or schema.has_context_dependent_function else None


def _make_call(node: ir.Node, schema: defs.OpSchema, model: ir.Model) -> bool:
    """Turn ``node`` into a call of a function added to the model; False if there is no body."""
    attributes = dict(node.attributes)
    for name, attribute in schema.attributes.items():
        if name not in attributes and attribute.default_value.name:
            attributes[name] = ir.serde.deserialize_attribute(attribute.default_value)
    proto = _body(node, schema, attributes, model.opset_imports[node.domain])
    if proto is None:
        _log.debug("%s %r stays: ONNX gives no body for it", node.op_type, node.name)
        return False
    proto.domain, proto.name = _DOMAIN, f"{node.op_type}_{len(model.functions)}"
    outputs = _drop_absent_outputs(proto, node)
    function = ir.from_proto(proto)
    function.opset_imports.setdefault(node.domain, schema.since_version)
    for domain, version in model.opset_imports.items():
        function.opset_imports.setdefault(domain, version)  # made for this node's model
    changed = changed_operators(function, model.opset_imports)
    if changed:
        _log.debug("%s %r stays: its body was written before %s changed",
                   node.op_type, node.name, ", ".join(changed))  # fmt: skip
        return False
    function.opset_imports.clear()  # those of the model, from here on
    model.functions[function.identifier()] = function
    # A body made for this node has its graphs inside already.
    graphs = (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS)
    call = ir.Node(
        _DOMAIN, function.name, node.inputs,
        [a for a in attributes.values() if a.type not in graphs],
        num_outputs=len(outputs), name=node.name, metadata_props=node.metadata_props,
    )  # fmt: skip
    ir.convenience.replace_nodes_and_values(node.graph, node, [node], [call], outputs, call.outputs)
    return True


def _drop_absent_outputs(proto: onnx.FunctionProto, node: ir.Node) -> list[ir.Value]:
    """The outputs of ``node`` that the body computes; the others leave the function too."""
    computed = {name for inner in proto.node for name in inner.output} | set(proto.input)
    kept = [(name, value) for name, value in zip(proto.output, node.outputs, strict=False)
            if name in computed]  # fmt: skip
    proto.output[:] = [name for name, _ in kept]
    return [value for _, value in kept]


def _body(
    node: ir.Node, schema: defs.OpSchema, attributes: dict[str, ir.Attr], opset: int
) -> onnx.FunctionProto | None:
    versions = [v for v in schema.function_opset_versions if v <= opset]
    if versions:
        data = schema.get_function_with_opset_version(max(versions))
    else:
        types = [_type(value) for value in node.inputs]
        if None in types:
            return None
        proto = ir.to_proto(node)
        del proto.attribute[:]
        proto.attribute.extend(ir.to_proto(attribute) for attribute in attributes.values())
        versions = [v for v in schema.context_dependent_function_opset_versions if v <= opset]
        data = b"" if not versions else schema.get_context_dependent_function_with_opset_version(
            max(versions), proto.SerializeToString(), types
        )  # fmt: skip
    return onnx.FunctionProto.FromString(data) if data else None


def _type(value: ir.Value | None) -> bytes | None:
    """The serialised type of an input; an absent one has an empty type, None: not known."""
    if value is None:
        return b""
    if value.type is None:
        return None
    proto = ir.serde.serialize_type(value.type)
    if value.shape is not None:
        ir.serde.serialize_shape_into(proto, value.shape)
    return proto.SerializeToString()
