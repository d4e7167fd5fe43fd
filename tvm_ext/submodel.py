"""The smallest part of a model that still gets a value wrong."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from zipfile import ZipFile

import numpy as np
import onnx
import onnx_ir as ir

from .errors import OutputPathError
from .frontend.traverse import nodes, subgraphs
from .watching import Arrays

__all__ = ["Part", "read_by", "save", "smallest"]

Part = tuple[ir.Model, Arrays]  # a model, and its inputs


def smallest(
    source: ir.Model,
    name: str,
    agreeing: Sequence[str],
    arrays: Arrays,
    shows: Callable[[ir.Model, Arrays], bool],
) -> Part:
    """The smallest part that computes ``name`` wrongly, as ``shows`` says, and its inputs.

    It begins at values that agree: at the last of them, unless the difference needs kernels from
    further up, as where errors add up or fusion is at fault. Where it needs what comes behind the
    value, too, it is the whole model.

    Args:
        agreeing: the values that both sides agree on, in the order of the graph.
        arrays: every value that may become an input.
    """
    part = _part(source, name, agreeing, arrays)
    if shows(*part):
        return part
    part = _part(source, name, [], arrays)
    if not shows(*part):
        inputs = [str(v.name) for v in source.graph.inputs if not v.is_initializer()]
        return source, {value: arrays[value] for value in inputs}
    shown, hidden = 0, len(agreeing)
    while hidden - shown > 1:
        middle = (shown + hidden) // 2
        smaller = _part(source, name, agreeing[:middle], arrays)
        if shows(*smaller):
            part, shown = smaller, middle
        else:
            hidden = middle
    return part


def read_by(node: ir.Node) -> Iterator[ir.Value]:
    """What ``node`` reads: its inputs, and what its subgraphs take from around it."""
    yield from (value for value in node.inputs if value is not None)
    for graph in subgraphs(node):
        inside = [node for node, _ in nodes(graph)]
        own = {value for inner in inside for value in inner.outputs}
        for part in (graph, *(g for inner in inside for g in subgraphs(inner))):
            own |= {*part.inputs, *part.initializers.values()}
        used = [value for inner in inside for value in inner.inputs if value is not None]
        yield from (value for value in (*used, *graph.outputs) if value not in own)


def _part(source: ir.Model, name: str, agreeing: Sequence[str], arrays: Arrays) -> Part:
    """The model that computes ``name`` from values that agree, and what these are."""
    starts = list(dict.fromkeys(_starts(source, name, set(agreeing))))
    graph = ir.convenience.extract(source.graph, starts, [name])
    for value in (*graph.inputs, *graph.outputs):
        array = arrays[str(value.name)]
        value.type = ir.TensorType(ir.DataType.from_numpy(array.dtype))
        value.shape = ir.Shape(array.shape)
    functions = [function.clone() for function in source.functions.values()]
    part = ir.Model(graph, ir_version=source.ir_version, functions=functions)
    return part, {value: arrays[value] for value in starts}


def _starts(source: ir.Model, name: str, agreeing: set[str]) -> Iterator[str]:
    """Graph inputs and values that agree from which ``name`` is computed."""
    producer = {str(v.name): node for node in source.graph for v in node.outputs}
    pending, seen = [name], {name}
    while pending:
        for value in read_by(producer[pending.pop()]):
            if str(value.name) in seen or value.is_initializer():
                continue
            seen.add(str(value.name))
            if str(value.name) in agreeing or str(value.name) not in producer:
                yield str(value.name)
            else:
                pending.append(str(value.name))


def save(part: ir.Model, feeds: Mapping[str, np.ndarray], path: str | os.PathLike) -> Path:
    """Write a model, and its inputs beside it as ``.npz``.

    Raises:
        OutputPathError: they cannot be written.
    """
    path = Path(path)
    temporary = path.with_name(f"{path.name}.part")
    try:
        onnx.save(ir.to_proto(part), temporary)
        with ZipFile(path.with_suffix(".npz"), "w") as file:  # np.savez takes not every name
            for name, array in feeds.items():
                with file.open(f"{name}.npy", "w") as entry:
                    np.lib.format.write_array(entry, array, allow_pickle=False)
        temporary.replace(path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise OutputPathError(f"cannot write {path}: {error.strerror or error}") from error
    return path
