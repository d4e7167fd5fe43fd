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
