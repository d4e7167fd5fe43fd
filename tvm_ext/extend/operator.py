"""One ONNX operator, declared in one file: converter, reference, samples, schedules.

The decorated function is the converter; what else is known of the operator is attached to it::

    @operator("ScaledTanh", domain="com.acme")
    def scaled_tanh(bb, x, *, alpha=1.0):
        return bb.emit_te(compute, x, alpha)

    @scaled_tanh.reference
    def _(x, *, alpha=1.0):
        return np.tanh(alpha * x)

    scaled_tanh.shapes("x[n, c]", alpha=[0.5, 2.0])

    @scaled_tanh.schedule("llvm")
    def _(sch, target):
        sch.parallel(sch.get_loops(sch.get_sblock("scaled_tanh"))[0])
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import wraps
from types import FunctionType

import numpy as np
from onnx import defs
from tvm.s_tir import dlight as dl

from .. import pipeline
from ..errors import PluginError
from ..frontend import TABLE, converter
from ..places import place
from .converting import converted
from .declared import check_converter, check_kind, check_parameters
from .kernels import MARK, OperatorRule, insert_rule
from .plugin import INTERACTIVE, PLUGINS, current, restore
from .samples import Family, Sample
from .schema import derive_schema, register_schema

__all__ = ["Operator", "Samples", "operator"]

Samples = Callable[[np.random.Generator], Iterator[Sample]]


class Operator:
    """A declared operator; calling it calls its converter.

    Attributes:
        op_type, domain, versions: which nodes it converts.
        schema: what ONNX knows of the newest version.
        rules: target kind -> the schedule rule tried before the built-in ones.
    """

    def __init__(
        self,
        function: Callable[..., object],
        op_type: str,
        versions: Sequence[int],
        domain: str,
        schema: defs.OpSchema,
    ):
        self.function = function
        self.op_type = op_type
        self.versions = tuple(versions)
        self.domain = domain
        self.schema = schema
        self.numpy: Callable[..., object] | None = None
        self.families: list[Family] = []
        self.generators: list[Samples] = []
        self.rules: dict[str, OperatorRule] = {}
        self.undo = ExitStack()

    def __str__(self) -> str:
        name = f"{self.domain}.{self.op_type}" if self.domain else self.op_type
        return f"{name}-{max(self.versions)}"

    @property
    def keys(self) -> list[tuple[str, str, int]]:
        """The operator's rows in the converter table."""
        return [(self.domain, self.op_type, version) for version in self.versions]

    @property
    def place(self) -> str:
        """File and line of the converter."""
        return place(self.function.__code__)

    def __call__(self, bb: object, *inputs: object, **attributes: object) -> object:
        return self.function(bb, *inputs, **attributes)

    def reference(self, function: Callable[..., object]) -> Callable[..., object]:
        """Decorate what the operator means, in numpy: the signature is the converter's, less bb.

        It is given floats widened to float64, so it need not care for precision; integers and
        bools it returns in the very type that the operator gives.

        Raises:
            PluginError: it is no function.
        """
        if not isinstance(function, FunctionType):
            raise PluginError(f"the reference of {self} is {function!r}, no function")
        self.numpy = function
        return function

    def shapes(
        self, text: str, *, dtypes: Sequence[str] = ("float32",), **attributes: Sequence[object]
    ) -> None:
        """Declare a family of samples: ``"x[n, c], index: int64[n]"``.

        Dims are numbers, names, or arithmetic on names (``2 * c``). Sizes are drawn to hurt: 1,
        odd, prime; every named dim is also left symbolic. Inputs without a dtype run through
        ``dtypes``. Each attribute runs through its list; an input left out at the end is absent.

        Raises:
            PluginError: the text cannot be read, or names no input of the operator; a dtype or
                an attribute's list is none.
        """
        self.families.append(Family.parse(self, text, tuple(dtypes), attributes))

    def samples(self, function: Samples) -> Samples:
        """Decorate a generator of :class:`Sample` s, given a seeded ``numpy`` generator.

        For inputs that cannot be any random numbers, or shapes that no family describes.
        """
        self.generators.append(function)
        return function

    def schedule(self, kind: str) -> Callable[[object], object]:
        """Decorate the schedule of this operator's kernels for a target kind ("llvm", "cuda").

        It is a function of an ``s_tir.Schedule``, which it changes, and the ``Target``; or a dlight
        ``ScheduleRule``, as a class or an object. It is asked before the built-in rules, from
        opt_level 2 on, and only for kernels in which this operator is; others may be fused into
        them. It leaves a kernel to the next rule by ``raise NotImplementedError("reason")``.

        Raises:
            PluginError: the kind is unknown or has one already, or the rule is none.
        """
        what = f"the schedule of {self}"
        check_kind(kind, what)

        def attach(rule: object) -> object:
            if kind in self.rules:
                raise PluginError(f"{self} has a schedule for {kind} already")
            made = _instance(rule)
            if not isinstance(made, dl.base.ScheduleRule):
                check_parameters(made, ("the schedule", "the target"), what)
            own = OperatorRule(str(self), kind, made)
            self.rules[kind] = own
            pipeline.EXTENSIONS.append(lambda steps: insert_rule(steps, own))
            self.undo.callback(pipeline.EXTENSIONS.remove, pipeline.EXTENSIONS[-1])
            return rule

        return attach


