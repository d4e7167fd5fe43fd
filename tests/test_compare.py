"""The comparison: what it computes, what it refuses, what it shows."""

import json
import os
import signal
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import psutil
import pytest
from onnx import helper

import tvm_ext
from tvm_ext.compare import compare
from tvm_ext.compare.client import Worker
from tvm_ext.compare.engines import ENGINES
from tvm_ext.compare.inputs import feeds_for
from tvm_ext.compare.optional import require
from tvm_ext.compare.statistics import Block, accuracies, accuracy, latency
from tvm_ext.compare.worker import Job
from tvm_ext.errors import ComparisonError, InputError, MissingPackageError, OutputPathError

NORM = """<ir_version: 8, opset_import: ["": 17]>
norm (float[batch, 4, 6, 5] x, float[4] scale, float[4] bias) => (float[batch, 4, 6, 5] y) {
    y = InstanceNormalization (x, scale, bias)
}"""
FAST = {"rounds": 1, "seconds": 0.02}


def model(text):
    return onnx.parser.parse_model(text)


@pytest.fixture(scope="module")
def report():
    return tvm_ext.compare(model(NORM), batch=3, threads=1, **FAST)


def test_accuracy_by_hand():
    got = np.array([1.0, -2.0, 0.0, 5.0], "float32")
    expected = np.array([1.5, -2.0, 0.25, 4.0], "float32")
    found = accuracy("y", got, expected)
    assert found.max_abs == 1.0
    assert found.max_rel == 1.0  # of 0 against 0.25
    assert found.tolerance == pytest.approx(0.5 / 2.5)
    wider, narrower = found.tolerance * 1.001, found.tolerance * 0.999
    np.testing.assert_allclose(got, expected, rtol=wider, atol=wider)
    assert not np.allclose(got, expected, rtol=narrower, atol=narrower)


@pytest.mark.parametrize(
    "got, expected",
    [
        ([1, np.nan], [1, 2]),
        ([1, 2], [1, np.nan]),
        ([1, np.inf], [1, -np.inf]),
        ([1, np.inf], [1, 2]),
    ],
    ids=str,
)
def test_nan_and_infinity_in_different_places_never_agree(got, expected):
    assert (
        accuracy("y", np.array(got, "float64"), np.array(expected, "float64")).tolerance == np.inf
    )


def test_nan_and_infinity_in_the_same_places_are_counted():
    array = np.array([1.0, np.nan, -np.inf])
    found = accuracy("y", array, array.copy())
    assert (found.tolerance, found.non_finite) == (0, 2)


def test_large_integers_are_compared_exactly():
    big = np.iinfo("int64").max
    assert accuracy("y", np.array([big]), np.array([big - 1])).max_abs == 1


@pytest.mark.parametrize(
    "got, expected, reason",
    [
        (np.ones(3), np.ones((3, 1)), r"float64\[3\], expected float64\[3, 1\]"),
        (np.ones(3, "float32"), np.ones(3), "float32"),
        (np.full(3, np.nan), np.full(3, np.nan), "no finite element"),
        (np.ones(0), np.ones(0), "nothing to compare"),
        (np.array([b"a"]), np.array([b"a"]), "not numbers"),
    ],
    ids=["shape", "dtype", "nan", "empty", "bytes"],
)
def test_what_cannot_be_compared_is_refused(got, expected, reason):
    with pytest.raises(ComparisonError, match=reason):
        accuracy("y", got, expected)


@pytest.mark.parametrize("dtype", [object, str])
def test_strings_are_equal_or_not(dtype):
    expected = np.array(["a", "ü"], dtype)
    assert accuracy("y", np.array(["a", "ü"], object), expected).tolerance == 0
    found = accuracy("y", np.array(["a", "u"], object), expected)
    assert (found.dtype, found.max_abs, found.tolerance) == ("string", np.inf, np.inf)


def test_maps_are_compared_key_by_key():
    expected = [{"a": 1.0, "b": 3.0}, {"b": 0.5, "a": 0.0}]
    (found,) = accuracies("y", [{"b": 3.5, "a": 1.0}, {"a": 0.0, "b": 0.5}], expected)
    assert (found.shape, found.max_abs) == ((4,), 0.5)
    with pytest.raises(ComparisonError, match="'y' has maps of other keys"):
        accuracies("y", [{"a": 1.0, "c": 3.0}, {"a": 0.0, "b": 0.5}], expected)


def test_sequences_are_compared_element_by_element():
    expected = [np.zeros(2), np.ones((3, 1))]
    found = accuracies("y", [np.zeros(2), np.full((3, 1), 1.25)], expected)
    assert [(one.name, one.max_abs) for one in found] == [("y[0]", 0), ("y[1]", 0.25)]
    assert accuracies("y", [], []) == accuracies("y", None, None) == []
    for got in ([np.zeros(2)], None, np.zeros(2)):
        with pytest.raises(ComparisonError, match="not a list of 2"):
            accuracies("y", got, expected)
    with pytest.raises(ComparisonError, match=r"'y\[1\]' is float64\[3\]"):
        accuracies("y", [np.zeros(2), np.zeros(3)], expected)


