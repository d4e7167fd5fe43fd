"""Every function of elements in a few models; oracle: onnx.reference in float64.

NaN, infinities, zeros of both signs and shapes that stretch are among the elements.
"""

import numpy as np
import onnx
import pytest
from onnx import helper

from tests.oracle import check_model

RNG = np.random.default_rng(7)
SPECIAL = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-30, -1e-30, 1.0, -1.0], "float32")
WIDE = np.concatenate([SPECIAL, RNG.normal(size=96).astype("float32") * 20]).reshape(3, 7, 1, 5)
UNIT = RNG.uniform(-1, 1, (2, 3, 11)).astype("float32")
UNIT.flat[:6] = 1.0, -1.0, 0.0, -0.0, 1e-30, 0.99999994
ABOVE_ONE = (1 + np.abs(RNG.normal(size=(2, 3, 11)) * 9)).astype("float32")
BOOLS = [RNG.integers(0, 2, shape).astype(bool) for shape in ((3, 1, 5), (2, 5))]

# Operators by the tensor that they take.
UNARY = {
    "wide": (
        "Abs Asinh Atan Ceil Celu Elu Erf Floor Gelu HardSigmoid HardSwish Identity IsInf IsNaN "
        "LeakyRelu Mish Neg Relu Round Selu Shrink Sigmoid Sign Softplus Softsign Swish Tanh "
        "ThresholdedRelu"
    ),
    "unit": "Acos Asin Atanh Cos Cosh Exp Sin Sinh Tan",
    "above": "Acosh Log Reciprocal Sqrt",
}
BINARY = "Add Div Equal Greater GreaterOrEqual Less LessOrEqual Max Mean Min Mul Sub Sum"
LOGICAL = "And Or Xor"
INTEGER = "BitwiseAnd BitwiseOr BitwiseXor Add Sub Mul Max Min"


def model_of(nodes, tensors, symbolic):
    """One output per node; ``tensors`` are the inputs."""
    inputs = [
        helper.make_tensor_value_info(
            name,
            helper.np_dtype_to_tensor_dtype(array.dtype),
            [f"{name}_{k}" if symbolic else size for k, size in enumerate(array.shape)],
        )
        for name, array in tensors.items()
    ]
    made = [
        helper.make_node(op_type, operands, [f"y{k}"], name=f"{op_type}_{k}", **attributes)
        for k, (op_type, operands, attributes) in enumerate(nodes)
    ]
    outputs = [helper.make_empty_tensor_value_info(f"y{k}") for k in range(len(nodes))]
    imports = [helper.make_opsetid("", onnx.defs.onnx_opset_version())]
    graph = helper.make_graph(made, "graph", inputs, outputs)
    return onnx.shape_inference.infer_shapes(
        helper.make_model(graph, opset_imports=imports, ir_version=10)
    )


@pytest.mark.filterwarnings("ignore:invalid value", "ignore:overflow", "ignore:divide by zero")
@pytest.mark.parametrize("symbolic", [False, True])
def test_functions_of_one_tensor(symbolic):
    tensors = {"wide": WIDE, "unit": UNIT, "above": ABOVE_ONE}
    nodes = [(op, [name], {}) for name, ops in UNARY.items() for op in ops.split()]
    check_model(model_of(nodes, tensors, symbolic), tensors, rtol=4e-6, atol=2e-7, opt_levels=(3,))


@pytest.mark.filterwarnings("ignore:invalid value", "ignore:overflow", "ignore:divide by zero")
@pytest.mark.parametrize("symbolic", [False, True])
def test_functions_of_two_tensors(symbolic):
    ints = [RNG.integers(-99, 99, shape).astype("int32") for shape in ((4, 1, 3), (4, 7, 3))]
    tensors = {
        "wide": WIDE,
        "row": SPECIAL[:7, None, None],
        "left": BOOLS[0],
        "right": BOOLS[1],
        "slope": UNIT[0, 0, :7, None, None],
        "few": ints[0],
        "many": ints[1],
    }
    nodes = [(op, ["wide", "row"], {}) for op in BINARY.split()]
    nodes += [(op, ["left", "right"], {}) for op in LOGICAL.split()]
    nodes += [(op, ["few", "many"], {}) for op in INTEGER.split()]
    nodes += [("PRelu", ["wide", "slope"], {}), ("Not", ["left"], {}), ("BitwiseNot", ["few"], {})]
    check_model(model_of(nodes, tensors, symbolic), tensors, rtol=4e-6, atol=2e-7, opt_levels=(3,))
