"""Casts to a shape become reads that FuseOps sees.

It does not see that a cast reads its value: what is computed of the cast may become one kernel with
what the cast reads, and neither is computed before the other. A read that it sees keeps these
apart; it is dead code, and removed as such.

Before: ``v = R.call_tir(k, ...); c = R.match_cast(v, ...); w = f(c); R.call_tir(add, (v, w))``
After:  ``v = R.call_tir(k, ...); R.shape_of(v); c = R.match_cast(v, ...); ...``
"""

import tvm
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from .graph import Graph, visited

__all__ = ["visible_casts"]


@tvm.transform.module_pass(opt_level=0, name="VisibleCasts")
def visible_casts(module, _context):
    """The module pass, before FuseOps."""
    return visited(module, _Reads(module))


@mutator
class _Reads(PyExprMutator):
    """A read before each cast of a tensor that others read, too."""

    def __init__(self, module: tvm.IRModule):
        super().__init__(module)
        functions = [f for _, f in module.functions_items() if isinstance(f, relax.Function)]
        self._cast = set().union(*(_cast_and_read(Graph(function)) for function in functions))

    def visit_match_cast_(self, binding: relax.MatchCast) -> None:
        if binding.value in self._cast:
            self.builder_.emit(relax.op.shape_of(self.visit_expr(binding.value)))
        super().visit_match_cast_(binding)


def _cast_and_read(graph: Graph) -> set[relax.Var]:
    """The tensors that casts read, and others."""
    found = set()
    for var, readers in graph.readers.items():
        casts = [isinstance(graph.values[reader], relax.Var) for reader in readers]
        if any(casts) and not all(casts) and isinstance(var.ty, relax.TensorType):
            found.add(var)
    return found
