"""Both exporters write MatMul for layers without bias; with the patch, Gemm; then MatMul again."""

import threading

import numpy as np
import onnx
import onnxruntime
import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402
from torch.onnx import export as imported_before  # noqa: E402
from torch.onnx._internal.exporter import _core  # noqa: E402
from torch.onnx._internal.torchscript_exporter import registration  # noqa: E402
from tvm_ext.patches.torch_export import bias_less_linear_as_gemm  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")
BOTH = pytest.mark.parametrize("dynamo", [False, True], ids=["torchscript", "dynamo"])


class Net(nn.Module):
    """A layer without bias and a product with a parameter; a batched product of activations."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 5, bias=False)
        self.weight = nn.Parameter(torch.randn(5, 3))

    def forward(self, x):
        y = self.linear(x).relu() @ self.weight
        return y, torch.matmul(y.unsqueeze(0), y.unsqueeze(0).transpose(-1, -2))


class Call(nn.Module):
    """``function(x, weight)``."""

    def __init__(self, function, *shape):
        super().__init__()
        self.function = function
        self.weight = nn.Parameter(torch.randn(*shape))

    def forward(self, x):
        return self.function(x, self.weight)


def exported(net, x, dynamo, path, export=None, **options):
    """The model as a proto, after onnxruntime has given torch's answer for it."""
    options = {"opset_version": 18} | options | ({"verbose": False} if dynamo else {})
    (export or torch.onnx.export)(net, (x,), path, dynamo=dynamo, **options)
    session = onnxruntime.InferenceSession(path)
    got = session.run(None, {session.get_inputs()[0].name: x.numpy()})
    want = net(x)
    for have, expected in zip(got, want if isinstance(want, tuple) else [want], strict=True):
        np.testing.assert_allclose(have, expected.detach().numpy(), rtol=1e-5, atol=1e-5)
    return onnx.load(path)


def products(proto):
    """The products, each with the rank of its bias: "Gemm 1", "MatMul 0"."""
    known = {i.name: len(i.dims) for i in proto.graph.initializer}
    known |= {n.output[0]: len(n.attribute[0].t.dims) for n in proto.graph.node if not n.input}
    return [
        f"{n.op_type} {sum(known[name] for name in n.input[2:])}"
        for n in proto.graph.node
        if n.op_type in ("Gemm", "MatMul")
    ]


def net_of(seed=0):
    torch.manual_seed(seed)
    return Net().eval()


@pytest.mark.parametrize("shape", [(2, 4), (2, 3, 4), (4,)])
@BOTH
def test_products_with_a_weight_leave_as_gemm(shape, dynamo, tmp_path):
    path, net, x = tmp_path / "net.onnx", net_of(), torch.randn(*shape)
    if len(shape) == 1:
        net.forward = lambda x: net.linear(x).relu() @ net.weight
    before = products(exported(net, x, dynamo, path))
    assert "".join(before).count("MatMul") >= 2, "the patch is needed no more"
    with bias_less_linear_as_gemm():
        inside = products(exported(net, x, dynamo, path))
    assert inside == ["Gemm 1", "Gemm 1", "MatMul 0"][: 2 if len(shape) == 1 else 3]
    assert products(exported(net, x, dynamo, path)) == before


@pytest.mark.parametrize(
    "function, x, weight",
    [
        (functional.linear, (2, 3, 4), (5, 4)),
        (torch.matmul, (1, 7, 4), (4, 5)),
        (lambda x, w: x @ w, (1, 2, 3, 4), (4, 1)),
        (torch.mm, (2, 4), (4, 5)),
        (lambda x, w: x @ w.T, (2, 3, 4), (5, 4)),
        (lambda x, w: torch.addmm(torch.zeros(5), x, w), (2, 4), (4, 5)),
    ],
)
@BOTH
def test_every_way_to_write_a_product(function, x, weight, dynamo, tmp_path):
    torch.manual_seed(0)
    net, x = Call(function, *weight), torch.randn(*x)
    with bias_less_linear_as_gemm():
        found = products(exported(net, x, dynamo, tmp_path / "net.onnx"))
    assert found
    assert set(found) == {"Gemm 1"}


@BOTH
def test_dims_that_are_known_at_run_time_only(dynamo, tmp_path):
    """Batch and length of a sequence are symbolic: the Reshape behind reads them."""
    path, net = tmp_path / "net.onnx", net_of()
    dims = {0: "batch", 1: "length"}
    options = {"dynamic_shapes": (dims,)} if dynamo else {"dynamic_axes": {"x": dims}}
    with bias_less_linear_as_gemm():
        proto = exported(net, torch.randn(2, 3, 4), dynamo, path, input_names=["x"], **options)
    assert products(proto)[:2] == ["Gemm 1", "Gemm 1"]
    x = torch.randn(5, 7, 4)
    got = onnxruntime.InferenceSession(path).run(None, {"x": x.numpy()})[0]
    np.testing.assert_allclose(got, net(x)[0].detach().numpy(), rtol=1e-5, atol=1e-5)


@BOTH
def test_one_weight_for_two_layers_is_stored_once(dynamo, tmp_path):
    net = nn.Sequential(nn.Linear(64, 64, bias=False), nn.ReLU(), nn.Linear(64, 64, bias=False))
    net[2].weight = net[0].weight
    with bias_less_linear_as_gemm():
        proto = exported(net.eval(), torch.randn(3, 64), dynamo, tmp_path / "net.onnx")
    assert products(proto) == ["Gemm 1", "Gemm 1"]
    assert len([i for i in proto.graph.initializer if list(i.dims) == [64, 64]]) == 1


