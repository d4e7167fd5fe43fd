"""ONNX models of the architectures, by either exporter of torch or by another converter."""

import contextlib
import io
import logging
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx
import torch
from torch import nn

from .registry import Architecture, Converted, Network

__all__ = ["arrays", "eager", "quiet", "to_onnx"]

OPSETS = {"torchscript": 17, "dynamo": 18}


def to_onnx(
    architecture: Architecture,
    network: Network | Converted,
    exporter: str,
    dynamic: bool,
    opset: int | None = None,
) -> onnx.ModelProto:
    """The ONNX model of ``network``, its dims symbolic where ``dynamic``.

    Torch is asked for ``opset``, by default that of ``OPSETS``.
    """
    sizes = architecture.sizes(0)
    if isinstance(network, Converted):
        return network.model(**(dict.fromkeys(sizes) if dynamic else sizes))
    inputs = example(network, sizes)
    axes = symbolic_axes(architecture, network) if dynamic else {}
    module = Flat(network.module if network.calibrated else randomise(network.module), list(inputs))
    torch.backends.mha.set_fastpath_enabled(False)  # its operator is not exported
    with quiet(), torch.no_grad():
        run = _torchscript if exporter == "torchscript" else _dynamo
        return run(module.eval(), inputs, axes, opset or OPSETS[exporter])


def arrays(network: Network | Converted, sizes: dict[str, int]) -> dict[str, np.ndarray]:
    """The inputs of ``sizes`` as arrays: of those exported with, these."""
    return {name: np.asarray(value) for name, value in example(network, sizes).items()}


def example(network: Network | Converted, sizes: dict[str, int]) -> dict[str, Any]:
    """Inputs of ``sizes``, the same each time."""
    torch.manual_seed(1)
    return network.inputs(**sizes)


def eager(network: Network, inputs: dict[str, np.ndarray]) -> list[np.ndarray]:
    """What torch itself makes of ``inputs``, after :func:`to_onnx` has drawn the weights."""
    tensors = [torch.from_numpy(each) for each in inputs.values()]
    with torch.no_grad():
        return [each.numpy() for each in Flat(network.module, list(inputs)).eval()(*tensors)]


class Flat(nn.Module):
    """``module`` on tensors by position; every tensor of its results, in order."""

    def __init__(self, module: nn.Module, names: list[str]):
        super().__init__()
        self.module = module
        self.names = names

    def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(_tensors(self.module(**dict(zip(self.names, tensors, strict=True)))))


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict):
        yield from _tensors(list(value.values()))
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _tensors(item)


def symbolic_axes(architecture: Architecture, network: Network) -> dict[str, dict[int, str]]:
    """Per input, the axes whose length depends on dims, named after these."""
    first = network.inputs(**architecture.sizes(0))
    axes: dict[str, dict[int, list[str]]] = {name: {} for name in first}
    for dim, (_, other) in architecture.dims.items():
        changed = network.inputs(**{**architecture.sizes(0), dim: other})
        for name, value in changed.items():
            for axis, (a, b) in enumerate(zip(first[name].shape, value.shape, strict=True)):
                if a != b:
                    axes[name].setdefault(axis, []).append(dim)
    return {
        name: {
            axis: _axis_name(architecture, dims, f"{name}_{axis}", first[name].shape[axis])
            for axis, dims in found.items()
        }
        for name, found in axes.items()
    }


def _axis_name(architecture: Architecture, dims: list[str], own: str, length: int) -> str:
    """``dims`` where the length is their sum; of another length, such as a multiple, its own."""
    sizes = architecture.sizes(0)
    return "_".join(dims) if sum(sizes[dim] for dim in dims) == length else own


def randomise(module: nn.Module) -> nn.Module:
    """Draw seeded weights that keep activations near unit variance.

    As they are made, many networks begin with blocks that vanish (scales of 1e-6, last layers of
    zeros, deviations of 0.02); all engines agree on such.
    """
    generator = torch.Generator().manual_seed(0)
    tables = {layer.weight for layer in module.modules() if isinstance(layer, nn.Embedding)}
    with torch.no_grad():
        for weight in module.parameters():
            if not weight.is_floating_point():
                continue
            if weight.ndim >= 2:
                deviation = 1 if weight in tables else weight[0].numel() ** -0.5
                weight.normal_(0, deviation, generator=generator)
            elif weight.numel() and weight.abs().mean() > 0.5:  # a scale
                weight.uniform_(0.5, 1.5, generator=generator)
            else:
                weight.normal_(0, 0.1, generator=generator)
        for layer in module.modules():
            if getattr(layer, "running_var", None) is not None:
                layer.running_mean.normal_(0, 0.1, generator=generator)
                layer.running_var.uniform_(0.5, 1.5, generator=generator)
    return module


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Without what exporters say about their own internals."""
    logging.disable(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(logging.NOTSET)


def _torchscript(module: Flat, inputs: dict, axes: dict, opset: int) -> onnx.ModelProto:
    buffer = io.BytesIO()
    torch.onnx.export(
        module,
        tuple(inputs.values()),
        buffer,
        dynamo=False,
        opset_version=opset,
        input_names=list(inputs),
        dynamic_axes={name: found for name, found in axes.items() if found} or None,
    )
    return onnx.load_from_string(buffer.getvalue())


def _dynamo(module: Flat, inputs: dict, axes: dict, opset: int) -> onnx.ModelProto:
    dims = tuple(dict.fromkeys(axes.get(name, ()), torch.export.Dim.DYNAMIC) for name in inputs)
    program = torch.onnx.export(
        module,
        tuple(inputs.values()),
        dynamo=True,
        opset_version=opset,
        input_names=list(inputs),
        dynamic_shapes=(dims,) if any(dims) else None,
        verbose=False,
    )
    return program.model_proto
