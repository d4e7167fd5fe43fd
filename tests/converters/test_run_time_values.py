"""Values known only at run time that ONNX does not allow: each ends the run with an error that
names the node and says why, whichever executor runs it, and the next run is right."""

import re

import numpy as np
import pytest
from onnx import parser, shape_inference

from tests.onnxruntime_oracle import run_onnxruntime
from tvm_ext import convert_and_build
from tvm_ext.errors import RunError
from tvm_ext.executors.symbolic import SymbolicExecutor
from tvm_ext.executors.vm import VMExecutor

X = np.arange(24, dtype="float32").reshape(4, 6)
PAIR = np.float32([0, 1])


def ints(*values):
    return np.array(values, "int64")


def number(value, dtype="int64"):
    return np.array(value, dtype)


# Type and dims of an input, its values in a run that is right, the node that takes it, and which
# of its values are refused, with what is told.
NODES = [
    ("int64[1] k", ints(2), "top, places = TopK <axis = 1> (x, k)",
     [(ints(-1), "TopK top: k is -1, less than 0"),
      (ints(7), "TopK top: k is 7, more than 6")]),
    ("int64 along", number(1), "sums = CumSum (x, along)",
     [(number(2), "CumSum sums: the axis is 2, not -2..1"),
      (number(-3), "CumSum sums: the axis is -3, not -2..1")]),
    ("int64[2] shape", ints(8, 3), "reshaped = Reshape (x, shape)",
     [(ints(8, 4), "Reshape reshaped: the shape is one of 32 elements, there are 24"),
      (ints(-1, -1), "Reshape reshaped: the shape is one of 576 elements"),
      (ints(-2, -12), "Reshape reshaped: a size of the shape is -2, less than 0")]),
    ("int64[3] wide", ints(2, 4, 6), "expanded = Expand (x, wide)",
     [(ints(2, 3, 6), "Expand expanded: axis 1 of the .* does not broadcast to"),
      (ints(-2, 4, 6), "Expand expanded: a size of the shape is -2, less than 0")]),
    ("int64[2] parts", ints(1, 5), "left, right = Split <axis = 1> (x, parts)",
     [(ints(1, 4), "Split left: axis 1 of 'x' is 6, of which the parts make up 5"),
      (ints(-1, 7), "Split left: a part is -1, less than 0")]),
    ("int64[2] repeats", ints(1, 2), "tiled = Tile (x, repeats)",
     [(ints(1, -2), "Tile tiled: a number of repeats is -2, less than 0"),
      (ints(2**40, 2**40), "Tile tiled: .* of more elements than memory holds")]),
    ("int64[2] filled", ints(2, 3), "zeros = ConstantOfShape (filled)",
     [(ints(2, -3), "ConstantOfShape zeros: a size is -3, less than 0"),
      (ints(2**35, 2**35), "ConstantOfShape zeros: .* of more elements than memory holds")]),
    ("int64 depth", number(3), "hot = OneHot (places, depth, pair)",
     [(number(-3), "OneHot hot: depth is -3, less than 0")]),
    ("int64[1] added", ints(-1), "longer = Unsqueeze (x, added)",
     [(ints(3), "Unsqueeze longer: an axis is 3, not -3..2")]),
    ("int64 size", number(3), "window = HannWindow (size)",
     [(number(-3), "HannWindow window: size is -3, less than 0")]),
    ("int64 delta", number(2), "steps = Range (zero, ten, delta)",
     [(number(0), "Range steps: delta is 0")]),
    ("float[n] other", np.ones(6, "float32"), "sum = Add (x, other)",
     [(np.ones(5, "float32"), "Add sum: axis 0 of 'other' is 5, .* not broadcast to 6")]),
    ("float[rows, 2] matrix", np.ones((6, 2), "float32"), "product = MatMul (x, matrix)",
     [(np.ones((5, 2), "float32"), "MatMul product: axis 0 of 'matrix' is 5, not 6")]),
    ("float[c, d] below", X[:1], "both = Concat <axis = 0> (x, below)",
     [(X[:, :3], "Concat both: axis 1 of 'below' is 3, not 6")]),
    ("int64 frame_step", number(2), "spectra = STFT (signal, frame_step, , frame)",
     [(number(0), "STFT spectra: frame_step is 0, less than 1")]),
    ("int64 length", number(4), "spectrum = DFT (signal, length)",
     [(number(0), "DFT spectrum: dft_length is 0, less than 1")]),
    ("int64[2] block", ints(2, 1), "image = Col2Im (columns, area, block)",
     [(ints(2, 0), "Col2Im image: a size of the block is 0, less than 1")]),
    ("float[1, ch, hi, wi] stacked", np.ones((1, 4, 2, 2), "float32"),
     "moved = DepthToSpace <blocksize = 2> (stacked)",
     [(np.ones((1, 6, 2, 2), "float32"),
       "DepthToSpace moved: the number of channels is 6, which is no multiple of 4")]),
    ("float[1, deep, high, wide_] space", np.ones((1, 2, 4, 2), "float32"),
     "packed = SpaceToDepth <blocksize = 2> (space)",
     [(np.ones((1, 2, 3, 2), "float32"),
       "SpaceToDepth packed: the height is 3, which is no multiple of 2"),
      (np.ones((1, 2, 4, 5), "float32"),
       "SpaceToDepth packed: the width is 5, which is no multiple of 2")]),
    ("float[1, blocks, places_] unfolded", np.ones((1, 4, 9), "float32"),
     "folded = Col2Im (unfolded, area, two_by_one)",
     [(np.ones((1, 4, 8), "float32"), "Col2Im folded: axis 2 of 'unfolded' is 8, not 9"),
      (np.ones((1, 3, 9), "float32"),
       "Col2Im folded: axis 1 of 'unfolded' is no multiple of .*: 1 are left")]),
    ("int64[4] grids", ints(1, 1, 2, 3), "grid = AffineGrid (theta, grids)",
     [(ints(2, 1, 2, 3), "AffineGrid grid: the size asks for 2 grids, not 1")]),
]  # fmt: skip
# What makes sizes of elements in a way that no formula follows: they are read as the model runs.
MORE = [
    ("int64[2] removed", ints(0, -1), "shorter = Squeeze (one, removed)",
     [(ints(0, 0), "Squeeze shorter: an axis is 0 twice"),
      (ints(0, 1), "Squeeze shorter: axes that are not 1 are taken away"),
      (ints(0, 4), "Squeeze shorter: an axis is 4, not -4..3")]),
    ("int64[2] slice_axes", ints(0, 1), "sliced = Slice (x, starts, ends, slice_axes)",
     [(ints(0, 2), "Slice sliced: an axis is 2, not -2..1"),
      (ints(1, -1), "Slice sliced: an axis is 1 twice")]),
    ("int64[2] slice_steps", ints(1, -1), "stepped = Slice (x, starts, ends, , slice_steps)",
     [(ints(1, 0), "Slice stepped: a step is 0")]),
    ("int64[m] reduced", ints(1), "summed = ReduceSum (x, reduced)",
     [(ints(2), "ReduceSum summed: an axis is 2, not -2..1"),
      (ints(0, -3), "ReduceSum summed: an axis is -3, not -2..1")]),
    ("int64[4] pads", ints(0, 1, 0, -1), "padded = Pad (x, pads)",
     [(ints(0, -4, 0, -3), "Pad padded: a padded axis is -1, less than 0")]),
    ("int64[1] pad_axes", ints(1), "mirrored = Pad <mode = \"reflect\"> (x, ends, , pad_axes)",
     [(ints(-3), "Pad mirrored: an axis is -3, not -2..1")]),
    ("float slope", number(0.5, "float32"), "ramp = Range (nought, one_half, slope)",
     [(number(0, "float32"), "Range ramp: delta is 0"),
      (number(np.nan, "float32"), "Range ramp: .* more than memory holds, or NaN"),
      (number(1e-30, "float32"), "Range ramp: .* more than memory holds, or NaN")]),
    ("float[2] scales", np.float32([1, 2]), "resized = Resize <mode = \"linear\"> (x, , scales)",
     [(np.float32([1, 0]), "Resize resized: a scale of axis 1 is not positive"),
      (np.float32([-1, 1]), "Resize resized: a scale of axis 0 is not positive"),
      (np.float32([1, np.nan]), "Resize resized: a scale of axis 1 is not positive"),
      (np.float32([1, np.inf]), "Resize resized: a scale of axis 1 is not positive")]),
]  # fmt: skip

