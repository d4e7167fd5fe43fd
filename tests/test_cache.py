"""Compiled models that are kept: when they serve again, and when they must not."""

import os
import threading
from contextlib import ExitStack

import numpy as np
import onnx
import pytest
from onnx import parser

from tvm_ext import build, convert_and_build, extend, load, pipeline, targets
from tvm_ext.cache import Cache, default_folder
from tvm_ext.cli import main
from tvm_ext.errors import OptionError

TEXT = """<ir_version: 9, opset_import: ["" : 17]>
net (float[N, 3] x) => (float[N, 2] y) <float[3, 2] w = {1, 2, 3, 4, 5, 6}> { y = MatMul(x, w) }"""
MODEL = parser.parse_model(TEXT)
X = np.arange(12, dtype="float32").reshape(4, 3)
W = np.arange(1, 7, dtype="float32").reshape(3, 2)


@pytest.fixture
def builds(monkeypatch):
    """The list that grows with every compilation."""
    done, compile_ = [], build.build_executor

    def counted(module, target):
        done.append(target)
        return compile_(module, target)

    monkeypatch.setattr(build, "build_executor", counted)
    return done


def make(folder, model=MODEL, **options):
    options.setdefault("shapes", {"N": 4})
    return convert_and_build(model, options.pop("target", "llvm"), cache=folder, **options)


def test_the_second_build_is_a_load(tmp_path, builds):
    folder = tmp_path / "a" / "b"
    for _ in range(2):
        np.testing.assert_array_equal(make(folder)(X), X @ W)
    assert len(builds) == 1
    assert [path.suffix for path in folder.iterdir()] == [".so"]
    assert make(folder).sources().keys() >= {"import", "schedule", "c"}


def test_a_symbolic_model_is_kept_too(tmp_path, builds):
    for _ in range(2):
        np.testing.assert_array_equal(make(tmp_path, shapes=None)(X), X @ W)
    assert len(builds) == 1


def test_whatever_decides_the_code_decides_the_entry(tmp_path, builds):
    other = parser.parse_model(TEXT.replace("{1, 2", "{1, 9"))
    v3 = {"kind": "llvm", "mcpu": "x86-64-v3"}
    variants = [
        {},
        {"opt_level": 2},
        {"shapes": {"N": 5}},
        {"shapes": None},
        {"target": v3},
        {"target": v3 | {"num-cores": 7}},
        {"target": v3 | {"mattr": ["-fma"]}},
        {"model": other},
        {"without": [next(pipeline.default(targets.resolve("llvm")).phase("select")).name]},
    ]
    for number, options in enumerate(variants, 1):
        make(tmp_path, **options)
        assert len(builds) == number, options
    for options in variants:
        make(tmp_path, **options)
    assert len(builds) == len(variants)


def test_external_data_is_part_of_the_model(tmp_path, builds):
    path = tmp_path / "model.onnx"
    model = parser.parse_model(TEXT)
    model.graph.initializer[0].CopyFrom(onnx.numpy_helper.from_array(W, "w"))
    onnx.save(model, path, save_as_external_data=True, location="w.bin", size_threshold=0)
    make(tmp_path / "kept", path)
    changed = (W * 2).tobytes()
    assert (tmp_path / "w.bin").stat().st_size == len(changed)
    (tmp_path / "w.bin").write_bytes(changed)
    np.testing.assert_array_equal(make(tmp_path / "kept", path)(X), X @ (W * 2))
    assert len(builds) == 2


@pytest.mark.parametrize("damage", ["cut", "flipped", "empty"])
def test_a_damaged_entry_is_built_again(tmp_path, builds, damage):
    make(tmp_path)
    (entry,) = tmp_path.iterdir()
    data = bytearray(entry.read_bytes())
    data[data.index(load(entry).executor.weights[:64].tobytes())] ^= 1
    entry.unlink()  # what is mapped stays as it is
    entry.write_bytes({"cut": data[:1000], "flipped": data, "empty": b""}[damage])
    np.testing.assert_array_equal(make(tmp_path)(X), X @ W)
    assert len(builds) == 2
    make(tmp_path)
    assert len(builds) == 2


def test_writers_at_the_same_time(tmp_path):
    model, answers = convert_and_build(MODEL, "llvm", shapes={"N": 4}), []

    def call():
        for number in range(20):
            kept = Cache(tmp_path).fetch(f"{number:064x}", lambda: model)
            answers.append(np.array_equal(kept(X), X @ W))

    callers = [threading.Thread(target=call) for _ in range(4)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert answers == [True] * 80
    assert sorted(tmp_path.iterdir()) == Cache(tmp_path).entries()
    assert len(Cache(tmp_path).entries()) == 20


def test_a_folder_that_cannot_be_written_costs_no_build(tmp_path, caplog):
    (tmp_path / "file").write_text("")
    np.testing.assert_array_equal(make(tmp_path / "file")(X), X @ W)
    assert f"not cached: cannot write {tmp_path / 'file'}: File exists" in caplog.text


def test_own_steps_are_refused_and_interactive_plugins_not_kept(tmp_path, builds):
    steps = pipeline.default(targets.resolve("llvm"))
    with pytest.raises(OptionError, match="steps of one's own"):
        convert_and_build(MODEL, steps=steps, cache=tmp_path)
    extend.plugin.INTERACTIVE.steps["mine"] = ExitStack()
    try:
        make(tmp_path)
        make(tmp_path)
    finally:
        del extend.plugin.INTERACTIVE.steps["mine"]
    assert len(builds) == 2
    assert not list(tmp_path.iterdir())


def test_the_command_line_keeps_what_it_builds(tmp_path, builds, monkeypatch, capsys):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    onnx.save(MODEL, tmp_path / "model.onnx")
    run = ["run", str(tmp_path / "model.onnx"), "--shape", "N=4", "--target", "llvm"]
    assert [main(run), main(run), main([*run, "--no-cache"])] == [0, 0, 0]
    assert len(builds) == 2
    capsys.readouterr()
    assert main(["cache"]) == 0
    assert f"{tmp_path / 'tvm_ext'}: 1 model, " in capsys.readouterr().out
    (default_folder() / "of a user.so").write_text("")
    (default_folder() / f".tvmx-{'0f' * 8}").write_text("half a model")
    assert main(["cache", "--clear"]) == 0
    assert "0 models, 0.0 MB" in capsys.readouterr().out
    assert os.listdir(default_folder()) == ["of a user.so"]


def test_where_the_cache_is(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    for unset in "", "relative":
        monkeypatch.setenv("XDG_CACHE_HOME", unset)
        assert default_folder() == tmp_path / ".cache" / "tvm_ext"
    assert Cache(tmp_path / "none").entries() == []
