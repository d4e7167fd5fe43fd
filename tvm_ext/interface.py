"""What goes into a compiled model and what comes out."""

from dataclasses import dataclass

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

    def __str__(self) -> str:
        return f"{self.name}: {self.dtype}[{', '.join(map(str, self.shape))}]"
