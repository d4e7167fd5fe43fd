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

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from operator import itemgetter

import tvm
import tvm_ffi
from tvm import DataType, IRModule, relax, tirx
from tvm.ir import GlobalVar, Op
from tvm.sym import Analyzer
from tvm.target import Target

from tvm_ext.schedules.llvm.contraction import divisors
from tvm_ext.schedules.llvm.plain_blocks import is_number
from tvm_ext.schedules.llvm.strips import Count, Rows, Strip, multiple, outer_axis, strip_of
from tvm_ext.schedules.machine import Machine

from .graph import variables

__all__ = ["NAME", "strips"]

#: Of the pass.
NAME = "Strips"

_CALL_TIR = Op.get("relax.call_tir")

# What starting a kernel costs, in bytes of what caches do not hold.
_START = 64 << 10

# Strips that a batch is cut into at most.
_MOST = 64

# What symbolic sizes usually are.
_IMAGES, _SIDE = 8, 256

_ANALYZER = Analyzer()

_COST = itemgetter(0)


def strips(
    target: Target,
    is_planned: Callable[[IRModule, Target], bool],
    cache: int | None = None,
    start: int = _START,
) -> tvm.ir.transform.Pass:
    """The module pass, before kernels are scheduled.

    ``is_planned`` tells whether a module will run by a memory plan, which repeats kernels.
    ``cache``: the bytes that stay in caches from kernel to kernel, by default those of the second
    level of all cores. ``start``: what starting a kernel costs, in bytes of what does not stay.
    """
    machine = Machine.of(target)
    held = machine.cores * machine.l2_bytes if cache is None else cache

    @tvm.transform.module_pass(opt_level=0, name=NAME)
    def run(module: IRModule, _context: object) -> IRModule:
        cutting = _Cutting(module, held, start)
        cut = cutting.transform()
        return cut if cutting.cut and is_planned(module, target) else module

    return run


def _outer_dim(dims: Sequence[tirx.Expr]) -> tirx.Expr | None:
    at = outer_axis(dims)
    return None if at is None else dims[at]


def _is_kernel(value: relax.Expr) -> bool:
    plain = isinstance(value, relax.Call) and value.op == _CALL_TIR and len(value.args) == 2
    return plain and isinstance(value.args[1], relax.Tuple)


@dataclass(frozen=True)
class _Call:
    """A call of a kernel on a batch of ``images``, which are one where it cannot be cut.

    Attributes:
        strips: what it may call instead, by the images of a strip.
        moved: the bytes of an image that it reads and writes.
        shared: the bytes that it reads for every strip.
        alive: the bytes of an image that are there meanwhile: those, and what is read later.
        kept: the bytes of all images that were there before, and are read now or later.
    """

    images: int
    strips: Mapping[int, Strip]
    moved: int
    shared: int
    alive: int
    kept: int

    @property
    def sizes(self) -> list[int]:
        """How many images may go together, the most first."""
        return [self.images, *sorted(self.strips, reverse=True)]


class _Sizes:
    """Dims as numbers: those that are symbolic as they usually are.

    ``batch``: the first axis of most inputs of ``main``; None: it is 1, or they have none.
    """

    def __init__(self, main: relax.Function):
        shapes = (getattr(getattr(param.ty, "shape", None), "values", []) for param in main.params)
        firsts = [dims[0] for dims in shapes if dims and not is_number(dims[0], 1)]
        counts = Counter(map(str, firsts))
        self.batch = max(firsts, key=lambda dim: counts[str(dim)], default=None)

    def number(self, dim: tirx.Expr) -> int:
        """``dim`` as a number."""

        def usual(var: tirx.Var) -> tirx.Expr:
            batch = isinstance(self.batch, tirx.Var) and var.same_as(self.batch)
            return tirx.const(_IMAGES if batch else _SIDE, str(var.ty.dtype))

        value = _ANALYZER.simplify(tvm_ffi.structural_map(dim, (tirx.Var, usual)))
        return int(value) if isinstance(value, tirx.IntImm) else _SIDE

    def bytes(self, values: Iterable[relax.Expr]) -> int:
        """Those of all tensors together."""
        return sum(self._of_type(value.ty) for value in values)

    def _of_type(self, ty: relax.Type) -> int:
        if isinstance(ty, relax.TupleType):
            return sum(map(self._of_type, ty.fields))
        if not isinstance(ty, relax.TensorType):
            return 0
        dims = getattr(ty.shape, "values", [])
        return prod(map(self.number, dims)) * DataType(str(ty.dtype.dtype)).itemsize


