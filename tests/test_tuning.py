"""Tuning: what is measured is kept and built again; what is slower or wrong is not.

Seconds are made up here: machines that run tests are busy.
"""

import json

import numpy as np
import onnx
import pytest
from onnx import parser
from onnx.reference import ReferenceEvaluator
from tvm import IRModule, te

from tvm_ext import convert_and_build, schedules, targets
from tvm_ext.cli import main
from tvm_ext.errors import BuildError, OptionError, OutputPathError, TargetError
from tvm_ext.tuning import Tuned, Tuning
from tvm_ext.tuning.contest import Contest, digest, followed
from tvm_ext.tuning.device import Device, Kernel
from tvm_ext.tuning.records import Record, Records
from tvm_ext.tuning.search import enter_search

TARGET = targets.resolve("llvm")
RNG = np.random.default_rng(0)
X = RNG.standard_normal((1, 5, 9, 9)).astype("float32")

# The rule of the product has numbers; the norm is for meta_schedule.
NET = parser.parse_model("""<ir_version: 8, opset_import: ["": 17]>
net (float[1, 5, 9, 9] x) => (float[1, 5, 9, 9] y, float[1, 5, 9, 40] z) {
  y = Softmax<axis=-1>(x)
  z = MatMul(x, w)
}""")
NET.graph.initializer.append(
    onnx.numpy_helper.from_array(RNG.standard_normal((9, 40)).astype("float32"), "w")
)


def build(tune, **options):
    return convert_and_build(NET, "llvm", opt_level=2, tune=tune, **options)


def made_up(self, best=None):
    """Each candidate takes half as long as the fastest before it."""
    if not hasattr(self, "took"):
        self.took = 1.0 if best is None else best / 2
    return self.took


def slower(self, best=None):
    return 1.0 if best is None else 2.0


@pytest.fixture(scope="module")
def tuned(tmp_path_factory):
    """The folder of records, and the model that was built when they were made."""
    folder, measured = tmp_path_factory.mktemp("tuned") / "records", []
    measure = Contest._measured

    def watched(self, recipe, module):
        measured.append((recipe, measure(self, recipe, module)))
        return measured[-1][1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Kernel, "seconds", made_up)
        patch.setattr(Contest, "_measured", watched)
        model = build(Tuning(folder, trials=8))
    return folder, model, measured


def copied(folder, place):
    place.mkdir()
    for path in folder.iterdir():
        (place / path.name).write_bytes(path.read_bytes())
    return sorted(place.iterdir())


def test_rules_with_other_numbers_and_traces_are_tried_and_right(tuned):
    _, _, measured = tuned
    assert any(recipe.get("numbers") for recipe, _ in measured)
    assert any("trace" in recipe for recipe, _ in measured)
    assert all(seconds is not None for _, seconds in measured)


def test_what_was_tuned_gives_the_same_answer(tuned):
    _, model, _ = tuned
    assert all(row.taken for row in model.tuning.kernels)
    expected = ReferenceEvaluator(NET).run(None, {"x": X})
    for found, wanted in zip(model(X), expected, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4)


def test_records_are_used_again_without_measuring(tuned, monkeypatch):
    folder, model, _ = tuned
    monkeypatch.setattr(Device, "load", None)
    again = build(folder)
    assert again.tuning == model.tuning
    assert again.sources()["schedule"] == model.sources()["schedule"]
    # A longer search has nothing to do: every kernel has its record.
    assert build(Tuning(folder, trials=9)).tuning == model.tuning


def test_the_report_is_a_table_with_the_sum(tuned):
    _, model, _ = tuned
    text = str(model.tuning)
    assert "ms by the rules" in " ".join(text.split())
    assert all(row.kernel in text for row in model.tuning.kernels)
    assert json.loads(model.tuning.to_json())["kernels"]


def test_nothing_faster_leaves_the_kernels_of_the_rules(tmp_path, monkeypatch):
    monkeypatch.setattr(Kernel, "seconds", slower)
    model = build(Tuning(tmp_path, trials=1, kernels=1))
    assert len(list(tmp_path.iterdir())) == 1
    assert sorted(row.rules is None for row in model.tuning.kernels) == [False, True]
    assert not any(row.taken for row in model.tuning.kernels)
    assert model.sources()["schedule"] == build(None).sources()["schedule"]


