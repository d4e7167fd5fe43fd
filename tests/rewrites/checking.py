"""Models as text, rewritten, and both versions run by onnxruntime."""

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
from onnx import helper, parser
from tvm_ext.frontend.rewrites import steps
from tvm_ext.frontend.rewrites.rule import FUSED

NEWEST = 24  # an opset that has every operator of the domain tvm_ext under the same name


def model(graph, opset=18, **initializers):
    """Parse ``graph``; the initializers are arrays by name."""
    proto = parser.parse_model(f'<ir_version: 8, opset_import: ["" : {opset}]> {graph}')
    for name, array in initializers.items():
        proto.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    onnx.checker.check_model(proto)
    return proto


def rewritten(proto, opt_level=2, vector=0):
    """The model after all rewrites of a level, for registers of so many numbers."""
    result = ir.from_proto(proto)
    for _, step in steps(opt_level, vector):
        result = step(result)
    return result


def operators(result):
    return [node.op_type for node in result.graph]


def feeds_for(proto, seed=0, size=3):
    """Seeded normal inputs; every symbolic dim is ``size``."""
    rng = np.random.default_rng(seed)
    constants = {init.name for init in proto.graph.initializer}
    return {
        value.name: rng.normal(size=[d.dim_value or size for d in value.type.tensor_type.shape.dim])
        .astype(helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type))
        for value in proto.graph.input if value.name not in constants
    }  # fmt: skip


def run(proto, feeds):
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(proto.SerializeToString(), options)
    return session.run(None, feeds)


def _standard(node):
    """A node as ai.onnx nodes: some are taken apart, others exist in ``NEWEST``."""
    if node.domain != FUSED:
        return [node]
    node.domain = ""
    if node.op_type == "PhasesToSpace":
        return _moved(node.input[0], node.output[0], list(node.attribute[0].ints))
    if node.op_type != "Gemm":
        return [node]
    (y,), x, w, bias = node.output, *node.input[:2], node.input[2:]
    attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    assert attributes.keys() <= {"transB"}
    nodes = []
    if attributes.get("transB"):
        nodes.append(helper.make_node("Transpose", [w], [w := f"{y}_weight"], perm=[1, 0]))
    product = f"{y}_product" if bias else y
    nodes.append(helper.make_node("MatMul", [x, w], [product]))
    return nodes + ([helper.make_node("Add", [product, *bias], [y])] if bias else [])


def _moved(x, y, strides):
    """``[N, phases * C, ...]`` -> ``[N, phases, C, ...]`` -> ``[N, C, ..., phases]``, by shapes."""
    rank = len(strides)
    order = [place for k in range(rank) for place in (2 + rank + k, 1 + k)]
    text = f"""(float[N] x) => (float[N] y) {{
        size = Shape (x)
        first, all, image = Split <axis = 0> (size, lengths)
        number = ReduceProd <keepdims = 1> (strides)
        filters = Div (all, number)
        parted = Concat <axis = 0> (first, strides, filters, image)
        apart = Reshape (x, parted)
        beside = Transpose <perm = {[0, 1 + rank, *order]}> (apart)
        large = Mul (image, strides)
        whole = Concat <axis = 0> (first, filters, large)
        y = Reshape (beside, whole)
    }}"""
    constants = {"lengths": [1, 1, rank], "strides": strides}
    made = [helper.make_node("Constant", [], [n], value_ints=v) for n, v in constants.items()]
    made += parser.parse_graph(f"g {text}").node
    for node in made:
        for names in (node.input, node.output):
            names[:] = [{"x": x, "y": y}.get(name, f"{y}_{name}") for name in names]
    return made


def assert_same(proto, result, feeds=None, rtol=1e-5, atol=1e-6):
    """The rewritten model gives onnxruntime's answer on the original; returns its operators."""
    feeds = feeds_for(proto) if feeds is None else feeds
    after = ir.to_proto(result)
    if FUSED in result.opset_imports:
        standard = [new for node in after.graph.node for new in _standard(node)]
        after.graph.ClearField("node")
        after.graph.node.extend(standard)
        after = onnx.ModelProto.FromString(after.SerializeToString())
        del after.opset_import[:]
        after.opset_import.append(helper.make_opsetid("", NEWEST))
        after.ir_version = 10
    expected, got = run(proto, feeds), run(after, feeds)
    assert [o.name for o in after.graph.output] == [o.name for o in proto.graph.output]
    for want, have in zip(expected, got, strict=True):
        assert have.shape == want.shape
        np.testing.assert_allclose(have, want, rtol=rtol, atol=atol)
    return operators(result)
