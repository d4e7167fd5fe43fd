"""``relay.vm`` and ``tvm.runtime.vm``: compile, then call functions of a virtual machine.

The machine here is the compiled model, so ``"main"`` is its only function. Several outputs come
as a list, as Relay's tuples did to ``[0]``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import tvm
from tvm.runtime.module import BenchmarkResult

from tvm_ext.errors import InputError, OptionError

from .build_module import ExecutorFactoryModule, build
from .frontend import Module
from .graph_executor import GraphModule
from .nd import NDArray
from .removed import removed

__all__ = ["VirtualMachine", "compile"]


def compile(
    mod: Module,
    target: object = None,
    target_host: object = None,
    params: Mapping[str, NDArray] | None = None,
) -> ExecutorFactoryModule:
    """What :func:`tvm_ext.relay.build` makes.

    Raises:
        TvmExtError: as ``build``.
    """
    return build(mod, target, target_host, params=params)


class VirtualMachine:
    """Runs what :func:`compile` made, or what was loaded, on a device.

    ``memory_cfg`` has no meaning any more.
    """

    def __init__(
        self,
        exe: ExecutorFactoryModule,
        device: tvm.runtime.Device | Sequence[tvm.runtime.Device],
        memory_cfg: object = None,
    ):
        if not isinstance(exe, ExecutorFactoryModule):
            raise OptionError("VirtualMachine runs what relay.vm.compile or load_module returned")
        devices = device if isinstance(device, Sequence) else [device]
        self.module = GraphModule(exe[exe.libmod_name](*devices))

    def set_input(self, func_name: str, *args: object, **kwargs: Any) -> None:
        """The inputs of the next ``run`` or ``invoke_stateful``, by position or name.

        Raises:
            InputError: the function is not "main", or the inputs do not fit.
        """
        if func_name != "main":
            raise InputError(f"no function {func_name!r}; there is 'main'")
        for index, value in enumerate(args):
            self.module.set_input(index, value)
        self.module.set_input(**kwargs)

    def invoke(self, func_name: str, *args: object, **kwargs: Any) -> NDArray | list[NDArray]:
        """Set the inputs, run, and return the output, or a list of them.

        Raises:
            InputError: as :meth:`set_input`.
        """
        self.set_input(func_name, *args, **kwargs)
        self.module.run()
        outputs = self.get_outputs()
        return outputs[0] if len(outputs) == 1 else outputs

    def run(self, *args: object, **kwargs: Any) -> NDArray | list[NDArray]:
        """``invoke("main", ...)``."""
        return self.invoke("main", *args, **kwargs)

    def invoke_stateful(self, func_name: str) -> None:
        """Run on the inputs that are set."""
        self.invoke(func_name)

    def get_outputs(self) -> list[NDArray]:
        """The outputs of the last run."""
        return [self.module.get_output(k) for k in range(self.module.get_num_outputs())]

    def benchmark(
        self,
        device: tvm.runtime.Device,
        *args: object,
        func_name: str = "main",
        repeat: int = 5,
        number: int = 5,
        min_repeat_ms: int | None = None,
        end_to_end: bool = False,
        **kwargs: Any,
    ) -> BenchmarkResult:
        """Time runs on these inputs: seconds per call with mean, median, min, max and std."""
        self.set_input(func_name, *args, **kwargs)
        return self.module.benchmark(
            device,
            repeat=repeat,
            number=number,
            min_repeat_ms=min_repeat_ms,
            end_to_end=end_to_end,
        )


def __getattr__(name: str) -> object:
    if name.startswith("__"):
        raise AttributeError(name)
    raise removed(f"relay.vm.{name}")
