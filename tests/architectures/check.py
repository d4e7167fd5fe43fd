"""One task: export, compile, compare with onnxruntime."""

import numpy as np
import onnx
import onnxruntime

from tvm_ext import convert_and_build
from tvm_ext.errors import ConversionError

from .export import arrays, quiet, to_onnx
from .registry import Task, architectures
from .torchvision_ops import load_torchvision

__all__ = ["NotExported", "check"]

TOLERANCE = 1e-3


class NotExported(Exception):
    """The exporter gives no model, or none that onnxruntime runs: nothing to compare with."""


def check(task: Task, save: str | None = None) -> None:
    """Raise whatever is wrong with ``task``; ``save`` is a file to write the ONNX model to."""
    dynamic = task.form == "dynamic"
    architecture = architectures()[task.name]
    try:
        with quiet():
            load_torchvision()
            network = architecture.make()
            model = to_onnx(architecture, network, task.exporter, dynamic)
            if save:
                onnx.save(model, save)
            feeds = [arrays(network, architecture.sizes(which)) for which in range(1 + dynamic)]
            feeds = [_of_inputs(model, each) for each in feeds]
            expected = [_onnxruntime(model, each) for each in feeds]
    except Exception as error:
        raise NotExported(f"{type(error).__name__}: {_first_line(error)}") from error
    built = convert_and_build(model, "llvm")
    for each, wanted in zip(feeds, expected, strict=True):
        compare(built.run(None, each), wanted)


def compare(got: list, expected: list) -> None:
    """Raise AssertionError unless all outputs agree.

    The bound is ``TOLERANCE`` of the largest finite value of an output; integers, booleans and
    strings are equal.
    """
    assert len(got) == len(expected), f"{len(got)} outputs for {len(expected)}"
    for k, (ours, theirs) in enumerate(zip(got, expected, strict=True)):
        if isinstance(theirs, list):  # a sequence, of arrays or of maps
            if theirs and isinstance(theirs[0], dict):
                assert [list(map) for map in ours] == [list(map) for map in theirs], "keys"
                ours, theirs = ([list(map.values()) for map in maps] for maps in (ours, theirs))
            else:
                compare(ours, theirs)
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
        error = np.abs(ours[finite] - theirs[finite]).max()
        largest = np.abs(theirs[finite]).max()
        assert error <= TOLERANCE * largest + 1e-6, (
            f"output {k}: error {error:.2g} of {largest:.2g}"
        )


def _of_inputs(model: onnx.ModelProto, feeds: dict) -> dict:
    """Those that the model has: exporters drop what no output depends on."""
    names = {value.name for value in model.graph.input}
    return {name: value for name, value in feeds.items() if name in names}


def _onnxruntime(model: onnx.ModelProto, feeds: dict) -> list:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(model.SerializeToString(), options)
    return session.run(None, feeds)


def reason(error: BaseException) -> str:
    """One line that says why a task failed."""
    if isinstance(error, NotExported):
        return f"not exported: {error}"[:200]
    if isinstance(error, ConversionError):
        node = error.nodes[0]
        return f"{node.op_type}-{node.since_version}: {node.reason.splitlines()[0]}"[:200]
    if isinstance(error, AssertionError):
        return f"wrong result: {_first_line(error)}"[:200]
    return f"{type(error).__name__}: {_first_line(error)}"[:200]


def _first_line(error: BaseException) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), "")
