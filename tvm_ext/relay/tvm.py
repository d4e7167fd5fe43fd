"""TVM under the names of the Relay era: ``from tvm_ext.relay import tvm``.

What is not listed here is TVM's own.
"""

from types import SimpleNamespace

import tvm as _tvm

from . import graph_executor, nd
from .build_module import load_module
from .target import parse

__all__ = ["contrib", "device", "nd", "runtime", "target"]


class _Overlay(SimpleNamespace):
    """The attributes given, and those of ``base`` for the rest."""

    def __init__(self, base: object, **names: object):
        super().__init__(**names)
        self._base = base

    def __getattr__(self, name: str) -> object:
        return getattr(self._base, name)


contrib = _Overlay(_tvm.contrib, graph_executor=graph_executor)
runtime = _Overlay(_tvm.runtime, load_module=load_module, ndarray=nd, NDArray=nd.NDArray)
target = _Overlay(_tvm.target, Target=parse)


def device(name: object, index: int = 0) -> _tvm.runtime.Device:
    """The device of a kind (``"cpu"``) or of a target (``"llvm -mcpu=..."``)."""
    text = str(name)
    kind = parse(text).kind.name if text.startswith("{") else text.split()[0]
    return _tvm.device("cpu" if kind in ("llvm", "c") else kind, index)


def __getattr__(name: str) -> object:
    return getattr(_tvm, name)
