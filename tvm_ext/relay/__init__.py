"""The face of Relay on Relax: an ONNX deployment script of that era runs with new import lines.

===================================== ==========================================
before                                now
===================================== ==========================================
``import tvm``                        ``from tvm_ext.relay import tvm``
``from tvm import relay``             ``from tvm_ext import relay``
``from tvm.contrib import             ``from tvm_ext.relay import
graph_executor``                      graph_executor``
===================================== ==========================================

``tvm_ext.relay.tvm`` is TVM with the names that it had then (``tvm.nd``, targets written as
``"llvm -mcpu=..."``, ``tvm.runtime.load_module``). ``relay.build`` is
:func:`tvm_ext.convert_and_build` with the opt level of the current ``PassContext``.
"""

from . import frontend, graph_executor, nd
from .build_module import ExecutorFactoryModule, build, create_executor
from .param_dict import load_param_dict, save_param_dict

__all__ = [
    "ExecutorFactoryModule",
    "build",
    "create_executor",
    "frontend",
    "graph_executor",
    "load_param_dict",
    "nd",
    "save_param_dict",
]
