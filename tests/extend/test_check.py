"""check-op: what is right passes, and each kind of wrong is found and named."""

import json
import re
from pathlib import Path

import numpy as np
import onnx
import pytest

from tests.oracle import node_model
from tvm_ext import convert_and_build, extend
from tvm_ext.cli import main
from tvm_ext.emulator import NO_COMPILER
from tvm_ext.errors import BuildError
from tvm_ext.extend import kernels, samples

from .conftest import TWICE

EXAMPLE = Path(__file__).parents[2] / "examples" / "plugins" / "instance_norm.py"


def failures(report):
    return {(finding.check, finding.detail) for finding in report.failures}


@pytest.fixture
def one_size(monkeypatch):
    """Families give one sample per dtype."""
    monkeypatch.setattr(samples, "EXTENTS", ((3, 5, 1, 7),))


def test_the_contract_of_a_right_operator_holds(plugin, one_size):
    report = extend.check(plugin())
    assert report.passed, report
    checks = {finding.check for finding in report.findings}
    assert checks == {
        "signature",
        "llvm, all levels",
        "symbolic dims",
        "fused",
        "cuda on the CPU",
        "export to C",
    }
    assert json.loads(report.to_json())["passed"]


@pytest.mark.skipif(NO_COMPILER is not None, reason=str(NO_COMPILER))
def test_the_example_is_one_short_file_that_passes(one_size):
    assert len(EXAMPLE.read_text().splitlines()) <= 80
    loaded = extend.load(EXAMPLE)
    try:
        report = extend.check(loaded)
    finally:
        loaded.unload()
    assert report.passed, report
    assert {f.check for f in report.findings} >= {"llvm schedule", "cuda schedule"}
    assert not any("declines" in finding.detail for finding in report.findings)


@pytest.mark.parametrize(
    "right, wrong, message",
    [  # of TWICE
        ("    return factor * x\n", "    return 2.5 * x\n", "opt level 0: output 0 is off by"),
        ("    return factor * x\n", "    return x[:1]\n", r"output 0 has shape \(\d"),
        (
            "    return factor * x\n",
            "    return x > 0\n",
            "output 0 is float32, by the reference bool",
        ),
        ("x(*i) *", "x(*i).astype('float64') *", r"output 0 is float64, by the reference float32"),
        (
            "x(*i) * te.const(factor, x.dtype)",
            "x(*i).astype('int32')",
            "output 0 is int32, by the reference float32",
        ),
        (
            "te.compute(x.shape, lambda *i: x(*i)",
            "te.compute((1, *x.shape), lambda _, *i: x(*i)",
            r"output 0 has shape \(1, 3, 5\), by the reference \(3, 5\)",
        ),
        ("    return bb.emit_te", "    bb.emit_te", "the converter returned NoneType"),
        (
            "    return bb.emit_te(",
            "    return x, bb.emit_te(",
            r"twice.py:\d+: the converter returned 2 outputs, the schema has 1",
        ),
        (
            "    return bb.emit_te",
            "    raise SystemExit(3)\n    return bb.emit_te",
            r"twice.py:\d+: SystemExit",
        ),
        ("x(*i) *", "x(*i, 7) *", r"twice.py:\d+: ValueError: .*provide 2 index"),
        ('twice.shapes("x[n, c]")', "twice.samples(lambda random: [3])", "yields int, no extend"),
        ("    return factor * x\n", "    return x, x\n", "2 outputs, the schema has 1"),
        ("    return factor * x\n", "    return 1 // 0\n", r"twice.py:\d+: ZeroDivisionError"),
        ("def _(x, *, factor=2.0)", "def _(x, *, factor=1.0)", "the reference takes"),
        ("@twice.reference\n", "", "declares no @reference"),
        ('twice.shapes("x[n, c]")', "", "declares no samples"),
        ('twice.shapes("x[n, c]")', "twice.samples(lambda random: [])", "yield no sample"),
        ('twice.shapes("x[n, c]")', "twice.samples(lambda random: 1 / 0)", "ZeroDivisionError"),
        (
            "    return bb.emit_te",
            '    raise NotImplementedError("no")\n    return bb.emit_te',
            "no",
        ),
    ],
)
def test_a_wrong_operator_is_found(plugin, one_size, monkeypatch, right, wrong, message):
    monkeypatch.setattr("tvm_ext.extend.contract.NO_COMPILER", "left out here")
    assert right in TWICE
    report = extend.check(plugin(TWICE.replace(right, wrong)))
    assert not report.passed
    assert any(re.search(message, finding.detail) for finding in report.failures), report


SCHEMA = """
from onnx import defs, helper

port = defs.OpSchema.FormalParameter
SCHEMA = defs.OpSchema(
    "Twice",
    "com.acme",
    1,
    inputs=[port("x", "T")],
    outputs=[port("y", "T")],
    type_constraints=[("T", ["tensor(float)"], "")],
    attributes=[defs.OpSchema.Attribute("factor", helper.make_attribute("factor", 2.0))],
)


def inferred(context):
    context.set_output_type(0, context.get_input_type(0))


SCHEMA.set_type_and_shape_inference_function(inferred)
""" + TWICE.replace('domain="com.acme"', 'domain="com.acme", schema=SCHEMA')


