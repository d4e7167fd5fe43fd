"""test_device.py, by TVM's own cuda runtime, where no GPU is."""

import subprocess
import sys
from pathlib import Path

import pytest
import tvm

from tvm_ext import convert_and_build

from . import stand_in
from .networks import GRAPHS, parse

pytestmark = [
    pytest.mark.skipif(tvm.cuda(0).exist, reason="this machine has a GPU"),
    pytest.mark.skipif(stand_in.MISSING is not None, reason=str(stand_in.MISSING)),
]


def child(code, folder):
    """What became of ``code`` in a process whose TVM finds the stand-in."""
    return subprocess.run(
        [sys.executable, "-c", code],
        env=stand_in.prepared(folder),
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_tests_of_a_device(tmp_path):
    file = str(Path(__file__).with_name("test_device.py"))
    code = f"import sys, pytest; sys.exit(pytest.main(['-q', '-x', '-p', 'no:xdist', {file!r}]))"
    done = child(code, tmp_path)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    assert "skipped" not in done.stdout, done.stdout[-4000:]


def test_the_runtime_of_the_extra_is_found(tmp_path):
    environment = stand_in.prepared(tmp_path)
    library = tmp_path / "nvidia" / "cu13" / "lib" / "libcudart.so.13"
    library.parent.mkdir(parents=True)
    (tmp_path / "libcudart.so.13").rename(library)
    (tmp_path / "libcuda.so.1").unlink()
    (tmp_path / "libcuda.so.1").symlink_to(library)
    for first, found in [("tvm_ext", "True"), ("tvm", "False")]:
        done = subprocess.run(
            [sys.executable, "-c", f"import {first}, tvm; print(tvm.cuda(0).exist)"],
            env=environment | {"PYTHONPATH": str(tmp_path)},
            cwd=Path(__file__).parents[2],
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stdout.strip() == found


LOADED = """
from tests.cuda.test_device import *
model = parse(GRAPHS["rows"])
feeds = feeds_of(model)
compare(load({path!r}).run(None, feeds), model, feeds)
print("right")
"""


def test_a_model_saved_without_a_gpu_runs_where_one_is(tmp_path):
    saved = tmp_path / "model.tvmx"
    convert_and_build(parse(GRAPHS["rows"]), "cuda").save(saved)
    done = child(LOADED.format(path=str(saved)), tmp_path)
    assert done.stdout.strip() == "right", done.stderr[-4000:]


READS = """
import ctypes, numpy, tvm
x = tvm.runtime.tensor(numpy.ones(4, "float32"), tvm.cuda(0))
assert (x.numpy() == 1).all()
print("copied", flush=True)
pool = [line for line in open("/proc/self/maps") if "memfd:device" in line and "---s" in line]
start = int(pool[0].split("-")[0], 16)
ctypes.c_float.from_address(start).value
"""


def test_the_host_cannot_read_the_device(tmp_path):
    done = child(READS, tmp_path)
    assert "copied" in done.stdout, done.stderr[-4000:]
    assert done.returncode < 0  # by a signal
