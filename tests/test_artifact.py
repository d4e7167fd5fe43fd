"""Saving a compiled model and loading it in another process."""

import multiprocessing
import os
import pickle
import subprocess
import sys

import numpy as np
import onnx
import pytest
import tvm

import tvm_ext
from tests.oracle import node_model
from tvm_ext.cli import main
from tvm_ext.errors import OutputPathError, TargetError
from tvm_ext.executors import artifact, cpu
from tvm_ext.inspect import inspect_built

NET = """<ir_version: 8, opset_import: ["": 17]>
net (float[BATCH, 3, 6, 5] x) => (float[BATCH, 4, 6, 5] y, float[BATCH, 120] z)
<float[4, 3, 1, 1] w = {1,2,3,4,5,6,7,8,9,10,11,12}, int64[2] s = {-1, 120}> {
    c = Conv (x, w)
    y = Relu (c)
    z = Reshape (c, s)
}"""
X = np.random.default_rng(0).standard_normal((2, 3, 6, 5)).astype("float32")


def build(batch, target="llvm"):
    return tvm_ext.convert_and_build(onnx.parser.parse_model(NET.replace("BATCH", batch)), target)


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


def test_constants_without_elements(tmp_path):
    """TVM cannot read them back where their first dim is not 0."""
    model = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["": 17]>
        net (float[N] x) => (float[M] y, float[2, 0] e) { y = Relu (x)  e = Identity (none) }""")
    none = np.zeros((2, 0), "float32")
    model.graph.initializer.append(onnx.numpy_helper.from_array(none, "none"))
    tvm_ext.convert_and_build(model, "llvm").save(tmp_path / "m.tvmx")
    _, result = tvm_ext.load(tmp_path / "m.tvmx")(np.ones(3, "float32"))
    np.testing.assert_array_equal(result, none)


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


WITHOUT_A_COMPILER = """
import sys
for name in "tvm", "tvm_ffi", "onnx", "onnx_ir", "onnxscript", "torch":
    sys.modules[name] = None  # importing it fails
