"""Plugins as files, unloaded when their test ends."""

import pytest

from tvm_ext import extend

TWICE = '''\
"""Twice its input."""

from tvm import te

from tvm_ext.extend import operator


@operator("Twice", domain="com.acme")
def twice(bb, x, *, factor=2.0):
    return bb.emit_te(
        lambda x: te.compute(x.shape, lambda *i: x(*i) * te.const(factor, x.dtype), "twice"), x
    )


@twice.reference
def _(x, *, factor=2.0):
    return factor * x


twice.shapes("x[n, c]")
'''


@pytest.fixture
def plugin(tmp_path):
    """Loads a plugin of the given text, by default the one that doubles."""
    loaded = []

    def load(text=TWICE, name="twice.py"):
        path = tmp_path / name
        path.write_text(text)
        loaded.append(extend.load(path))
        return loaded[-1]

    yield load
    for each in loaded:
        each.unload()
