"""One task: export, compile, compare with onnxruntime."""

import os
from typing import NamedTuple

import numpy as np
import onnx
import onnxruntime
from onnxruntime.capi import onnxruntime_pybind11_state as refusals

from tvm_ext import convert_and_build
from tvm_ext.errors import ConversionError

from .export import arrays, eager, quiet, to_onnx
from .registry import NOT_EXPORTED, TOLERANCE, Architecture, Network, Task, architectures
from .torchvision_ops import load_torchvision

__all__ = [
    "Equal",
    "Exported",
    "NotExported",
    "compare",
    "cpu_seconds",
    "equal",
    "export",
    "reason",
]


class NotExported(Exception):
    """The exporter gives no model, or none that onnxruntime runs: nothing to compare with."""


class Exported(NamedTuple):
    """A model, and per choice of sizes its inputs by name and what its outputs must be.

    Those are onnxruntime's; torch's where that has no kernel for an operator of a valid model:
    ``refusal`` says for which.
    """

    model: onnx.ModelProto
    feeds: list[dict[str, np.ndarray]]
    expected: list[list]
    refusal: str = ""
    tolerance: float = TOLERANCE


class Equal(NamedTuple):
    """The largest difference, of the largest value of its output, and CPU seconds to build."""

    error: float
    build: float


def export(task: Task) -> Exported:
    """The model of ``task``; at a second choice of sizes, too, where it is dynamic."""
    dynamic = task.form == "dynamic"
    architecture = architectures()[task.name]
    try:
        with quiet():
            load_torchvision()
            network = architecture.make()
            model = to_onnx(architecture, network, task.exporter, dynamic)
            whole = [arrays(network, architecture.sizes(which)) for which in range(1 + dynamic)]
            feeds = [_of_inputs(model, each) for each in whole]
            try:
                expected = _expected(architecture, model, feeds)
                tolerance = getattr(network, "tolerance", TOLERANCE)
                return Exported(model, feeds, expected, tolerance=tolerance)
            except refusals.NotImplemented as error:
                if not (isinstance(network, Network) and _valid(model)):
                    raise
                expected = [eager(network, each) for each in whole]
                return Exported(model, feeds, expected, _named(error))
    except NotExported:
        raise
    except Exception as error:
        raise NotExported(_named(error)) from error


def _expected(
    architecture: Architecture, model: onnx.ModelProto, feeds: list[dict]
) -> list[list[np.ndarray]]:
    """What onnxruntime makes of ``feeds``.

    Raises NotExported where it runs the model only at the sizes of the example that it was
    exported with, of which an exporter may take some for constants.
    """
    expected: list[list[np.ndarray]] = []
    for which, each in enumerate(feeds):
        try:
            expected.append(_answer(model, each))
        except Exception as error:  # onnxruntime's have no class in common
            if not expected:
                raise
            sizes = ", ".join(f"{k} {n}" for k, n in architecture.sizes(which).items())
            raise NotExported(f"not of {sizes}: {_named(error)}") from error
    return expected


def _answer(model: onnx.ModelProto, feeds: dict) -> list[np.ndarray]:
    """onnxruntime's, without its optimisations where the model runs only so."""
    try:
        return _onnxruntime(model, feeds)
    except refusals.NotImplemented:
        raise
    except Exception:  # noqa: BLE001  onnxruntime's have no class in common
        return _onnxruntime(model, feeds, optimised=False)


def equal(exported: Exported) -> Equal:
    """Raise whatever is wrong with what we make of the model."""
    start = cpu_seconds()
    built = convert_and_build(exported.model, "llvm")
    seconds = cpu_seconds() - start
    error = 0.0
    for feeds, expected in zip(exported.feeds, exported.expected, strict=True):
        try:
            error = max(error, compare(built.run(None, feeds), expected, exported.tolerance))
        except AssertionError:
            _require_repeatable(exported, feeds, expected)
            raise
    return Equal(error, seconds)


def _require_repeatable(exported: Exported, feeds: dict, expected: list) -> None:
    """Raise NotExported where onnxruntime itself gives ``expected`` only as it optimises.

    So it is with models whose results hang on the order of writes.
    """
    if exported.refusal:
        return
    try:
        again = _onnxruntime(exported.model, feeds, optimised=False)
        compare(again, expected, exported.tolerance)
    except Exception as error:  # onnxruntime's have no class in common
        raise NotExported(f"onnxruntime does not repeat its results: {_named(error)}") from error


def compare(got: list, expected: list, tolerance: float = TOLERANCE) -> float:
    """The largest difference of an output, relative to its largest finite value.

    Raises AssertionError where that exceeds ``tolerance`` (and the difference 1e-6), or where
    integers, booleans or strings differ.
    """
    assert len(got) == len(expected), f"{len(got)} outputs for {len(expected)}"
    worst = 0.0
    for k, (ours, theirs) in enumerate(zip(got, expected, strict=True)):
        if isinstance(theirs, list):  # a sequence, of arrays or of maps
            if theirs and isinstance(theirs[0], dict):
                assert [list(map) for map in ours] == [list(map) for map in theirs], "keys"
                ours, theirs = ([list(map.values()) for map in maps] for maps in (ours, theirs))
            else:
                worst = max(worst, compare(ours, theirs, tolerance))
                continue
        ours, theirs = np.asarray(ours), np.asarray(theirs)
        assert ours.shape == theirs.shape, f"output {k}: shape {ours.shape}, not {theirs.shape}"
        if theirs.dtype.kind != "f":
            different = int((ours != theirs).sum())
            assert not different, f"output {k}: {different} of {theirs.size} values differ"
            continue
        finite = np.isfinite(theirs)
        assert (np.isfinite(ours) == finite).all(), f"output {k}: other values are finite"
        if not finite.any():
            continue
        error = float(np.abs(ours[finite] - theirs[finite]).max())
        largest = float(np.abs(theirs[finite]).max())
        assert error <= tolerance * largest + 1e-6, (
            f"output {k}: error {error:.2g} of {largest:.2g}"
        )
        worst = max(worst, error / max(largest, 1e-3))
    return worst


def _valid(model: onnx.ModelProto) -> bool:
    """Whether shapes and types agree; exporters write models of which that is not so."""
    try:
        onnx.shape_inference.infer_shapes(model, check_type=True, strict_mode=True, data_prop=True)
    except onnx.shape_inference.InferenceError:
        return False
    return True


def cpu_seconds() -> float:
    """Of this process and its children so far: wall time says as much about other processes."""
    return sum(os.times()[:4])


def _of_inputs(model: onnx.ModelProto, feeds: dict) -> dict:
    """Those that the model has: exporters drop what no output depends on."""
    names = {value.name for value in model.graph.input}
    return {name: value for name, value in feeds.items() if name in names}


def _onnxruntime(model: onnx.ModelProto, feeds: dict, optimised: bool = True) -> list:
    options = onnxruntime.SessionOptions()
    if not optimised:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(model.SerializeToString(), options)
    return session.run(None, feeds)


def reason(error: BaseException) -> str:
    """One line that says why a task failed."""
    if isinstance(error, NotExported):
        return f"{NOT_EXPORTED}: {error}"[:200]
    if isinstance(error, ConversionError):
        node = error.nodes[0]
        return f"{node.op_type}-{node.since_version}: {node.reason.splitlines()[0]}"[:200]
    if isinstance(error, AssertionError):
        return f"wrong result: {_first_line(error)}"[:200]
    return _named(error)[:200]


def _named(error: BaseException) -> str:
    return f"{type(error).__name__}: {_first_line(error)}"


def _first_line(error: BaseException) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), "")
