"""ONNX to Relax: load, rewrite, convert."""

from .declared import Contradiction, check_declared
from .graph import Conversion, convert
from .host import declared_kind
from .limits import Limits
from .load import load
from .origin import mark_nodes, node_labels
from .refusal import unsupported
from .symbolic_dims import specialise
from .table import TABLE, converter, lookup

__all__ = [
    "TABLE",
    "Contradiction",
    "Conversion",
    "Limits",
    "check_declared",
    "convert",
    "converter",
    "declared_kind",
    "load",
    "lookup",
    "mark_nodes",
    "node_labels",
    "specialise",
    "unsupported",
]

from . import converters  # noqa: F401  registers the built-in converters
