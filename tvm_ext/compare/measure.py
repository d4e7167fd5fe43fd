"""Build, check and time a model on our side and on another engine's, in one run."""

from __future__ import annotations

import logging
import os
import tempfile
import time
from collections.abc import Sequence
from datetime import datetime
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

import onnx_ir as ir

from ..errors import ComparisonError, MissingPackageError
from ..interface import Shapes, TensorType
from .client import Worker
from .engines import ENGINES, OURS, REFERENCE
from .inputs import Given, declared, feeds_for
from .result import Comparison, Side, this_machine
from .statistics import QUIET, Accuracy, Block, accuracies, latency
from .worker import Job

if TYPE_CHECKING:
    from ..executors.plan import MemoryPlan

__all__ = ["compare"]

_log = logging.getLogger("tvm_ext.compare")

# Longer than the threads of either engine spin after a run, so that they do not meet the other's.
PAUSE = 0.15
# Busy machines get more rounds, up to this many times those asked for.
PATIENCE = 3


def compare(
    model: object,
    inputs: Given = None,
    against: str = "onnxruntime",
    target: object = "llvm",
    *,
    threads: int | None = None,
    batch: int | None = None,
    shapes: Shapes | None = None,
    opt_level: int = 3,
    precision: str | None = None,
    rounds: int = 6,
    seconds: float = 0.3,
) -> Comparison:
    """Compare a model compiled by us with another engine running the same file.

    Each engine works in a fresh process of its own with the same number of threads; blocks of
    runs alternate; both get numpy arrays and give numpy arrays.

    Args:
        model: as for ``convert_and_build``.
        inputs: arrays by name, or an ``.npz`` file; random ones of a fixed seed by default.
        against: a name in ``tvm_ext.compare.engines.ENGINES``. A model with operators of plugins,
            which onnxruntime lacks, is compared with their numpy references instead.
        target: as for ``convert_and_build``.
        threads: of each engine; by default every CPU that this process may use.
        batch: the size of symbolic first dims.
        shapes: values for other symbolic dims, as for ``convert_and_build``.
        opt_level, precision: as for ``convert_and_build``.
        rounds: blocks per engine that should be free of other processes' work.
        seconds: of each block.

    Raises:
        ComparisonError: nothing to compare, answers of other shapes or dtypes, an engine failed.
        InputError: the inputs do not fit the model.
        MissingPackageError: the other engine or psutil is not installed.
        TvmExtError: whatever ``convert_and_build`` raises.
    """
    # Here, because workers import this package and the other engine's should not hold TVM.
    from .. import targets
    from ..build import convert_and_build
    from ..executors import threads as cores
    from ..frontend import load, specialise

    _check(against, rounds, threads, seconds)
    source = load(model)
    specialise(source, shapes)
    if not source.graph.outputs:
        raise ComparisonError("the model has no outputs: nothing to compare")
    against, plugins = _rival(source, against)
    feeds = feeds_for(source, inputs, batch)
    threads = threads or cores.threads()
    resolved = targets.resolve(target, threads)
    specialise(source, {name: feeds[name].shape for name in declared(source)})
    start = time.perf_counter()
    compiled = convert_and_build(source, resolved, opt_level=opt_level, precision=precision)
    build_seconds = time.perf_counter() - start

    with tempfile.TemporaryDirectory(prefix="tvm_ext_compare_") as folder:
        ours, theirs = Path(folder, "model.tvmx"), Path(folder, "model.onnx")
        compiled.save(ours)
        ir.save(source, theirs)
        with (
            Worker(Job(ENGINES[OURS], ours, feeds, threads)) as us,
            Worker(Job(ENGINES[against], theirs, feeds, threads, plugins)) as them,
        ):
            outputs = _accuracies([v.name for v in source.graph.outputs], us, them)
            blocks = alternate((us, them), rounds, seconds)
            our_side = _side(us, blocks[0], build_seconds, compiled.memory)
            their_side = _side(them, blocks[1], None, None)
    return Comparison(
        model=_name(model, source),
        inputs=tuple(f"{name}: {TensorType.of(array)}" for name, array in feeds.items()),
        outputs=outputs,
        ours=our_side,
        theirs=their_side,
        threads=threads,
        target=str(resolved.attrs.get("mcpu", resolved.kind.name)),
        opt_level=opt_level,
        precision=precision or "fp32",
        machine=this_machine(),
        date=datetime.now().astimezone().isoformat(timespec="seconds"),
    )


