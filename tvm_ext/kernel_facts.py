"""What the kernels of a module do: the ONNX nodes behind each, its operations and bytes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from math import prod

import ml_dtypes  # noqa: F401  numpy learns bfloat16 and the float8 types by their names
import numpy as np
import tvm_ffi
from tvm import IRModule, relax, s_tir, tirx
from tvm.ir import Call, Op
from tvm.ir.expr import GenericConst
from tvm.s_tir.dlight.analysis import get_root_block
from tvm.tirx import IntImm, PrimFunc

from .counts import SIZE, Count
from .passes.fused import C_SOURCE
from .peak import DOTS
from .profile import KernelFacts
from .provenance import Provenance

__all__ = ["kernel_facts"]

_CALL_TIR = Op.get("relax.call_tir")
_FLOPS = "float"
_KINDS = {product.operator: kind for kind, product in DOTS.items()}
_NAMES: dict[type, str] = {
    tirx.Add: "+", tirx.Sub: "-", tirx.Mul: "*", tirx.FloorDiv: "//", tirx.FloorMod: "%",
    tirx.Min: "min", tirx.Max: "max",
}  # fmt: skip
_ARITHMETIC = (tirx.Add, tirx.Sub, tirx.Mul, tirx.Div, tirx.Max, tirx.Min)


_Work = dict[str, tirx.Expr | int]  # operations by their kind


def kernel_facts(module: IRModule, provenance: Provenance) -> dict[str, KernelFacts]:
    """The facts of each kernel call, by the variable that it defines; outside of ``main`` without
    its work, for it may run never or many times."""
    kernels = {gv: (f, _work(f)) for gv, f in module.functions_items() if isinstance(f, PrimFunc)}
    sizes = _sizes(module["main"])
    facts = {}
    for symbol, function in module.functions_items():
        calls = _calls(function) if isinstance(function, relax.Function) else ()
        for name, call in calls:
            if symbol.name_hint == "main":
                done = _done(call, kernels.get(call.args[0]), sizes)
                facts[name] = _facts(name, call, done, sizes, provenance)
            else:
                name = f"{symbol.name_hint}.{name}"
                own = tuple(provenance.nodes(name)), None, None, tuple(provenance.compounds(name))
                facts[name] = KernelFacts(*own)
    return facts


def _calls(function: relax.Function) -> Iterator[tuple[str, relax.Call]]:
    """The kernel calls of ``function``, and the variables that they define."""
    for block in function.body.blocks:
        for binding in block.bindings:
            call = binding.value
            if isinstance(call, relax.Call) and call.op == _CALL_TIR:
                yield binding.var.name, call


def _facts(
    name: str,
    call: relax.Call,
    work: dict[str, Count] | None,
    sizes: Mapping[tirx.Var, Count],
    provenance: Provenance,
) -> KernelFacts:
    """Of a call that runs once."""
    operands = [arg.ty for arg in call.args[1] if isinstance(arg.ty, relax.TensorType)]
    weights = [arg.ty for arg in call.args[1] if isinstance(arg, GenericConst)]
    return KernelFacts(
        tuple(provenance.nodes(name)),
        None if work is None else work.get(_FLOPS, 0),
        _count(_bytes([*operands, *call.ty_args]), sizes),
        tuple(provenance.compounds(name)),
        int(_bytes(weights) or 0),
        {kind: count for kind, count in (work or {}).items() if kind != _FLOPS},
    )


def _sizes(main: relax.Function) -> dict[tirx.Var, Count]:
    """Those dims that are sizes of inputs."""
    return {
        dim: [SIZE, number, axis]
        for number, param in reversed(list(enumerate(main.params)))
        if isinstance(param.ty, relax.TensorType) and param.ty.shape is not None
        for axis, dim in enumerate(param.ty.shape.values)
        if isinstance(dim, tirx.Var)
    }


def _done(
    call: relax.Call,
    kernel: tuple[PrimFunc, _Work | None] | None,
    sizes: Mapping[tirx.Var, Count],
) -> dict[str, Count] | None:
    """The operations of ``call``; None where one of them is not known."""
    func, work = kernel or (None, None)
    if func is None or work is None:
        return None
    dims = _dims(call, func, sizes)
    found = {kind: _count(amount, dims) for kind, amount in work.items()}
    known = {kind: count for kind, count in found.items() if count is not None}
    return known if len(known) == len(found) else None


def _dims(call: relax.Call, func: PrimFunc, sizes: Mapping[tirx.Var, Count]) -> dict:
    """The dims of a kernel in ``call``, as formulas of the model's inputs where they are that."""
    dims: dict[tirx.Var, Count | None] = {}
    for param, given in zip(func.params, [*call.args[1], *call.ty_args], strict=False):
        ty = given if isinstance(given, relax.Type) else given.ty
        if isinstance(ty, relax.TensorType) and ty.shape is not None:
            for own, dim in zip(param.ty.shape, ty.shape.values, strict=True):
                if isinstance(own, tirx.Var):
                    dims[own] = _count(dim, sizes)
        elif isinstance(given, tirx.Var):  # a size by itself
            dims[param] = _count(given, sizes)
    return dims