def test_records_are_of_one_target_and_kernel(tuned):
    folder, *_ = tuned
    other = convert_and_build(
        NET, {"kind": "llvm", "mcpu": "x86-64-v3", "num-cores": 3}, opt_level=2, tune=folder
    )
    assert {row.note for row in other.tuning.kernels} == {"not measured"}


def test_kernels_that_zeros_would_end_are_left_alone(tuned):
    division = parser.parse_model("""<ir_version: 8, opset_import: ["": 17]>
    net (uint64[3] x, uint64[3] y) => (uint64[3] z) { z = Div(x, y) }""")
    model = convert_and_build(division, "llvm", tune=Tuning(tuned[0], trials=1))
    assert [row.note for row in model.tuning.kernels] == ["division of integers"]


def test_a_candidate_that_fails_when_it_runs_does_not_win(monkeypatch):
    tried = contest(row_sum(33))

    def fail(self, best=None):
        raise RuntimeError("of the kernel")

    monkeypatch.setattr(Kernel, "seconds", fail)
    assert tried.enter({"trace": []}, row_sum(33)) is None
    assert tried.tried == 1 and tried.best is None


def test_symbolic_kernels_are_left_alone(tuned):
    folder, *_ = tuned
    symbolic = onnx.ModelProto.FromString(NET.SerializeToString())
    symbolic.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "n"
    for output in symbolic.graph.output:
        output.type.tensor_type.shape.dim[0].dim_param = "n"
    model = convert_and_build(symbolic, "llvm", opt_level=1, tune=folder)
    assert "symbolic shape" in {row.note for row in model.tuning.kernels}


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text[: len(text) // 2],
        lambda text: "[]",
        lambda text: text.replace('"rules": 1.0', '"rules": "1"'),
        lambda text: text.replace('"numbers": {', '"numbers": {"knots": 1, ').replace(
            '"GetSBlock"', '"Knit"'
        ),
        lambda text: text.replace('"program": "', '"program": "0'),
    ],
    ids=["cut off", "a list", "text for seconds", "another recipe", "another program"],
)
def test_a_damaged_record_is_named(tuned, tmp_path, damage):
    files = copied(tuned[0], tmp_path / "records")
    with_recipe = next(path for path in files if json.loads(path.read_text())["recipe"])
    with_recipe.write_text(damage(with_recipe.read_text()))
    with pytest.raises(OptionError, match=rf"{with_recipe.name} is no tuning record"):
        build(tmp_path / "records")


def test_a_folder_of_something_else_is_refused_and_untouched(tmp_path):
    (tmp_path / "thesis.tex").write_text("x")
    with pytest.raises(OptionError, match=r"it has 'thesis\.tex'"):
        build(Tuning(tmp_path, trials=1))
    with pytest.raises(OptionError, match="cannot read"):
        build(Tuning(tmp_path / "thesis.tex", trials=1))
    with pytest.raises(OptionError, match="has no tuning records"):
        build(tmp_path / "missing")
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_what_two_measurements_differ_by_does_not_decide():
    recipe = {"rule": "MatmulTiled", "numbers": {"steps": 2}}
    taken = [Record("k", 1.0, tuned, 1, recipe, "").faster for tuned in (1.1, 0.97, 0.9)]
    assert taken == [False, False, True]


def test_a_record_is_written_whole_or_not_at_all(tmp_path, monkeypatch):
    record, key = Record("k", 1.0, None, 3, None, None), "0" * 64
    records = Records(tmp_path / "records")
    monkeypatch.setattr("json.dumps", lambda *_, **__: "\udc80")  # what no file can hold
    with pytest.raises(UnicodeEncodeError):
        records.keep(key, record)
    assert list((tmp_path / "records").iterdir()) == []
    monkeypatch.undo()
    records.keep(key, record)
    assert Records(tmp_path / "records").get(key) == record
    (tmp_path / "file").write_text("")
    records.folder = tmp_path / "file"
    with pytest.raises(OutputPathError, match="cannot write"):
        records.keep(key, record)


