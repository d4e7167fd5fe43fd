"""Functions of the host that compiled models call: on values that no kernel holds.

Kernels and host functions meet in the VM. A sequence is an array of tensors, an absent optional
is null, a tensor of strings has their numbers (``tvm_ext.strings``), and what TVM knows nothing of
is held by :class:`Opaque`. The name of the node and attributes come as JSON.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import numpy as np
import tvm
import tvm_ffi

from ..errors import RunError

__all__ = ["Inputs", "Opaque", "given", "host_function", "on_device", "seen", "taken"]

_CPU = tvm.cpu().dlpack_device_type()
_ALIGNMENT = 64  # bytes, which kernels take for granted

# The memory of larger inputs is not kept: its fresh pages cost little beside what runs on them.
_KEPT_BYTES = 16 << 20

_DEVICE: ContextVar[tvm.runtime.Device] = ContextVar("device")


class Opaque:
    """A Python value that goes through the VM as it is."""

    def __init__(self, value: object):
        self.value = value


def given(value: Any, device: tvm.runtime.Device) -> Any:
    """``value`` (an array, None, a list of values, a dict) as the VM takes it."""
    if isinstance(value, np.ndarray):
        if _is_plain(value) and device.dlpack_device_type() == _CPU:
            return tvm_ffi.from_dlpack(_aligned_copy(value))
        return tvm.runtime.tensor(value, device)
    if isinstance(value, list):
        return [given(item, device) for item in value]
    return Opaque(value) if isinstance(value, dict) else value


class Inputs:
    """What :func:`given` gives for the inputs of a model, in memory kept from run to run."""

    def __init__(self, device: tvm.runtime.Device):
        self.device = device
        self._on_cpu = device.dlpack_device_type() == _CPU
        self._kept: dict[int, tuple[np.ndarray, Any]] = {}  # by number: an array, and as a tensor

    def given(self, values: Sequence[Any]) -> list[Any]:
        """``values`` as the VM takes them, until the next call."""
        return [self._placed(number, value) for number, value in enumerate(values)]

    def _placed(self, number: int, value: Any) -> Any:
        if not (self._on_cpu and isinstance(value, np.ndarray) and _is_plain(value)):
            return given(value, self.device)
        array, tensor = self._kept.get(number, (None, None))
        if array is None or array.shape != value.shape or array.dtype != value.dtype:
            self._kept.pop(number, None)
            array = _aligned_copy(value)
            tensor = tvm_ffi.from_dlpack(array)
            if value.nbytes <= _KEPT_BYTES:
                self._kept[number] = array, tensor
        else:
            array[...] = value
        return tensor


def _is_plain(array: np.ndarray) -> bool:
    """Whether numpy shares such an array with others."""
    return array.dtype.isbuiltin == 1 and array.dtype.kind in "biuf" and array.size > 0


def _aligned_copy(array: np.ndarray) -> np.ndarray:
    """``array`` where kernels may read it; numpy aligns its own to 16 bytes."""
    room = np.empty(array.nbytes + _ALIGNMENT, "uint8")
    start = -room.__array_interface__["data"][0] % _ALIGNMENT
    copy = room[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy


def taken(value: Any) -> Any:
    """The inverse of :func:`given`."""
    if isinstance(value, tvm_ffi.Array):
        return [taken(item) for item in value]
    if isinstance(value, Opaque):
        return value.value
    return None if value is None else _copied(value)


def seen(tensor: Any) -> np.ndarray:
    """``tensor`` as an array, on the CPU of the same memory; a tenth of what ``tensor.numpy()``
    takes if small."""
    try:
        return np.from_dlpack(tensor)
    except (RuntimeError, BufferError, TypeError):  # of another device, or a type numpy lacks
        return tensor.numpy()


def _copied(tensor: Any) -> np.ndarray:
    """``tensor`` as an array of its own."""
    array = seen(tensor)
    return array if array.flags.owndata else np.array(array)


@contextmanager
def on_device(device: tvm.runtime.Device) -> Iterator[None]:
    """Within it, the tensors that host functions give are on ``device``."""
    token = _DEVICE.set(device)
    try:
        yield
    finally:
        _DEVICE.reset(token)


def host_function(function: Callable[..., Any]) -> Callable[..., Any]:
    """Register ``function`` for models to call: on numpy arrays, lists, and attributes.

    What it raises as RunError gets the name of the node in front.
    """

    def called(*arguments: Any) -> Any:
        values = [json.loads(a) if isinstance(a, str) else taken(a) for a in arguments]
        return given(function(*values), _DEVICE.get())

    _register(function.__name__, called)
    return function


def _raw(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same for functions that move tensors without a look at them: nothing is copied."""
    _register(function.__name__, function)
    return function


