"""Vectors of booleans in arrays whose every access is such a vector.

TVM makes the elements of such an array vectors of int8 and leaves what is stored and loaded as it
is. No statement like that can be made again.

Before: ``b: int8x2[1];  b[0] = x[0:2] < y[0:2];  z[0:2] = select(b[0], ..)``
After:  ``b: int8x2[1];  b[0] = int8x2(x[0:2] < y[0:2]);  z[0:2] = select(boolx2(b[0]), ..)``
"""

import tvm
import tvm_ffi
from tvm import tirx
from tvm.ir import TensorLoad

from .cuda import is_for_cpu

__all__ = ["bool_vectors"]

_BOOL, _HELD = "bool", "int8"


@tvm.transform.module_pass(opt_level=0, name="BoolVectors")
def bool_vectors(module, _context):
    """Cast what is stored in elements of another type, and what is loaded from them.

    Right after StorageRewrite, which makes such arrays: later passes simplify conditions.
    """
    functions = {gv: _cast(f) if is_for_cpu(f) else f for gv, f in module.functions_items()}
    return tvm.IRModule(functions, attrs=module.attrs)


def _cast(function: tirx.PrimFunc) -> tirx.PrimFunc:
    arrays = _arrays(function.body)
    if not arrays:
        return function

    def store(stmt: tirx.BufferStore) -> tirx.Stmt:
        if stmt.buffer not in arrays:
            return stmt
        value = tirx.Cast(_element(stmt.buffer), stmt.value)
        return tirx.BufferStore(stmt.buffer, value, stmt.indices)

    def load(node: TensorLoad) -> tirx.Expr:
        if node.source not in arrays:
            return node
        vector = tirx.BufferLoad(node.source, list(node.indices))
        return tirx.Cast(_BOOL + _element(node.source).removeprefix(_HELD), vector)

    body = tvm_ffi.structural_map(function.body, ((tirx.BufferStore, store), (TensorLoad, load)))
    return tirx.PrimFunc(function.params, body, function.ret_type, function.attrs)


def _arrays(body: tirx.Stmt) -> set[tirx.Var]:
    """The arrays of vectors of int8 that vectors of booleans are stored in."""
    vectors: set[tirx.Var] = set()
    found: set[tirx.Var] = set()

    def allocated(stmt: tirx.AllocBuffer) -> None:
        if _element(stmt.buffer).startswith(f"{_HELD}x"):
            vectors.add(stmt.buffer)

    def stored(stmt: tirx.BufferStore) -> None:
        if stmt.buffer in vectors and str(stmt.value.ty.dtype).startswith(_BOOL):
            found.add(stmt.buffer)

    tvm_ffi.structural_walk(body, (tirx.AllocBuffer, allocated))
    if vectors:
        tvm_ffi.structural_walk(body, (tirx.BufferStore, stored))
    return found


def _element(buffer: tirx.Var) -> str:
    return str(buffer.ty.dtype.dtype)
