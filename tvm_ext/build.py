"""From an ONNX model to a compiled one."""

import os
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import reduce
from numbers import Integral
from typing import TypeVar

from tvm import IRModule
from tvm.ir.transform import PassContext
from tvm_ffi import register_error

from . import pipeline, targets
from .by_rank import ModelByOnes, by_rank
from .cache import Cache, key_of
from .errors import BuildError, ConversionError, InputRankError, OptionError, TvmExtError
from .executors.choice import build_executor
from .frontend import (
    Contradiction,
    Conversion,
    Limits,
    check_declared,
    convert,
    load,
    mark_nodes,
    specialise,
)
from .interface import Shapes
from .keep import check_folder, named
from .keep import keep as write_all
from .kernel_facts import kernel_facts
from .model import CompiledModel
from .patches.number_order import numbers_in_order
from .patches.type_lookups import type_lookups_kept
from .places import raised_at
from .progress import Advance, progress, silent
from .provenance import Provenance
from .tuning import Tuned, Tuning
from .verify import EachPass

__all__ = ["ONE_BUILD", "convert_and_build", "import_model", "leave_out", "run_phase"]

_SCHEDULING = "ScheduleKernels"

# What TVM raises.
_RAISED = RuntimeError, ValueError, TypeError, AttributeError, LookupError

Program = TypeVar("Program")  # an onnx_ir model, or a module

# So that Ctrl-C in Python called from TVM comes back as it is, not as a nameless RuntimeError.
register_error("KeyboardInterrupt", KeyboardInterrupt)


def convert_and_build(
    model: object,
    target: object = "auto",
    *,
    opt_level: int = 3,
    shapes: Shapes | None = None,
    precision: str | None = None,
    limits: Limits | None = None,
    steps: pipeline.Pipeline | None = None,
    without: Sequence[str] = (),
    verify: str | None = None,
    feeds: Mapping[str, object] | None = None,
    cache: str | os.PathLike | None = None,
    keep: str | os.PathLike | None = None,
    tune: Tuning | str | os.PathLike | None = None,
) -> CompiledModel:
    """Compile an ONNX model for ``target``.

    Args:
        model: a path, the bytes of a file, an ``onnx.ModelProto`` or an ``onnx_ir.Model``.
        target: "auto" (cuda where a GPU is, else this CPU with its exact features), "llvm",
            "cuda", or any TVM target.
        opt_level: 0 (straight conversion) to 3 (everything within the stated error bounds).
        shapes: values for symbolic dims, by dim name or by input name; names for those of inputs.
        precision: None or "fp32" keeps the types of the model; "bf16" rounds the factors of
            float32 products and convolutions to bfloat16, on CPUs with AVX512_BF16; "a8" the
            left sides of products with blocks of weights of 2, 4 or 8 bits to 8 bits, by these
            blocks, on CPUs with VNNI.
        limits: what a model may ask before it is refused.
        steps: instead of ``pipeline.default(target, opt_level)``; brings its own target.
        without: names of steps to leave out, such as compound operators.
        verify: "each-pass" runs the program after every step, on the CPU, and ends the build at
            the first that moves the answer by more than its bound. Slow: a compilation per step.
        feeds: the inputs to verify on, by name; seeded random ones by default.
        cache: a folder that keeps what was built. What is there, for the same model, target,
            options, plugins and versions, is loaded instead of built.
        keep: a folder for everything that the build makes: programs after each phase, code, the
            memory plan (:func:`tvm_ext.keep.keep`).
        tune: a folder of tuning records: kernels that were measured to be faster than those of
            our rules are built as it says. Or a :class:`tvm_ext.tuning.Tuning`, which says how
            long to look for such kernels first. ``model.tuning`` then reports what that adds.

    Raises:
        ModelError: the model cannot be read or contradicts itself.
        ConversionError: nodes that cannot be converted, all of them.
        TargetError: the target is unknown, or lacks the precision.
        BuildError: the compiler failed.
        OptionError: ``opt_level``, ``shapes``, ``limits``, ``precision`` or ``steps`` have no such
            value or type, a step that ``without`` names is not there, ``feeds`` have nothing
            to verify, or ``tune`` has no records or damaged ones.
        OutputPathError: the folder ``keep`` cannot be written, or ``cache`` is no path.
    """
    _check_options(opt_level, shapes, limits, steps)
    if cache is not None:
        named(cache)
    if steps is not None and precision is not None:
        raise OptionError("steps of one's own bring their precision: pipeline.default(precision=)")
    if steps is not None and cache is not None:
        raise OptionError("steps of one's own are code, which a cache cannot tell apart")
    if feeds is not None and verify is None:
        raise OptionError("feeds are for verify='each-pass'")
    if steps is None:
        steps = pipeline.default(targets.resolve(target), opt_level, precision)
    steps = leave_out(steps, without)
    tuned = None if tune is None else _tuned(tune, steps, cache)
    if tuned is not None:
        steps = steps.insert("Tuned", tuned, before=_SCHEDULING, seconds=None, where="")
    if verify == "each-pass":
        steps = steps.watched(EachPass(steps, load(model, limits), shapes, feeds))
    elif verify is not None:
        raise OptionError(f"verify is None or 'each-pass', not {verify!r}")
    if keep is not None:
        check_folder(keep)  # before the work, not after it
    built = _fetched(model, steps, shapes, limits, cache if verify is None else None)
    built.tuning = None if tuned is None else tuned.report
    if keep is not None:
        write_all(built, keep)
    return built