def test_latency_counts_quiet_blocks_only():
    quiet, loud = Block((1.0, 2.0, 3.0), 0.0), Block((9.0,), 1.5)
    found = latency([quiet, loud])
    assert (found.median, found.minimum, found.runs, found.quiet) == (2, 1, 3, True)
    found = latency([loud])
    assert (found.median, found.quiet) == (9, False)
    with pytest.raises(ComparisonError):
        latency([])


def test_random_indices_stay_inside_the_table():
    source = ir.from_proto(
        model("""<ir_version: 8, opset_import: ["": 17]>
        g (int64[batch, 500] ids, int64[batch, 500] mask, bool[2] flag)
            => (float[batch, 500, 2] y, int64[batch, 500] z)
        <float[7, 2] table = {1,2,3,4,5,6,7,8,9,10,11,12,13,14}> {
            y = Gather (table, ids)
            z = Identity (mask)
        }""")
    )
    feeds = feeds_for(source, None, batch=4)
    assert feeds["ids"].shape == (4, 500)
    assert set(np.unique(feeds["ids"])) == set(range(7))
    assert set(np.unique(feeds["mask"])) == {0, 1}
    assert feeds["flag"].dtype == np.bool_


def test_inputs_come_from_a_file(tmp_path):
    source = ir.from_proto(model(NORM))
    arrays = {name: np.ones(4, "float32") for name in ("scale", "bias")}
    arrays["x"] = np.ones((2, 4, 6, 5), "float32")
    np.savez(tmp_path / "inputs.npz", **arrays)
    assert feeds_for(source, tmp_path / "inputs.npz", None)["x"].shape == (2, 4, 6, 5)
    (tmp_path / "text.npz").write_text("no arrays")
    with pytest.raises(InputError, match=r"text\.npz"):
        feeds_for(source, tmp_path / "text.npz", None)
    np.save(tmp_path / "one.npy", np.ones(3))
    with pytest.raises(InputError, match=r"one\.npy.*give an \.npz"):
        feeds_for(source, tmp_path / "one.npy", None)


GIVEN = {"x": np.ones((3, 4, 6, 5)), "scale": np.ones(4), "bias": np.ones(4)}


@pytest.mark.parametrize(
    "text, given, batch, error, reason",
    [
        (NORM, {"x": np.ones(3)}, None, InputError, "the model has"),
        (NORM.replace("batch", "2"), None, 8, InputError, "symbolic batch, or with this one"),
        (NORM.replace("6", "h"), None, 1, InputError, "symbolic dims h"),
        (NORM, None, 0, ComparisonError, "no elements"),
        (NORM, None, -1, InputError, "batch is a size"),
        (NORM, None, 2.5, InputError, "batch is a size"),
        (NORM, GIVEN, 2, InputError, "batch is 2, but no input"),
        (NORM, [np.ones(3)], None, InputError, "not list"),
        (NORM, GIVEN, 3, InputError, ".* needs dtype float32, got float64"),
        (NORM, GIVEN | {"x": np.ones((3, 5, 6, 5))}, 3, InputError, "'x' is .*, got shape"),
        (NORM, GIVEN | {"x": np.ones((3, 4, 6))}, 3, InputError, "'x' is .*, got shape"),
    ],
    ids=[
        "names",
        "static batch",
        "symbolic",
        "empty",
        "negative",
        "float",
        "other batch",
        "list",
        "dtype",
        "shape",
        "rank",
    ],
)
def test_inputs_that_do_not_fit_are_refused(text, given, batch, error, reason):
    with pytest.raises(error, match=reason):
        feeds_for(ir.from_proto(model(text)), given, batch)


def test_compare_measures_both_sides(report):
    assert report.inputs[0] == "x: float32[3, 4, 6, 5]"
    assert report.agrees(1e-5)
    assert report.outputs[0].shape == (3, 4, 6, 5)
    for side in report.ours, report.theirs:
        assert side.latency.runs >= 1
        assert 0 < side.latency.p10 <= side.latency.median <= side.latency.p90
        assert side.load_seconds > 0
    assert report.theirs.version == onnxruntime.__version__
    assert report.ours.version == tvm_ext.__version__
    assert report.ours.build_seconds > 0
    assert report.theirs.build_seconds is None


CLASSIFIER = """<ir_version: 8, opset_import: ["": 17, "ai.onnx.ml": 3]>
classifier (string[n] words, float[n, 3] x) => (string[n] t, float maps) {
    t = Identity (words)
    scores = Softmax (x)
    maps = ai.onnx.ml.ZipMap <classlabels_strings = ["a", "b", "c"]> (scores)
}"""


