"""What a user gives for an input, checked and as the executors take it; and the way back.

Part of what loading a model needs: nothing here imports TVM or ONNX before it is asked for.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, partial
from typing import Any

import numpy as np

from .errors import InputError
from .interface import (
    Info,
    MapsInfo,
    MapType,
    OptionalType,
    SequenceType,
    TensorInfo,
    TensorType,
    ValueType,
)
from .ops.narrow_arrays import STORAGE, STRING, restored, stored
from .strings import current, object_array

__all__ = ["giving", "held"]


# Labels up to which many maps are filled label by label: 100 maps of 3 in 19 us, not 36.
_FEW_LABELS = 8


def held(info: Info, value: object, sizes: dict[str, int]) -> Any:
    """``value`` as an executor takes it; ``sizes`` binds symbolic dims.

    Raises:
        InputError: it does not fit ``info``.
    """
    if isinstance(info, TensorInfo):
        if type(value) is np.ndarray and _is_plain(info, value) and _binds(info, value, sizes):
            return value  # most calls end here: the time of a small model is that of its checks
        return _stored(_checked(info, value, sizes))
    return _held(info.name, info.type, value)


def giving(info: Info) -> Callable[[Any], Any] | None:
    """What makes of an executor's value for ``info`` what a user sees; None: it is that already."""
    if isinstance(info, MapsInfo):
        return partial(_maps, info.labels)
    if isinstance(info, TensorInfo):
        return partial(_given, info.dtype) if info.dtype in STORAGE else None
    return partial(_returned, info.type)


def _held(name: str, kind: ValueType | None, value: object) -> Any:
    if isinstance(kind, OptionalType):
        return None if value is None else _held(name, kind.element, value)
    if isinstance(kind, SequenceType):
        if isinstance(value, str | bytes | Mapping) or not isinstance(value, Iterable):
            raise InputError(f"input {name!r} is {kind}: give a list, not {type(value).__name__}")
        return [_held(f"{name}[{k}]", kind.element, item) for k, item in enumerate(value)]
    if isinstance(kind, MapType):
        return _entries(name, kind, value)
    if value is None:
        raise InputError(f"input {name!r} is {kind}, and no optional: None does not fit")
    if not isinstance(kind, TensorType):
        raise InputError(f"the model does not say what input {name!r} is")
    return _stored(_fitting(name, kind, value))


def _maps(labels: Sequence[int | str], scores: np.ndarray) -> list[dict[int | str, float]]:
    """A map from ``labels`` to the numbers of each row."""
    if len(labels) > _FEW_LABELS:
        return [dict(zip(labels, row, strict=True)) for row in scores.tolist()]
    rows: list[dict[int | str, float]] = [{} for _ in range(len(scores))]
    for label, column in zip(labels, scores.T.tolist(), strict=True):
        for row, score in zip(rows, column, strict=True):
            row[label] = score
    return rows


def _entries(name: str, kind: MapType, value: object) -> list[np.ndarray]:
    """The keys of a map in increasing order, those of strings by their numbers; its values."""
    if not isinstance(value, Mapping):
        raise InputError(f"input {name!r} is {kind}: give a dict, not {type(value).__name__}")
    entries = (list(value), kind.key), (list(value.values()), kind.value)
    keys, values = (
        _held(f"{side} of {name}", TensorType(dtype, (len(value),)), items)
        for side, (items, dtype) in zip(("keys", "values"), entries, strict=True)
    )
    order = np.argsort(keys, kind="stable")
    return [keys[order], values[order]]


def _fitting(name: str, kind: TensorType, value: object) -> np.ndarray:
    """An array inside of another value: its symbolic dims are its own."""
    if kind.shape is not None:
        return _checked(TensorInfo(name, kind.shape, kind.dtype), value, {})
    info = TensorInfo(name, (), kind.dtype)
    array = _read(info, value)
    return _checked(TensorInfo(name, array.shape, kind.dtype), array, {})


def _given(dtype: str, value: np.ndarray) -> np.ndarray:
    return current().strings(value) if dtype == STRING else restored(value, dtype)


def _returned(kind: ValueType | None, value: Any) -> Any:
    if isinstance(kind, OptionalType):
        return None if value is None else _returned(kind.element, value)
    if isinstance(kind, SequenceType):
        return [_returned(kind.element, item) for item in value]
    if isinstance(kind, MapType) or kind is None:
        return value
    return _given(kind.dtype, value)


def _stored(array: np.ndarray) -> np.ndarray:
    return current().numbers(array) if array.dtype == object else stored(array)


def _checked(info: TensorInfo, value: object, sizes: dict[str, int]) -> np.ndarray:
    """``value`` as a contiguous array that fits ``info``; ``sizes`` binds symbolic dims."""
    array = _read(info, value)
    fits = array.dtype == _dtype(info.dtype)
    plain = fits and array.flags.c_contiguous
    if not fits and array.dtype.name != _dtype(info.dtype).name:
        raise InputError(
            f"input {info.name!r} needs dtype {info.dtype}, got {array.dtype}: convert it first"
        )
    if not _binds(info, array, sizes):
        raise _misfit(info, array, sizes)
    return array if plain else np.ascontiguousarray(array, _dtype(info.dtype)).reshape(array.shape)


