"""Indices beyond their axis, known only at run time: each ends the run with an error that names the
node, the index and what is allowed, in all ways that a model runs, and the next run is right.

onnxruntime says what is right and what is refused.
"""

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper, parser

from tvm_ext import convert_and_build, load
from tvm_ext.errors import RunError
from tvm_ext.executors.static import StaticExecutor
from tvm_ext.executors.symbolic import SymbolicExecutor
from tvm_ext.executors.vm import VMExecutor

FLOAT, INT64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
EXECUTORS = {
    "static": StaticExecutor, "symbolic": SymbolicExecutor, "branch": StaticExecutor,
    "loop": SymbolicExecutor, "until": VMExecutor,
}  # fmt: skip
LOOPS = ["loop", "until"]
WAYS = ["static", "symbolic", "branch", *LOOPS]


def drawn(rng, extent, shape):
    """Indices of an axis, from both ends, the first and the last place among them."""
    values = rng.integers(-extent, extent, shape)
    values.flat[: min(4, values.size)] = [0, extent - 1, -extent, -1][: values.size]
    return values


def gather(rng):
    dims = rng.integers(2, 6, rng.integers(1, 4)).tolist()
    axis = int(rng.integers(-len(dims), len(dims)))
    indices = drawn(rng, dims[axis], rng.integers(1, 5, rng.integers(0, 3)))
    return {"op_type": "Gather", "axis": axis}, dims, indices, [axis % len(dims)], None


def gather_elements(rng):
    dims = rng.integers(2, 6, rng.integers(1, 4)).tolist()
    axis = int(rng.integers(-len(dims), len(dims)))
    shape = [int(rng.integers(1, 5)) if k == axis % len(dims) else d for k, d in enumerate(dims)]
    indices = drawn(rng, dims[axis], shape)
    return {"op_type": "GatherElements", "axis": axis}, dims, indices, [axis % len(dims)], None


def gather_nd(rng):
    dims = rng.integers(2, 6, rng.integers(2, 5)).tolist()
    batch = int(rng.integers(0, 2))
    depth = int(rng.integers(1, len(dims) - batch + 1))
    rows = [*dims[:batch], *rng.integers(1, 4, rng.integers(1, 3))]
    axes = range(batch, batch + depth)
    indices = np.stack([drawn(rng, dims[k], rows) for k in axes], -1)
    return {"op_type": "GatherND", "batch_dims": batch}, dims, indices, [*axes], None


def scatter_elements(rng, op_type="ScatterElements"):
    _, dims, indices, axes, _ = gather_elements(rng)
    places = indices % dims[axes[0]]  # each once: the order of updates is not told
    order = np.argsort(rng.random(dims), axes[0])
    indices = np.take(order, range(min(places.shape[axes[0]], dims[axes[0]])), axes[0])
    return {"op_type": op_type, "axis": axes[0]}, dims, indices, axes, indices.shape


def scatter(rng):
    return scatter_elements(rng, "Scatter")


def scatter_nd(rng):
    dims = rng.integers(2, 6, rng.integers(2, 4)).tolist()
    depth = int(rng.integers(1, len(dims) + 1))
    places = np.stack(
        np.unravel_index(rng.permutation(np.prod(dims[:depth]))[:4], dims[:depth]), -1
    )
    places[0] -= dims[:depth]  # from the end
    shape = (len(places), *dims[depth:])
    return {"op_type": "ScatterND"}, dims, places, [*range(depth)], shape


OPERATORS = gather, gather_elements, gather_nd, scatter_elements, scatter, scatter_nd


def model_of(way, attributes, dims, indices, updates):
    """The operator by itself, in a branch or in the body of a loop."""
    made = [int(size) for size in result_dims(attributes, dims, indices)]
    rank, nd = len(made), attributes["op_type"].endswith("ND")

    def info(name, kind, shape):
        if way == "symbolic":
            last = shape[-1:] if nd and name == "i" else []  # a number of axes
            shape = [*(f"{name}{k}" for k in range(len(shape) - len(last))), *last]
        return helper.make_tensor_value_info(name, kind, shape)

    def value(name, kind=FLOAT, shape=()):
        return helper.make_tensor_value_info(name, kind, shape)

    inputs = [info("x", FLOAT, dims), info("i", INT64, [*indices.shape])]
    inputs += [info("u", FLOAT, [*updates])] if updates is not None else []
    names, result = [x.name for x in inputs], value("y", shape=[f"y{k}" for k in range(rank)])
    node = helper.make_node(inputs=names, outputs=["y"], name="it", **attributes)
    if way == "branch":
        node.output[0] = "taken"
        sizes = helper.make_tensor("sizes", INT64, [rank], made)
        other = [helper.make_node("Constant", [], ["sizes"], value=sizes),
                 helper.make_node("ConstantOfShape", ["sizes"], ["other"])]  # fmt: skip
        then = helper.make_graph([node], "then", [], [value("taken", shape=made)])
        otherwise = helper.make_graph(other, "else", [], [value("other", shape=made)])
        node = helper.make_node("If", ["c"], ["y"], then_branch=then, else_branch=otherwise)
        inputs.append(value("c", BOOL))
    elif way in LOOPS:
        node.output[0] = "each"
        going = ("Identity", ["go"]) if way == "loop" else ("Less", ["trip", "n"])
        nodes = [helper.make_node(*going, ["going"]), node]
        given = [value("trip", INT64), value("go", BOOL)]
        body = helper.make_graph(
            nodes, "body", given, [value("going", BOOL), value("each", shape=made)]
        )
        node = helper.make_node("Loop", ["n", ""], ["y"], body=body)
        inputs.append(value("n", INT64))
        result = value("y", shape=[f"y{k}" for k in range(rank + 1)])
    graph = helper.make_graph([node], "g", inputs, [result])
    opset = helper.make_opsetid("", 10 if attributes["op_type"] == "Scatter" else 21)
    return helper.make_model(graph, opset_imports=[opset], ir_version=8)


