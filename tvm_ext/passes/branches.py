"""Branches of an If whose sizes are found at run time: blocks that FuseOps leaves alone.

FuseOps makes groups in the dataflow blocks of a branch, too, but ends with an internal error at a
match_cast there.

Before: ``if c: with R.dataflow(): s = R.match_cast(..., R.Shape([d]));  lv = f(x, d); ...``
After:  ``if c: s = R.match_cast(..., R.Shape([d]));  lv = f(x, d); ...``
"""

from collections.abc import Iterator

import tvm
import tvm_ffi
from tvm import relax

__all__ = ["open_branches"]


@tvm.transform.module_pass(opt_level=0, name="OpenBranches")
def open_branches(module, _context):
    """The module pass, before FuseOps: such blocks are no dataflow blocks."""
    for symbol, func in module.functions_items():
        if isinstance(func, relax.Function) and (blocks := list(_blocks_to_open(func))):
            module.update_func(symbol, _opened(func, blocks))
    return module


def _blocks_to_open(func: relax.Function) -> Iterator[relax.DataflowBlock]:
    branches: list[relax.Expr] = []
    tvm_ffi.structural_walk(
        func.body, (relax.If, lambda node: branches.extend([node.true_branch, node.false_branch]))
    )
    for block in (block for branch in branches for block in branch.blocks):
        casts = any(isinstance(binding, relax.MatchCast) for binding in block.bindings)
        if casts and isinstance(block, relax.DataflowBlock):
            yield block


def _opened(func: relax.Function, blocks: list[relax.DataflowBlock]) -> relax.Function:
    defined = {binding.var for block in blocks for binding in block.bindings}
    plain = {v: relax.Var(v.name, v.ty) for v in defined if isinstance(v, relax.DataflowVar)}

    def block(node: relax.DataflowBlock) -> relax.BindingBlock:
        own = any(binding.var in plain.values() for binding in node.bindings)
        return relax.BindingBlock(node.bindings) if own else node

    body = tvm_ffi.structural_map(
        func.body,
        ((relax.DataflowVar, lambda var: plain.get(var, var)), (relax.DataflowBlock, block)),
    )
    return relax.Function(func.params, body, func.ret_ty, func.is_pure, func.attrs)
