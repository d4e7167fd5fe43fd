"""Give values to the symbolic dims of a model."""

from collections.abc import Sequence
from operator import index

import numpy as np
import onnx_ir as ir

from tvm_ext.errors import ModelError
from tvm_ext.interface import Shapes

from .traverse import nodes

__all__ = ["specialise"]


def specialise(model: ir.Model, shapes: Shapes | None) -> None:
    """Give values to symbolic dims, in place.

    A key is the name of a dim (value: an int) or of an input (value: its shape; None keeps a
    dim as it is, a str gives it that name).

    Raises:
        ModelError: an unknown name, a rank that differs, or a dim given two values.
    """
    if not shapes:
        return
    binding = _Binding(model)
    for key, given in shapes.items():
        if isinstance(given, np.ndarray):
            given = given.tolist()
        if isinstance(given, Sequence) and not isinstance(given, str):
            binding.input(key, given)
        else:
            binding.dim(key, given)
    binding.apply()


class _Binding:
    """The sizes given to symbolic dims so far."""

    def __init__(self, model: ir.Model):
        self.model = model
        self.inputs = {v.name: v for v in model.graph.inputs if not v.is_initializer()}
        self.by_name: dict[str, int] = {}
        self.by_place: dict[tuple[str, int], int | str] = {}  # dims without a name, new names

    def dim(self, name: str, size: int) -> None:
        """Bind the dim ``name`` wherever it occurs."""
        symbols = {d.value for v in self.inputs.values() for d in v.shape or ()
                   if not isinstance(d, int) and d.value}  # fmt: skip
        if name not in symbols:
            if name in self.inputs:
                raise ModelError(f"input {name!r} needs a shape: a list of sizes, not {size!r}")
            raise ModelError(f"no symbolic dim {name!r}; the model has {sorted(symbols)}")
        self._bind(name, _size(name, size))

    def input(self, name: str, sizes: Sequence[int | str | None]) -> None:
        """Bind the dims of the input ``name``."""
        if name not in self.inputs:
            raise ModelError(f"no input {name!r}; the model has {sorted(self.inputs)}")
        value = self.inputs[name]
        if value.shape is None:
            value.shape = ir.Shape([None] * len(sizes))
        if len(sizes) != len(value.shape):
            raise ModelError(f"input {name!r} has rank {len(value.shape)}, not {len(sizes)}")
        for axis, (dim, size) in enumerate(zip(value.shape, sizes, strict=True)):
            if size is None:
                continue
            if isinstance(size, str) and not isinstance(dim, int):
                self.by_place[name, axis] = size
                continue
            size = _size(f"{name} axis {axis}", size)
            if isinstance(dim, int):
                if dim != size:
                    raise ModelError(f"input {name!r} axis {axis} is {dim}, not {size}")
            elif dim.value is None:
                self.by_place[name, axis] = size
            else:
                self._bind(dim.value, size)

    def _bind(self, name: str, size: int) -> None:
        if self.by_name.setdefault(name, size) != size:
            raise ModelError(
                f"symbolic dim {name!r} is given two values: {self.by_name[name]} and {size}"
            )

    def apply(self) -> None:
        """Write the sizes into the model."""
        for name, value in self.inputs.items():
            if value.shape is not None:
                value.shape = ir.Shape([
                    dim if isinstance(dim, int)
                    else self.by_place.get((name, axis), self.by_name.get(dim.value, dim))
                    for axis, dim in enumerate(value.shape)
                ])  # fmt: skip
        # Symbolic dims further down were named for the general sizes ("2*N"): inference finds
        # what they are now. Dims declared static hold for all sizes.
        for node, _ in nodes(self.model.graph):
            for value in node.outputs:
                if value.shape is not None and not value.shape.is_static():
                    value.shape = ir.Shape([
                        dim if isinstance(dim, int) else self.by_name.get(dim.value)
                        for dim in value.shape
                    ])  # fmt: skip


def _size(what: str, size: object) -> int:
    try:
        number = index(size)
    except TypeError as error:
        raise ModelError(f"{what}: {size!r} is not a size") from error
    if not 0 <= number < 1 << 63:  # ONNX holds sizes as int64
        raise ModelError(f"{what}: {number} is not a size")
    return number
