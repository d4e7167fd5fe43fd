"""Files that cannot be written whole, on real systems: full disks, refused folders, kills."""

import fcntl
import os
import signal
import subprocess
import sys

import numpy as np
import onnx
import pytest
from onnx import parser

import tvm_ext
from tvm_ext.errors import OutputPathError
from tvm_ext.executors.atomic import appearing, remove_abandoned, replaced

COUNT = 300_000  # floats of weights: more than the limit below


@pytest.fixture(scope="module")
def model():
    text = """<ir_version: 9, opset_import: ["": 17]>
    g (float[1, COUNT] x) => (float[1, COUNT] y) { y = Add(x, w) }"""
    proto = parser.parse_model(text.replace("COUNT", str(COUNT)))
    w = np.arange(COUNT, dtype="float32")
    proto.graph.initializer.append(onnx.numpy_helper.from_array(w, "w"))
    return tvm_ext.convert_and_build(proto, "llvm")


@pytest.fixture(scope="module")
def saved(model, tmp_path_factory):
    path = tmp_path_factory.mktemp("saved") / "m.so"
    model.save(path)
    return path


def child(program, *arguments):
    """Run ``program`` in a process of its own, which may be killed."""
    command = [sys.executable, "-c", program, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


# No file of the child may have more bytes than this: writing beyond is an error, as on a full disk.
FULL = """
import resource, sys
import tvm_ext
model = tvm_ext.load(sys.argv[1])
resource.setrlimit(resource.RLIMIT_FSIZE, (500_000, 500_000))
for write in (
    lambda place: model.save(place),
    lambda place: tvm_ext.export(model, place, weights="file"),
    lambda place: tvm_ext.export(model, place),
)[: int(sys.argv[3])]:
    try:
        write(sys.argv[2])
    except (tvm_ext.errors.OutputPathError, tvm_ext.errors.BuildError) as error:
        print(error)
"""


def test_a_full_disk_is_told_and_leaves_nothing(saved, tmp_path):
    done = child(FULL, saved, tmp_path / "out", 3)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == 3 and all("cannot write" in line for line in lines), lines
    assert all("File too large" in line for line in lines), lines
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_leaves_the_old_file(saved, tmp_path):
    old = tmp_path / "out"
    old.write_text("old")
    assert "cannot write" in child(FULL, saved, old, 1).stdout
    assert old.read_text() == "old" and list(tmp_path.iterdir()) == [old]


# The process is killed when half of the file is written.
KILLED = """
import os, signal, sys
import tvm_ext
from tvm_ext.executors import artifact

def half(file, parts):
    data = b"".join(bytes(part) for part in parts)
    file.write(data[: len(data) // 2])
    file.flush()
    os.kill(os.getpid(), signal.SIGKILL)

model = tvm_ext.load(sys.argv[1])
artifact._write = half
model.save(sys.argv[2])
"""
KILLED_EXPORT = """
import os, signal, sys
import tvm_ext
from tvm_ext.export import package

model = tvm_ext.load(sys.argv[1])
package._write_texts = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
tvm_ext.export(model, sys.argv[2])
"""


def test_a_kill_in_the_middle_leaves_the_old_file(model, saved, tmp_path):
    path = tmp_path / "m.so"
    path.write_bytes(saved.read_bytes())
    assert child(KILLED, saved, path).returncode == -signal.SIGKILL
    assert len(list(tmp_path.iterdir())) == 2  # it was written to another name
    x = np.ones((1, COUNT), "float32")
    np.testing.assert_array_equal(tvm_ext.load(path, verify=True)(x), model(x))
    model.save(path)
    assert list(tmp_path.iterdir()) == [path]


def test_a_kill_in_the_middle_of_an_export_leaves_no_package(saved, tmp_path):
    assert child(KILLED_EXPORT, saved, tmp_path / "out").returncode == -signal.SIGKILL
    assert not (tmp_path / "out").exists()
    assert len(list(tmp_path.iterdir())) == 1  # half of it, under another name
    tvm_ext.export(tvm_ext.load(saved), tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_what_another_writer_is_at_stays(tmp_path):
    with appearing(tmp_path / "folder") as folder, replaced(tmp_path / "a") as first:
        (folder / "file").write_text("whole")
        with replaced(tmp_path / "b") as second:
            second.write(b"second")
        first.write(b"first")
    assert (tmp_path / "folder" / "file").read_text() == "whole"
    assert [(tmp_path / name).read_text() for name in "ab"] == ["first", "second"]
    assert len(list(tmp_path.iterdir())) == 3


def test_a_writer_makes_another_file_where_its_first_was_taken_for_abandoned(tmp_path, monkeypatch):
    """Another writer can see the file before it is locked."""
    lock, taken = fcntl.flock, []

    def slowly(descriptor, operation):
        if operation == fcntl.LOCK_EX and not taken:
            taken.extend(tmp_path.iterdir())
            remove_abandoned(tmp_path)
        lock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", slowly)
    with replaced(tmp_path / "a") as file:
        file.write(b"whole")
    assert len(taken) == 1 and (tmp_path / "a").read_text() == "whole"
    assert list(tmp_path.iterdir()) == [tmp_path / "a"]


@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="needs a folder that refuses files")
def test_a_folder_that_refuses_files(model):
    with pytest.raises(OutputPathError, match=r"cannot write /proc/model\.so"):
        model.save("/proc/model.so")
    with pytest.raises(OutputPathError, match="cannot write /proc/package"):
        tvm_ext.export(model, "/proc/package")
    with pytest.raises(OutputPathError, match="cannot write /proc/kept"):
        tvm_ext.keep.keep(model, "/proc/kept")
