"""Every architecture that is exported is equal to onnxruntime: slow, and needs their packages."""

import numpy as np
import pytest

from tests.architectures import FAMILIES, Task, architectures, tasks
from tests.architectures.results import document, keep, kept
from tests.architectures.worker import Result

ARCHITECTURES = architectures()


@pytest.mark.slow
@pytest.mark.parametrize("task", tasks(), ids=" ".join)
def test_an_architecture_is_equal_to_onnxruntime(task):
    from tests.architectures.worker import run

    (result,) = run([task], jobs=1, limit=600)
    if result.reason.startswith("not exported"):
        pytest.skip(result.reason)
    assert not result.reason


def test_there_are_architectures_of_every_family():
    assert {each.family for each in ARCHITECTURES.values()} == set(FAMILIES)
    assert len(ARCHITECTURES) >= 60
    assert all(a != b for each in ARCHITECTURES.values() for a, b in each.dims.values())


def test_results_are_kept_and_tabulated(tmp_path):
    file = tmp_path / "results"
    assert kept(file) == {}
    bert, clip = Task("bert", "dynamo", "static"), Task("clip", "torchscript", "dynamic")
    equal = Result(bert, "", 9.0, error=2e-7, build=5.04)
    for each in (
        Result(bert, "wrong result: output 0", 9.0),
        Result(clip, "not exported: ValueError: no", 1.0),
        Result(bert._replace(form="dynamic"), "crash: SIGSEGV", 2.0),
        equal,
    ):
        keep(file, each)
    results = kept(file)
    assert results[bert] == equal and len(results) == 3
    page = document(results.values())
    assert "| bert | dynamo | equal | **fails** | 2e-07 | 5.0 / - |" in page
    assert "| clip | torchscript | - | not exported | - | - / - |" in page
    assert "0 of 2 architectures are equal" in page
    assert "- 1: `crash: SIGSEGV`: bert dynamo dynamic" in page


def test_torch_is_compared_with_where_onnxruntime_has_no_kernel(monkeypatch):
    check = pytest.importorskip("tests.architectures.check", exc_type=ImportError)
    task = Task("elman", "torchscript", "dynamic")
    wanted = check.export(task)
    assert not wanted.refusal

    def refuse(model, feeds, optimised=True):
        raise check.refusals.NotImplemented("no kernel")

    monkeypatch.setattr(check, "_onnxruntime", refuse)
    got = check.export(task)
    assert got.refusal == "NotImplemented: no kernel"
    for ours, theirs in zip(got.expected, wanted.expected, strict=True):
        assert check.compare(ours, theirs) < 1e-5
    monkeypatch.setattr(check, "_valid", lambda model: False)
    with pytest.raises(check.NotExported, match="no kernel"):
        check.export(task)


def test_a_model_that_holds_for_its_example_only_is_not_exported(monkeypatch):
    check = pytest.importorskip("tests.architectures.check", exc_type=ImportError)
    task, run, asked = Task("elman", "torchscript", "dynamic"), check._onnxruntime, []

    def run_of_two(model, feeds, optimised=True):
        asked.append(optimised)
        if len(feeds["x"]) != 2:
            raise RuntimeError("no")
        return run(model, feeds, optimised)

    monkeypatch.setattr(check, "_onnxruntime", run_of_two)
    with pytest.raises(check.NotExported, match="not of batch 3: RuntimeError: no"):
        check.export(task)
    assert asked == [True, True, False]


def test_a_difference_is_measured_against_the_largest_value():
    check = pytest.importorskip("tests.architectures.check", exc_type=ImportError)
    wanted = np.array([1e3, 1.0, np.inf], "f4")
    assert check.compare([wanted + np.array([0.5, 0, 0], "f4")], [wanted]) == pytest.approx(5e-4)
    for got in (wanted + np.float32(2), np.array([1e3, 1, 1], "f4"), wanted[:2]):
        with pytest.raises(AssertionError, match="output 0"):
            check.compare([got], [wanted])
    with pytest.raises(AssertionError, match="1 of 2 values differ"):
        check.compare([np.array([1, 2])], [np.array([1, 3])])


def test_a_model_that_onnxruntime_does_not_repeat_is_not_compared(monkeypatch):
    check = pytest.importorskip("tests.architectures.check", exc_type=ImportError)
    exported = check.export(Task("elman", "torchscript", "static"))
    other = [[value + 1 for value in each] for each in exported.expected]
    with pytest.raises(check.NotExported, match="does not repeat"):
        check.equal(exported._replace(expected=other))
    monkeypatch.setattr(check, "_onnxruntime", lambda model, feeds, optimised: other[0])
    with pytest.raises(AssertionError, match="output 0: error"):
        check.equal(exported._replace(expected=other))
