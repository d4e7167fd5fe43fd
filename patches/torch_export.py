"""Linear layers without bias leave ``torch.onnx.export`` as Gemm with a zero bias.

``nn.Linear(bias=False)`` and ``x @ w`` with a 2-D weight are exported as MatMul by torch 2.13 (but
for a linear layer of matrices under dynamo: Gemm without a bias), a layer with bias as Gemm. Tools
that know a dense layer by its Gemm (fusions with the activation behind it, schedules) then miss
exactly the layers without bias::

    with bias_less_linear_as_gemm():
        torch.onnx.export(model, inputs, "model.onnx")

The TorchScript exporter gets symbolic functions, through torch's public
``register_custom_op_symbolic``. The dynamo exporter lowers both to MatMul inside decompositions
that share it with batched products, so what it returns is rewritten instead, by the rules of
``tvm_ext.frontend.rewrites``, before it is saved. An input of higher rank goes through Reshapes.

Upstream: ``linear`` and ``matmul`` in ``torch/onnx/_internal/torchscript_exporter/
symbolic_opset9.py`` (``if rank == 2 and not bias.node().mustBeNone()`` takes the way to Gemm).
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import wraps

import numpy as np
import onnx_ir as ir
import torch
from torch.onnx import symbolic_opset9
from tvm_ext.frontend.rewrites.matmul_to_gemm import BatchedMatMulToGemm, MatMulToGemm
from tvm_ext.frontend.rewrites.rule import rewriting

__all__ = ["bias_less_linear_as_gemm"]

_OPSET = 9  # the oldest whose symbolic functions these override, for all later ones too
_to_gemm = rewriting(MatMulToGemm, BatchedMatMulToGemm, zero_bias=True)


@contextmanager
def bias_less_linear_as_gemm() -> Iterator[None]:
    """Within the context both exporters write a product with a 2-D weight as Gemm."""
    original = torch.onnx.export
    symbolic = {"aten::linear": _linear, "aten::matmul": _matmul}
    torch.onnx.export = _rewriting_export(original)
    for name, function in symbolic.items():
        torch.onnx.register_custom_op_symbolic(name, function, _OPSET)
    try:
        yield
    finally:
        torch.onnx.export = original
        for name in symbolic:
            torch.onnx.unregister_custom_op_symbolic(name, _OPSET)


def _rewriting_export(export):
    @wraps(export)
    def rewritten(model, args=(), f=None, *, dynamo=True, external_data=True, **options):
        if not dynamo:
            return export(model, args, f, dynamo=False, external_data=external_data, **options)
        program = export(model, args, dynamo=True, **options)
        _to_gemm(program.model)
        _add_zero_biases(program.model.graph)
        if f is not None:
            program.save(f, external_data=external_data)
        return program

    return rewritten


def _add_zero_biases(graph: ir.Graph) -> None:
    """Give each ``Gemm(x, w)`` the zero bias that the TorchScript form has."""
    for node in graph:
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
        graph.register_initializer(bias)
        node.resize_inputs(3)
        node.replace_input_with(2, bias)


def _linear(g, x, weight, bias):
    if bias.node().mustBeNone():
        sizes = weight.type().sizes()
        if sizes is not None and None not in sizes:
            product = _gemm(g, x, weight, sizes[0], sizes[1], transposed=1)
            if product is not None:
                return product
    return symbolic_opset9.linear(g, x, weight, bias)


def _matmul(g, x, weight):
    sizes = weight.type().sizes()
    product = None
    if sizes is not None and len(sizes) == 2 and None not in sizes:
        product = _gemm(g, x, weight, sizes[1], sizes[0], transposed=0)
    return symbolic_opset9.matmul(g, x, weight) if product is None else product


def _gemm(g, x, weight, columns: int, depth: int, transposed: int):
    """The product as Gemm, between Reshapes above rank 2; None where a shape is not known."""
    sizes = x.type().varyingSizes()
    if sizes is None or len(sizes) < 2 or sizes[:-1].count(None) > 1:
        return None
    bias = torch.zeros(columns, dtype=weight.type().dtype())
    matrix = len(sizes) == 2
    rows = x if matrix else g.op("Reshape", x, _ints(g, -1, depth))
    product = g.op("Gemm", rows, weight, g.op("Constant", value_t=bias), transB_i=transposed)
    if matrix:
        return product
    leading = [-1 if size is None else size for size in sizes[:-1]]
    return g.op("Reshape", product, _ints(g, *leading, columns))


def _ints(g, *values: int):
    return g.op("Constant", value_t=torch.tensor(values, dtype=torch.int64))
