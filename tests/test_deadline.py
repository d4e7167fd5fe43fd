"""Code that loops is stopped and named, in Python and where TVM calls it; other code is left."""

import threading
import time

import numpy as np
import pytest
import tvm
from onnxscript.rewriter import RewriteRule, RewriteRuleSet
from tvm import relax
from tvm.s_tir import dlight as dl

from tests.oracle import node_model
from tvm_ext import convert_and_build, deadline, extend, pipeline, targets
from tvm_ext.errors import BuildError
from tvm_ext.extend import plugin

X = np.ones((2, 3), "float32")
SOON = 0.3


def busy(_=None):
    while True:
        time.sleep(0.01)


def swallowing(_):
    """Gives up at the third exception."""
    for _ in range(3):
        try:
            busy()
        except BaseException as error:  # noqa: BLE001  that is the point
            last = error
    raise last


@tvm.transform.module_pass(opt_level=0, name="Busy")
def module_pass(_module, _context):
    busy()


@relax.expr_functor.mutator
class Visitor(relax.PyExprMutator):
    def visit_call_(self, _call):
        busy()


def visiting(module):
    Visitor(module).visit_expr(module["main"])


class Rule(dl.base.ScheduleRule):
    def apply(self, _func, _target, _tunable):
        busy()


def growing(model):
    """Each Neg becomes two operators, one of which is a Neg."""
    rule = RewriteRule(lambda op, x: op.Neg(x), lambda op, x: op.Neg(op.Abs(x)))
    RewriteRuleSet([rule]).apply_to_model(model)


LOOPS = {
    "function": (busy, {"phase": "fuse"}),
    "swallows": (swallowing, {"phase": "fuse"}),
    "module pass": (module_pass, {"phase": "fuse"}),
    "visitor": (visiting, {"phase": "select"}),
    "schedule rule": (Rule(), {"before": "ScheduleKernels"}),
    "onnx rewrite": (growing, {"phase": "import"}),
}


@pytest.mark.parametrize("name", LOOPS)
def test_a_step_that_loops_is_named(name):
    run, anchor = LOOPS[name]
    before = convert_and_build(node_model("Neg", [X]), "llvm")
    steps = pipeline.default(targets.resolve("llvm"))
    steps = steps.insert("mine", run, **anchor, seconds=SOON)
    with pytest.raises(BuildError, match=r"'mine' of phase .*py:\d+.* not finished after 0.3 s"):
        convert_and_build(node_model("Neg", [X]), steps=steps)
    np.testing.assert_array_equal(before(X), -X)
    np.testing.assert_array_equal(convert_and_build(node_model("Abs", [-X]), "llvm")(-X), X)


def test_the_line_that_ran_is_told_in_any_thread():
    seen = []

    def build():
        steps = pipeline.default(targets.resolve("llvm"))
        try:
            convert_and_build(
                node_model("Neg", [X]),
                steps=steps.insert("mine", busy, phase="fuse", seconds=SOON),
            )
        except BuildError as error:
            seen.append(str(error))

    thread = threading.Thread(target=build)
    thread.start()
    thread.join()
    line = busy.__code__.co_firstlineno
    assert f"test_deadline.py:{line})" in seen[0]
    assert f"running {__file__}:{line + 2}:" in seen[0]


def test_a_plugin_says_how_long_its_step_may_take():
    @extend.step("loops", phase="fuse", seconds=SOON)
    def loops(module):
        return busy() or module

    try:
        with pytest.raises(BuildError, match=r"step 'loops' of phase 'fuse' \(.*is not finished"):
            convert_and_build(node_model("Neg", [X]), "llvm")
    finally:
        plugin.INTERACTIVE.steps.pop("loops").close()
    np.testing.assert_array_equal(convert_and_build(node_model("Neg", [X]), "llvm")(X), -X)


def test_what_is_finished_in_time_is_left_alone():
    before = threading.active_count()
    for _ in range(200):
        assert deadline.within(10, lambda: 7, __file__) == 7
    with pytest.raises(ZeroDivisionError):
        deadline.within(10, lambda: 1 // 0, __file__)
    assert threading.active_count() == before


def test_what_ends_as_the_time_does_ends_in_one_way():
    """No exception is left behind for the code that follows."""
    for k in range(200):
        try:
            assert deadline.within(0.002, lambda k=k: time.sleep(0.0015 + k * 5e-6), "") is None
        except deadline.Overrun:
            continue
    time.sleep(0.01)
