"""The phases of a build and the opt levels, on one screen.

A :class:`Pipeline` is a value: an ordered list of named steps, each in a phase. Take the default
of a target, insert a step before or after a named one, drop one, print the order. A step is a
rewrite of an ONNX model in ``import``, a pass on a module later; a schedule rule is one too.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import reduce
from types import FunctionType
from typing import Any

import onnx_ir as ir
import tvm
from tvm import IRModule, relax, tirx
from tvm.ir.transform import PassContext
from tvm.s_tir import dlight as dl
from tvm.target import Target

from . import schedules
from .deadline import Overrun, within
from .errors import BuildError, OptionError, TargetError, unknown
from .executors.choice import is_planned
from .frontend import rewrites
from .passes.alike_dims import alike_dims
from .passes.bfloat16 import bfloat16_conv2d, bfloat16_matmul
from .passes.bfloat16_recurrent import bfloat16_recurrent
from .passes.bfloat16_words import bfloat16_words
from .passes.blocked_conv2d import BLOCKED_CONV2D
from .passes.blocked_layout import blocked_layout
from .passes.branches import outline_branches
from .passes.compound import Compound
from .passes.empty_sums import empty_sums
from .passes.expanded_depthwise import expanded_depthwise
from .passes.few_filters import few_filters
from .passes.gated_conv2d import GATED_CONV2D
from .passes.gather_dims import gather_dims
from .passes.integer_conv2d import INTEGER_CONV2D
from .passes.integer_matmul import INTEGER_MATMUL, INTEGER_MATMUL_OF_ACTIVATIONS
from .passes.integer_products import multiplies_bytes
from .passes.legalize import legalize
from .passes.mark_epilogues import mark_epilogues
from .passes.matmul_blocks import MATMUL_BLOCKS, rounded_blocks
from .passes.name_dims import name_dims
from .passes.order_dims import order_dims
from .passes.order_numbers import order_numbers
from .passes.plain_dots import plain_dots
from .passes.scans import ARGSORT, RUNNING, TOP_K
from .passes.signed_weights import signed_weights
from .passes.strips import strips
from .passes.symbolic_attention import SYMBOLIC_ATTENTION
from .passes.tiled_attention import TILED_ATTENTION
from .passes.tiled_matmul import TILED_MATMUL
from .passes.upright_images import upright_images
from .passes.visible_casts import visible_casts
from .passes.wide_factors import wide_factors
from .passes.winograd import winograd
from .places import caller, place
from .schedules.llvm.winograd import WinogradModel
from .schedules.machine import Machine

__all__ = ["EXTENSIONS", "PHASES", "PRECISIONS", "Pipeline", "Step", "default"]

PHASES = ("import", "select", "fuse", "schedule")
# What factors are rounded to -> the instructions that it is for, and whether a CPU has them.
_ROUNDED: dict[str, tuple[str, Callable[[Target], bool]]] = {
    "bf16": ("AVX512_BF16", lambda target: Machine.of(target).bfloat16),
    "a8": ("VNNI", multiplies_bytes),
}
#: The types in which products are computed.
PRECISIONS = ("fp32", *_ROUNDED)

Rewrite = Callable[[Any], Any]

#: How long a step of a user's may run: built-in ones take less than a tenth on large models.
SECONDS = 60.0

#: How far the answer of a deep network moves where all its products round their factors.
_BFLOAT16_BOUND = 0.5
# The same of factors that are rounded to 8 bits.
_BYTE_BOUND = 0.5
# The time of a direct convolution of bfloat16 factors, without tiles, relative to one of float32.
_BFLOAT16_DIRECT = 0.5

_FUSION_BOUND, _LONGEST_FUSION = "relax.FuseOps.max_depth", 64  # operators in one kernel


@dataclass(frozen=True)
class Step:
    """One pass in a phase. ``run`` maps an onnx_ir model in ``import``, an IRModule after it.

    ``bound`` is how far it may move a float32 answer ``y``, as a part of ``1 + |y|``; answers of
    other types in proportion to their precision. ``compound``: it makes one kernel of several
    operators, and may be left out. ``place``: file and line of a step that is a user's.
    """

    phase: str
    name: str
    run: Rewrite
    bound: float = 1e-4
    compound: bool = False
    place: str = ""

    @property
    def title(self) -> str:
        """What errors call it."""
        return f"step {self.name!r} of phase {self.phase!r}"

    def __str__(self) -> str:
        return f"{self.title} ({self.place})" if self.place else self.title


Watch = Callable[[Step, Any, float], None]


@dataclass(frozen=True)
class Pipeline:
    """Ordered steps from the loaded ONNX model to scheduled kernels."""

    target: Target
    opt_level: int
    steps: tuple[Step, ...]
    precision: str = "fp32"

    def insert(
        self,
        name: str,
        run: Rewrite | dl.base.ScheduleRule | Compound,
        *,
        before: str | None = None,
        after: str | None = None,
        phase: str | None = None,
        bound: float = 1e-4,
        seconds: float | None = SECONDS,
        where: str | None = None,
    ) -> Pipeline:
        """A pipeline with one more step: beside a named one and in its phase, or last in a phase.

        Args:
            run: a function or a pass of onnx_ir or TVM; or a schedule rule of dlight, which is
                asked for every kernel that has no schedule yet; or a compound operator.
            bound: see :class:`Step`.
            seconds: after which a step that still runs is stopped and named; None: never. What
                stays in TVM's C++ is stopped when it comes back. Of a compound, each function that
                a plugin attaches has as long.
            where: file and line for errors; by default those of the function, or of this call.

        Raises:
            OptionError: not one of ``before``, ``after`` and ``phase`` is given, it is unknown, or
                ``name`` is taken.
        """
        if sum(place is not None for place in (before, after, phase)) != 1:
            raise OptionError("give one anchor: before=NAME, after=NAME or phase=PHASE")
        if any(step.name == name for step in self.steps):
            raise OptionError(f"a step named {name!r} is there already")
        if phase is not None:
            if phase not in PHASES:
                raise OptionError(unknown("phase", phase, PHASES))
            at = sum(PHASES.index(step.phase) <= PHASES.index(phase) for step in self.steps)
        else:
            at = self._index(before or after)
            phase = self.steps[at].phase
            at += after is not None
        compound = isinstance(run, Compound)
        if where is None:
            where = place(run.__code__) if isinstance(run, FunctionType) else caller()
        step = Step(phase, name, _adapted(run, self.target), bound, compound, where)
        if seconds is not None and not compound:
            step = replace(step, run=_limited(step, seconds))
        return replace(self, steps=(*self.steps[:at], step, *self.steps[at:]))

    def without(self, name: str) -> Pipeline:
        """A pipeline that lacks the named step.

        Raises:
            OptionError: there is no such step.
        """
        at = self._index(name)
        return replace(self, steps=self.steps[:at] + self.steps[at + 1 :])

    def watched(self, watch: Watch) -> Pipeline:
        """The same steps; after each, ``watch`` is given it, its result and its seconds."""

        def watching(step: Step) -> Step:
            def run(value: Any) -> Any:
                start = time.perf_counter()
                result = step.run(value)
                if isinstance(result, type(value)):  # else the build says so
                    watch(step, result, time.perf_counter() - start)
                return result

            return replace(step, run=run)

        return replace(self, steps=tuple(map(watching, self.steps)))

    def phase(self, name: str) -> Iterator[Step]:
        """The steps of one phase, in order."""
        return (step for step in self.steps if step.phase == name)

    def _index(self, name: str | None) -> int:
        for index, step in enumerate(self.steps):
            if step.name == name:
                return index
        raise OptionError(unknown("step", str(name), [step.name for step in self.steps]))

    def __str__(self) -> str:
        return "\n".join(
            f"{step.phase:9} {step.name}{' (compound)' * step.compound}" for step in self.steps
        )


def _limited(step: Step, seconds: float) -> Rewrite:
    """What ``step`` runs, ended with an error that names it when the time is over."""
    file = str(step.place).rpartition(":")[0]

    def run(value: Any) -> Any:
        try:
            return within(seconds, lambda: step.run(value), file)
        except Overrun as overrun:
            raise BuildError(
                f"{step} is {overrun}: does it loop? seconds=... gives it more time"
            ) from overrun

    return run


def _adapted(run: Rewrite | dl.base.ScheduleRule | Compound, target: Target) -> Rewrite:
    """What a user gives for a step, as a function of the model or module."""
    if isinstance(run, Compound):
        return run.on(target)
    if isinstance(run, dl.base.ScheduleRule):
        return lambda module: _scheduled(module, run, target)
    if isinstance(run, ir.passes.PassBase):
        return lambda model: run(model).model
    return run


class _Kept(dl.base.ScheduleRule):
    """A rule whose error is kept: TVM makes a RuntimeError of whatever class crosses its C++."""

    def __init__(self, rule: dl.base.ScheduleRule):
        self.rule = rule
        self.error: BaseException | None = None

    def apply(self, func: tirx.PrimFunc, target: Target, tunable: bool) -> Any:
        try:
            return self.rule.apply(func, target, tunable)
        except BaseException as error:
            self.error = error
            raise


def _scheduled(module: IRModule, rule: dl.base.ScheduleRule, target: Target) -> IRModule:
    """``module``, whose kernels that have no schedule were offered to ``rule``."""
    kept = _Kept(rule)
    try:
        with target:
            return dl.ApplyDefaultSchedule(kept)(module)
    except Exception:
        if kept.error is None:
            raise
        raise kept.error from None


def _fuse_ops(module: IRModule) -> IRModule:
    """TVM's FuseOps, with a bound: the formulas of one kernel nest, and walks over them recurse."""
    context = PassContext.current()
    with PassContext(
        opt_level=context.opt_level,
        required_pass=context.required_pass,
        disabled_pass=context.disabled_pass,
        instruments=context.instruments,
        config={_FUSION_BOUND: _LONGEST_FUSION, **context.config},
    ):
        return relax.transform.FuseOps()(module)


