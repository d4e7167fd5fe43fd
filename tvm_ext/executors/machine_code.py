"""LLVM's part of a build: half of the time of a large one, beside the lowering of other kernels.

Kernels do not call each other, so that any of them are a module of LLVM's by themselves. One thread
lowers them, by passes of which some are Python; LLVM asks nothing of Python.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache

import tvm
import tvm_ffi
from tvm import IRModule, tirx
from tvm.ir.transform import PassContext
from tvm.target import Target, codegen

from ..errors import BuildError
from .cpu_features import triple_of
from .threads import usable_cores

__all__ = ["MachineCode", "compiled", "parted"]

_TEXTS = {"llvm": "ll", "asm": "asm"}
# Stores of a part: LLVM begins when the first is lowered. A module by itself costs little.
_PART = 200
_MOST_THREADS = 4  # each holds what LLVM makes of a part


@dataclass(frozen=True, eq=False)
class MachineCode:
    """Compiled kernels: modules of LLVM's, and the object file of each."""

    modules: Sequence[tvm.runtime.Module]
    objects: tuple[bytes, ...]

    def texts(self) -> dict[str, str]:
        """The code as LLVM IR and as assembly."""
        return {
            name: "\n".join(_without_addresses(m.inspect_source(kind)) for m in self.modules)
            for name, kind in _TEXTS.items()
        }


def parted(kernels: IRModule) -> list[IRModule]:
    """Scheduled kernels as modules of about as many stores: one, where they are few."""
    sizes = {symbol: _stores(function.body) for symbol, function in kernels.functions_items()}
    total = sum(sizes.values())
    share = max(total / max(total // _PART, 1), 1)
    parts: dict[int, dict] = {}
    before = 0.0
    for symbol, size in sizes.items():
        parts.setdefault(int((before + size / 2) / share), {})[symbol] = kernels[symbol]
        before += size
    return [IRModule(part, attrs=kernels.attrs) for part in parts.values()] or [kernels]


def compiled(
    parts: Sequence[IRModule], lower: Callable[[IRModule], IRModule], target: Target
) -> MachineCode:
    """The code of kernels; while LLVM compiles a part, the next is lowered.

    Raises:
        BuildError: an object file cannot be written.
    """
    _settle_llvm()
    build = tvm.get_global_func(f"target.build.{target.kind.name}")
    context = PassContext.current()

    def compile_part(lowered: IRModule) -> tuple[tvm.runtime.Module, bytes]:
        with context:
            module = build(lowered, target)
        return module, _object_code(module)

    lowered = map(lower, parts)
    if len(parts) == 1 or not _stands_alone(target, context):
        done = list(map(compile_part, lowered))
    else:
        with ThreadPoolExecutor(min(usable_cores(), _MOST_THREADS)) as pool:
            try:
                done = list(pool.map(compile_part, lowered))
            except BaseException:  # an interrupt does not wait for what LLVM has not begun
                pool.shutdown(cancel_futures=True)
                raise
    return MachineCode([module for module, _ in done], tuple(code for _, code in done))


@cache
def _settle_llvm() -> None:
    """Let LLVM do once what changes its code for other machines from then on: work for WebAssembly.

    Else a model would be compiled differently after one for WebAssembly, in the same process.
    """
    if "wasm32" in map(str, codegen.llvm_get_targets()):
        spec = {"kind": "llvm", "mtriple": "wasm32-unknown-wasi", "vector-width": 128}
        tvm.get_global_func("target.build.llvm")(IRModule({}), Target(spec))


def _stands_alone(target: Target, context: PassContext) -> bool:
    """Whether LLVM's work for ``target`` touches nothing that other threads see: instruments that
    watch it, or options that LLVM has once in a process, which TVM sets for RISC-V by itself."""
    options = target.attrs.get("cl-opt") or triple_of(target).startswith("riscv")
    return not options and not context.instruments


def _object_code(module: tvm.runtime.Module) -> bytes:
    """The object file, written into memory: where a disk fills, LLVM ends the process."""
    with os.fdopen(os.memfd_create("kernels"), "rb") as file:
        try:
            module.write_to_file(f"/proc/self/fd/{file.fileno()}", "o")
        except RuntimeError as error:
            raise BuildError(f"cannot write the kernels: {error}") from error
        return file.read()


def _without_addresses(text: str) -> str:
    """LLVM IR as every build writes it: TVM tells buffers apart by where they lie in memory."""
    names: dict[str, str] = {}

    def name(address: re.Match) -> str:
        return names.setdefault(address[0], f"buffer{len(names)}")

    return re.sub(r'(?<=")0x[0-9a-f]+(?=[".])', name, text)


def _stores(body: tirx.Stmt) -> int:
    """The stores of a scheduled kernel when its loops are unrolled."""
    count = 0

    def loop(inner: tirx.For) -> tvm_ffi.WalkResult:
        nonlocal count
        unrolled = inner.kind == tirx.ForKind.UNROLLED and isinstance(inner.extent, tirx.IntImm)
        count += (int(inner.extent) if unrolled else 1) * _stores(inner.body)
        return tvm_ffi.WalkResult.SKIP

    def store(_store: tirx.BufferStore) -> None:
        nonlocal count
        count += 1

    tvm_ffi.structural_walk(body, [(tirx.For, loop), (tirx.BufferStore, store)], order="pre")
    return count
