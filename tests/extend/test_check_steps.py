"""check-op on steps: what moves an answer is named, what changes nothing is told."""

import pytest

from tvm_ext import extend
from tvm_ext.emulator import NO_COMPILER
from tvm_ext.extend import step_contract

STEPS = """
from tvm_ext.extend import step


@step("idle", after="remove-unused")
def idle(model):
    return model


@step("swap", phase="import", target={target!r})
def swap(model):
    for node in model.graph:
        if node.op_type == "Greater":
            node.op_type = {other!r}
    return model
"""


@pytest.fixture
def findings(plugin, monkeypatch):
    """What check says of the steps on the smallest probe, by step."""
    monkeypatch.setattr(step_contract, "_PROBES", {"integers": (step_contract._INTEGERS, ())})

    def check(**choices):
        report = extend.check(plugin(STEPS.format(**choices), "steps.py"))
        return {
            name: [f for f in report.findings if f.operator == f"step {name}"]
            for name in ("idle", "swap")
        }

    return check


def test_a_step_that_moves_an_answer_fails_alone(findings):
    found = findings(target="llvm", other="Less")
    assert all(f.passed and f.detail == "changes nothing here" for f in found["idle"])
    assert not any(finding.passed for finding in found["swap"])
    assert "step 'swap' of phase 'import'" in found["swap"][0].detail
    assert "moves output 'y'" in found["swap"][0].detail


def test_a_step_that_keeps_the_answer_passes(findings):
    found = findings(target="llvm", other="GreaterOrEqual")
    assert found["swap"] and all(f.passed and f.error == 0.0 for f in found["swap"])


@pytest.mark.skipif(NO_COMPILER is not None, reason=str(NO_COMPILER))
def test_a_step_of_cuda_is_checked_on_its_kernels(findings):
    [finding] = findings(target="cuda", other="Less")["swap"]
    assert finding.check == "cuda on the CPU"
    assert not finding.passed and "off by" in finding.detail
