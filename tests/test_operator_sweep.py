"""One part of the sweep over versions and element types, and what its restatements say.

``CONFORMANCE_SHIFT=n`` chooses another part; ``python -m tests.operator_sweep`` runs all.
"""

import numpy as np
import onnx
import pytest

from tests.official_suite import SHIFT, part
from tests.operator_sweep import batches
from tests.operator_sweep.restate import Unsayable, restated
from tests.operator_sweep.retype import converted
from tests.operator_sweep.variant import by_operator


@pytest.mark.parametrize(
    "batch",
    [pytest.param(b, id=b.name) for b in batches() if part(b.name) == SHIFT],
)
def test_a_batch(batch):
    batch.run()


def case(op_type, name):
    return next(v for v in by_operator()["", op_type] if v.name == name)


def attributes(variant):
    return {a.name: onnx.helper.get_attribute_value(a) for a in variant.node.attribute}


def test_inputs_become_attributes_and_attributes_inputs():
    old = restated(case("Slice", "slice_neg"), 1)
    assert attributes(old) == {"starts": [0], "ends": [-1], "axes": [1]}
    assert list(old.node.input) == ["x"] and [x.name for x in old.inputs] == ["x"]
    back = restated(old, 13)
    assert not attributes(back)
    assert [np.asarray(x.data).tolist() for x in back.inputs[1:]] == [[0], [-1], [1]]


def test_defaults_that_changed_are_said():
    assert attributes(restated(case("Softmax", "softmax_default_axis"), 11)) == {"axis": 2}


@pytest.mark.parametrize(
    "op_type, name, since, reason",
    [
        ("Softmax", "softmax_axis_0", 11, "joins the axes"),
        ("ArgMax", "argmax_keepdims_example_select_last_index", 11, "select_last_index"),
        ("Slice", "slice_neg_steps", 1, "steps are 1"),
        ("BatchNormalization", "batchnorm_example_training_mode", 9, "training_mode"),
    ],
)
def test_what_a_version_has_no_words_for_is_refused(op_type, name, since, reason):
    with pytest.raises(Unsayable, match=reason):
        restated(case(op_type, name), since)


def test_values_survive_their_conversion():
    x = np.array([[-1.5, 0.25, 3]])
    assert converted(x, np.dtype("int8")).tolist() == [[-6, 1, 12]]
    assert converted(x, np.dtype("uint8")).tolist() == [[6, 1, 12]]
    assert converted(np.array([-3, 300]), np.dtype("int8")).tolist() == [-3, 127]
    assert converted(x, np.dtype(bool)).tolist() == [[False, True, True]]
