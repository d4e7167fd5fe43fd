"""Both exporters write MatMul for layers without bias; with the patch, Gemm; then MatMul again."""

import numpy as np
import onnx
import onnxruntime
import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402
from tvm_ext.patches.torch_export import bias_less_linear_as_gemm  # noqa: E402


class Net(nn.Module):
    """A layer without bias and a product with a parameter; a batched product of activations."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 5, bias=False)
        self.weight = nn.Parameter(torch.randn(5, 3))

    def forward(self, x):
        y = self.linear(x).relu() @ self.weight
        return y, torch.matmul(y.unsqueeze(0), y.unsqueeze(0).transpose(-1, -2))


def export(shape, dynamo, path):
    torch.manual_seed(0)
    net, x = Net().eval(), torch.randn(*shape)
    options = {"verbose": False} if dynamo else {}
    torch.onnx.export(net, (x,), path, dynamo=dynamo, opset_version=18, **options)
    proto = onnx.load(path)
    session = onnxruntime.InferenceSession(path)
    got = session.run(None, {session.get_inputs()[0].name: x.numpy()})
    for have, want in zip(got, net(x), strict=True):
        np.testing.assert_allclose(have, want.detach().numpy(), rtol=1e-5, atol=1e-5)
    return [node for node in proto.graph.node if node.op_type in ("Gemm", "MatMul")]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("shape", [(2, 4), (2, 3, 4)])
@pytest.mark.parametrize("dynamo", [False, True])
def test_products_with_a_weight_leave_as_gemm(shape, dynamo, tmp_path):
    path = tmp_path / "net.onnx"
    operators = [node.op_type for node in export(shape, dynamo, path)]
    assert operators.count("MatMul") >= 2, "the patch is needed no more"
    with bias_less_linear_as_gemm():
        nodes = export(shape, dynamo, path)
    assert [node.op_type for node in nodes] == ["Gemm", "Gemm", "MatMul"]
    assert [len(node.input) for node in nodes] == [3, 3, 2]
    assert [node.op_type for node in export(shape, dynamo, path)] == operators
