"""Every value of a model, by its ONNX name: as we compute it, and as others do."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import onnx
import onnx_ir as ir
from tvm import IRModule, relax
from tvm.target import Target

from . import pipeline
from .build import import_model, run_phase
from .compare.optional import require
from .errors import ComparisonError
from .executors.formulas import NotStatic
from .executors.static_build import build_static
from .executors.vm import VMExecutor
from .interface import numbers_only
from .passes.graph import unblocked
from .provenance import Provenance

__all__ = ["Arrays", "by_onnxruntime", "by_reference", "by_us"]

Arrays = dict[str, np.ndarray]


def by_us(source: ir.Model, steps: pipeline.Pipeline, feeds: Mapping[str, np.ndarray]) -> Arrays:
    """What our kernels write, by the names of the ONNX values that these are.

    The values of subgraphs are not among them.

    Raises:
        ComparisonError: the model holds strings.
        OptionError: an input or output is no tensor of numbers.
        TvmExtError: whatever ``convert_and_build`` raises.
    """
    conversion = import_model(source, steps)
    numbers_only([*conversion.input_infos, *conversion.output_infos])
    if conversion.strings is not None:
        raise ComparisonError("this model holds strings, which are not compared")
    module, provenance = conversion.module, Provenance(conversion.origin)
    arrays = [feeds[name] for name in conversion.inputs]
    with steps.target:
        for phase in pipeline.PHASES[1:]:
            module = run_phase(steps, phase, module, provenance)
        outputs, values = _run(module, steps.target, arrays)
    found: Arrays = {}
    for variable, array in values:
        last = provenance.members(variable)[-1:] or [variable]
        known = (conversion.values.get(unblocked(name)) for name in (last[0], variable))
        name = next(filter(None, known), None)
        if name is not None:
            found[name] = array
    return found | dict(zip(conversion.outputs, outputs, strict=True))


def _run(
    module: IRModule, target: Target, arrays: list[np.ndarray]
) -> tuple[list[np.ndarray], list[tuple[str, np.ndarray]]]:
    """The outputs, and each variable of ``main`` that is a tensor."""
    try:
        executor = build_static(module, target)
    except NotStatic:
        return _run_in_vm(module, target, arrays)
    if executor.plan.regions:  # the VM sees what an If or a Loop gives
        return _run_in_vm(module, target, arrays)
    names = _fields(module["main"])
    values = [
        (names.get((variable, k), variable if len(results) == 1 else ""), array)
        for variable, results in executor.values(arrays)
        for k, array in enumerate(results)
    ]
    return executor(arrays), values


def _fields(main: relax.Function) -> dict[tuple[str, int], str]:
    """The variables that are fields of kernels with several results."""
    items = (
        (binding.var.name, binding.value)
        for block in main.body.blocks
        for binding in block.bindings
        if isinstance(binding.value, relax.TupleGetItem)
    )
    return {
        (item.tuple_value.name, item.index): name
        for name, item in items
        if isinstance(item.tuple_value, relax.Var)
    }


def _run_in_vm(
    module: IRModule, target: Target, arrays: list[np.ndarray]
) -> tuple[list[np.ndarray], list[tuple[str, np.ndarray]]]:
    """The same where shapes are read, or branches taken, as the model runs."""
    module = relax.transform.ToNonDataflow()(module)
    main = module["main"]
    variables = [
        binding.var
        for block in main.body.blocks
        for binding in block.bindings
        if isinstance(binding.var.ty, relax.TensorType)
    ]
    count = len(main.body.body.ty.fields)
    module.update_func(module.get_global_var("main"), _returning(main, count, variables))
    results = VMExecutor.build(module, target)(arrays)
    names = [variable.name for variable in variables]
    return results[:count], list(zip(names, results[count:], strict=True))


def _returning(main: relax.Function, count: int, variables: list[relax.Var]) -> relax.Function:
    """``main``, whose result has ``variables`` behind its own ``count`` fields."""
    bindings: list[relax.Binding] = []

    def bound(value: relax.Expr, ty: relax.Type, name: str) -> relax.Var:
        var = relax.Var(name, ty)
        bindings.append(relax.VarBinding(var, value))
        return var

    result = main.body.body
    fields = [
        bound(relax.TupleGetItem(result, k), result.ty.fields[k], f"output{k}")
        for k in range(count)
    ]
    whole = relax.Tuple([*fields, *variables])
    ty = relax.TupleType([each.ty for each in whole.fields])
    last = bound(whole, ty, "watched")
    body = relax.SeqExpr([*main.body.blocks, relax.BindingBlock(bindings)], last)
    return relax.Function(main.params, body, relax.AnyType(), main.is_pure, main.attrs)


def by_reference(proto: onnx.ModelProto, feeds: Mapping[str, np.ndarray]) -> Arrays:
    """By the evaluator of onnx, with the numpy references of plugins.

    Raises:
        ComparisonError: it lacks an operator, or fails.
    """
    from onnx.reference import ReferenceEvaluator

    from .extend.models import reference_operators

    try:
        evaluator = ReferenceEvaluator(proto, new_ops=reference_operators())
        results = dict(evaluator.run(None, dict(feeds), intermediate=True))
    except Exception as error:
        raise ComparisonError(f"onnx's reference fails: {_line(error)}") from error
    return {name: array for name, array in results.items() if isinstance(array, np.ndarray)}


def by_onnxruntime(proto: onnx.ModelProto, feeds: Mapping[str, np.ndarray]) -> Arrays:
    """By onnxruntime, every value as an output, nothing optimised.

    Raises:
        ComparisonError: it lacks an operator, or fails.
        MissingPackageError: it is not installed.
    """
    onnxruntime = require("onnxruntime")
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 3
    watched = onnx.ModelProto()
    watched.CopyFrom(proto)
    known = {info.name for info in proto.graph.output}
    names = [name for node in proto.graph.node for name in node.output if name]
    watched.graph.output.extend(onnx.ValueInfoProto(name=n) for n in names if n not in known)
    try:
        session = onnxruntime.InferenceSession(
            watched.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
        asked = [info.name for info in session.get_outputs()]
        results = session.run(asked, dict(feeds))
    except Exception as error:
        reason = f"{_line(error)}; against='reference' uses the references of plugins"
        raise ComparisonError(f"onnxruntime: {reason}") from error
    pairs: Iterator[tuple[str, object]] = zip(asked, results, strict=True)
    return {name: array for name, array in pairs if isinstance(array, np.ndarray)}


def _line(error: Exception) -> str:
    return str(error).strip().split("\n")[0]
