"""What the kernels of a module do: the ONNX nodes behind each, its operations and bytes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from math import prod

import ml_dtypes  # noqa: F401  numpy learns bfloat16 and the float8 types by their names
import numpy as np
import tvm_ffi
from tvm import IRModule, relax, s_tir, tirx
from tvm.ir import Call, Op
from tvm.ir.expr import GenericConst
from tvm.s_tir.dlight.analysis import get_root_block
from tvm.tirx import IntImm, PrimFunc

from .passes.fused import C_SOURCE
from .peak import DOTS
from .profile import KernelFacts
from .provenance import Provenance

__all__ = ["kernel_facts"]

_CALL_TIR = Op.get("relax.call_tir")
_FLOPS = "float"
_KINDS = {product.operator: kind for kind, product in DOTS.items()}
_ARITHMETIC = (tirx.Add, tirx.Sub, tirx.Mul, tirx.Div, tirx.Max, tirx.Min)


def kernel_facts(module: IRModule, provenance: Provenance) -> dict[str, KernelFacts]:
    """The facts of each kernel call, by the variable that it defines; outside of ``main`` without
    its work, for it may run never or many times."""
    work = {gv: _work(f) for gv, f in module.functions_items() if isinstance(f, PrimFunc)}
    facts = {}
    for symbol, function in module.functions_items():
        calls = _calls(function) if isinstance(function, relax.Function) else ()
        for name, call in calls:
            if symbol.name_hint == "main":
                facts[name] = _facts(name, call, work.get(call.args[0]), provenance)
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
    name: str, call: relax.Call, count: Counter[str] | None, provenance: Provenance
) -> KernelFacts:
    """Of a call that runs once."""
    operands = [arg.ty for arg in call.args[1]]
    weights = [arg.ty for arg in call.args[1] if isinstance(arg, GenericConst)]
    return KernelFacts(
        tuple(provenance.nodes(name)),
        None if count is None else count[_FLOPS],
        _bytes([*operands, *call.ty_args]),
        tuple(provenance.compounds(name)),
        _bytes(weights) or 0,
        {kind: n for kind, n in (count or {}).items() if n and kind != _FLOPS},
    )


def _work(func: PrimFunc) -> Counter[str] | None:
    """The operations of one call by kind, before scheduling; None where an extent is symbolic.

    None too for a kernel in one opaque block (scatter, sort), whose loops say nothing, and for C.
    """
    if C_SOURCE in func.attrs:
        return None
    sch = s_tir.Schedule(func)
    blocks = [sch.get(block) for block in sch.get_child_blocks(get_root_block(sch))]
    if not blocks:
        return None
    total: Counter[str] = Counter()
    for block in blocks:
        extents = [axis.dom.extent for axis in block.iter_vars]
        if not all(isinstance(extent, IntImm) for extent in extents):
            return None
        times = prod(int(extent) for extent in extents)
        total.update({kind: times * count for kind, count in _step(block).items()})
    return total


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


def _bytes(types: list[relax.Type]) -> int | None:
    """Bytes of all tensors, each counted once; None where a shape is symbolic."""
    total = 0
    for ty in types:
        if isinstance(ty, relax.TupleType):
            size = _bytes(list(ty.fields))
        elif isinstance(ty, relax.TensorType) and ty.shape is not None:
            dims = ty.shape.values
            static = all(isinstance(dim, IntImm) for dim in dims)
            width = np.dtype(str(ty.dtype.dtype)).itemsize
            size = width * prod(int(d) for d in dims) if static else None
        else:
            size = None
        if size is None:
            return None
        total += size
    return total
