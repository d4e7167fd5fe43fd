"""Run cuda builds without a GPU: the generated CUDA C is compiled by g++ and called on the CPU.

Inside ``with emulated(folder):`` a build for cuda gives its kernels to g++ in place of the GPU
driver (see cuda_on_cpu.h) and registers each under its name, where the host code looks for
kernels that no imported module has. Buffers live in CPU memory. What ran before is restored.
A launch of no block and an access outside of a tensor are errors here, too.
"""

import contextlib
import ctypes
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from math import prod
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import numpy as np
import tvm
import tvm_ffi
from tvm import IRModule, tirx
from tvm.sym import Analyzer
from tvm.target import Target
from tvm.tirx.analysis import undefined_vars

from ..build import convert_and_build
from ..errors import BuildError
from ..pipeline import Pipeline

__all__ = ["NO_COMPILER", "Kernels", "emulated", "run"]

#: Why nothing can be emulated here; None where it can.
NO_COMPILER = None if shutil.which("g++") else "needs g++"

_TAGS = ["blockIdx.x", "blockIdx.y", "blockIdx.z", "threadIdx.x", "threadIdx.y", "threadIdx.z"]
_CPU = 1  # DLDeviceType
UNKNOWN = 1 << 62
_C_TYPES = {
    "int": ctypes.c_int,
    "int64_t": ctypes.c_int64,
    "float": ctypes.c_float,
    "double": ctypes.c_double,
    "bool": ctypes.c_bool,
}


def run(
    model: object,
    feeds: Mapping[str, np.ndarray],
    folder: str | os.PathLike,
    *,
    opt_level: int = 3,
    target: object = "cuda",
    steps: Pipeline | None = None,
    reverse: bool = False,
) -> list[np.ndarray]:
    """Build ``model`` for cuda and run it on the CPU; the outputs in order.

    ``folder`` takes the compiled kernels. ``model``, ``opt_level``, ``target`` and ``steps`` are
    those of :func:`tvm_ext.convert_and_build`, ``reverse`` that of :func:`emulated`.

    Raises:
        BuildError: g++ does not accept a kernel.
        TvmExtError: whatever ``convert_and_build`` raises.
    """
    with emulated(folder, reverse=reverse):
        compiled = convert_and_build(model, target, opt_level=opt_level, steps=steps)
        compiled._executor.device = tvm.cpu()
        return compiled.run(None, feeds)


@contextlib.contextmanager
def emulated(folder: str | os.PathLike, *, reverse: bool = False) -> Iterator[None]:
    """Builds for cuda inside of this context run on the CPU, inside of it.

    Threads take turns in ascending order, or in descending order (``reverse``): where results
    differ, a kernel depends on the order and lacks a barrier.
    """
    options = ["-DREVERSED"] if reverse else []
    build_cuda = tvm.get_global_func("target.build.cuda")
    build_llvm = tvm.get_global_func("target.build.llvm")

    def device(module: IRModule, target: Target) -> None:
        source = build_cuda(module, target).inspect_source()
        library = _Library(source, module, folder, options)
        for kernel in module.functions.values():
            registry.override(str(kernel.attrs["global_symbol"]), library.launcher(kernel))

    def host(module: IRModule, target: Target) -> tvm.runtime.Module:
        return build_llvm(_workspace_on_cpu(module), target)

    with (
        _Registry() as registry,
        tvm.transform.PassContext(config={"tirx.disable_assert": True}),
    ):  # the host code would insist on GPU tensors
        registry.override("target.build.cuda", device)
        registry.override("target.build.llvm", host)
        registry.override("__tvm_set_device", lambda *_: None)
        yield


class _Registry:
    """Overrides global functions of TVM and restores them."""

    def __enter__(self):
        self.previous = {}
        return self

    def override(self, name: str, function: Callable[..., object]) -> None:
        found = tvm.get_global_func(name, allow_missing=True)
        self.previous.setdefault(name, found)
        tvm_ffi.register_global_func(name, function, override=True)

    def __exit__(self, *_):
        for name, function in self.previous.items():
            if function is None:
                tvm_ffi.registry.remove_global_func(name)
            else:
                tvm_ffi.register_global_func(name, function, override=True)


def _workspace_on_cpu(module: IRModule) -> IRModule:
    """The host code with its temporary buffers in CPU memory."""

    def move(call):
        name = str(getattr(call.op, "name", ""))
        if name in ("tirx.TVMBackendAllocWorkspace", "tirx.TVMBackendFreeWorkspace"):
            args = [tirx.const(_CPU, "int32"), *call.args[1:]]
            return tvm.ir.Call(call.op, args, call.attrs, call.ty_args, call.span, call.ty)
        return call

    return IRModule(
        {
            gv: f.with_body(tvm_ffi.structural_map(f.body, (tvm.ir.Call, move)))
            for gv, f in module.functions_items()
        },
        attrs=module.attrs,
    )


class _Outside(ctypes.Structure):
    """The first access outside of a tensor, in elements."""

    _fields_ = [("found", ctypes.c_bool), ("index", ctypes.c_int64), ("size", ctypes.c_int64)]


