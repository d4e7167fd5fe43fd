"""Schedules that TVM's meta_schedule finds: random ones, and mutations of the fastest.

Nothing but measurements ranks candidates: a cost model that learns needs more of them than a
kernel is worth here.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import tvm_ffi
from tvm import IRModule, tirx
from tvm.s_tir import meta_schedule as ms
from tvm.target import Target

from .contest import Contest, Recipe, followed
from .stand_ins import hide

__all__ = ["enter_search"]

_log = logging.getLogger(__name__)

_BATCH = 8  # candidates that are chosen together
_POPULATION = 32
_FAILED_SECONDS = 1e10  # what meta_schedule writes where a candidate fails
_INTRINSICS = "tvm.s_tir.tensor_intrin"


def enter_search(contest: Contest, module: IRModule, target: Target, seed: int) -> None:
    """Enter candidates for ``module``, a kernel without a schedule, as long as the contest is open.

    It is asked between candidates: what meta_schedule does to find some is not interrupted.
    """
    hidden = hide(module)
    try:
        context, database = _context(hidden, target, seed), ms.database.MemoryDatabase()
        workload = database.commit_workload(hidden)
        context.pre_tuning(contest.trials, _BATCH, database=database)
        while contest.open and (candidates := context.generate_measure_candidates()):
            results = []
            for candidate in candidates:
                trace = candidate.sch.trace
                seconds = _entered(contest, _plain(trace.as_json()), module, target)
                results.append(ms.runner.RunnerResult([seconds], None))
                record = ms.database.TuningRecord(
                    trace, workload, [seconds], target, candidate.args_info
                )
                database.commit_tuning_record(record)
            context.notify_runner_results(candidates, results)
        context.post_tuning()
    except (RuntimeError, ValueError) as error:  # a space without any valid candidate
        _log.info("meta_schedule: %s", str(error).strip().splitlines()[-1])


def _context(module: IRModule, target: Target, seed: int) -> ms.TuneContext:
    """The space of rules that need no instruction of one CPU, and a small evolution in it."""
    space = ms.space_generator.PostOrderApply(
        sch_rules="llvm", postprocs="llvm", mutator_probs="llvm"
    )
    strategy = ms.search_strategy.EvolutionarySearch(
        population_size=_POPULATION, init_min_unmeasured=1, genetic_num_iters=2
    )
    with _without_intrinsics():
        return ms.TuneContext(
            module,
            target=target,
            space_generator=space,
            search_strategy=strategy,
            rand_state=seed + 1,  # 0 is no seed to TVM
            num_threads=1,
            logger=_log,
        )


@contextmanager
def _without_intrinsics() -> Iterator[None]:
    """TuneContext imports all tensor intrinsics, 15 s of parsing for rules that use none."""
    there = _INTRINSICS in sys.modules
    sys.modules.setdefault(_INTRINSICS, ModuleType(_INTRINSICS))
    try:
        yield
    finally:
        if not there:
            del sys.modules[_INTRINSICS]


def _entered(contest: Contest, trace: list, module: IRModule, target: Target) -> float:
    recipe: Recipe = {"trace": trace}
    try:
        scheduled = followed(recipe, module, target, 0)
    except (RuntimeError, ValueError, TypeError):  # named values are in the way
        return _FAILED_SECONDS
    seconds = contest.enter(recipe, scheduled)
    return _FAILED_SECONDS if seconds is None else seconds


def _plain(value: Any) -> Any:
    """What TVM writes of a trace as what JSON writes."""
    if isinstance(value, tvm_ffi.Array | list | tuple):
        return [_plain(each) for each in value]
    if isinstance(value, tvm_ffi.Map | dict):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, tirx.IntImm):
        return int(value)
    if isinstance(value, tirx.FloatImm):
        return float(value.value)
    return value if isinstance(value, int | float | None) else str(value)
