"""Linear layers without bias leave ``torch.onnx.export`` as Gemm with a zero bias.

``nn.Linear(bias=False)`` and ``x @ w`` with a 2-D weight are exported as MatMul by torch 2.13 (but
for a linear layer of matrices under dynamo: Gemm without a bias), a layer with bias as Gemm. Tools
that know a dense layer by its Gemm (fusions with the activation behind it, schedules) then miss
exactly the layers without bias::

    with bias_less_linear_as_gemm():
        torch.onnx.export(model, inputs, "model.onnx")

The TorchScript exporter gets symbolic functions. The dynamo exporter lowers all of them to MatMul
inside decompositions that share it with batched products, so what it returns is rewritten instead,
by rules (``standard_gemm.py``), before it is saved. An input of another rank goes
through Reshapes.

Upstream: ``linear``, ``matmul`` and ``mm`` in ``torch/onnx/_internal/torchscript_exporter/
symbolic_opset9.py`` (``if rank == 2 and not bias.node().mustBeNone()`` takes the way to Gemm), and
``torch/onnx/_internal/exporter/_core.py``, whose ``export`` makes the model that is saved.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import numpy as np
import onnx_ir as ir
import torch
from onnx_ir.passes.common import RemoveUnusedNodesPass
from torch.onnx import symbolic_helper
from torch.onnx._internal.exporter import _core
from torch.onnx._internal.torchscript_exporter import (
    registration,
    symbolic_opset9,  # noqa: F401  registers what is replaced here, as does the next
    symbolic_opset11,  # noqa: F401
)
from tvm_ext.frontend.rewrites.gemm_transpose import TransposeIntoGemm
from tvm_ext.frontend.rewrites.rule import rewriting

from .replacement import Replacement, of_attribute
from .standard_gemm import MatMulToStandardGemm

__all__ = ["bias_less_linear_as_gemm"]


@contextmanager
def bias_less_linear_as_gemm() -> Iterator[None]:
    """Within the context both exporters write a product with a 2-D weight as Gemm.

    It holds for all threads. Contexts may be nested and left in any order.
    """
    with ExitStack() as stack:
        for replacement in _REPLACEMENTS:
            stack.enter_context(replacement.open())
        yield


# --- dynamo -------------------------------------------------------------------------------


_to_gemm = rewriting(MatMulToStandardGemm)
_absorb_transposes = rewriting(TransposeIntoGemm)
_remove_unused = RemoveUnusedNodesPass()


def _rewriting_export(export: Callable) -> Callable:
    def rewritten(*args, **options):
        program = export(*args, **options)
        _absorb_transposes(_to_gemm(program.model))
        _remove_unused(program.model)
        _add_zero_biases(program.model.graph)
        return program

    return rewritten


def _add_zero_biases(graph: ir.Graph) -> None:
    """Give each ``Gemm(x, w)`` the zero bias that the TorchScript form has."""
    for node in ir.traversal.RecursiveGraphIterator(graph):
        if node.op_type != "Gemm" or (len(node.inputs) > 2 and node.inputs[2] is not None):
            continue
        weight = node.inputs[1]
        transposed = node.attributes.get_int("transB", 0)
        columns = None if weight.shape is None else weight.shape[0 if transposed else 1]
        if not isinstance(columns, int):
            continue
        zeros = ir.tensor(np.zeros(columns, weight.dtype.numpy()), name=f"{node.outputs[0].name}_b")
        bias = ir.Value(
            name=zeros.name, shape=zeros.shape, type=ir.TensorType(zeros.dtype), const_value=zeros
        )
        node.graph.register_initializer(bias)
        node.resize_inputs(3)
        node.replace_input_with(2, bias)


# --- TorchScript --------------------------------------------------------------------------


def _linear(original: Callable) -> Callable:
    def linear(g, x, weight, bias):
        product = None
        if bias.node().mustBeNone():
            product = _gemm(g, x, weight, transposed=1)
        return original(g, x, weight, bias) if product is None else product

    return linear


def _product(original: Callable) -> Callable:
    def product(g, x, weight):
        result = _gemm(g, x, weight, transposed=0)
        return original(g, x, weight) if result is None else result

    return product


def _gemm(g, x, weight, transposed: int):
    """The product as Gemm, between Reshapes but for a matrix; None where a shape is not known."""
    sizes, weights = x.type().varyingSizes(), weight.type().sizes()
    if not sizes or weights is None or len(weights) != 2 or 0 in (*sizes, *weights):
        return None
    depth, columns = reversed(weights) if transposed else weights
    bias = g.op("Constant", value_t=torch.zeros(columns, dtype=weight.type().dtype()))
    if len(sizes) == 2:
        return g.op("Gemm", x, weight, bias, transB_i=transposed)
    rows = g.op("Reshape", x, _ints(g, -1, depth))
    product = g.op("Gemm", rows, weight, bias, transB_i=transposed)
    return g.op("Reshape", product, _shape_of_result(g, x, sizes[:-1], columns))


def _shape_of_result(g, x, leading: list[int | None], columns: int):
    """``leading`` and ``columns``; read at run time where two are unknown."""
    if leading.count(None) <= 1:
        return _ints(g, *(-1 if size is None else size for size in leading), columns)
    count = len(leading)
    dims = symbolic_helper._slice_helper(g, g.op("Shape", x), axes=[0], starts=[0], ends=[count])
    return g.op("Concat", dims, _ints(g, columns), axis_i=0)


def _ints(g, *values: int):
    return g.op("Constant", value_t=torch.tensor(values, dtype=torch.int64))


def _of_symbolic(name: str, version: int, wrap: Callable[[Callable], Callable]) -> Replacement:
    """The replacement of the symbolic function of an operator from an opset on."""
    functions = registration.registry.get_function_group(name)._functions

    def put(function: Callable) -> None:
        if functions._base.get(version) is function:
            functions.remove_override(version)
        else:
            functions.override(version, function)

    return Replacement(lambda: functions[version], put, wrap)


_REPLACEMENTS = (
    of_attribute(_core, "export", _rewriting_export),
    _of_symbolic("aten::linear", 9, _linear),
    _of_symbolic("aten::matmul", 9, _product),
    _of_symbolic("aten::mm", 9, _product),
    _of_symbolic("aten::mm", 11, _product),
)
