"""A file to start an operator from, and its test."""

from __future__ import annotations

import keyword
import os
import re
from pathlib import Path

from ..errors import OutputPathError, PluginError

__all__ = ["new_operator"]

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

_TEST = '''\
"""{op_type}: the contract of its plugin."""

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
    if not op_type.isidentifier():
        raise PluginError(f"operator {op_type!r} is not a name")
    if not re.fullmatch(r"\w[\w.-]*", domain):
        raise PluginError(f"domain {domain!r} is not a name such as com.acme")
    name = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", op_type).lower()
    if keyword.iskeyword(name) or name in ("np", "te"):
        raise PluginError(
            f"operator {op_type!r} would be {name!r}, which means something in Python"
        )
    texts = {
        Path(folder, f"{name}.py"): _OPERATOR,
        Path(folder, f"test_{name}.py"): _TEST,
    }
    written: list[Path] = []
    try:
        for path, text in texts.items():
            with path.open("x", encoding="utf-8") as file:
                written.append(path)
                file.write(text.format(op_type=op_type, domain=domain, name=name))
    except OSError as error:
        for path in written:
            path.unlink()
        raise OutputPathError(f"cannot write {path}: {error.strerror or error}") from error
    plugin, test = texts
    return plugin, test
