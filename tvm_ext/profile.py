"""Time per kernel, traced back to ONNX nodes and held against the machine's peak."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

import ml_dtypes  # noqa: F401  numpy learns bfloat16 and the float8 types by their names
import numpy as np
import tvm_ffi
from tvm import IRModule, relax, s_tir, tirx
from tvm.ir import Op
from tvm.s_tir.dlight.analysis import get_root_block
from tvm.tirx import IntImm, PrimFunc

from .display import Shown, table
from .peak import Peak
from .provenance import Provenance

__all__ = ["KernelFacts", "KernelTime", "Profile", "kernel_facts", "summarise"]

_CALL_TIR = Op.get("relax.call_tir")
_ARITHMETIC = (tirx.Add, tirx.Sub, tirx.Mul, tirx.Div, tirx.Max, tirx.Min)


@dataclass(frozen=True)
class KernelFacts:
    """What a kernel does: the ONNX nodes that it computes, its arithmetic, bytes in and out, and
    the compound operators in it, with their attributes."""

    nodes: tuple[str, ...]
    flops: int | None
    bytes: int | None
    compounds: tuple[str, ...] = ()


def kernel_facts(module: IRModule, provenance: Provenance) -> dict[str, KernelFacts]:
    """The facts of each kernel call in ``main``, by the variable that it defines."""
    flops = {gv: _flops(f) for gv, f in module.functions_items() if isinstance(f, PrimFunc)}
    facts = {}
    for block in module["main"].body.blocks:
        for binding in block.bindings:
            call = binding.value
            if isinstance(call, relax.Call) and call.op == _CALL_TIR:
                name = binding.var.name
                operands = [arg.ty for arg in call.args[1]]
                facts[name] = KernelFacts(
                    tuple(provenance.nodes(name)),
                    flops.get(call.args[0]),
                    _bytes([*operands, *call.ty_args]),
                    tuple(provenance.compounds(name)),
                )
    return facts


def _flops(func: PrimFunc) -> int | None:
    """Arithmetic on floats of one call, before scheduling; None where an extent is symbolic.

    None too for a kernel in one opaque block (scatter, sort), whose loops say nothing.
    """
    sch = s_tir.Schedule(func)
    blocks = [sch.get(block) for block in sch.get_child_blocks(get_root_block(sch))]
    if not blocks:
        return None
    total = 0
    for block in blocks:
        extents = [axis.dom.extent for axis in block.iter_vars]
        if not all(isinstance(extent, IntImm) for extent in extents):
            return None
        total += prod(int(extent) for extent in extents) * _operations(block.body)
    return total


def _operations(body: tirx.Stmt) -> int:
    count = 0

    def visit(node: tirx.Expr) -> None:
        nonlocal count
        count += "float" in str(node.ty.dtype)

    tvm_ffi.structural_walk(body, (_ARITHMETIC, visit))
    return count


def _bytes(types: list[relax.Type]) -> int | None:
    """Bytes of all tensors, each counted once; None where a shape is symbolic."""
    total = 0
    for ty in types:
        if isinstance(ty, relax.TupleType):
            size = _bytes(list(ty.fields))
        elif isinstance(ty, relax.TensorType) and ty.shape is not None:
            dims = ty.shape.values
            static = all(isinstance(dim, IntImm) for dim in dims)
            width = np.dtype(str(ty.dtype.dtype)).itemsize
            size = width * prod(int(d) for d in dims) if static else None
        else:
            size = None
        if size is None:
            return None
        total += size
    return total


@dataclass(frozen=True)
class KernelTime:
    """One kernel call of a run: seconds (median), operations, bytes read and written once."""

    kernel: str
    nodes: tuple[str, ...]
    seconds: float
    flops: int | None
    bytes: int | None
    compounds: tuple[str, ...] = ()

    @property
    def gflops(self) -> float | None:
        return None if self.flops is None else self.flops / self.seconds / 1e9

    @property
    def gbytes(self) -> float | None:
        return None if self.bytes is None else self.bytes / self.seconds / 1e9


@dataclass(frozen=True)
class Profile(Shown):
    """The kernels of a run in order; prints as a table, slowest first."""

    kernels: tuple[KernelTime, ...]
    repeat: int
    peak: Peak | None

    @property
    def seconds(self) -> float:
        return sum(kernel.seconds for kernel in self.kernels)

    def _derived(self) -> Mapping[str, object]:
        return {"seconds": self.seconds}

    def __rich__(self):
        title = f"{len(self.kernels)} kernels, {self.seconds * 1e3:.3f} ms, median of {self.repeat}"
        caption = None
        if self.peak is not None:
            caption = (
                f"peak of this machine, {self.peak.threads} threads, measured: "
                f"{self.peak.gflops:.0f} GFLOP/s, {self.peak.gbytes:.0f} GB/s"
            )
        numbers = "us", "%", "GFLOP/s", "of peak", "GB/s"
        ordered = sorted(self.kernels, key=lambda k: -k.seconds)
        columns = [*numbers, "kernel", "ONNX nodes"]
        rows = [[*self._row(k), k.kernel, ", ".join(k.nodes)] for k in ordered]
        if any(kernel.compounds for kernel in ordered):
            columns.append("compound")
            rows = [[*row, ", ".join(k.compounds)] for row, k in zip(rows, ordered, strict=True)]
        return table(columns, rows, numbers=numbers, title=title, caption=caption)

    def _row(self, kernel: KernelTime) -> list[str]:
        of_peak = ""
        if kernel.gflops is not None and self.peak is not None:
            of_peak = f"{kernel.gflops / self.peak.gflops:.0%}"
        return [
            f"{kernel.seconds * 1e6:.1f}",
            f"{kernel.seconds / self.seconds:.1%}",
            _number(kernel.gflops),
            of_peak,
            _number(kernel.gbytes),
        ]


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.1f}"


def summarise(
    calls: Sequence[tuple[str, str]],
    facts: Mapping[str, KernelFacts],
    seconds: np.ndarray,
    peak: Peak | None,
) -> Profile:
    """The profile of ``calls`` (symbol, variable) timed as ``seconds[repeat, call]``."""
    unknown = KernelFacts((), None, None)
    rows = (
        KernelTime(
            symbol,
            (fact := facts.get(variable, unknown)).nodes,
            float(median),
            fact.flops,
            fact.bytes,
            fact.compounds,
        )
        for (symbol, variable), median in zip(calls, np.median(seconds, axis=0), strict=True)
    )
    return Profile(tuple(rows), len(seconds), peak)
