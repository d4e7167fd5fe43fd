"""Regions of operators as programs of the device: addresses, commands, C text.

The DRAM begins with the weights of all regions, which are written once; behind them the regions
take turns with their activations. A tensor between two operators of a region is never seen by the
host.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tvm_ext.errors import BuildError

from .commands import Command
from .memory import Life, allocate
from .operators import Operator, Tensor
from .simulator import Simulator, Statistics

__all__ = ["Device", "Program", "Region", "compile_regions"]


@dataclass(frozen=True)
class Device:
    """How much memory a device has, in floats: by default 16 MiB of DRAM, a pad of 64 KiB."""

    dram: int = 4 << 20
    scratchpad: int = 16 << 10


@dataclass(frozen=True)
class Region:
    """Operators in order. The host gives ``inputs`` and takes ``outputs``."""

    name: str
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    operators: tuple[Operator, ...]


@dataclass(frozen=True)
class Program:
    """A region with its addresses and its commands."""

    region: Region
    device: Device
    places: Mapping[Tensor, int]
    commands: tuple[Command, ...]

    def memory_map(self) -> str:
        """Which floats of the DRAM each tensor has, as a table."""
        rows = sorted(self.places.items(), key=lambda row: row[1])
        return "\n".join(
            f"{at:>9}:{at + tensor.size:<9} {'weight' if tensor.value is not None else '':7}"
            f"{tensor.name} {list(tensor.shape)}"
            for tensor, at in rows
        )

    def cost(self) -> Statistics:
        """What one run costs; weights, which are written before the first, are not counted.

        Raises:
            DeviceError: a command is illegal.
        """
        return Simulator(self.device.dram, self.device.scratchpad).cost(self.commands)

    def simulate(self, *inputs: np.ndarray) -> list[np.ndarray]:
        """The outputs of a run on a simulator of its own."""
        simulator = Simulator(self.device.dram, self.device.scratchpad)
        for tensor, at in self.places.items():
            if tensor.value is not None:
                simulator.write(at, tensor.value)
        for tensor, array in zip(self.region.inputs, inputs, strict=True):
            simulator.write(self.places[tensor], array)
        simulator.submit(self.commands)
        return [simulator.read(self.places[t], t.shape) for t in self.region.outputs]


def compile_regions(regions: Sequence[Region], device: Device) -> list[Program]:
    """The program of each region; all of them fit the DRAM together.

    Raises:
        BuildError: the DRAM is too small; it names the operator that has no room.
    """
    operators = [operator for region in regions for operator in region.operators]
    weights: dict[Tensor, int] = {}
    total = 0
    for operator in operators:
        for tensor in operator.weights:
            if tensor not in weights:
                weights[tensor] = total
                total += tensor.size
                _check_room(operator, total, device)
    return [_program(region, device, weights, total) for region in regions]


def _program(region: Region, device: Device, weights: dict[Tensor, int], base: int) -> Program:
    lives = _lives(region)
    addresses = allocate(list(lives.values()))
    activations = {tensor: base + address for tensor, address in zip(lives, addresses, strict=True)}
    own = {w: weights[w] for operator in region.operators for w in operator.weights}
    for operator in region.operators:
        end = max(activations[t] + t.size for t in (*operator.reads, operator.output))
        _check_room(operator, end, device)
    places = own | activations
    commands = tuple(
        command
        for operator in region.operators
        for command in operator.commands(places, device.scratchpad)
    )
    return Program(region, device, places, commands)


def _lives(region: Region) -> dict[Tensor, Life]:
    """Inputs are alive from the start, outputs to the end."""
    first = dict.fromkeys(region.inputs, -1)
    last = dict.fromkeys(region.inputs, -1)
    for number, operator in enumerate(region.operators):
        last.update(dict.fromkeys(operator.reads, number))
        first[operator.output] = last[operator.output] = number
    last.update(dict.fromkeys(region.outputs, len(region.operators)))
    return {tensor: Life(tensor.size, first[tensor], last[tensor]) for tensor in first}


def _check_room(operator: Operator, floats: int, device: Device) -> None:
    if floats > device.dram:
        raise BuildError(
            f"operator {operator.name!r} needs {4 * floats} bytes of the accelerator's DRAM, "
            f"which has {4 * device.dram}: give the device more, or the model less"
        )