import numpy as np, tvm_ext
model, x = tvm_ext.load(sys.argv[1]), np.load(sys.argv[2])
y = model(x)[0]
report = model.profile(repeat=2)
assert report.peak is None and "Conv c" in {n for kernel in report.kernels for n in kernel.nodes}
assert len(model.benchmark(repeat=2).seconds) == 2
assert {"import", "c", "asm"} <= model.sources().keys()
model.save(sys.argv[3])
np.testing.assert_array_equal(tvm_ext.load(sys.argv[3])(x)[0], y)
loaded = [name for name in sys.modules if name.split(".")[0] in ("tvm", "onnx", "torch", "rich")]
assert not [name for name in loaded if sys.modules[name]], loaded
"""


def test_a_static_model_needs_neither_tvm_nor_onnx(tmp_path):
    build("2").save(tmp_path / "m.so")
    np.save(tmp_path / "x.npy", X)
    arguments = [tmp_path / name for name in ("m.so", "x.npy", "again.so")]
    command = [sys.executable, "-c", WITHOUT_A_COMPILER, *map(str, arguments)]
    subprocess.run(command, check=True)
    assert (tmp_path / "again.so").read_bytes() == (tmp_path / "m.so").read_bytes()


def test_the_weights_are_mapped_not_read(tmp_path):
    build("2").save(tmp_path / "m.so")
    executor = tvm_ext.load(tmp_path / "m.so")._executor
    assert not executor.weights.flags.writeable
    mapped = [
        line.split()
        for line in open("/proc/self/maps").read().splitlines()
        if line.endswith("/m.so")
    ]
    start = executor.weights.ctypes.data
    (rights,) = {
        row[1]
        for row in mapped
        if int(row[0].split("-")[0], 16) <= start < int(row[0].split("-")[1], 16)
    }
    assert rights == "r--s"
    assert any(row[1] == "r-xp" for row in mapped)  # the code too, from this very file


def test_a_pickled_model_carries_its_library(saved):
    model, _ = saved
    again = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(again(X)[1], model(X)[1])
    assert again.sources() == model.sources()
    twice = pickle.loads(pickle.dumps(again))
    np.testing.assert_array_equal(twice(X)[1], model(X)[1])


def _second_output(model, x):
    return model(x)[1]


def test_a_spawned_process_gets_the_model(saved):
    model, path = saved
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        for one in model, tvm_ext.load(path):
            np.testing.assert_array_equal(pool.apply(_second_output, (one, X)), model(X)[1])


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


def test_a_loaded_model_has_its_sources_and_saves_again(saved, tmp_path):
    model, path = saved
    loaded = tvm_ext.load(path)
    assert loaded.sources() == model.sources()
    assert {"import", "schedule", "llvm"} <= loaded.sources().keys()
    loaded.save(tmp_path / "again.tvmx")
    assert (tmp_path / "again.tvmx").read_bytes() == path.read_bytes()


@pytest.mark.parametrize("keep", [0, 5, 12, 40, 400, 4000, -500, -1], ids=str)
def test_truncated_files_are_refused(saved, tmp_path, keep):
    (tmp_path / "cut.tvmx").write_bytes(saved[1].read_bytes()[:keep])
    with pytest.raises(OutputPathError, match=r"cut\.tvmx"):
        tvm_ext.load(tmp_path / "cut.tvmx")


def flipped(path, offset, to):
    """A copy of ``path`` with one bit changed."""
    data = bytearray(path.read_bytes())
    data[offset] ^= 1
    to.write_bytes(data)
    return to


def test_one_changed_bit_in_header_or_code_is_refused(saved, tmp_path):
    path = saved[1]
    size = path.stat().st_size
    header = int.from_bytes(path.read_bytes()[size - 16 : size - 8], "little")
    rng = np.random.default_rng(0)
    for offset in [*-rng.integers(9, header + artifact._FOOTER, 60), 100, 2000, 5000]:
        with pytest.raises(OutputPathError, match=r"bad\.tvmx is damaged"):
            tvm_ext.load(flipped(path, offset, tmp_path / "bad.tvmx"))


def test_changed_weights_are_found_on_demand(tmp_path):
    path = tmp_path / "model.tvmx"
    model = build("2")
    model.save(path)
    first = model._executor.weights[:48].tobytes()
    bad = flipped(path, path.read_bytes().index(first), tmp_path / "bad.tvmx")
    tvm_ext.load(path, verify=True)
    tvm_ext.load(bad)
    with pytest.raises(OutputPathError, match="damaged"):
        tvm_ext.load(bad, verify=True)


def test_other_formats_and_versions_are_told_apart(saved, tmp_path, monkeypatch):
    (tmp_path / "old.tvmx").write_bytes(b"tvm_ext\x02" + bytes(100))
    with pytest.raises(OutputPathError, match=r"format 2.*build the model again"):
        tvm_ext.load(tmp_path / "old.tvmx")
    other = bytearray(saved[1].read_bytes())
    other[-8] += 1
    (tmp_path / "new.tvmx").write_bytes(other)
    with pytest.raises(
        OutputPathError, match=rf"format {artifact.FORMAT + 1}.*reads format {artifact.FORMAT}"
    ):
        tvm_ext.load(tmp_path / "new.tvmx")
    with monkeypatch.context() as patch:
        patch.setattr(tvm, "__version__", "9.9")
        tvm_ext.load(saved[1])


IN_THE_VM = """<ir_version: 8, opset_import: ["": 17]>
net (float[n] x) => (seq(float[n]) y) { z = Neg (x) y = SequenceConstruct (z) }"""


def test_a_model_that_the_vm_runs_is_for_one_tvm(tmp_path, monkeypatch):
    model, path = tvm_ext.convert_and_build(onnx.parser.parse_model(IN_THE_VM)), tmp_path / "m.tvmx"
    model.save(path)
    x = np.array([0, 2, 0, 3], "float32")
    np.testing.assert_array_equal(tvm_ext.load(path)(x), [-x])
    assert inspect_built(path).kernels is None
    monkeypatch.setattr(tvm, "__version__", "9.9")
    with pytest.raises(OutputPathError, match=r"built with TVM .*this is 9\.9"):
        tvm_ext.load(path)


def test_other_libraries_are_told_from_models():
    library = next(line.split()[-1] for line in open("/proc/self/maps") if "libc.so" in line)
    with pytest.raises(OutputPathError, match=r"truncated, or no model that tvm_ext saved"):
        tvm_ext.load(library)


def test_a_cpu_that_lacks_instructions_is_told_before_they_run(saved, monkeypatch):
    model = build("2", {"kind": "llvm", "mcpu": "x86-64-v3"})
    monkeypatch.setattr(cpu, "_host_features", lambda: {"fma": False, "avx2": False, "avx": True})
    with pytest.raises(TargetError, match="avx2, fma, which this one lacks"):
        model(X)
    monkeypatch.setattr(
        cpu, "_host_features", lambda: dict.fromkeys(saved[0]._executor.needs.features, False)
    )
    with pytest.raises(TargetError, match="which this one lacks"):
        tvm_ext.load(saved[1])


def test_what_a_file_says_of_itself_without_running_it(saved, tmp_path, monkeypatch):
    model, path = saved
    found = inspect_built(path)
    assert found.memory == model.memory and found.runs_here and found.kernels > 0
    assert [str(port) for port in found.inputs] == [str(info) for info in model.inputs]
    assert set(found.features) == set(model.executor.needs.features)
    assert str(model.memory or "allocated at run time") in str(found)
    lacking = found.features[0]
    monkeypatch.setattr(cpu, "_host_features", lambda: {lacking: False})
    assert not inspect_built(path).runs_here
    (tmp_path / "part.so").write_bytes(path.read_bytes()[:-1])
    with pytest.raises(OutputPathError, match="truncated"):
        inspect_built(tmp_path / "part.so")
    assert main(["inspect", str(path), "--format", "json"]) == 0
    assert main(["inspect", str(path), "--passes"]) == 2


def test_a_model_for_another_machine_builds_but_does_not_run_here():
    model = build("2", {"kind": "llvm", "mtriple": "aarch64-linux-gnu"})
    with pytest.raises(TargetError, match="built for aarch64-unknown-linux-gnu; this machine is"):
        model(X)
    assert "aarch64" in model.sources()["llvm"]


def test_the_file_has_the_rights_of_any_new_file_and_links_stay(saved, tmp_path):
    (tmp_path / "plain").touch()
    (tmp_path / "link.tvmx").symlink_to("real.tvmx")
    saved[0].save(tmp_path / "link.tvmx")
    assert (tmp_path / "link.tvmx").is_symlink()
    assert (tmp_path / "real.tvmx").stat().st_mode == (tmp_path / "plain").stat().st_mode
    name = "m" * 255  # as long as names can be
    saved[0].save(tmp_path / name)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["link.tvmx", name, "plain", "real.tvmx"]


def test_what_is_no_regular_file_is_neither_read_nor_replaced(saved, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for action in saved[0].save, tvm_ext.load:
        with pytest.raises(OutputPathError, match="no regular file"):
            action(tmp_path / "pipe")
    for wrong in None, 5, b"bytes":
        with pytest.raises(OutputPathError, match="give the path"):
            tvm_ext.load(wrong)


def test_a_file_that_is_not_written_whole_leaves_the_old_one(saved, tmp_path, monkeypatch):
    path = tmp_path / "model.tvmx"
    path.write_bytes(b"old")

    def full(file, *_):
        file.write(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(artifact, "_write", full)
    with pytest.raises(OutputPathError, match="No space left"):
        saved[0].save(path)
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_places_that_cannot_be_written_or_read(saved, tmp_path):
    with pytest.raises(OutputPathError, match="missing"):
        saved[0].save(tmp_path / "missing" / "model.tvmx")
    with pytest.raises(OutputPathError, match=r"none\.tvmx"):
        tvm_ext.load(tmp_path / "none.tvmx")
    (tmp_path / "folder").mkdir()
    with pytest.raises(OutputPathError, match="folder"):
        saved[0].save(tmp_path / "folder")
    assert [p.name for p in tmp_path.iterdir()] == ["folder"]


def test_a_named_pipe_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    assert not artifact.is_artifact(tmp_path / "pipe")
