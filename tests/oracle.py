"""Independent oracles: one-node models against the ONNX reference evaluator in float64."""

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from tests.uses import record
from tvm_ext import convert_and_build

__all__ = ["check_model", "check_node", "node_model"]


def node_model(
    op_type,
    inputs,
    attributes=None,
    *,
    opset=None,
    domain="",
    outputs=1,
    constants=(),
    symbolic=False,
    absent=(),
):
    """A model of one node.

    ``inputs`` are arrays (None: absent). ``constants`` are indices of inputs that become
    initializers. ``symbolic`` makes every dim of the graph inputs symbolic, with equal sizes
    sharing one name. ``absent`` are indices of outputs left out.
    """
    names = [f"x{k}" if array is not None else "" for k, array in enumerate(inputs)]
    graph_inputs, initializers = [], []
    for k, array in enumerate(inputs):
        if array is None:
            continue
        if k in constants:
            initializers.append(numpy_helper.from_array(array, names[k]))
            continue
        shape = [f"d{size}" for size in array.shape] if symbolic else array.shape
        dtype = helper.np_dtype_to_tensor_dtype(array.dtype)
        graph_inputs.append(helper.make_tensor_value_info(names[k], dtype, shape))
    output_names = ["" if k in absent else f"y{k}" for k in range(outputs)]
    node = helper.make_node(
        op_type, names, output_names, "node", domain=domain, **(attributes or {})
    )
    graph_outputs = [helper.make_empty_tensor_value_info(name) for name in output_names if name]
    opset = opset or onnx.defs.onnx_opset_version()
    imports = [helper.make_opsetid(domain, opset)]
    if domain:
        imports.append(helper.make_opsetid("", onnx.defs.onnx_opset_version()))
    graph = helper.make_graph([node], "graph", graph_inputs, graph_outputs, initializers)
    model = helper.make_model(graph, opset_imports=imports, ir_version=10)
    model = onnx.shape_inference.infer_shapes(model)
    for info in model.graph.output:
        # Deprecated operators have no shape inference; their results have the type of the input.
        if not info.type.tensor_type.elem_type:
            info.type.tensor_type.elem_type = graph_inputs[0].type.tensor_type.elem_type
    return model


def reference(model, feeds):
    """The outputs by onnx.reference, with float32 and narrower computed in float64."""
    return ReferenceEvaluator(_widened(model)).run(
        None,
        {
            k: v.astype("float64") if v.dtype in (np.float32, np.float16) else v
            for k, v in feeds.items()
        },
    )


def _widened(model):
    wide = onnx.ModelProto()
    wide.CopyFrom(model)
    for info in [*wide.graph.input, *wide.graph.output, *wide.graph.value_info]:
        tensor = info.type.tensor_type
        if tensor.elem_type in (TensorProto.FLOAT, TensorProto.FLOAT16):
            tensor.elem_type = TensorProto.DOUBLE
    for init in wide.graph.initializer:
        array = numpy_helper.to_array(init)
        if array.dtype in (np.float32, np.float16):
            init.CopyFrom(numpy_helper.from_array(array.astype("float64"), init.name))
    return wide


def check_model(
    model, feeds, *, rtol=1e-5, atol=1e-6, opt_levels=(0,), expected=None, target="llvm"
):
    """Build ``model`` at each opt level and compare with ``expected`` or the reference."""
    expected = reference(model, feeds) if expected is None else expected
    assert expected, "nothing to compare"
    for level in opt_levels:
        results = convert_and_build(model, target=target, opt_level=level).run(None, feeds)
        assert len(results) == len(expected)
        for got, want in zip(results, expected, strict=True):
            want = np.asarray(want)
            assert got.shape == want.shape, f"shape {got.shape}, expected {want.shape}"
            np.testing.assert_allclose(
                got.astype(want.dtype),
                want,
                rtol=rtol,
                atol=atol,
                equal_nan=True,
                err_msg=f"opt_level {level}",
            )
    record(model)


def check_node(
    op_type,
    inputs,
    attributes=None,
    *,
    opset=None,
    domain="",
    outputs=1,
    constants=(),
    symbolic=False,
    absent=(),
    expected=None,
    **tolerance,
):
    """Build a one-node model and compare it with the reference evaluator in float64."""
    model = node_model(
        op_type,
        inputs,
        attributes,
        opset=opset,
        domain=domain,
        outputs=outputs,
        constants=constants,
        symbolic=symbolic,
        absent=absent,
    )
    feeds = {
        f"x{k}": array for k, array in enumerate(inputs) if array is not None and k not in constants
    }
    expected = reference(model, feeds) if expected is None else expected
    _declare_ranks(model, expected)
    check_model(model, feeds, expected=expected, **tolerance)


def _declare_ranks(model, expected):
    """Give each output without an inferred shape the rank of its expected value."""
    for info, array in zip(model.graph.output, expected, strict=True):
        tensor = info.type.tensor_type
        if not tensor.HasField("shape") and isinstance(array, np.ndarray | np.generic):
            tensor.shape.SetInParent()
            for _ in range(array.ndim):
                tensor.shape.dim.add()