CONSTANTS = """
    pair = Constant <value = float[2] {0, 1}> ()
    zero = Constant <value_int = 0> ()
    ten = Constant <value_int = 10> ()
    starts = Constant <value_ints = [0, 3]> ()
    ends = Constant <value_ints = [2, 5]> ()
    frame = Constant <value_int = 4> ()
    area = Constant <value_ints = [4, 3]> ()
    nought = Constant <value_float = 0.0> ()
    one_half = Constant <value_float = 1.5> ()
    two_by_one = Constant <value_ints = [2, 1]> ()
    theta = Constant <value = float[1, 2, 3] {1, 0, 0, 0, 1, 0}> ()
"""
RANKS = {
    "longer": 3,
    "shorter": 2,
    "spectra": 4,
    "window": 1,
    "summed": 2,
    "mirrored": 2,
    "folded": 4,
    "grid": 4,
}  # of what onnx does not infer
FIXED = {
    "x": X,
    "one": X.reshape(1, 4, 6, 1),
    "signal": np.ones((1, 12, 1), "float32"),
    "columns": np.ones((1, 2, 9), "float32"),
}


def model_of(nodes, *more):
    inputs = ["float[a, b] x", "float[e, f, g, h] one", "float[1, l, 1] signal",
              "float[1, w, v] columns", *(row[0] for row in nodes)]  # fmt: skip
    text = [*(row[2] for row in nodes), *more]
    names = [name.strip() for line in text for name in line.split(" = ")[0].split(",")]
    parsed = parser.parse_model(
        f'<ir_version: 10, opset_import: ["": 21]> g ({", ".join(inputs)}) => '
        f"({', '.join(f'float {name}' for name in names)}) {{ {CONSTANTS} {' '.join(text)} }}"
    )
    for output in parsed.graph.output:
        output.ClearField("type")
    inferred = shape_inference.infer_shapes(parsed)
    for output in inferred.graph.output:
        tensor = output.type.tensor_type
        if output.type.HasField("tensor_type") and not tensor.HasField("shape"):
            for _ in range(RANKS[output.name]):
                tensor.shape.dim.add()
    return inferred


