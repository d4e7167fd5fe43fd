"""Checks in the VM: TVM's match_shape tells the texts of the frontend, and they are read back.

The VM computes all formulas of what it has just read at once, also those that divide by a number
that a check refuses next: no division by 0 may end the process.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import tvm
import tvm_ffi
from tvm import IRModule, relax, tirx
from tvm.ir.expr import StringImm

from ..checks import CHECKS, failure
from ..errors import RunError
from .divisions import DIVISIONS, by_no_zero
from .results import NO_MEMORY

__all__ = ["failures_told", "tell_checks"]

_FORMULAS = "shape_func"  # what VMShapeLower calls the kernels that it makes
_MATCH = "vm.builtin.match_shape"
_IS_NUMBER = 0  # TVM's kAssertEqualToImm: what it does with a dim
_MARK = "tvm_ext check "
# "Check failed: input_shape[i] == reg (0 vs. 1) : tvm_ext check [...] match_cast error, shape[0]"
_FAILED = re.compile(
    rf"\((-?\d+) vs\. (-?\d+)\) : {_MARK}(\[.*\]) match_cast error, +shape\[(\d+)\]", re.DOTALL
)


@tvm.transform.module_pass(opt_level=0, name="TellChecks")
def tell_checks(module: IRModule, _context: object) -> IRModule:
    """After VMShapeLower: the texts of checks in place of what it wants to be told."""
    texts = (module.attrs or {}).get(CHECKS, ())
    for symbol, func in module.functions_items():
        if isinstance(func, relax.Function):
            module.update_func(symbol, _Telling(texts).visit_expr(func))
        elif symbol.name_hint.startswith(_FORMULAS):
            module.update_func(symbol, _divided_safely(func))
    return module


def _divided_safely(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Formulas of which a quotient by 0 is one by 1."""
    body = tvm_ffi.structural_map(func.body, (DIVISIONS, by_no_zero))
    return tirx.PrimFunc(func.params, body, func.ret_type, func.attrs)


@relax.expr_functor.mutator
class _Telling(relax.PyExprMutator):
    def __init__(self, texts: Any):
        super().__init__()
        self._texts = texts

    def visit_call_(self, call):
        if not isinstance(call.op, relax.ExternFunc) or call.op.global_symbol != _MATCH:
            return call
        *others, how, number, context = call.args
        if "ty=R.Shape(" not in context.value or int(how) != _IS_NUMBER:
            return call  # of a tensor, or of sizes that it only reads
        told = StringImm(_MARK + json.dumps([str(text) for text in self._texts[int(number)]]))
        return relax.Call(call.op, [*others, how, number, told], call.attrs, call.ty_args)


@contextmanager
def failures_told() -> Iterator[None]:
    """What TVM raises because a check fails, or there is no memory, becomes a RunError."""
    try:
        yield
    except RunError:
        raise
    except RuntimeError as error:
        found = _FAILED.search(str(error))
        if found:
            given, wanted, texts, axis = found.groups()
            text = json.loads(texts)[int(axis)]
            raise failure(text, int(given), int(wanted)) from error
        if "bad_alloc" in str(error):
            raise RunError(NO_MEMORY) from error
        raise
