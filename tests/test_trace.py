"""Passes as a user sees them: their order, what they leave, how long; the one that is wrong."""

import json

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
import pytest
import tvm
import tvm_ffi
from tvm import relax, tirx
from tvm.s_tir import Schedule
from tvm.s_tir import dlight as dl

from tvm_ext import convert_and_build, extend, pipeline, targets
from tvm_ext.cli import main
from tvm_ext.errors import BuildError, OptionError, PluginError

TEXT = """<ir_version: 10, opset_import: ["" : 21]>
  g (float[3, 5] x, float[5, 7] w, float[7] b) => (float[3, 7] y) {
    product = MatMul (x, w)
    sum = Add (product, b)
    y = Relu (sum)
  }"""
MODEL = onnx.parser.parse_model(TEXT)
LLVM = targets.resolve("llvm")
RANDOM = np.random.default_rng(0)
FEEDS = {
    name: RANDOM.normal(size=shape).astype("float32")
    for name, shape in (("x", (3, 5)), ("w", (5, 7)), ("b", (7,)))
}
WANT = np.maximum(FEEDS["x"] @ FEEDS["w"] + FEEDS["b"], 0)


@pytest.fixture
def file(tmp_path):
    onnx.save(MODEL, tmp_path / "model.onnx")
    return str(tmp_path / "model.onnx")


def build(steps=None, **options):
    (y,) = convert_and_build(MODEL, steps=steps, **options).run(None, FEEDS)
    return y


# --- each kind of step ------------------------------------------------------------------------


def relu_to_neg(model):
    """An ONNX rewrite, of the wrong kind."""
    for node in model.graph:
        if node.op_type == "Relu":
            node.op_type = "Neg"
    return model


class RenameGraph(ir.passes.InPlacePass):
    """An onnx_ir pass."""

    def call(self, model):
        model.graph.name = "renamed"
        return ir.passes.PassResult(model, True)


def scaled_kernels(factor):
    """A TIR pass: every constant of the kernels times ``factor``, plus it."""

    @tirx.transform.prim_func_pass(opt_level=0, name="ScaleConstants")
    def scale(func, _module, _context):
        def change(store):
            grown = store.value + tirx.const(factor, "float32")
            return tirx.BufferStore(store.buffer, grown, store.indices)

        return func.with_body(tvm_ffi.structural_map(func.body, (tirx.BufferStore, change)))

    return scale


class Serial(dl.base.ScheduleRule):
    """A schedule rule that takes everything as it is."""

    def apply(self, func, target, _tunable):
        return Schedule(func, debug_mask="none")


def test_a_pass_of_each_kind_takes_its_place():
    steps = pipeline.default(LLVM).insert("RenameGraph", RenameGraph(), phase="import")
    steps = steps.insert("DCE", relax.transform.DeadCodeElimination(), after="FuseTIR")
    steps = steps.insert("Serial", Serial(), before="ScheduleKernels")
    names = [step.name for step in steps.steps]
    assert names[names.index("remove-unused") + 1] == "RenameGraph"
    compiled = convert_and_build(MODEL, steps=steps)
    np.testing.assert_allclose(compiled.run(None, FEEDS)[0], WANT, rtol=1e-5)
    assert "T.parallel" not in compiled.sources()["schedule"]


def test_a_step_must_return_what_it_was_given():
    steps = pipeline.default(LLVM).insert("forgets", lambda module: None, after="FuseTIR")
    with pytest.raises(BuildError, match=r"'forgets' of .* returned NoneType, not IRMod"):
        build(steps)


@pytest.mark.parametrize("anchors", [{"phase": "emit"}, {"phase": "fuse", "before": "FuseTIR"}])
def test_a_phase_is_one_of_the_known(anchors):
    with pytest.raises(ValueError, match=r"no phase|anchor"):
        pipeline.default(LLVM).insert("mine", lambda module: module, **anchors)


# --- verify -----------------------------------------------------------------------------------