def result_dims(attributes, dims, indices):
    kind = attributes["op_type"]
    if kind.startswith("Scatter"):
        return dims
    if kind == "GatherElements":
        return indices.shape
    if kind == "Gather":
        axis = attributes["axis"] % len(dims)
        return [*dims[:axis], *indices.shape, *dims[axis + 1 :]]
    return [*indices.shape[:-1], *dims[attributes["batch_dims"] + indices.shape[-1] :]]


def beyond(rng, dims, indices, axes):
    """Indices of which one lies beyond its axis, and the text that tells so."""
    for sign in (0, 1):
        column = int(rng.integers(len(axes)))
        extent = int(dims[axes[column]])
        by = int(rng.choice([1, 1, 1 << 40]))
        wrong = [extent - 1 + by, -extent - by][sign]
        bad = np.array(indices, order="C")
        bad.reshape(-1, len(axes))[rng.integers(bad.size // len(axes)), column] = wrong
        yield bad, rf"'it' .*an index on axis {axes[column]} is {wrong}, (not -{extent}|less|more)"


@pytest.mark.parametrize("opt_level", [0, 3])
@pytest.mark.parametrize(
    "make, way",
    [(m, w) for m in OPERATORS for w in WAYS if m != scatter or w not in LOOPS],  # of opset 10
)
def test_indices_beyond_their_axis_end_the_run(make, way, opt_level, tmp_path):
    rng = np.random.default_rng([OPERATORS.index(make), WAYS.index(way), opt_level])
    attributes, dims, indices, axes, updates = make(rng)
    model = model_of(way, attributes, dims, indices, updates)
    feeds = {"x": rng.standard_normal(dims).astype("float32"), "i": indices}
    if updates is not None:
        feeds["u"] = rng.standard_normal(updates).astype("float32")
    ran, left = {}, None
    if way == "branch":
        ran, left = {"c": np.array(True)}, {"c": np.array(False)}
    elif way in LOOPS:
        ran, left = {"n": np.array(2)}, {"n": np.array(0)}
    oracle = onnxruntime.InferenceSession(model.SerializeToString())
    built = convert_and_build(model, "llvm", opt_level=opt_level)
    assert isinstance(built.executor, EXECUTORS[way])
    built.save(tmp_path / "saved.so")
    for compiled in built, load(tmp_path / "saved.so"):
        for bad, told in beyond(rng, dims, indices, axes):
            np.testing.assert_array_equal(
                compiled.run(None, feeds | ran)[0], oracle.run(None, feeds | ran)[0]
            )
            with pytest.raises(RunError, match=told):
                compiled.run(None, feeds | ran | {"i": bad})
            with pytest.raises(Exception, match=r"(?i)invalid ind|out of"):
                oracle.run(None, feeds | ran | {"i": bad})
            if left is not None:
                other = feeds | left | {"i": bad}
                np.testing.assert_array_equal(
                    compiled.run(None, other)[0], oracle.run(None, other)[0]
                )


# What else takes places: the opset, the node, its inputs, the places in a run that is right, the
# rank of its result, and places that are refused, in place of the last, with what is told.
CACHE = np.linspace(0, 1, 16, dtype="float32").reshape(8, 2)
HEADS = np.linspace(-1, 1, 24, dtype="float32").reshape(1, 2, 3, 4)
TABLE, ONE = np.linspace(-1, 1, 24, dtype="float32").reshape(4, 6), np.ones(6, "float32")
IMAGE = np.arange(16, dtype="float32").reshape(1, 2, 2, 4)
SCORES = np.linspace(-3, 3, 12, dtype="float32").reshape(3, 4)
BOX = np.float32([[0, 0, 1, 1]])
OWN = np.array([[[0, 2, 4, 6], [16, 18, 20, 22]], [[32, 34, 36, 38], [48, 50, 52, 54]]])[None]
EMBED = {"w": TABLE, "p": TABLE, "t": TABLE, "g": ONE, "b": ONE}
OTHERS = [
    (21, "y = MaxUnpool <kernel_shape = [2, 2], strides = [2, 2]> (x, i)", {"x": IMAGE}, OWN, 4,
     [(64, "a place in a channel is 32, not 0..31"), (-1, "is -33, not 0..31")]),
    (24, "y = ReverseSequence (x, i)", {"x": SCORES.T}, np.array([4, 0, 1]), 2,
     [(5, "a length is 5, not 0..4"), (-1, "a length is -1, not 0..4")]),
    (24, "y = TensorScatter (x, u, i)", {"x": np.zeros((2, 1, 4, 3), "float32"),
     "u": np.ones((2, 1, 2, 3), "float32")}, np.array([2, 0]), 4,
     [(3, "a place to write to is 3, not 0..2"), (-1, "is -1, not 0..2")]),
    (24, 'y = TensorScatter <mode = "circular"> (x, u, i)', {"x": np.zeros((2, 1, 4, 3), "float32"),
     "u": np.ones((2, 1, 2, 3), "float32")}, np.array([7, 0]), 4,
     [(-1, "a place to write to is -1, not 0..")]),
    (24, 'y = NegativeLogLikelihoodLoss <ignore_index = -100, reduction = "none"> (x, i)',
     {"x": SCORES}, np.array([3, -100, 0]), 1,
     [(4, "a class is 4, not -4..3"), (-5, "a class is -5, not -4..3")]),
    (24, 'y = SoftmaxCrossEntropyLoss <reduction = "none"> (x, i)', {"x": SCORES},
     np.array([3, 2, 0]), 1, [(4, "a class is 4, not -4..3")]),
    (21, "y = RoiAlign (x, u, i)", {"x": IMAGE, "u": BOX}, np.array([0]), 4,
     [(1, "the image of a box is 1, not 0..0"), (-1, "is -1, not 0..0")]),
    (21, "j = Concat <axis = 1> (i, u)  y = MaxRoiPool <pooled_shape = [1, 1]> (x, j)",
     {"x": IMAGE, "u": BOX}, np.float32([[0]]), 4,
     [(1, "the image of a box is 1, not 0..0"), (-1, "is -1, not 0..0")]),
    (24, "y = RotaryEmbedding (x, c, s, i)", {"x": HEADS, "c": CACHE, "s": CACHE},
     np.array([[0, 7, 1]]), 4, [(8, "a position is 8, not 0..7"), (-1, "is -1, not 0..7")]),
    (24, "y = com.microsoft.RotaryEmbedding (x, i, c, s)", {"x": HEADS, "c": CACHE, "s": CACHE},
     np.array([[0, 7, 1]]), 4, [(8, "a position is 8, not 0..7"), (-1, "is -1, not 0..7")]),
    (24, "y = com.microsoft.RotaryEmbedding (x, i, c, s)", {"x": HEADS, "c": CACHE, "s": CACHE},
     np.array([5]), 4, [(6, "the first position is 6, not 0..5"), (-1, "is -1, not 0..5")]),
    (24, "y, m = com.microsoft.EmbedLayerNormalization (i, u, w, p, t, g, b)",
     {"u": np.int32([[0, 3, 1]]), **EMBED}, np.int32([[0, 3, 1]]), 3,
     [(4, "an id is 4, not 0..3"), (-1, "an id is -1, not 0..3")]),
    (24, "y, m = com.microsoft.EmbedLayerNormalization (u, i, w, p, t, g, b)",
     {"u": np.int32([[0, 3, 1]]), **EMBED}, np.int32([[0, 3, 1]]), 3,
     [(4, "a segment is 4, not 0..3"), (-1, "a segment is -1, not 0..3")]),
]  # fmt: skip


def declared(name, array):
    kind = {"float32": "float", "int64": "int64", "int32": "int32"}[array.dtype.name]
    return f"{kind}[{', '.join(map(str, array.shape))}] {name}"


@pytest.mark.parametrize("opt_level", [0, 3])
@pytest.mark.parametrize("opset, node, fixed, places, rank, wrong", OTHERS)
def test_other_places_that_are_not_there_end_the_run(
    opset, node, fixed, places, rank, wrong, opt_level
):
    feeds = fixed | {"i": places}
    dims = ", ".join(f"y{k}" for k in range(rank))
    more = ", int32[batch] m" * (" m = " in node)
    model = parser.parse_model(
        f'<ir_version: 10, opset_import: ["": {opset}, "com.microsoft": 1]> g '
        f"({', '.join(declared(*pair) for pair in feeds.items())}) "
        f"=> (float[{dims}] y{more}) {{ {node} }}"
    )
    oracle = onnxruntime.InferenceSession(model.SerializeToString())
    compiled = convert_and_build(model, "llvm", opt_level=opt_level)
    assert isinstance(compiled.executor, StaticExecutor)
    for place, told in wrong:
        right = oracle.run(None, feeds)[0]
        np.testing.assert_allclose(compiled.run(None, feeds)[0], right, 1e-5, 1e-5)
        bad = places.copy()
        bad.flat[-1] = place
        with pytest.raises(RunError, match=told):
            compiled.run(None, feeds | {"i": bad})
        with pytest.raises(Exception, match=r"(?i)out of|must be in|tensorscatter|RUNTIME|RoiPool"):
            oracle.run(None, feeds | {"i": bad})
