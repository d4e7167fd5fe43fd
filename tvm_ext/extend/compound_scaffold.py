"""A file to start a compound operator from, and its test."""

from __future__ import annotations

import os
import re
from pathlib import Path

from ..errors import PluginError
from .scaffold import TEST, python_name, write_new

__all__ = ["new_compound"]

_COMPOUND = '''\
"""{full}: relu(x + bias) as one kernel that stores nothing between."""

from tvm import te, tirx
from tvm.relax.dpl import is_const, is_op, wildcard

from tvm_ext.extend import compound

# What it replaces, in Relax operators: `tvm-ext inspect model.onnx --dump-after DispatchSortScan`
# shows those of a model. `targets=["llvm"]` keeps it to some targets.
x, bias = wildcard(), is_const()
total = is_op("relax.add")(x, bias)
{name} = compound(
    "{full}",
    is_op("relax.nn.relu")(total),
    parts={{"x": x, "bias": bias, "total": total}},
)


@{name}.check
def _(m):
    """Which matches it takes: True, or the reason why not."""
    if "float" not in m.dtype():
        return f"dtype {{m.dtype()}}, needs floats"
    return m.dims("bias") == [m.dims()[-1]] if m.static else "symbolic shapes"


@{name}.attributes
def _(m):
    """What is noted of a match, for profiles and for compute."""
    return {{"columns": m.dims()[-1]}}


@{name}.compute
def _(x, bias, *, columns):
    """The parts by position, the attributes by keyword."""

    def element(*index):
        value = x(*index) + bias[index[-1] % columns]
        return tirx.Select(value < 0, tirx.const(0, x.dtype), value)  # keeps NaN

    return te.compute(x.shape, element, "{name}")


# The built-in schedules serve every kernel. For one of its own:
#
#     @{name}.schedule("llvm")
#     def _(sch, target):
#         sch.parallel(sch.get_loops(sch.get_sblock("{name}"))[0])

# What check-op tries it on: named dims run through sizes that hurt.
{name}.sample(
    "(float[n,c] x, float[c] b) => (float[n,c] y) {{ s = Add(x, b) y = Relu(s) }}",
    constants=["b"],
)
'''


def new_compound(name: str, folder: str | os.PathLike = ".") -> tuple[Path, Path]:
    """Write a plugin with a compound that works, to be changed, and its test; the two paths.

    ``name`` is as in "acme.bias_relu": what stands behind the last point names the files.

    Raises:
        PluginError: ``name`` is none.
        OutputPathError: a file is there, or cannot be written; then neither is.
    """
    if not re.fullmatch(r"\w[\w.-]*\.\w+", name):
        raise PluginError(f"compound {name!r} is not a name such as acme.bias_relu")
    short = python_name(name.rpartition(".")[2], f"compound {name!r}", {"te", "tirx", "x", "bias"})
    return write_new(folder, short, _COMPOUND, TEST, full=name)