class Kernels:
    """Generated CUDA C, as C++ that cuda_on_cpu.h runs."""

    def __init__(self, source: str):
        self.source = source[source.index('extern "C" __global__') :]

    @property
    def text(self) -> str:
        """The C++ text: parameters that point are tensors, which know their size."""
        header = Path(__file__).with_name("cuda_on_cpu.h")
        tensors = re.sub(r"((?:un)?signed )?(\w+)\* __restrict__", r"Tensor<\1\2>", self.source)
        return f'#include "{header}"\n{tensors}'

    @property
    def names(self) -> list[str]:
        """The kernels, as they are declared."""
        return re.findall(r"__global__ void .*?(\w+)\([^()]*\);", self.source)

    def parameters(self, name: str) -> list[str]:
        """The C types of the parameters of a kernel."""
        declared = re.findall(rf"\b{name}\((.*?)\)", self.source)[0].replace("__restrict__", "")
        return [
            parameter.strip().rsplit(" ", 1)[0].strip()
            for parameter in declared.split(",")
            if parameter
        ]

    def waits(self, name: str) -> str:
        """Whether threads of a kernel wait for each other, in C++."""
        pattern = rf"\b{name}\([^)]*\) {{.*?^}}"
        body = re.findall(pattern, self.source, re.DOTALL | re.MULTILINE)[0]
        return "true" if re.search(r"__sync|__shfl", body) else "false"


class _Library:
    """The kernels of one device module, compiled by g++ when the first of them is called."""

    def __init__(
        self, source: str, module: IRModule, folder: str | os.PathLike, options: list[str]
    ):
        self.kernels = Kernels(source)
        self.names = [str(kernel.attrs["global_symbol"]) for kernel in module.functions.values()]
        self.folder = folder
        self.options = options

    def launcher(self, kernel: tirx.PrimFunc) -> Callable[..., None]:
        """What the host code calls: data pointers and scalars, then the launch dims by tag."""
        name = str(kernel.attrs["global_symbol"])
        tags = [str(tag) for tag in kernel.attrs["tirx.kernel_launch_params"]]
        count = len(kernel.params)
        sizes = _sizes(kernel)

        def call(*arguments):
            dims = dict(zip(tags, arguments[count:], strict=True))
            grid = (ctypes.c_int * len(_TAGS))(*(int(dims.get(tag, 1)) for tag in _TAGS))
            if min(grid) < 1:
                raise ValueError(f"{name}: the launch {list(grid)} is empty, an error on a GPU")
            given = (ctypes.c_int64 * count)(*sizes(arguments[:count]))
            outside = getattr(self.compiled, f"launch_{name}")(grid, given, *arguments[:count])
            if outside.found:
                raise IndexError(
                    f"{name} accesses element {outside.index} of a tensor of {outside.size}"
                )

        return call

    @cached_property
    def compiled(self) -> ctypes.CDLL:
        """The loaded library, with one launch function per kernel."""
        stem = Path(mkdtemp(dir=self.folder)) / "kernels"  # dlopen knows a library by its path
        source, binary = stem.with_suffix(".cpp"), stem.with_suffix(".so")
        launches = [self.launch(name) for name in self.names]
        source.write_text("\n".join([self.kernels.text, *launches]))
        flags = ["-O1", "-w", "-fPIC", "-shared", "-ftrivial-auto-var-init=pattern", *self.options]
        done = subprocess.run(
            ["g++", *flags, "-o", binary, source], capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise BuildError(f"g++ refuses a generated kernel: {done.stderr[:4000]}")
        library = ctypes.CDLL(str(binary))
        for name in self.names:
            kinds = [
                ctypes.c_void_p if kind.endswith("*") else _C_TYPES[kind]
                for kind in self.kernels.parameters(name)
            ]
            function = getattr(library, f"launch_{name}")
            grid, sizes = ctypes.POINTER(ctypes.c_int), ctypes.POINTER(ctypes.c_int64)
            function.argtypes, function.restype = [grid, sizes, *kinds], _Outside
        return library

    def launch(self, name: str) -> str:
        """The C function that runs one kernel over its grid."""
        waits, kinds = self.kernels.waits(name), self.kernels.parameters(name)
        parameters = "".join(f", {kind} a{k}" for k, kind in enumerate(kinds))
        arguments = ", ".join(
            f"{{a{k}, sizes[{k}], 0}}" if kind.endswith("*") else f"a{k}"
            for k, kind in enumerate(kinds)
        )
        return (
            f'extern "C" Outside launch_{name}'
            f"(const int* launch, const int64_t* sizes{parameters}) {{\n"
            f"  return run_grid([=] {{ {name}({arguments}); }}, launch, {waits});\n"
            "}"
        )


def _sizes(kernel: tirx.PrimFunc) -> Callable[[Sequence[Any]], list[int]]:
    """The function from the arguments of ``kernel`` to the elements of each.

    Of a scalar, and of a tensor whose extents the kernel is not given, it is ``UNKNOWN``.
    """
    elements: dict[tirx.Var, tirx.Expr] = {}

    def note(declared: tirx.DeclBuffer) -> None:
        size = prod(declared.buffer.ty.shape)
        if set(undefined_vars(size)) <= set(kernel.params):
            elements[declared.data] = size

    tvm_ffi.structural_walk(kernel.body, (tirx.DeclBuffer, note), order="pre")

    def sizes(arguments: Sequence[Any]) -> list[int]:
        given = dict(zip(kernel.params, arguments, strict=True))

        def value(var: tirx.Var) -> tirx.Expr:
            return tirx.const(given[var], var.ty.dtype)

        exact = [elements.get(parameter, UNKNOWN) for parameter in kernel.params]
        return [
            int(Analyzer().simplify(tvm_ffi.structural_map(size, (tirx.Var, value))))
            for size in exact
        ]

    return sizes