@pytest.mark.parametrize(
    "right, wrong, message",
    [
        ("SCHEMA", "SCHEMA", None),
        ('"factor", 2.0', '"factor", 3.0', "factor defaults to 2.0, in the schema to 3.0"),
        (
            'Attribute("factor"',
            'Attribute("scale"',
            r"only one .* attributes \['factor', 'scale'\]",
        ),
        ('[port("x", "T")]', '[port("x", "T"), port("z", "T")]', "1 inputs, the schema has 2"),
        (
            '[port("y", "T")]',
            '[port("y", "T"), port("z", "T")]',
            "the schema.s inference gives none",
        ),
        ("tensor(float)", "tensor(int32)", r"input 0 is tensor\(float\), by the schema one of"),
        ("context.get_input_type(0))", "helper.make_tensor_type_proto(1, [7]))", r"declared \[7\]"),
        (
            "    context.set",
            "    1 / 0\n    context.set",
            r"not known: .*twice.py:\d+: ZeroDivision",
        ),
        ("    context.set", "    return\n    context.set", "the schema's inference gives none"),
    ],
)
def test_a_schema_that_does_not_fit_is_found(plugin, one_size, monkeypatch, right, wrong, message):
    monkeypatch.setattr("tvm_ext.extend.contract.NO_COMPILER", "left out here")
    assert right in SCHEMA
    report = extend.check(plugin(SCHEMA.replace(right, wrong)))
    assert report.passed == (message is None), report
    found = [finding.detail for finding in report.failures]
    assert message is None or any(re.search(message, detail) for detail in found), report


TRIPLE = (
    TWICE
    + """
from tvm.s_tir import Schedule
from tvm.s_tir import dlight as dl


@twice.schedule("{kind}")
class Triple(dl.base.ScheduleRule):
    def apply(self, func, target, _):
        x = te.placeholder((3, 5), "float32")
        y = te.compute(x.shape, lambda *i: x(*i) * te.const(3, "float32"), "triple")
        sch = Schedule(te.create_prim_func([x, y]))
        rows, columns = sch.get_loops(sch.get_sblock("triple"))
        sch.{first}
        return sch
"""
)


@pytest.mark.skipif(NO_COMPILER is not None, reason=str(NO_COMPILER))
@pytest.mark.parametrize(
    "kind, first, check, message",
    [
        ("llvm", "parallel(rows)", "llvm, all levels", r"opt level 2: output 0 is off by"),
        ("cuda", "bind(rows, 'blockIdx.x')", "cuda on the CPU", "opt level 3: output 0 is off by"),
        ("cuda", "unroll(columns)", "cuda on the CPU", "a block runs outside of all threads"),
    ],
)
def test_a_schedule_that_is_wrong_is_named(
    plugin, one_size, monkeypatch, kind, first, check, message
):
    if kind == "llvm":
        monkeypatch.setattr("tvm_ext.extend.contract.NO_COMPILER", "left out here")
    text = TRIPLE.replace("{kind}", kind).replace("{first}", first)
    report = extend.check(plugin(text.replace('x[n, c]")', 'x[3, 5]")')))
    details = [finding.detail for finding in report.failures if finding.check == check]
    assert len(details) == 1, report
    assert re.match(rf".*schedule .*twice.py:\d+: .*{message}", details[0])


BOTH = """\
from tvm import te

from tvm_ext.extend import operator


@operator("Both", domain="com.acme", outputs=2)
def both(bb, x, y=None):
    def compute(x, *y):
        low = te.compute(x.shape, lambda *i: x(*i) + (y[0](*i) if y else x(*i)), "low")
        return low, te.compute(x.shape, lambda *i: x(*i) > x(*i[:-1], 0), "high")

    return bb.emit_te(compute, *(t for t in (x, y) if t is not None))


@both.reference
def _(x, y=None):
    return x + (x if y is None else y), x > x[..., :1]


both.shapes("x[n, 2 * c], y[n, 2 * c]")
both.shapes("x[n, c]", dtypes=["uint8"])
"""


def test_several_outputs_and_an_optional_input(plugin, one_size, monkeypatch):
    monkeypatch.setattr("tvm_ext.extend.contract.NO_COMPILER", "left out here")
    report = extend.check(plugin(BOTH, "both.py"))
    assert report.passed, report
    assert "float32[3, 10] float32[3, 10]" in {finding.case for finding in report.findings}
    assert sum(finding.check == "fused" for finding in report.findings) == 2


SCHEDULED = (
    TWICE
    + '''

@twice.schedule("{kind}")
def mine(sch, target):
    """Loops over [n, c]."""
    block = sch.get_sblock("twice")
    n, c = sch.get_loops(block)
    {body}
'''
)


def scheduled(kind, body):
    return SCHEDULED.replace("{kind}", kind).replace("{body}", body)


