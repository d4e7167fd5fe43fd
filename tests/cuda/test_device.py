"""What runs on a GPU: through TVM's runtime, on memory of the device.

Without a GPU, test_stand_in.py runs this file on a stand-in for the driver.
"""

import os
from pathlib import Path

import numpy as np
import pytest
import tvm

from tests.oracle import reference
from tvm_ext import convert_and_build, load
from tvm_ext.errors import RunError

from . import stand_in
from .networks import GRAPHS, NETWORKS, feeds_of, parse

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not tvm.cuda(0).exist, reason="needs a CUDA device"),
]
if stand_in.FOLDER in os.environ:
    stand_in.compile_kernels(Path(os.environ[stand_in.FOLDER]))

# What meets the host on its way: checks, computed shapes, branches, sequences.
MEETINGS = {
    "indices": "float[m, n] x, int64[k] i) => (float[k, n] y) { y = Gather (x, i)",
    "shapes": "float[m, n] x, int64[k] i) => (int64[2, q] y) { y = NonZero (x)",
    "axes": "float[m, n] x, int64[1] k) => (float[p, q] y) { y = ReduceSum (x, k)",
    "sorted": "float[m, n] x, int64[1] k) => (float[m, k] y, int64[m, k] i) { y, i = TopK (x, k)",
    "branch": """float[m, n] x, bool c) => (float[m, n] y) {
        y = If (c) <then_branch = yes () => (float[m, n] a) { a = Exp (x) },
                    else_branch = no () => (float[m, n] b) { b = Neg (x) }>""",
    "loop": """float[m, n] x, int64 k, bool c) => (float[m, n] y) {
        y = Loop (k, c, x) <body = b (int64 t, bool u, float[m, n] v) => (bool w, float[m, n] z) {
              w = Identity (u)
              z = Mul (v, v)
            }>""",
    "sequence": """float[m, n] x, int64 p) => (float[m, n] y, int64 l) {
        s = SequenceConstruct (x, x)
        l = SequenceLength (s)
        y = SequenceAt (s, p)""",
    "scratch": "float[m, n] x, int64 k) => (int64[m, 1] y) { y = ArgMax <axis = 1> (x)",
    "cumulative": "float[m, n] x, int64 k) => (float[m, n] y) { y = CumSum (x, k)",
    "scatter": """float[m, n] x, int64[m, n] i) => (float[m, n] y) {
        y = ScatterElements <axis = 1, reduction = "add"> (x, i, x)""",
    "float8": """float[m, n] x, int64 k) => (float[m, n] y) {
        c = Cast <to = 18> (x)
        y = Cast <to = 1> (c)""",
}


def compare(results, model, feeds):
    """Each output against the reference in float64."""
    names = [info.name for info in model.graph.output]
    for name, got, want in zip(names, results, reference(model, feeds), strict=True):
        assert got.shape == np.shape(want), name
        tolerance = 4e-3 if got.dtype == np.float16 else 2e-5
        np.testing.assert_allclose(
            got.astype("float64"), want, rtol=tolerance, atol=tolerance, err_msg=name
        )


def meeting(name):
    """The model of that name, and feeds for it."""
    model = parse(f"g ({MEETINGS[name]} }}")
    rng = np.random.default_rng(3)
    feeds = {"x": rng.standard_normal((5, 7)).astype("float32")}
    values = {"i": [4, 0, -1], "k": [1], "c": True, "p": 1}
    if name == "scatter":
        values["i"] = rng.integers(0, 7, (5, 7))
    for info in model.graph.input[1:]:
        rank = len(info.type.tensor_type.shape.dim)
        value = np.array(values[info.name], "bool" if info.name == "c" else "int64")
        feeds[info.name] = value if rank else value.reshape(())
    return model, feeds


@pytest.mark.parametrize("opt_level", [0, 3])
@pytest.mark.parametrize("family", GRAPHS)
def test_kernels(family, opt_level):
    model = parse(GRAPHS[family])
    feeds = feeds_of(model)
    compare(convert_and_build(model, "cuda", opt_level=opt_level).run(None, feeds), model, feeds)


@pytest.mark.parametrize("network", NETWORKS)
def test_a_saved_network(network, tmp_path):
    model = parse(NETWORKS[network])
    feeds = feeds_of(model)
    convert_and_build(model, "cuda").save(tmp_path / "model.tvmx")
    compiled = load(tmp_path / "model.tvmx")
    for _ in range(2):  # memory is used again
        compare(compiled.run(None, feeds), model, feeds)


@pytest.mark.parametrize("opt_level", [0, 3])
@pytest.mark.parametrize("name", MEETINGS)
def test_the_host_meets_the_device(name, opt_level):
    model, feeds = meeting(name)
    compare(convert_and_build(model, "cuda", opt_level=opt_level).run(None, feeds), model, feeds)


def test_checks_are_told():
    model, feeds = meeting("indices")
    compiled = convert_and_build(model, "cuda")
    with pytest.raises(RunError, match="an index on axis 0 is 5"):
        compiled.run(None, feeds | {"i": np.array([5])})
    compare(compiled.run(None, feeds), model, feeds)


def test_inputs_that_stay_on_the_device():
    model, feeds = meeting("scratch")
    compiled = convert_and_build(model, "cuda")
    run = compiled._executor.bound([feeds[info.name] for info in compiled.inputs])
    for _ in range(2):
        compare([result.numpy() for result in run()], model, feeds)


def test_many_sizes():
    model, feeds = meeting("cumulative")
    compiled = convert_and_build(model, "cuda")
    for rows in 1, 40, 3, 0, 41:
        sized = feeds | {"x": np.full((rows, 7), rows, "float32")}
        compare(compiled.run(None, sized), model, sized)
