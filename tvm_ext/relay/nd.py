"""``tvm.nd``: arrays on the host with the interface of Relay's ``NDArray``."""

from __future__ import annotations

from typing import Any

import numpy as np
import tvm
from numpy.typing import DTypeLike

__all__ = ["NDArray", "array", "cpu", "cuda", "device", "empty", "from_dlpack", "gpu"]

cpu, cuda, device = tvm.cpu, tvm.cuda, tvm.device
gpu = cuda  # its name before TVM 0.8


class NDArray:
    """A dense array; ``numpy()`` (or ``asnumpy()``) copies it out.

    It lives in host memory whatever ``device`` says: the compiled model moves data itself.
    """

    def __init__(self, values: np.ndarray, device: tvm.runtime.Device | None = None):
        self._values = values
        self.device = device or tvm.cpu()

    @property
    def shape(self) -> tuple[int, ...]:
        return self._values.shape

    @property
    def dtype(self) -> str:
        return self._values.dtype.name

    def numpy(self) -> np.ndarray:
        """A copy as a numpy array."""
        return self._values.copy()

    asnumpy = numpy

    def copyfrom(self, source: object) -> NDArray:
        """Overwrite the values with those of ``source``, cast to this dtype.

        Raises:
            ValueError: the shapes differ.
        """
        values = np.asarray(source)
        if values.shape != self.shape:
            raise ValueError(f"shape {values.shape} does not fit an array of shape {self.shape}")
        self._values[...] = values.astype(self._values.dtype, copy=False)
        return self

    def copyto(self, target: NDArray | tvm.runtime.Device) -> NDArray:
        """Copy into another array, or into a new one on a device."""
        if isinstance(target, NDArray):
            return target.copyfrom(self._values)
        return NDArray(self.numpy(), target)

    def same_as(self, other: object) -> bool:
        """Whether both are one array."""
        return self is other

    def to_dlpack(self) -> object:
        """The values as a DLPack capsule; no copy."""
        return self.__dlpack__()

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> np.ndarray:
        return np.array(self._values, dtype) if copy else np.asarray(self._values, dtype)

    def __dlpack__(self, **options: Any) -> object:
        return self._values.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._values.__dlpack_device__()

    def __len__(self) -> int:
        return len(self._values)

    def __getitem__(self, index: Any) -> np.ndarray:
        return self._values[index]

    def __setitem__(self, index: Any, value: object) -> None:
        self._values[index] = np.asarray(value)

    def __repr__(self) -> str:
        return f"<NDArray shape={self.shape}, {self.device}>\n{self._values!r}"


def array(values: object, device: tvm.runtime.Device | None = None) -> NDArray:
    """A copy of ``values``; float64 stays float64."""
    return NDArray(np.array(values, order="C"), device)


def empty(
    shape: tuple[int, ...], dtype: str = "float32", device: tvm.runtime.Device | None = None
) -> NDArray:
    """An array to be filled, for example by ``get_output(0, out)``."""
    return NDArray(np.zeros(shape, dtype), device)


def from_dlpack(tensor: Any) -> NDArray:
    """An array over the memory of a tensor on the host; no copy.

    Raises:
        BufferError, RuntimeError: numpy cannot read the tensor.
    """
    return NDArray(np.from_dlpack(tensor))
