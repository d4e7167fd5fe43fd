"""The accelerator as a target: which operators it computes, under which conditions, and how.

A plugin: ``tvm_ext.extend.load("examples.npu.target")`` or ``--plugin examples.npu.target``, and
every model for a CPU is built for CPU and accelerator. What a compound's check refuses, and all
that no compound names, stays on the host. Nothing here is state: how much memory the device has is
in the target (:func:`target_of`), what became of a model is in its program (:func:`build`).
"""

from __future__ import annotations

from dataclasses import dataclass

from tvm import IRModule, relax, tirx
from tvm.ir import BaseFunc, Op
from tvm.ir.expr import GenericConst
from tvm.relax.dpl import is_const, is_op, wildcard
from tvm.target import Target

from tvm_ext import CompiledModel, convert_and_build, pipeline, targets
from tvm_ext.extend import CCode, Match, c_kernel, compound, declined, step

from .emit import region_source, support_source
from .operators import Addition, Convolution, Operator, Pooling, Tensor
from .program import Device, Program, Region, compile_regions
from .regions import Stretch, cut, outline
from .tiling import Geometry, conv_tile, pool_tile

MAX_KERNEL, MAX_STRIDE = 11, 4


def target_of(device: Device) -> Target:
    """This CPU with ``device`` beside it; a target that says nothing has the usual one."""
    attributes = {"device": "npu", "model": f"{device.dram},{device.scratchpad}"}
    return Target({**targets.host_target().export(), **attributes})


def device_of(target: Target | None) -> Device:
    """The device of a target."""
    if target is None or target.attrs.get("device", "") != "npu":
        return Device()
    return Device(*map(int, target.attrs["model"].split(",")))


@dataclass(frozen=True)
class Report:
    """What becomes of a model: the device's programs, and why the rest is not there.

    ``host`` has variable, operator and reason.
    """

    programs: tuple[Program, ...]
    host: tuple[tuple[str, str, str], ...]

    def __str__(self) -> str:
        rows = [
            (operator.name, operator.kind, program.region.name)
            for program in self.programs
            for operator in program.region.operators
        ] + [(name, operator, f"host: {reason}") for name, operator, reason in self.host]
        names, kinds = (max((len(row[k]) for row in rows), default=0) for k in range(2))
        return "\n".join(f"{name:{names}}  {kind:{kinds}}  {where}" for name, kind, where in rows)


def build(
    model: object, device: Device | None = None, opt_level: int = 3, **options: object
) -> tuple[CompiledModel, Report]:
    """``convert_and_build`` for this CPU and ``device``, and what became of ``model``.

    Raises:
        TvmExtError: as ``convert_and_build``; a BuildError where the device's memory is too small.
    """
    found: list[Report] = []

    def look(module: IRModule) -> IRModule:
        found.append(report_of(module))
        return module

    steps = pipeline.default(target_of(device or Device()), opt_level)
    if opt_level > 2:
        steps = steps.without("widen-filters")  # it fills the vectors of the CPU
    steps = steps.insert("npu.report", look, before="npu.offload")
    return convert_and_build(model, steps=steps, **options), found[0]


# --- 1. compound operators: what the device computes in one go ----------------------------------

x, w, bias, residual = wildcard(), is_const(), is_const(), wildcard()
product = is_op("relax.nn.conv2d")(x, w)
biased = product | is_op("relax.add")(product, bias)
added = biased | is_op("relax.add")(biased, residual) | is_op("relax.add")(residual, biased)
relu = is_op("relax.nn.relu")(added)

conv = compound(
    "npu.conv",
    relu | added,
    parts={"x": x, "w": w, "bias": bias, "residual": residual, "product": product, "relu": relu},
    targets=["llvm"],
    opt_level=0,
)

image = wildcard()
window = is_op("relax.nn.max_pool2d")(image)
pool = compound(
    "npu.pool", window, parts={"x": image, "window": window}, targets=["llvm"], opt_level=0
)

a, b = wildcard(), wildcard()
total = is_op("relax.add")(a, b)
positive = is_op("relax.nn.relu")(total)
add = compound(
    "npu.add",
    positive | total,
    parts={"a": a, "b": b, "relu": positive},
    targets=["llvm"],
    opt_level=0,
)


# --- 2. constraints: what the device cannot, with the reason -------------------------------------


def usable(check):
    """A check that asks first for what holds for all operators of the device."""
    return lambda match: _unusable(match) or check(match) or _constant(match) or True