def one_node(shape=(3, 4)):
    return node_model("Twice", [np.ones(shape, "float32")], domain="com.acme", opset=1)


def test_a_schedule_takes_its_kernel_from_level_2(plugin):
    plugin(scheduled("llvm", "sch.annotate(n, 'mine', 1); sch.unroll(c)"))
    for level in range(4):
        text = convert_and_build(one_node(), "llvm", opt_level=level).sources()["schedule"]
        assert ("unroll" in text) == (level >= kernels.LEVEL)


def test_a_schedule_sees_only_kernels_of_its_operator(plugin):
    plugin(scheduled("llvm", "sch.get_sblock('no such block')"))
    x = np.ones((3, 4), "float32")
    np.testing.assert_array_equal(convert_and_build(node_model("Neg", [x]), "llvm")(x), -x)


def test_a_schedule_that_declines_leaves_the_kernel_to_the_next(plugin, one_size):
    loaded = plugin(scheduled("llvm", 'raise NotImplementedError("not mine")'))
    x = np.ones((3, 4), "float32")
    np.testing.assert_array_equal(convert_and_build(one_node(), "llvm")(x), 2 * x)
    report = extend.check(loaded)
    assert failures(report) == {("llvm schedule", "declines its own kernel: not mine")}


def test_a_schedule_that_raises_is_named(plugin):
    plugin(scheduled("llvm", "1 / 0"))
    with pytest.raises(
        BuildError, match=r"llvm schedule of com.acme.Twice-1, .*twice.py:2\d: Zero"
    ):
        convert_and_build(one_node(), "llvm")


def test_a_schedule_that_breaks_symbolic_dims_is_named(plugin, one_size):
    report = extend.check(plugin(scheduled("llvm", "sch.vectorize(c)")))
    assert {check for check, _ in failures(report)} == {"symbolic dims"}
    assert all("schedule " in detail and "twice.py:2" in detail for _, detail in failures(report))


def test_a_cuda_schedule_without_threads_is_named(plugin):
    plugin(scheduled("cuda", "sch.unroll(c)"))
    with pytest.raises(BuildError, match=r"cuda schedule of com.acme.Twice-1, .*twice.py:2\d: "):
        convert_and_build(one_node(), "cuda")


# --- the command line -------------------------------------------------------------------------


def test_the_scaffold_passes_its_own_check(tmp_path, capsys, one_size):
    argv = ["new-op", "ScaledTanh", "--domain", "com.acme", "--output-dir", str(tmp_path)]
    assert main(argv) == 0
    assert sorted(p.name for p in tmp_path.iterdir()) == ["scaled_tanh.py", "test_scaled_tanh.py"]
    before = {path: path.read_text() for path in tmp_path.iterdir()}
    capsys.readouterr()

    assert main(argv) == 2
    assert "File exists" in capsys.readouterr().err
    assert {path: path.read_text() for path in tmp_path.iterdir()} == before

    path = tmp_path / "scaled_tanh.py"
    assert main(["check-op", str(path), "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["passed"]
    extend.load(path).unload()


def test_a_scaffold_is_two_files_or_none(tmp_path, capsys):
    (tmp_path / "test_twice.py").touch()
    assert main(["new-op", "Twice", "--domain", "com.acme", "--output-dir", str(tmp_path)]) == 2
    assert [path.name for path in tmp_path.iterdir()] == ["test_twice.py"]


@pytest.mark.parametrize(
    "name, domain", [("no name", "com.acme"), ("Good", "no domain"), ("1", "")]
)
def test_a_scaffold_needs_names(name, domain, tmp_path, capsys):
    assert main(["new-op", name, "--domain", domain, "--output-dir", str(tmp_path)]) == 2
    assert list(tmp_path.iterdir()) == []


def test_check_op_fails_with_exit_code_1(tmp_path, capsys, monkeypatch):
    path = tmp_path / "wrong.py"
    path.write_text(TWICE.replace("factor * x", "factor + x"))
    monkeypatch.setattr("tvm_ext.extend.contract.NO_COMPILER", "left out here")
    assert main(["check-op", str(path)]) == 1
    assert "FAILED" in capsys.readouterr().out
    extend.load(path).unload()
    path.write_text("1 / 0")
    assert main(["check-op", str(path)]) == 2
    assert "wrong.py:1: ZeroDivisionError" in capsys.readouterr().err


def test_a_command_takes_a_plugin(tmp_path, plugin, capsys):
    loaded = plugin()
    onnx.save(one_node(), tmp_path / "model.onnx")
    loaded.unload()
    file = str(tmp_path / "model.onnx")
    assert main(["inspect", file]) == 0
    assert "unsupported 1 nodes" in capsys.readouterr().out
    for command in ("inspect", file), ("run", file, "--target", "llvm"):
        assert main([*command, "--plugin", str(tmp_path / "twice.py")]) == 0
    assert "unsupported none" in capsys.readouterr().out
    extend.load(tmp_path / "twice.py").unload()
