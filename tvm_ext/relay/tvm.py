"""TVM under the names of the Relay era: ``from tvm_ext.relay import tvm``.

What is not listed here is TVM's own; what has left TVM says what to use instead. Modules below
are imported as they were: ``from tvm_ext.relay.tvm.contrib import graph_executor``.
"""

import tvm as _tvm

from . import debug_executor, graph_executor, nd, transform, vm
from . import target as _target
from .build_module import load_module
from .modules import Overlay, own_or_of
from .removed import removed

__all__ = ["context", "contrib", "device", "gpu", "ir", "nd", "runtime", "target", "transform"]

__path__: list[str] = []  # modules below are found by .modules

_debugger = Overlay(
    "tvm.contrib.debugger", (), debug_executor=debug_executor, debug_runtime=debug_executor
)
contrib = Overlay(
    "tvm.contrib",
    (_tvm.contrib, _tvm.support),
    graph_executor=graph_executor,
    graph_runtime=graph_executor,
    debugger=_debugger,
)
runtime = Overlay(
    "tvm.runtime", (_tvm.runtime,), load_module=load_module, ndarray=nd, NDArray=nd.NDArray, vm=vm
)
target = Overlay(
    "tvm.target",
    (_tvm.target,),
    Target=_target.Target,
    create=_target.Target,
    cuda=_target.cuda,
)
transform = Overlay(
    "tvm.transform",
    (_tvm.ir.transform,),
    PassContext=transform.PassContext,
    Sequential=transform.Sequential,
)
ir = Overlay("tvm.ir", (_tvm.ir,), transform=transform)

_REMOVED = "autotvm", "auto_scheduler", "driver", "meta_schedule", "micro", "rpc"


def device(name: object, index: int = 0) -> _tvm.runtime.Device:
    """The device of a kind (``"cpu"``) or of a target (``"llvm -mcpu=..."``)."""
    return _tvm.device(_target.device_kind(name), index)


def gpu(index: int = 0) -> _tvm.runtime.Device:
    """The name of ``cuda`` before TVM 0.8."""
    return _tvm.cuda(index)


context = device


def __getattr__(name: str) -> object:
    if name == "relay":
        from tvm_ext import relay

        return relay
    if name in _REMOVED:
        raise removed(f"tvm.{name}")
    return own_or_of("tvm", name, (_tvm,))
