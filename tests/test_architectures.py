"""Every architecture that is exported is equal to onnxruntime: slow, and needs their packages."""

import pytest

from tests.architectures import FAMILIES, FORMS, Task, architectures

ARCHITECTURES = architectures()
TASKS = [
    Task(each.name, exporter, form)
    for each in ARCHITECTURES.values()
    for exporter in each.exporters
    for form in FORMS
    if form == "static" or each.dims
]


@pytest.mark.slow
@pytest.mark.parametrize("task", TASKS, ids=" ".join)
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
