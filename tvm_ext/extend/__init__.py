"""Extend tvm_ext from one file of your own: operators, compounds, schedules, passes.

A plugin is a Python file, or a module of a package, that declares what it adds::

    from tvm_ext.extend import compound, operator, step

:func:`load` runs it: ``load("my_op.py")``, ``tvm-ext build --plugin my_op.py``, or by an entry
point of the group ``tvm_ext.plugins``. ``tvm-ext new-op`` writes a file to start from,
``tvm-ext check-op`` proves it right.
"""

from ..passes.fused import c_kernel
from ..passes.match import onnx_op
from .compound import CCode, Compound, Graph, Kernel, Match, compound, declined
from .compound_scaffold import new_compound
from .contract import check
from .operator import Operator, operator
from .plugin import Plugin, load, load_installed, unload
from .samples import Sample
from .scaffold import new_operator
from .steps import step

__all__ = [
    "CCode",
    "Compound",
    "Graph",
    "Kernel",
    "Match",
    "Operator",
    "Plugin",
    "Sample",
    "c_kernel",
    "check",
    "compound",
    "declined",
    "load",
    "load_installed",
    "new_compound",
    "new_operator",
    "onnx_op",
    "operator",
    "step",
    "unload",
]
