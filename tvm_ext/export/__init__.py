"""Static models as C and C++ packages that need neither Python nor TVM.

>>> tvm_ext.export("resnet50.onnx", "out", shapes={"batch": 1})
"""

import sys
from types import ModuleType

from .package import export

__all__ = ["export"]


class _Callable(ModuleType):
    """``tvm_ext.export(...)`` works whether this package was imported by name or not."""

    __call__ = staticmethod(export)


sys.modules[__name__].__class__ = _Callable
