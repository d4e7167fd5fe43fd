"""What goes into a compiled model and what comes out."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["TensorInfo"]


@dataclass(frozen=True)
class TensorInfo:
    """Name, shape (ints and names of symbolic dims) and dtype of an input or output."""

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
        return f"{self.name}: {self.dtype}[{', '.join(map(str, self.shape))}]"


def _formula(dim: Any) -> str:
    """A symbolic dim as arithmetic on names, without the types that TVM prints."""
    return re.sub(r"T\.(?:int64\((-?\d+)\))?", r"\1", str(dim))
