"""A file to start an operator from, and its test."""

from __future__ import annotations

import keyword
import os
import re
from collections.abc import Collection
from pathlib import Path

from ..errors import OutputPathError, PluginError

__all__ = ["TEST", "new_operator", "python_name", "write_new"]

_OPERATOR = '''\
"""{op_type} of {domain}: x * tanh(alpha * x)."""

import numpy as np
from tvm import te

from tvm_ext.extend import operator


def compute_{name}(x, alpha):
    """What it computes: ``x[...]`` of any shape, for any target."""

    def element(*index):
        value = x(*index)
        return value * te.tanh(value * te.const(alpha, x.dtype))

    return te.compute(x.shape, element, "{name}")


@operator("{op_type}", domain="{domain}")
def {name}(bb, x, *, alpha=1.0):
    """The converter: inputs by position, attributes by keyword with their defaults."""
    if not bb.dtype(x).startswith("float"):
        raise NotImplementedError(f"dtype {{bb.dtype(x)}}, needs floats")
    return bb.emit_te(compute_{name}, x, alpha)


@{name}.reference
def _(x, *, alpha=1.0):
    """What it means; floats come widened to float64."""
    return x * np.tanh(alpha * x)


{name}.shapes("x[n, c]", alpha=[1.0, 0.5], dtypes=["float32", "float64", "float16"])
{name}.shapes("x[n, c, h, w]")

# The built-in schedules serve every kernel. For one of its own:
#
#     @{name}.schedule("llvm")
#     def _(sch, target):
#         sch.parallel(sch.get_loops(sch.get_sblock("{name}"))[0])
'''

TEST = '''\
"""{full}: the contract of its plugin."""

from pathlib import Path

from tvm_ext import extend


def test_the_contract_holds():
    report = extend.check(extend.load(Path(__file__).with_name("{name}.py")))
    assert report.passed, report
'''


def new_operator(op_type: str, domain: str, folder: str | os.PathLike = ".") -> tuple[Path, Path]:
    """Write a plugin that works, to be changed, and its test; the two paths.

    Raises:
        PluginError: a name is none.
        OutputPathError: a file is there, or cannot be written; then neither is.
    """
    if not re.fullmatch(r"\w[\w.-]*", domain):
        raise PluginError(f"domain {domain!r} is not a name such as com.acme")
    name = python_name(op_type, f"operator {op_type!r}", {"np", "te"})
    return write_new(folder, name, _OPERATOR, TEST, op_type=op_type, domain=domain, full=op_type)


def python_name(name: str, what: str, taken: Collection[str]) -> str:
    """``name`` in snake case, for a function and its file.

    Raises:
        PluginError: it is none, or means something already.
    """
    if not name.isidentifier():
        raise PluginError(f"{what} is not a name")
    own = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()
    if keyword.iskeyword(own) or own in taken:
        raise PluginError(f"{what} would be {own!r}, which means something in Python")
    return own


def write_new(
    folder: str | os.PathLike, name: str, plugin: str, test: str, **fields: str
) -> tuple[Path, Path]:
    """Write NAME.py and test_NAME.py from templates of ``name`` and ``fields``; the two paths.

    Raises:
        OutputPathError: a file is there, or cannot be written; then neither is.
    """
    texts = {Path(folder, f"{name}.py"): plugin, Path(folder, f"test_{name}.py"): test}
    written: list[Path] = []
    try:
        for path, text in texts.items():
            with path.open("x", encoding="utf-8") as file:
                written.append(path)
                file.write(text.format(name=name, **fields))
    except OSError as error:
        for path in written:
            path.unlink()
        raise OutputPathError(f"cannot write {path}: {error.strerror or error}") from error
    first, second = texts
    return first, second
