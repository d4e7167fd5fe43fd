"""``onnxruntime.InferenceSession``, as far as most scripts use it, on a compiled model::

from tvm_ext import InferenceSession  # was: from onnxruntime import InferenceSession
session = InferenceSession("model.onnx")
(y,) = session.run(None, {session.get_inputs()[0].name: x})
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir
import tvm

from .build import convert_and_build
from .errors import OptionError, TargetError
from .frontend import Limits, load
from .interface import (
    Info,
    MapType,
    OptionalType,
    SequenceType,
    TensorInfo,
    TensorType,
    ValueType,
)

__all__ = ["InferenceSession", "ModelMetadata", "NodeArg"]

_TARGETS = {"CPUExecutionProvider": "llvm", "CUDAExecutionProvider": "cuda"}

# The names of element types that differ from numpy's.
_ONNX_TYPES = {"float32": "float", "float64": "double"}


@dataclass(frozen=True)
class NodeArg:
    """An input or output as onnxruntime describes it: ``type`` reads ``tensor(float)``."""

    name: str
    shape: list[int | str]
    type: str


@dataclass(frozen=True)
class ModelMetadata:
    """What a model says of itself."""

    producer_name: str
    graph_name: str
    domain: str
    description: str
    version: int
    custom_metadata_map: dict[str, str]


class InferenceSession:
    """A model compiled when the session is made.

    Args:
        model: a path, bytes, ``onnx.ModelProto`` or ``onnx_ir.Model``.
        sess_options: accepted so that scripts run; steers onnxruntime's own engine and has no
            effect here.
        providers: execution providers, the preferred one first: the first whose device is here
            is used. None means the CPU. Options of a provider are refused, as they belong to
            onnxruntime.
        provider_options: one empty mapping per provider, or None.
        limits: what a model may ask before it is refused.
        options: go to :func:`tvm_ext.convert_and_build` (``opt_level``, ``shapes``, ...).

    Raises:
        TargetError: no provider is known, or none has its device here.
        OptionError: a provider has options.
        TvmExtError: as ``convert_and_build``.
    """

    def __init__(
        self,
        model: object,
        sess_options: object = None,
        providers: Sequence[object] | None = None,
        provider_options: Sequence[Mapping[str, object]] | None = None,
        *,
        limits: Limits | None = None,
        **options: Any,
    ):
        if provider_options and any(provider_options):
            raise OptionError(f"provider options are onnxruntime's own: {provider_options}")
        self._provider = _provider(providers or ["CPUExecutionProvider"])
        source = load(model, limits)
        self._metadata = _metadata(source)
        self._model = convert_and_build(source, _TARGETS[self._provider], limits=limits, **options)

    def run(
        self,
        output_names: Sequence[str] | None,
        input_feed: Mapping[str, object],
        run_options: object = None,
    ) -> list[np.ndarray]:
        """The outputs asked for (None or empty: all), in order; ``run_options`` have no effect.

        Raises:
            InputError: a name, dtype, rank or shape does not fit.
        """
        return self._model.run(output_names, input_feed)

    def get_inputs(self) -> list[NodeArg]:
        """The inputs that ``run`` needs, in the order of the model."""
        return [_node_arg(info) for info in self._model.inputs]

    def get_outputs(self) -> list[NodeArg]:
        """The outputs, in the order of the model."""
        return [_node_arg(info) for info in self._model.outputs]

    def get_modelmeta(self) -> ModelMetadata:
        """Producer, name, version and the user's own entries of the model."""
        return self._metadata

    def get_providers(self) -> list[str]:
        """The execution provider whose device runs the model."""
        return [self._provider]


def _provider(asked: Sequence[object]) -> str:
    if isinstance(asked, str):
        raise OptionError(f"providers are a list of names, not the name {asked!r}")
    names = []
    for provider in asked:
        name, options = provider if isinstance(provider, tuple) else (provider, {})
        if options:
            raise OptionError(f"provider options are onnxruntime's own: {provider}")
        names.append(name)
    known = [name for name in names if name in _TARGETS]
    for name in known:
        if _TARGETS[name] != "cuda" or tvm.cuda(0).exist:
            return str(name)
    if known:
        raise TargetError("this machine has no CUDA device: add 'CPUExecutionProvider'")
    raise TargetError(f"no provider of {names} is known; there are {sorted(_TARGETS)}")


def _metadata(model: ir.Model) -> ModelMetadata:
    return ModelMetadata(
        model.producer_name or "",
        model.graph.name or "",
        model.domain or "",
        model.doc_string or "",
        model.model_version or 0,
        dict(model.metadata_props),
    )


def _node_arg(info: Info) -> NodeArg:
    if isinstance(info, TensorInfo):
        return NodeArg(info.name, list(info.shape), _type(TensorType(info.dtype, info.shape)))
    return NodeArg(info.name, [], _type(info.type))


def _type(kind: ValueType | None) -> str:
    if isinstance(kind, SequenceType):
        return f"seq({_type(kind.element)})"
    if isinstance(kind, OptionalType):
        return f"optional({_type(kind.element)})"
    if isinstance(kind, MapType):
        return f"map({kind.key},tensor({_ONNX_TYPES.get(kind.value, kind.value)}))"
    return "undefined" if kind is None else f"tensor({_ONNX_TYPES.get(kind.dtype, kind.dtype)})"
