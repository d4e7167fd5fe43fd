"""The converter table: (domain, operator, since_version) -> converter.

A converter's signature is the ONNX schema: the builder, the ONNX inputs in order (an absent one
is ``None``), then the attributes, keyword-only, with the defaults of the schema. It returns one
relax expression, or a tuple of them in the order of the ONNX outputs::

    @converter("InstanceNormalization", 6, 22)
    def instance_normalization(bb, x, scale, bias, *, epsilon=1e-5):
        return bb.emit_te(instance_norm, x, scale, bias, epsilon)

A converter that cannot serve a node raises ``NotImplementedError`` with a bare reason; the graph
walk adds operator, node and opset.
"""

from collections.abc import Callable
from inspect import unwrap

from onnx import defs

__all__ = ["REFUSED", "TABLE", "Converter", "converter", "lookup", "refuse"]

Converter = Callable[..., object]
Key = tuple[str, str, int]

TABLE: dict[Key, Converter] = {}

#: (domain, operator) -> why there is no converter, and what to do instead.
REFUSED: dict[tuple[str, str], str] = {}


def converter(
    op_type: str, *since: int, domain: str = "", override: bool = False
) -> Callable[[Converter], Converter]:
    """Register a converter for exactly these ``since_version`` s of an operator.

    Domains without a schema in the installed onnx (``com.microsoft``) use version 1. With
    ``override`` it takes the place of the one that is registered.

    Raises:
        ValueError: a version is taken already, or is no version of that operator.
    """

    def register(function: Converter) -> Converter:
        for version in since:
            key = domain, op_type, version
            if key in TABLE and not override:
                raise ValueError(f"{key} is registered already, at {_place(TABLE[key])}")
            if defs.has(op_type, domain) and not _is_since_version(*key):
                raise ValueError(f"{key}: the ONNX schema has no such since_version")
            TABLE[key] = function
        return function

    return register


def refuse(op_type: str, domain: str, reason: str) -> None:
    """Say why an operator has no converter; ``inspect`` and conversion give the reason."""
    REFUSED[domain, op_type] = reason


def _place(function: Converter) -> str:
    code = unwrap(function).__code__
    return f"{code.co_filename}:{code.co_firstlineno}"


def _is_since_version(domain: str, op_type: str, version: int) -> bool:
    try:
        return defs.get_schema(op_type, version, domain).since_version == version
    except defs.SchemaError:
        return False


def lookup(domain: str, op_type: str, opset: int) -> tuple[int, Converter | None]:
    """The ``since_version`` that ``opset`` selects, and its converter if there is one.

    The version is 0 where the opset does not define the operator.
    """
    domain = "" if domain == "ai.onnx" else domain
    if not defs.has(op_type, domain):
        return 1, TABLE.get((domain, op_type, 1))
    try:
        since = defs.get_schema(op_type, opset, domain).since_version
    except defs.SchemaError:
        return 0, None
    return since, TABLE.get((domain, op_type, since))
