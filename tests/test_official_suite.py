"""The official ONNX backend suite, unchanged, on ``tvm_ext.backend``.

Of its cases that write an operator as the function that defines it, a quarter runs here, which
``CONFORMANCE_SHIFT=n`` chooses; ``make conformance`` runs all of them.

A case in the exclusion list must fail: one that starts to pass has to leave the list. The count
of passing cases is printed at the end of the run (``conftest.py``).
"""

import pytest

from tests.official_suite import CASES, SHIFT, SUITES, Task, exclusions, part

EXCLUDED = exclusions()
EXPANDED_PARTS = 4


def leave_out_parts(suite):
    """Of the expanded cases of a unittest class, keep one part."""
    for name in [name for name in vars(suite) if "_expanded" in name]:
        if part(name) % EXPANDED_PARTS != SHIFT % EXPANDED_PARTS:
            delattr(suite, name)
    return suite


def mark_excluded(suite):
    """Expect the excluded cases of a unittest class to fail; those that crash are not run."""
    for name in [name for name in vars(suite) if Task(name) in EXCLUDED]:
        reason = EXCLUDED[Task(name)]
        mark = pytest.mark.xfail(reason=reason, run=not reason.startswith("crash"))
        setattr(suite, name, mark(getattr(suite, name)))
    return suite


globals().update({name: mark_excluded(leave_out_parts(suite)) for name, suite in SUITES.items()})


def test_the_exclusion_list_names_cases_of_the_suite():
    assert sorted({task.name for task in EXCLUDED} - CASES.keys()) == []
