"""Static models as C source that people read: no TVM, no allocation, any C11 compiler."""

from .package import SourcePackage

__all__ = ["SourcePackage"]