#: What plugins make of every default pipeline, in the order in which they were loaded.
EXTENSIONS: list[Callable[[Pipeline], Pipeline]] = []


def default(target: Target, opt_level: int = 3, precision: str | None = None) -> Pipeline:
    """The pipeline of ``target`` (see the table of opt levels in the README), plugins included.

    ``precision``: "bf16" rounds the factors of products and convolutions, "a8" the left sides of
    products with weights of few bits; None is "fp32".

    Raises:
        OptionError: there is no such level or precision, or the level does not offer it.
        TargetError: the target lacks the precision.
    """
    if opt_level not in (0, 1, 2, 3):
        raise OptionError(f"opt_level is 0, 1, 2 or 3, not {opt_level!r}")
    precision = "fp32" if precision is None else precision
    _check_precision(precision, target, opt_level)
    from .extend.plugin import load_installed  # here, because plugins are built on this module

    load_installed()
    vector = Machine.of(target).lanes("float32") if target.kind.name == "llvm" else 0
    steps = [Step("import", name, run) for name, run in rewrites.steps(opt_level, vector)]
    steps += _select(target, opt_level, precision)
    steps += _fuse(target, opt_level, precision)
    if opt_level >= 2 and target.kind.name == "llvm":
        steps.append(_step("schedule", strips(target, is_planned)))
    steps.append(_step("schedule", schedules.apply(target, opt_level)))
    built_in = Pipeline(target, opt_level, tuple(steps), precision)
    return reduce(lambda pipeline, extend: extend(pipeline), EXTENSIONS, built_in)


