"""Find the layer that is wrong: every value of a model on two sides, in the order of the graph.

>>> report = tvm_ext.debug.bisect("model.onnx", against="onnxruntime")
>>> print(report.first); report.plot("errors.png")
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from . import pipeline, targets
from .build import import_model, run_phase
from .compare.optional import require
from .display import Shown, table
from .errors import ComparisonError, InputError, OutputPathError, TvmExtError
from .executors.planning import NotStatic
from .executors.static_build import build_static
from .frontend import load, specialise
from .inputs import random_inputs
from .interface import TensorInfo
from .provenance import Provenance
from .verify import coarseness, distance

__all__ = ["Bisection", "Value", "bisect"]

Arrays = dict[str, np.ndarray]


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
    shapes: Mapping[str, int | Sequence[int | None]] | None = None,
    steps: pipeline.Pipeline | None = None,
    bound: float = 1e-3,
    save: str | os.PathLike | None = None,
) -> Bisection:
    """Run ``model`` on both sides and compare every value that both have.

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
        ComparisonError: nothing can be compared: the model needs run-time shapes, or ``against``
            is unknown or lacks an operator.
        TvmExtError: whatever ``convert_and_build`` raises.
    """
    source = load(model)
    specialise(source, shapes)
    feeds = _feeds(source, inputs)
    specialise(source, {name: array.shape for name, array in feeds.items()})
    steps = steps or pipeline.default(targets.resolve(target), opt_level)
    ours = _compiled(source, steps, feeds)
    theirs = _other_side(source, against, feeds)
    values, hidden = _compare(source, ours, theirs, feeds, bound)
    side = f"opt level {against}" if isinstance(against, int) else against
    found = Bisection(side, tuple(values), tuple(hidden))
    if save is None or found.first is None:
        return found
    path = _save(*_smallest(source, found, feeds | theirs, steps), Path(save))
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
    if sorted(names) != sorted(inputs):
        raise InputError(f"inputs given: {sorted(inputs)}, the model has {names}")
    return {name: np.ascontiguousarray(inputs[name]) for name in names}


# --- the two sides ------------------------------------------------------------------------


def _compiled(source: ir.Model, steps: pipeline.Pipeline, feeds: Arrays) -> Arrays:
    """What our kernels write, by the names of the ONNX values that these are."""
    conversion = import_model(source, steps)
    module, provenance = conversion.module, Provenance(conversion.origin)
    with steps.target:
        for phase in pipeline.PHASES[1:]:
            module = run_phase(steps, phase, module, provenance)
        try:
            executor = build_static(module, steps.target)
        except NotStatic as reason:
            raise ComparisonError(f"values of this model cannot be watched: {reason}") from reason
    arrays = [feeds[name] for name in conversion.inputs]
    found: Arrays = {}
    for variable, array in executor.values(arrays):
        last = provenance.members(variable)[-1:] or [variable]
        name = conversion.values.get(last[0]) or conversion.values.get(variable)
        if name is not None:
            found[name] = array
    outputs = executor(arrays)
    return found | dict(zip(conversion.outputs, outputs, strict=True))


def _other_side(source: ir.Model, against: str | int, feeds: Arrays) -> Arrays:
    if isinstance(against, int):
        return _compiled(source, pipeline.default(targets.resolve("llvm"), against), feeds)
    proto = ir.to_proto(source)
    if against == "reference":
        return _evaluated(proto, feeds)
    if against == "onnxruntime":
        return _onnxruntime(proto, feeds)
    raise ComparisonError(f"cannot bisect against {against!r}: onnxruntime, reference or a level")


def _evaluated(proto: onnx.ModelProto, feeds: Arrays) -> Arrays:
    from onnx.reference import ReferenceEvaluator

    from .extend.models import reference_operators

    try:
        evaluator = ReferenceEvaluator(proto, new_ops=reference_operators())
        results = dict(evaluator.run(None, dict(feeds), intermediate=True))
    except (NotImplementedError, RuntimeError, TypeError, ValueError) as error:
        raise ComparisonError(f"onnx's reference fails: {_line(error)}") from error
    return {name: array for name, array in results.items() if isinstance(array, np.ndarray)}


def _onnxruntime(proto: onnx.ModelProto, feeds: Arrays) -> Arrays:
    """Every value as an output, nothing optimised."""
    onnxruntime = require("onnxruntime")
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 3
    watched = onnx.ModelProto()
    watched.CopyFrom(proto)
    known = {info.name for info in proto.graph.output}
    names = [name for node in proto.graph.node for name in node.output if name]
    watched.graph.output.extend(onnx.ValueInfoProto(name=n) for n in names if n not in known)
    try:
        session = onnxruntime.InferenceSession(
            watched.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
        asked = [info.name for info in session.get_outputs()]
        results = session.run(asked, feeds)
    except Exception as error:
        reason = f"{_line(error)}; against='reference' uses the references of plugins"
        raise ComparisonError(f"onnxruntime: {reason}") from error
    pairs = zip(asked, results, strict=True)
    return {name: array for name, array in pairs if isinstance(array, np.ndarray)}


def _line(error: Exception) -> str:
    return str(error).strip().split("\n")[0]


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
            before = all(finite.get(str(v.name), True) for v in node.inputs if v is not None)
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


def _smallest(
    source: ir.Model, found: Bisection, arrays: Arrays, steps: pipeline.Pipeline
) -> tuple[onnx.ModelProto, Arrays]:
    """The smallest part that still shows the first difference, and its inputs.

    It begins at values that agree: at the last of them, unless the difference needs kernels from
    further up, as where errors add up or fusion is at fault.
    """
    first = found.first
    assert first is not None
    agreeing = [v.name for v in found.values[: found.values.index(first)] if v.agrees]
    part = _part(source, first.name, agreeing, arrays)
    if _shows(*part, first, arrays, steps):
        return part
    part = _part(source, first.name, [], arrays)
    shown, hidden = 0, len(agreeing)
    while hidden - shown > 1:
        middle = (shown + hidden) // 2
        smaller = _part(source, first.name, agreeing[:middle], arrays)
        if _shows(*smaller, first, arrays, steps):
            part, shown = smaller, middle
        else:
            hidden = middle
    return part


def _shows(
    part: onnx.ModelProto, feeds: Arrays, first: Value, arrays: Arrays, steps: pipeline.Pipeline
) -> bool:
    """Whether ``part`` alone gets its result wrong."""
    try:
        result = _compiled(load(part), steps, feeds)[first.name]
    except TvmExtError:
        return False
    return not distance(result, arrays[first.name]) <= first.bound


def _part(
    source: ir.Model, name: str, agreeing: Sequence[str], arrays: Arrays
) -> tuple[onnx.ModelProto, Arrays]:
    """The model that computes ``name`` from values that agree, and what these are."""
    proto = ir.to_proto(source)
    starts = list(_starts(source, name, set(agreeing)))
    del proto.graph.value_info[:]
    proto.graph.value_info.extend(_info(value, arrays[value]) for value in [*starts, name])
    part = onnx.utils.Extractor(proto).extract_model(starts, [name])
    return part, {value: arrays[value] for value in starts}


def _save(part: onnx.ModelProto, feeds: Mapping[str, Any], path: Path) -> Path:
    temporary = path.with_name(f"{path.name}.part")
    try:
        onnx.save(part, temporary)
        np.savez(path.with_suffix(".npz"), **feeds)
        temporary.replace(path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise OutputPathError(f"cannot write {path}: {error.strerror or error}") from error
    return path


def _starts(source: ir.Model, name: str, agreeing: set[str]) -> Iterator[str]:
    """Graph inputs and values that agree from which ``name`` is computed, each once."""
    producer = {str(v.name): node for node in source.graph for v in node.outputs}
    pending, seen = [name], {name}
    while pending:
        for value in producer[pending.pop()].inputs:
            if value is None or str(value.name) in seen or value.is_initializer():
                continue
            seen.add(str(value.name))
            if str(value.name) in agreeing or str(value.name) not in producer:
                yield str(value.name)
            else:
                pending.append(str(value.name))


def _info(name: str, array: np.ndarray) -> onnx.ValueInfoProto:
    dtype = onnx.helper.np_dtype_to_tensor_dtype(array.dtype)
    return onnx.helper.make_tensor_value_info(name, dtype, array.shape)