def test_strings_and_maps_are_compared(tmp_path):
    source = model(CLASSIFIER)
    scalar = helper.make_tensor_type_proto(onnx.TensorProto.FLOAT, ())
    maps = helper.make_map_type_proto(onnx.TensorProto.STRING, scalar)
    source.graph.output[1].type.CopyFrom(helper.make_sequence_type_proto(maps))
    x = np.arange(6, dtype="float32").reshape(2, 3)
    np.savez(tmp_path / "inputs.npz", words=np.array(["ü", ""]), x=x)
    found = compare(source, inputs=tmp_path / "inputs.npz", threads=1, **FAST)
    assert found.inputs == ("words: string[2]", "x: float32[2, 3]")
    assert [(o.name, o.dtype) for o in found.outputs] == [("t", "string"), ("maps", "float64")]
    assert found.tolerance < 1e-6


def test_a_model_that_gives_nothing_is_not_compared():
    source = model("""<ir_version: 8, opset_import: ["": 17]>
    nothing (float[2] x) => (float y) { y = SequenceEmpty <dtype = 1> () }""")
    kind = helper.make_tensor_type_proto(onnx.TensorProto.FLOAT, None)
    source.graph.output[0].type.CopyFrom(helper.make_sequence_type_proto(kind))
    with pytest.raises(ComparisonError, match="no tensors"):
        compare(source, threads=1, **FAST)


def test_compare_renders_as_table_json_and_plot(report, tmp_path):
    assert f"onnxruntime {onnxruntime.__version__}" in str(report)
    assert "tolerance that passes" in str(report)
    assert "tolerance that passes" in report._repr_html_()
    fields = json.loads(report.to_json())
    assert fields["threads"] == 1
    assert fields["theirs"]["latency"]["median"] == report.theirs.latency.median
    image = report.plot(tmp_path / "plot.png").read_bytes()
    assert image.startswith(b"\x89PNG")
    with pytest.raises(OutputPathError):
        report.plot(tmp_path / "missing" / "plot.png")
    with pytest.raises(OutputPathError, match="nonsense"):
        report.plot(tmp_path / "plot.nonsense")


@pytest.mark.parametrize(
    "options, reason",
    [
        ({"against": "tvm_ext"}, "onnxruntime"),
        ({"threads": 0}, "at least 1"),
        ({"threads": "2"}, "at least 1"),
        ({"rounds": 0}, "at"),
        ({"seconds": 0}, "above 0"),
        ({"seconds": float("nan")}, "above 0"),
        ({"seconds": "1"}, "above 0"),
    ],
    ids=str,
)
def test_senseless_options_are_refused(options, reason):
    with pytest.raises(ComparisonError, match=reason):
        compare(model(NORM), **options)


def job(path, engine="onnxruntime"):
    feeds = feeds_for(ir.from_proto(model(NORM)), None, None)
    return Job(ENGINES[engine], Path(path), feeds, 1)


def test_each_engine_has_a_process_of_its_own(tmp_path):
    path = tmp_path / "model.onnx"
    onnx.save(model(NORM), path)
    with Worker(job(path)) as first, Worker(job(path)) as second:
        assert len({os.getpid(), first.pid, second.pid}) == 3
        np.testing.assert_array_equal(*(w.ask("outputs")[0] for w in (first, second)))


def test_a_failing_engine_says_why(tmp_path):
    with pytest.raises(ComparisonError, match="onnxruntime: NoSuchFile"):
        Worker(job(tmp_path / "missing.onnx"))


def test_a_dead_process_is_reported(tmp_path):
    path = tmp_path / "model.onnx"
    onnx.save(model(NORM), path)
    with Worker(job(path)) as worker:
        os.kill(worker.pid, 9)
        with pytest.raises(ComparisonError, match="ended with code -9"):
            worker.ask("outputs")


def test_an_interrupt_while_an_engine_starts_leaves_no_process(tmp_path, monkeypatch):
    def interrupted(_worker, _request):
        raise KeyboardInterrupt

    monkeypatch.setattr(Worker, "_exchange", interrupted)
    before = psutil.Process().children()
    with pytest.raises(KeyboardInterrupt):
        Worker(job(tmp_path / "model.onnx"))
    assert psutil.Process().children() == before


def test_an_interrupt_is_for_the_asking_process(tmp_path):
    """A terminal sends it to both; nobody should learn of it from a dead engine."""
    path = tmp_path / "model.onnx"
    onnx.save(model(NORM), path)
    with Worker(job(path)) as worker:
        os.kill(worker.pid, signal.SIGINT)
        assert len(worker.ask("outputs")) == 1


def test_a_missing_package_names_the_extra():
    with pytest.raises(MissingPackageError, match=r"no_such_engine .*tvm-ext\[compare\]"):
        require("no_such_engine.session")
