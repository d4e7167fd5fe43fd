"""``relay.frontend.from_onnx``, and the module that it returns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from tvm_ext.errors import ConversionError, InputError, ModelError, OptionError
from tvm_ext.frontend import load, specialise, unsupported
from tvm_ext.frontend.validity import check_imports

from .nd import NDArray, array
from .removed import removed

__all__ = ["Any", "Module", "from_onnx"]


class Any:
    """``relay.Any()``: a dim that is known when the model runs."""


@dataclass(frozen=True)
class Module:
    """A model that ``relay.build`` compiles: loaded, checked, its shapes given."""

    model: ir.Model

    def __str__(self) -> str:
        return str(self.model)

    def astext(self, show_meta_data: bool = True) -> str:
        """The ONNX graph as text."""
        return str(self)

    def show(self) -> None:
        """Print the ONNX graph."""
        print(self)

    def __getitem__(self, name: str) -> Module:
        """The only function, ``"main"``.

        Raises:
            KeyError: another name.
        """
        if name != "main":
            raise KeyError(f"no function {name!r}; there is 'main'")
        return self

    def bound(self, params: Mapping[str, NDArray]) -> Module:
        """A module whose named inputs and initializers have the values of ``params``.

        Raises:
            InputError: a name is unknown, or a value has another dtype or shape than declared.
        """
        model = self.model.clone()
        graph = model.graph
        inputs = {value.name: value for value in graph.inputs}
        for name, given in params.items():
            value = graph.initializers.get(name) or inputs.get(name)
            if value is None:
                raise InputError(f"no input or initializer {name!r} to bind")
            tensor = ir.tensor(given.numpy(), name=name)
            if tensor.dtype != value.dtype or not _fits(given.shape, value.shape):
                raise InputError(
                    f"{name!r} needs {value.dtype}{value.shape}, got {tensor.dtype}{tensor.shape}"
                )
            value.const_value = tensor
            if name in inputs:
                graph.inputs.remove(value)
            if name not in graph.initializers:
                graph.register_initializer(value)
        return Module(model)


def from_onnx(
    model: object,
    shape: Mapping[str, Sequence[int | Any]] | None = None,
    dtype: str | Mapping[str, str] | None = "float32",
    opset: int | None = None,
    freeze_params: bool = True,
    convert_config: Mapping[str, object] | None = None,
) -> tuple[Module, dict[str, NDArray]]:
    """Load an ONNX model.

    Args:
        model: a path, bytes, ``onnx.ModelProto`` or ``onnx_ir.Model``.
        shape: input name -> shape; inputs not named keep what the model declares, and so do
            dims that are ``relay.Any()``.
        dtype: input name -> dtype, checked against the model; a single name is ignored, as
            the model declares its types.
        opset: read the model as one of this opset.
        freeze_params: keep the initializers as constants. If not, they become inputs, and
            their values are returned, to be given to ``relay.build`` or to ``set_input``.
        convert_config: how Relay wrote products of batches; it changed no answer, and is
            ignored.

    Returns:
        The module, and the values of the initializers that became inputs.

    Raises:
        ModelError: the model cannot be read, or contradicts ``shape`` or ``dtype``.
        ConversionError: operators without a converter, all of them.
    """
    source = load(model)
    if not isinstance(shape, Mapping | None):
        raise OptionError(f"shape maps input names to shapes, not {shape!r}")
    if opset is not None:
        check_imports([("", _whole(opset))], "opset=")
        source.opset_imports[""] = opset
    specialise(source, _shapes(shape))
    if isinstance(dtype, Mapping):
        _check_dtypes(source, dtype)
    missing = unsupported(source)
    if missing:
        raise ConversionError(missing)
    return Module(source), {} if freeze_params else _thaw(source.graph)


def _shapes(
    shape: Mapping[str, Sequence[int | Any]] | None,
) -> dict[str, list[int | None]] | None:
    """``shape`` as ``specialise`` takes it: None for what stays open."""
    if shape is None:
        return None
    return {
        name: [None if isinstance(dim, Any) else int(dim) for dim in dims]
        for name, dims in shape.items()
    }


def _whole(opset: object) -> int:
    if not isinstance(opset, int):
        raise OptionError(f"opset is a whole number, not {opset!r}")
    return opset


def _check_dtypes(model: ir.Model, dtypes: Mapping[str, str]) -> None:
    inputs = {str(value.name): value for value in model.graph.inputs}
    for name, dtype in dtypes.items():
        if name not in inputs:
            raise ModelError(f"no input {name!r}; the model has {sorted(inputs)}")
        given = inputs[name].dtype
        declared = "of unknown type" if given is None else given.numpy().name
        if declared != dtype:
            raise ModelError(f"input {name!r} is {declared}, not {dtype}")


def _thaw(graph: ir.Graph) -> dict[str, NDArray]:
    """Turn the initializers into inputs; their values."""
    params = {}
    inputs = set(graph.inputs)
    for name, value in list(graph.initializers.items()):
        tensor = value.const_value
        assert tensor is not None  # an initializer that is no input has a value
        params[name] = array(tensor.numpy())
        value.dtype, value.shape = tensor.dtype, ir.Shape(params[name].shape)
        graph.initializers.pop(name)
        value.const_value = None
        if value not in inputs:
            graph.inputs.append(value)
    return params


def _fits(shape: tuple[int, ...], declared: ir.Shape | None) -> bool:
    return declared is None or (
        len(shape) == len(declared)
        and all(
            not isinstance(want, int) or want == got
            for got, want in zip(shape, declared, strict=True)
        )
    )


def __getattr__(name: str) -> object:
    if name.startswith("__"):
        raise AttributeError(name)
    raise removed(f"relay.frontend.{name}")
