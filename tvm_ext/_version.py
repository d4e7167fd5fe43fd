"""The version of tvm_ext, in one place."""

__version__ = "0.1.0"
