"""Values that go to a narrow float and back within one expression, as fused kernels have them.

TVM computes with bfloat16 as with float32, also in arrays of a kernel's own: it rounds where
results are stored, and of a conversion there and back nothing is left. A float8 whose bits are
read again it widens first, and then has no bits.

Before: ``y[i] = cast(float32, cast(bfloat16, x[i])) + x[i]``
After:  ``y[i] = cast(float32, cast(bfloat16, rounded(x[i]))) + x[i]``, in integers on x's bits

Before: ``reinterpret(uint8, reinterpret(float8_e5m2, code))``
After:  ``code``, and an array between the two holds codes
"""

from math import copysign

import tvm
import tvm_ffi
from tvm import tirx
from tvm.ir import Call, TensorLoad

__all__ = ["keep_round_trips"]


@tvm.transform.module_pass(opt_level=0, name="KeepRoundTrips")
def keep_round_trips(module, _context):
    """The module pass."""
    functions = {
        gv: f.with_body(_kept(f.body)) if isinstance(f, tirx.PrimFunc) else f
        for gv, f in module.functions_items()
    }
    return tvm.IRModule(functions, attrs=module.attrs)


def _kept(body: tirx.Stmt) -> tirx.Stmt:
    own: dict[tirx.Var, list[tirx.Expr]] = {}  # the arrays of the kernel, and what they get

    def allocated(made: tirx.AllocBuffer) -> None:
        own[made.buffer] = []

    def stored(store: tirx.BufferStore) -> None:
        if store.buffer in own:
            own[store.buffer].append(store.value)

    tvm_ffi.structural_walk(body, (tirx.AllocBuffer, allocated))
    tvm_ffi.structural_walk(body, (tirx.BufferStore, stored))
    body = tvm_ffi.structural_map(
        body, (tirx.BufferStore, lambda store: _with_rounding(store, store.buffer in own))
    )
    coded = {
        array: tirx.decl_buffer(array.ty.shape, "uint8", array.name, scope=array.ty.storage_scope)
        for array, values in own.items()
        if str(array.ty.dtype.dtype).startswith("float8") and all(map(_is_code, values))
    }
    if coded:
        body = _with_codes(body, coded)
    return tvm_ffi.structural_map(body, (Call, _without_detour))


def _with_codes(body: tirx.Stmt, coded: dict[tirx.Var, tirx.Var]) -> tirx.Stmt:
    """``body`` with arrays of codes in the place of arrays of float8."""

    def allocation(made: tirx.AllocBuffer) -> tirx.AllocBuffer:
        array = coded.get(made.buffer)
        return made if array is None else tirx.AllocBuffer(array, made.annotations)

    def store(made: tirx.BufferStore) -> tirx.BufferStore:
        array = coded.get(made.buffer)
        if array is None:
            return made
        code = made.value
        code = tirx.const(0, "uint8") if _is_zero(code) else tirx.reinterpret("uint8", code)
        return tirx.BufferStore(array, code, made.indices)

    def load(made: TensorLoad) -> tirx.Expr:
        array = coded.get(made.source)
        if array is None:
            return made
        return tirx.reinterpret(made.ty.dtype, tirx.BufferLoad(array, made.indices))

    kinds = [(tirx.AllocBuffer, allocation), (tirx.BufferStore, store), (TensorLoad, load)]
    return tvm_ffi.structural_map(body, kinds)


def _with_rounding(store: tirx.BufferStore, own: bool) -> tirx.BufferStore:
    """Every conversion to bfloat16 rounds but the last, which storing a result does."""
    value = store.value
    if _is_cast(value) and not own:
        inner = _rounded_inside(value.value)
        kept = value if inner is value.value else tirx.Cast(value.ty, inner)
    else:
        kept = _rounded_inside(value)
    return store if kept is value else tirx.BufferStore(store.buffer, kept, store.indices)


def _rounded_inside(value: tirx.Expr) -> tirx.Expr:
    return tvm_ffi.structural_map(value, (tirx.Cast, _rounded))


def _is_cast(value: tirx.Expr) -> bool:
    return isinstance(value, tirx.Cast) and value.ty.dtype == "bfloat16"


def _rounded(cast: tirx.Cast) -> tirx.Cast:
    if not _is_cast(cast):
        return cast
    name = tirx.Var("bits", "uint32")
    magnitude, last = name & _word(0x7FFFFFFF), (name >> _word(16)) & _word(1)
    quiet, nearest = name | _word(0x00400000), name + _word(0x7FFF) + last
    upper = tirx.Select(magnitude > _word(0x7F800000), quiet, nearest) & _word(0xFFFF0000)
    bits = tirx.reinterpret("uint32", cast.value.astype("float32"))
    return tirx.Cast(cast.ty, tirx.Let(name, bits, tirx.reinterpret("float32", upper)))


def _word(value: int) -> tirx.Expr:
    return tirx.const(value, "uint32")


def _without_detour(call: Call) -> tirx.Expr:
    if not _is_reinterpretation(call):
        return call
    named, inner = [], call.args[0]
    while isinstance(inner, tirx.Let):
        named.append(inner)
        inner = inner.body
    if not _is_reinterpretation(inner) or inner.args[0].ty.dtype != call.ty.dtype:
        return call
    (value,) = inner.args
    for let in reversed(named):
        value = tirx.Let(let.var, let.value, value)
    return value


def _is_code(value: tirx.Expr) -> bool:
    """Whether a float8 is made of bits, behind names or at once, or of none."""
    while isinstance(value, tirx.Let):
        value = value.body
    return _is_reinterpretation(value) or _is_zero(value)


def _is_zero(value: tirx.Expr) -> bool:
    return isinstance(value, tirx.FloatImm) and value.value == 0 and copysign(1, value.value) > 0


def _is_reinterpretation(expr: tirx.Expr) -> bool:
    return isinstance(expr, Call) and getattr(expr.op, "name", None) == "tirx.reinterpret"