@pytest.fixture(scope="module", params=[0, 3])
def opt_level(request):
    return request.param


# What follows from values that are given, from values that are computed, and is a sequence besides.
EXECUTORS = {
    "given": (SymbolicExecutor, NODES, []),
    "computed": (SymbolicExecutor, NODES + MORE, []),
    "vm": (VMExecutor, NODES + MORE, ["listed = SequenceConstruct (x)"]),
}


@pytest.fixture(scope="module", params=EXECUTORS)
def built(request, opt_level):
    executor, nodes, more = EXECUTORS[request.param]
    made = convert_and_build(model_of(nodes, *more), "llvm", opt_level=opt_level)
    assert isinstance(made.executor, executor)
    return made, nodes


def test_each_is_told_with_its_node(built):
    model, nodes = built
    feeds = FIXED | {row[0].split()[-1]: row[1] for row in nodes}
    expected = model.run(None, feeds)
    for declared, _, _, refused in nodes:
        for value, told in refused:
            operator, node, reason = re.match("(.*?) (.*?): (.*)", told).groups()
            # One that was rewritten says what it was.
            where = rf"^{operator}-\d+ '{node}'|^\w+-\d+ '{operator} {node}'"
            with pytest.raises(RunError, match=rf"({where}) \(opset 21\): {reason}"):
                model.run(None, feeds | {declared.split()[-1]: value})
            for got, want in zip(model.run(None, feeds), expected, strict=True):
                np.testing.assert_array_equal(got, want)


# Windows of 7 that images of symbolic length may be smaller than.
WINDOWS = [
    ("Conv", "made = Conv (x, w)"),
    ("Conv", "wide = Conv (x, w) made = Relu (wide)"),
    ("ConvTranspose", "made = ConvTranspose <pads = [6, 6]> (x, w)"),
    ("MaxPool", "made = MaxPool <kernel_shape = [7]> (x)"),
    ("LpPool", "made = LpPool <kernel_shape = [7]> (x)"),
]


@pytest.mark.parametrize("opt_level", [0, 3])
@pytest.mark.parametrize(("operator", "nodes"), WINDOWS)
def test_images_smaller_than_a_window(operator, nodes, opt_level):
    model = parser.parse_model(
        f"""<ir_version: 8, opset_import: ["": 17]> g (float[1, 4, n] x) => (float[1, 4] y)
        <int64[3] full = {{4, 4, 7}}> {{
          w = ConstantOfShape <value = float[1] {{0.1}}> (full)
          {nodes}
          soft = Softmax <axis = 1> (made)
          y = ReduceMax <axes = [2], keepdims = 0> (soft)
        }}"""
    )
    built = convert_and_build(model, "llvm", opt_level=opt_level)
    given = np.random.default_rng(0).normal(size=(1, 4, 9)).astype("float32")
    (expected,) = run_onnxruntime(model, {"x": given})
    for size in (5, 3, 1):
        axis = f"axis 2 of the result is {size - 6}, less than 0"
        with pytest.raises(RunError, match=rf"{operator}.* \(opset 17\): {axis}"):
            built(np.zeros((1, 4, size), "float32"))
        np.testing.assert_allclose(built(given), expected, atol=1e-5)