def _check(against: str, rounds: int, threads: int | None, seconds: float) -> None:
    rivals = sorted(ENGINES.keys() - {OURS})
    if against not in rivals:
        raise ComparisonError(f"cannot compare against {against!r}; there are {rivals}")
    for name, count in (("rounds", rounds), ("threads", 1 if threads is None else threads)):
        if not isinstance(count, int) or count < 1:
            raise ComparisonError(f"{name} are a whole number of at least 1, not {count!r}")
    if not isinstance(seconds, int | float) or not seconds > 0:
        raise ComparisonError(f"seconds of a block are a number above 0, not {seconds!r}")
    rival = ENGINES[against]
    for package, extra in ((rival.package, rival.extra), ("psutil", "compare")):
        if find_spec(package) is None:
            raise MissingPackageError(f"{package} is not installed: pip install 'tvm-ext[{extra}]'")


def _rival(source: ir.Model, against: str) -> tuple[str, tuple[str, ...]]:
    """The engine to compare with, and the plugins whose operators it needs references of."""
    plugins = _plugins_of(source)
    if plugins and against == "onnxruntime":
        _log.warning("onnxruntime lacks %s: comparing with numpy references", ", ".join(plugins))
        against = REFERENCE
    return against, tuple(plugins.values())


def _plugins_of(source: ir.Model) -> dict[str, str]:
    """The operators of ``source`` that plugins declare, each with its plugin.

    Raises:
        ComparisonError: one is declared in no file, or has no reference.
    """
    from ..extend.plugin import INTERACTIVE, PLUGINS

    graph = ir.traversal.RecursiveGraphIterator(source.graph)
    used = {(node.domain, node.op_type) for node in graph}
    found: dict[str, str] = {}
    for plugin in (INTERACTIVE, *PLUGINS.values()):
        for operator in plugin.operators:
            if operator.domain and (operator.domain, operator.op_type) in used:
                if plugin is INTERACTIVE or operator.numpy is None:
                    raise ComparisonError(
                        f"{operator} is no operator of onnxruntime: a comparison needs its "
                        "numpy reference, in a plugin's file"
                    )
                found[str(operator)] = plugin.name
    return found


def _name(model: object, source: ir.Model) -> str:
    if isinstance(model, str | os.PathLike):
        return Path(model).stem
    return source.graph.name or "model"


def _accuracies(names: Sequence[str], us: Worker, them: Worker) -> tuple[Accuracy, ...]:
    got: list = us.ask("outputs")
    expected: list = them.ask("outputs")
    if not len(got) == len(expected) == len(names):
        theirs = f"{len(expected)} of {them.engine.name}"
        raise ComparisonError(f"{len(got)} outputs of ours, {theirs}, {len(names)} declared")
    found = tuple(chain.from_iterable(map(accuracies, names, got, expected)))
    if not found:
        raise ComparisonError("the outputs hold no tensors: nothing to compare")
    return found


def alternate(workers: Sequence[Worker], rounds: int, seconds: float) -> list[list[Block]]:
    """Blocks of each worker in turn, until ``rounds`` of each are quiet or patience ends."""
    blocks: list[list[Block]] = [[] for _ in workers]
    for _ in range(PATIENCE * rounds):
        for mine, worker in zip(blocks, workers, strict=True):
            time.sleep(PAUSE)
            mine.append(worker.ask("block", seconds))
        if all(sum(b.foreign < QUIET for b in mine) >= rounds for mine in blocks):
            break
    return blocks


def _side(
    worker: Worker, blocks: Sequence[Block], build: float | None, memory: MemoryPlan | None
) -> Side:
    version, load_seconds, resident, process = worker.ask("facts")
    return Side(
        engine=worker.engine.name,
        version=version,
        threading=worker.engine.threading,
        build_seconds=build,
        load_seconds=load_seconds,
        resident_bytes=resident,
        process_bytes=process,
        arena_bytes=memory.arena_bytes if memory else None,
        weight_bytes=memory.weight_bytes if memory else None,
        latency=latency(blocks),
    )
