"""Branches of an If as functions, which passes see as they see ``main``.

In a block within another TVM does not plan memory, and FuseOps ends with an error at a match_cast.

Before: ``if c: <block that reads x and the dim n>``
After:  ``if c: branch(x, R.shape([n]))``, where ``branch`` is the block
"""

import tvm
from tvm import relax

__all__ = ["outline_branches"]


@tvm.transform.module_pass(opt_level=0, name="OutlineBranches")
def outline_branches(module, _context):
    """The module pass, before operators become kernels."""
    mutator = _Outlined(module)
    for symbol, func in module.functions_items():
        if isinstance(func, relax.Function):
            mutator.builder_.update_func(symbol, mutator.visit_expr(func))
    return mutator.builder_.get()


@relax.expr_functor.mutator
class _Outlined(relax.PyExprMutator):
    def visit_if_(self, op):
        condition = self.visit_expr(op.cond)
        branches = map(self.visit_with_new_scope, (op.true_branch, op.false_branch))
        return relax.If(condition, *map(self._called, branches))

    def _called(self, branch: relax.SeqExpr) -> relax.SeqExpr:
        if not any(block.bindings for block in branch.blocks):
            return branch
        read = list(relax.analysis.free_vars(branch))
        func = relax.Function(read, branch, branch.ty, is_pure=False)
        dims = list(relax.analysis.free_symbolic_vars(func))
        if dims:
            sizes = relax.Var("sizes", relax.ShapeType(dims))
            func = relax.Function([*read, sizes], branch, branch.ty, is_pure=False)
            read.append(relax.ShapeExpr(dims))
        own = relax.utils.copy_with_new_vars(func)
        call = relax.Call(self.builder_.add_func(own, "branch"), read)
        result = relax.Var("result", branch.ty)
        return relax.SeqExpr([relax.BindingBlock([relax.VarBinding(result, call)])], result)