def _unusable(match: Match) -> str | None:
    if not match.static:
        return "a shape is known only at run time"
    if any(0 in match.dims(name) for name in match.parts):
        return "a tensor is empty"
    if match.dtype() != "float32":
        return f"the device computes in float32, not {match.dtype()}"
    return None


def _constant(match: Match) -> str | None:
    activations = (match[name] for name in ("x", "residual", "a", "b") if name in match)
    constants = any(isinstance(part, GenericConst) for part in activations)
    return "an activation is a constant" if constants else None


@conv.check
@usable
def _(match: Match) -> str | None:
    attrs = match["product"].attrs
    if int(attrs.groups) != 1:
        return f"{attrs.groups} groups: the array has one"
    if "bias" in match and match.dims("bias") != [1, match.dims()[1], 1, 1]:
        return f"a constant of shape {match.dims('bias')} is no bias"
    if "residual" in match and match.dims("residual") != match.dims():
        return f"a residual of shape {match.dims('residual')} would be broadcast"
    return _window_reason(match, "product", conv_tile)


@pool.check
@usable
def _(match: Match) -> str | None:
    return _window_reason(match, "window", pool_tile)


@add.check
@usable
def _(match: Match) -> str | None:
    shapes = match.dims("a"), match.dims("b")
    return None if shapes[0] == shapes[1] else f"shapes {shapes} differ"


def _window_reason(match: Match, part: str, tile) -> str | None:
    attrs = match[part].attrs
    over = _geometry(match.dims("x"), match.dims(), _window(match, part))
    layout = attrs.data_layout if part == "product" else attrs.layout
    if layout != "NCHW":
        return f"layout {layout}"
    if any(int(d) != 1 for d in attrs.dilation):
        return f"dilation {[int(d) for d in attrs.dilation]}"
    if max(over.kernel) > MAX_KERNEL or max(over.strides) > MAX_STRIDE:
        return f"kernel {over.kernel}, strides {over.strides}: at most {MAX_KERNEL}, {MAX_STRIDE}"
    if any(int(p) >= over.kernel[k % 2] for k, p in enumerate(attrs.padding)):
        return f"pads {[int(p) for p in attrs.padding]} hide the kernel"
    if tile(over, device_of(match.target).scratchpad) is None:
        return f"one window of {over.kernel} exceeds the scratchpad"
    return None


# --- 3. attributes: what the device must know of a match -----------------------------------------


@conv.attributes
def _(match: Match) -> dict[str, object]:
    return _window(match, "product") | _roles(match) | {"relu": "relu" in match}


@pool.attributes
def _(match: Match) -> dict[str, object]:
    return _window(match, "window") | _roles(match)


@add.attributes
def _(match: Match) -> dict[str, object]:
    return _roles(match) | {"relu": "relu" in match}


def _window(match: Match, part: str) -> dict[str, list[int]]:
    attrs = match[part].attrs
    kernel = match.dims("w")[2:] if part == "product" else [int(k) for k in attrs.pool_size]
    return {
        "kernel": kernel,
        "strides": [int(s) for s in attrs.strides],
        "pads": [int(p) for p in attrs.padding][:2],
    }


def _geometry(x: list[int], y: list[int], found: dict[str, list[int]]) -> Geometry:
    pairs = (tuple(found[name]) for name in ("kernel", "strides", "pads"))
    return Geometry(x[1], tuple(x[2:]), y[1], tuple(y[2:]), *pairs)


def _roles(match: Match) -> dict[str, int]:
    """Which operand of the kernel each part is; one tensor may play two parts."""
    names = ("x", "w", "bias", "residual", "a", "b")
    return {name: match.inputs.index(match[name]) for name in names if name in match}


# --- 4. regions: kernels that follow each other keep their tensors on the device -----------------


@step("npu.offload", after="npu.add", target="llvm", opt_level=0)
def offload(module: IRModule) -> IRModule:
    """Every stretch of the kernels above becomes one, whose C text drives the device.

    Raises:
        BuildError: the device's memory is too small.
    """
    plan = _plan(module)
    return outline(module, plan.blocks, plan.driven())


def report_of(module: IRModule) -> Report:
    """What :func:`offload` makes of ``module``.

    Raises:
        BuildError: the device's memory is too small.
    """
    plan, reasons = _plan(module), declined(module)
    parts = [part for block in plan.blocks for part in block if _is_host_call(part)]
    return Report(tuple(plan.programs), tuple(_excuse(part, reasons) for part in parts))


