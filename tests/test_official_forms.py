"""One part of the official suite in the forms that ``test_official_suite.py`` does not run.

That is at opt_level 0, with symbolic dims, and with constants. ``CONFORMANCE_SHIFT=n`` chooses
another part; ``make conformance`` runs all of them.
"""

import numpy as np
import onnx
import pytest
import tvm

from tests.official_suite import CASES, FORMS, LEVELS, SHIFT, Task, exclusions, part
from tests.official_suite.forms import constant, symbolic
from tvm_ext.errors import TargetError

LISTED = {task: reason for form in FORMS for task, reason in exclusions(form).items()}
TASKS = [
    task
    for name in sorted(CASES)
    if part(name) == SHIFT
    for task in (Task(name, form, level) for form in FORMS for level in LEVELS)
    if task != Task(name) and (task.form == "plain" or task._replace(form="plain") not in LISTED)
]


def expected(task):
    """The parameter of a task; one that is listed must fail, those that crash are not run."""
    reason = LISTED.get(task)
    fails = pytest.mark.xfail(reason=reason, run=not str(reason).startswith("crash"))
    return pytest.param(
        task, marks=[fails] if reason else [], id=f"{task.name}-{task.form}-{task.level}"
    )


@pytest.mark.parametrize("task", [expected(task) for task in TASKS])
def test_a_case_in_another_form(task):
    task.run()


@pytest.mark.skipif(tvm.cuda(0).exist, reason="there is a CUDA device")
@pytest.mark.parametrize("form", FORMS)
def test_a_case_asks_for_its_device(form):
    with pytest.raises(TargetError, match="CUDA"):
        Task("test_relu_cpu", form, device="CUDA").run()


MODEL = onnx.parser.parse_model("""
    <ir_version: 3, opset_import: ["": 17]>
    graph (float[2, N] x, seq(float[3]) s, float[4] w) => (float[2, 4] y)
    <float[4] w = {1, 2, 3, 4}, float[2, 4] between>
    { between = Identity (x)  y = Add (between, w) }
""")


def test_symbolic_models_declare_no_size_but_those_of_initializers():
    shapes = [list(map(str, dims_of(info.type))) for info in symbolic(MODEL).graph.input]
    assert shapes == [["x_0_0", "N"], ["s_0_0"], ["4"]]
    assert [list(dims_of(info.type)) for info in symbolic(MODEL).graph.output] == [[None, None]]
    assert not symbolic(MODEL).graph.value_info


def dims_of(type_):
    tensor = (
        type_.sequence_type.elem_type.tensor_type
        if type_.HasField("sequence_type")
        else type_.tensor_type
    )
    for dim in tensor.shape.dim:
        kind = dim.WhichOneof("value")
        yield kind and getattr(dim, kind)


def test_of_constant_models_only_what_is_no_tensor_stays_an_input():
    x, s = np.ones((2, 4), "float32"), [np.zeros(3, "float32")]
    model, rest = constant(MODEL, [x, s])
    assert [info.name for info in model.graph.input] == ["s", "w"]
    assert [tensor.name for tensor in model.graph.initializer] == ["w", "x"]
    np.testing.assert_array_equal(onnx.numpy_helper.to_array(model.graph.initializer[1]), x)
    assert len(rest) == 1 and rest[0] is s


def test_the_lists_name_cases_and_no_case_twice():
    assert sorted({task.name for task in LISTED} - CASES.keys()) == []
    of_forms = [task for task in LISTED if task.form != "plain"]
    assert [task for task in of_forms if task._replace(form="plain") in LISTED] == []
