"""Attention as one kernel: numbers in hostile cases against float64, structure, refusals."""

import numpy as np
import onnx
import onnx.parser
import pytest
import tvm
from tvm import relax, te, tirx, topi
from tvm.s_tir import Schedule
from tvm.tirx import ForKind

from tests.oracle import check_model
from tvm_ext import targets
from tvm_ext.executors.lowering import TIR_PIPELINE
from tvm_ext.ops.attention_tiled import EPSILONS, Step, attention_tiled
from tvm_ext.passes.tiled_attention import TILED_ATTENTION
from tvm_ext.schedules.llvm.attention import AttentionTiled, choose_attention_tile

HERE = targets.host_target()
SWAPPED = (0, 2, 1, 3)


def data(seed, *shape, dtype="float32", size=1.0):
    return (size * np.random.default_rng(seed).normal(size=shape)).astype(dtype)


def kernel(q, k, v, mask, steps, guard, dtype, target=HERE):
    """The function for operands ``[B, S, H, D]``."""
    arrays = [q, k, v, *([] if mask is None else [mask])]
    tensors = [te.placeholder(a.shape, str(a.dtype), name=f"x{n}") for n, a in enumerate(arrays)]
    tile = choose_attention_tile(target, q.shape[1], k.shape[1], v.shape[3])
    y = attention_tiled(
        *tensors, axes=[SWAPPED] * 4, steps=steps, rows=tile.rows, columns=tile.columns,
        value_columns=tile.value_columns, guard=guard, dtype=dtype,
    )  # fmt: skip
    return te.create_prim_func([*tensors, y]), arrays


def attention(q, k, v, mask=None, scale=1.0, kind="add", guard=None, fill=-np.inf):
    """The kernel's result and its bound, then the one in float64; all ``[B, H, S, V]``."""
    leading = (q.shape[0], q.shape[2], q.shape[1])
    steps = [Step("multiply", None, scale, leading)]
    steps += [] if mask is None else [Step(kind, 0, fill, leading)]
    func, arrays = kernel(q, k, v, mask, steps, guard, str(q.dtype))
    sch = AttentionTiled().apply(func, HERE, False)
    library = tvm.tirx.build(sch.mod["main"].with_attr("global_symbol", "main"), HERE,
                             pipeline=TIR_PIPELINE)  # fmt: skip
    result = tvm.runtime.tensor(np.full((*q.shape[:3], v.shape[3]), 7, q.dtype))
    library["main"](*map(tvm.runtime.tensor, arrays), result)
    got = result.numpy().astype("float64").transpose(SWAPPED)
    return got, *reference(*arrays, scale=scale, kind=kind, fill=fill)


def reference(q, k, v, mask=None, *, scale, kind, fill):
    q, k, v = (x.astype("float64").transpose(SWAPPED) for x in (q, k, v))
    heads = q.shape[1] // k.shape[1]
    k, v = (np.repeat(x, heads, 1) for x in (k, v))
    scores = scale * q @ k.swapaxes(2, 3)
    size = abs(scale) * abs(q) @ abs(k).swapaxes(2, 3)
    if mask is not None and kind == "add":
        scores, size = scores + mask, size + np.where(np.isfinite(mask), abs(mask), 0)
    elif mask is not None:
        scores = np.where(mask, scores, fill)
    with np.errstate(invalid="ignore"):
        power = np.exp(scores - scores.max(-1, keepdims=True))
        want = power / power.sum(-1, keepdims=True) @ v
    size = np.where(scores > -np.inf, size, 0).max(-1, keepdims=True)
    return want, EPSILONS * 2.0**-24 * (1 + size) * abs(v).max()


@pytest.mark.parametrize("shape", [
    (1, 1, 1, 1, 1, 1), (1, 2, 1, 7, 3, 1), (2, 3, 17, 13, 5, 9), (1, 2, 31, 37, 64, 64),
    (1, 1, 3, 1, 8, 16), (1, 4, 5, 129, 2, 40), (3, 5, 23, 33, 11, 33),
])  # fmt: skip
def test_odd_lengths_and_sizes(shape):
    b, h, s, t, d, width = shape
    operands = data(0, b, s, h, d), data(1, b, t, h, d), data(2, b, t, h, width)
    got, want, bound = attention(*operands, data(3, b, 1, s, t), scale=d**-0.5)
    assert (abs(got - want) <= bound).all()


@pytest.mark.parametrize("size", [1e-6, 30.0, 1e4])
def test_scores_of_any_size(size):
    q, k, v = data(0, 1, 7, 2, 16, size=size), data(1, 1, 19, 2, 16), data(2, 1, 19, 2, 8)
    got, want, bound = attention(q, k, v)
    assert (abs(got - want) <= bound).all()


