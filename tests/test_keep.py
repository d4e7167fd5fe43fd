"""What a build leaves in a folder: programs, code, the memory plan as a table and a picture."""

import json
import xml.etree.ElementTree as ET
from itertools import pairwise
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import parser

import tvm_ext
from tvm_ext import convert_and_build
from tvm_ext.cli import main
from tvm_ext.errors import OutputPathError
from tvm_ext.keep import keep, keep_all

# The dilated convolution is padded before it runs, into the arena.
NET = parser.parse_model("""<ir_version: 8, opset_import: ["": 17]>
net (float[n, 3, 9, 9] x) => (float[n, 4, 9, 9] y, float[n, 4] z) <float[4, 3, 3, 3] w> {
  c = Conv<pads=[2, 2, 2, 2], dilations=[2, 2]>(x, w)
  s = Softmax<axis=1>(c)
  y = CumSum(s, one)
  p = GlobalAveragePool(s)
  z = Flatten(p)
}""")
NET.graph.initializer.extend(
    onnx.numpy_helper.from_array(array, name)
    for name, array in (("w", np.ones((4, 3, 3, 3), "float32")), ("one", np.array(1)))
)
PROGRAMS = ["1_import.py", "2_select.py", "3_fuse.py", "4_schedule.py"]
ALL = [*PROGRAMS, "entry.c", "kernels.ll", "kernels.s", "plan.json", "plan.svg"]


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    folder = tmp_path_factory.mktemp("kept")
    return convert_and_build(NET, "llvm", shapes={"n": 2}, keep=folder), folder


def test_every_form_of_the_program_is_there(kept):
    _, folder = kept
    assert sorted(path.name for path in folder.iterdir()) == sorted(ALL)
    wanted = {
        "1_import.py": "R.nn.conv2d",
        "4_schedule.py": "@T.prim_func",
        "entry.c": "int tvmx_execute(",
        "kernels.ll": "define ",
        "kernels.s": ".text",
    }
    for name, text in wanted.items():
        assert text in (folder / name).read_text(), name


def test_the_plan_is_that_of_the_library(kept):
    model, folder = kept
    plan = json.loads((folder / "plan.json").read_text())
    assert (plan["arena_bytes"], plan["live_bytes"]) == (
        model.memory.arena_bytes,
        model.memory.live_bytes,
    )
    assert {row["kind"] for row in plan["tensors"]} == {"arena", "scratch", "output"}
    used = [row for row in plan["tensors"] if row["kind"] != "output"]
    entry = (folder / "entry.c").read_text()
    assert all(f"arena + {row['offset']}" in entry for row in used)
    alive = [
        sorted((r["offset"], r["bytes"]) for r in used if r["first"] <= k <= r["last"])
        for k in range(len(plan["kernels"]))
    ]
    for rows in alive:
        for (start, size), (after, _) in pairwise(rows):
            assert start + size <= after
    most = max(sum(-(-size // 64) * 64 for _, size in rows) for rows in alive)
    assert most == plan["live_bytes"] <= plan["arena_bytes"]
    assert any("Conv c" in row["nodes"] for row in plan["tensors"])


def test_the_picture_has_a_box_and_a_name_for_each_tensor(kept):
    _, folder = kept
    plan = json.loads((folder / "plan.json").read_text())
    root = ET.parse(folder / "plan.svg").getroot()
    space = "{http://www.w3.org/2000/svg}"
    titles = [box.findtext(f"{space}title").split(":")[0] for box in root.iter(f"{space}rect")]
    assert titles == [row["name"] for row in plan["tensors"] if row["kind"] != "output"]
    _, _, width, height = map(float, root.get("viewBox").split())
    for box in root.iter(f"{space}rect"):
        x, y, wide, high = (float(box.get(key)) for key in ("x", "y", "width", "height"))
        assert 0 < x < x + wide < width and 0 < y < y + high < height


def test_a_loaded_model_keeps_the_same(kept, tmp_path):
    model, folder = kept
    model.save(tmp_path / "m.so")
    keep(tvm_ext.load(tmp_path / "m.so"), tmp_path / "again")
    for name in ALL:
        assert (tmp_path / "again" / name).read_bytes() == (folder / name).read_bytes(), name


def test_a_symbolic_model_has_no_plan(tmp_path):
    convert_and_build(NET, "llvm", keep=tmp_path)
    names = {path.name for path in tmp_path.iterdir()}
    assert {*PROGRAMS, "kernels.ll"} <= names and "plan.json" not in names


def test_the_folder_is_checked_before_the_build(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(OutputPathError, match="not a folder"):
        convert_and_build(b"no model", "llvm", keep=tmp_path / "file")
    with pytest.raises(OutputPathError, match="not a folder"):
        convert_and_build(b"no model", "llvm", keep=tmp_path / "none" / "folder")


def test_files_are_replaced_whole_and_others_stay(kept, tmp_path, monkeypatch):
    model, _ = kept
    (tmp_path / "notes").write_text("mine")
    (tmp_path / "plan.svg").mkdir()  # in the way of the last file
    with pytest.raises(OutputPathError, match="cannot write"):
        keep(model, tmp_path)
    assert (tmp_path / "notes").read_text() == "mine"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["notes", "plan.svg"]
    (tmp_path / "plan.svg").rmdir()
    (tmp_path / "plan.json").write_text("of another model")
    keep(model, tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([*ALL, "notes"])
    assert json.loads((tmp_path / "plan.json").read_text())


@pytest.mark.parametrize("is_there", [False, True])
def test_a_disk_that_fills_keeps_nothing(kept, tmp_path, monkeypatch, is_there):
    model, _ = kept
    write = Path.write_bytes

    def fill(path, data):
        if path.name == "kernels.s":
            raise OSError(28, "No space left on device")
        return write(path, data)

    monkeypatch.setattr(Path, "write_bytes", fill)
    if is_there:
        (tmp_path / "kept").mkdir()
        (tmp_path / "kept" / "entry.c").write_text("mine")
    with pytest.raises(OutputPathError, match="kept, nothing is kept: No space left"):
        keep_all({"n=1": model, "n=2": model}, tmp_path / "kept")
    assert [p.name for p in tmp_path.rglob("*")] == (["kept", "entry.c"] if is_there else [])


def test_the_commands(tmp_path):
    onnx.save(NET, tmp_path / "net.onnx")
    model, shape = str(tmp_path / "net.onnx"), ["--shape", "n=1"]
    build = ["build", model, "-o", str(tmp_path / "m.so"), "--keep", str(tmp_path / "a")]
    assert main([*build, *shape, "--target", "llvm"]) == 0
    export = ["export", model, "-o", str(tmp_path / "out"), "--keep", str(tmp_path / "b")]
    assert main([*export, "--sizes", "n=1,2"]) == 0
    assert sorted(path.name for path in (tmp_path / "a").iterdir()) == sorted(ALL)
    assert sorted(path.name for path in (tmp_path / "b").iterdir()) == ["n=1", "n=2"]
    assert (tmp_path / "b" / "n=2" / "plan.svg").exists()
