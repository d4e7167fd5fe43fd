"""Steps made of onnx_ir's own passes: constants to initializers, shared and unused nodes.

Before::

    c = Constant <value_float = 2.0> ()
    a = Relu(x)
    b = Relu(x)
    u = Exp(x)               read by no one
    y = Add(a, b)

After: ``c`` is an initializer::

    a = Relu(x)
    y = Add(a, a)
"""

import logging

import onnx_ir as ir
from onnx_ir.passes import common

from .fold import is_random

__all__ = ["lift_constants", "remove_unused", "share_common_subexpressions"]

_log = logging.getLogger(__name__)


def lift_constants(model: ir.Model) -> ir.Model:
    """Constants become initializers; initializers are no longer inputs with a default."""
    common.RemoveInitializersFromInputsPass()(model)
    common.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0)(model)
    return model


def share_common_subexpressions(model: ir.Model) -> ir.Model:
    """Compute equal nodes once. A model that draws random numbers is left as it is:
    the pass would draw once for two."""
    drawing = [n.op_type for n in ir.traversal.RecursiveGraphIterator(model.graph) if is_random(n)]
    if drawing:
        _log.debug("common subexpressions stay: the model has %s", ", ".join(sorted(drawing)))
    else:
        common.CommonSubexpressionEliminationPass()(model)
    return model


def remove_unused(model: ir.Model) -> ir.Model:
    """Drop nodes and initializers that no output depends on."""
    common.RemoveUnusedNodesPass()(model)
    return model
