"""Any ONNX model into fast native code with Apache TVM."""

from ._version import __version__
from .build import convert_and_build
from .model import CompiledModel

__all__ = ["CompiledModel", "__version__", "convert_and_build"]
