"""One compound operator, declared in one file: pattern, constraint, compute, schedules, samples.

A compound replaces several Relax operators by one kernel::

    x, w, bias = wildcard(), is_const(), is_const()
    conv = is_op("relax.nn.conv2d")(x, w)
    conv_bias_relu = compound(
        "acme.conv_bias_relu",
        is_op("relax.nn.relu")(is_op("relax.add")(conv, bias)),
        parts={"x": x, "w": w, "bias": bias, "conv": conv},
        targets=["llvm"],
    )

    @conv_bias_relu.check
    def _(m):                                   # True, False, or a reason why not
        return m.static or "symbolic shapes"

    @conv_bias_relu.attributes
    def _(m):                                   # kept on the kernel, handed to compute by name
        return {"strides": [int(s) for s in m["conv"].attrs.strides]}

    @conv_bias_relu.compute
    def _(x, w, bias, *, strides):              # parts by position, attributes by keyword
        return te.compute(...)

    @conv_bias_relu.schedule("llvm")
    def _(sch, target):
        sch.parallel(...)

Without ``compute`` the operators themselves are fused into the kernel, so a compound may be a
pattern and a schedule. ``emit`` gives C text instead, for a device of one's own::

    @conv_bias_relu.emit
    def _(x, w, bias, *, strides):              # what has shape and dtype -> CCode
        return CCode("int32_t TVMX_KERNEL(float *x, float *w, float *bias, float *y) {...}")

C is for CPUs and static shapes; elsewhere ``compute``, or the operators themselves, serve.

What the operators inside compute must not be read from outside. Two options change that:
``shared=True`` (it is computed twice), and ``results=["total"]``, by which a part is a result of
the kernel, too: ``compute`` gives a list, the pattern's own result first. A pattern whose result is
a tuple (``relax.split``) has one result per field.

Compounds are steps of the pipeline: those of plugins stand before the built-in ones, and
``convert_and_build(..., without=["acme.conv_bias_relu"])`` leaves one out. ``declined(module)``
tells why others of its matches are not taken; the text is in ``model.sources()["select"]``, too.
In a notebook a declaration that runs again takes the place of the one before.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from inspect import Parameter, currentframe, signature
from typing import Any, TypeVar

import onnx
from tvm import relax
from tvm.relax.dpl import DFPattern
from tvm.target import Target

from .. import pipeline
from ..deadline import Overrun, within
from ..errors import BuildError, PluginError, TvmExtError
from ..passes import compound as passes
from ..passes.compound import CCode, Kernel, Match, declined
from ..passes.facts import dtype_of, known_dims
from ..passes.graph import Graph
from ..places import place
from .compound_pattern import Finder, finder
from .compound_samples import CompoundSample
from .kernels import LEVEL, OperatorRule, insert_rule
from .plugin import INTERACTIVE, PLUGINS, current
from .steps import insert_everywhere

__all__ = ["CCode", "Compound", "Graph", "Kernel", "Match", "compound", "declined"]

_log = logging.getLogger("tvm_ext.extend")

# The first step of its phase, so compounds of plugins come before the built-in ones.
_FIRST = "DispatchSampling"

Function = TypeVar("Function", bound=Callable[..., Any])


@dataclass(frozen=True)
class Spec:
    """Shape and dtype of a tensor, as ``emit`` is given them."""

    shape: tuple[int, ...]
    dtype: str


class Compound:
    """A declared compound operator.

    Attributes:
        samples: the models that ``check-op`` tries.
        name: of its step in the pipeline, and in the attribute ``Composite`` of its kernels.
        targets: the target kinds that have it; empty: all.
        rules: target kind -> the schedule rule tried before the built-in ones.
    """

    def __init__(
        self,
        name: str,
        find: Finder,
        parts: Sequence[str],
        targets: Sequence[str],
        epilogue: bool,
        where: _Place,
    ):
        self.name = name
        self.find = find
        self.parts = tuple(parts)
        self.targets = tuple(targets)
        self.epilogue = epilogue
        self.module = where.module
        self.place = str(where)
        self.rules: dict[str, OperatorRule] = {}
        self._functions: dict[str, Callable[..., Any]] = {}
        self._parameters: list[str] | None = None
        self.samples: list[CompoundSample] = []
        self.undo = ExitStack()

    def __str__(self) -> str:
        return self.name

    # --- what is attached ------------------------------------------------------------------

    def check(self, function: Function) -> Function:
        """Decorate the constraint: a function of the :class:`Match`; True, False, or a reason."""
        return self._attach("check", function)

    def attributes(self, function: Function) -> Function:
        """Decorate what the compound notes of a :class:`Match`: a dict of numbers, texts, lists."""
        return self._attach("attributes", function)

    def compute(self, function: Function) -> Function:
        """Decorate the TE function: tensors of parts by position, attributes by keyword."""
        return self._attach_kernel("compute", function)

    def emit(self, function: Function) -> Function:
        """Decorate what gives the C text: as ``compute``, of shapes and dtypes, to a CCode."""
        return self._attach_kernel("emit", function)

    def layouts(self, function: Function) -> Function:
        """Decorate which layouts ``compute`` has, a function of the :class:`Match`:
        ``{"x": "NCHW16c", "result": "NCHW16c"}``. What is not named stays NCHW. Conversions stand
        outside of the kernel, and vanish where a neighbour has the same layout. Of several results
        none can be named."""
        return self._attach("layouts", function)

    def select(self, function: Function) -> Function:
        """Decorate a function of (:class:`Match`, ``Target``) that gives the whole
        :class:`Kernel`, or None, in place of check, attributes, compute and emit."""
        return self._attach("select", function)

    def schedule(self, kind: str) -> Callable[[object], object]:
        """Decorate the schedule of this compound's kernels for a target kind: see
        :meth:`tvm_ext.extend.Operator.schedule`.

        Raises:
            PluginError: the kind has one already.
        """

        def attach(rule: object) -> object:
            made = OperatorRule(self.name, kind, rule() if isinstance(rule, type) else rule)
            if kind in self.rules and not self._runs_again:
                other = self.rules[kind].place
                raise PluginError(f"{self} has a schedule for {kind} already, at {other}")
            if kind not in self.rules:
                extension = partial(self._with_rule, kind)
                pipeline.EXTENSIONS.append(extension)
                self.undo.callback(pipeline.EXTENSIONS.remove, extension)
            self.rules[kind] = made
            return rule

        return attach

    def sample(self, graph: str, constants: Sequence[str] = ()) -> None:
        """Declare a model that holds the pattern, in ONNX's text: what ``check-op`` tries.

        ``"(float[n,3,8,8] x, float[4,3,1,1] w) => (float[n,f,h,v] y) { y = Conv(x, w) }"``. Inputs
        are seeded random numbers, those among ``constants`` are initializers. A dim with a name
        runs through sizes that hurt, and is left symbolic; float32 is tried as other floats.

        Raises:
            PluginError: it is no graph.
        """
        try:
            made = CompoundSample(graph, tuple(constants))
        except (ValueError, onnx.parser.ParseError) as error:
            reason = str(error).strip().splitlines()[-1]
            raise PluginError(f"sample of {self}: {reason}") from error
        if made not in self.samples:
            self.samples.append(made)

    @property
    def _runs_again(self) -> bool:
        """Whether what is attached twice comes from a notebook's cell that runs again."""
        return self in INTERACTIVE.compounds

    def _with_rule(self, kind: str, steps: pipeline.Pipeline) -> pipeline.Pipeline:
        return insert_rule(steps, self.rules[kind])

    def _attach(self, what: str, function: Function) -> Function:
        if what in self._functions and not self._runs_again:
            raise PluginError(f"{self} has a function {what!r} already, at {self._place(what)}")
        self._functions[what] = function
        return function

    def _attach_kernel(self, what: str, function: Function) -> Function:
        parameters = signature(function).parameters.values()
        names = [p.name for p in parameters if p.kind is Parameter.POSITIONAL_OR_KEYWORD]
        unknown = [name for name in names if name not in self.parts]
        if unknown:
            raise PluginError(f"{what} of {self} takes {unknown}; its parts are {self.parts}")
        other = {"compute": "emit", "emit": "compute"}[what]
        if other in self._functions and self._parameters != names:
            raise PluginError(
                f"{what} of {self} takes {names}, {other} takes {self._parameters}: "
                "they are called with the same parts"
            )
        self._parameters = names
        return self._attach(what, function)

    # --- what the pass asks ----------------------------------------------------------------

    def kernel(self, match: Match, target: Target) -> Kernel | str | None:
        """What stands in the place of ``match``; None, or why not.

        Raises:
            BuildError: a function of the plugin raises, or gives what it must not; where it stands.
        """
        if "select" in self._functions:
            return self._call("select", match, target)
        verdict = self._call("check", match) if "check" in self._functions else True
        if not isinstance(verdict, bool | str):
            raise self._failure("check", f"gives {verdict!r}, not True, False or a reason")
        if verdict is not True:
            return verdict or "check says no"
        attributes = self._call("attributes", match) if "attributes" in self._functions else {}
        return self._made(match, attributes)

    def _made(self, match: Match, attributes: Mapping[str, object]) -> Kernel:
        if not isinstance(attributes, Mapping):
            raise self._failure("attributes", f"gives {attributes!r}, not a dict")
        kernel = Kernel(
            self._operands(match), attributes=attributes, epilogue=self.epilogue, place=self.place
        )
        if "compute" in self._functions:
            compute = partial(self._call, "compute", **attributes)
            kernel = replace(kernel, compute=compute, place=self._place("compute"))
        if "emit" in self._functions and _takes_c(self.name, match, kernel.operands):
            specs = (Spec(tuple(known_dims(x)), dtype_of(x)) for x in kernel.operands)
            kernel = replace(kernel, code=self._call("emit", *specs, **attributes))
            if not isinstance(kernel.code, CCode):
                raise self._failure("emit", f"gives {kernel.code!r}, not a CCode")
        return self._blocked(kernel, match)

    def _operands(self, match: Match) -> tuple[relax.Expr, ...]:
        """What ``compute`` and ``emit`` name; without them all that the operators read."""
        if self._parameters is None:
            return tuple(match.inputs)
        absent = [name for name in self._parameters if name not in match]
        if absent:
            raise BuildError(f"compound {self.name!r}, {self.place}: a match without {absent}")
        return tuple(match[name] for name in self._parameters)

    def _blocked(self, kernel: Kernel, match: Match) -> Kernel:
        """``kernel`` with the layouts that it asks for."""
        if "layouts" not in self._functions:
            return kernel
        lanes = {
            name: self._lanes(text, match, None if name == "result" else name)
            for name, text in self._call("layouts", match).items()
        }
        if self._parameters is None or lanes.keys() - {*self._parameters, "result"}:
            raise self._failure("layouts", f"names {sorted(lanes)}, compute {self._parameters}")
        if "result" in lanes and match.others:
            raise self._failure("layouts", "names the result, of which there are several")
        operands = {k: lanes[name] for k, name in enumerate(self._parameters) if name in lanes}
        return replace(kernel, lanes=operands, result_lanes=lanes.get("result"))

    def _lanes(self, layout: str, match: Match, part: str | None) -> int:
        """The 16 of NCHW16c."""
        dims, text = match.dims(part), re.fullmatch(r"NCHW(\d+)c", layout)
        if text is None or dims is None or len(dims) != 4:
            raise self._failure("layouts", f"{layout!r} is not NCHW<number>c of a static tensor")
        lanes = int(text[1])
        if lanes < 1 or (part is not None and dims[1] % lanes):
            raise self._failure("layouts", f"{layout!r} does not divide {dims[1]} channels")
        return lanes

    def _call(self, what: str, *args: object, **kwargs: object) -> Any:
        function = self._functions[what]
        try:
            return within(
                pipeline.SECONDS, lambda: function(*args, **kwargs), function.__code__.co_filename
            )
        except TvmExtError:
            raise
        except Overrun as overrun:
            raise self._failure(what, f"{overrun}: does it loop?") from overrun
        except Exception as error:
            raise self._failure(what, f"{type(error).__name__}: {error}") from error

    def _failure(self, what: str, reason: str) -> BuildError:
        return BuildError(f"{what} of compound {self.name!r}, {self._place(what)}: {reason}")

    def _place(self, what: str) -> str:
        return place(self._functions[what].__code__)


