"""Measure a compiled model against another engine: accuracy, latency, memory, start-up.

>>> report = tvm_ext.compare("model.onnx", batch=8)
>>> rich.print(report); report.plot("comparison.png"); report.agrees(1e-3)
"""

import sys
from types import ModuleType

from .measure import compare
from .result import Comparison, Machine, Side
from .statistics import Accuracy, Latency

__all__ = ["Accuracy", "Comparison", "Latency", "Machine", "Side", "compare"]


class _Callable(ModuleType):
    """``tvm_ext.compare(...)`` works whether this package was imported by name or not."""

    __call__ = staticmethod(compare)


sys.modules[__name__].__class__ = _Callable
