"""Branches of an If as functions, which passes see as they see ``main``.

In a block within another TVM does not plan memory, and FuseOps ends with an error at a match_cast.

Before: ``if c: <block that reads x and the dim n>``
After:  ``if c: branch(x, R.shape([n]))``, where ``branch`` is the block
"""

import tvm
import tvm_ffi
from tvm import relax
from tvm.relax.expr import _update_type

__all__ = ["outline_branches"]


@tvm.transform.module_pass(opt_level=0, name="OutlineBranches")
def outline_branches(module, _context):
    """The module pass, before operators become kernels."""
    builder = relax.BlockBuilder(module)  # not that of a mutator: there calls lose their shapes

    def called(branch: relax.SeqExpr) -> relax.SeqExpr:
        if not any(block.bindings for block in branch.blocks):
            return branch
        func, read = _function_of(branch)
        call = _typed(relax.Call(builder.add_func(func, "branch"), read), branch.ty)
        result = relax.Var("result", branch.ty)
        block = relax.BindingBlock([relax.VarBinding(result, call)])
        return _typed(relax.SeqExpr([block], result), branch.ty)

    def outlined(node: relax.If) -> relax.If:
        branches = map(called, (node.true_branch, node.false_branch))
        return _typed(relax.If(node.cond, *branches), node.ty)

    for symbol, func in module.functions_items():
        if isinstance(func, relax.Function):
            body = tvm_ffi.structural_map(func.body, (relax.If, outlined))
            if not body.same_as(func.body):
                whole = relax.Function(func.params, body, func.ret_ty, func.is_pure, func.attrs)
                builder.update_func(symbol, whole)
    return builder.get()


def _typed(expr: relax.Expr, ty: tvm.ir.Type) -> relax.Expr:
    _update_type(expr, ty)
    return expr


def _function_of(branch: relax.SeqExpr) -> tuple[relax.Function, list[relax.Expr]]:
    """The function that gives what ``branch`` does, and what it is called with."""
    read: list[relax.Expr] = list(relax.analysis.free_vars(branch))
    params = list(read)
    dims = list(
        relax.analysis.free_symbolic_vars(relax.Function(params, branch, branch.ty, is_pure=False))
    )
    if dims:
        params.append(relax.Var("sizes", relax.ShapeType(dims)))
        read.append(relax.ShapeExpr(dims))
    func = relax.Function(params, branch, branch.ty, is_pure=False)
    return relax.utils.copy_with_new_vars(func), read
