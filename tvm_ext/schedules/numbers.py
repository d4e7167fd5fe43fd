"""Numbers of rules that another machine may want otherwise, and what tuning tries in their place.

A rule that has such numbers is a frozen dataclass whose fields are made by :func:`number`. What
threads share is none of them: it is the same along a chain of kernels, so that tensors stay in the
core that made them, and a kernel by itself does not show what that saves.
"""

from collections.abc import Iterator
from dataclasses import field, fields, is_dataclass
from typing import Any

from tvm.s_tir.dlight.base import ScheduleRule

__all__ = ["NEVER", "changed", "number", "others"]

#: A threshold that nothing reaches.
NEVER = 1 << 62

_OTHERS = "others"


def number(default: Any, *others: Any) -> Any:
    """A field of a rule: the value that builds take, and ``others`` that tuning measures."""
    return field(default=default, metadata={_OTHERS: others})


def others(rule: ScheduleRule) -> Iterator[tuple[str, tuple]]:
    """(field, values to try) of each number of ``rule``."""
    if is_dataclass(rule):
        for each in fields(rule):
            yield each.name, each.metadata[_OTHERS]


def changed(rule: ScheduleRule) -> dict[str, Any]:
    """The numbers of ``rule`` that are not those that builds take."""
    if not is_dataclass(rule):
        return {}
    values = ((each, getattr(rule, each.name)) for each in fields(rule))
    return {each.name: value for each, value in values if value != each.default}
