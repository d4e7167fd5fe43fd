"""Memory of the VM: few blocks that tensors of proportional sizes share, kept from run to run.

TVM's planner lets tensors share a block whose sizes are equal. Here those of ``[n, 64, 56, 56]``
and of ``[n, 256, 28, 28]`` may: sizes are a number times a product of symbolic dims, and among
those with the same product the numbers tell which fits where.

Before::

    s = alloc_storage(4096 * n)         t = alloc_storage(1024 * n)
    a = alloc_tensor(s, ...)            b = alloc_tensor(t, ...)

After, where ``a`` is dead before ``b`` is written::

    blocks = call_builtin_with_ctx("tvm_ext.storages", (number, shape(4096 * n)))
    a = alloc_tensor(blocks[0], ...)    b = alloc_tensor(blocks[0], ...)

Each lies at the begin of its block: kernels take no offsets.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from math import prod
from typing import Any

import tvm
import tvm_ffi
from tvm import DataType, IRModule, relax, tirx
from tvm.ir import GlobalVar, Op
from tvm.sym import Analyzer

__all__ = ["Blocks", "lend", "share_storages", "size_of"]

_STORAGE, _TENSOR = Op.get("relax.memory.alloc_storage"), Op.get("relax.memory.alloc_tensor")
_GIVE = "tvm_ext.storages"

# A block so many times too large for what is asked for is given back.
_SPARE = 4


# --- at run time ---------------------------------------------------------------------------------


@dataclass
class Blocks:
    """What one VM has been given: by the number of the call, the sizes and the blocks."""

    given: dict[int, tuple[tuple[int, ...], Any]] = field(default_factory=dict)

    def give(self, context: Any, number: int, sizes: tuple[int, ...]) -> Any:
        """A block of each size, in bytes; those of the last run where they are about as large."""
        capacities, blocks = self.given.get(number, ((), None))
        if capacities == sizes:
            return blocks
        fitting = len(capacities) == len(sizes) and all(
            need <= have <= _SPARE * need for need, have in zip(sizes, capacities, strict=True)
        )
        if not fitting:
            self.given.pop(number, None)  # first: both together need not fit
            blocks = None
            alloc = tvm.get_global_func("vm.builtin.alloc_storage")
            blocks = tvm_ffi.convert(
                [alloc(context, tvm_ffi.Shape((size,)), 0, "uint8", "global") for size in sizes]
            )
            self.given[number] = sizes, blocks
        return blocks


_THREAD = threading.local()


def lend(blocks: Blocks) -> None:
    """From here on, the VM that runs in this thread is the one that has ``blocks``."""
    _THREAD.blocks = blocks


@tvm_ffi.register_global_func(_GIVE, override=True)
def _give(context: Any, number: int, sizes: Any) -> Any:
    return _THREAD.blocks.give(context, number, tuple(sizes))


# --- at compile time -----------------------------------------------------------------------------


@dataclass(eq=False)
class _Tensor:
    """``number`` times ``unit`` bytes that bindings ``first`` to ``last`` need."""

    var: relax.Var
    number: int
    unit: tirx.Expr
    first: int
    last: int


@dataclass(eq=False)
class _Block:
    """Memory of tensors that are never alive together; the first is the largest."""

    tensors: list[_Tensor]

    @property
    def size(self) -> tirx.Expr:
        return self.tensors[0].number * self.tensors[0].unit

    @property
    def first(self) -> int:
        return min(tensor.first for tensor in self.tensors)

    def takes(self, tensor: _Tensor) -> bool:
        apart = all(tensor.first > t.last or tensor.last < t.first for t in self.tensors)
        return apart and _ANALYZER.can_prove_equal(self.tensors[0].unit, tensor.unit)


@tvm.transform.module_pass(opt_level=0, name="ShareStorages")
def share_storages(module: IRModule, _context: object) -> IRModule:
    """The module pass, behind StaticPlanBlockMemory; functions that it left alone stay."""
    numbers = count()
    shared = {
        symbol: _Function(func, module).rewritten(numbers)
        for symbol, func in module.functions_items()
        if isinstance(func, relax.Function) and isinstance(func.body, relax.SeqExpr)
    }
    module = IRModule(dict(module.functions_items()), attrs=module.attrs)
    for symbol, func in shared.items():
        module.update_func(symbol, func)
    return module


class _Function:
    """A function of the VM whose tensors have been planned."""

    def __init__(self, func: relax.Function, module: IRModule):
        self.func = func
        self.module = module
        self.bindings = [b for block in func.body.blocks for b in block.bindings]

    def rewritten(self, numbers: Iterator[int]) -> relax.Function:
        """The function with its tensors in blocks; ``numbers`` are for the calls that give them."""
        if not any(_calls(binding, _TENSOR) for binding in self.bindings):
            return self.func
        blocks = _assigned(self._tensors())
        sizes_of = relax.analysis.definable_tir_vars_in_type
        known = {size for param in self.func.params for size in sizes_of(param.ty)}
        at_entry: list[_Block] = []
        later: list[_Block] = []
        for block in blocks:
            sized = set(tirx.analysis.undefined_vars(block.size, [])) <= known
            (at_entry if sized else later).append(block)
        given: dict[relax.Var, relax.Var] = {}  # the variable of a tensor -> that of its block
        start = list(_giving(at_entry, next(numbers), given)) if at_entry else []
        before = {block.first: list(_giving([block], next(numbers), given)) for block in later}
        bindings = start
        for place, binding in enumerate(self.bindings):
            bindings += before.get(place, [])
            if _is_storage(binding):
                continue
            if binding.var in given:
                binding = relax.VarBinding(binding.var, _moved(binding.value, given[binding.var]))
            elif _calls(binding, _TENSOR):
                binding = relax.VarBinding(binding.var, _of_its_own(binding.value))
            bindings.append(binding)
        body = relax.SeqExpr([relax.BindingBlock(bindings)], self.func.body.body)
        func = relax.Function(
            self.func.params, body, self.func.ret_ty, self.func.is_pure, self.func.attrs
        )
        return relax.BlockBuilder(self.module).normalize(func)

    def _tensors(self) -> list[_Tensor]:
        """Those for blocks, with the bindings between which they are alive.

        Not what a result is or holds on to, as a sequence its elements: that outlives the run.
        """
        found: list[_Tensor] = []
        storages = {binding.var for binding in self.bindings if _is_storage(binding)}
        held: dict[relax.Var, set[_Tensor]] = {}  # by a variable that is one, or may be a view
        for place, binding in enumerate(self.bindings):
            if _calls(binding, _TENSOR) and binding.value.args[0] in storages:
                tensor = _Tensor(binding.var, *_size(binding.var.ty), place, place)
                found.append(tensor)
                held[binding.var] = {tensor}
                continue
            used = self._used(binding.value, held)
            for tensor in used:
                tensor.last = place
            if not self._is_kernel(binding.value):
                held[binding.var] = used
        kept = self._used(self.func.body.body, held)
        return [tensor for tensor in found if tensor not in kept]

    def _used(self, expr: relax.Expr, held: dict[relax.Var, set[_Tensor]]) -> set[_Tensor]:
        return {tensor for var in relax.analysis.all_vars(expr) for tensor in held.get(var, ())}

    def _is_kernel(self, value: relax.Expr) -> bool:
        """Whether ``value`` writes to memory that it is given, and has no result."""
        if not isinstance(value, relax.Call) or not isinstance(value.op, GlobalVar):
            return False
        return isinstance(self.module[value.op], tirx.PrimFunc)


def _assigned(tensors: Sequence[_Tensor]) -> list[_Block]:
    """The largest first, each in the smallest block that takes it."""
    blocks: list[_Block] = []
    for tensor in sorted(tensors, key=lambda t: -t.number):
        taking = [block for block in blocks if block.takes(tensor)]
        if taking:
            min(taking, key=lambda block: block.tensors[0].number).tensors.append(tensor)
        else:
            blocks.append(_Block([tensor]))
    return blocks


def _giving(
    blocks: Sequence[_Block], number: int, given: dict[relax.Var, relax.Var]
) -> Iterator[relax.Binding]:
    """Bindings that get ``blocks`` from :func:`_give`; ``given`` learns whose they are."""
    anything = relax.AnyType()
    sizes = relax.ShapeExpr([block.size for block in blocks])
    call = relax.op.call_builtin_with_ctx(
        _GIVE,
        [relax.prim_value(number), sizes],
        ty_args=relax.TupleType([anything] * len(blocks)),
    )
    whole = relax.Var(f"blocks{number}", relax.TupleType([anything] * len(blocks)))
    yield relax.VarBinding(whole, call)
    for k, block in enumerate(blocks):
        var = relax.Var(f"block{number}_{k}", anything)
        yield relax.VarBinding(var, relax.TupleGetItem(whole, k))
        given.update((tensor.var, var) for tensor in block.tensors)


def _moved(call: relax.Call, block: relax.Var) -> relax.Call:
    """``call`` of alloc_tensor in another storage, at its begin."""
    _, _, *rest = call.args
    return relax.Call(call.op, [block, relax.prim_value(0), *rest], call.attrs, call.ty_args)


def _of_its_own(call: relax.Call) -> relax.Call:
    """The tensor of ``call`` in memory that it shares with none."""
    _, _, shape, dtype, *_ = call.args
    return relax.op.builtin.alloc_tensor(shape, dtype.value, 0)


def _calls(binding: relax.Binding, op: Op) -> bool:
    value = binding.value
    return isinstance(value, relax.Call) and value.op == op


def _is_storage(binding: relax.Binding) -> bool:
    """Whether ``binding`` allocates plain memory of the first device, as :class:`Blocks` does."""
    if not _calls(binding, _STORAGE):
        return False
    _, device, scope, _ = binding.value.args
    return int(device) == 0 and str(scope.value) == "global"


def _size(ty: relax.TensorType) -> tuple[int, tirx.Expr]:
    return size_of(ty.shape.values, str(ty.dtype.dtype))


def size_of(shape: Sequence[Any], dtype: str) -> tuple[int, tirx.Expr]:
    """The bytes of a tensor as a number and a product of symbolic dims."""
    numbers, rest = [DataType(dtype).itemsize], []
    for dim in shape:
        number, factor = _split(_ANALYZER.simplify(tirx.convert(dim)))
        numbers.append(number)
        rest += [] if factor is None else [factor]
    unit: tirx.Expr = tirx.const(1, "int64")
    for factor in sorted(rest, key=str):
        unit = unit * factor
    return prod(numbers), unit


def _split(dim: tirx.Expr) -> tuple[int, tirx.Expr | None]:
    """``dim`` as a number times what is symbolic in it."""
    if isinstance(dim, tirx.IntImm):
        return int(dim), None
    if isinstance(dim, tirx.Mul) and isinstance(dim.b, tirx.IntImm):
        number, rest = _split(dim.a)
        return number * int(dim.b), rest
    return 1, dim


_ANALYZER = Analyzer()
