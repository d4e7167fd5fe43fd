"""A pipeline is a value: steps are inserted, dropped and printed; a build respects it."""

import pytest

from tvm_ext import pipeline, targets


@pytest.fixture(scope="module")
def llvm():
    return targets.resolve("llvm")


def names(steps):
    return [step.name for step in steps.steps]


def test_a_step_goes_before_or_after_a_named_one_in_its_phase(llvm):
    base = pipeline.default(llvm, 3)
    before = base.insert("mine", lambda module: module, before="FuseOps")
    after = base.insert("mine", lambda module: module, after="FuseOps")
    at = names(base).index("FuseOps")
    assert names(before)[at : at + 2] == ["mine", "FuseOps"]
    assert names(after)[at : at + 2] == ["FuseOps", "mine"]
    assert {step.phase for step in after.steps if step.name == "mine"} == {"fuse"}
    assert "mine" not in names(base)


def test_a_step_is_dropped(llvm):
    base = pipeline.default(llvm, 3)
    assert names(base.without("FuseOps")) == [n for n in names(base) if n != "FuseOps"]


@pytest.mark.parametrize(
    "anchors", [{}, {"before": "FuseOps", "after": "FuseTIR"}, {"after": "NoSuchStep"}]
)
def test_an_anchor_is_one_known_step(llvm, anchors):
    with pytest.raises(ValueError, match=r"anchor|no step"):
        pipeline.default(llvm, 3).insert("mine", lambda module: module, **anchors)


def test_a_name_is_taken_once(llvm):
    with pytest.raises(ValueError, match="there already"):
        pipeline.default(llvm, 3).insert("FuseOps", lambda module: module, after="FuseTIR")


def test_levels_add_steps(llvm):
    levels = [set(names(pipeline.default(llvm, level))) for level in range(4)]
    assert "FuseOps" not in levels[0]
    assert "FuseOps" in levels[1]
    assert "BlockedLayout" not in levels[1]
    assert "BlockedLayout" in levels[2]
    assert levels[2] <= levels[3]


@pytest.mark.parametrize("level", [-1, 4, "3", None])
def test_a_level_is_0_to_3(llvm, level):
    with pytest.raises(ValueError, match="opt_level"):
        pipeline.default(llvm, level)


def test_it_prints_its_phases(llvm):
    text = str(pipeline.default(llvm, 3))
    assert [line.split()[0] for line in text.splitlines() if "FuseOps" in line] == ["fuse"]
