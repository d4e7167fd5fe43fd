"""Export an example by ``torch.onnx``, by the TorchScript or the dynamo exporter.

``python -m examples.export resnet50 resnet50.onnx --exporter dynamo --dynamic``
"""

import argparse
import contextlib
import io
import logging
import warnings
from collections.abc import Iterator
from pathlib import Path

import onnx
import torch
from torch import nn

from .registry import EXAMPLES, SIZES, Example

__all__ = ["EXPORTERS", "export", "to_onnx"]

EXPORTERS = ("torchscript", "dynamo")
OPSETS = {"torchscript": 17, "dynamo": 18}


def to_onnx(
    name: str,
    *,
    exporter: str = "torchscript",
    size: str = "full",
    batch: int = 1,
    dynamic: bool = False,
    opset: int | None = None,
    seed: int = 0,
) -> onnx.ModelProto:
    """The ONNX model of an example.

    Args:
        name: a key of ``EXAMPLES``.
        exporter: "torchscript" or "dynamo".
        size: "full" or "small".
        batch: the batch size, where it is static.
        dynamic: leave batch and, for token models, sequence length symbolic (not that of an
            LSTM exported by dynamo: ``torch.export`` unrolls it).
        opset: the ONNX opset; by default 17 for TorchScript and 18 for dynamo.
        seed: of the weights.

    Raises:
        ValueError: no such example, exporter or size.
    """
    if name not in EXAMPLES:
        raise ValueError(f"no example {name!r}; there are {sorted(EXAMPLES)}")
    if exporter not in EXPORTERS:
        raise ValueError(f"exporter is one of {EXPORTERS}, not {exporter!r}")
    example = EXAMPLES[name]
    # A dim of size 1 would be specialised by the dynamo exporter, and broadcast by torch.
    inputs = example.inputs(size, max(batch, 2) if dynamic else batch)
    run = _torchscript if exporter == "torchscript" else _dynamo
    with _quiet():
        return run(example, example.build(size, seed), inputs, dynamic, opset or OPSETS[exporter])


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without what the exporters say about their own internals and about torchvision."""
    log = logging.getLogger("torch.onnx")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        log.setLevel(level)


def _torchscript(
    example: Example, module: nn.Module, inputs: dict, dynamic: bool, opset: int
) -> onnx.ModelProto:
    buffer = io.BytesIO()
    torch.onnx.export(
        module,
        tuple(inputs.values()),
        buffer,
        dynamo=False,
        opset_version=opset,
        input_names=list(inputs),
        output_names=list(example.outputs),
        dynamic_axes=example.dynamic if dynamic else None,
    )
    return onnx.load_from_string(buffer.getvalue())


def _dynamo(
    example: Example, module: nn.Module, inputs: dict, dynamic: bool, opset: int
) -> onnx.ModelProto:
    dims = [
        {
            axis: torch.export.Dim(dim)
            for axis, dim in example.dynamic[name].items()
            if dim not in example.specialised
        }
        for name in inputs
    ]
    program = torch.onnx.export(
        module,
        tuple(inputs.values()),
        dynamo=True,
        opset_version=opset,
        input_names=list(inputs),
        output_names=list(example.outputs),
        dynamic_shapes=tuple(dims) if dynamic else None,
        verbose=False,
    )
    return program.model_proto


def export(name: str, path: str | Path, **options: object) -> Path:
    """Write the ONNX file of an example; the options are those of :func:`to_onnx`."""
    path = Path(path)
    onnx.save(to_onnx(name, **options), path)
    return path


def main(arguments: list[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m examples.export", description=__doc__)
    parser.add_argument("name", choices=sorted(EXAMPLES))
    parser.add_argument("path", type=Path)
    parser.add_argument("--exporter", choices=EXPORTERS, default="torchscript")
    parser.add_argument("--size", choices=SIZES, default="full")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--dynamic", action="store_true", help="symbolic batch and sequence")
    parser.add_argument("--opset", type=int)
    parser.add_argument("--seed", type=int, default=0)
    options = vars(parser.parse_args(arguments))
    print(export(options.pop("name"), options.pop("path"), **options))


if __name__ == "__main__":
    main()