@pytest.mark.parametrize("dtype, step", [("float16", 2.0**-10), ("bfloat16", 2.0**-7)])
def test_narrow_floats_sum_in_float32(dtype, step):
    dtype = np.dtype(dtype)
    operands = [data(n, 1, 11, 2, 8).astype(dtype) for n in range(3)]
    got, want, bound = attention(*operands, scale=0.5)
    assert (abs(got - want) <= bound + step * abs(want)).all()


def test_conditions_choose_scores():
    q, k, v = data(0, 2, 9, 3, 4), data(1, 2, 9, 3, 4), data(2, 2, 9, 3, 4)
    mask = np.tril(np.ones((9, 9), bool))
    got, want, bound = attention(q, k, v, mask, kind="keep")
    assert (abs(got - want) <= bound).all()


def test_rows_without_weight():
    q, k, v = data(0, 1, 5, 1, 4), data(1, 1, 6, 1, 4), data(2, 1, 6, 1, 4)
    mask = np.zeros((5, 6), "float32")
    mask[2], q[0, 4, 0, 1] = -np.inf, np.nan
    for guard, value in {None: np.nan, "nan": 0.0, "empty": 0.0}.items():
        got, want, _ = attention(q, k, v, mask, guard=guard)
        np.testing.assert_array_equal(got[:, :, 2], np.full((1, 1, 4), value))
        unknown = 0.0 if guard == "nan" else np.nan
        np.testing.assert_array_equal(got[:, :, 4], np.full((1, 1, 4), unknown))
        np.testing.assert_allclose(got[:, :, [0, 1, 3]], want[:, :, [0, 1, 3]], atol=1e-5)


def test_nan_and_infinity_stay_in_their_rows():
    q, k, v = data(0, 1, 5, 1, 4), data(1, 1, 6, 1, 4), data(2, 1, 6, 1, 4)
    q[0, 1, 0, 2], q[0, 3, 0, 0] = np.nan, np.inf
    got, want, _ = attention(q, k, v)
    np.testing.assert_array_equal(np.isnan(got), np.isnan(want))
    assert np.isnan(got[0, 0, 1]).all() and np.isfinite(got[0, 0, [0, 2, 4]]).all()


@pytest.mark.parametrize("level", ["v2", "v3", "v4"])
@pytest.mark.parametrize(
    "rows, keys, width", [(1, 1, 1), (128, 128, 64), (197, 197, 64), (5, 9, 3)]
)
def test_tiles_fit_the_registers(level, rows, keys, width):
    target = targets.resolve({"kind": "llvm", "mcpu": f"x86-64-{level}", "num-cores": 2})
    tile = choose_attention_tile(target, rows, keys, width)
    lanes, registers = {"v2": (4, 16), "v3": (8, 16), "v4": (16, 32)}[level]
    vectors = max(tile.columns, tile.value_columns) // lanes
    assert 1 <= tile.rows <= rows
    assert tile.rows * vectors + vectors < registers


@pytest.mark.parametrize("heads, shared", [(4, "head"), (1, "tiles")])
def test_cores_share_heads_or_row_tiles(heads, shared):
    target = targets.resolve({"kind": "llvm", "mcpu": "x86-64-v4", "num-cores": 2})
    q = k = v = data(0, 1, 64, heads, 16)
    func, _ = kernel(q, k, v, None, [], False, "float32", target)
    sch = AttentionTiled().apply(func, target, False)
    loops = [sch.get(loop) for loop in sch.get_loops(sch.get_sblock("mixed_update"))]
    assert loops[0].kind == ForKind.PARALLEL
    assert loops[-1].kind == ForKind.VECTORIZED
    assert (int(loops[0].extent) == heads) == (shared == "head")
    assert isinstance(sch, Schedule)


def test_the_rule_declines_what_is_no_attention():
    x = te.placeholder((2, 8, 16), name="x")
    for y in (topi.nn.softmax(x), topi.nn.relu(x), topi.sum(x, -1)):
        assert AttentionTiled().apply(te.create_prim_func([x, y]), HERE, False) is None


def module(shape, build):
    bb = relax.BlockBuilder()
    q, k, v = (relax.Var(name, relax.TensorType(shape, "float32")) for name in "qkv")
    with bb.function("main", [q, k, v]):
        with bb.dataflow():
            result = bb.emit_output(build(bb, q, k, v))
        bb.emit_func_output(result)
    return bb.get()


