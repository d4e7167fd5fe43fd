"""What goes into a compiled model and what comes out."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from .errors import OptionError
from .ops.narrow_arrays import STRING

__all__ = [
    "STRING",
    "Info",
    "MapType",
    "MapsInfo",
    "OptionalType",
    "SequenceType",
    "Shapes",
    "TensorInfo",
    "TensorType",
    "ValueInfo",
    "ValueType",
    "as_json",
    "from_json",
    "numbers_only",
]

#: Sizes of symbolic dims: one by the name of a dim, or those of an input by its name, where None
#: keeps a dim as it is, and a str gives it that name.
Shapes = Mapping[str, int | Sequence[int | str | None]]


@dataclass(frozen=True)
class TensorInfo:
    """Name, shape (ints and names of symbolic dims) and dtype of an input or output.

    The dtype of strings is "string"; in Python they are object arrays of str.
    """

    name: str
    shape: tuple[int | str, ...]
    dtype: str

    @property
    def static_shape(self) -> tuple[int, ...] | None:
        """The sizes; None where a dim is symbolic."""
        sizes = tuple(dim for dim in self.shape if isinstance(dim, int))
        return sizes if len(sizes) == len(self.shape) else None

    @classmethod
    def of(cls, name: str, ty: Any, elements: Mapping[str, str] | None = None) -> TensorInfo:
        """The description of a Relax tensor type; ``elements`` has the dtypes that TVM lacks."""
        shape = tuple(int(d) if hasattr(d, "value") else _formula(d) for d in ty.shape.values)
        return cls(name, shape, (elements or {}).get(name, str(ty.dtype.dtype)))

    def __str__(self) -> str:
        return f"{self.name}: {TensorType(self.dtype, self.shape)}"


@dataclass(frozen=True)
class TensorType:
    """A tensor inside of another value; ``shape`` is None where the rank is not known."""

    dtype: str
    shape: tuple[int | str, ...] | None

    @classmethod
    def of(cls, array: np.ndarray) -> TensorType:
        """The type of an array in Python."""
        return cls(STRING if array.dtype == object else str(array.dtype), array.shape)

    def __str__(self) -> str:
        dims = "..." if self.shape is None else ", ".join(map(str, self.shape))
        return f"{self.dtype}[{dims}]"


@dataclass(frozen=True)
class SequenceType:
    """A sequence, in Python a list; ``element`` is None where nothing is known of it."""

    element: ValueType | None

    def __str__(self) -> str:
        return f"seq({'?' if self.element is None else self.element})"


@dataclass(frozen=True)
class OptionalType:
    """A value or, in Python, None; ``element`` is None where nothing is known of the value."""

    element: ValueType | None

    def __str__(self) -> str:
        return f"optional({'?' if self.element is None else self.element})"


@dataclass(frozen=True)
class MapType:
    """A map, in Python a dict, from keys of one dtype to scalars of another."""

    key: str
    value: str

    def __str__(self) -> str:
        return f"map({self.key}, {self.value})"


ValueType = TensorType | SequenceType | OptionalType | MapType


@dataclass(frozen=True)
class ValueInfo:
    """Name and type of an input or output that is no tensor."""

    name: str
    type: ValueType

    def __str__(self) -> str:
        return f"{self.name}: {self.type}"


@dataclass(frozen=True)
class MapsInfo(ValueInfo):
    """An output that is a list of maps from ``labels`` to the columns of a row of ``scores``.

    Kernels compute the scores; the maps are made of them where the output is returned.
    """

    scores: TensorInfo
    labels: tuple[int | str, ...]

    @classmethod
    def of(cls, scores: TensorInfo, labels: Sequence[int | str]) -> MapsInfo:
        """The description of the maps that ``scores`` stand for."""
        key = STRING if isinstance(labels[0], str) else "int64"
        kind = SequenceType(MapType(key, scores.dtype))
        return cls(scores.name, kind, scores, tuple(labels))


Info = TensorInfo | ValueInfo


def numbers_only(infos: Sequence[Info]) -> list[TensorInfo]:
    """``infos``, for a face that knows nothing but tensors of numbers: of maps, their scores.

    Raises:
        OptionError: one is something else; names it.
    """
    computed = [info.scores if isinstance(info, MapsInfo) else info for info in infos]
    tensors = [info for info in computed if isinstance(info, TensorInfo) and info.dtype != STRING]
    others = [str(info) for info in computed if info not in tensors]
    if others:
        raise OptionError(f"only tensors of numbers are known here, not {', '.join(others)}")
    return tensors


_TYPES: dict[str, Any] = {
    "tensor": TensorType, "seq": SequenceType, "optional": OptionalType, "map": MapType,
}  # fmt: skip
_NAMES = {kind: name for name, kind in _TYPES.items()}


def as_json(info: Info) -> dict[str, Any]:
    """``info`` as what JSON holds."""
    if isinstance(info, TensorInfo):
        return asdict(info)
    if isinstance(info, MapsInfo):
        return {"scores": asdict(info.scores), "labels": list(info.labels)}
    return {"name": info.name, "type": _type_as_json(info.type)}


def from_json(row: Mapping[str, Any]) -> Info:
    """The inverse of :func:`as_json`."""
    if "labels" in row:
        return MapsInfo.of(_tensor_from_json(row["scores"]), row["labels"])
    if "type" in row:
        return ValueInfo(row["name"], _type_from_json(row["type"]))
    return _tensor_from_json(row)


def _tensor_from_json(row: Mapping[str, Any]) -> TensorInfo:
    return TensorInfo(row["name"], tuple(row["shape"]), row["dtype"])


def _type_as_json(value: Any) -> Any:
    if not isinstance(value, ValueType):
        return value
    return [_NAMES[type(value)], *(_type_as_json(field) for field in vars(value).values())]


def _type_from_json(row: list) -> Any:
    kind, *fields = row
    if kind == "tensor":
        dtype, shape = fields
        return TensorType(dtype, None if shape is None else tuple(shape))
    return _TYPES[kind](
        *(_type_from_json(field) if isinstance(field, list) else field for field in fields)
    )


def _formula(dim: Any) -> str:
    """A symbolic dim as arithmetic on names, without the types that TVM prints."""
    return re.sub(r"T\.(?:int64\((-?\d+)\))?", r"\1", str(dim))