def _tuned(tune: object, steps: pipeline.Pipeline, cache: object) -> Tuned:
    if cache is not None:
        raise OptionError("records of tuning change, which a cache cannot tell: leave one out")
    if not isinstance(tune, Tuning | str | os.PathLike):
        raise OptionError(f"tune is a folder or a tuning.Tuning, not {tune!r}")
    tuning = tune if isinstance(tune, Tuning) else Tuning(tune)
    return Tuned(tuning, steps.target, steps.opt_level)


def _fetched(
    model: object,
    steps: pipeline.Pipeline,
    shapes: Shapes | None,
    limits: Limits | None,
    cache: str | os.PathLike | None,
) -> CompiledModel:
    """The model as ``cache`` has it or as it is built; by ranks, where these are open."""
    source, key = model, None
    if cache is not None:
        source = known = load(model, limits)
        key = key_of(known, steps, shapes=shapes)

    def build() -> CompiledModel:
        return _build(source, steps, shapes, limits)

    def again(given: Shapes) -> CompiledModel:
        loaded = load(source, limits)
        specialise(loaded, shapes)
        return _fetched(loaded, steps, given, limits, cache)

    try:
        built = build() if cache is None or key is None else Cache(cache).fetch(key, build)
        return ModelByOnes(built, again) if built.not_one else built
    except (InputRankError, ConversionError) as error:
        loaded = load(source, limits)
        specialise(loaded, shapes)
        open_ranks = by_rank(
            loaded,
            error,
            lambda given: _tried(loaded, steps, given, limits),
            lambda given: _fetched(loaded, steps, given, limits, cache),
        )
        if open_ranks is None:
            raise
        return open_ranks


# TVM's BlockBuilder keeps what it is building in a variable of the process.
ONE_BUILD = threading.RLock()


def _tried(
    source: object,
    steps: pipeline.Pipeline,
    shapes: Shapes,
    limits: Limits | None,
) -> None:
    """Import ``source`` to see whether that works."""
    with ONE_BUILD:
        import_model(source, steps, shapes, limits)


