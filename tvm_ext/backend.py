"""The ONNX Backend API, so that ``onnx.backend.test`` and other runners work on tvm_ext.

The module itself is a backend::

    from tvm_ext import backend
    outputs = backend.prepare(model, "CPU").run([x])
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import tvm
from onnx import helper
from onnx.backend.base import Backend, BackendRep, Device, DeviceType, namedtupledict

from . import pipeline, targets
from .build import convert_and_build, import_model
from .errors import InputError, ModelError, OptionError, TargetError, TvmExtError
from .model import CompiledModel

__all__ = [
    "TvmBackend",
    "TvmBackendRep",
    "is_compatible",
    "prepare",
    "run_model",
    "run_node",
    "supports_device",
]

_TARGETS = {DeviceType.CPU: "llvm", DeviceType.CUDA: "cuda"}


class TvmBackendRep(BackendRep):
    """A compiled model behind the interface of ``onnx.backend``."""

    def __init__(self, model: CompiledModel):
        self.model = model
        self._outputs = namedtupledict("Outputs", [info.name for info in model.outputs])

    def run(self, inputs: object, **kwargs: Any) -> tuple:
        """Run the model; the result is a tuple whose items also answer to the output names.

        Args:
            inputs: arrays in the order of the model's inputs, a mapping from input names, or a
                single array.

        Raises:
            InputError: an input is missing, unknown, or does not fit; ``kwargs`` are given.
        """
        if kwargs:
            raise InputError(f"unknown options {sorted(kwargs)}")
        return self._outputs(*self.model.run(None, self._feeds(inputs)))

    def _feeds(self, inputs: object) -> Mapping[str, object]:
        if isinstance(inputs, Mapping):
            return inputs
        arrays = inputs if isinstance(inputs, list | tuple) else [inputs]
        names = [info.name for info in self.model.inputs]
        if len(arrays) != len(names):
            raise InputError(f"{len(arrays)} inputs given, the model has {len(names)}: {names}")
        return dict(zip(names, arrays, strict=True))


class TvmBackend(Backend):
    """``onnx.backend.base.Backend`` on :func:`tvm_ext.convert_and_build`."""

    @classmethod
    def supports_device(cls, device: str) -> bool:
        """Whether ``"CPU"``, ``"CUDA"`` or ``"CUDA:0"`` can run here."""
        try:
            _target(device)
        except TargetError:
            return False
        return True

    @classmethod
    def prepare(cls, model: onnx.ModelProto, device: str = "CPU", **kwargs: Any) -> TvmBackendRep:
        """Compile ``model`` for ``device``; ``kwargs`` go to ``convert_and_build``.

        Raises:
            TargetError: the device is unknown or not here.
            TvmExtError: as ``convert_and_build``.
        """
        return TvmBackendRep(convert_and_build(model, _target(device), **kwargs))

    @classmethod
    def run_node(
        cls,
        node: onnx.NodeProto,
        inputs: object,
        device: str = "CPU",
        outputs_info: Sequence[tuple[np.dtype, tuple[int, ...]]] | None = None,
        **kwargs: Any,
    ) -> tuple:
        """Run a single node; ``opset_version`` defaults to the newest opset of its domain.

        Args:
            outputs_info: dtype and shape of each output, checked against what the node gives.

        Raises:
            ModelError: the node is not valid ONNX, or gives something else than ``outputs_info``.
            InputError: the inputs or ``outputs_info`` do not fit the node.
            OptionError: ``opset_version`` is no number.
            TvmExtError: as ``prepare``.
        """
        opset = kwargs.pop("opset_version", None)
        if not isinstance(opset, int | None):
            raise OptionError(f"opset_version is a number, not {opset!r}")
        imports = {"": onnx.defs.onnx_opset_version()}
        imports[node.domain] = opset or _newest_opset(node.domain)
        _check_node(node, imports)
        names = [name for name in node.input if name]
        if not isinstance(inputs, Mapping):
            arrays = inputs if isinstance(inputs, list | tuple) else [inputs]
            if len(arrays) != len(names):
                raise InputError(f"{len(arrays)} inputs given, the node has {len(names)}: {names}")
            inputs = dict(zip(names, arrays, strict=True))
        if inputs.keys() != set(names):
            raise InputError(f"inputs given: {sorted(inputs)}, the node has {names}")
        inputs = {name: np.asarray(array) for name, array in inputs.items()}
        model = _model_of(node, inputs, outputs_info, imports)
        results = cls.prepare(model, device, **kwargs).run(inputs)
        for info, array in zip(model.graph.output, results, strict=True):
            _check_shape(node, info, array)
        return results

    @classmethod
    def is_compatible(cls, model: onnx.ModelProto, device: str = "CPU", **kwargs: Any) -> bool:
        """Whether ``device`` is here and every node of ``model`` can be converted for it.

        Compiles nothing; of ``kwargs``, which are those of ``prepare``, it reads ``shapes``.
        """
        try:
            steps = pipeline.default(targets.resolve(_target(device)))
            import_model(model, steps, kwargs.get("shapes"))
        except TvmExtError:
            return False
        return True


def _target(device: str) -> str:
    try:
        parsed = Device(device)
    except (AttributeError, ValueError) as error:
        raise TargetError(f"unknown device {device!r}; use 'CPU' or 'CUDA'") from error
    if parsed.device_id != 0:
        raise TargetError(f"device {device!r}: only the first device of a kind is used")
    target = _TARGETS[parsed.type]
    if target == "cuda" and not tvm.cuda(0).exist:
        raise TargetError(f"device {device!r}: no CUDA device on this machine")
    return target


def _check_node(node: onnx.NodeProto, imports: Mapping[str, int]) -> None:
    context = onnx.checker.C.CheckerContext()
    context.ir_version = onnx.IR_VERSION
    context.opset_imports = dict(imports)
    try:
        onnx.checker.check_node(node, context)
    except onnx.checker.ValidationError as error:
        raise ModelError(f"{node.op_type} {node.name!r} is not a valid node: {error}") from error


def _model_of(
    node: onnx.NodeProto,
    inputs: Mapping[str, np.ndarray],
    outputs_info: Sequence | None,
    imports: Mapping[str, int],
) -> onnx.ModelProto:
    """The model of one node whose graph inputs have the types of the arrays."""
    given = [
        helper.make_tensor_value_info(
            name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape
        )
        for name, array in inputs.items()
    ]
    names = [name for name in node.output if name]
    results = [helper.make_empty_tensor_value_info(name) for name in names]
    if outputs_info is not None:
        try:
            results = [
                helper.make_tensor_value_info(
                    name, helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), shape
                )
                for name, (dtype, shape) in zip(names, outputs_info, strict=True)
            ]
        except (TypeError, ValueError) as error:
            raise InputError(
                f"outputs_info are the dtype and shape of {names}, not {outputs_info!r}"
            ) from error
    graph = helper.make_graph([node], "node", given, results)
    model = helper.make_model(
        graph, opset_imports=[helper.make_opsetid(*item) for item in imports.items()]
    )
    model = onnx.shape_inference.infer_shapes(model)
    for output in model.graph.output:
        if output.type.WhichOneof("value") is None:
            raise InputError(f"onnx does not infer the type of {output.name!r}: give outputs_info")
    return model


def _check_shape(node: onnx.NodeProto, info: onnx.ValueInfoProto, result: object) -> None:
    if not isinstance(result, np.ndarray) or not info.type.tensor_type.HasField("shape"):
        return
    dims = info.type.tensor_type.shape.dim
    wanted = [dim.dim_value if dim.HasField("dim_value") else None for dim in dims]
    given = list(result.shape)
    if len(wanted) != len(given) or any(
        w is not None and w != g for w, g in zip(wanted, given, strict=True)
    ):
        raise ModelError(f"{info.name!r} is to be {wanted}, but {node.op_type} gives {given}")


def _newest_opset(domain: str) -> int:
    if not domain:
        return onnx.defs.onnx_opset_version()
    schemas = onnx.defs.get_all_schemas_with_history()
    return max((s.since_version for s in schemas if s.domain == domain), default=1)


is_compatible = TvmBackend.is_compatible
prepare = TvmBackend.prepare
run_model = TvmBackend.run_model
run_node = TvmBackend.run_node
supports_device = TvmBackend.supports_device
