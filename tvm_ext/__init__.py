"""Any ONNX model into fast native code with Apache TVM."""

import ctypes
from contextlib import suppress
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ._version import __version__

if TYPE_CHECKING:
    from . import backend, compare, debug, errors, export, extend, relay
    from .build import convert_and_build
    from .by_rank import ModelByRank
    from .executors.threads import set_affinity, set_spin, set_threads, threads
    from .model import CompiledModel, load
    from .session import InferenceSession

__all__ = [
    "CompiledModel",
    "InferenceSession",
    "ModelByRank",
    "__version__",
    "backend",
    "compare",
    "convert_and_build",
    "debug",
    "errors",
    "export",
    "extend",
    "load",
    "relay",
    "set_affinity",
    "set_spin",
    "set_threads",
    "threads",
]

_HOMES = {
    "CompiledModel": "model",
    "InferenceSession": "session",
    "ModelByRank": "by_rank",
    "convert_and_build": "build",
    "load": "model",
    "set_affinity": "executors.threads",
    "set_spin": "executors.threads",
    "set_threads": "executors.threads",
    "threads": "executors.threads",
}
_MODULES = ("backend", "compare", "debug", "errors", "export", "extend", "relay")


def _load_cuda_runtime() -> None:
    """Load the runtime that the extra ``cuda`` brings; by itself TVM finds only a toolkit's."""
    packages = find_spec("nvidia")
    for place in (packages and packages.submodule_search_locations) or ():
        for library in Path(place).glob("cu13/lib/libcudart.so.13"):
            with suppress(OSError):  # of another machine, say: TVM then finds no GPU
                ctypes.CDLL(str(library))


def __getattr__(name: str) -> Any:
    # On first use: importing TVM takes seconds, which `tvm-ext --help` need not pay.
    if name in _MODULES:
        return import_module(f".{name}", __name__)
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f".{_HOMES[name]}", __name__), name)
    return value


def __dir__() -> list[str]:
    return sorted(__all__)


_load_cuda_runtime()
