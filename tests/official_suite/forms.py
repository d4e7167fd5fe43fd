"""The forms in which a case of the suite is built: as it is, with symbolic dims, with constants."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from tvm_ext.backend import TvmBackend, TvmBackendRep

__all__ = ["DEVICES", "FORMS", "LEVELS", "FormBackend", "constant", "symbolic"]

FORMS = ("plain", "symbolic", "constant")
LEVELS = (0, 3)
DEVICES = ("CPU", "CUDA")


class FormBackend(TvmBackend):
    """``tvm_ext.backend``, for cases that are called with the keywords ``form`` and ``on``."""

    @classmethod
    def supports_device(cls, device: str) -> bool:
        """The suite makes its cases for the CPU alone: to ask a GPU would end forks' use of it."""
        return device == DEVICES[0]

    @classmethod
    def prepare(
        cls,
        model: onnx.ModelProto,
        device: str = "CPU",
        form: str = "plain",
        on: str | None = None,
        **kwargs: Any,
    ) -> Any:
        """As ``TvmBackend.prepare``, of ``model`` in ``form``, one of ``FORMS``.

        Args:
            on: one of ``DEVICES``, in the place of ``device``.
        """
        device = on or device
        if form == "constant":
            return _OfConstants(model, device, **kwargs)
        return super().prepare(symbolic(model) if form == "symbolic" else model, device, **kwargs)


class _OfConstants:
    """Builds at each run, since what is constant then are the inputs of that run."""

    def __init__(self, model: onnx.ModelProto, device: str, **kwargs: Any):
        self._model, self._device, self._options = model, device, kwargs

    def run(self, inputs: Sequence) -> tuple:
        model, rest = constant(self._model, inputs)
        prepared: TvmBackendRep = TvmBackend.prepare(model, self._device, **self._options)
        return prepared.run(rest)


def symbolic(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy of ``model`` that knows the rank of its inputs and no size; each dim has its name."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    for info in _free_inputs(copy):
        for number, tensor in enumerate(_tensor_types(info.type)):
            for axis, dim in enumerate(tensor.shape.dim):
                if dim.WhichOneof("value") == "dim_value":
                    dim.dim_param = f"{info.name}_{number}_{axis}"
    for info in copy.graph.output:
        for tensor in _tensor_types(info.type):
            for dim in tensor.shape.dim:
                dim.Clear()
    del copy.graph.value_info[:]
    return copy


def constant(model: onnx.ModelProto, inputs: Sequence) -> tuple[onnx.ModelProto, list]:
    """A copy of ``model`` whose tensors among the inputs are initializers, and the other inputs.

    Sequences, optionals and maps cannot be initializers.
    """
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    copy.ir_version = max(copy.ir_version, 4)  # before, an initializer had to be an input too
    rest = []
    for info, value in zip(_free_inputs(copy), inputs, strict=True):
        if info.type.WhichOneof("value") == "tensor_type":
            copy.graph.initializer.append(numpy_helper.from_array(np.asarray(value), info.name))
            copy.graph.input.remove(info)
        else:
            rest.append(value)
    return copy, rest


def _free_inputs(model: onnx.ModelProto) -> list[onnx.ValueInfoProto]:
    known = {tensor.name for tensor in model.graph.initializer}
    return [info for info in model.graph.input if info.name not in known]


def _tensor_types(type_: onnx.TypeProto) -> Iterator[onnx.TypeProto.Tensor]:
    """The types of the tensors in a value: itself, or the elements of a sequence or optional."""
    kind = type_.WhichOneof("value")
    if kind == "tensor_type":
        yield type_.tensor_type
    elif kind in ("sequence_type", "optional_type"):
        yield from _tensor_types(getattr(type_, kind).elem_type)