def _is_plain(info: TensorInfo, array: np.ndarray) -> bool:
    """Whether an executor takes ``array`` as it is."""
    if array.dtype != _dtype(info.dtype) or info.dtype in STORAGE:
        return False  # another type, or one that a model holds as another
    return array.flags.c_contiguous


def _misfit(info: TensorInfo, array: np.ndarray, sizes: dict[str, int]) -> InputError:
    """What to tell of an array that :func:`_binds` does not take."""
    if array.ndim != len(info.shape):
        return InputError(
            f"input {info.name!r} needs rank {len(info.shape)} {info.shape}, "
            f"got shape {array.shape}"
        )
    wanted = [sizes.get(dim, 0) if isinstance(dim, str) else dim for dim in info.shape]
    pairs = enumerate(zip(wanted, array.shape, strict=True))
    axis, want, got = next((axis, want, got) for axis, (want, got) in pairs if want != got)
    name = info.shape[axis]
    text = f"input {info.name!r} axis {axis}: needs {name}"
    if not isinstance(name, str):
        return InputError(f"{text}, got {got}")
    own = [None if k != axis else f"{name}_{info.name}" for k in range(array.ndim)]
    return InputError(
        f"{text} = {want}, got {got} (if the model does not mean the same size, build it with "
        f"shapes={{{info.name!r}: {own}}})"
    )


def _binds(info: TensorInfo, array: np.ndarray, sizes: dict[str, int]) -> bool:
    """Whether ``array`` has the sizes of ``info``; ``sizes`` binds symbolic dims."""
    if array.shape == info.shape:
        return True
    if array.ndim != len(info.shape):
        return False
    for want, got in zip(info.shape, array.shape, strict=True):
        if got != (sizes.setdefault(want, got) if isinstance(want, str) else want):
            return False
    return True


def _read(info: TensorInfo, value: object) -> np.ndarray:
    try:
        array = _texts(info, value) if info.dtype == STRING else _as_array(info, value)
    except InputError:
        raise
    except Exception as error:  # whatever __array__ and __dlpack__ of another package raise
        reason = (str(error).strip() or repr(error)).splitlines()[0]
        raise InputError(f"input {info.name!r} cannot be read as an array: {reason}") from error
    if type(value) is not np.ndarray and _is_masked(value, array.ndim):
        raise InputError(
            f"input {info.name!r} has a mask, which a model does not know: give the array that "
            "filled(...) makes of it"
        )
    return array


def _is_masked(value: object, depth: int) -> bool:
    """Whether ``value`` or what it lists, ``depth`` lists deep, is a masked array."""
    masked = sys.modules.get("numpy.ma")  # absent where nobody made one
    if masked is None or not isinstance(value, list | tuple):
        return masked is not None and isinstance(value, masked.MaskedArray)
    kinds = set(map(type, value))  # in C: lists are long
    asked = any(issubclass(kind, masked.MaskedArray | list | tuple) for kind in kinds)
    return depth > 0 and asked and any(_is_masked(item, depth - 1) for item in value)


@cache
def _dtype(name: str) -> np.dtype:
    return np.dtype(object if name == STRING else name)


def _texts(info: TensorInfo, value: object) -> np.ndarray:
    # As objects: of Python's strings numpy's own would lose the zeros that they end in.
    array = np.asarray(value, object if isinstance(value, str | bytes | list | tuple) else None)
    if array.dtype.kind not in "OSTU" and array.size:
        raise InputError(f"input {info.name!r} needs strings, got {array.dtype}")
    texts = array.ravel().tolist()
    if array.dtype == object and set(map(type, texts)) <= {str}:  # in C: most are so
        return array
    texts = [text.decode() if isinstance(text, bytes) else text for text in texts]
    wrong = [type(text).__name__ for text in texts if not isinstance(text, str)]
    if wrong:
        raise InputError(f"input {info.name!r} needs strings, got one that is {wrong[0]}")
    return object_array(texts, array.shape)


def _as_array(info: TensorInfo, value: object) -> np.ndarray:
    if isinstance(value, np.ndarray | np.generic):
        return np.asarray(value)
    if hasattr(value, "__dlpack__"):
        return _from_dlpack(value)
    array = np.asarray(value)
    # Python's numbers have no dtype: 1.0 is a float of any width, 1 an integer or a float,
    # and of an empty list numpy makes floats.
    plain = isinstance(value, list | tuple | int | float)
    fits = np.can_cast(array.dtype, info.dtype, "same_kind") or not array.size
    return _converted(info, array) if plain and fits else array


def _converted(info: TensorInfo, array: np.ndarray) -> np.ndarray:
    """``array`` of Python's numbers in the dtype of the input, none of them beyond its range."""
    with np.errstate(over="ignore"):
        result = array.astype(info.dtype)
    wraps = array.dtype.kind in "iu" and result.dtype.kind in "iu" and (result != array).any()
    if wraps or (np.isfinite(array) & ~np.isfinite(result)).any():
        raise InputError(f"input {info.name!r} has numbers that {info.dtype} cannot hold")
    return result


def _from_dlpack(value: Any) -> np.ndarray:
    if hasattr(value, "resolve_neg"):  # torch exports a negated view without its sign
        value = value.resolve_neg()
    try:
        return np.from_dlpack(value)
    except (BufferError, RuntimeError):
        # numpy reads neither bfloat16 nor what has gradients or is on a GPU; this copies.
        import tvm_ffi

        tensor: Any = tvm_ffi.from_dlpack(value)
        return tensor.numpy()