@dataclass(frozen=True)
class _Plan:
    """A function cut into stretches for the device and bindings for the host."""

    blocks: list[list[Stretch | relax.Binding]]
    stretches: list[Stretch]
    programs: list[Program]
    tensors: dict[relax.Expr, Tensor]

    def driven(self) -> dict[Stretch, tirx.PrimFunc]:
        """The kernel of each stretch."""
        kernels = {}
        for stretch, program in zip(self.stretches, self.programs, strict=True):
            weights = [self.tensors[constant] for constant in stretch.constants]
            kernels[stretch] = _driven(stretch, program, weights)
        return kernels


def _plan(module: IRModule) -> _Plan:
    kernels = {gv: f.attrs for gv, f in module.functions_items() if _is_ours(f)}
    blocks = cut(module["main"], lambda b: _kernel(b) in kernels)
    stretches = [part for block in blocks for part in block if isinstance(part, Stretch)]
    tensors: dict[relax.Expr, Tensor] = {}
    regions = [
        Region(
            f"npu_region_{number}",
            tuple(_tensor(var, tensors) for var in stretch.inputs),
            tuple(_tensor(var, tensors) for var in stretch.outputs),
            tuple(_operator(b, kernels[_kernel(b)], tensors) for b in stretch.bindings),
        )
        for number, stretch in enumerate(stretches)
    ]
    device = device_of(Target.current(allow_none=True))
    return _Plan(blocks, stretches, compile_regions(regions, device), tensors)


def _is_ours(function: BaseFunc) -> bool:
    names = {declared.name for declared in (conv, pool, add)}
    attrs = function.attrs or {}
    return isinstance(function, tirx.PrimFunc) and attrs.get("Composite", "") in names


def _kernel(binding: relax.Binding) -> object:
    value = binding.value
    return value.args[0] if isinstance(value, relax.Call) and value.op == _CALL_TIR else None


def _driven(stretch: Stretch, program: Program, weights: list[Tensor]) -> tirx.PrimFunc:
    cost = program.cost()  # the device refuses illegal commands now, not in the user's hands
    attributes = {"commands": len(program.commands), "cycles": sum(cost.cycles.values())}
    code = CCode(region_source(program, weights), support_source())
    operands = [operand.ty for operand in (*stretch.inputs, *stretch.constants)]
    kernel = c_kernel(operands, [v.ty for v in stretch.outputs], code, "npu.region", attributes)
    return kernel.with_attr("region", program.region.name)


# --- 5. operators: a kernel of Relax as an operator of the device --------------------------------


def _operator(binding: relax.VarBinding, attrs, tensors: dict[relax.Expr, Tensor]) -> Operator:
    found, operands = attrs["attributes"], binding.value.args[1].fields
    name, output = binding.var.name, _tensor(binding.var, tensors)

    def role(part: str) -> Tensor | None:
        if part not in found:
            return None
        return _tensor(operands[int(found[part])], tensors, f"{part} of {name}")

    relu = bool(found.get("relu", False))
    if attrs["Composite"] == "npu.add":
        return Addition(name, output, role("a"), role("b"), relu)
    pairs = [tuple(int(v) for v in found[key]) for key in ("kernel", "strides", "pads")]
    if attrs["Composite"] == "npu.pool":
        return Pooling(name, output, role("x"), *pairs)
    return Convolution(
        name, output, role("x"), *pairs, role("w"), role("bias"), role("residual"), relu
    )


def _tensor(expr: relax.Expr, tensors: dict[relax.Expr, Tensor], label: str = "") -> Tensor:
    """The one tensor of a variable, or of a constant, which takes ``label`` for its name."""
    if expr not in tensors:
        shape = tuple(int(d) for d in expr.ty.shape.values)
        if isinstance(expr, relax.Var):
            tensors[expr] = Tensor(expr.name, shape)
        else:
            tensors[expr] = Tensor(label, shape, expr.value.numpy())
    return tensors[expr]


def _is_host_call(part: object) -> bool:
    return isinstance(part, relax.Binding) and isinstance(part.value, relax.Call)


def _excuse(binding: relax.Binding, reasons: dict[str, str]) -> tuple[str, str, str]:
    call, name = binding.value, binding.var.name
    callee = call.args[0] if call.op == _CALL_TIR else call.op
    operator = callee.name if isinstance(callee, Op) else getattr(callee, "name_hint", str(callee))
    return name, operator, reasons.get(name, "the device has no such operator")


_CALL_TIR = Op.get("relax.call_tir")
