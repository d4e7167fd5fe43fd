"""The step of a pipeline that takes tuned kernels, and looks for them where it is asked to."""

from __future__ import annotations

import logging
import math
import os
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, is_dataclass
from numbers import Integral, Real
from typing import Any

import tvm
import tvm_ffi
from tvm import IRModule, relax, tirx
from tvm.error import InternalError
from tvm.ir import GlobalVar, Op, TensorLoad
from tvm.ir.transform import Pass
from tvm.s_tir.analysis import estimate_tir_flops
from tvm.target import Target

from .. import schedules
from .._version import __version__
from ..errors import OptionError, TargetError
from ..executors.cpu_features import needs_of
from ..passes.facts import dims_of
from ..passes.fused import C_SOURCE
from ..schedules.llvm.strips import part_shape
from .contest import Contest, Recipe, digest, enter_rules, followed, own_rule
from .device import FAILED, Device
from .records import Record, Records, TunedKernel, TuningReport
from .stand_ins import hide

__all__ = ["Tuned", "Tuning"]

_log = logging.getLogger(__name__)

_CALL_TIR = Op.get("relax.call_tir")
_SCHEDULED = "tirx.is_scheduled"
_DIVISIONS = (tirx.Div, tirx.Mod, tirx.FloorDiv, tirx.FloorMod)
# What a recipe that was not made here may raise.
_RAISED = RuntimeError, ValueError, TypeError, LookupError, AttributeError


@dataclass(frozen=True)
class Tuning:
    """What ``tune=`` asks for.

    Args:
        folder: keeps a record of each kernel that was tuned, for all models and targets.
        trials: candidates to measure of each kernel that ``folder`` lacks; 0: none. First those
            of our rules with other numbers, then meta_schedule's.
        seconds: after so many no further candidate is measured; None: no limit.
        kernels: look at so many kernels of a model, those that take longest; None: all.
        seed: of the search.
        tracker: ``host:port`` of TVM's RPC tracker, to measure on another machine; None: here.
        device: the key under which the tracker has that machine.

    Raises:
        OptionError: a number is out of range, or of ``tracker`` and ``device`` one is missing.
    """

    folder: str | os.PathLike
    trials: int = 0
    seconds: float | None = None
    kernels: int | None = None
    seed: int = 0
    tracker: str | None = None
    device: str | None = None

    def __post_init__(self) -> None:
        _check("trials", self.trials, Integral, 0)
        _check("seconds", self.seconds, Real, 0)
        _check("kernels", self.kernels, Integral, 1)
        _check("seed", self.seed, Integral, 0)
        if (self.tracker is None) != (self.device is None):
            raise OptionError("of Tuning, tracker and device belong together")
        if self.tracker is not None and not self.tracker.rpartition(":")[2].isdigit():
            raise OptionError(f"a tracker is host:port, not {self.tracker!r}")


def _check(name: str, value: Any, kind: type, least: int) -> None:
    fits = isinstance(value, kind) and not isinstance(value, bool)
    if value is not None and not (fits and value >= least):
        raise OptionError(f"{name} of Tuning is at least {least}, not {value!r}")


class Tuned:
    """The step that schedules kernels as was found to be fastest, and leaves others to the rules.

    Attributes:
        report: of the last run.

    Raises:
        OptionError: the folder holds no records, and none are asked for; or it is damaged; or no
            machine of ``target``'s kind is there to ask.
        TargetError: the target is no CPU.
    """

    def __init__(self, tuning: Tuning, target: Target, opt_level: int):
        if target.kind.name != "llvm":
            raise TargetError(f"tune= measures kernels of CPUs, not of {target.kind.name}")
        if tuning.trials and tuning.tracker is None and needs_of(target).foreign:
            raise OptionError("to tune for another machine, give Tuning its tracker= and device=")
        self._records = Records(tuning.folder)
        if not tuning.trials and not self._records:
            raise OptionError(f"{tuning.folder} has no tuning records: Tuning(trials=) makes some")
        self._tuning, self._target, self._opt_level = tuning, target, opt_level
        self.report = TuningReport(())

    def __call__(self, module: IRModule) -> IRModule:
        by_rules = schedules.apply(self._target, self._opt_level)
        found = [_Kernel.of(alone, gvs, by_rules, self._target) for alone, gvs in _alike(module)]
        calls = _calls(module)
        if self._tuning.trials:
            self._search([kernel for kernel in found if not kernel.unfit], calls)
        module = IRModule(dict(module.functions_items()), attrs=module.attrs)
        self.report = TuningReport(tuple(self._use(module, each, calls) for each in found))
        return module

    def _use(self, module: IRModule, kernel: _Kernel, calls: Counter[str]) -> TunedKernel:
        """Put the tuned kernel in its places in ``module`` if it is faster; its row."""
        count = sum(calls[gv.name_hint] for gv in kernel.places)
        record = self._records.get(kernel.key)
        if record is None:
            return TunedKernel(kernel.name, count, note=kernel.unfit or "not measured")
        if record.recipe is not None and record.faster:
            made = self._made(kernel, record.recipe, record.program)["main"]
            for gv in kernel.places:
                attrs = module[gv].attrs
                func = tirx.PrimFunc(made.params, made.body, made.ret_type, attrs)
                module.update_func(gv, func.with_attr(_SCHEDULED, True))
        return TunedKernel(
            kernel.name,
            count,
            record.rules,
            record.tuned,
            record.trials,
            record.by,
            record.faster,
        )

    def _made(self, kernel: _Kernel, recipe: Recipe, program: str | None) -> IRModule:
        """What ``recipe`` makes of the kernel, which must be what was measured."""
        try:
            made = followed(recipe, kernel.module, self._target, self._opt_level)
        except _RAISED as error:
            raise self._records.damaged(kernel.key, error) from error
        if made is None or digest(made.script()) != program:
            raise self._records.damaged(kernel.key, "its recipe makes another kernel")
        return made

    def _search(self, kernels: Sequence[_Kernel], calls: Counter[str]) -> None:
        """Measure and tune what there is no record of, beginning where most time goes."""
        tuning = self._tuning
        end = math.inf if tuning.seconds is None else time.monotonic() + tuning.seconds
        waiting = [kernel for kernel in kernels if self._records.get(kernel.key) is None]
        if not waiting:
            return
        device = Device(self._target, tuning.tracker, tuning.device)
        rows = []
        for kernel in waiting:
            own = device.load(kernel.by_rules) if time.monotonic() < end else None
            if own is None:
                continue
            try:
                contest = Contest(device, kernel.by_rules, own, tuning.trials, end)
            except FAILED:
                device.check()
                continue
            count = sum(calls[gv.name_hint] for gv in kernel.places)
            rows.append((contest.seconds * count, kernel, contest))
        rows.sort(key=lambda row: -row[0])
        for _, kernel, contest in rows[: tuning.kernels]:
            if time.monotonic() < end:
                self._records.keep(kernel.key, self._tuned(kernel, contest))

    def _tuned(self, kernel: _Kernel, contest: Contest) -> Record:
        target, level = self._target, self._opt_level
        enter_rules(contest, kernel.module, target, level)
        if contest.open and not is_dataclass(own_rule(kernel.module, target, level)):
            if _readable(kernel.module):
                from .search import enter_search  # here: most builds need no meta_schedule

                enter_search(contest, kernel.module, target, self._tuning.seed)
        own, tuned = contest.decision()
        best = contest.best
        recipe, program = (
            (None, None) if best is None else (best.recipe, digest(best.module.script()))
        )
        record = Record(kernel.name, own, tuned, contest.tried, recipe, program)
        _log.info("%s", record)
        return record