@pytest.mark.parametrize(
    "options, message",
    [
        ({"trials": -1}, "trials"),
        ({"trials": 1.5}, "trials"),
        ({"seconds": -1}, "seconds"),
        ({"seconds": float("nan")}, "seconds"),
        ({"kernels": 0}, "kernels"),
        ({"tracker": "localhost:9190"}, "belong together"),
        ({"tracker": "localhost", "device": "pi"}, "host:port"),
    ],
)
def test_an_option_out_of_range_is_refused(options, message):
    with pytest.raises(OptionError, match=message):
        Tuning("records", **options)


def test_what_cannot_be_tuned_is_said(tmp_path):
    tuning = Tuning(tmp_path, trials=1)
    with pytest.raises(TargetError, match="CPUs"):
        Tuned(tuning, targets.resolve("cuda"), 3)
    with pytest.raises(OptionError, match="tracker="):
        Tuned(tuning, targets.resolve("aarch64"), 3)
    with pytest.raises(OptionError, match="cache"):
        build(tuning, cache=tmp_path)
    with pytest.raises(OptionError, match="folder or"):
        build(3)
    with pytest.raises(BuildError, match=r"no 'pi' behind the tracker 127\.0\.0\.1:1"):
        Device(TARGET, "127.0.0.1:1", "pi")


def row_sum(extent, factor=1.0):
    x = te.placeholder((64, extent), name="x")
    k = te.reduce_axis((0, extent), "k")
    total = te.compute((64,), lambda i: te.sum(x[i, k] * factor, axis=k), "total")
    return IRModule({"main": te.create_prim_func([x, total])})


def contest(module, trials=8):
    program = schedules.apply(TARGET, 3)(IRModule({"main": module["main"]}))
    own = Device(TARGET).load(program)
    return Contest(Device(TARGET), program, own, trials, float("inf"))


def test_a_candidate_that_computes_something_else_does_not_win(monkeypatch):
    monkeypatch.setattr(Kernel, "seconds", made_up)
    tried = contest(row_sum(33))
    assert tried.enter({"trace": []}, row_sum(33, factor=1.1)) is None
    assert tried.best is None
    assert tried.enter({"trace": []}, row_sum(33, factor=1.0 + 1e-9)) == 0.5
    assert tried.best.seconds == 0.5


def test_a_contest_ends_after_its_trials(monkeypatch):
    monkeypatch.setattr(Kernel, "seconds", made_up)
    tried = contest(row_sum(33), trials=1)
    assert tried.enter({"trace": []}, row_sum(33)) == 0.5
    assert not tried.open
    assert tried.enter({"trace": []}, row_sum(33, factor=1.0 + 1e-9)) is None
    assert tried.enter({"trace": []}, row_sum(33)) == 0.5  # known by now


def test_what_meta_schedule_finds_is_made_again_from_json(monkeypatch):
    monkeypatch.setattr(Kernel, "seconds", made_up)
    module = row_sum(96)
    tried = contest(module, trials=2)
    enter_search(tried, module, TARGET, 0)
    recipe = json.loads(json.dumps(tried.best.recipe))
    made = followed(recipe, module, TARGET, 3)
    assert digest(made.script()) == digest(tried.best.module.script())
    assert made.script() != module.script()


def test_the_command_line_prints_what_tuning_adds(tuned, tmp_path, capsys):
    model = tmp_path / "net.onnx"
    onnx.save(NET, model)
    options = ["--opt-level", "2", "--target", "llvm", "--tune", str(tuned[0])]
    assert main(["build", str(model), "-o", str(tmp_path / "m.so"), *options]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "ms by the rules" in text and "wrote" in text
    with pytest.raises(SystemExit):
        main(["build", str(model), "-o", "m.so", "--tune-on", "nowhere"])
    assert "KEY@HOST:PORT" in capsys.readouterr().err
