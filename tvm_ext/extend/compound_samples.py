"""Models that hold a compound's pattern, and their variants: sizes, dtypes, symbolic dims."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import helper, numpy_helper

from . import samples
from .models import initialised, random_array, text_model

__all__ = ["CompoundSample", "Variant"]

_FLOAT = onnx.TensorProto.FLOAT
_OTHER_FLOATS = "float64", "float16", "bfloat16"


@dataclass(frozen=True)
class Variant:
    """A model, and inputs for it; ``case`` says in what it differs from the sample's text."""

    case: str
    model: onnx.ModelProto
    feeds: Mapping[str, np.ndarray]


@dataclass(frozen=True)
class CompoundSample:
    """A graph in ONNX's text; inputs among ``constants`` are initializers.

    Dims of inputs are numbers, or names, which stand for sizes that hurt: 1, odd, prime.

    Raises:
        ValueError: a constant is no input.
        onnx.parser.ParseError: the text is no graph.
    """

    graph: str
    constants: tuple[str, ...]

    def __post_init__(self) -> None:
        initialised(_bound(self._open, self._sizes(samples.EXTENTS[0])), self.constants)

    @property
    def _open(self) -> onnx.ModelProto:
        """The model with names for dims, and constants as inputs; outputs are what they will be."""
        model = text_model(self.graph, ())
        for info in model.graph.output:
            info.type.tensor_type.ClearField("shape")
        return model

    def _sizes(self, extents: Iterable[int]) -> dict[str, int]:
        return dict(zip(_names(self._open.graph.input), itertools.cycle(extents), strict=False))

    def sized(self) -> Iterator[Variant]:
        """The model in each row of sizes; one, where no dim has a name."""
        for extents in samples.EXTENTS if self._sizes((1,)) else [()]:
            sizes = self._sizes(extents)
            model = initialised(_bound(self._open, sizes), self.constants)
            yield _variant(", ".join(f"{name}={size}" for name, size in sizes.items()), model)

    def retyped(self) -> Iterator[Variant]:
        """The first of :meth:`sized` with other floats in the place of float32."""
        first = next(self.sized()).model
        if any(info.type.tensor_type.elem_type == _FLOAT for info in first.graph.input):
            for dtype in _OTHER_FLOATS:
                yield _variant(dtype, _retyped(first, dtype))

    def symbolic(self) -> Variant:
        """The model with names for dims: those of the text, but for what a constant has, too. A
        text without names has one for the first dim of each input."""
        model, sizes = self._open, self._sizes(samples.EXTENTS[0])
        own = [info for info in model.graph.input if info.name in self.constants]
        model = _bound(model, {name: sizes[name] for name in _names(own)})
        if not sizes:
            free = (info for info in model.graph.input if info.name not in self.constants)
            for dim in (dim for info in free for dim in info.type.tensor_type.shape.dim[:1]):
                sizes[f"d{dim.dim_value}"] = dim.dim_value
                dim.dim_param = f"d{dim.dim_value}"
        model = _inferred(initialised(model, self.constants))
        names = ", ".join(_names(model.graph.input))
        return _variant(f"symbolic {names}", model, sizes)


def _variant(case: str, model: onnx.ModelProto, sizes: Mapping[str, int] | None = None) -> Variant:
    static, random = _bound(model, sizes or {}), np.random.default_rng(0)
    feeds = {info.name: random_array(random, info) for info in static.graph.input}
    return Variant(case, model, feeds)


def _names(infos: Iterable[onnx.ValueInfoProto]) -> list[str]:
    """The names of dims, in order."""
    dims = (dim for info in infos for dim in info.type.tensor_type.shape.dim)
    return list(dict.fromkeys(dim.dim_param for dim in dims if dim.dim_param))


def _bound(model: onnx.ModelProto, sizes: Mapping[str, int]) -> onnx.ModelProto:
    """A copy of ``model`` whose named dims have ``sizes``, as far as these go."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    for info in (*copy.graph.input, *copy.graph.output):
        for dim in info.type.tensor_type.shape.dim:
            if dim.dim_param in sizes:
                dim.dim_value = sizes[dim.dim_param]
    return _inferred(copy)


def _retyped(model: onnx.ModelProto, dtype: str) -> onnx.ModelProto:
    """A copy of ``model`` with ``dtype`` in the place of float32."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    wanted = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    for info in (*copy.graph.input, *copy.graph.output):
        if info.type.tensor_type.elem_type == _FLOAT:
            info.type.tensor_type.elem_type = wanted
    for tensor in copy.graph.initializer:
        if tensor.data_type == _FLOAT:
            array = numpy_helper.to_array(tensor).astype(dtype)
            tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
    return _inferred(copy)


def _inferred(model: onnx.ModelProto) -> onnx.ModelProto:
    """``model`` with what ONNX infers of its values now."""
    del model.graph.value_info[:]
    return onnx.shape_inference.infer_shapes(model)
