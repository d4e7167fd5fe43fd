"""TVM's cuda runtime without a GPU: the driver of stand_in.c, and kernels compiled by g++.

    environment = stand_in.prepared(folder)     # for a child process, before it imports tvm
    stand_in.compile_kernels(folder)            # in it

The emulator calls kernels in the place of the runtime; here the runtime itself loads and launches
them, copies, and allocates. A host that touches memory of the device crashes, as does a kernel
that is given memory of the host.
"""

import os
import shutil
import subprocess
from pathlib import Path
from tempfile import mkdtemp

import tvm_ffi

from tvm_ext.emulator import Kernels
from tvm_ext.executors import cuda_compile  # noqa: F401  registers what is replaced here
from tvm_ext.schedules.cuda.checked import text_is_all

__all__ = ["FOLDER", "MISSING", "compile_kernels", "prepared"]

#: The variable that names, in a process that runs on the stand-in, the folder of its files.
FOLDER = "TVM_EXT_CUDA_STAND_IN"

#: Why there is no stand-in here; None where there is.
MISSING = None if shutil.which("gcc") and shutil.which("g++") else "needs gcc and g++"

_HERE = Path(__file__).parent
_NAMES = "libcudart.so.13", "libcuda.so.1"

# A parameter that points must point to memory of the device, of which there is so much.
_LAUNCH = """
extern "C" int stand_in_{name}(const unsigned* launch, void* const* given,
                               size_t (*room)(const void*), void* (*access)(const void*)) {{
  int grid[6];
  for (int k = 0; k < 6; ++k) grid[k] = launch[k];
  {pointers}
  const Outside found = run_grid([=] {{ {name}({arguments}); }}, grid, {waits});
  if (found.found)
    fprintf(stderr, "{name} accesses element %lld of %lld\\n", (long long)found.index,
            (long long)found.size);
  return found.found;
}}
"""
_POINTER = """\
void* const p{k} = *(void**)given[{k}];
  const size_t bytes{k} = p{k} ? room(p{k}) : 0;
  if (p{k} && !bytes{k}) {{
    fprintf(stderr, "argument {k} of {name} is no memory of the device\\n");
    return 1;
  }}
  {kind}* const a{k} = p{k} ? ({kind}*)access(p{k}) : nullptr;"""


def prepared(folder: Path) -> dict[str, str]:
    """The environment of a process whose TVM finds the stand-in, compiled in ``folder``."""
    library = folder / _NAMES[0]
    versions = folder / "versions.map"
    versions.write_text(f"{_NAMES[0]} {{ global: cu*; local: *; }};\n")
    command = ["gcc", "-O1", "-Wall", "-Wextra", "-shared", "-fPIC", f"-Wl,-soname,{_NAMES[0]}"]
    command += [f"-Wl,--version-script={versions}", "-o", str(library)]
    subprocess.run([*command, str(_HERE / "stand_in.c"), "-ldl"], check=True)
    (folder / _NAMES[1]).symlink_to(library)
    path = os.pathsep.join(filter(None, [str(folder), os.environ.get("LD_LIBRARY_PATH")]))
    return os.environ | {"LD_LIBRARY_PATH": path, FOLDER: str(folder)}


def compile_kernels(folder: Path) -> None:
    """From here on, modules of CUDA C become libraries in ``folder``."""

    def compiled(code: str) -> bytes:
        if text_is_all():
            return b""
        stem = Path(mkdtemp(dir=folder)) / "kernels"
        source, library = stem.with_suffix(".cpp"), stem.with_suffix(".so")
        source.write_text(_host_text(code))
        flags = ["-O1", "-w", "-fPIC", "-shared", "-ftrivial-auto-var-init=pattern"]
        subprocess.run(["g++", *flags, "-o", library, source], check=True)
        return str(library).encode() + b"\0"

    tvm_ffi.register_global_func("tvm_callback_cuda_compile", compiled, override=True)


def _host_text(code: str) -> str:
    kernels = Kernels(code)
    launches = [_launch(name, kernels) for name in kernels.names]
    return "\n".join(["#include <stdio.h>", kernels.text, *launches])


def _launch(name: str, kernels: Kernels) -> str:
    pointers, arguments = [], []
    for k, kind in enumerate(kernels.parameters(name)):
        if kind.endswith("*"):
            element = kind.removesuffix("*").strip()
            pointers.append(_POINTER.format(k=k, name=name, kind=element))
            arguments.append(f"{{a{k}, (int64_t)(bytes{k} / sizeof({element})), 0}}")
        else:
            arguments.append(f"*({kind}*)given[{k}]")
    return _LAUNCH.format(
        name=name,
        pointers="\n  ".join(pointers),
        arguments=", ".join(arguments),
        waits=kernels.waits(name),
    )
