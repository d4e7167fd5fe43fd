"""``relay.build`` and what it returns."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import tvm
from tvm.ir.transform import PassContext
from tvm.target import Target

import tvm_ext
from tvm_ext import CompiledModel, convert_and_build
from tvm_ext.errors import OptionError, TargetError

from .frontend import Module
from .graph_executor import GraphExecutor
from .nd import NDArray
from .target import parse

__all__ = ["ExecutorFactoryModule", "build", "create_executor", "load_module"]


class ExecutorFactoryModule:
    """A compiled model; ``lib["default"](dev)`` makes an executor of it."""

    def __init__(
        self,
        model: CompiledModel,
        params: Mapping[str, NDArray] | None = None,
        name: str = "default",
    ):
        self.model = model
        self.params = dict(params or {})
        self.name = name

    def __getitem__(self, name: str) -> Callable[..., GraphExecutor]:
        if name != self.name:
            raise AttributeError(f"no function {name!r}; there is {self.name!r}")
        return lambda *devices: GraphExecutor(self.model, devices, bound=self.params.keys())

    def get_params(self) -> dict[str, NDArray]:
        """The parameters that were bound when the model was built."""
        return self.params

    def export_library(self, file_name: str | os.PathLike) -> None:
        """Write the compiled model to a file that ``tvm.runtime.load_module`` reads.

        Raises:
            OutputPathError: the file cannot be written.
        """
        self.model.save(file_name)


def build(
    ir_mod: Module,
    target: object = None,
    target_host: object = None,
    *,
    params: Mapping[str, NDArray] | None = None,
    mod_name: str = "default",
) -> ExecutorFactoryModule:
    """Compile at the opt level of the current ``PassContext``; its other settings hold too.

    Args:
        ir_mod: what ``from_onnx`` returned.
        target: a target as Relay wrote it (``"llvm -mcpu=core-avx2"``), or as
            ``convert_and_build`` takes it; None is the target of the enclosing ``with``.
        target_host: the host side of a GPU target.
        params: values for inputs, by name, that become constants of the model.
        mod_name: the name under which the result holds its executor.

    Raises:
        TargetError: the target is unknown, or none is given.
        InputError: a parameter fits nothing in the model.
        OptionError: ``ir_mod`` is no module of ``from_onnx``.
        TvmExtError: as ``convert_and_build``.
    """
    if not isinstance(ir_mod, Module):
        raise OptionError("relay.build needs the module that relay.frontend.from_onnx returned")
    target = target if target is not None else Target.current()
    if target is None:
        raise TargetError("no target: give target=..., or build inside `with target:`")
    resolved = parse(target, target_host)
    level = min(PassContext.current().opt_level, 3)
    module = ir_mod.bound(params) if params else ir_mod
    model = convert_and_build(module.model, resolved, opt_level=level)
    return ExecutorFactoryModule(model, params, mod_name)


@dataclass(frozen=True)
class Executor:
    """What ``create_executor`` returns; ``evaluate()`` compiles."""

    compile: Callable[[], ExecutorFactoryModule]

    def evaluate(self) -> Callable[..., NDArray | list[NDArray]]:
        """A function of the inputs, by position or name: one array, or a list of them.

        Raises:
            TvmExtError: as :func:`build`.
        """
        model = self.compile().model

        def run(*args: object, **kwargs: object) -> NDArray | list[NDArray]:
            results = model(*args, **kwargs)
            return list(map(NDArray, results)) if isinstance(results, tuple) else NDArray(results)

        return run


def create_executor(
    kind: str = "graph",
    mod: Module | None = None,
    device: tvm.runtime.Device | None = None,
    target: object = "llvm",
    params: Mapping[str, NDArray] | None = None,
) -> Executor:
    """Compile at the first ``evaluate()``; every ``kind`` of Relay's executors is the same here.

    Raises:
        OptionError: no module is given, or no executor was called ``kind``.
    """
    if kind not in ("graph", "vm", "aot", "debug"):
        raise OptionError(f"executors were called 'graph', 'vm', 'aot' and 'debug', not {kind!r}")
    if mod is None:
        raise OptionError("create_executor needs the module that from_onnx returned")
    return Executor(lambda: build(mod, target, params=params))


def load_module(path: str | os.PathLike) -> ExecutorFactoryModule:
    """Read what ``export_library`` wrote.

    Raises:
        OutputPathError: the file cannot be read.
    """
    return ExecutorFactoryModule(tvm_ext.load(path))
