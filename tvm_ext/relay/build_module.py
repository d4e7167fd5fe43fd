"""``relay.build`` and what it returns."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass

import tvm
from tvm.ir.transform import PassContext
from tvm.target import Target

import tvm_ext
from tvm_ext import CompiledModel, convert_and_build
from tvm_ext.errors import OptionError, TargetError

from .backend import Executor, Runtime
from .frontend import Module
from .graph_executor import GraphExecutor
from .nd import NDArray
from .removed import removed
from .target import parse

__all__ = ["ExecutorFactoryModule", "build", "create_executor", "load_module"]


class ExecutorFactoryModule:
    """A compiled model; ``lib["default"](dev)`` makes an executor of it.

    Attributes:
        model: it.
        params: the parameters that were bound when it was built.
        bound: their names; None after loading, because a file does not say.
        ir_mod, target: what it was built from and for; None after loading.
    """

    def __init__(
        self,
        model: CompiledModel,
        params: Mapping[str, NDArray] | None = None,
        libmod_name: str = "default",
        ir_mod: Module | None = None,
        target: Target | None = None,
    ):
        self.model = model
        self.params = dict(params or {})
        self.bound: Collection[str] | None = None if ir_mod is None else self.params.keys()
        self.libmod_name = libmod_name
        self.ir_mod = ir_mod
        self.target = target

    def __getitem__(self, name: str) -> Callable:
        functions: dict[str, Callable] = {
            self.libmod_name: self.executor,
            "debug_create": lambda _name, *devices: self.executor(*devices),
            "get_graph_json": self.get_graph_json,
        }
        if name not in functions:
            raise AttributeError(f"no function {name!r}; there is {self.libmod_name!r}")
        return functions[name]

    def __iter__(self) -> Iterator[object]:
        """``graph, lib, params = relay.build(...)``, as before TVM 0.7."""
        return iter((self.get_graph_json(), self, self.params))

    def executor(self, *devices: tvm.runtime.Device) -> GraphExecutor:
        """A new executor, on the device that the model was built for.

        Raises:
            TargetError: it was built for another one.
        """
        return GraphExecutor(self.model, devices, self.bound)

    def get_graph_json(self) -> str:
        """The inputs and outputs, for ``graph_executor.create``."""
        model = self.model
        return json.dumps(
            {"inputs": [*map(str, model.inputs)], "outputs": [*map(str, model.outputs)]}
        )

    get_executor_config = get_graph_json

    @property
    def lib(self) -> ExecutorFactoryModule:
        """The library: this, as there are no parts."""
        return self

    module = mod = lib

    def get_lib(self) -> ExecutorFactoryModule:
        """The same as :attr:`lib`."""
        return self

    def get_params(self) -> dict[str, NDArray]:
        """The parameters that were bound when the model was built."""
        return self.params

    def save(self) -> tuple[bytes, object]:
        """The code and library of a virtual machine: not offered.

        Raises:
            RemovedError: always.
        """
        raise removed("relay.vm.Executable.save")

    def export_library(
        self, file_name: str | os.PathLike, fcompile: object = None, **options: object
    ) -> None:
        """Write the compiled model to a file that ``tvm.runtime.load_module`` reads.

        Raises:
            OutputPathError: the file cannot be written.
            OptionError: a compiler or its options are given: the target says which it is.
        """
        given = sorted(options) + (["fcompile"] if fcompile is not None else [])
        if given:
            raise OptionError(
                f"export_library takes no {', '.join(given)}: the compiler is found from the "
                "target's mtriple, or named by the variable CC"
            )
        self.model.save(file_name)


def build(
    ir_mod: Module,
    target: object = None,
    target_host: object = None,
    *,
    executor: Executor | None = None,
    runtime: Runtime | None = None,
    params: Mapping[str, NDArray] | None = None,
    mod_name: str = "default",
) -> ExecutorFactoryModule:
    """Compile at the opt level of the current ``PassContext``; its other settings hold too.

    Args:
        ir_mod: what ``from_onnx`` returned.
        target: a target as Relay wrote it (``"llvm -mcpu=core-avx2"``), or as
            ``convert_and_build`` takes it; None is the target of the enclosing ``with``.
        target_host: the host side of a GPU target.
        executor, runtime: checked when they were made; all are the same here.
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
    return ExecutorFactoryModule(model, params, mod_name, module, resolved)


@dataclass(frozen=True)
class Evaluator:
    """What ``create_executor`` returns; ``evaluate()`` compiles."""

    compile: Callable[[], ExecutorFactoryModule]

    def evaluate(self) -> Callable[..., NDArray | list[NDArray]]:
        """A function of the inputs, by position or name: one array, or a list of them.

        Raises:
            TvmExtError: as :func:`build`.
        """
        library = self.compile()

        def run(*args: object, **kwargs: object) -> NDArray | list[NDArray]:
            given = {name: x for name, x in kwargs.items() if name not in library.params}
            results = library.model(*args, **given)
            return list(map(NDArray, results)) if isinstance(results, tuple) else NDArray(results)

        return run


def create_executor(
    kind: str = "graph",
    mod: Module | None = None,
    device: tvm.runtime.Device | None = None,
    target: object = "llvm",
    params: Mapping[str, NDArray] | None = None,
) -> Evaluator:
    """Compile at the first ``evaluate()``; every ``kind`` of Relay's executors is the same here.

    Raises:
        OptionError: no module is given, or no executor was called ``kind``.
    """
    if kind not in ("graph", "vm", "aot", "debug"):
        raise OptionError(f"executors were called 'graph', 'vm', 'aot' and 'debug', not {kind!r}")
    if mod is None:
        raise OptionError("create_executor needs the module that from_onnx returned")
    return Evaluator(lambda: build(mod, target, params=params))


def load_module(path: str | os.PathLike) -> ExecutorFactoryModule:
    """Read what ``export_library`` wrote.

    Raises:
        OutputPathError: the file cannot be read.
    """
    return ExecutorFactoryModule(tvm_ext.load(path))


def __getattr__(name: str) -> object:
    if name.startswith("__"):
        raise AttributeError(name)
    raise removed(f"relay.build_module.{name}")
