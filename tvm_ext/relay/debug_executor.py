"""``tvm.contrib.debugger.debug_executor``: a graph module that times each kernel."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import tvm

from tvm_ext.profile import Profile

from .build_module import ExecutorFactoryModule
from .graph_executor import GraphExecutor, GraphModule, connected
from .nd import NDArray
from .removed import removed

__all__ = ["GraphModuleDebug", "create"]


class GraphModuleDebug(GraphModule):
    """A graph module with :meth:`profile`; nothing is dumped to ``dump_root``."""

    def __init__(
        self,
        module: GraphExecutor,
        device: tvm.runtime.Device | Sequence[tvm.runtime.Device] | None = None,
        graph_json_str: str | None = None,
        dump_root: str | os.PathLike | None = None,
    ):
        super().__init__(module)

    def profile(self, collectors: object = None, **inputs: Any) -> Profile:
        """Run, and time each kernel; prints as a table.

        Raises:
            InputError: inputs do not fit, or one of symbolic shape is not set.
        """
        self.set_input(**inputs)
        return self.module.profile()

    def debug_get_output(self, node: object, out: NDArray | None = None) -> NDArray:
        """The value of a node: not offered.

        Raises:
            RemovedError: always; ``tvm_ext.debug.bisect`` compares the values of all nodes.
        """
        raise removed("relay.debug_executor.debug_get_output")


def create(
    graph_json_str: str,
    libmod: ExecutorFactoryModule,
    device: tvm.runtime.Device | Sequence[tvm.runtime.Device],
    dump_root: str | os.PathLike | None = None,
) -> GraphModuleDebug:
    """The debugger on a compiled model; arguments as for ``graph_executor.create``.

    Raises:
        OptionError: the graph is of another model, or ``libmod`` is no compiled model.
    """
    return GraphModuleDebug(connected(graph_json_str, libmod, device))
