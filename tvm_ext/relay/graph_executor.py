"""``tvm.contrib.graph_executor``: set the inputs, run, get the outputs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from time import perf_counter
from typing import Any

import numpy as np
import tvm
from tvm.runtime.module import BenchmarkResult

from tvm_ext import CompiledModel
from tvm_ext.errors import InputError, OptionError, TargetError
from tvm_ext.interface import TensorInfo, numbers_only
from tvm_ext.profile import Profile

from .nd import NDArray
from .param_dict import load_param_dict

__all__ = ["GraphExecutor", "GraphModule", "connected", "create"]


class GraphExecutor:
    """The inputs and outputs of one compiled model: what ``lib["default"](dev)`` returns.

    Inputs of static shape are zero until they are set. ``bound`` names the parameters that are
    constants of the model; None where that is not known.
    """

    def __init__(
        self,
        model: CompiledModel,
        devices: Sequence[tvm.runtime.Device],
        bound: Collection[str] | None = (),
    ):
        wrong = [d for d in devices if d.type != model.device.type]
        if wrong:
            raise TargetError(f"the model was built for {model.device}, not for {wrong[0]}")
        self.model = model
        self.bound = bound
        self.inputs = numbers_only(model.inputs)
        self._names = [info.name for info in self.inputs]
        self._feeds = {
            info.name: np.zeros(shape, info.dtype)
            for info in self.inputs
            if (shape := info.static_shape) is not None
        }
        self._results: list[np.ndarray] | None = None

    def __getitem__(self, name: str) -> Callable:
        if name not in (
            "set_input",
            "get_input",
            "run",
            "get_output",
            "get_num_inputs",
            "get_num_outputs",
            "get_input_index",
        ):
            raise AttributeError(f"no function {name!r}")
        return getattr(self, name)

    def set_input(self, key: str | int, value: object) -> None:
        """Copy ``value``, cast to the input's dtype as Relay did.

        Raises:
            InputError: no such input, or another rank or shape.
        """
        info = self._info(key)
        # Tensors of TVM and torch say numpy(); the rest is what numpy can read.
        values = value.numpy() if hasattr(value, "numpy") else value
        try:
            array = np.array(values, dtype=info.dtype, order="C")
        except (ValueError, TypeError) as error:
            raise InputError(f"input {info.name!r} cannot be read as an array: {error}") from error
        if len(array.shape) != len(info.shape) or any(
            isinstance(want, int) and want != got
            for want, got in zip(info.shape, array.shape, strict=True)
        ):
            raise InputError(f"input {info.name!r} needs shape {info.shape}, got {array.shape}")
        self._feeds[info.name] = array

    def get_input(self, key: str | int) -> NDArray:
        """The value an input has now."""
        info = self._info(key)
        if info.name not in self._feeds:
            raise InputError(f"input {info.name!r} {info.shape} is not set")
        return NDArray(self._feeds[info.name])

    def get_input_index(self, name: str) -> int:
        """The position of an input; -1 where there is none."""
        return self._names.index(name) if name in self._names else -1

    def is_bound(self, name: str) -> bool:
        """Whether ``name`` is, or may be, a parameter that needs no setting."""
        return name not in self._names if self.bound is None else name in self.bound

    def run(self) -> None:
        """Compute the outputs from the inputs.

        Raises:
            InputError: an input of symbolic shape is not set.
        """
        self._results = self.model.run(None, self._feeds)

    def get_output(self, index: int) -> NDArray:
        """One output of the last run.

        Raises:
            InputError: there was no run, or there is no such output.
        """
        if self._results is None:
            raise InputError("no outputs yet: call run() first")
        if not 0 <= index < len(self._results):
            raise InputError(f"no output {index}; the model has {len(self._results)}")
        return NDArray(self._results[index])

    def get_num_inputs(self) -> int:
        return len(self._names)

    def get_num_outputs(self) -> int:
        return len(self.model.outputs)

    def profile(self) -> Profile:
        """Time each kernel on the inputs that are set."""
        return self.model.profile(self._feeds)

    def time_evaluator(
        self,
        name: str,
        device: tvm.runtime.Device | None = None,
        number: int = 10,
        repeat: int = 1,
        min_repeat_ms: int = 0,
    ) -> Callable[..., BenchmarkResult]:
        """A function that times ``name`` and returns seconds per call, one value per repeat.

        ``number`` calls make one measurement; it is raised until one lasts ``min_repeat_ms``.
        """
        timed = self[name]

        def evaluate(*args: object) -> BenchmarkResult:
            timed(*args)  # the first call binds buffers and warms caches
            return BenchmarkResult(
                [_seconds_per_call(timed, args, number, min_repeat_ms / 1e3) for _ in range(repeat)]
            )

        return evaluate

    def _info(self, key: str | int) -> TensorInfo:
        index = key if isinstance(key, int) else self.get_input_index(key)
        if not 0 <= index < len(self._names):
            raise InputError(f"no input {key!r}; the model has {self._names}")
        return self.inputs[index]


def _seconds_per_call(
    function: Callable, args: Sequence[object], number: int, minimum: float
) -> float:
    while True:
        start = perf_counter()
        for _ in range(number):
            function(*args)
        seconds = perf_counter() - start
        if seconds >= minimum:
            return seconds / number
        number = max(number + 1, int(number * min(minimum / seconds, 10)))


class GraphModule:
    """The interface of ``tvm.contrib.graph_executor.GraphModule`` on an executor."""

    def __init__(self, module: GraphExecutor):
        self.module = module

    def set_input(self, key: str | int | None = None, value: object = None, **params: Any) -> None:
        """Set one input by name or position, and others by keyword.

        Parameters that were bound when the model was built need no setting and are passed over.
        A loaded model does not know them: it passes over whatever is no input, as Relay did.
        """
        if key is not None:
            self.module.set_input(key, value)
        for name, array in params.items():
            if not self.module.is_bound(name):
                self.module.set_input(name, array)

    def load_params(self, params_bytes: bytes | bytearray) -> None:
        """Set the parameters that ``relay.save_param_dict`` wrote.

        Raises:
            InputError: they cannot be read, or do not fit.
        """
        params: dict[str, Any] = load_param_dict(params_bytes)
        self.set_input(**params)

    def run(self, **inputs: Any) -> None:
        """Set the given inputs, then compute the outputs."""
        self.set_input(**inputs)
        self.module.run()

    def get_input(self, index: str | int, out: NDArray | None = None) -> NDArray:
        """The value of an input; copied into ``out`` where that is given."""
        return _into(self.module.get_input(index), out)

    def get_output(self, index: int, out: NDArray | None = None) -> NDArray:
        """An output of the last run; copied into ``out`` where that is given."""
        return _into(self.module.get_output(index), out)

    def get_num_inputs(self) -> int:
        return self.module.get_num_inputs()

    def get_num_outputs(self) -> int:
        return self.module.get_num_outputs()

    def get_input_index(self, name: str) -> int:
        """The position of an input; -1 where there is none."""
        return self.module.get_input_index(name)

    def get_input_info(self) -> tuple[dict[str, tuple], dict[str, str]]:
        """Input name -> shape, and input name -> dtype."""
        infos = self.module.inputs
        return {i.name: i.shape for i in infos}, {i.name: i.dtype for i in infos}

    def benchmark(
        self,
        device: tvm.runtime.Device,
        func_name: str = "run",
        repeat: int = 5,
        number: int = 5,
        min_repeat_ms: int | None = None,
        end_to_end: bool = False,
        **inputs: Any,
    ) -> BenchmarkResult:
        """Time ``run``: seconds per call with mean, median, min, max and std.

        ``end_to_end`` counts setting the inputs and getting the outputs too.
        """
        self.set_input(**inputs)
        if not end_to_end:
            return self.module.time_evaluator(
                func_name, device, number, repeat, min_repeat_ms or 0
            )()

        def whole() -> None:
            self.run(**inputs)
            for index in range(self.get_num_outputs()):
                self.get_output(index).numpy()

        whole()
        return BenchmarkResult(
            [
                _seconds_per_call(whole, (), number, (min_repeat_ms or 0) / 1e3)
                for _ in range(repeat)
            ]
        )

    def __getitem__(self, name: str) -> Callable:
        return self.module[name]


def create(
    graph_json_str: str,
    libmod: object,
    device: tvm.runtime.Device | Sequence[tvm.runtime.Device],
) -> GraphModule:
    """A graph module of the graph, the library and a device, as scripts made it before TVM 0.7.

    Raises:
        OptionError: the graph is of another model, or ``libmod`` is no compiled model.
    """
    return GraphModule(connected(graph_json_str, libmod, device))


def connected(
    graph_json_str: str,
    libmod: Any,
    device: tvm.runtime.Device | Sequence[tvm.runtime.Device],
) -> GraphExecutor:
    """The executor of ``libmod``, after checking that the graph is its own.

    Raises:
        OptionError: the graph is of another model, or ``libmod`` is no compiled model.
    """
    if not hasattr(libmod, "get_graph_json"):
        raise OptionError("create needs the library that relay.build or load_module returned")
    if libmod.get_graph_json() != graph_json_str:
        raise OptionError("the graph is not that of the library")
    return libmod.executor(*(device if isinstance(device, Sequence) else [device]))


def _into(array: NDArray, out: NDArray | None) -> NDArray:
    return array if out is None else array.copyto(out)
