"""Model-local functions replaced by their bodies.

Before::

    y = pkg.swish(x)            with  swish(a) => (b) { s = Sigmoid(a)  b = Mul(a, s) }

After::

    s = Sigmoid(x)
    y = Mul(x, s)
"""

import onnx_ir as ir
from onnx import defs
from onnx_ir.passes.common import InlinePass

from tvm_ext.errors import ModelError

__all__ = ["changed_operators", "inline_functions"]


def inline_functions(model: ir.Model) -> ir.Model:
    """Inline every function, whatever opset it was written for.

    Raises:
        ModelError: a function uses an operator that means something else in the model's opset,
            or takes graphs as attributes.
    """
    for function in model.functions.values():
        changed = changed_operators(function, model.opset_imports)
        if changed:
            raise ModelError(
                f"function {function.domain}.{function.name} is written for opsets "
                f"{function.opset_imports}, the model for {model.opset_imports}; they differ in "
                f"{', '.join(changed)}: export both for one opset"
            )
        function.opset_imports.update(
            {d: v for d, v in model.opset_imports.items() if d in function.opset_imports}
        )
    try:
        InlinePass()(model)
    except (ir.passes.PassError, ValueError) as error:
        raise ModelError(f"a function of the model cannot be inlined: {error}") from error
    return model


def changed_operators(function: ir.Function, opsets: dict[str, int]) -> list[str]:
    """The operators of ``function`` that ``opsets`` would give another meaning, sorted."""
    return sorted({
        node.op_type
        for node in function.all_nodes()
        if not _same_meaning(_schema(node, function.opset_imports), _schema(node, opsets))
    })  # fmt: skip


def _schema(node: ir.Node, opsets: dict[str, int]) -> defs.OpSchema | None:
    try:
        return defs.get_schema(node.op_type, opsets[node.domain], node.domain)
    except (defs.SchemaError, KeyError):
        return None


def _same_meaning(old: defs.OpSchema | None, new: defs.OpSchema | None) -> bool:
    """Whether a node of ``old`` means the same as a node of ``new``.

    Later versions of an operator that only admit more types, inputs or attributes leave its
    signature standing; those that change what it computes change an input, attribute or default.
    """
    if old is None or new is None:
        return old is new
    if old.since_version == new.since_version:
        return True
    inputs = [formal.name for formal in new.inputs[: len(old.inputs)]]
    return [formal.name for formal in old.inputs] == inputs and all(
        name in new.attributes
        and attribute.type == new.attributes[name].type
        and attribute.default_value == new.attributes[name].default_value
        for name, attribute in old.attributes.items()
    )