def _takes_c(name: str, match: Match, operands: Sequence[relax.Expr]) -> bool:
    """Whether C code may compute ``match``; what is constant is left to be folded."""
    assert match.target is not None
    if match.target.kind.name != "llvm" or not any(isinstance(x, relax.Var) for x in operands):
        return False
    if not match.static:
        _log.warning(
            "compound %s: its C code is for static shapes; TE computes %r", name, match.root.name
        )
    return match.static


def compound(
    name: str,
    pattern: DFPattern | Finder,
    *,
    parts: Mapping[str, DFPattern] | Sequence[str] = (),
    targets: Sequence[str] = (),
    opt_level: int = LEVEL,
    before: str | None = None,
    after: str | None = None,
    shared: bool = False,
    results: Sequence[str] = (),
    epilogue: bool = False,
    bound: float = 1e-4,
) -> Compound:
    """Declare a compound operator.

    Args:
        name: as in "acme.conv_bias_relu".
        pattern: a ``relax.dpl`` pattern of the result, or a function of a Graph and a variable
            that gives the :class:`Match` whose result the variable is, or None.
        parts: names for parts of the pattern (of the matches, where it is a function).
        targets: the target kinds that have it; all by default.
        opt_level: the least level that has it.
        before, after: its place, beside a step of the pipeline. By default before the built-in
            compounds, behind those declared earlier.
        shared: take matches, too, whose inner values are read from outside; the operators that
            compute those stay beside the kernel.
        results: the names of parts that are results, too, behind that of the pattern. The kernel
            gives them all, whether they are read or not.
        epilogue: element-wise operators behind it may be fused into the kernel.
        bound: how far it may move a float32 answer ``y``, as a part of ``1 + |y|``.

    Raises:
        PluginError: the name is taken, the pattern is none, the anchor exists at no level, or the
            options contradict each other.
    """
    where = _caller()
    if results and epilogue:
        raise PluginError(f"compound {name!r}: nothing can be fused behind several results")
    find = finder(name, pattern, parts, shared, results)
    at = _make_room(name, where)
    declared = Compound(name, find, list(parts), targets, epilogue, where)
    if before is None and after is None:
        before = _FIRST
    run = passes.Compound(name, find, declared.kernel)
    anchors = {"before": before, "after": after, "phase": None}
    insert_everywhere(name, run, targets, opt_level, anchors, bound, declared.undo)
    if at is not None:
        pipeline.EXTENSIONS.insert(at, pipeline.EXTENSIONS.pop())
    plugin = current()
    plugin.compounds.append(declared)
    plugin.undo.push(declared.undo)
    return declared


def _make_room(name: str, where: _Place) -> int | None:
    """Take back what the same notebook or module has declared before, outside of any plugin; the
    place among the extensions that it had.

    Raises:
        PluginError: something else has the name.
    """
    for plugin in (INTERACTIVE, current(), *PLUGINS.values()):
        for other in [compound for compound in plugin.compounds if compound.name == name]:
            if plugin is not INTERACTIVE or current() is not plugin or other.module != where.module:
                raise PluginError(
                    f"compound {name!r} is declared already, at {other.place}; here at {where}"
                )
            before = list(pipeline.EXTENSIONS)
            other.undo.close()
            plugin.compounds.remove(other)
            gone = (k for k, each in enumerate(before) if each not in pipeline.EXTENSIONS)
            return next(gone, None)
    return None


@dataclass(frozen=True)
class _Place:
    """Where a compound is declared."""

    file: str
    line: int
    module: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


def _caller() -> _Place:
    """Who called :func:`compound`."""
    frame = currentframe()
    for _ in range(2):
        frame = frame.f_back if frame else None
    assert frame is not None
    return _Place(frame.f_code.co_filename, frame.f_lineno, frame.f_globals.get("__name__", ""))