def _count(amount: tirx.Expr | int | None, dims: Mapping[tirx.Var, Count | None]) -> Count | None:
    """``amount`` as a formula; None where that follows from more than ``dims``."""
    if amount is None or isinstance(amount, int | IntImm):
        return None if amount is None else int(amount)
    if isinstance(amount, tirx.Var):
        return dims.get(amount)
    if isinstance(amount, tirx.Cast):
        return _count(amount.value, dims)
    if type(amount) not in _NAMES:
        return None
    first, second = _count(amount.a, dims), _count(amount.b, dims)
    return None if first is None or second is None else [_NAMES[type(amount)], first, second]


def _work(func: PrimFunc) -> _Work | None:
    """The operations of one call by kind, before scheduling, in the dims of the kernel.

    None for a kernel in one opaque block (scatter, sort), whose loops say nothing, and for C.
    """
    if C_SOURCE in func.attrs:
        return None
    sch = s_tir.Schedule(func)
    blocks = [sch.get(block) for block in sch.get_child_blocks(get_root_block(sch))]
    if not blocks:
        return None
    total: _Work = {}
    for block in blocks:
        times = prod(map(_plain, (axis.dom.extent for axis in block.iter_vars)))
        for kind, count in _step(block).items():
            if count:
                total[kind] = total.get(kind, 0) + times * count
    return total


def _plain(extent: tirx.Expr) -> tirx.Expr | int:
    return int(extent) if isinstance(extent, IntImm) else extent


def _step(block: s_tir.SBlock) -> Counter[str]:
    """The operations of one step of ``block``."""
    for term in _summed(block):
        name = getattr(term.op, "name", "") if isinstance(term, Call) else ""
        if name in _KINDS:
            return Counter({_KINDS[name]: DOTS[_KINDS[name]].operations})
        if _is_of_bytes(term):
            return Counter({"int8": 2})
    return Counter({_FLOPS: _operations(block.body)})


def _summed(block: s_tir.SBlock) -> list[tirx.Expr]:
    """What a step adds, and the sum before, where ``block`` is a sum."""
    value = getattr(block.body, "value", None)
    sums = any(axis.iter_type == axis.CommReduce for axis in block.iter_vars)
    return [value.a, value.b] if sums and isinstance(value, tirx.Add) else []


def _is_of_bytes(term: tirx.Expr) -> bool:
    """Whether ``term`` is a product of 8-bit integers in 32 bits."""
    casts: list[tirx.Cast] = []
    tvm_ffi.structural_walk(term, (tirx.Cast, casts.append))
    narrow = [cast for cast in casts if "int8" in str(getattr(cast.value.ty, "dtype", ""))]
    return isinstance(term, tirx.Mul) and str(term.ty.dtype) == "int32" and len(narrow) > 1


def _operations(body: tirx.Stmt | tirx.Expr) -> int:
    """Operations on floats; of a choice, those of the longer side: only one side runs."""
    count = 0

    def visit(node: tirx.Expr) -> tvm_ffi.WalkResult | None:
        nonlocal count
        if "float" not in str(node.ty.dtype):
            return None
        if not isinstance(node, tirx.Select):
            count += 1
            return None
        count += max(map(_operations, (node.true_value, node.false_value)))
        return tvm_ffi.WalkResult.SKIP

    tvm_ffi.structural_walk(body, ((*_ARITHMETIC, tirx.Select), visit), order="pre")
    return count


def _bytes(types: list[relax.Type]) -> tirx.Expr | int | None:
    """Bytes of all tensors, each counted once; None where a rank is not known."""
    total: tirx.Expr | int = 0
    for ty in types:
        if isinstance(ty, relax.TupleType):
            size = _bytes(list(ty.fields))
        elif isinstance(ty, relax.TensorType) and ty.shape is not None:
            size = prod(map(_plain, ty.shape.values), start=np.dtype(str(ty.dtype.dtype)).itemsize)
        else:
            size = None
        if size is None:
            return None
        total += size
    return total
