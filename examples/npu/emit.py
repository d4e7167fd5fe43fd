"""A program as C text that a compiled model links: a table of commands, and who calls it."""

from __future__ import annotations

from collections.abc import Sequence

from .operators import Tensor
from .program import Program
from .simulator import DEVICE

__all__ = ["region_source", "support_source"]


def region_source(program: Program, weights: Sequence[Tensor]) -> str:
    """``int32_t TVMX_KERNEL(inputs, weights, outputs)``, each a ``float *``."""
    region, device = program.region, program.device
    names = {tensor: f"x{k}" for k, tensor in enumerate((*region.inputs, *weights))}
    results = {tensor: f"y{k}" for k, tensor in enumerate(region.outputs)}
    parameters = ", ".join(f"float *{name}" for name in (*names.values(), *results.values()))
    commands = "\n".join(f"    {c.c()}, /* {c.note} */" for c in program.commands)
    blocks = "\n".join(
        _block(program, tensor, name)
        for tensors, known in ((weights, names), (region.inputs, names), (region.outputs, results))
        for tensor, name in ((tensor, known[tensor]) for tensor in tensors)
    )
    counts = f"{len(weights)}, {len(region.inputs)}, {len(region.outputs)}"
    return f"""\
{_text("npu.h", "driver.h")}
int32_t TVMX_KERNEL({parameters}) {{
  static const npu_command commands[] = {{
{commands}
  }};
  static int ready;
  const npu_block blocks[] = {{
{blocks}
  }};
  const npu_region region = {{commands, {len(program.commands)}, blocks, {counts}}};
  return npu_run(&region, {device.dram}, {device.scratchpad}, &ready);
}}
"""


def _block(program: Program, tensor: Tensor, name: str) -> str:
    label = tensor.name.replace("*/", "")
    return f"    {{{program.places[tensor]}, {tensor.size}, {name}}}, /* {label} */"


def support_source() -> str:
    """The device and its driver: compiled once beside all regions."""
    return _text("npu.h", "driver.h", "npu.c", "driver.c")


def _text(*files: str) -> str:
    lines = (line for file in files for line in (DEVICE / file).read_text().splitlines())
    return "\n".join(line for line in lines if not line.startswith('#include "'))
