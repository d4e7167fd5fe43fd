"""A pipeline is a value: steps are inserted, dropped and printed; a build respects it."""

import numpy as np
import pytest
import tvm
from onnx import helper

from tests.oracle import reference
from tvm_ext import convert_and_build, pipeline, targets
from tvm_ext.extend.models import text_model


@pytest.fixture(scope="module")
def llvm():
    return targets.resolve("llvm")


def names(steps):
    return [step.name for step in steps.steps]


def test_a_step_goes_before_or_after_a_named_one_in_its_phase(llvm):
    base = pipeline.default(llvm, 3)
    before = base.insert("mine", lambda module: module, before="FuseOps")
    after = base.insert("mine", lambda module: module, after="FuseOps")
    at = names(base).index("FuseOps")
    assert names(before)[at : at + 2] == ["mine", "FuseOps"]
    assert names(after)[at : at + 2] == ["FuseOps", "mine"]
    assert {step.phase for step in after.steps if step.name == "mine"} == {"fuse"}
    assert "mine" not in names(base)


def test_a_step_is_dropped(llvm):
    base = pipeline.default(llvm, 3)
    assert names(base.without("FuseOps")) == [n for n in names(base) if n != "FuseOps"]


@pytest.mark.parametrize(
    "anchors", [{}, {"before": "FuseOps", "after": "FuseTIR"}, {"after": "NoSuchStep"}]
)
def test_an_anchor_is_one_known_step(llvm, anchors):
    with pytest.raises(ValueError, match=r"anchor|no step"):
        pipeline.default(llvm, 3).insert("mine", lambda module: module, **anchors)


def test_a_name_is_taken_once(llvm):
    with pytest.raises(ValueError, match="there already"):
        pipeline.default(llvm, 3).insert("FuseOps", lambda module: module, after="FuseTIR")


def test_levels_add_steps(llvm):
    levels = [set(names(pipeline.default(llvm, level))) for level in range(4)]
    assert "FuseOps" not in levels[0]
    assert "FuseOps" in levels[1]
    assert "BlockedLayout" not in levels[1]
    assert "BlockedLayout" in levels[2]
    assert levels[2] <= levels[3]


@pytest.mark.parametrize("level", [-1, 4, "3", None])
def test_a_level_is_0_to_3(llvm, level):
    with pytest.raises(ValueError, match="opt_level"):
        pipeline.default(llvm, level)


def test_it_prints_its_phases(llvm):
    text = str(pipeline.default(llvm, 3))
    assert [line.split()[0] for line in text.splitlines() if "FuseOps" in line] == ["fuse"]


def test_a_long_chain_becomes_several_kernels():
    """300 operators in one formula nest deeper than Python recurses."""
    nodes = [
        helper.make_node(("Neg", "Abs")[k % 2], [f"v{k}"], [f"v{k + 1}"], f"n{k}")
        for k in range(300)
    ]
    ends = (helper.make_tensor_value_info(name, 1, [4]) for name in ("v0", "v300"))
    graph = helper.make_graph(nodes, "graph", *([end] for end in ends))
    model = helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 18)])
    built = convert_and_build(model, "llvm")
    np.testing.assert_array_equal(built(np.array([1, -2, 0, -4], "float32")), [1, 2, 0, 4])
    profile = built.profile(repeat=1)
    assert 1 < len(profile.kernels) < 10
    assert sum(len(kernel.nodes) for kernel in profile.kernels) == 300


@pytest.mark.parametrize("compound", ["TiledAttention", "Winograd", "BlockedConv2d", "TiledMatmul"])
def test_a_model_without_a_built_in_compound_is_right(compound, llvm):
    """Attention over the pixels of a convolution that Winograd's method takes."""
    model = text_model(
        "(float[1,16,32,32] x, float[16,16,3,3] w) => (float[n,p,c] y) {"
        "   shape = Constant <value_ints = [1, 16, 1024]> ()"
        "   conv = Conv <pads = [1, 1, 1, 1]> (x, w)  k = Reshape(conv, shape)"
        "   q = Transpose <perm = [0, 2, 1]> (k)  s = MatMul(q, k)"
        "   a = Softmax <axis = 2> (s)  y = MatMul(a, q) }",
        ["w"],
    )
    x = np.random.default_rng(0).standard_normal((1, 16, 32, 32)).astype("float32") / 8
    assert compound in {step.name for step in pipeline.default(llvm, 3).steps if step.compound}
    built = convert_and_build(model, "llvm", without=[compound])
    assert compound not in built.sources()["select"]
    (want,) = reference(model, {"x": x})
    np.testing.assert_allclose(built(x), want, rtol=1e-3, atol=1e-3)


def test_an_interrupt_inside_tvm_stays_one_and_the_next_build_works(llvm):
    @tvm.tirx.transform.prim_func_pass(opt_level=0)
    def interrupted(func, module, context):
        raise KeyboardInterrupt

    model = text_model("(float[2,3] x) => (float[2,3] y) { y = Relu(x) }", [])
    steps = pipeline.default(llvm, 3).insert("interrupted", interrupted, after="FuseTIR")
    with pytest.raises(KeyboardInterrupt):
        convert_and_build(model, steps=steps)
    np.testing.assert_array_equal(
        convert_and_build(model, "llvm")(np.eye(2, 3, dtype="f")), np.eye(2, 3)
    )