def attend(bb, q, k, v, change=lambda bb, scores: scores):
    keys = bb.emit(relax.op.permute_dims(k, [0, 1, 3, 2]))
    scores = change(bb, bb.emit(relax.op.matmul(q, keys)))
    return relax.op.matmul(bb.emit(relax.op.nn.softmax(scores, -1)), v)


def calls(mod):
    return [str(b.value.op.name) for block in mod["main"].body.blocks for b in block.bindings]


def test_the_pass_leaves_one_call():
    def scaled(bb, scores):
        return bb.emit(relax.op.multiply(relax.const(0.5, "float32"), scores))

    def build(bb, q, k, v):
        q, k, v = (bb.emit(relax.op.permute_dims(x, SWAPPED)) for x in (q, k, v))
        y = bb.emit(attend(bb, q, k, v, scaled))
        return relax.op.permute_dims(y, SWAPPED)

    after = TILED_ATTENTION.on(HERE)(module((2, 7, 3, 4), build))
    assert calls(after) == ["relax.call_tir"]
    assert relax.analysis.check_well_formed(after)


def quotient(bb, scores):
    return bb.emit(relax.op.divide(scores, relax.const(3.0, "float32")))


def inverse(bb, scores):
    return bb.emit(relax.op.divide(relax.const(3.0, "float32"), scores))


def grouped(test, bb, q, k, v):
    """Two heads share a key head, and weights that ``test`` finds are 0."""
    b, h, s, d = (int(n) for n in q.ty.shape.values)
    keys = bb.emit(relax.op.permute_dims(k, [0, 1, 3, 2]))
    scores = bb.emit(relax.op.matmul(bb.emit(relax.op.reshape(q, [b, h, s, d])), keys))
    scores = bb.emit(relax.op.reshape(scores, [b, 2 * h, s // 2, s]))
    weights = bb.emit(relax.op.nn.softmax(scores, -1))
    found = bb.emit(test(scores, weights))
    weights = bb.emit(relax.op.where(found, relax.const(0.0, "float32"), weights))
    return relax.op.matmul(bb.emit(relax.op.reshape(weights, [b, h, s, s])), v)


def number(value):
    return relax.const(value, "float32")


@pytest.mark.parametrize("build, fused", [
    (lambda *a: attend(*a, quotient), True),
    (lambda *a: attend(*a, inverse), False),
    (lambda *a: grouped(lambda s, w: relax.op.equal(s, number(-np.inf)), *a), True),
    (lambda *a: grouped(lambda s, w: relax.op.isnan(w), *a), True),
    (lambda *a: grouped(lambda s, w: relax.op.equal(s, number(0.0)), *a), False),
    (lambda *a: grouped(lambda s, w: relax.op.equal(w, number(-np.inf)), *a), False),
    (lambda *a: grouped(lambda s, w: relax.op.isnan(s), *a), False),
])  # fmt: skip
def test_quotients_groups_and_guards(build, fused):
    after = TILED_ATTENTION.on(HERE)(module((2, 3, 6, 4), build))
    assert ("relax.nn.softmax" not in calls(after)) == fused
    assert relax.analysis.check_well_formed(after)


def softmax_read_twice(bb, q, k, v):
    keys = bb.emit(relax.op.permute_dims(k, [0, 1, 3, 2]))
    weights = bb.emit(relax.op.nn.softmax(bb.emit(relax.op.matmul(q, keys)), -1))
    return relax.op.add(bb.emit(relax.op.matmul(weights, v)), bb.emit(relax.op.sum(weights)))


def test_heads_of_symbolic_size_whose_products_are_static():
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 18]> '
        "g (float[2, 4, D] q, float[2, D, 5] k, float[2, 5, 8] v) => (float[2, 4, 8] y) "
        "{ s = MatMul(q, k) w = Softmax <axis = -1> (s) y = MatMul(w, v) }"
    )
    feeds = {"q": data(0, 2, 4, 3), "k": data(1, 2, 3, 5), "v": data(2, 2, 5, 8)}
    check_model(model, feeds, opt_levels=(2, 3))


@pytest.mark.parametrize("shape, build", [
    ((2, 3, 5, 4), softmax_read_twice),
    ((2, 3, tirx.Var("n", "int64"), 4), attend),
    ((2, 3, 5, 4), lambda *a: attend(*a, lambda bb, s: bb.emit(relax.op.exp(s)))),
])  # fmt: skip
def test_the_pass_leaves_other_things_alone(shape, build):
    before = module(shape, build)
    assert "relax.call_tir" not in calls(TILED_ATTENTION.on(HERE)(before))
