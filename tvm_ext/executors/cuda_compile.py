"""CUDA C to machine code, where a GPU is: by nvrtc, or by nvcc.

TVM compiles by a callback, with --use_fast_math: denormals become zero, division, square root,
exp, sin and pow lose bits, and nvrtc has no option that takes that back. Ours takes its place.
"""

import importlib.util
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import tvm
import tvm_ffi
from tvm.target import Target

from ..errors import BuildError
from ..schedules.cuda.checked import text_is_all
from .toolchain import run_tool
from .work_folder import work_folder

__all__ = ["compile_cuda"]

# What the generated text takes for granted, and nvrtc, which knows no host, does not have.
_NVRTC_PREAMBLE = """\
#include <cuda/std/cstdint>
#include <cuda/std/limits>
using cuda::std::int8_t;
using cuda::std::int16_t;
using cuda::std::int32_t;
using cuda::std::int64_t;
using cuda::std::uint8_t;
using cuda::std::uint16_t;
using cuda::std::uint32_t;
using cuda::std::uint64_t;
#ifndef INFINITY
#define INFINITY (::cuda::std::numeric_limits<float>::infinity())
#endif
"""


@tvm_ffi.register_global_func("tvm_callback_cuda_compile", override=True)
def _compiled(code: str) -> bytes:
    """What TVM calls where it makes a module of CUDA C; its text can be had without."""
    if text_is_all():
        return b""
    return compile_cuda(code, _architecture())


def _architecture() -> str:
    """That of the target which is built for, else, where text is loaded, of the GPU here."""
    target = Target.current(allow_none=True)
    if target is not None and target.kind.name == "cuda" and "arch" in target.attrs:
        return str(target.attrs["arch"])
    return _architecture_here()


def _architecture_here() -> str:
    return f"sm_{tvm.cuda(0).compute_version.replace('.', '')}"


def compile_cuda(code: str, architecture: str) -> bytes:
    """``code`` for GPUs of ``architecture`` ("sm_90"): as machine code for the GPU here, else as
    PTX, which drivers compile for theirs.

    By nvrtc (the package cuda-bindings) where it and the headers of CUDA are found, else by nvcc;
    the variable ``TVM_CUDA_COMPILE_MODE``, "nvrtc" or "nvcc", decides for one of them.

    Raises:
        BuildError: there is neither, or the text is refused.
    """
    wanted = os.environ.get("TVM_CUDA_COMPILE_MODE", "").lower()
    if wanted != "nvcc":
        nvrtc, headers = _nvrtc(), list(_headers())
        if nvrtc and headers:
            return _by_nvrtc(nvrtc, code, architecture, headers)
    nvcc = _nvcc()
    if nvcc and wanted != "nvrtc":
        return _by_nvcc(nvcc, code, architecture)
    raise BuildError(
        "no compiler of CUDA C: install the extra tvm_ext[cuda], or the CUDA toolkit with nvcc on "
        "the PATH"
    )


def _by_nvcc(nvcc: str, code: str, architecture: str) -> bytes:
    with work_folder() as folder:
        source, binary = folder / "kernels.cu", folder / "kernels.bin"
        source.write_text(code)
        kind = "--cubin" if architecture == _architecture_here() else "--ptx"
        options = ["-O3", kind, f"-arch={architecture}", "--expt-relaxed-constexpr"]
        run_tool([nvcc, *options, "-o", str(binary), str(source)])
        return binary.read_bytes()


def _nvrtc() -> ModuleType | None:
    """The binding of nvrtc, where it and the library are."""
    try:
        from cuda.bindings import nvrtc

        nvrtc.nvrtcVersion()
    except (ImportError, RuntimeError):  # it is loaded by its first call
        return None
    return nvrtc


def _by_nvrtc(nvrtc: ModuleType, code: str, architecture: str, headers: list[Path]) -> bytes:
    here = architecture == _architecture_here()
    lines = code.splitlines()
    code = _NVRTC_PREAMBLE + "\n".join(line for line in lines if line != "#include <cuda.h>")
    _, program = nvrtc.nvrtcCreateProgram(code.encode(), b"kernels.cu", 0, None, None)
    kind = architecture if here else architecture.replace("sm_", "compute_")
    options = [f"--gpu-architecture={kind}", "-default-device", "--device-int128"]
    options += [f"-I{folder}" for folder in headers]
    try:
        (failed,) = nvrtc.nvrtcCompileProgram(program, len(options), [o.encode() for o in options])
        if failed:
            _, size = nvrtc.nvrtcGetProgramLogSize(program)
            log = bytearray(size)
            nvrtc.nvrtcGetProgramLog(program, log)
            raise BuildError(f"nvrtc refuses a generated kernel: {log.decode()[:4000]}")
        measure, fetch = (
            (nvrtc.nvrtcGetCUBINSize, nvrtc.nvrtcGetCUBIN)
            if here
            else (nvrtc.nvrtcGetPTXSize, nvrtc.nvrtcGetPTX)
        )
        _, size = measure(program)
        binary = bytearray(size)
        fetch(program, binary)
    finally:
        nvrtc.nvrtcDestroyProgram(program)
    return bytes(binary)


def _headers() -> Iterator[Path]:
    """The folders of CUDA's headers: of the toolkit, or of its packages for Python."""
    for root in _toolkits():
        folders = [root / "include", *root.glob("targets/*/include")]
        if any((folder / "cuda_fp16.h").is_file() for folder in folders):
            yield from (path for f in folders for path in (f, f / "cccl") if path.is_dir())
            return


def _toolkits() -> Iterator[Path]:
    if "CUDA_PATH" in os.environ:
        yield Path(os.environ["CUDA_PATH"])
    nvcc = _nvcc()
    if nvcc:
        yield Path(nvcc).resolve().parent.parent
    yield from sorted(Path("/usr/local").glob("cuda*"), reverse=True)
    packages = importlib.util.find_spec("nvidia")
    for place in (packages and packages.submodule_search_locations) or ():
        yield from Path(place).glob("cu*")


def _nvcc() -> str | None:
    """The path of nvcc, on the PATH or where its installer puts it."""
    return shutil.which("nvcc") or shutil.which("nvcc", path="/usr/local/cuda/bin")
