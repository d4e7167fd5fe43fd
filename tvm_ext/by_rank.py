"""Models that leave open how many dims their values have: compiled for those that a call brings.

Kernels are loops, as many as there are dims. Ranks are open where an input has no shape, or where
a list of numbers among the inputs, such as the shape for a Reshape, has any length; or where dims
of 1 are squeezed, whichever they are.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from typing import NoReturn

import numpy as np
import onnx_ir as ir

from .errors import BuildError, ConversionError, InputRankError, TvmExtError
from .frontend import declared_kind
from .interface import Info, Shapes, TensorInfo, TensorType, ValueInfo
from .model import CompiledModel, RunTimes
from .profile import Profile
from .strings import StringTable, running
from .values import held

__all__ = ["ModelByOnes", "ModelByRank", "by_rank"]

_LENGTHS = 4, 3, 2, 1, 5, 6  # that lists of numbers are tried to have
_INTEGERS = ir.DataType.INT64, ir.DataType.INT32


class _ByCall(CompiledModel):
    """A model of which :meth:`of` chooses the one for a call, built when first one asks for it."""

    def __init__(self, build: Callable[[Shapes], CompiledModel]):
        self._build = build
        self._built: dict[tuple, CompiledModel] = {}
        self._building = threading.Lock()

    def of(self, feeds: Mapping[str, object]) -> CompiledModel:
        """The model for ``feeds``.

        Raises:
            InputError: a name or a dtype does not fit.
            TvmExtError: as ``convert_and_build``, where it cannot be built for these.
        """
        raise NotImplementedError

    def _of(self, key: tuple, shapes: Callable[[], Shapes]) -> CompiledModel:
        with self._building:
            if key not in self._built:
                self._built[key] = self._build(shapes())
        return self._built[key]

    def _held(self, feeds: object, names: Container[str]) -> dict[str, np.ndarray]:
        """The arrays that ``feeds`` has for the inputs ``names``."""
        if not isinstance(feeds, Mapping) or feeds.keys() != self._names:
            self._refuse(feeds)
        infos = (info for info in self.inputs if info.name in names)
        with running(StringTable()):  # of strings only their shape matters here
            return {info.name: held(info, feeds[info.name], {}) for info in infos}

    def run(
        self, output_names: Sequence[str] | None, feeds: Mapping[str, object]
    ) -> list[np.ndarray]:
        return self.of(feeds).run(output_names, feeds)

    def profile(self, feeds: Mapping[str, object] | None = None, repeat: int = 20) -> Profile:
        feeds = self._or_random(feeds)
        return self.of(feeds).profile(feeds, repeat)

    def benchmark(
        self, feeds: Mapping[str, object] | None = None, *, warmup: int = 3, repeat: int = 30
    ) -> RunTimes:
        feeds = self._or_random(feeds)
        return self.of(feeds).benchmark(feeds, warmup=warmup, repeat=repeat)


class ModelByOnes(_ByCall):
    """A model that is compiled again for sizes of 1 that are squeezed, when a call first has them.

    Saved, it is the model for other sizes.
    """

    def __init__(self, model: CompiledModel, build: Callable[[Shapes], CompiledModel]):
        super().__init__(build)
        vars(self).update(vars(model))
        self._other = model

    def of(self, feeds: Mapping[str, object]) -> CompiledModel:
        arrays = self._held(feeds, {name for name, _ in self.not_one})
        ones = [(name, axis) for name, axis in self.not_one if arrays[name].shape[axis] == 1]
        if not ones:
            return self._other

        def shapes() -> Shapes:
            found: dict[str, list[int | None]] = {}
            for name, axis in ones:
                found.setdefault(name, [None] * arrays[name].ndim)[axis] = 1
            return found

        return self._of(tuple(ones), shapes)


class ModelByRank(_ByCall):
    """A model that is compiled for each combination of ranks when a call first brings it.

    All sizes of these ranks are then served by the same code. What there is of a model before a
    call, such as :meth:`save` writes, there is not of this one.
    """

    def __init__(
        self,
        inputs: Sequence[Info],
        outputs: Sequence[Info],
        shapes_of: Mapping[str, Callable[[np.ndarray], Sequence[int | None]]],
        build: Callable[[Shapes], CompiledModel],
    ):
        super().__init__(build)
        self.inputs, self.outputs = tuple(inputs), tuple(outputs)
        self._names = {info.name for info in self.inputs}
        self._shapes_of = dict(shapes_of)
        self.tuning = None

    def of(self, feeds: Mapping[str, object]) -> CompiledModel:
        arrays = self._held(feeds, self._shapes_of)
        shapes = {name: tuple(self._shapes_of[name](array)) for name, array in arrays.items()}
        return self._of(tuple(shapes.values()), lambda: shapes)

    def nodes_of(self, variable: str) -> tuple[str, ...]:
        self._undecided()

    @property
    def memory(self) -> None:
        return None

    @property
    def executor(self) -> NoReturn:
        self._undecided()

    def sources(self) -> dict[str, str]:
        self._undecided()

    def _undecided(self) -> NoReturn:
        names = ", ".join(map(repr, self._shapes_of))
        raise BuildError(
            f"this model is compiled when it is called, for the ranks that {names} decide: "
            "give their shapes by shapes= or --shape (None: a dim of any size)"
        )


def by_rank(
    source: ir.Model,
    error: InputRankError | ConversionError,
    imports: Callable[[Shapes], object],
    build: Callable[[Shapes], CompiledModel],
) -> ModelByRank | None:
    """``source``, which ``error`` tells cannot be compiled as it is; None if not for its ranks.

    Args:
        imports: converts ``source`` with shapes, as a trial.
        build: compiles it so.
    """
    if isinstance(error, InputRankError):
        names = [str(v.name) for v in _inputs(source) if v.shape is None and v.dtype is not None]
        return _model(source, dict.fromkeys(names, _any_sizes), build)
    if any(node.needs_rank for node in error.nodes):
        for names in _lists(source):
            if any(_works(imports, _lengths(source, names, n)) for n in _LENGTHS):
                return _model(source, dict.fromkeys(names, _length), build)
    return None


def _any_sizes(array: np.ndarray) -> Sequence[None]:
    return (None,) * array.ndim


def _length(array: np.ndarray) -> Sequence[int | None]:
    return (*(None,) * (array.ndim - 1), array.shape[-1])


def _lists(source: ir.Model) -> Iterator[list[str]]:
    """Inputs of integers whose last dim is open, each by itself, then all together."""
    names = [
        str(value.name)
        for value in _inputs(source)
        if value.dtype in _INTEGERS and value.shape and not isinstance(value.shape[-1], int)
    ]
    yield from ([name] for name in names)
    if len(names) > 1:
        yield names


def _lengths(source: ir.Model, names: Sequence[str], length: int) -> Shapes:
    ranks = {value.name: len(value.shape or ()) for value in _inputs(source)}
    return {name: (*(None,) * (ranks[name] - 1), length) for name in names}


def _works(imports: Callable[[Shapes], object], shapes: Shapes) -> bool:
    try:
        imports(shapes)
    except TvmExtError:
        return False
    return True


def _model(
    source: ir.Model,
    shapes_of: Mapping[str, Callable[[np.ndarray], Sequence[int | None]]],
    build: Callable[[Shapes], CompiledModel],
) -> ModelByRank:
    inputs = [_info(value) for value in _inputs(source)]
    return ModelByRank(inputs, [_info(v) for v in source.graph.outputs], shapes_of, build)


def _inputs(source: ir.Model) -> list[ir.Value]:
    return [value for value in source.graph.inputs if not value.is_initializer()]


def _info(value: ir.Value) -> Info:
    kind = declared_kind(value)
    if isinstance(kind, TensorType) and kind.shape is not None:
        return TensorInfo(str(value.name), kind.shape, kind.dtype)
    return ValueInfo(str(value.name), kind)
