"""The Relax virtual machine: sizes that loops compute, sequences and strings, and cuda."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tvm
import tvm_ffi
from tvm import IRModule, relax
from tvm.target import Target

from ..errors import BuildError, OutputPathError, TargetError
from . import (
    cuda,
    cuda_compile,  # noqa: F401  registers what compiles CUDA C
    host,
    host_images,  # noqa: F401  these register what models call
    host_strings,  # noqa: F401
    loops,  # noqa: F401  registers the driver that compiled loops call
    threads,
)
from .c_code import with_c_code
from .cpu import CpuNeeds
from .cpu_features import needs_of
from .forks import on_live_pool
from .lowering import TIR_PIPELINE
from .pool import one_pool
from .storages import Blocks, lend, share_storages
from .toolchain import RUNTIME, compile_runtime, run_tool, shared_linker
from .views import rewrite_views
from .vm_checks import failures_told, tell_checks
from .work_folder import work_folder

__all__ = ["VMExecutor"]

# Mode 1 of TVM's pool: as many workers as asked for, bound to cores of any kind.
_ANY_CORE = 1


@threads.follow
def _use_threads(count: int) -> None:
    tvm.get_global_func("runtime.config_threadpool")(_ANY_CORE, count)


def _lowering() -> tvm.ir.transform.Pass:
    """From scheduled kernels and dataflow to VM instructions, memory planned."""
    t = relax.transform
    return tvm.ir.transform.Sequential(
        [
            rewrite_views,
            t.ToNonDataflow(),
            t.RemovePurityChecking(),
            t.CallTIRRewrite(),
            _allocate_empty,
            _plan_memory,
            share_storages,
            t.LowerAllocTensor(),
            t.KillAfterLastUse(),
            t.LowerRuntimeBuiltin(),
            t.ComputePrimValue(),
            t.VMShapeLower(),
            tell_checks,
            t.AttachGlobalSymbol(),
        ],
        name="LowerToVM",
    )


@relax.expr_functor.mutator
class _EmptyAllocated(relax.PyExprMutator):
    def visit_generic_const_(self, op):
        tensor = op.value  # or a dtype
        if not isinstance(tensor, tvm.runtime.Tensor) or 0 not in tensor.shape[1:]:
            return op
        dims = relax.ShapeExpr(list(tensor.shape))
        return self.builder_.emit(relax.op.builtin.alloc_tensor(dims, str(tensor.dtype), 0))


@tvm.transform.module_pass(opt_level=0, name="AllocateEmpty")
def _allocate_empty(module, _context):
    """Constants such as float32[2, 0] as tensors of their own: TVM cannot read them back."""
    for symbol, func in module.functions_items():
        if isinstance(func, relax.Function):
            module.update_func(symbol, _EmptyAllocated(module).visit_expr(func))
    return module


@tvm.transform.module_pass(opt_level=0, name="PlanMemory")
def _plan_memory(module, _context):
    """StaticPlanBlockMemory where nothing branches: it lends what one branch of an If allocates to
    the other branch, which then writes to memory that was never allocated."""
    planned = relax.transform.StaticPlanBlockMemory()(module)
    for symbol, func in module.functions_items():
        if isinstance(func, relax.Function) and _branches(func):
            planned.update_func(planned.get_global_var(symbol.name_hint), func)
    return planned


def _branches(func: relax.Function) -> bool:
    found: list[relax.If] = []
    tvm_ffi.structural_walk(func.body, (relax.If, found.append))
    return bool(found)


class VMExecutor:
    """Runs ``main`` of a module in the Relax VM; safe to call from several threads."""

    memory = None  # allocated as it runs

    def __init__(
        self,
        executable: relax.VMExecutable,
        device: tvm.runtime.Device,
        needs: CpuNeeds,
        image: Any = None,
        code: Sequence[str] = (),
    ):
        self.executable = executable
        self.device = device
        self.needs = needs
        self._image = image
        self._code = code
        # A VM holds call frames: one per thread, on the shared executable.
        self._local = threading.local()

    @classmethod
    def build(cls, module: IRModule, target: Target) -> VMExecutor:
        """Compile ``module`` (kernels already scheduled) for ``target``.

        Raises:
            BuildError: kernels are C code, and there is no C compiler, or it fails.
        """
        needs = needs_of(target, module)
        if target.kind.name == "cuda":
            module = cuda.named_in_c(module)
        module, objects, code = with_c_code(module, needs.triple if needs.foreign else None)
        with target:
            executable = relax.build(
                module, target, relax_pipeline=_lowering(), tir_pipeline=TIR_PIPELINE
            )
        for each in objects:
            executable.mod.import_module(each)
        device = tvm.device("cuda" if target.kind.name == "cuda" else "cpu")
        made = cls(executable, device, needs, code=code)
        if objects and not needs.foreign:  # what is C cannot run before it is linked
            with one_pool():
                made._link(executable.jit)
        return made

    def requirements(self) -> dict[str, object]:
        """What :meth:`open` has to know of a saved executor."""
        return {"device": self.device.dlpack_device_type(), "tvm": tvm.__version__}

    @classmethod
    def open(
        cls, image: Any, name: str, needs: CpuNeeds, requirements: Mapping[str, Any]
    ) -> VMExecutor:
        """The executor whose library has the bytes ``image``, from the file ``name``.

        Raises:
            TargetError: TVM cannot load code for its device on this machine.
            OutputPathError: it was built with another TVM, or is no such library.
        """
        if requirements["tvm"] != tvm.__version__:
            raise OutputPathError(
                f"{name} was built with TVM {requirements['tvm']}, this is {tvm.__version__}: "
                "build it again"
            )
        device = tvm.device(requirements["device"], 0)
        # A file of its own each time: two modules of one library would share its state.
        with work_folder() as folder:
            path = folder / "library.so"
            path.write_bytes(image)
            try:
                with one_pool(path):
                    module = tvm.runtime.load_module(str(path))
            except (RuntimeError, OSError) as error:
                reason = str(error).strip().splitlines()[0]
                if device != tvm.cpu():
                    raise TargetError(
                        f"{name} was built for {device.type}, which TVM cannot load on this "
                        f"machine: {reason}"
                    ) from error
                raise OutputPathError(f"cannot load the kernels of {name}: {reason}") from error
        return cls(relax.VMExecutable(module), device, needs, image)

    @property
    def on_cpu(self) -> bool:
        """Whether kernels run on the CPU."""
        return self.device == tvm.cpu()

    def linked(self) -> Any:
        """The bytes of the shared library: kernels, and the VM's code and constants.

        Raises:
            BuildError: they cannot be linked.
        """
        if self._image is not None:
            return self._image
        with work_folder() as folder:
            path = folder / "library.so"
            triple = self.needs.triple if self.needs.foreign else None
            pool = compile_runtime(RUNTIME / "tvmx.c", folder, triple)
            self._link(self.executable.export_library, str(path), addons=[str(pool)])
            return path.read_bytes()

    def _link(self, function: Callable[..., object], *args: object, **options: Any) -> None:
        """Have TVM link the kernels.

        Raises:
            BuildError: they cannot be linked.
        """
        options |= {"fcompile": self._link_abroad} if self.needs.foreign else {}
        try:
            function(*args, **options)
        except (RuntimeError, ValueError, OSError) as error:
            raise BuildError(f"cannot link the kernels: {error}") from error

    def _link_abroad(self, library: str, objects: Sequence[str], **options: Any) -> None:
        command = [*shared_linker(self.needs.triple), *options.get("options", ())]
        run_tool([*command, "-o", library, *objects])

    def __call__(self, inputs: Sequence[Any]) -> list[Any]:
        return on_live_pool(self._run, inputs)

    def _run(self, inputs: Sequence[Any]) -> list[Any]:
        vm = self._vm()  # before the tensors: it says what a machine without the device lacks
        with host.on_device(self.device), failures_told():
            return [host.taken(result) for result in vm["main"](*self._given(inputs))]

    def bound(self, inputs: Sequence[Any]) -> Callable[[], object]:
        """A run on ``inputs``, which are placed on the device once; what it returns stays there."""
        vm = self._vm()
        tensors = [host.given(value, self.device) for value in inputs]

        def run() -> object:
            lend(self._local.blocks)
            return vm["main"](*tensors)

        return run

    def _given(self, inputs: Sequence[Any]) -> list[Any]:
        return self._local.inputs.given(inputs)

    def sources(self) -> dict[str, str]:
        """The VM's instructions and the kernels, as CUDA C, or as LLVM IR and as C."""
        text = {"vm": self.executable.as_text()}
        text |= {"c": "\n".join(self._code)} if self._code else {}
        if self.device != tvm.cpu():
            return text | {"cuda": cuda.cuda_sources(self.executable)}
        kernels = [m for m in _modules(self.executable.mod) if m.kind == "llvm"]
        return text | {"llvm": "\n".join(m.inspect_source("ll") for m in kernels)}

    def time_kernels(
        self, inputs: Sequence[np.ndarray], repeat: int
    ) -> tuple[list[tuple[str, str]], np.ndarray]:
        """Each call's symbol (and no variable); its seconds in whole runs, ``[repeat, calls]``.

        Only calls made in every run are listed: control flow may differ from run to run.
        """
        return on_live_pool(self._time_kernels, inputs, repeat)

    def _time_kernels(
        self, inputs: Sequence[np.ndarray], repeat: int
    ) -> tuple[list[tuple[str, str]], np.ndarray]:
        stopwatch = _Stopwatch(self.device)
        vm = self._vm()
        vm.set_instrument(stopwatch)
        try:
            with host.on_device(self.device), failures_told():
                tensors = self._given(inputs)
                for _ in range(repeat):
                    stopwatch.runs.append([])
                    vm["main"](*tensors)
        finally:
            vm.set_instrument(None)
        count = min(map(len, stopwatch.runs))
        symbols = [(symbol, "") for symbol, _ in stopwatch.runs[0][:count]]
        return symbols, np.array([[s for _, s in run[:count]] for run in stopwatch.runs])

    def _vm(self) -> relax.VirtualMachine:
        if not hasattr(self._local, "vm"):
            self.needs.check()
            if self.device != tvm.cpu():
                cuda.demand(self.device)
            # The pooled allocator keeps a bucket per size and would grow with dynamic shapes.
            with one_pool():  # it may be linked here
                self._local.vm = relax.VirtualMachine(
                    self.executable, self.device, memory_cfg="naive"
                )
            self._local.blocks, self._local.inputs = Blocks(), host.Inputs(self.device)
        lend(self._local.blocks)
        return self._local.vm


class _Stopwatch:
    """A VM instrument: seconds of each call, per run, without those of the calls within it; the
    VM's own builtins are left out."""

    def __init__(self, device: tvm.runtime.Device):
        self.device = device
        self.runs: list[list[tuple[str, float]]] = []
        self._open: list[tuple[float, float]] = []  # when a call began, seconds of calls within

    def __call__(self, _function, name: str, before_run: bool, _result, *_arguments) -> int:
        if name.startswith("vm."):
            return 0
        self.device.sync()
        if before_run:
            self._open.append((time.perf_counter(), 0.0))
            return 0
        start, within = self._open.pop()
        seconds = time.perf_counter() - start
        self.runs[-1].append((name, seconds - within))
        if self._open:
            start, within = self._open[-1]
            self._open[-1] = start, within + seconds
        return 0


def _modules(root: tvm.runtime.Module) -> Iterator[tvm.runtime.Module]:
    yield root
    for module in root.imports:
        yield from _modules(module)