def _step(phase: str, run: tvm.ir.transform.Pass, name: str = "", bound: float = 1e-4) -> Step:
    return Step(phase, name or run.info.name, run, bound)


def _select(target: Target, opt_level: int, precision: str) -> Iterator[Step]:
    """Operators become kernels: compound ones first, then TVM's of each operator."""
    cpu = target.kind.name == "llvm"

    def compound(operator: Compound, bound: float = 1e-4) -> Step:
        return Step("select", operator.name, operator.on(target), bound, compound=True)

    if opt_level >= 1:
        yield _step("select", outline_branches)
    if cpu:
        if opt_level >= 1:
            yield compound(RUNNING)
        yield compound(TOP_K)
        yield compound(ARGSORT)
    yield _step("select", relax.backend.DispatchSampling())
    yield _step("select", relax.backend.DispatchSortScan())
    if cpu and opt_level >= 2:
        rounds = precision == "bf16"
        yield _step("select", upright_images)
        yield _step("select", few_filters(target))
        if opt_level >= 3:
            yield compound(SYMBOLIC_ATTENTION)
            yield compound(TILED_ATTENTION)
        yield _step("select", wide_factors(target))
        yield from _convolutions(target, opt_level, rounds, compound)
        yield _step("select", signed_weights)
        yield compound(GATED_CONV2D)
        yield compound(BLOCKED_CONV2D)
        yield compound(INTEGER_CONV2D)
        yield _step("select", blocked_layout(target))
        yield compound(rounded_blocks(always=precision == "a8"), _BYTE_BOUND)
        yield compound(MATMUL_BLOCKS)
        yield compound(TILED_MATMUL)
        yield compound(INTEGER_MATMUL)
        yield compound(INTEGER_MATMUL_OF_ACTIVATIONS)
    if not cpu:
        yield _step("select", plain_dots)
    yield _step("select", legalize(cpu=cpu), "LegalizeOps")


