"""Kernels of a batch in strips of a few images, one kernel after the other, that stay in caches.

Kernels that go over a whole batch hand on more than the caches hold. Where they treat its images
apart, a run of them goes over one strip of the batch after the other: the memory planner repeats
it, and what is read within the run alone takes the memory of one strip.

Before::

    e = fused_conv2d(x, w)    # (x: (8, 3, 64, 64), ...)
    y = fused_pool(e)

After, where kernels are of 2 images, and calls still stand for the whole batch::

    e = fused_conv2d_strip2(x, w)    # (x: (2, 3, 64, 64), ...)
    y = fused_pool_strip2(e)
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from operator import itemgetter

import tvm
from tvm import IRModule, relax
from tvm.ir import GlobalVar, Op
from tvm.target import Target

from tvm_ext.schedules.llvm.contraction import divisors
from tvm_ext.schedules.llvm.strips import ApartImages, apart_images
from tvm_ext.schedules.machine import Machine

from .facts import bytes_of, dims_of, tensors_of
from .graph import variables

__all__ = ["NAME", "strips"]

#: Of the pass.
NAME = "Strips"

_CALL_TIR, _RESHAPE = Op.get("relax.call_tir"), Op.get("relax.reshape")

# What starting a kernel costs, in bytes of what caches do not hold.
_START = 64 << 10

_COST = itemgetter(0)


def strips(target: Target, cache: int | None = None, start: int = _START) -> tvm.ir.transform.Pass:
    """The module pass, before kernels are scheduled.

    ``cache``: the bytes that stay in caches from kernel to kernel, by default those of the second
    level of all cores. ``start``: what starting a kernel costs, in bytes of what does not stay.
    """
    machine = Machine.of(target)
    held = machine.cores * machine.l2_bytes if cache is None else cache

    @tvm.transform.module_pass(opt_level=0, name=NAME)
    def run(module: IRModule, _context: object) -> IRModule:
        functions = [f for _, f in module.functions_items() if isinstance(f, relax.Function)]
        if len(functions) != 1 or not _is_static(functions[0]):
            return module
        return _Cutting(module, held, start).transform()

    return run


def _is_static(main: relax.Function) -> bool:
    """Whether all that ``main`` does is to call kernels on tensors of known sizes."""
    bindings = [binding for block in main.body.blocks for binding in block.bindings]
    known = (*main.params, *(binding.var for binding in bindings))
    plain = all(isinstance(b, relax.VarBinding) and _is_plain(b.value) for b in bindings)
    return plain and all(bytes_of(var.ty) is not None for var in known)


def _is_plain(value: relax.Expr) -> bool:
    if not isinstance(value, relax.Call):
        return isinstance(value, relax.Var | relax.Tuple | relax.TupleGetItem)
    return value.op == _RESHAPE or _is_kernel(value)


def _is_kernel(value: relax.Expr) -> bool:
    plain = isinstance(value, relax.Call) and value.op == _CALL_TIR and len(value.args) == 2
    return plain and isinstance(value.args[1], relax.Tuple)


@dataclass(frozen=True)
class _Call:
    """A call of a kernel on ``images``, which are one where it cannot be cut.

    Attributes:
        kernel: what it calls; None where that cannot be cut.
        moved: the bytes of an image that it reads and writes.
        shared: the bytes that it reads for every strip.
        alive: the bytes of an image that are there meanwhile: those, and what is read later.
        kept: the bytes of all images that were there before, and are read now or later.
    """

    images: int
    kernel: ApartImages | None
    moved: int
    shared: int
    alive: int
    kept: int


class _Lives:
    """The bytes of what the bindings of a block compute and read later."""

    def __init__(self, block: relax.BindingBlock):
        roots: dict[relax.Var, relax.Var] = {}  # of what only has another shape
        lives: dict[relax.Var, list[int]] = {}
        for number, binding in enumerate(block.bindings):
            used = {roots.get(var, var) for var in variables(binding.value)}
            for var in used & lives.keys():
                lives[var][1] = number
            if _is_kernel(binding.value):
                lives[binding.var] = [number, number]
            elif len(used) == 1:
                roots[binding.var] = used.pop()
        self._rows = [(first, last, _bytes([var])) for var, (first, last) in lives.items()]

    def before(self, number: int) -> int:
        """Of what is computed before this binding, and read by it or later."""
        return sum(size for first, last, size in self._rows if first < number <= last)


def _bytes(values: Iterable[relax.Expr]) -> int:
    return bytes_of(*(value.ty for value in values)) or 0


class _Cutting:
    """Calls of kernels become calls of cut ones, where that costs less."""

    def __init__(self, module: IRModule, cache: int, start: int):
        self.module = module
        self.builder = relax.BlockBuilder(module)
        self.cache = cache
        self.start = start
        self.apart: dict[GlobalVar, ApartImages | None] = {}
        self.cut: dict[tuple[GlobalVar, int], GlobalVar] = {}

    def transform(self) -> IRModule:
        main = self.module["main"]
        blocks = [self._block(block) for block in main.body.blocks]
        if not self.cut:
            return self.module
        body = relax.SeqExpr(blocks, main.body.body)
        module = self.builder.get()
        module["main"] = relax.Function(main.params, body, main.ret_ty, main.is_pure, main.attrs)
        return relax.transform.DeadCodeElimination()(module)

    def _block(self, block: relax.BindingBlock) -> relax.BindingBlock:
        sizes = iter(self._chosen(list(self._calls(block))))
        bindings = [
            relax.VarBinding(b.var, self._of_strips(b.value, next(sizes)))
            if _is_kernel(b.value)
            else b
            for b in block.bindings
        ]
        return type(block)(bindings)

    def _calls(self, block: relax.BindingBlock) -> Iterator[_Call]:
        """Those of ``block``, each with its batch: the first axis of an input and all results."""
        inputs = [dims_of(param.ty) for param in self.module["main"].params]
        batches = {dims[0] for dims in inputs if dims and dims[0] > 1}
        lives = _Lives(block)
        for number, binding in enumerate(block.bindings):
            if not _is_kernel(binding.value):
                continue
            symbol, operands = binding.value.args
            results = [dims or [0] for dims in tensors_of(binding.value.ty_args[0])]
            images = results[0][0]
            alike = images in batches and all(first == images for first, *_ in results)
            kernel = self._kernel(symbol) if alike else None
            images = images if kernel else 1
            flags = kernel.reads if kernel else [True] * len(operands.fields)
            pairs = list(zip(operands.fields, flags, strict=True))
            read, shared = (_bytes(o for o, flag in pairs if flag == apart) for apart in (1, 0))
            moved, kept = read + _bytes([binding.var]), lives.before(number)
            alive = max(moved, lives.before(number + 1), kept)
            yield _Call(images, kernel, moved // images, shared, alive // images, kept)

    def _kernel(self, symbol: GlobalVar) -> ApartImages | None:
        if symbol not in self.apart:
            func = self.module[symbol]
            view = relax.analysis.has_reshape_pattern(func)
            self.apart[symbol] = None if view else apart_images(func)
        return self.apart[symbol]

    def _chosen(self, calls: Sequence[_Call]) -> list[int]:
        """For each call the images of a strip: the cheapest way from the first to the last.

        Of those that cost the same it is that of larger strips.
        """
        ways: dict[int, tuple[float, list[int]]] = {0: (0.0, [])}
        before: _Call | None = None
        for call in calls:
            found = {}
            for size in reversed(divisors(call.images, call.images)):
                found[size] = min(
                    (
                        (cost + self._between(before, last, call, size), sizes)
                        for last, (cost, sizes) in ways.items()
                    ),
                    key=_COST,
                )
                cost, sizes = found[size]
                found[size] = cost + self._cost(call, size), [*sizes, size]
            ways, before = found, call
        return min(ways.values(), key=_COST)[1]

    def _cost(self, call: _Call, size: int) -> float:
        """The bytes that caches do not hold, of a call in strips of ``size`` images."""
        again = call.images // size - 1
        held = min(1.0, self.cache / max(size * call.alive, 1))
        return (1 - held) * call.images * call.moved + again * (call.shared + self.start)

    def _between(self, before: _Call | None, last: int, call: _Call, size: int) -> float:
        """What leaves the caches between two calls, where their strips differ."""
        same = before is None or (before.images == call.images and last == size)
        return 0.0 if same else float(max(call.kept - self.cache, 0))

    def _of_strips(self, call: relax.Call, size: int) -> relax.Call:
        """``call`` with the kernel for ``size`` images."""
        symbol = call.args[0]
        kernel = self.apart.get(symbol)
        if kernel is None or size == kernel.images:
            return call
        if (symbol, size) not in self.cut:
            name = f"{symbol.name_hint}_strip{size}"
            self.cut[symbol, size] = self.builder.add_func(kernel.cut(size), name)
        operands = [self.cut[symbol, size], *call.args[1:]]
        return relax.Call(call.op, operands, call.attrs, call.ty_args)