@pytest.mark.parametrize("level", [0, 3])
def test_the_passes_of_every_level_keep_the_answer(level):
    y = build(opt_level=level, target="llvm", verify="each-pass", feeds=FEEDS)
    np.testing.assert_allclose(y, WANT, rtol=1e-5)


@pytest.mark.parametrize(
    "name, run, anchor",
    [
        ("relu-to-neg", relu_to_neg, {"after": "fold-constants"}),
        ("ScaleConstants", scaled_kernels(0.5), {"after": "LegalizeOps"}),
        ("AfterFusion", scaled_kernels(0.5), {"after": "FuseTIR"}),
        ("AfterSchedule", scaled_kernels(0.5), {"phase": "schedule"}),
    ],
)
def test_the_first_pass_that_changes_the_answer_is_named(name, run, anchor):
    steps = pipeline.default(LLVM).insert(name, run, **anchor)
    assert not np.allclose(build(steps), WANT, rtol=1e-3)
    with pytest.raises(
        BuildError, match=rf"'{name}' of phase '\w+' \(.*trace.py:\d+\) moves output 'y'"
    ):
        build(steps, verify="each-pass", feeds=FEEDS)


class Grown(dl.base.ScheduleRule):
    """Takes every kernel, and adds to all that it stores."""

    def apply(self, func, _target, _tunable):
        module = scaled_kernels(0.5)(tvm.IRModule({"main": func}))
        return Schedule(module["main"])


def test_the_schedule_rule_that_changes_the_answer_is_named():
    steps = pipeline.default(LLVM).insert("Grown", Grown(), before="ScheduleKernels")
    with pytest.raises(BuildError, match=r"step 'Grown' of .*test_trace.py:\d+\) moves output 'y'"):
        build(steps, verify="each-pass", feeds=FEEDS)


def test_a_pass_that_changes_a_type_is_named():
    def wider(model):
        for node in model.graph:
            if node.op_type == "Relu":
                last = node.outputs[0]
        cast = ir.node("Cast", [last], attributes={"to": ir.DataType.DOUBLE})
        model.graph.append(cast)
        model.graph.outputs[0] = cast.outputs[0]
        return model

    steps = pipeline.default(LLVM).insert("wider", wider, after="fold-constants")
    with pytest.raises(BuildError, match=r"step 'wider' .* makes float64.* of the outputs float32"):
        build(steps, verify="each-pass", feeds=FEEDS)


def test_passes_for_cuda_are_run_on_the_cpu_up_to_the_schedules():
    convert_and_build(MODEL, "cuda", verify="each-pass", feeds=FEEDS)
    steps = pipeline.default(targets.resolve("cuda"))
    steps = steps.insert("AfterFusion", scaled_kernels(0.5), after="FuseTIR")
    with pytest.raises(BuildError, match="step 'AfterFusion'"):
        convert_and_build(MODEL, steps=steps, verify="each-pass", feeds=FEEDS)


def test_a_pass_may_change_as_much_as_it_says():
    steps = pipeline.default(LLVM).insert(
        "rough", scaled_kernels(1e-3), after="LegalizeOps", bound=1e-2
    )
    assert np.abs(build(steps, verify="each-pass", feeds=FEEDS) - WANT).max() > 1e-4


def test_a_pass_after_which_nothing_runs_is_named():
    @tvm.transform.module_pass(opt_level=0, name="Drop")
    def drop(module, _context):
        return tvm.IRModule({})

    steps = pipeline.default(LLVM).insert("Drop", drop, after="LegalizeOps")
    with pytest.raises(BuildError, match=r"after step 'Drop' .* does not run"):
        build(steps, verify="each-pass", feeds=FEEDS)


def test_verify_takes_one_value():
    with pytest.raises(OptionError, match="each-pass"):
        build(verify="sometimes")


# --- steps of plugins -------------------------------------------------------------------------

PLUGIN = """\
from tvm_ext.extend import step

@step("mine", {place})
def mine(module):
    {body}
"""