def _build(
    model: object,
    steps: pipeline.Pipeline,
    shapes: Shapes | None,
    limits: Limits | None,
) -> CompiledModel:
    resolved = steps.target
    with (
        ONE_BUILD,
        type_lookups_kept(),
        numbers_in_order(),
        progress(len(steps.steps) + 1) as advance,
    ):
        conversion = import_model(model, steps, shapes, limits, advance)
        module, provenance = conversion.module, Provenance(conversion.origin)
        sources, facts = {"import": _printed(module)}, {}
        with resolved:
            for phase in pipeline.PHASES[1:]:
                module = run_phase(steps, phase, module, provenance, advance)
                sources[phase] = _printed(module)
                if phase == "fuse":
                    facts = kernel_facts(module, provenance)
        advance("compile")
        with _compiling("compilation of the kernels"):
            executor = build_executor(module, resolved)
    return CompiledModel(
        executor,
        conversion.input_infos,
        conversion.output_infos,
        facts,
        lambda: sources | executor.sources(),
        conversion.strings,
        conversion.places_not_one,
    )


def _printed(module: IRModule) -> str:
    with _compiling("printing of a module"):
        return module.script()


def _check_options(opt_level: object, shapes: object, limits: object, steps: object) -> None:
    if not isinstance(opt_level, Integral) or opt_level not in range(4):
        raise OptionError(f"opt_level is 0, 1, 2 or 3, not {opt_level!r}")
    if not isinstance(shapes, Mapping | None):
        raise OptionError(f"shapes map names to sizes, not {shapes!r}")
    if not isinstance(limits, Limits | None):
        raise OptionError(f"limits are a frontend.Limits, not {limits!r}")
    if not isinstance(steps, pipeline.Pipeline | None):
        raise OptionError(f"steps are a pipeline.Pipeline, not {steps!r}")


def leave_out(steps: pipeline.Pipeline, names: Sequence[str]) -> pipeline.Pipeline:
    """``steps`` without the named ones.

    Raises:
        OptionError: one is not there.
    """
    if isinstance(names, str) or not isinstance(names, Iterable):
        raise OptionError(f"without is a list of names, not {names!r}")
    try:
        return reduce(pipeline.Pipeline.without, names, steps)
    except ValueError as error:
        raise OptionError(f"without: {error}") from error


@contextmanager
def _compiling(what: str, where: str = "") -> Iterator[None]:
    """What is raised inside becomes a BuildError that names the place, and the line of ``where``.

    TVM raises the built-in classes; code of a user's, which has a place, raises any.
    """
    try:
        yield
    except TvmExtError:
        raise
    except Exception as error:
        if not where and not isinstance(error, _RAISED):
            raise
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        reason = lines[0] if lines else repr(error)
        line = f", {raised_at(error, where)}" if where else ""
        raise BuildError(f"{what} failed{line}: {type(error).__name__}: {reason}") from error


def run_phase(
    steps: pipeline.Pipeline,
    phase: str,
    module: IRModule,
    provenance: Provenance,
    advance: Advance = silent,
) -> IRModule:
    """The steps of one phase after the import, except those that the PassContext disables."""
    disabled = set(PassContext.current().disabled_pass)  # TVM asks this in a Sequential only
    for step in steps.phase(phase):
        advance(step.name)
        if step.name not in disabled:
            before = module
            module = _run_step(step, module)
            provenance.observe(step.name, before, module)
    return module


def import_model(
    model: object,
    steps: pipeline.Pipeline,
    shapes: Shapes | None = None,
    limits: Limits | None = None,
    advance: Advance = silent,
) -> Conversion:
    """The import phase of ``steps``: load, rewrite, convert to Relax. Compiles nothing.

    Rewrites trust declared shapes: where converters find one wrong, all is done again without it.
    """
    doubtful: set[str | None] = set()
    while True:
        source = load(model, limits)
        specialise(source, shapes)
        check_declared(source, doubtful)
        mark_nodes(source)
        for step in steps.phase("import"):
            advance(step.name)
            source = _run_step(step, source)
        try:
            return convert(source, limits)
        except Contradiction as found:
            if found.names <= doubtful:
                raise
            doubtful |= found.names


def _run_step(step: pipeline.Step, value: Program) -> Program:
    with _compiling(step.title, step.place):
        result = step.run(value)
    if not isinstance(result, type(value)):
        raise BuildError(f"{step} returned {type(result).__name__}, not {type(value).__name__}")
    return result
