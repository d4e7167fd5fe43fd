"""``onnxruntime.InferenceSession``, as far as most scripts use it, on a compiled model::

from tvm_ext import InferenceSession  # was: from onnxruntime import InferenceSession
session = InferenceSession("model.onnx")
(y,) = session.run(None, {session.get_inputs()[0].name: x})
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .build import convert_and_build
from .errors import TargetError
from .model import TensorInfo

__all__ = ["InferenceSession", "NodeArg"]

_TARGETS = {"CPUExecutionProvider": "llvm", "CUDAExecutionProvider": "cuda"}

# The names of element types that differ from numpy's.
_ONNX_TYPES = {"float32": "float", "float64": "double"}


@dataclass(frozen=True)
class NodeArg:
    """An input or output as onnxruntime describes it: ``type`` reads ``tensor(float)``."""

    name: str
    shape: list[int | str]
    type: str


class InferenceSession:
    """A model compiled when the session is made.

    Args:
        model: a path, bytes, ``onnx.ModelProto`` or ``onnx_ir.Model``.
        providers: execution providers, the preferred one first; None means the CPU. Options
            given with a provider are refused, as they belong to onnxruntime.
        options: go to :func:`tvm_ext.convert_and_build` (``opt_level``, ``shapes``, ...).

    Raises:
        TargetError: no known provider is given, or one with options.
        TvmExtError: as ``convert_and_build``.
    """

    def __init__(self, model: object, *, providers: Sequence[object] | None = None, **options: Any):
        self._provider = _provider(providers or ["CPUExecutionProvider"])
        self._model = convert_and_build(model, _TARGETS[self._provider], **options)

    def run(
        self, output_names: Sequence[str] | None, input_feed: Mapping[str, object]
    ) -> list[np.ndarray]:
        """The outputs asked for (None or empty: all), in order.

        Raises:
            InputError: a name, dtype, rank or shape does not fit.
        """
        return self._model.run(output_names or None, input_feed)

    def get_inputs(self) -> list[NodeArg]:
        """The inputs that ``run`` needs, in the order of the model."""
        return [_node_arg(info) for info in self._model.inputs]

    def get_outputs(self) -> list[NodeArg]:
        """The outputs, in the order of the model."""
        return [_node_arg(info) for info in self._model.outputs]

    def get_providers(self) -> list[str]:
        """The execution provider whose device runs the model."""
        return [self._provider]


def _provider(asked: Sequence[object]) -> str:
    for provider in asked:
        if isinstance(provider, tuple):
            raise TargetError(f"provider options are onnxruntime's own: {provider}")
        if provider in _TARGETS:
            return str(provider)
    raise TargetError(f"no provider of {list(asked)} is known; there are {sorted(_TARGETS)}")


def _node_arg(info: TensorInfo) -> NodeArg:
    return NodeArg(
        info.name, list(info.shape), f"tensor({_ONNX_TYPES.get(info.dtype, info.dtype)})"
    )
