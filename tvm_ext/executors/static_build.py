"""Compiles a scheduled module of static shape: plan, kernels with a C ABI, one library."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import tvm_ffi
from tvm import IRModule, relax, tirx
from tvm.target import Target

from .c_abi import build_c_abi, calls_tvm
from .c_code import c_sources, is_c_code
from .control_flow import ControlFlow
from .cpu import CpuNeeds
from .cpu_features import needs_of
from .emit import entry_source, kernel_symbol
from .formulas import NotStatic
from .machine_code import MachineCode
from .parts import Parts
from .plan import Plan
from .planning import draft
from .static import StaticExecutor
from .toolchain import link_shared
from .views import rewrite_views
from .work_folder import work_folder

__all__ = ["Compiled", "Program", "build_static", "compile_kernels", "texts", "walk_static"]


def texts(code: Sequence[str], kernels: MachineCode) -> dict[str, str]:
    """A program as text: C, and the others as LLVM IR and as assembly."""
    return {"c": "\n".join(code)} | kernels.texts()


@dataclass(frozen=True, eq=False)
class Program:
    """What a library is made of: a plan, compiled kernels, and the C files of the others.

    ``tag`` is in the names of kernels, and of no other program's.
    """

    plan: Plan
    tag: str
    needs: CpuNeeds
    kernels: MachineCode
    code: Sequence[str]
    _compiler: threading.Lock = field(default_factory=threading.Lock)  # LLVM: one thread at a time

    @property
    def triple(self) -> str | None:
        """The machine that it is for, where that is not this one."""
        return self.needs.triple if self.needs.foreign else None

    def linked(self) -> np.ndarray:
        """The bytes of the shared library.

        Raises:
            BuildError: there is no C compiler for this target, or it fails.
        """
        with self._compiler:
            return self._linked

    @cached_property
    def _linked(self) -> np.ndarray:
        with work_folder() as folder:
            library = folder / "library.so"
            link_shared(library, *self.parts().write(folder), self.triple)
            return np.frombuffer(library.read_bytes(), np.uint8)

    def parts(self) -> Parts:
        """What the library is linked from."""
        return Parts(self.plan, self.tag, self.needs, self.kernels.objects, tuple(self.code))

    def sources(self) -> dict[str, str]:
        """The C function that calls the kernels, and those in C; the others as LLVM IR and as
        assembly."""
        with self._compiler:
            return texts([entry_source(self.plan, self.tag), *self.code], self.kernels)


def build_static(module: IRModule, target: Target) -> StaticExecutor:
    """Plan and compile ``module`` (kernels already scheduled).

    Raises:
        NotStatic: the module needs the VM.
        BuildError: there is no C compiler, or it fails.
    """
    drafted = draft(ControlFlow(lower_views(module)))
    used = {kernel.symbol for kernel in drafted.kernels if kernel.is_call}
    made = compile_kernels(
        {
            gv.name_hint: f
            for gv, f in module.functions_items()
            if isinstance(f, tirx.PrimFunc) and gv.name_hint in used
        },
        target,
    )
    planned = drafted.plan(made.arrays, made.thread_bytes)
    program = Program(planned, made.tag, needs_of(target, module), made.kernels, made.code)
    if not program.needs.foreign:
        program.linked()
    return StaticExecutor(planned, program.needs, drafted.weights, program)


def walk_static(module: IRModule, _target: Target) -> ControlFlow:
    """The kernels that ``main`` of ``module`` runs.

    Raises:
        NotStatic: the module needs the VM, or has symbolic dims.
    """
    walk = ControlFlow(lower_views(module))
    walk.run(walk.module["main"])
    return walk


@dataclass(frozen=True, eq=False)
class Compiled:
    """Kernels with a C ABI: those that TVM compiled, and C files of the others.

    ``arrays`` and ``thread_bytes`` say what memory they need, by their names: see
    :class:`.c_abi.Scratch`.
    """

    tag: str
    kernels: MachineCode
    code: Sequence[str]
    arrays: Mapping[str, Sequence[int]]
    thread_bytes: int


def compile_kernels(scheduled: Mapping[str, tirx.PrimFunc], target: Target) -> Compiled:
    """Kernels by their names; see :func:`.emit.kernel_symbol` for those that they have in C.

    Raises:
        NotStatic: one calls functions of TVM's.
    """
    tag = _tag(scheduled, target)
    compiled = {name: f for name, f in scheduled.items() if not is_c_code(f)}
    if any(map(calls_tvm, compiled.values())):
        raise NotStatic("a kernel that calls TVM")
    symbols = {name: kernel_symbol(name, tag) for name in scheduled}
    named = {symbols[name]: f for name, f in compiled.items()}
    named = {symbol: f.with_attr("global_symbol", symbol) for symbol, f in named.items()}
    kernels, scratch = build_c_abi(IRModule(named), target)
    arrays = {name: scratch.arrays[symbols[name]] for name in compiled}
    code = c_sources({symbols[name]: f for name, f in scheduled.items()})
    return Compiled(tag, kernels, code, arrays, scratch.thread_bytes)


def _tag(kernels: Mapping[str, tirx.PrimFunc], target: Target) -> str:
    """Eight digits that differ between programs, and not from build to build."""
    hashes = [f"{name}:{tvm_ffi.structural_hash(f)}" for name, f in sorted(kernels.items())]
    return hashlib.sha256("\n".join([str(target), *hashes]).encode()).hexdigest()[:8]


def lower_views(module: IRModule) -> IRModule:
    """Kernels that only reshape become views."""
    return relax.transform.CanonicalizeBindings()(rewrite_views(module))
