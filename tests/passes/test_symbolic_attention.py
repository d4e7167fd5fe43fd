"""Attention of symbolic sizes as one kernel: numbers against float64, structure."""

import numpy as np
import pytest
from onnx import parser

from tests.onnxruntime_oracle import run_onnxruntime
from tvm_ext import convert_and_build, targets
from tvm_ext.ops.attention_tiled import EPSILONS
from tvm_ext.schedules.llvm.attention_symbolic import are_few
from tvm_ext.schedules.machine import Machine

HEADS, GROUPS, SIZE, WIDTH = 4, 2, 20, 24  # no whole vectors

#: Over caches, as exporters write it and as one operator; as com.microsoft has it; without masks.
MODEL = f"""<ir_version: 10, opset_import: ["" : 23, "com.microsoft" : 1]>
g (float[b,{HEADS},s,{SIZE}] q, float[b,{GROUPS},p,{SIZE}] pk, float[b,{GROUPS},p,{WIDTH}] pv,
   float[b,{GROUPS},s,{SIZE}] k, float[b,{GROUPS},s,{WIDTH}] v, float[b,1,s,p] before,
   float[b,1,s,s] after, bool[1,1,s,t] kept, float[b,s,{HEADS * SIZE}] flat)
  => (float[b,s,{HEADS},{WIDTH}] exported, float[b,{HEADS},s,{WIDTH}] operator,
      float[b,s,{HEADS * SIZE}] microsoft, float[b,{HEADS},s,{SIZE}] own) {{
  keys = Concat<axis = 2>(pk, k)
  values = Concat<axis = 2>(pv, v)
  zero = Constant<value_ints = [0]>()
  one = Constant<value_ints = [1]>()
  two = Constant<value_ints = [2]>()
  four = Constant<value_ints = [4]>()
  size = Shape(keys)
  width = Shape(values)
  batch = Slice(size, zero, one)
  outer = Slice(size, zero, two)
  key_end = Slice(size, two, four)
  value_end = Slice(width, two, four)
  key_wide = Concat<axis = 0>(outer, two, key_end)
  key_flat = Concat<axis = 0>(batch, four, key_end)
  value_wide = Concat<axis = 0>(outer, two, value_end)
  value_flat = Concat<axis = 0>(batch, four, value_end)
  key_one = Unsqueeze(keys, two)
  key_more = Expand(key_one, key_wide)
  key_all = Reshape(key_more, key_flat)
  value_one = Unsqueeze(values, two)
  value_more = Expand(value_one, value_wide)
  value_all = Reshape(value_more, value_flat)
  turned = Transpose<perm = [0, 1, 3, 2]>(key_all)
  scores = MatMul(q, turned)
  root = Constant<value = float {{4.5}}>()
  scaled = Div(scores, root)
  added = Concat<axis = 3>(before, after)
  masked = Add(scaled, added)
  weights = Softmax<axis = -1>(masked)
  mixed = MatMul(weights, value_all)
  exported = Transpose<perm = [0, 2, 1, 3]>(mixed)
  operator, present_k, present_v = Attention<is_causal = 1, softcap = 5.0>(q, k, v, kept, pk, pv)
  microsoft = com.microsoft.MultiHeadAttention<num_heads = {HEADS}, unidirectional = 1>(
      flat, flat, flat)
  own = Attention<scale = 1.0>(q, q, q)
}}"""

# Queries one by one and in lanes, blocks of 64 and of 256 keys; nothing at all.
SIZES = [(1, 1, 0), (2, 1, 5), (1, 1, 700), (2, 3, 0), (1, 4, 254), (1, 5, 59), (2, 17, 64)]
SIZES += [(1, 40, 3), (0, 2, 1), (1, 0, 3), (1, 0, 0)]


@pytest.fixture(scope="module")
def compiled():
    return convert_and_build(parser.parse_model(MODEL), "llvm")


def softmax(scores):
    with np.errstate(invalid="ignore"):
        power = np.exp(scores - scores.max(-1, keepdims=True, initial=-np.inf))
        return power / power.sum(-1, keepdims=True)


