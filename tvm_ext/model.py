"""A compiled model: call it, run it, ask it.

Part of what loading a model needs: nothing here imports TVM or ONNX before it is asked for.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from copy import deepcopy
from dataclasses import asdict, dataclass
from html import escape
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from .display import as_html
from .errors import InputError, OptionError, RunError
from .executors import artifact, threads
from .executors.plan import MemoryPlan
from .executors.static import StaticExecutor
from .executors.symbolic import SymbolicExecutor
from .inputs import random_inputs
from .interface import Info, MapType, TensorInfo, ValueInfo, as_json, from_json
from .profile import KernelFacts, Peak, Profile, summarise
from .strings import StringTable, running
from .values import giving, held

if TYPE_CHECKING:
    import tvm

    from .executors.vm import VMExecutor
    from .tuning import TuningReport

__all__ = ["CompiledModel", "RunTimes", "TensorInfo", "ValueInfo", "load"]


@dataclass(frozen=True)
class RunTimes:
    """Seconds of each of several runs."""

    seconds: tuple[float, ...]
    threads: int

    @property
    def median(self) -> float:
        return float(np.median(self.seconds))

    def percentile(self, q: float) -> float:
        """Seconds that ``q`` percent of the runs did not exceed."""
        return float(np.percentile(self.seconds, q))

    def __str__(self) -> str:
        p10, p90 = self.percentile(10), self.percentile(90)
        return (
            f"{self.median * 1e3:.3f} ms median, {p10 * 1e3:.3f} p10, {p90 * 1e3:.3f} p90 "
            f"({len(self.seconds)} runs, {self.threads} threads)"
        )

    def _repr_html_(self) -> str:
        return as_html(str(self))


class CompiledModel:
    """A model compiled for one target.

    Call it with arrays (numpy or DLPack) by position or by input name, as keywords or in one
    dict; it returns one numpy array, or a tuple of them where the model has several outputs. A
    sequence is a list, an optional without an element is None.
    """

    def __init__(
        self,
        executor: StaticExecutor | SymbolicExecutor | VMExecutor,
        inputs: Sequence[Info],
        outputs: Sequence[Info],
        facts: Mapping[str, KernelFacts] | None = None,
        sources: Callable[[], dict[str, str]] | None = None,
        strings: Sequence[str] | None = None,
        not_one: Sequence[tuple[str, int]] = (),
    ):
        self._executor = executor
        self._facts = dict(facts or {})
        self._sources = sources or executor.sources
        self.inputs = tuple(inputs)
        self._names = {info.name for info in self.inputs}
        self.outputs = tuple(outputs)
        self._giving = [(k, give) for k, give in enumerate(map(giving, self.outputs)) if give]
        self._strings = None if strings is None else StringTable(strings)
        #: Inputs and axes of sizes that are not 1: values would have other ranks if they were.
        self.not_one = [(name, axis) for name, axis in not_one]
        #: What ``tune=`` added, kernel by kernel; None where it was not asked for, and once saved.
        self.tuning: TuningReport | None = None

    @property
    def device(self) -> tvm.runtime.Device:
        """Where the model runs."""
        return self.executor.device

    @property
    def memory(self) -> MemoryPlan | None:
        """What was planned at compile time; None where it depends on the sizes of inputs."""
        return self.executor.memory

    @property
    def executor(self) -> StaticExecutor | SymbolicExecutor | VMExecutor:
        """What runs it, for those who build on it."""
        return self._executor

    def nodes_of(self, variable: str) -> tuple[str, ...]:
        """The ONNX nodes behind the kernel that defines ``variable`` of the program."""
        return self._facts[variable].nodes if variable in self._facts else ()

    def save(self, path: str | os.PathLike) -> None:
        """Write the model to one file, for :func:`tvm_ext.load`.

        Raises:
            OutputPathError: the file cannot be written; nothing is left half-written.
            BuildError: the kernels cannot be linked: there is no C compiler.
        """
        artifact.write(path, self.executor, self._interface(), self.sources())

    def _interface(self) -> dict[str, object]:
        """What a file says of the model beside its executor."""
        return {
            "inputs": [as_json(info) for info in self.inputs],
            "outputs": [as_json(info) for info in self.outputs],
            "facts": {name: asdict(fact) for name, fact in self._facts.items()},
            "strings": None if self._strings is None else self._strings.texts,
            "not_one": self.not_one,
        }

    def sources(self) -> dict[str, str]:
        """The program as text: Relax and TIR after each phase, then what the compiler emitted."""
        return self._sources()

    def profile(self, feeds: Mapping[str, object] | None = None, repeat: int = 20) -> Profile:
        """Time every kernel in ``repeat`` whole runs on ``feeds`` (seeded random by default).

        Raises:
            InputError: ``feeds`` do not fit, or a symbolic dim needs them.
            OptionError: ``repeat`` is below 1.
        """
        _check_count("repeat", repeat, least=1)
        with nullcontext() if self._strings is None else running(self._strings):
            arrays = self._arrays(self._or_random(feeds))
            self.executor(arrays)
            calls, seconds = self.executor.time_kernels(arrays, repeat)
        shapes = [getattr(array, "shape", ()) for array in arrays]
        return summarise(calls, self._facts, shapes, seconds, self._peak())

    def _peak(self) -> Peak | None:
        """What this machine can do; None where the kernels run on a GPU, or there is no TVM."""
        if not self.executor.on_cpu:
            return None
        try:
            from . import peak
            from .executors.forks import on_live_pool
        except ImportError:
            return None
        kinds = {kind for fact in self._facts.values() for kind in fact.dots}
        return on_live_pool(peak.measure, kinds)

    def benchmark(
        self, feeds: Mapping[str, object] | None = None, *, warmup: int = 3, repeat: int = 30
    ) -> RunTimes:
        """Time ``repeat`` whole runs on ``feeds`` (seeded random by default), copies included.

        Raises:
            InputError: ``feeds`` do not fit, or a symbolic dim needs them.
            OptionError: ``repeat`` is below 1, or ``warmup`` below 0.
        """
        _check_count("repeat", repeat, least=1)
        _check_count("warmup", warmup, least=0)
        feeds = self._or_random(feeds)
        for _ in range(warmup):
            self.run(None, feeds)
        seconds = []
        for _ in range(repeat):
            start = time.perf_counter()
            self.run(None, feeds)
            seconds.append(time.perf_counter() - start)
        return RunTimes(tuple(seconds), threads.threads())

    def _or_random(self, feeds: Mapping[str, object] | None) -> Mapping[str, object]:
        return random_inputs(self.inputs) if feeds is None else feeds

    def __repr__(self) -> str:
        def signature(infos: Sequence[Info]) -> str:
            return ", ".join(map(str, infos))

        return f"{type(self).__name__}({signature(self.inputs)} -> {signature(self.outputs)})"

    def _repr_html_(self) -> str:
        rows = [
            (side, info)
            for side, infos in (("input", self.inputs), ("output", self.outputs))
            for info in infos
        ]
        cells = "".join(
            f"<tr><td>{side}</td><td>{escape(info.name)}</td>{_cells(info)}</tr>"
            for side, info in rows
        )
        header = "<tr><th></th><th>name</th><th>shape</th><th>dtype</th></tr>"
        memory = "" if self.memory is None else f"<p>{self.memory}</p>"
        return f"<table>{header}{cells}</table>{memory}"

    def __reduce__(self) -> tuple:
        data = artifact.dumps(self.executor, self._interface(), self.sources())
        return _loads, (data,)

    def __copy__(self) -> CompiledModel:
        return self  # as of a tuple: nothing in it changes

    def __deepcopy__(self, _memo: dict) -> CompiledModel:
        return self

    def __call__(self, /, *args: object, **kwargs: object) -> np.ndarray | tuple[np.ndarray, ...]:
        names = [info.name for info in self.inputs]
        if len(args) > len(names):
            raise InputError(f"{len(args)} inputs given, the model has {len(names)}: {names}")
        feeds: dict[str, object] = dict(zip(names, args, strict=False))
        if len(args) == 1 and isinstance(args[0], Mapping) and not _is_map(self.inputs[0]):
            feeds = dict(args[0])
        twice = sorted(feeds.keys() & kwargs.keys())
        if twice:
            raise InputError(f"inputs given twice: {twice}")
        results = self.run(None, feeds | kwargs)
        return results[0] if len(results) == 1 else tuple(results)

    def run(
        self, output_names: Sequence[str] | None, feeds: Mapping[str, object]
    ) -> list[np.ndarray]:
        """Run as ``onnxruntime.InferenceSession.run`` does.

        Args:
            output_names: the outputs wanted, in order; None or empty for all.
            feeds: one array per input name: numpy or DLPack, or Python numbers, which take the
                input's dtype. All results are new arrays.

        Raises:
            InputError: a name, dtype, rank or shape does not fit.
            RunError: a node does not allow the values or sizes that it is given, there is no
                memory for them, or a kernel gave up.
        """
        if self._strings is None:
            return self._run(output_names, feeds)
        with running(self._strings):
            return self._run(output_names, feeds)

    def _run(
        self, output_names: Sequence[str] | None, feeds: Mapping[str, object]
    ) -> list[np.ndarray]:
        wanted = None if output_names is None else self._output_indices(output_names)
        try:
            results = self._executor(self._arrays(feeds))
        except MemoryError as error:
            raise RunError(f"the sizes given need more memory than there is: {error}") from error
        for k, give in self._giving:
            results[k] = give(results[k])
        if wanted is None:
            return results
        return [
            deepcopy(results[k]) if k in wanted[:place] else results[k]
            for place, k in enumerate(wanted)
        ]

    def _output_indices(self, names: Sequence[str]) -> list[int]:
        known = [info.name for info in self.outputs]
        if isinstance(names, str) or not isinstance(names, Iterable):
            raise InputError(f"output names are a list of names, not {names!r}")
        names = list(names) or known
        unknown = [name for name in names if name not in known]
        if unknown:
            raise InputError(f"no outputs {unknown}; the model has {known}")
        return [known.index(name) for name in names]

    def _arrays(self, feeds: Mapping[str, object]) -> list[Any]:
        if not isinstance(feeds, Mapping) or feeds.keys() != self._names:
            self._refuse(feeds)
        sizes: dict[str, int] = {}
        return [held(info, feeds[info.name], sizes) for info in self.inputs]

    def _refuse(self, feeds: object) -> NoReturn:
        known = [info.name for info in self.inputs]
        if not isinstance(feeds, Mapping):
            raise InputError(f"feeds map the names {known} to arrays, not {type(feeds).__name__}")
        missing = [name for name in known if name not in feeds]
        unknown = [name for name in feeds if name not in known]
        raise InputError(f"inputs missing: {missing}, unknown: {unknown}; the model has {known}")


def load(path: str | os.PathLike, *, verify: bool = False) -> CompiledModel:
    """Read a model that :meth:`CompiledModel.save` wrote. It holds native code: trust it first.

    Args:
        path: the file.
        verify: check the weights too. They are otherwise not read until a run needs them.

    Raises:
        OutputPathError: the file cannot be read, is not ours, or is damaged.
        TargetError: it is for another kind of machine, or needs instructions that this one lacks.
    """
    return _restored(artifact.read(path, verify))


def _loads(data: bytes) -> CompiledModel:
    """The model that was pickled as ``data``."""
    return _restored(artifact.loads(data))


def _restored(saved: artifact.Saved) -> CompiledModel:
    inputs, outputs = (
        [from_json(row) for row in saved.interface[key]] for key in ("inputs", "outputs")
    )
    facts = {
        name: KernelFacts(
            tuple(row["nodes"]),
            row["flops"],
            row["bytes"],
            tuple(row.get("compounds", ())),
            row.get("weights", 0),
            row.get("dots", {}),
        )
        for name, row in saved.interface["facts"].items()
    }
    more = saved.interface.get("strings"), saved.interface.get("not_one", ())
    return CompiledModel(saved.executor, inputs, outputs, facts, saved.sources, *more)


def _is_map(info: Info) -> bool:
    return isinstance(info, ValueInfo) and isinstance(info.type, MapType)


def _cells(info: Info) -> str:
    if isinstance(info, ValueInfo):
        return f"<td></td><td>{escape(str(info.type))}</td>"
    return f"<td>[{escape(', '.join(map(str, info.shape)))}]</td><td>{info.dtype}</td>"


def _check_count(name: str, count: object, least: int) -> None:
    if not isinstance(count, int) or isinstance(count, bool) or count < least:
        raise OptionError(f"{name} is a whole number of at least {least}, not {count!r}")
