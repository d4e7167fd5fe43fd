"""Sizes of run time that contradict each other end the run: no kernel reads or writes beyond."""

import numpy as np
import pytest
from onnx import helper, parser

from tvm_ext import convert_and_build
from tvm_ext.errors import RunError

# inputs, the node, shapes that fit, and what to change for shapes that do not
CASES = {
    "heads": (
        "(float[b, h, s, 8] q, float[b, g, t, 8] k)", "Attention (q, k, k)",
        {"q": (1, 4, 3, 8), "k": (1, 2, 5, 8)}, {"k": (1, 3, 5, 8)}, "no multiple of g",
    ),
    "widths of heads": (
        "(float[b, s, v] q, float[b, t, w] k)",
        "Attention <q_num_heads = 2, kv_num_heads = 2> (q, k, k)",
        {"q": (1, 3, 8), "k": (1, 5, 8)}, {"q": (1, 3, 9)}, "no multiple of 2",
    ),
    "channels": (
        "(float[n, c, h, w] x, float[f, d, 3, 3] k)", "Conv (x, k)",
        {"x": (1, 3, 5, 5), "k": (4, 3, 3, 3)}, {"x": (1, 2, 5, 5)}, "axis 1 of 'x' is 2, not 3",
    ),
    "bias": (
        "(float[n, c, h, w] x, float[f, c, 3, 3] k, float[g] b)", "Conv (x, k, b)",
        {"x": (1, 3, 5, 5), "k": (4, 3, 3, 3), "b": (4,)}, {"b": (1,)}, "axis 0 of 'b' is 1",
    ),
    "bias of a transposed convolution": (
        "(float[n, c, h, w] x, float[c, f, 3, 3] k, float[g] b)", "ConvTranspose (x, k, b)",
        {"x": (1, 3, 5, 5), "k": (3, 1, 3, 3), "b": (1,)}, {"b": (4,)}, "axis 0 of 'b' is 4",
    ),
    "square": ("(float[n, a, b] x)", "Det (x)", {"x": (2, 3, 3)}, {"x": (2, 3, 4)}, "is 4, not 3"),
    "scale of a norm": (
        "(float[n, a] x, float[b] s)", "LayerNormalization (x, s)",
        {"x": (2, 6), "s": (6,)}, {"s": (5,)}, "is 5, which does not broadcast to 6",
    ),
    "static scale of a norm": (
        "(float[n, a] x, float[6] s)", "LayerNormalization (x, s)",
        {"x": (2, 6), "s": (6,)}, {"x": (2, 7)}, "7, to which 6 does not broadcast",
    ),
    "scales of channels": (
        "(float[n, 6, a] x, float[c] s)", "GroupNormalization <num_groups = 3> (x, s, s)",
        {"x": (2, 6, 4), "s": (6,)}, {"s": (5,)}, "is 5, not 6",
    ),
    "batches of indices": (
        "(float[a, b] x, int64[c, d, 1] i)", "GatherND <batch_dims = 1> (x, i)",
        {"x": (3, 4), "i": (3, 2, 1)}, {"i": (4, 2, 1)}, "is 4, not 3",
    ),
    "lengths": (
        "(float[t, b] x, int64[n] l)", "ReverseSequence (x, l)",
        {"x": (4, 6), "l": (6,)}, {"l": (2,)}, "axis 0 of 'l' is 2, not 6",
    ),
    "fewer indices than updates": (
        "(float[a, b] x, int64[c, d] i, float[e, f] u)", "ScatterElements (x, i, u)",
        {"x": (4, 6), "i": (2, 1), "u": (2, 1)}, {"i": (1, 1)}, "axis 0 of 'u' is 2, not 1",
    ),
    "fewer updates than indices": (
        "(float[a, b] x, int64[c, d] i, float[e, f] u)", "ScatterElements (x, i, u)",
        {"x": (2, 3), "i": (2, 3), "u": (2, 3)}, {"u": (2, 2)}, "axis 1 of 'u' is 2, not 3",
    ),
    "more indices than there are": (
        "(float[a, b] x, int64[c, d] i, float[c, d] u)", "ScatterElements (x, i, u)",
        {"x": (2, 3), "i": (2, 3), "u": (2, 3)}, {"i": (2, 4), "u": (2, 4)},
        "axis 1 of the indices is 4, more than 3",
    ),
    "scale of codes": (
        "(float[a, b] x, float[c] s, uint8[d] z)", "QuantizeLinear (x, s, z)",
        {"x": (4, 6), "s": (6,), "z": (6,)}, {"s": (5,)}, "axis 0 of 's' is 5, ",
    ),
    "nothing to gather": (
        "(float[a, b] x, int64[c] i)", "Gather (x, i)",
        {"x": (4, 6), "i": (1,)}, {"x": (0, 6)}, "there is nothing to gather on axis 0",
    ),
    "images of boxes": (
        "(float[n, c, h, w] x, float[b, 4] r, int64[i] i)", "RoiAlign (x, r, i)",
        {"x": (1, 1, 4, 6), "r": (4, 4), "i": (4,)}, {"i": (1,)}, "axis 0 of 'i' is 1, not 4",
    ),
    "classes": (
        "(float[n, c, d] x, int64[m, e] i)", "NegativeLogLikelihoodLoss (x, i)",
        {"x": (2, 3, 4), "i": (2, 4)}, {"i": (2, 5)}, "is 5, not 4",
    ),
    "places of maxima": (
        "(float[1, 1, a, b] x, int64[1, 1, c, d] i)", "MaxUnpool <kernel_shape = [2, 2]> (x, i)",
        {"x": (1, 1, 2, 2), "i": (1, 1, 2, 2)}, {"i": (1, 1, 1, 2)}, "is 1, not 2",
    ),
}  # fmt: skip


@pytest.mark.parametrize("level", [0, 3])
@pytest.mark.parametrize("case", CASES)
def test_sizes_that_contradict_end_the_run(case, level):
    inputs, node, fitting, others, reason = CASES[case]
    model = parser.parse_model(
        f'<ir_version: 10, opset_import: ["" : 24]> g {inputs} => (float y) {{ y = {node} }}'
    )
    model.graph.output[0].ClearField("type")
    types = {x.name: x.type.tensor_type.elem_type for x in model.graph.input}
    built, rng = convert_and_build(model, opt_level=level), np.random.default_rng(0)

    def feeds(shapes):
        """Floats, and indices of the first place, which there is."""
        made = {name: rng.uniform(1, 2, shape) for name, shape in shapes.items()}
        dtypes = {name: helper.tensor_dtype_to_np_dtype(types[name]) for name in shapes}
        return {
            name: (x if dtypes[name].kind == "f" else 0 * x).astype(dtypes[name])
            for name, x in made.items()
        }

    given = feeds(fitting)
    expected = built.run(None, given)
    operator = node.split()[0]
    with pytest.raises(RunError, match=rf"^{operator}-\d+ 'y' \(opset 24\): .*{reason}"):
        built.run(None, feeds(fitting | others))
    for got, want in zip(built.run(None, given), expected, strict=True):
        np.testing.assert_array_equal(got, want)