def operator(
    op_type: str,
    *since: int,
    domain: str,
    schema: defs.OpSchema | None = None,
    outputs: int = 1,
    override: bool = False,
) -> Callable[[Callable[..., object]], Operator]:
    """Declare an operator of any domain; decorates its converter.

    Args:
        op_type: the operator's name.
        since: the versions that the converter serves; 1 by default.
        domain: as models write it; "" is ONNX itself.
        schema: what ONNX should know of it. By default it follows from the converter's signature
            (attributes by their defaults or annotations) and the number of ``outputs``, and its
            shape inference from what the converter emits.
        override: take the place of a built-in converter.

    Raises:
        PluginError: the version is taken, by the package or by another plugin; the converter,
            or the schema, is none or another's; no schema can be derived.
    """
    versions = since or (1,)
    what = f"operator {op_type!r}"
    if not isinstance(op_type, str) or not op_type.isidentifier() or not isinstance(domain, str):
        raise PluginError(f"{what} of domain {domain!r}: an operator's name is a word")
    if not all(isinstance(version, int) and version > 0 for version in versions) or outputs < 1:
        raise PluginError(f"{what}: versions are {versions}, outputs {outputs}; needs 1 or more")

    def declare(function: Callable[..., object]) -> Operator:
        keys = [(domain, op_type, version) for version in versions]
        for key in keys:
            _check_free(key, override)
        check_converter(function, what)
        own = schema or _known(op_type, max(versions), domain)
        own = own or derive_schema(function, op_type, domain, max(versions), outputs)
        _check_schema(own, *keys[versions.index(max(versions))])
        declared = Operator(function, op_type, versions, domain, own)
        with ExitStack() as undo:  # all of it, or nothing
            undo.callback(restore, {key: TABLE.get(key) for key in keys})
            register = converter(op_type, *versions, domain=domain, override=override)
            register(_marking(function, str(declared), own))
            if schema is not None or not defs.has(op_type, domain):
                register_schema(own, versions, function, undo)
            declared.undo = undo.pop_all()
        plugin = current()
        plugin.operators.append(declared)
        plugin.undo.push(declared.undo)
        return declared

    return declare


def _known(op_type: str, version: int, domain: str) -> defs.OpSchema | None:
    return defs.get_schema(op_type, version, domain) if defs.has(op_type, domain) else None


def _check_free(key: tuple[str, str, int], override: bool) -> None:
    domain, op_type, version = key
    for other in [op for op in INTERACTIVE.operators if key in op.keys]:
        if current() is INTERACTIVE:  # a notebook's cell that runs again
            other.undo.close()
            INTERACTIVE.operators.remove(other)
    for plugin in (INTERACTIVE, current(), *PLUGINS.values()):
        for other in plugin.operators:
            if key in other.keys:
                raise PluginError(f"{other} is declared already, at {other.place}")
    if key in TABLE and not override:
        raise PluginError(
            f"{domain or 'ai.onnx'}.{op_type}-{version} is built in: override=True replaces it"
        )


def _check_schema(schema: object, domain: str, op_type: str, version: int) -> None:
    """Raise PluginError unless it is a schema of the operator."""
    if not isinstance(schema, defs.OpSchema):
        raise PluginError(f"the schema of {op_type!r} is {schema!r}, no onnx.defs.OpSchema")
    stated = schema.domain, schema.name
    if stated != (domain, op_type) or schema.since_version > version:
        raise PluginError(
            f"the schema is that of {'.'.join(stated)}-{schema.since_version}, "
            f"declared is {domain}.{op_type}-{version}"
        )


def _marking(
    function: Callable[..., object], name: str, schema: defs.OpSchema
) -> Callable[..., object]:
    """``function``, with every kernel that it emits marked as this operator's."""

    @wraps(function)
    def marked(bb, *inputs, **attributes):
        bb.kernel_attrs = {MARK: name}
        try:
            return converted(function, bb, inputs, attributes, schema)
        finally:
            bb.kernel_attrs = {}

    return marked


def _instance(rule: object) -> object:
    return rule() if isinstance(rule, type) and issubclass(rule, dl.base.ScheduleRule) else rule