@pytest.fixture
def load(tmp_path):
    loaded = []

    def load(place, body):
        path = tmp_path / "steps.py"
        path.write_text(PLUGIN.replace("{place}", place).replace("{body}", body))
        loaded.append(extend.load(path))
        return loaded[-1]

    yield load
    for each in loaded:
        each.unload()


def names(level=3, target=LLVM):
    return [step.name for step in pipeline.default(target, level).steps]


def test_a_plugin_places_a_step_in_every_pipeline(load):
    loaded = load('after="FuseTIR", target="llvm"', "return module")
    at = names().index("FuseTIR")
    assert names()[at + 1] == "mine"
    assert "mine" not in names(0)  # a level without the anchor
    assert "mine" not in names(target=targets.resolve("cuda"))
    np.testing.assert_allclose(build(), WANT, rtol=1e-5)
    loaded.unload()
    assert "mine" not in names()


def test_a_step_that_raises_is_named_with_its_file(load):
    load('phase="fuse"', "1 / 0")
    with pytest.raises(BuildError, match=r"step 'mine' .*steps.py:5: ZeroDivisionError"):
        build()


@pytest.mark.parametrize("place", ['after="NoSuchPass"', 'phase="fuze"', ""])
def test_a_place_that_is_none_is_refused_when_loaded(load, place):
    with pytest.raises(PluginError, match=r"steps.py:3: step 'mine': "):
        load(place, "return module")
    assert "mine" not in names()


# --- the command line -------------------------------------------------------------------------


def test_inspect_prints_the_passes(file, capsys):
    assert main(["inspect", file, "--passes", "--target", "llvm", "--opt-level", "1"]) == 0
    assert capsys.readouterr().out.strip() == str(pipeline.default(LLVM, 1))
    main(["inspect", file, "--passes", "--target", "llvm", "--format", "json"])
    assert [row["name"] for row in json.loads(capsys.readouterr().out)] == names()


def test_inspect_dumps_the_program_after_a_pass(file, capsys):
    llvm = ["--target", "llvm"]
    assert main(["inspect", file, *llvm, "--dump-after", "remove-unused"]) == 0
    assert "Gemm" in capsys.readouterr().out
    assert main(["inspect", file, *llvm, "--dump-after", "FuseTIR"]) == 0
    text = capsys.readouterr().out
    assert "fused_" in text and "is_scheduled" not in text
    assert main(["inspect", file, *llvm, "--dump-after", "FuseTyre"]) == 2
    error = capsys.readouterr().err
    assert "no pass 'FuseTyre' (is 'FuseTIR' meant?); there are inline-functions" in error


def test_inspect_times_the_passes(file, capsys):
    main(["inspect", file, "--time-passes", "--target", "llvm", "--format", "json"])
    report = json.loads(capsys.readouterr().out)
    assert [row["name"] for row in report["passes"]] == [*names(), "compilation"]
    assert all(row["seconds"] >= 0 for row in report["passes"])
    main(["inspect", file, "--time-passes", "--target", "llvm"])
    assert "FuseTIR" in capsys.readouterr().out


def test_build_verifies_on_request(file, tmp_path):
    out = str(tmp_path / "model.tvmx")
    argv = ["build", file, "-o", out, "--target", "llvm", "--opt-level", "1"]
    assert main([*argv, "--verify", "each-pass"]) == 0


def test_each_pass_is_verified_on_narrow_inputs():
    model = onnx.parser.parse_model(
        '<ir_version: 11, opset_import: ["" : 21]> '
        "g (int4[3] x) => (int8[3] y) { a = Cast <to = 3> (x)  y = Neg (a) }"
    )
    x = np.array([-8, 0, 7], ml_dtypes.int4)
    built = convert_and_build(model, "llvm", opt_level=1, verify="each-pass", feeds={"x": x})
    np.testing.assert_array_equal(built(x), [8, 0, -7])
