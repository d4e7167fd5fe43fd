"""Remembered answers about types: fewer questions, the same checks."""

import pytest
import tvm_ffi
from tvm import s_tir, te, tirx
from tvm.s_tir.schedule import _type_checker
from tvm_ext.patches.type_lookups import type_lookups_kept


@pytest.fixture
def kernel():
    x = te.placeholder((64,), name="x")
    return te.create_prim_func([x, te.compute((64,), lambda i: x[i] + 1, name="y")])


def test_each_annotation_is_taken_apart_once(kernel, monkeypatch):
    asked = []
    dispatcher = _type_checker._dispatcher
    monkeypatch.setattr(
        _type_checker, "_dispatcher", lambda hint: asked.append(hint) or dispatcher(hint)
    )
    with type_lookups_kept():
        for _ in range(3):
            sch = s_tir.Schedule(kernel)
            sch.split(sch.get_loops("y")[0], [None, 16])
    assert len(asked) == len(set(asked)) > 0


def test_types_are_still_checked(kernel):
    with type_lookups_kept():
        sch = s_tir.Schedule(kernel)
        with pytest.raises(TypeError, match="factors"):
            sch.split(sch.get_loops("y")[0], "sixteen")
        with pytest.raises(TypeError, match="callback type"):
            tvm_ffi.structural_walk(kernel, (dict[str, object], print))


def test_walks_find_the_types_that_they_ask_for(kernel):
    def loads():
        found = []
        tvm_ffi.structural_walk(kernel.body, (tirx.For, found.append))
        return len(found)

    with type_lookups_kept():
        assert loads() == loads() == 1


def test_the_functions_are_put_back():
    before = _type_checker._dispatcher, tvm_ffi.structural._callback_type_to_type_index
    with type_lookups_kept():
        assert _type_checker._dispatcher is not before[0]
    assert (_type_checker._dispatcher, tvm_ffi.structural._callback_type_to_type_index) == before
