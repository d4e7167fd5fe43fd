"""1x1 convolutions of gated channels as one kernel: the product never goes through memory.

Before: ``y = R.nn.conv2d(R.multiply(x, gate), w)``, gate ``[N, C, 1, 1]``
After:  ``y = unblock(gated_conv2d_blocked(block(x), packed_w, block(gate)))``

What a row of pixels needs is multiplied where it is used: the end of squeeze and excitation, whose
gates wait for all of ``x``.
"""

from __future__ import annotations

from dataclasses import replace

from tvm import relax
from tvm.target import Target

from tvm_ext.ops.conv2d_blocked import gated_conv2d_blocked, gated_conv2d_flat

from .blocked_conv2d import MIN_LANES, Dense, find_convolution
from .compound import Compound, Kernel, Match
from .facts import static_dims
from .graph import Graph

__all__ = ["GATED_CONV2D"]


def _find(graph: Graph, var: relax.Var) -> Match | None:
    """The convolution that is ``var``, and the product in front of it; static shapes."""
    conv = find_convolution(graph, var)
    if conv is None or conv["weight"].value.shape[2:] != (1, 1):
        return None
    product = conv["x"]
    call, dims = graph.call(product, "relax.multiply"), static_dims(product)
    if call is None or dims is None or graph.uses[product] != 1:
        return None
    for x, gate in (call.args, call.args[::-1]):
        if static_dims(x) == dims and static_dims(gate) == [*dims[:2], 1, 1] != dims:
            parts = {"x": x, "gate": gate, "weight": conv["weight"], "conv": conv["conv"]}
            return Match(graph, var, (product, var), parts)
    return None


def _kernel(match: Match, target: Target) -> Kernel | None:
    """None where tensors stay NCHW, or where channels of a group share a block with others."""
    grouped = Dense.matched(match, target)
    dense = None if grouped is None else Dense.best(grouped.conv, target)
    if dense is None or dense.conv.groups > 1 or dense.in_lanes < MIN_LANES:
        return None
    if match.dtype("gate") != match.dtype("x"):
        return None
    kernel = dense.direct(gated_conv2d_blocked, gated_conv2d_flat)
    x, weight = kernel.operands
    return replace(
        kernel,
        operands=(x, weight, match["gate"]),
        lanes={0: dense.in_lanes, 2: dense.in_lanes},
        name=gated_conv2d_blocked.__name__,
    )


GATED_CONV2D = Compound("GatedConv2d", _find, _kernel)
