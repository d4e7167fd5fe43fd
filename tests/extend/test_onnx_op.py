"""Patterns of ONNX operators that are imported as one kernel."""

import numpy as np
import onnx
import pytest
from tvm.relax.dpl import is_const, is_op, wildcard

from tests.extend.conftest import TWICE
from tests.extend.test_compound import check_answer, graph, selected
from tvm_ext import convert_and_build
from tvm_ext.extend import CCode, compound, onnx_op
from tvm_ext.extend.models import text_model
from tvm_ext.extend.plugin import INTERACTIVE


@pytest.fixture(autouse=True)
def unload():
    """What a test declares is gone after it."""
    yield
    INTERACTIVE.unload()


LAYER = text_model(
    """(float[3,5] x, float[3,5] z, float[5] w, float[5] b) => (float[n,m] y)
    { s = Add(x, z) t = LayerNormalization <epsilon = 0.25> (s, w, b) y = Relu(t) }""",
    ["w", "b"],
)


def add_norm():
    x, z, w, b = wildcard(), wildcard(), is_const(), is_const()
    norm = onnx_op("LayerNormalization", is_op("relax.add")(x, z), w, b)
    declared = compound("acme.add_norm", norm, parts={"x": x, "z": z, "w": w, "b": b, "norm": norm})
    declared.attributes(lambda m: {k: m["norm"].attrs[k] for k in ("axis", "epsilon")})
    return declared


def test_an_operator_that_is_a_kernel_is_found_and_fused():
    """Without compute its own kernel is a part of the compound; defaults are told, too."""
    add_norm()
    assert selected(LAYER) == ["acme.add_norm"]
    (kernel, _) = check_answer(LAYER).profile().kernels
    assert kernel.compounds == ("acme.add_norm(axis=-1, epsilon=0.25)",)
    assert kernel.nodes == ("Add s", "LayerNormalization t")


def test_it_may_be_c():
    add_norm().emit(
        lambda x, z, w, b, *, axis, epsilon: CCode(f"""
        #include <math.h>
        #include <stdint.h>
        typedef const float *in;
        int32_t TVMX_KERNEL(in x, in z, in w, in b, float *y) {{
          for (int i = 0; i < {x.shape[0]}; i++, x += 5, z += 5, y += 5) {{
            float mean = 0, square = 0;
            for (int j = 0; j < 5; j++) mean += (x[j] + z[j]) / 5;
            for (int j = 0; j < 5; j++) square += (x[j] + z[j] - mean) * (x[j] + z[j] - mean) / 5;
            for (int j = 0; j < 5; j++)
              y[j] = (x[j] + z[j] - mean) / sqrtf(square + {epsilon}f) * w[j] + b[j];
          }}
          return 0;
        }}""")
    )
    assert "sqrtf" in check_answer(LAYER).sources()["c"]


def test_inputs_known_at_compile_time_are_attributes():
    """And so no operands of the pattern."""
    x = wildcard()
    largest = onnx_op("ReduceMax", x)
    declared = compound("acme.largest", largest, parts={"x": x, "largest": largest})
    declared.attributes(lambda m: {"axes": list(m["largest"].attrs["axes"])})
    model = graph("a = Constant <value_ints = [1]> () y = ReduceMax(x, a)", "float[3,5] x")
    (kernel,) = check_answer(model).profile().kernels
    assert kernel.compounds == ("acme.largest(axes=(1,))",)


@pytest.mark.parametrize(
    "body",
    [
        "y = RMSNormalization(x, z)",  # another operator
        "y = LayerNormalization(x, z)",  # two tensors, the pattern has three
    ],
)
def test_others_are_not_found(body):
    add_norm()
    model = graph(body, "float[3,5] x, float[5] z")
    assert not selected(model)
    check_answer(model)


def test_an_operator_that_is_several_kernels_is_none():
    """A kernel inside of it is not it."""
    from tvm_ext.frontend import convert, load

    model = load(
        text_model("(float[3,4,5] x) => (float[n,c,k] y) { y = LpNormalization <p = 1> (x) }", ())
    )
    for block in convert(model).module["main"].body.blocks:
        for binding in block.bindings:
            attrs = getattr(binding.value, "attrs", None)
            assert attrs is None or "onnx" not in attrs or binding.var.name == "y"


def test_operators_of_other_domains_have_theirs_in_the_name(plugin):
    plugin(TWICE)
    x = wildcard()
    twice = onnx_op("com.acme.Twice", x)
    compound("acme.twice", is_op("relax.nn.relu")(twice), parts={"x": x, "twice": twice})
    model = onnx.parser.parse_model("""<ir_version: 10, opset_import: ["": 21, "com.acme": 1]>
        g (float[3, 4] x) => (float[3, 4] y) { t = com.acme.Twice(x) y = Relu(t) }""")
    built = convert_and_build(model, "llvm")
    assert built.profile().kernels[0].compounds == ("acme.twice()",)
    np.testing.assert_array_equal(built(-np.ones((3, 4), "float32")), np.zeros((3, 4)))