@dataclass(frozen=True)
class _Kernel:
    """A kernel without a schedule as a module of its own, and where the program has it."""

    module: IRModule
    by_rules: IRModule
    key: str
    places: tuple[GlobalVar, ...]

    @classmethod
    def of(
        cls, module: IRModule, places: Sequence[GlobalVar], by_rules: Pass, target: Target
    ) -> _Kernel:
        """With a key that changes with whatever decides what was measured."""
        own = by_rules(IRModule({"main": module["main"]}))  # dlight changes what it is given
        versions = tvm.__version__, __version__
        return cls(
            module, own, digest(*versions, target, module.script(), own.script()), tuple(places)
        )

    @property
    def name(self) -> str:
        return self.places[0].name_hint

    @property
    def unfit(self) -> str:
        """Why it cannot be measured; empty where it can.

        On zeros, which are safe as indices, a division of integers would end the process.
        """
        func = self.module["main"]
        if C_SOURCE in func.attrs:
            return "C code"
        if not all(_static(getattr(param.ty, "shape", None)) for param in func.params):
            return "symbolic shape"
        return "division of integers" if _divides(func) else ""


def _static(shape: Sequence[tirx.Expr] | None) -> bool:
    return shape is not None and all(isinstance(extent, tirx.IntImm) for extent in shape)


def _divides(func: tirx.PrimFunc) -> bool:
    """Whether a divisor of integers is read from memory."""
    loads: list[TensorLoad] = []

    def visit(division: tirx.Expr) -> None:
        if "int" in str(division.ty.dtype):
            tvm_ffi.structural_walk(division.b, (TensorLoad, loads.append))

    tvm_ffi.structural_walk(func.body, (_DIVISIONS, visit))
    return bool(loads)


def _alike(module: IRModule) -> Iterator[tuple[IRModule, list[GlobalVar]]]:
    """Each kernel that has no schedule yet, once, by itself; and its places."""
    alike: dict[str, tuple[IRModule, list[GlobalVar]]] = {}
    for gv, func in module.functions_items():
        if isinstance(func, tirx.PrimFunc) and _SCHEDULED not in func.attrs:
            alone = IRModule({"main": func.with_attr("global_symbol", "main")})
            alike.setdefault(alone.script(), (alone, []))[1].append(gv)
    yield from alike.values()


def _readable(module: IRModule) -> bool:
    """Whether meta_schedule's analysis knows all forms of a kernel."""
    try:
        estimate_tir_flops(hide(module))
    except InternalError:
        return False
    return True


def _calls(module: IRModule) -> Counter[str]:
    """How often the program calls each kernel."""
    counts: Counter[str] = Counter()

    def visit(node: relax.Expr) -> None:
        if isinstance(node, relax.Call) and node.op == _CALL_TIR:
            counts[node.args[0].name_hint] += _strips(node, module)

    for _, func in module.functions_items():
        if isinstance(func, relax.Function):
            relax.analysis.post_order_visit(func, visit)
    return counts


def _strips(call: relax.Call, module: IRModule) -> int:
    """How many strips of a batch a call of a kernel stands for."""
    (ty,) = call.ty_args
    results = ty.fields if isinstance(ty, relax.TupleType) else [ty]
    buffers = list(filter(tirx.is_buffer_var, module[call.args[0]].params))
    dims = dims_of(results[0])
    return 1 if dims is None else part_shape(dims, buffers[-len(results)].ty.shape)[1]
