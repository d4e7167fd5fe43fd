"""Attention and RotaryEmbedding; oracle: onnx.reference in float64, torch."""

import numpy as np
import pytest
import torch

from tests.oracle import check_model, check_node, node_model, reference
from tvm_ext import convert_and_build
from tvm_ext.errors import RunError

RNG = np.random.default_rng(0)


def data(*shape):
    return RNG.normal(size=shape).astype("float32")


def test_attention_is_torch_attention():
    q, k, v = data(2, 3, 5, 8), data(2, 3, 7, 8), data(2, 3, 7, 6)
    want = torch.nn.functional.scaled_dot_product_attention(*map(torch.from_numpy, (q, k, v)))
    check_node("Attention", [q, k, v], expected=[want.numpy()])


# The reference gives mode 0 as mode 1: it shows the scores after the soft cap.
@pytest.mark.parametrize("mode", [1, 2, 3])
def test_grouped_heads_with_cache_mask_and_softcap(mode):
    q, k, v = data(2, 4, 5, 8), data(2, 2, 3, 8), data(2, 2, 3, 8)
    past = data(2, 2, 4, 8), data(2, 2, 4, 8)
    mask = RNG.random((2, 1, 5, 7)) < 0.7
    check_node("Attention", [q, k, v, mask, *past],
               {"is_causal": 1, "softcap": 2.0, "qk_matmul_output_mode": mode},
               outputs=4)  # fmt: skip


def test_sizes_of_the_cache_known_only_at_run_time():
    """Each input has dims of its own names."""
    inputs = [*[data(2, 2, 3, 4)] * 3, None, *[data(2, 2, 5, 4)] * 2]
    model = node_model("Attention", inputs, outputs=3)
    feeds = {}
    for info in model.graph.input:
        dims = info.type.tensor_type.shape.dim
        feeds[info.name] = data(*(dim.dim_value for dim in dims))
        for axis, dim in enumerate(dims):
            dim.dim_param = f"{info.name}_{axis}"
    for info in model.graph.output:
        for dim in info.type.tensor_type.shape.dim:
            dim.Clear()
    check_model(model, feeds)


def test_rows_that_see_nothing_are_zero():
    q, k, v = data(1, 1, 2, 4), data(1, 1, 3, 4), data(1, 1, 3, 4)
    mask = np.array([[False] * 3, [True, False, True]])
    check_node("Attention", [q, k, v, mask])


MASKS = {
    "bool": (lambda: RNG.random((2, 1, 5, 9)) < 0.5, {}),
    "float of all queries": (lambda: data(4, 1, 9), {}),
    "narrow": (lambda: RNG.random((5, 7)) < 0.5, {"is_causal": 1}),
    "cached": (lambda: None, {"is_causal": 1, "softcap": 3.0}),
}


BESIDE = "seen_keys", "concatenate"


@pytest.mark.parametrize("name", MASKS)
def test_masked_attention_is_one_kernel(name):
    """Query heads in groups, queries that see nothing."""
    mask, attributes = MASKS[name][0](), MASKS[name][1]
    q, k, v = data(2, 4, 5, 6), data(2, 2, 9, 6), data(2, 2, 9, 3)
    operands = [q, k, v, mask]
    if name == "cached":
        operands = [q, *(x[:, :, 4:] for x in (k, v)), mask, *(x[:, :, :4] for x in (k, v))]
    elif mask.dtype == bool:
        mask[..., 2, :] = False
    outputs = 3 if name == "cached" else 1
    model = node_model("Attention", operands, attributes, outputs=outputs)
    built = convert_and_build(model, "llvm")
    feeds = {f"x{n}": x for n, x in enumerate(operands) if x is not None}
    for got, want in zip(built.run(None, feeds), reference(model, feeds), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)
    kernels = [kernel.kernel for kernel in built.profile().kernels]
    assert [name for name in kernels if name.rstrip("1") not in BESIDE] == ["attention"]


def test_flat_heads():
    check_node("Attention", [data(2, 5, 12), data(2, 7, 12), data(2, 7, 12)],
               {"q_num_heads": 3, "kv_num_heads": 3, "scale": 0.5})  # fmt: skip


def test_valid_lengths_and_window():
    q, k, v = data(2, 2, 3, 4), data(2, 2, 6, 4), data(2, 2, 6, 4)
    lengths = np.array([4, 6])
    check_node("Attention", [q, k, v, None, None, None, lengths], {"is_causal": 1}, opset=24)


@pytest.mark.parametrize("interleaved", [0, 1])
@pytest.mark.parametrize("rotated", [0, 4])
def test_rotary_embedding(interleaved, rotated):
    x, width = data(2, 3, 5, 8), (rotated or 8) // 2
    positions = RNG.integers(0, 9, (2, 5))
    check_node("RotaryEmbedding", [x, data(9, width), data(9, width), positions],
               {"interleaved": interleaved, "rotary_embedding_dim": rotated})  # fmt: skip


def test_positions_out_of_range_read_no_foreign_memory():
    x, cos, sin = data(1, 1, 3, 4), data(5, 2), data(5, 2)
    model = node_model("RotaryEmbedding", [x, cos, sin, np.zeros((1, 3), "int64")])
    compiled = convert_and_build(model, "llvm")

    def run(*positions):
        return compiled(x, cos, sin, np.array([positions], "int64"))

    for wrong in -(1 << 40), -1, 5, 1 << 40:
        with pytest.raises(RunError, match=f"a position is {wrong}, not 0..4"):
            run(0, wrong, 4)


def test_rotary_embedding_of_flat_heads():
    x, cache = data(2, 5, 12), (data(2, 5, 2), data(2, 5, 2))
    check_node("RotaryEmbedding", [x, *cache], {"num_heads": 3})


def test_sizes_known_only_at_run_time():
    """The head size too; a mask broadcasts along any axis, whatever the sizes are."""
    q, k, v = data(3, 4, 5, 8), data(3, 2, 7, 8), data(3, 2, 7, 6)
    for mask, causal in (data(1, 1, 5, 7), 1), (data(4, 1, 7), 0):
        check_node("Attention", [q, k, v, mask], {"is_causal": causal}, symbolic=True,
                   opt_levels=(3,))  # fmt: skip


def test_rotary_embedding_of_a_run_time_head_size():
    x, cos, sin = data(2, 5, 12), data(9, 3), data(9, 3)
    positions = np.int64([[4, 0, 8, 3, 2], [1, 1, 7, 5, 0]])
    check_node("RotaryEmbedding", [x, cos, sin, positions], {"num_heads": 2}, symbolic=True,
               opt_levels=(0,))  # fmt: skip