def expected(q, pk, pv, k, v, added, kept, flat):
    """The results in float64, and by how much each may differ."""
    keys, values = np.concatenate([pk, k], 2), np.concatenate([pv, v], 2)
    keys, values = (np.repeat(x, HEADS // GROUPS, 1) for x in (keys, values))
    queries, total = q.shape[2], keys.shape[2]
    turned = keys.swapaxes(2, 3)
    first = softmax(q @ turned / 4.5 + added) @ values
    causal = np.arange(total) <= np.arange(queries)[:, None] + pk.shape[2]
    capped = 5 * np.tanh(q @ turned / SIZE**0.5 / 5)
    weights = softmax(np.where(kept & causal, capped, -np.inf))
    second = np.where(np.isnan(weights), 0, weights) @ values
    heads = flat.reshape(*flat.shape[:2], HEADS, SIZE).swapaxes(1, 2)
    square = heads @ heads.swapaxes(2, 3) / SIZE**0.5
    square = np.where(np.tri(queries, dtype=bool), square, -np.inf)
    third = (softmax(square) @ heads).swapaxes(1, 2).reshape(flat.shape)
    return first.swapaxes(1, 2), second, third, softmax(q @ q.swapaxes(2, 3)) @ q


@pytest.mark.parametrize(("b", "s", "p"), SIZES)
def test_any_sizes(compiled, b, s, p):
    check(compiled, b, s, p)


def test_few_queries_of_static_sizes_read_keys_where_they_lie():
    """Nothing is packed, turned or repeated for them; for many queries there is another kernel."""
    lanes = Machine.of(targets.resolve("llvm")).lanes("float32")
    few = next(s for s in (3, 2, 1) if are_few(s, lanes))
    dims = {"b": 2, "s": few, "p": 130, "t": 130 + few}
    compiled = convert_and_build(parser.parse_model(MODEL), "llvm", shapes=dims)
    assert_each_is_one_kernel([kernel.symbol for kernel in compiled.executor.plan.kernels])
    assert "packed" not in compiled.sources()["schedule"]
    check(compiled, 2, few, 130)


def check(compiled, b, s, p):
    """The four results beside those in float64."""
    random = np.random.default_rng(b + 10 * s + p)
    shapes = {
        "q": (b, HEADS, s, SIZE), "pk": (b, GROUPS, p, SIZE), "pv": (b, GROUPS, p, WIDTH),
        "k": (b, GROUPS, s, SIZE), "v": (b, GROUPS, s, WIDTH), "added": (b, 1, s, p + s),
        "flat": (b, s, HEADS * SIZE),
    }  # fmt: skip
    feeds = {name: random.standard_normal(dims).astype("float32") for name, dims in shapes.items()}
    feeds["kept"] = random.random((1, 1, s, s + p)) < 0.7
    feeds["added"][random.random((b, 1, s, s + p)) < 0.3] = -np.inf
    if s > 1:  # rows that see nothing, and one that sees only what is as low as can be
        feeds["kept"][..., 1, :] = False
        feeds["added"][..., -1, :] = -np.inf
        feeds["added"][..., 0, :] = np.finfo("float32").min
    wide = {name: x.astype("float64") if x.dtype == "f4" else x for name, x in feeds.items()}
    wide["added"][wide["added"] < -1e38] = -1e38 if s > 1 else -np.inf
    wide["added"][feeds["added"] == -np.inf] = -np.inf
    bound = EPSILONS * 2.0**-24 * 40 * 5
    added = feeds.pop("added")
    feeds["before"], feeds["after"] = added[..., :p], added[..., p:]
    for got, want in zip(compiled.run(None, feeds), expected(**wide), strict=True):
        np.testing.assert_allclose(got, want, rtol=0, atol=bound)


def test_each_is_one_kernel_that_stores_no_scores(compiled):
    assert_each_is_one_kernel([symbol for symbol, _ in compiled.executor.plan.kernels])
    assert "scores = T.sblock_alloc_buffer" not in compiled.sources()["schedule"]


def assert_each_is_one_kernel(symbols):
    assert sum("attention" in symbol for symbol in symbols) == 4
    assert not any("softmax" in symbol or "matmul" in symbol for symbol in symbols)
    assert not any("broadcast" in symbol or symbol.startswith("transpose") for symbol in symbols)


def test_a_step_between_keys_is_none_of_an_attention():
    """Scores that are summed along the keys are not those of single places."""
    text = """<ir_version: 8, opset_import: ["" : 17]>
    g (float[b,2,s,8] q, float[b,2,t,8] k) => (float[b,2,s,8] y) {
      turned = Transpose<perm = [0, 1, 3, 2]>(k)
      scores = MatMul(q, turned)
      axis = Constant<value = int64 {3}>()
      sums = CumSum(scores, axis)
      weights = Softmax<axis = -1>(sums)
      y = MatMul(weights, k)
    }"""
    model = convert_and_build(parser.parse_model(text), "llvm")
    random = np.random.default_rng(0)
    q, k = (random.standard_normal((2, 2, n, 8)).astype("float32") for n in (3, 5))
    want = softmax((q.astype("f8") @ k.swapaxes(2, 3)).cumsum(-1)) @ k
    np.testing.assert_allclose(model(q, k), want, rtol=1e-4, atol=1e-5)


def test_keys_that_masks_hide_are_passed_over():
    """By -inf and by large numbers; a row that all keys are hidden from stays what it is."""
    model = parser.parse_model("""<ir_version: 8, opset_import: ["" : 17]>
    g (float[b,2,s,8] q, float[b,2,t,8] k, float[b,2,t,8] v, float[s,t] mask)
      => (float[b,2,s,8] y) {
      turned = Transpose<perm = [0, 1, 3, 2]>(k)
      scores = MatMul(q, turned)
      masked = Add(scores, mask)
      weights = Softmax<axis = -1>(masked)
      y = MatMul(weights, v)
    }""")
    compiled = convert_and_build(model, "llvm")
    random = np.random.default_rng(0)
    for number in (-np.inf, np.finfo("float32").min, -1e9):
        for s in (40, 1):
            q, k, v = (
                random.standard_normal((1, 2, n, 8)).astype("float32") for n in (s, 300, 300)
            )
            seen = np.arange(300) <= 6 * np.arange(s)[::-1, None]
            seen[:, 270:] = False
            seen[-2:, :135] = False
            seen[-2:, 150:160] = True
            seen[7:9] = False
            seen[7:9, 3] = np.isinf(number)
            feeds = {"q": q, "k": k, "v": v, "mask": np.where(seen, 0, number).astype("float32")}
            (want,) = run_onnxruntime(model, feeds)
            np.testing.assert_allclose(*compiled.run(None, feeds), want, rtol=1e-4, atol=1e-5)
            if not np.isinf(number):
                feeds["mask"][7:9] = 0
            feeds["v"][:, :, 256:], feeds["mask"][:, 256:] = np.nan, number
            assert np.isfinite(compiled.run(None, feeds)).all()


def test_a_mask_of_its_own_number_of_keys():
    """It may be one: which element an index means is known at run time only."""
    text = """<ir_version: 8, opset_import: ["" : 17]>
    g (float[b,2,s,8] q, float[b,2,t,8] k, float[s,t] causal, float[b,u] kept)
      => (float[b,2,s,8] y) {
      middle = Constant<value_ints = [1, 2]>()
      row = Unsqueeze(kept, middle)
      mask = Add(causal, row)
      turned = Transpose<perm = [0, 1, 3, 2]>(k)
      scores = MatMul(q, turned)
      masked = Add(scores, mask)
      weights = Softmax<axis = -1>(masked)
      y = MatMul(weights, k)
    }"""
    model = convert_and_build(parser.parse_model(text), "llvm")
    assert any("attention" in symbol for symbol, _ in model.executor.plan.kernels)
    random = np.random.default_rng(0)
    q, k = (random.standard_normal((2, 2, n, 8)).astype("float32") for n in (19, 130))
    causal = random.standard_normal((19, 130)).astype("float32")
    for columns in 130, 1:
        kept = random.standard_normal((2, columns)).astype("float32")
        want = softmax(q @ k.swapaxes(2, 3).astype("f8") + causal + kept[:, None, None]) @ k
        np.testing.assert_allclose(model(q, k, causal, kept), want, rtol=1e-4, atol=1e-5)


def test_whole_blocks_of_keys():
    """Only the batch is symbolic: no keys are left over."""
    text = """<ir_version: 10, opset_import: ["" : 23]>
    g (float[b,2,128,8] q, float[b,2,256,8] k) => (float[b,2,128,8] y) { y = Attention(q, k, k) }"""
    model = parser.parse_model(text)
    compiled = convert_and_build(model, "llvm")
    random = np.random.default_rng(0)
    feeds = {
        n: random.standard_normal((3, 2, s, 8)).astype("float32")
        for n, s in (("q", 128), ("k", 256))
    }
    (want,) = run_onnxruntime(model, feeds)
    np.testing.assert_allclose(*compiled.run(None, feeds), want, rtol=1e-4, atol=1e-5)


def test_queries_that_are_never_few_build():
    model = parser.parse_model(
        """<ir_version: 10, opset_import: ["" : 23]>
        g (float[n,h,8,16] x) => (float[n,1,m,16] y) {
          flat = Constant<value_ints = [0, 1, -1, 16]>()
          q = Reshape(x, flat)
          full = Shape(q)
          two = Constant<value_ints = [2]>()
          three = Constant<value_ints = [3]>()
          rows = Slice(full, two, three)
          square = Concat<axis = 0>(rows, rows)
          one = Constant<value = bool[1, 1] {1}>()
          kept = Expand(one, square)
          y = Attention(q, q, q, kept)
        }"""
    )
    x = np.random.default_rng(1).normal(size=(2, 3, 8, 16)).astype(np.float32)
    (want,) = run_onnxruntime(model, {"x": x})
    np.testing.assert_allclose(convert_and_build(model, "llvm")(x), want, atol=1e-5)
