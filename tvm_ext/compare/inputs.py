"""Inputs for a comparison: the user's, or random ones that the model can accept."""

import os
from collections.abc import Iterable, Mapping

import numpy as np
import onnx_ir as ir

from ..errors import ComparisonError, InputError
from ..inputs import random_inputs
from ..interface import TensorInfo

__all__ = ["Given", "declared", "feeds_for"]

Given = Mapping[str, np.ndarray] | str | os.PathLike | None


def declared(model: ir.Model) -> dict[str, ir.Value]:
    """The inputs that a caller must give, by name: not those with an initializer."""
    names = [str(value.name) for value in model.graph.inputs]
    inputs = zip(names, model.graph.inputs, strict=True)
    return {name: value for name, value in inputs if name not in model.graph.initializers}


def feeds_for(
    model: ir.Model, given: Given, batch: int | None, seed: int = 0
) -> dict[str, np.ndarray]:
    """One array per input of ``model``.

    Args:
        model: whose inputs are asked for; symbolic dims other than the batch must have been
            given values.
        given: arrays by name, or an ``.npz`` file of them; None for random ones.
        batch: the size of symbolic first dims, 1 by default.
        seed: of the random arrays.

    Raises:
        InputError: names, dtypes or shapes do not fit, a size is not known, or no input can have
            the batch.
        ComparisonError: an input has no elements.
    """
    values = declared(model)
    if batch is not None and (not isinstance(batch, int) or batch < 0):
        raise InputError(f"batch is a size, not {batch!r}")
    if given is None:
        if batch is None:
            batch = 1
        else:
            _check_batch(values.values(), batch)
        infos = [TensorInfo(name, _shape(v, batch), _dtype(v)) for name, v in values.items()]
        bounds = {name: _bound(v) for name, v in values.items()}
        feeds = random_inputs(infos, seed=seed, below=bounds)
    else:
        feeds = _read(given)
        if feeds.keys() != values.keys():
            raise InputError(f"inputs given: {sorted(feeds)}, the model has {sorted(values)}")
        if batch is not None and all(array.shape[:1] != (batch,) for array in feeds.values()):
            raise InputError(f"batch is {batch}, but no input given has it as its first size")
        feeds = {name: _fitting(values[name], array) for name, array in feeds.items()}
    empty = [name for name, array in feeds.items() if array.size == 0]
    if empty:
        raise ComparisonError(f"inputs {empty} have no elements: nothing to compare")
    return feeds


def _read(given: Mapping[str, np.ndarray] | str | os.PathLike) -> dict[str, np.ndarray]:
    if isinstance(given, Mapping):
        return {name: np.asarray(array) for name, array in given.items()}
    if not isinstance(given, str | os.PathLike):
        raise InputError(
            f"inputs are a mapping from names to arrays or an .npz file, not {type(given).__name__}"
        )
    try:
        loaded = np.load(given, allow_pickle=False)
        if isinstance(loaded, np.ndarray):
            raise ValueError("one array without a name; give an .npz file")
        with loaded as file:
            return dict(file)
    except (OSError, ValueError, AttributeError) as error:
        raise InputError(f"cannot read inputs from {os.fspath(given)}: {error}") from error


def _fitting(value: ir.Value, array: np.ndarray) -> np.ndarray:
    """``array`` as engines take it."""
    dims = list(value.shape) if value.shape is not None else [None] * array.ndim
    if len(dims) != array.ndim or any(
        isinstance(want, int) and want != got for want, got in zip(dims, array.shape, strict=True)
    ):
        raise InputError(f"input {value.name!r} is {value.shape}, got shape {list(array.shape)}")
    if value.dtype == ir.DataType.STRING:
        if array.dtype.kind not in "OU":
            raise InputError(f"input {value.name!r} needs strings, got {array.dtype}")
        return array.astype(object)
    dtype = _dtype(value)
    if array.dtype.name != dtype:
        raise InputError(
            f"input {value.name!r} needs dtype {dtype}, got {array.dtype}: convert it first"
        )
    return array


def _check_batch(values: Iterable[ir.Value], batch: int) -> None:
    firsts = [v.shape[0] for v in values if v.shape]
    if batch not in firsts and all(isinstance(dim, int) for dim in firsts):
        raise InputError(
            f"no input has a symbolic batch, or one of {batch}: "
            "export the model with a symbolic batch, or with this one"
        )


def _shape(value: ir.Value, batch: int) -> tuple[int, ...]:
    if value.shape is None:
        raise InputError(f"input {value.name!r} declares no shape: give inputs, or shapes")
    first = [dim if isinstance(dim, int) else batch for dim in value.shape[:1]]
    rest = [dim for dim in value.shape[1:] if isinstance(dim, int)]
    unknown = [dim for dim in value.shape[1:] if not isinstance(dim, int)]
    if unknown:
        raise InputError(
            f"input {value.name!r} has symbolic dims {', '.join(map(str, unknown))}: "
            "give their sizes in shapes"
        )
    return (*first, *rest)


def _dtype(value: ir.Value) -> str:
    if value.dtype is None:
        raise InputError(f"input {value.name!r} has no dtype")
    if not isinstance(value.type, ir.TensorType):
        raise InputError(f"input {value.name!r} is {value.type}: only tensors are compared")
    if value.dtype == ir.DataType.STRING:
        raise InputError(f"input {value.name!r} is of strings, and none are made up: give inputs")
    return value.dtype.numpy().name


def _bound(value: ir.Value) -> int:
    """Integers below this are valid: rows of the table where a Gather indexes it, else flags."""
    sizes = []
    for node, index in value.uses():
        data = node.inputs[0]
        if node.op_type == "Gather" and index == 1 and data is not None and data.shape is not None:
            axis = node.attributes["axis"].as_int() if "axis" in node.attributes else 0
            sizes.append(data.shape[axis])
    return min((size for size in sizes if isinstance(size, int)), default=2)
