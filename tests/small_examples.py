"""The small examples as torch exports them, once in a process."""

from functools import cache

import onnx

from examples.export import to_onnx

__all__ = ["small_example"]


def small_example(
    name: str, exporter: str = "torchscript", *, dynamic: bool = False
) -> onnx.ModelProto:
    """A model of the caller's own; the options are those of ``to_onnx``."""
    return onnx.load_from_string(_exported(name, exporter, dynamic))


@cache
def _exported(name: str, exporter: str, dynamic: bool) -> bytes:
    model = to_onnx(name, exporter=exporter, size="small", dynamic=dynamic)
    return model.SerializeToString()
