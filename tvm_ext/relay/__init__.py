"""The face of Relay on Relax: an ONNX deployment script of that era runs with new import lines.

============================================ =================================================
before                                       now
============================================ =================================================
``import tvm``                               ``from tvm_ext.relay import tvm``
``from tvm import relay``                    ``from tvm_ext import relay``
``from tvm.contrib import graph_executor``   ``from tvm_ext.relay import graph_executor``
``from tvm.a.b import c``                    ``from tvm_ext.relay.tvm.a.b import c``
============================================ =================================================

``tvm_ext.relay.tvm`` is TVM with the names that it had then (``tvm.nd``, targets written as
``"llvm -mcpu=..."``, ``tvm.runtime.load_module``, the configs of a ``PassContext``).
``relay.build`` is :func:`tvm_ext.convert_and_build` with the opt level of the current
``PassContext``. What is not offered says what to use instead.
"""

from . import backend, debug_executor, frontend, graph_executor, nd, transform, vm
from .build_module import ExecutorFactoryModule, build, create_executor
from .frontend import Any
from .modules import find_below
from .param_dict import load_param_dict, save_param_dict
from .removed import removed

__all__ = [
    "Any",
    "ExecutorFactoryModule",
    "backend",
    "build",
    "create_executor",
    "debug_executor",
    "frontend",
    "graph_executor",
    "load_param_dict",
    "nd",
    "save_param_dict",
    "transform",
    "vm",
]

find_below()


def __getattr__(name: str) -> object:
    if name.startswith("__"):
        raise AttributeError(name)
    raise removed(f"relay.{name}")
