"""Common subexpressions, except in kernels where TVM would define a name behind its first use."""

import tvm
from tvm import IRModule, tirx

__all__ = ["common_subexpressions"]

_ELIMINATE = tirx.transform.CommonSubexprElim()


@tvm.transform.module_pass(opt_level=0, name="CommonSubexpressions")
def common_subexpressions(module: IRModule, _context: object) -> IRModule:
    """The module pass, on lowered kernels.

    TVM looks for the first use among the places that it has counted, and replaces more than those:
    a remainder within an index that as a whole is common, too.
    """
    eliminated = _ELIMINATE(module)
    functions = {}
    for symbol, after in eliminated.functions_items():
        before = module[symbol.name_hint]
        functions[symbol] = after if _in_order(after) or not _in_order(before) else before
    return IRModule(functions, attrs=eliminated.attrs)


def _in_order(function: object) -> bool:
    """Whether every name is defined once, before it is used."""
    if not isinstance(function, tirx.PrimFunc):
        return True
    try:
        tirx.analysis.undefined_vars(function.body, list(function.params))
    except tvm.error.InternalError:  # the only answer of the analysis where that does not hold
        return False
    return True
