"""Stretches of device operators in a Relax function, each as one kernel.

Before::

    a = R.call_tir(conv, (x, w, b));  c = R.call_tir(pool, (a,));  y = R.call_tir(softmax, (c,))

After: ``c = R.call_tir(region, (x, w, b));  y = R.call_tir(softmax, (c,))``, where ``region`` is
the C text that drives the device.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from tvm import IRModule, relax, tirx
from tvm.ir.expr import GenericConst

__all__ = ["Stretch", "cut", "outline"]

Bindings = Sequence[relax.Binding]


@dataclass(frozen=True)
class Stretch:
    """Bindings of the device, what they read, and what of them is read outside."""

    bindings: tuple[relax.VarBinding, ...]
    inputs: tuple[relax.Var, ...]
    constants: tuple[GenericConst, ...]
    outputs: tuple[relax.Var, ...]


def cut(
    main: relax.Function, on_device: Callable[[relax.Binding], bool]
) -> list[list[Stretch | relax.Binding]]:
    """Each block of ``main`` as stretches for the device and bindings for the host, in order.

    Host and device take turns: each does all whose operands are there. So the stretches are few,
    and none waits for itself by way of the host. Only dataflow blocks are reordered.
    """
    return [
        _take_turns(main, block, on_device)
        if isinstance(block, relax.DataflowBlock)
        else list(block.bindings)
        for block in main.body.blocks
    ]


def _take_turns(main, block, on_device) -> list[Stretch | relax.Binding]:
    waiting = list(block.bindings)
    pending = {binding.var for binding in waiting}
    order: list[Stretch | relax.Binding] = []
    devices_turn = False
    while waiting:
        ready = []
        for binding in waiting:
            if on_device(binding) is devices_turn and pending.isdisjoint(_reads(binding)):
                ready.append(binding)
                pending.remove(binding.var)
        waiting = [binding for binding in waiting if binding.var in pending]
        if devices_turn and ready:
            order.append(_stretch(main, ready))
        else:
            order += ready
        devices_turn = not devices_turn
    return order


def _stretch(main: relax.Function, bindings: Bindings) -> Stretch:
    own = dict.fromkeys(binding.var for binding in bindings)
    leaves = dict.fromkeys(leaf for binding in bindings for leaf in _leaves(binding.value))
    outside = {
        var
        for block in main.body.blocks
        for binding in block.bindings
        if binding.var not in own
        for var in _reads(binding)
    } | set(relax.analysis.free_vars(main.body.body))
    return Stretch(
        tuple(bindings),
        tuple(x for x in leaves if isinstance(x, relax.Var) and x not in own),
        tuple(x for x in leaves if isinstance(x, GenericConst)),
        tuple(var for var in own if var in outside or not isinstance(var, relax.DataflowVar)),
    )


def _reads(binding: relax.Binding) -> list[relax.Var]:
    return list(relax.analysis.free_vars(binding.value))


def _leaves(call: relax.Call) -> Iterable[relax.Expr]:
    """The operands of a ``call_tir``."""
    return call.args[1].fields


def outline(
    module: IRModule,
    blocks: Sequence[Sequence[Stretch | relax.Binding]],
    kernels: Mapping[Stretch, tirx.PrimFunc],
) -> IRModule:
    """``module`` with each stretch as a call of its kernel; its attribute ``region`` names it."""
    main, builder = module["main"], relax.BlockBuilder(module)
    new = []
    for old, parts in zip(main.body.blocks, blocks, strict=True):
        bindings = []
        for part in parts:
            if isinstance(part, Stretch):
                kernel = kernels[part]
                bindings += _calls(part, builder.add_func(kernel, kernel.attrs["region"]))
            else:
                bindings.append(part)
        new.append(type(old)(bindings))
    body = relax.SeqExpr(new, main.body.body)
    function = relax.Function(main.params, body, main.ret_ty, main.is_pure, main.attrs)
    builder.update_func(module.get_global_var("main"), function)
    return relax.transform.DeadCodeElimination()(builder.get())


def _calls(stretch: Stretch, symbol: relax.GlobalVar) -> list[relax.VarBinding]:
    """The call of a stretch, and the variables that it has defined before."""
    types = [var.ty for var in stretch.outputs]
    operands = *stretch.inputs, *stretch.constants
    call = relax.call_tir(symbol, operands, types if len(types) > 1 else types[0])
    if len(types) == 1:
        return [relax.VarBinding(stretch.outputs[0], call)]
    whole = relax.DataflowVar(symbol.name_hint, relax.TupleType(types))
    items = (relax.TupleGetItem(whole, k) for k in range(len(types)))
    return [
        relax.VarBinding(whole, call),
        *(relax.VarBinding(v, item) for v, item in zip(stretch.outputs, items, strict=True)),
    ]
