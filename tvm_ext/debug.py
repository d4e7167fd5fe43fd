"""Find the layer that is wrong: every value of a model on two sides, in the order of the graph.

>>> report = tvm_ext.debug.bisect("model.onnx", against="onnxruntime")
>>> print(report.first); report.plot("errors.png")
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx_ir as ir

from . import pipeline, targets
from .compare.optional import require
from .display import Shown, table
from .errors import ComparisonError, InputError, TargetError, TvmExtError
from .frontend import load, specialise
from .inputs import random_inputs
from .interface import Shapes, TensorInfo
from .submodel import Part, read_by, smallest
from .submodel import save as write
from .verify import coarseness, distance
from .watching import Arrays, by_onnxruntime, by_reference, by_us

__all__ = ["Bisection", "Value", "bisect"]


@dataclass(frozen=True)
class Value:
    """One ONNX value on both sides.

    Attributes:
        name, node: of the value, and "operator name" of the node that makes it.
        error: the largest ``|ours - theirs| / (1 + |theirs|)``; infinite for a NaN of one side.
        bound: what the error may be.
        non_finite: how many elements of ours are NaN or infinite.
        born: of these, none is in the values that it is computed from.
    """

    name: str
    node: str
    type: str
    error: float
    bound: float
    non_finite: int
    born: bool

    @property
    def agrees(self) -> bool:
        return self.error <= self.bound

    def __str__(self) -> str:
        return f"{self.name} ({self.node}): error {self.error:.3g}, bound {self.bound:.3g}"


@dataclass(frozen=True)
class Bisection(Shown):
    """The values that both sides have, in the order of the graph; prints as a table.

    ``hidden`` values live only inside our kernels, or in a form of their own. ``submodel`` is the
    file of the part that shows the first difference, where one was asked for.
    """

    against: str
    values: tuple[Value, ...]
    hidden: tuple[str, ...]
    submodel: str | None = None

    @property
    def first(self) -> Value | None:
        """The first value that differs beyond its bound."""
        return next((value for value in self.values if not value.agrees), None)

    @property
    def births(self) -> list[Value]:
        """The values in which NaN or infinity first appears."""
        return [value for value in self.values if value.born]

    def _derived(self) -> Mapping[str, object]:
        return {"first": None if self.first is None else self.first.name}

    def plot(self, path: str | os.PathLike) -> Path:
        """Draw how the error grows along the graph, against the bounds.

        Raises:
            MissingPackageError: matplotlib is not installed.
        """
        require("matplotlib").use("Agg")
        pyplot = require("matplotlib.pyplot")
        figure, axes = pyplot.subplots(figsize=(max(6, len(self.values) / 6), 4))
        places = range(len(self.values))
        floor = 1e-9  # equal values have a place on the logarithmic axis too
        axes.semilogy(places, [max(v.error, floor) for v in self.values], "o-", label="error")
        axes.semilogy(places, [max(v.bound, floor) for v in self.values], "--", label="bound")
        axes.set_xticks(places, [value.name for value in self.values], rotation=90, fontsize=6)
        axes.set_ylabel(f"error against {self.against}")
        axes.legend()
        figure.savefig(path, bbox_inches="tight")
        pyplot.close(figure)
        return Path(path)

    def __rich__(self):
        verdict = f"first to differ: {self.first}" if self.first else "all values agree"
        hidden = f"inside of kernels: {', '.join(self.hidden)}" if self.hidden else None
        columns = "value", "node", "type", "error", "bound", "NaN, inf", ""
        title = f"against {self.against}: {verdict}"
        return table(columns, map(_row, self.values), title=title, caption=hidden)


def _row(value: Value) -> tuple[str, ...]:
    numbers = f"{value.error:.1e}", f"{value.bound:.1e}", str(value.non_finite)
    mark = "" if value.agrees else "differs"
    born = "born here" if value.born else ""
    return (value.name, value.node, value.type, *numbers, " ".join((mark, born)).strip())


def bisect(
    model: object,
    inputs: Mapping[str, np.ndarray] | None = None,
    against: str | int = "onnxruntime",
    *,
    target: object = "llvm",
    opt_level: int = 3,
    shapes: Shapes | None = None,
    steps: pipeline.Pipeline | None = None,
    bound: float = 1e-3,
    save: str | os.PathLike | None = None,
) -> Bisection:
    """Run ``model`` on both sides and compare every value that both have.

    Those of the main graph: an If, Loop or Scan is one node, with what it gives.

    Args:
        model, target, opt_level, shapes, steps: as for ``convert_and_build``; the target is a CPU.
        inputs: arrays by name; seeded random ones by default. They fix the symbolic dims.
        against: "onnxruntime", unoptimised; "reference", the evaluator of onnx, with the numpy
            references of plugins; or an opt level of ours.
        bound: of the error of float32 values; other types in proportion to their precision.
        save: where to write the smallest model that shows the first difference, as ONNX; its
            inputs go beside it, as ``.npz``.

    Raises:
        InputError: the inputs do not fit.
        ComparisonError: ``against`` is unknown, or lacks an operator; or no value is seen on both
            sides.
        OptionError: an opt level is none.
        TvmExtError: whatever ``convert_and_build`` raises.
    """
    steps = steps or pipeline.default(targets.resolve(target), opt_level)
    if steps.target.kind.name == "cuda":
        raise TargetError("values are watched on a CPU: target cuda is not one")
    source = load(model)
    specialise(source, shapes)
    feeds = _feeds(source, inputs)
    specialise(source, {name: array.shape for name, array in feeds.items()})
    ours = by_us(source, steps, feeds)
    theirs = _other_side(source, against, feeds)
    values, hidden = _compare(source, ours, theirs, feeds, bound)
    if not values:
        raise ComparisonError(f"no value of the model is seen on both sides: {', '.join(hidden)}")
    side = f"opt level {against}" if isinstance(against, int) else against
    found = Bisection(side, tuple(values), tuple(hidden))
    if save is None or found.first is None:
        return found
    path = write(*_smallest(source, found, feeds | theirs, steps), save)
    return Bisection(found.against, found.values, found.hidden, str(path))


def _feeds(source: ir.Model, inputs: Mapping[str, np.ndarray] | None) -> Arrays:
    wanted = [v for v in source.graph.inputs if v.name not in source.graph.initializers]
    if inputs is None:
        infos = []
        for value in wanted:
            if value.shape is None or value.dtype is None:
                raise InputError(f"input {value.name!r} declares no shape: give inputs")
            shape = tuple(d if isinstance(d, int) else str(d.value) for d in value.shape)
            infos.append(TensorInfo(str(value.name), shape, value.dtype.numpy().name))
        return random_inputs(infos)
    names = [str(value.name) for value in wanted]
    if not isinstance(inputs, Mapping) or sorted(names) != sorted(inputs):
        given = sorted(inputs) if isinstance(inputs, Mapping) else type(inputs).__name__
        raise InputError(f"inputs given: {given}, the model has {names}")
    return {str(value.name): _array(inputs[str(value.name)], value) for value in wanted}


def _array(given: object, value: ir.Value) -> np.ndarray:
    dtype = None if value.dtype is None else value.dtype.numpy()
    array = np.asarray(given, None if isinstance(given, np.ndarray) else dtype, order="C")
    shape = list(array.shape) if value.shape is None else list(value.shape)
    fits = len(shape) == array.ndim and all(
        size == dim for size, dim in zip(array.shape, shape, strict=True) if isinstance(dim, int)
    )
    if not fits or (dtype is not None and array.dtype != dtype):
        dims = [d if isinstance(d, int) else str(getattr(d, "value", d)) for d in shape]
        raise InputError(
            f"input {value.name!r} is {dtype}{dims}, given is {array.dtype}{list(array.shape)}"
        )
    return array


def _other_side(source: ir.Model, against: str | int, feeds: Arrays) -> Arrays:
    if isinstance(against, int):
        return by_us(source, pipeline.default(targets.resolve("llvm"), against), feeds)
    if against == "reference":
        return by_reference(ir.to_proto(source), feeds)
    if against == "onnxruntime":
        return by_onnxruntime(ir.to_proto(source), feeds)
    raise ComparisonError(f"cannot bisect against {against!r}: onnxruntime, reference or a level")


# --- comparison ---------------------------------------------------------------------------


def _compare(
    source: ir.Model, ours: Arrays, theirs: Arrays, feeds: Arrays, bound: float
) -> tuple[list[Value], list[str]]:
    """The values that both sides have, and the names of the others."""
    values: list[Value] = []
    hidden: list[str] = []
    finite = {name: not _non_finite(array) for name, array in feeds.items()}
    for initializer in source.graph.initializers.values():
        if initializer.const_value is not None:
            finite[str(initializer.name)] = not _non_finite(initializer.const_value.numpy())
    for node in source.graph:
        for value in (v for v in node.outputs if v.name):
            name = str(value.name)
            want = theirs.get(name)
            got = None if want is None or name not in ours else _as_declared(ours[name], want)
            before = all(finite.get(str(v.name), True) for v in read_by(node))
            if got is None or want is None:
                hidden.append(name)
                finite[name] = before
                continue
            bad = _non_finite(got)
            finite[name] = bad == 0
            label = f"{node.op_type} {node.name or ''}".strip()
            kind = f"{got.dtype}{list(got.shape)}"
            limit = bound * coarseness(got.dtype)
            values.append(
                Value(name, label, kind, distance(got, want), limit, bad, bad > 0 and before)
            )
    return values, hidden


def _non_finite(array: np.ndarray) -> int:
    """How many elements are NaN or infinite."""
    if array.dtype.kind in "biuSUO":
        return 0
    return int((~np.isfinite(array.astype("float64"))).sum())


def _as_declared(got: np.ndarray, want: np.ndarray) -> np.ndarray | None:
    """``got`` in the layout that ONNX means; None where it holds something else."""
    if got.dtype != want.dtype:
        return None
    if got.shape == want.shape:
        return got
    if got.ndim == want.ndim + 1 and got.ndim >= 3:  # [N, C / c, ..., c] of [N, C, ...]
        channels = np.moveaxis(got, -1, 2)
        joined = channels.reshape(got.shape[0], got.shape[1] * got.shape[-1], *got.shape[2:-1])
        cut = joined[:, : want.shape[1]]
        return cut if cut.shape == want.shape else None
    return got.reshape(want.shape) if got.size == want.size else None


def _smallest(source: ir.Model, found: Bisection, arrays: Arrays, steps: pipeline.Pipeline) -> Part:
    """The smallest part that still shows the first difference, and its inputs."""
    first = found.first
    assert first is not None
    before = found.values[: found.values.index(first)]

    def shows(part: ir.Model, feeds: Arrays) -> bool:
        """Whether ``part`` alone gets its result wrong."""
        try:
            result = by_us(load(ir.to_proto(part)), steps, feeds)[first.name]
        except TvmExtError:
            return False
        return not distance(result, arrays[first.name]) <= first.bound

    agreeing = [value.name for value in before if value.agrees]
    return smallest(source, first.name, agreeing, arrays, shows)
