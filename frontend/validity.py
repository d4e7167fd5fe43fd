"""Whether a model is one that the installed onnx defines."""

import os
import re
from collections.abc import Iterable
from functools import reduce

import onnx
import onnx_ir as ir

from tvm_ext.errors import ModelError

from .limits import Limits, check_value
from .traverse import nodes, tensors

__all__ = ["INVALID", "check_imports", "check_opsets", "check_values", "first_line"]

# What onnx and onnx_ir raise for a model that is none.
INVALID = (onnx.checker.ValidationError, ir.serde.SerdeError, ValueError, TypeError, KeyError,
            IndexError, AttributeError)  # fmt: skip

# What the checker says, and what is said here: nodes are sorted before it sees them.
_OF_CHECKER = (
    (
        re.compile(
            r"Nodes in a graph must be topologically sorted, however input (.*) of node: "
            r"name: (.*?) ?OpType: (\S*) is not output of any previous nodes\."
        ),
        r"input \1 of node '\2' (\3) is no output of a node, no input and no initializer",
    ),
    (re.compile(r"\.? ==> Context: Bad node spec for node\. Name: ?(.*?) ?OpType: ?(\S*)"),
     r", in node '\1' (\2)"),
)  # fmt: skip
_RANK = 64  # that numpy's arrays have at most


def first_line(error: BaseException) -> str:
    """What the innermost cause says: onnx_ir wraps it once per level of the file.

    The checker names the node in lines of their own.
    """
    while inner := error.__cause__ or error.__context__:
        error = inner
    lines = str(error).strip().splitlines()
    if isinstance(error, onnx.checker.ValidationError):
        whole = " ".join(str(error).split())
        lines = [reduce(lambda text, rule: rule[0].sub(rule[1], text), _OF_CHECKER, whole)]
    return lines[0] if lines else repr(error)


def check_imports(imports: Iterable[tuple[str, int]], source: str) -> None:
    """A domain has one version; that of ai.onnx is known to onnx, other domains are anybody's."""
    known = onnx.defs.onnx_opset_version()
    found: dict[str, int] = {}
    for domain, version in imports:
        name = domain or "ai.onnx"
        if found.setdefault(name, version) != version:
            raise ModelError(
                f"{source} imports two opsets of the domain {name}: {found[name]} and {version}"
            )
        if name == "ai.onnx" and not 1 <= version <= known:
            raise ModelError(
                f"{source} needs opset {version}; the installed onnx {onnx.__version__} knows "
                f"1 to {known}: update onnx, or export for an older opset"
            )


def check_opsets(model: ir.Model, source: str) -> None:
    """As :func:`check_imports`, and the domain ai.onnx has one name, and is there if used."""
    imports = model.graph.opset_imports
    check_imports(imports.items(), source)
    if "ai.onnx" in imports:  # the same domain by its other name; nodes are normalised already
        imports.setdefault("", imports.pop("ai.onnx"))
    if "" not in imports and any(node.domain == "" for node, _ in nodes(model.graph)):
        raise ModelError(f"{source} imports no opset of the domain ai.onnx")


def _check_end(tensor: ir.ExternalTensor) -> None:
    size, start = os.path.getsize(tensor.path), tensor.offset or 0
    if size < start + tensor.nbytes:
        raise ValueError(
            f"{tensor.location} has {size} bytes, but {tensor.dtype}{list(tensor.shape)} takes "
            f"{tensor.nbytes} from byte {start} on: is the file cut short?"
        )


def _check_length(tensor: ir.ExternalTensor) -> None:
    if tensor.length != tensor.nbytes:
        raise ValueError(
            f"{tensor.length} bytes of {tensor.location}, but {tensor.dtype}{list(tensor.shape)} "
            f"takes {tensor.nbytes}"
        )


def check_values(model: ir.Model, source: str, limits: Limits) -> None:
    """Every tensor has the bytes that its shape says, every declared value fits the limits."""
    for name, tensor in tensors(model):
        # Strings have no fixed size; other classes hold an array made by the caller.
        if isinstance(tensor, ir.ExternalTensor | ir.TensorProtoTensor):
            try:
                if tensor.dtype != ir.DataType.STRING:
                    if isinstance(tensor, ir.ExternalTensor):
                        _check_end(tensor)
                    tensor.numpy()
                if isinstance(tensor, ir.ExternalTensor) and tensor.length is not None:
                    _check_length(tensor)
            except (OSError, *INVALID) as error:
                raise ModelError(f"{source}: tensor {name!r}: {first_line(error)}") from error
    declared = [*model.graph.inputs, *(out for n, _ in nodes(model.graph) for out in n.outputs)]
    for value in declared:
        if value.shape is None:
            continue
        if len(value.shape) > _RANK:
            raise ModelError(
                f"{source}: value {value.name!r} has {len(value.shape)} dims, more than {_RANK}"
            )
        if any(isinstance(dim, int) and dim < 0 for dim in value.shape):
            raise ModelError(f"{source}: value {value.name!r} is declared {value.shape}")
        # Strings have no fixed size: at least one byte each.
        sized = value.dtype not in (None, ir.DataType.UNDEFINED, ir.DataType.STRING)
        check_value(value.name, value.shape, value.dtype.itemsize if sized else 1, limits)