def _register(name: str, function: Callable[..., Any]) -> None:
    def called(node: str, *arguments: Any) -> Any:
        try:
            return function(*arguments)
        except RunError as error:
            raise RunError(f"{json.loads(node)}{error}") from error

    tvm_ffi.register_global_func(f"tvm_ext.host.{name}", called, override=True)


@_raw
def same(value: Any) -> Any:
    """Of a static sequence, the dynamic one."""
    return value


@_raw
def refuse(reason: str) -> Any:
    """What cannot be computed, found when it is asked for."""
    raise RunError(json.loads(reason))


@_raw
def has_element(optional: Any) -> Any:
    """Whether an optional has an element."""
    return given(np.asarray(optional is not None), _DEVICE.get())


@_raw
def get_element(optional: Any) -> Any:
    """The element of an optional."""
    if optional is None:
        raise RunError("the optional has no element")
    return optional


@_raw
def entries(pair: Any) -> Any:
    """The keys of a map in increasing order, and its values: a map is a sequence of both."""
    return pair


@_raw
def sequence_length(sequence: Any) -> Any:
    """How many elements a sequence has."""
    return given(np.asarray(len(sequence), "int64"), _DEVICE.get())


@_raw
def sequence_at(sequence: Any, position: Any) -> Any:
    """The element at a position, counted from the end where negative."""
    return sequence[_place(position, len(sequence), len(sequence) - 1)]


@_raw
def sequence_insert(sequence: Any, element: Any, position: Any) -> Any:
    """A sequence with ``element`` before ``position``; null: at its end."""
    items = list(sequence)
    place = len(items)
    if position is not None:
        place = _place(position, len(items), len(items))
    return [*items[:place], element, *items[place:]]


@_raw
def sequence_erase(sequence: Any, position: Any) -> Any:
    """A sequence without the element at ``position``; null: without the last."""
    items = list(sequence)
    last = len(items) - 1
    del items[_place(position, len(items), last)]
    return items


@host_function
def split_to_sequence(x: np.ndarray, split: np.ndarray | None, axis: int, keepdims: int) -> list:
    """Slices of ``x``: of given sizes, all of one size but the last, or of 1."""
    length = x.shape[axis]
    if split is not None and split.ndim == 1:
        ends = np.cumsum(split)
        if (split < 0).any() or (ends[-1:] != length).any():
            raise RunError(f"the sizes {split.tolist()} of {length} elements")
    else:
        size = 1 if split is None else int(split)
        if size <= 0:
            raise RunError(f"parts of {size} elements")
        ends = np.append(np.arange(size, length, size), [length] if length else [])
    parts = np.split(x, ends[:-1].astype("int64"), axis) if len(ends) else []
    if split is None and not keepdims:
        parts = [np.squeeze(part, axis) for part in parts]
    return [np.ascontiguousarray(part).reshape(part.shape) for part in parts]


@host_function
def concat_from_sequence(sequence: list[np.ndarray], axis: int, new_axis: int) -> np.ndarray:
    """The elements side by side along ``axis``, or, with ``new_axis``, along a new one."""
    join = np.stack if new_axis else np.concatenate
    try:
        return np.ascontiguousarray(join(sequence, axis))
    except ValueError as error:
        raise RunError(str(error)) from error


@tvm_ffi.register_global_func("tvm_ext.sequence_map", override=True)
def sequence_map(
    context: Any, body: Any, sequences: Any, constant: Any, each: Any, results: Any, node: Any
) -> Any:
    """``body(*elements, *constant)`` for the elements at each place of ``sequences``.

    Operands are elements or the same each time: ``each`` says which. Returns, for each of the
    ``results`` of the body, a sequence.
    """
    invoke = tvm.get_global_func("vm.builtin.invoke_closure")
    operands, marks = list(sequences), [bool(m) for m in json.loads(each)]
    lengths = [len(x) for x, mark in zip(operands, marks, strict=True) if mark]
    if len(set(lengths)) > 1:
        raise RunError(f"{json.loads(node)}sequences of {lengths} elements")
    rows = [
        list(
            invoke(
                context,
                body,
                *(x[k] if mark else x for x, mark in zip(operands, marks, strict=True)),
                *constant,
            )
        )
        for k in range(lengths[0])
    ]
    return [[row[k] for row in rows] for k in range(json.loads(results))]


def _place(position: Any, length: int, last: int) -> int:
    place = length - 1 if position is None else position.numpy().item()
    place += length if place < 0 else 0
    if not 0 <= place <= last:
        raise RunError(f"position {place} in a sequence of {length}")
    return place
