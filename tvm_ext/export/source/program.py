"""A model as C functions over a memory plan, before any file is written."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir
from tvm import IRModule
from tvm.target import Target

from ... import pipeline
from ...build import ONE_BUILD, import_model, leave_out, run_phase
from ...errors import BuildError, OptionError
from ...executors.control_flow import ControlFlow
from ...executors.formulas import NotStatic
from ...executors.plan import Check, Kernel, MemoryPlan, Slot, Trips, regions_of
from ...executors.planning import Draft, draft
from ...executors.static_build import lower_views
from ...frontend import Limits, load, node_labels
from ...interface import Shapes, TensorInfo, numbers_only
from ...ops.approximations import libm
from ...provenance import Provenance
from ..identifiers import identifier
from ..interface import Tensor
from .c_types import Unprintable, c_type
from .helpers import Helpers
from .lowering import lower_to_loops
from .naming import free_name, function_name, value_name
from .statements import Function, print_kernel

__all__ = ["Call", "Program", "Weight", "program_of"]


@dataclass(frozen=True)
class Call:
    """One call of a kernel: the ONNX nodes it computes, and its function; "" of what only copies,
    or stands where a check is made."""

    nodes: tuple[str, ...]
    function: str
    kernel: Kernel


@dataclass(frozen=True)
class Weight:
    """A constant: its name in C, and that of the ONNX initializer where it is one."""

    id: str
    initializer: str | None
    array: np.ndarray
    offset: int


@dataclass(frozen=True)
class Program:
    """A model as C.

    Attributes:
        id: the prefix of what is seen from outside.
        functions: the text of each kernel by its name.
        helpers: small functions that these need.
        names: what the values of the workspace are called.
        memory: of those, and of the kernels' own arrays.
        checks: of values, each behind one of the ``calls``.
    """

    name: str
    id: str
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    functions: Mapping[str, str]
    helpers: tuple[str, ...]
    calls: tuple[Call, ...]
    results: tuple[Slot, ...]
    names: Mapping[Slot, str]
    weights: tuple[Weight, ...]
    memory: MemoryPlan
    checks: tuple[Check, ...]


def program_of(
    model: object,
    name: str,
    *,
    parallel: str = "",
    opt_level: int = 3,
    precision: str | None = None,
    shapes: Shapes | None = None,
    limits: Limits | None = None,
    without: Sequence[str] = (),
) -> Program:
    """``model`` as C functions.

    Args:
        model: what :func:`tvm_ext.convert_and_build` takes.
        name: of the model in C.
        parallel: what stands in front of loops that may be shared among threads.
        opt_level, precision, shapes, limits, without: as of ``convert_and_build``.

    Raises:
        OptionError: the model needs the Relax VM; with the node.
        BuildError: a kernel has no form in C; with its nodes and the reason.
        TvmExtError: whatever ``convert_and_build`` raises before it compiles.
    """
    steps = leave_out(pipeline.default(Target("c"), opt_level, precision), without)
    imported: list[onnx_ir.Model] = []

    def watch(step: pipeline.Step, result: Any, _seconds: float) -> None:
        if step.phase == "import":
            imported[:] = [result]

    with ONE_BUILD, libm():
        loaded = load(model, limits)
        order = {label: k for k, node in enumerate(loaded.graph) for label in node_labels(node)}
        steps = steps.watched(watch)
        conversion = import_model(loaded, steps, shapes, limits)
        module, provenance = conversion.module, Provenance(conversion.origin)
        with steps.target:
            for phase in pipeline.PHASES[1:]:
                module = run_phase(steps, phase, module, provenance)
        infos = [numbers_only(side) for side in (conversion.input_infos, conversion.output_infos)]
        module = lower_views(module)
        drafted = _drafted(module, provenance, infos[0])
        initializers = imported[0].graph.initializers if imported else {}
        texts = _Texts(name, drafted, module, provenance, conversion.origin, order)
        return texts.program(infos, _by_content(initializers), parallel)


def _drafted(module: IRModule, provenance: Provenance, inputs: Sequence[TensorInfo]) -> Draft:
    symbolic = [str(info) for info in inputs if info.static_shape is None]
    if symbolic:
        raise OptionError(
            f"only static shapes can be exported: give sizes by shapes= or --shape for {symbolic}"
        )
    try:
        return draft(ControlFlow(module))
    except NotStatic as reason:
        nodes = _nodes_at(module, provenance, reason.variable)
        at = f" for {', '.join(nodes)}" if nodes else ""
        raise OptionError(f"no C source: {reason}{at} needs TVM at run time") from reason


def _nodes_at(module: IRModule, provenance: Provenance, variable: str | None) -> list[str]:
    """The ONNX nodes of ``variable``, or of the nearest one that has a name in ONNX."""
    bindings = [binding for block in module["main"].body.blocks for binding in block.bindings]
    names = [binding.var.name for binding in bindings]
    at = names.index(variable) if variable in names else len(names)
    nearest = [*names[at:], *reversed(names[:at])]
    return next(filter(None, map(provenance.nodes, nearest)), [])


def _by_content(initializers: Mapping[str, onnx_ir.Value]) -> dict[tuple, str]:
    """The names of initializers by type and content."""
    found: dict[tuple, str] = {}
    for name, value in initializers.items():
        if value.const_value is not None and value.const_value.dtype != onnx_ir.DataType.STRING:
            found.setdefault(_key(value.const_value.numpy()), name)
    return found


def _key(array: np.ndarray) -> tuple:
    content = hashlib.sha256(np.ascontiguousarray(array).tobytes()).digest()
    return array.dtype.name, content


class _Texts:
    """Names everything, and prints the kernels."""

    def __init__(
        self,
        name: str,
        drafted: Draft,
        module: IRModule,
        provenance: Provenance,
        origin: Mapping[str, onnx_ir.Node],
        order: Mapping[str, int],
    ):
        self._name = name
        self._draft = drafted
        self._module = module
        self._provenance = provenance
        self._origin = origin
        self._order = order
        self._id = identifier(name)
        self._taken: list[str] = [f"{self._id}_run", "workspace", "arena", "weights"]
        self._names: dict[Slot, str] = {}

    def program(
        self,
        infos: Sequence[Sequence[TensorInfo]],
        initializers: Mapping[tuple, str],
        parallel: str,
    ) -> Program:
        """The whole."""
        inputs, outputs = (
            self._tensors(side, slots)
            for side, slots in zip(infos, (self._draft.inputs, self._draft.outputs), strict=True)
        )
        for tensor, slot in zip(inputs, self._draft.inputs, strict=True):
            self._names[slot] = tensor.id
        self._name_results(outputs)
        weights = tuple(self._weights(initializers))
        helpers = Helpers()
        printed = self._functions(helpers, parallel)
        scratch = {s: [local.bytes for local in made.locals] for s, (_, made) in printed.items()}
        planned = self._draft.plan(scratch)
        calls = []
        for kernel in planned.kernels:
            function = printed[kernel.symbol][0] if kernel.is_call else ""
            calls.append(Call(self._nodes(kernel.variable), function, kernel))
        return Program(
            self._name,
            self._id,
            inputs,
            outputs,
            {name: made.text for name, made in printed.values()},
            tuple(helpers),
            tuple(calls),
            planned.outputs,
            self._names,
            weights,
            planned.memory,
            planned.checks,
        )

    def _tensors(self, infos: Sequence[TensorInfo], slots: Sequence[Slot]) -> tuple[Tensor, ...]:
        made = []
        for info, slot in zip(infos, slots, strict=True):
            try:
                c_type(slot.dtype)
            except Unprintable as reason:
                raise OptionError(f"no C source: {info} has {reason}") from reason
            id = self._free(value_name(info.name))
            made.append(Tensor(info.name, id, slot.dtype, slot.shape))
        return tuple(made)

    def _name_results(self, outputs: Sequence[Tensor]) -> None:
        checked = {slot.root for check in self._draft.checks for _, slot, _ in check.reads}
        for kernel in self._draft.kernels:
            for root in (slot.root for slot in kernel.writes):
                if root in self._names:
                    continue
                if root.kind == "output":
                    self._names[root] = outputs[root.index].id
                elif root in checked:
                    self._names[root] = self._free("checked")
                elif not kernel.is_call:
                    self._names[root] = self._free("kept")
                else:
                    self._names[root] = self._free(value_name(self._value_of(kernel)))
        for region in regions_of(self._draft.kernels):
            if isinstance(region, Trips):
                self._names.setdefault(region.position.root, self._free("trip"))

    def _nodes(self, variable: str) -> tuple[str, ...]:
        """The ONNX nodes behind a kernel's variable, in the order of the model."""
        nodes, end = self._provenance.nodes(variable), len(self._order)
        return tuple(sorted(nodes, key=lambda node: self._order.get(node, end)))

    def _value_of(self, kernel: Kernel) -> str:
        """The ONNX value that a kernel computes."""
        last = self._provenance.members(kernel.variable)[-1]
        node = self._origin.get(last)
        if node is None or len(kernel.writes) != 1 or len(node.outputs) != 1:
            return last
        return node.outputs[0].name or last

    def _weights(self, initializers: Mapping[tuple, str]) -> Iterator[Weight]:
        for kernel in self._draft.kernels:
            for position, slot in enumerate(kernel.reads):
                if slot.root.kind == "weight":
                    reader = value_name(self._value_of(kernel)) if kernel.is_call else "copy"
                    yield from self._weight(slot.root, initializers, reader, position)
        checked = (slot for check in self._draft.checks for _, slot, _ in check.reads)
        deciding = (slot for region in regions_of(self._draft.kernels) for slot in region.reads)
        for slot in (*self._draft.outputs, *checked, *deciding):
            if slot.root.kind == "weight":
                yield from self._weight(slot.root, initializers, "output", 0)

    def _weight(
        self,
        slot: Slot,
        initializers: Mapping[tuple, str],
        reader: str,
        position: int,
    ) -> Iterator[Weight]:
        if slot in self._names:
            return
        blob = self._draft.weights
        array = blob[slot.offset : slot.offset + slot.nbytes].view(slot.dtype).reshape(slot.shape)
        initializer = initializers.get(_key(array))
        wanted = f"{self._id}_{initializer or f'{reader}_constant_{position}'}"
        self._names[slot] = self._free(wanted)
        yield Weight(self._names[slot], initializer, array, slot.offset)

    def _functions(self, helpers: Helpers, parallel: str) -> dict[str, tuple[str, Function]]:
        """Each kernel's name in C and text, by its symbol, in the order of the first calls."""
        uses: dict[str, list[Kernel]] = {}
        for kernel in self._draft.kernels:
            if kernel.is_call:
                uses.setdefault(kernel.symbol, []).append(kernel)
        found = {}
        for symbol, kernels in uses.items():
            nodes = self._nodes(kernels[0].variable)
            name = self._free(function_name(nodes, symbol))
            try:
                lowered = lower_to_loops(self._module[symbol])
                operands = self._operands(kernels)
                made = print_kernel(
                    lowered, name, operands, len(kernels[0].writes), helpers, parallel
                )
            except Unprintable as reason:
                raise BuildError(
                    f"no C source for kernel {symbol!r} of {', '.join(nodes) or 'no node'}: "
                    f"{reason}"
                ) from reason
            found[symbol] = name, made
        return found

    def _operands(self, kernels: Sequence[Kernel]) -> list[str]:
        """Names of the parameters: those of the values where the kernel is called once."""
        first = kernels[0]
        if len(kernels) == 1:
            prefix = f"{self._id}_"
            return [
                value_name(self._names[slot.root].removeprefix(prefix))
                for slot in (*first.reads, *first.writes)
            ]
        reads = ["w" if slot.root.kind == "weight" else "x" for slot in first.reads]
        return [*reads, *("y" for _ in first.writes)]

    def _free(self, wanted: str) -> str:
        name = free_name(wanted, self._taken)
        self._taken.append(name)
        return name