def _convolutions(
    target: Target, opt_level: int, rounds: bool, compound: Callable[..., Step]
) -> Iterator[Step]:
    """Winograd's method and factors of bfloat16, the better one first, which products have, too."""
    machine, bound = Machine.of(target), _BFLOAT16_BOUND if rounds else 1e-4
    # What tiles of AMX do not fill is left to Winograd's method.
    tiles = rounds and machine.tiles
    direct = _BFLOAT16_DIRECT if rounds and not tiles else 1.0
    found = [compound(winograd(WinogradModel(direct=direct)))] if opt_level >= 3 else []
    if machine.bfloat16:
        found.insert(0 if tiles else len(found), compound(bfloat16_conv2d(rounds), bound))
        found.append(compound(bfloat16_matmul(rounds), bound))
        if rounds:
            found.append(_step("select", bfloat16_recurrent, bound=bound))
    yield from found


def _fuse(target: Target, opt_level: int, precision: str) -> Iterator[Step]:
    """Kernels that follow each other become one; what they have in common is settled."""
    transform = relax.transform
    if opt_level >= 1:
        yield _step("fuse", transform.AnnotateTIROpPattern())
        yield _step("fuse", mark_epilogues)
        if precision == "bf16":
            yield _step("fuse", bfloat16_words, bound=_BFLOAT16_BOUND)
        yield _step("fuse", transform.FoldConstant())
        yield _step("fuse", alike_dims)
        yield _step("fuse", visible_casts)
        yield _step("fuse", _fuse_ops, "FuseOps")
        yield _step("fuse", order_dims)
        if opt_level >= 2 and target.kind.name == "llvm":
            yield _step("fuse", expanded_depthwise(target))
        yield _step("fuse", gather_dims)
        yield _step("fuse", transform.FuseTIR())
        yield _step("fuse", name_dims)
        yield _step("fuse", order_numbers)
    yield _step("fuse", empty_sums)
    yield _step("fuse", transform.DeadCodeElimination())


def _check_precision(precision: str, target: Target, opt_level: int) -> None:
    if precision not in PRECISIONS:
        raise OptionError(unknown("precision", precision, PRECISIONS))
    if precision == "fp32":
        return
    instructions, has = _ROUNDED[precision]
    if target.kind.name != "llvm" or not has(target):
        raise TargetError(
            f"precision {precision!r} needs a CPU with {instructions}, which the target"
            f" {target.attrs.get('mcpu', target.kind.name)} lacks: use None or 'fp32'"
        )
    if opt_level < 2:
        raise OptionError(f"precision {precision!r} needs opt_level 2 or 3, not {opt_level}")
