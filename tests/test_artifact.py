"""Saving a compiled model and loading it in another process."""

import subprocess
import sys

import numpy as np
import onnx
import pytest

import tvm_ext
from tests.oracle import node_model
from tvm_ext.errors import OutputPathError

NET = """<ir_version: 8, opset_import: ["": 17]>
net (float[BATCH, 3, 6, 5] x) => (float[BATCH, 4, 6, 5] y, float[BATCH, 120] z)
<float[4, 3, 1, 1] w = {1,2,3,4,5,6,7,8,9,10,11,12}, int64[2] s = {-1, 120}> {
    c = Conv (x, w)
    y = Relu (c)
    z = Reshape (c, s)
}"""
X = np.random.default_rng(0).standard_normal((2, 3, 6, 5)).astype("float32")


def build(batch):
    return tvm_ext.convert_and_build(onnx.parser.parse_model(NET.replace("BATCH", batch)), "llvm")


@pytest.fixture(scope="module", params=["2", "n"], ids=["static", "symbolic"])
def saved(request, tmp_path_factory):
    model = build(request.param)
    path = tmp_path_factory.mktemp("artifact") / "model.tvmx"
    model.save(path)
    return model, path


def test_a_loaded_model_is_the_saved_one(saved):
    model, path = saved
    loaded = tvm_ext.load(path)
    assert (loaded.inputs, loaded.outputs) == (model.inputs, model.outputs)
    assert loaded.memory == model.memory
    for got, expected in zip(loaded(X), model(X), strict=True):
        np.testing.assert_array_equal(got, expected)


def test_it_runs_in_another_process(saved, tmp_path):
    model, path = saved
    np.save(tmp_path / "x.npy", X)
    program = (
        "import sys, numpy as np, tvm_ext; "
        "np.save(sys.argv[3], tvm_ext.load(sys.argv[1])(np.load(sys.argv[2]))[1])"
    )
    arguments = [path, tmp_path / "x.npy", tmp_path / "z.npy"]
    subprocess.run([sys.executable, "-c", program, *map(str, arguments)], check=True)
    np.testing.assert_array_equal(np.load(tmp_path / "z.npy"), model(X)[1])


def test_writing_over_a_loaded_file_leaves_the_loaded_model_alone(tmp_path):
    path = tmp_path / "model.tvmx"
    model = build("2")
    model.save(path)
    loaded = tvm_ext.load(path)
    onnx_model = onnx.parser.parse_model(NET.replace("BATCH", "2"))
    weight = onnx_model.graph.initializer[0]
    weight.CopyFrom(onnx.numpy_helper.from_array(np.zeros((4, 3, 1, 1), "float32"), weight.name))
    tvm_ext.convert_and_build(onnx_model, "llvm").save(path)
    np.testing.assert_array_equal(loaded(X)[0], model(X)[0])
    assert not tvm_ext.load(path)(X)[0].any()


def test_weights_of_every_width_survive(tmp_path):
    rng = np.random.default_rng(1)
    for dtype in "float16", "float64", "int8", "bool":
        table = rng.integers(0, 2, (5, 3)).astype(dtype)
        model = tvm_ext.convert_and_build(
            node_model("Gather", [table, np.array([4, 0])], constants=[0]), "llvm"
        )
        model.save(tmp_path / dtype)
        np.testing.assert_array_equal(
            tvm_ext.load(tmp_path / dtype)(np.array([1, 4])), table[[1, 4]]
        )


@pytest.mark.parametrize("keep", [0, 5, 40, 4000, -1], ids=str)
def test_truncated_files_are_refused(saved, tmp_path, keep):
    (tmp_path / "cut.tvmx").write_bytes(saved[1].read_bytes()[:keep])
    with pytest.raises(OutputPathError, match=r"cut\.tvmx"):
        tvm_ext.load(tmp_path / "cut.tvmx")


def test_damaged_code_is_refused(saved, tmp_path):
    data = bytearray(saved[1].read_bytes())
    data[data.index(b"\x7fELF") + 2000] ^= 255
    (tmp_path / "bad.tvmx").write_bytes(data)
    with pytest.raises(OutputPathError, match="damaged"):
        tvm_ext.load(tmp_path / "bad.tvmx")


def test_places_that_cannot_be_written_or_read(saved, tmp_path):
    with pytest.raises(OutputPathError, match="missing"):
        saved[0].save(tmp_path / "missing" / "model.tvmx")
    with pytest.raises(OutputPathError, match=r"none\.tvmx"):
        tvm_ext.load(tmp_path / "none.tvmx")
    (tmp_path / "folder").mkdir()
    with pytest.raises(OutputPathError, match="folder"):
        saved[0].save(tmp_path / "folder")
    assert [p.name for p in tmp_path.iterdir()] == ["folder"]
