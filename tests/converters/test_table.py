"""Every converter's signature is the ONNX schema of the operator versions it serves."""

from collections import defaultdict
from inspect import Parameter, signature

import pytest
from onnx import AttributeProto, defs, helper
from tvm_ext.frontend import TABLE

# Opset 1's hint on reusing memory has no meaning; the graph walk drops it.
MEANINGLESS = {"consumed_inputs"}

# (operator, version, attribute) -> why the converter departs from the schema
EXCEPTIONS = {
    ("Constant", 1, "value"): "constant folding writes the attributes of later versions",
    ("Constant", 9, "value"): "constant folding writes the attributes of later versions",
    ("GRU", 1, "direction"): "the default in the schema is misspelt",
    ("LpPool", 1, "kernel_shape"): "the schema has no default, yet needs it",
    ("Unsqueeze", 1, "axes"): "an input may take its place",
    ("Unsqueeze", 11, "axes"): "an input may take its place",
    ("Split", 1, "split"): "an input and an attribute share the name",
}

STANDARD = sorted(key for key in TABLE if defs.has(key[1], key[0]))
EVER = defaultdict(set)  # the attributes of all versions of an operator
for _schema in defs.get_all_schemas_with_history():
    EVER[_schema.domain, _schema.name] |= set(_schema.attributes)
IDS = [f"{domain or 'ai.onnx'}.{op_type}-{since}" for domain, op_type, since in STANDARD]


def schema_default(attribute):
    """The default of a schema's attribute; Parameter.empty where it is required."""
    if attribute.required:
        return Parameter.empty
    if attribute.default_value.type == AttributeProto.UNDEFINED:
        return None
    value = helper.get_attribute_value(attribute.default_value)
    return value.decode() if isinstance(value, bytes) else value


def agree(declared, expected):
    """Floats agree within float32 rounding, sequences as tuples; an absent one may be empty."""
    if expected is None:
        return declared in (None, ())
    if isinstance(expected, list):
        return list(declared or ()) == [v.decode() if isinstance(v, bytes) else v for v in expected]
    if isinstance(expected, float):
        return declared == pytest.approx(expected, rel=1e-6)
    return declared == expected


@pytest.mark.parametrize("domain, op_type, since", STANDARD, ids=IDS)
def test_attributes_are_those_of_the_schema(domain, op_type, since):
    schema = defs.get_schema(op_type, since, domain)
    parameters = signature(TABLE[domain, op_type, since]).parameters.values()
    declared = {p.name: p.default for p in parameters if p.kind is Parameter.KEYWORD_ONLY}
    differing = {
        name: (declared.get(name, "absent"), schema_default(attribute))
        for name, attribute in schema.attributes.items()
        if name not in MEANINGLESS
        and (op_type, since, name) not in EXCEPTIONS
        and not (name in declared and agree(declared[name], schema_default(attribute)))
    }
    assert not differing

    # One body may serve versions that lack an attribute of another: the checker refuses it there.
    assert declared.keys() <= EVER[domain, op_type]


@pytest.mark.parametrize("domain, op_type, since", STANDARD, ids=IDS)
def test_inputs_are_those_of_the_schema(domain, op_type, since):
    schema = defs.get_schema(op_type, since, domain)
    parameters = list(signature(TABLE[domain, op_type, since]).parameters.values())
    positional = [p for p in parameters if p.kind is Parameter.POSITIONAL_OR_KEYWORD][1:]
    variadic = any(p.kind is Parameter.VAR_POSITIONAL for p in parameters)
    fixed = [i for i in schema.inputs if i.option != defs.OpSchema.FormalParameterOption.Variadic]
    assert variadic == (len(fixed) < len(schema.inputs))
    # A body that serves a later version too may have its further inputs. Trailing optional
    # inputs are left out of a node: they need a default.
    assert len(positional) >= len(fixed)
    required = [p for p in positional if p.default is Parameter.empty]
    assert len(required) <= schema.min_input or variadic


def test_the_table_is_not_empty():
    assert len(STANDARD) > 300
