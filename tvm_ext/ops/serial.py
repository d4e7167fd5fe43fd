"""Kernels that must run in order: serial loops written as statements."""

from contextlib import ExitStack

from tvm import te
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as T

__all__ = ["kernel", "nest", "when"]


def nest(shape, body):
    """Serial loops over ``shape`` around ``body(*index)``, as a statement."""
    with IRBuilder() as builder:
        with ExitStack() as loops:
            body(*[loops.enter_context(T.serial(0, extent)) for extent in shape])
        return builder.get()


def when(condition, body):
    """Emit ``body()`` under ``condition``, inside of a nest."""
    with T.If(condition), T.Then():
        body()


def kernel(shapes, dtypes, inputs, body, name):
    """The tensors that ``body(inputs, outputs) -> statement`` fills, one per shape and dtype."""
    return te.extern(shapes, inputs, body, name=name, dtype=dtypes)