class _Lives:
    """The bytes of what the bindings of a block compute and read later."""

    def __init__(self, block: relax.BindingBlock, sizes: _Sizes):
        roots: dict[relax.Var, relax.Var] = {}  # of what only has another shape
        lives: dict[relax.Var, list[int]] = {}
        self.told: set[relax.Var] = set()  # whose elements tell sizes
        for number, binding in enumerate(block.bindings):
            used = {roots.get(var, var) for var in variables(binding.value)}
            for var in used & lives.keys():
                lives[var][1] = number
            if _is_kernel(binding.value):
                lives[binding.var] = [number, number]
            elif len(used) == 1:
                roots[binding.var], *_ = used
            if not isinstance(binding.var.ty, relax.TensorType | relax.TupleType):
                self.told |= used
        self._rows = [(first, last, sizes.bytes([v])) for v, (first, last) in lives.items()]

    def before(self, number: int) -> int:
        """Of what is computed before this binding, and read by it or later."""
        return sum(size for first, last, size in self._rows if first < number <= last)


class _Cutting:
    """Calls of kernels become calls of cut ones, where that costs less."""

    def __init__(self, module: IRModule, cache: int, start: int):
        self.module = module
        self.sizes = _Sizes(module["main"])
        self.builder = relax.BlockBuilder(module)
        self.cache = cache
        self.start = start
        self.strips: dict[tuple[GlobalVar, Count], Strip | None] = {}
        self.cut: dict[Strip, GlobalVar] = {}

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
        calls = list(self._calls(block))
        sizes = iter(zip(calls, self._chosen(calls), strict=True))
        bindings = [
            relax.VarBinding(b.var, self._of_strips(b.value, *next(sizes)))
            if _is_kernel(b.value)
            else b
            for b in block.bindings
        ]
        return type(block)(bindings)

    def _calls(self, block: relax.BindingBlock) -> Iterator[_Call]:
        lives = _Lives(block, self.sizes)
        for number, binding in enumerate(block.bindings):
            if not _is_kernel(binding.value):
                continue
            operands = binding.value.args[1]
            found = {} if binding.var in lives.told else dict(self._strips(binding.value))
            images = self.sizes.number(self.sizes.batch) if found else 1
            reads = next((s.reads for s in found.values()), [True] * len(operands.fields))
            pairs = list(zip(operands.fields, reads, strict=True))
            read, shared = (
                self.sizes.bytes(operand for operand, is_cut in pairs if is_cut == wanted)
                for wanted in (True, False)
            )
            moved, kept = read + self.sizes.bytes([binding.var]), lives.before(number)
            alive = max(moved, lives.before(number + 1), kept)
            yield _Call(images, found, moved // images, shared, alive // images, kept)

    def _strips(self, call: relax.Call) -> Iterator[tuple[int, Strip]]:
        """What the kernel of ``call`` can be cut to, by the images of a strip."""
        for size, count in self._counts(call):
            key = call.args[0], count
            if key not in self.strips:
                self.strips[key] = strip_of(self.module[call.args[0]], count)
            strip = self.strips[key]
            if strip is not None:
                yield size, strip

    def _counts(self, call: relax.Call) -> Iterator[tuple[int, Count]]:
        """Into how many parts a batch can be cut, by the images of each."""
        batch = self.sizes.batch
        if isinstance(batch, tirx.IntImm):
            for count in divisors(int(batch), _MOST)[1:]:
                yield int(batch) // count, count
        elif isinstance(batch, tirx.Var):
            (ty,) = call.ty_args
            result = ty.fields[-1] if isinstance(ty, relax.TupleType) else ty
            rows = _outer_dim(getattr(result.shape, "values", []))
            own = _outer_dim(getattr(self.module[call.args[0]].params[-1].ty, "shape", []))
            named = [] if own is None else tirx.analysis.undefined_vars(own, [])
            if rows is not None and len(named) == 1:
                image, each = multiple(rows, batch), multiple(own, named[0])
                if image and each and image % each == 0:
                    yield 1, Rows(named[0], image // each)

    def _chosen(self, calls: Sequence[_Call]) -> list[int]:
        """For each call the images of a strip: the cheapest way from the first to the last.

        Of those that cost the same it is that of larger strips.
        """
        ways: dict[int, tuple[float, list[int]]] = {0: (0.0, [])}
        before: _Call | None = None
        for call in calls:
            found = {}
            for size in call.sizes:
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

    def _of_strips(self, value: relax.Call, call: _Call, size: int) -> relax.Call:
        """``value`` with the kernel for ``size`` images."""
        strip = call.strips.get(size)
        if strip is None:
            return value
        symbol, operands = value.args
        if strip.told is not None:
            fields = [field for at, field in enumerate(operands.fields) if at != strip.told]
            operands = relax.Tuple(fields)
        if strip not in self.cut:
            name = f"{symbol.name_hint}_strip{size}"
            self.cut[strip] = self.builder.add_func(strip.func, name)
        return relax.Call(value.op, [self.cut[strip], operands], value.attrs, value.ty_args)
