"""What TVM asks of a type is asked once.

Schedule primitives take each annotation of theirs apart on every call, and walks over expressions
those of their callbacks: a tenth of a build. Within ::

    with type_lookups_kept():
        sch.split(loop, [None, 16])

the answers are remembered; the checks stay.

Upstream: ``_dispatcher`` in ``tvm/s_tir/schedule/_type_checker.py`` (0.27), which compares an
annotation with each generic of ``typing``, and ``_callback_type_to_type_index`` in
``tvm_ffi/structural.py`` (0.1.14), which makes a schema of each type.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

from tvm.s_tir.schedule import _type_checker
from tvm_ffi import structural

from .replacement import of_attribute

__all__ = ["type_lookups_kept"]

_LOOKUPS = (
    of_attribute(_type_checker, "_dispatcher", cache),
    of_attribute(structural, "_callback_type_to_type_index", cache),
)


@contextmanager
def type_lookups_kept() -> Iterator[None]:
    """A context, for the whole process, in which questions about types are answered once."""
    annotations, callbacks = _LOOKUPS
    with annotations.open(), callbacks.open():
        yield