@BOTH
def test_a_weight_too_large_to_be_folded_keeps_its_form(dynamo, tmp_path):
    """The Transpose of a large weight is not folded; it becomes the attribute of the Gemm."""
    net = nn.Linear(1100, 1000, bias=False).eval()
    with bias_less_linear_as_gemm():
        proto = exported(net, torch.randn(1, 2, 1100), dynamo, tmp_path / "net.onnx")
    assert products(proto) == ["Gemm 1"]
    assert "Transpose" not in [node.op_type for node in proto.graph.node]


@BOTH
def test_a_model_in_training(dynamo, tmp_path):
    options = {} if dynamo else {"training": torch.onnx.TrainingMode.TRAINING}
    with bias_less_linear_as_gemm():
        proto = exported(
            net_of().train(), torch.randn(2, 3, 4), dynamo, tmp_path / "net.onnx", **options
        )
    assert products(proto) == ["Gemm 1", "Gemm 1", "MatMul 0"]


def test_options_of_the_exporter_hold(tmp_path):
    """The model without weights; a program of torch.export; a name imported before the patch."""
    x, path = torch.randn(2, 3, 4), tmp_path / "net.onnx"
    with bias_less_linear_as_gemm():
        proto = exported(net_of(), x, True, path, export=imported_before)
        program = torch.export.export(net_of(), (x,))
        torch.onnx.export(program, (), tmp_path / "program.onnx", verbose=False, dynamo=False)
        torch.onnx.export(
            net_of(), (x,), tmp_path / "bare.onnx", verbose=False, export_params=False
        )
    assert products(proto)[:2] == ["Gemm 1", "Gemm 1"]
    assert products(onnx.load(tmp_path / "program.onnx"))[:2] == ["Gemm 1", "Gemm 1"]
    assert not onnx.load(tmp_path / "bare.onnx").graph.initializer


def symbolic_functions():
    names = "aten::linear", "aten::matmul", "aten::mm"
    groups = [registration.registry.get_function_group(name)._functions for name in names]
    return [dict(group._merged) for group in groups] + [_core.export]


def test_a_body_that_raises_and_contexts_within_contexts():
    before = symbolic_functions()
    with pytest.raises(RuntimeError, match="mine"), bias_less_linear_as_gemm():
        raise RuntimeError("mine")
    assert symbolic_functions() == before
    with bias_less_linear_as_gemm():
        inside = symbolic_functions()
        assert inside != before
        with bias_less_linear_as_gemm():
            assert symbolic_functions() == inside
        assert symbolic_functions() == inside
    assert symbolic_functions() == before

    @bias_less_linear_as_gemm()
    def decorated():
        return symbolic_functions()

    assert decorated() != before
    assert decorated() != before
    assert symbolic_functions() == before


def test_contexts_of_several_threads():
    before, ready, leave = symbolic_functions(), threading.Barrier(3), threading.Event()

    def hold():
        with bias_less_linear_as_gemm():
            ready.wait()
            leave.wait()

    threads = [threading.Thread(target=hold) for _ in range(2)]
    for thread in threads:
        thread.start()
    ready.wait()
    assert symbolic_functions() != before
    with bias_less_linear_as_gemm():
        leave.set()
        for thread in threads:
            thread.join()
        assert symbolic_functions() != before
    assert symbolic_functions() == before


def test_functions_that_others_registered_stay(tmp_path):
    """One before, one in between: each is called and is there when its owner takes it back."""
    calls = []

    def mine(name):
        def matmul(g, x, y):
            calls.append(name)
            return g.op("MatMul", x, y)

        return matmul

    def run():
        calls.clear()
        batched = Call(lambda x, w: x @ w.unsqueeze(0), 4, 5)
        exported(batched, torch.randn(2, 3, 4), False, tmp_path / "net.onnx")
        return list(calls)

    register = torch.onnx.register_custom_op_symbolic
    try:
        register("aten::matmul", mine("before"), 9)
        with bias_less_linear_as_gemm():
            assert run() == ["before"]
        assert run() == ["before"]
        patch = bias_less_linear_as_gemm()
        patch.__enter__()
        register("aten::matmul", mine("between"), 9)
        patch.__exit__(None, None, None)
        assert run() == ["between"]
    finally:
        torch.onnx.unregister_custom_op_symbolic("aten::matmul", 9)
    assert run() == []


def test_another_patch_of_the_exporter_left_in_another_order(tmp_path):
    original = _core.export
    patch = bias_less_linear_as_gemm()
    patch.__enter__()
    ours = _core.export
    seen = []

    def theirs(*args, **kwargs):
        seen.append(1)
        return ours(*args, **kwargs)

    _core.export = theirs
    try:
        patch.__exit__(None, None, None)
        assert _core.export is theirs
        assert "MatMul 0" in products(
            exported(net_of(), torch.randn(2, 3, 4), True, tmp_path / "a")
        )
        assert seen
        _core.export = ours  # they put back what they found
        assert (
            products(exported(net_of(), torch.randn(2, 3, 4), True, tmp_path / "b"))[0] != "Gemm 1"
        )
        with bias_less_linear_as_gemm():
            proto = exported(net_of(), torch.randn(2, 3, 4), True, tmp_path / "c")
        assert products(proto)[0] == "Gemm 1"
    finally:
        _core.export = original


def test_torch_itself_is_untouched():
    net, x = net_of(), torch.randn(2, 3, 4)
    want = net(x)[0]
    with bias_less_linear_as_gemm():
        assert torch.equal(net(x)[0], want)
        torch.testing.assert_close(torch.compile(net, backend="eager")(x)[0], want)
