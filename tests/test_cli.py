"""The command line: what it prints, its exit codes, and that nothing is half-written."""

import json
import os
import subprocess
import sys

import numpy as np
import onnx
import pytest
from onnx import helper

from tests.oracle import node_model, reference
from tvm_ext.cli import main
from tvm_ext.compare.engines import ENGINES, OURS


@pytest.fixture
def softmax(tmp_path):
    """The path of a model with a symbolic dim."""
    path = tmp_path / "softmax.onnx"
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node("Softmax", ["x"], ["a/b"], "normalise")],
        "graph",
        [value("x", onnx.TensorProto.FLOAT, ["n", 5])],
        [value("a/b", onnx.TensorProto.FLOAT, ["n", 5])],
    )
    onnx.save(
        helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 18)]), path
    )
    return path


def fails(capsys, *argv):
    """The single line on stderr of a command that exits with 2 and prints nothing else."""
    try:
        code = main([str(arg) for arg in argv])
    except SystemExit as stop:
        code = stop.code
    captured = capsys.readouterr()
    assert (code, captured.out) == (2, "")
    assert captured.err.count("\n") == 1
    return captured.err


def test_help_does_not_wait_for_tvm():
    script = (
        "import sys; from tvm_ext.cli import main\n"
        "try: main(['build', '--help'])\n"
        "except SystemExit: print('tvm' in sys.modules)"
    )
    out = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert "tvm-ext build model.onnx -o" in out.stdout
    assert out.stdout.endswith("False\n")


@pytest.mark.parametrize("module", ["tvm_ext", "tvm_ext.cli"])
def test_modules_that_are_the_command(module, tmp_path):
    argv = [sys.executable, "-m", module, "inspect", tmp_path / "absent.onnx"]
    run = subprocess.run(argv, capture_output=True, text=True)
    assert (run.returncode, run.stdout) == (2, "")
    assert run.stderr.startswith("tvm-ext inspect: cannot read")


def test_help_names_every_engine_to_compare_with(capsys):
    with pytest.raises(SystemExit):
        main(["compare", "--help"])
    printed = capsys.readouterr().out
    assert all(name in printed for name in ENGINES.keys() - {OURS})


def test_run_computes_what_the_reference_computes(softmax, tmp_path, capsys):
    x = np.random.default_rng(0).normal(size=(3, 5)).astype("float32")
    np.save(tmp_path / "x.npy", x)
    argv = [
        "run",
        softmax,
        "--input",
        f"x={tmp_path / 'x.npy'}",
        "--output-dir",
        tmp_path / "out",
        "--target",
        "llvm",
    ]
    assert main([str(arg) for arg in argv]) == 0
    (expected,) = reference(onnx.load(softmax), {"x": x})
    np.testing.assert_allclose(np.load(tmp_path / "out" / "a_b.npy"), expected, rtol=1e-5)
    assert capsys.readouterr().out.startswith("a/b  float32[3, 5]  min ")


OTHERS = """<ir_version: 10, opset_import: ["": 21, "ai.onnx.ml": 3]>
others (float[2, 3] x, string[2] s) => (float maps, float parts, string[2] t) {
    maps = ai.onnx.ml.ZipMap <classlabels_int64s = [7, 5, 9]> (x)
    parts = SplitToSequence (x)
    t = StringConcat (s, s)
}"""


def test_outputs_that_are_no_arrays_of_numbers(tmp_path, capsys):
    model = onnx.parser.parse_model(OTHERS)  # which cannot write the types of the first two
    item = helper.make_tensor_type_proto(onnx.TensorProto.FLOAT, [1, 3])
    scalar = helper.make_tensor_type_proto(onnx.TensorProto.FLOAT, ())
    maps = helper.make_map_type_proto(onnx.TensorProto.INT64, scalar)
    for output, element in zip(model.graph.output, (maps, item), strict=False):
        output.type.CopyFrom(helper.make_sequence_type_proto(element))
    onnx.save(model, tmp_path / "m.onnx")
    x = np.arange(6, dtype="float32").reshape(2, 3)
    np.save(tmp_path / "x.npy", x)
    np.save(tmp_path / "s.npy", np.array(["a", "ü"]))
    given = [f"--input={name}={tmp_path / name}.npy" for name in "xs"]
    folder = tmp_path / "out"
    argv = ["run", tmp_path / "m.onnx", *given, "--output-dir", folder, "--target", "llvm"]
    assert main([str(arg) for arg in argv]) == 0
    assert capsys.readouterr().out.splitlines()[:3] == [
        "maps  seq(map(int64, float32))  2 elements",
        "parts  seq(float32[1, 3])  2 elements",
        "t  string[2]",
    ]
    rows = json.loads((folder / "maps.json").read_text())
    assert rows == [{"7": 0, "5": 1, "9": 2}, {"7": 3, "5": 4, "9": 5}]
    parts = np.load(folder / "parts.npz")
    np.testing.assert_array_equal([parts["arr_0"], parts["arr_1"]], x[:, None])
    assert np.load(folder / "t.npy").tolist() == ["aa", "üü"]


def test_outputs_of_similar_names_have_files_of_their_own(tmp_path):
    files = {"a/b": "a_b", "a:b": "a_b_2", "A_B": "A_B_3", "a_b_2": "a_b_2_2"}
    operators = ["Neg", "Abs", "Relu", "Exp"]
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node(op, ["x"], [y]) for op, y in zip(operators, files, strict=True)],
        "graph",
        [value("x", onnx.TensorProto.FLOAT, [2])],
        [value(name, onnx.TensorProto.FLOAT, [2]) for name in files],
    )
    model = helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 18)])
    onnx.save(model, tmp_path / "m.onnx")
    x = np.array([-1, 2], "float32")
    np.save(tmp_path / "x.npy", x)
    argv = ["run", tmp_path / "m.onnx", "--input", f"x={tmp_path / 'x.npy'}"]
    assert main([str(arg) for arg in [*argv, "--output-dir", tmp_path / "out"]]) == 0
    expected = reference(model, {"x": x})
    for file, want in zip(files.values(), expected, strict=True):
        np.testing.assert_allclose(np.load(tmp_path / "out" / f"{file}.npy"), want, rtol=1e-5)


def test_inputs_that_cannot_be_made_up(softmax, tmp_path, capsys):
    assert main(["build", str(softmax), "-o", str(tmp_path / "m.so")]) == 0
    capsys.readouterr()
    run = ["run", tmp_path / "m.so", "--shape"]
    for size in 1 << 46, 1 << 70:
        line = fails(capsys, *run, f"n={size}")
        assert f"'x' [{size}, 5] needs more memory than there is" in line
    assert "at least 0, not -1" in fails(capsys, *run, "n=1", "--seed", "-1")


def test_a_disk_that_fills_has_no_outputs(softmax, tmp_path, capsys, monkeypatch):
    def full(path, _array):
        path.touch()
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("tvm_ext.commands.np.save", full)
    (tmp_path / "out").mkdir()
    argv = ["run", softmax, "--shape", "n=1", "--output-dir", tmp_path / "out"]
    assert main([str(arg) for arg in argv]) == 2
    assert "cannot write" in capsys.readouterr().err
    assert not list((tmp_path / "out").iterdir())


def test_an_error_is_one_line_whatever_libraries_log(softmax, tmp_path):
    model = onnx.load(softmax)
    model.graph.output[0].name = "nowhere"  # onnx_ir warns of it, the checker refuses it
    onnx.save(model, tmp_path / "dangling.onnx")
    done = subprocess.run(
        [sys.executable, "-m", "tvm_ext", "inspect", tmp_path / "dangling.onnx"],
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1
    assert "nowhere" in done.stderr


def test_random_inputs_are_seeded(softmax, capsys):
    printed = []
    for seed in "0", "0", "1":
        main(["run", str(softmax), "--shape", "n=4", "--seed", seed, "--opt-level", "0"])
        printed.append(capsys.readouterr().out)
    assert printed[0] == printed[1] != printed[2]


def test_an_npz_holds_the_inputs_by_name(tmp_path, capsys):
    model = node_model("Add", [np.zeros(3, "float32"), np.zeros(3, "float32")])
    onnx.save(model, tmp_path / "add.onnx")
    np.savez(tmp_path / "in.npz", x0=np.ones(3, "float32"), x1=np.full(3, 2, "float32"))
    argv = ["run", tmp_path / "add.onnx"]
    for name in "x0", "x1":
        argv += ["--input", f"{name}={tmp_path / 'in.npz'}"]
    main([str(arg) for arg in argv])
    assert capsys.readouterr().out == "y0  float32[3]  min 3  mean 3  max 3\n"


def test_inspect_names_every_unsupported_node_sorted(tmp_path, capsys):
    node = helper.make_node
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        [
            node("Zeta", ["x"], ["a"], "last", domain="my.ops"),
            node("Relu", ["a"], ["b"], "fine"),
            node("Alpha", ["b"], ["y"], "first", domain="my.ops"),
        ],
        "graph",
        [value("x", onnx.TensorProto.FLOAT, [2])],
        [value("y", onnx.TensorProto.FLOAT, [2])],
    )
    model = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 18), helper.make_opsetid("my.ops", 3)]
    )
    onnx.save(model, tmp_path / "model.onnx")
    assert main(["inspect", str(tmp_path / "model.onnx")]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.strip() for line in lines if "opset 3" in line] == [
        "my.ops.Alpha-1 'first' (opset 3): no converter for this operator version",
        "my.ops.Zeta-1 'last' (opset 3): no converter for this operator version",
    ]
    main(["inspect", str(tmp_path / "model.onnx"), "--format", "json"])
    report = json.loads(capsys.readouterr().out)
    assert report["opsets"] == {"ai.onnx": 18, "my.ops": 3}
    assert report["operators"] == {"Relu": 1, "my.ops.Alpha": 1, "my.ops.Zeta": 1}
    assert report["inputs"] == [{"name": "x", "type": "float[2]"}]


def test_ops_prints_the_registry(capsys):
    main(["ops", "--format", "json"])
    table = {(row["domain"], row["operator"]): row for row in json.loads(capsys.readouterr().out)}
    assert table["", "InstanceNormalization"]["supported"] == [1, 6, 22]
    main(["ops", "--format", "markdown"])
    assert "| InstanceNormalization | 1, 6, 22 |" in capsys.readouterr().out


@pytest.mark.parametrize(
    "options, message",
    [
        (["--shape", "n"], "'n' is not NAME=SIZE"),
        (["--shape", "m=3"], "no symbolic dim 'm'"),
        (["--target", "nonsense"], "unknown target 'nonsense'"),
        (["--target", "{"], "not valid JSON"),
        (["--opt-level", "4"], "invalid choice"),
        (["--input", "x"], "'x' is not NAME=FILE"),
        (["--input", "x=missing.npy"], "cannot read missing.npy"),
        ([], "give a size for n"),
        (["--shape", "n=2", "--output-dir", "missing/folder"], "missing is not a folder"),
    ],
)
def test_a_wrong_option_is_one_line_and_exit_code_2(softmax, capsys, options, message):
    assert message in fails(capsys, "run", softmax, *options)


def test_a_file_that_is_no_model_is_one_line_and_exit_code_2(tmp_path, capsys):
    path = tmp_path / "model.onnx"
    assert "cannot read" in fails(capsys, "inspect", path)
    path.write_bytes(b"\x08")
    assert "not an ONNX model" in fails(capsys, "run", path)


def test_a_broken_build_writes_nothing(softmax, tmp_path, capsys):
    before = sorted(tmp_path.iterdir())
    fails(capsys, "build", softmax, "-o", tmp_path / "out.tvmx", "--shape", "n=-1")
    fails(capsys, "build", softmax, "-o", tmp_path / "missing" / "out.tvmx")
    fails(capsys, "build", softmax, "-o", tmp_path / "out.tvmx", "--target", "nonsense")
    assert sorted(tmp_path.iterdir()) == before


def test_a_built_file_runs_like_the_model(softmax, tmp_path, capsys):
    built = tmp_path / "softmax.tvmx"
    options = ["--shape", "n=7", "--target", "llvm"]
    assert main(["build", str(softmax), "-o", str(built), *options]) == 0
    assert capsys.readouterr().out.startswith(f"wrote {built} (")
    main(["run", str(built)])
    loaded = capsys.readouterr().out
    main(["run", str(softmax), *options])
    assert capsys.readouterr().out == loaded


def test_compare_measures_against_onnxruntime(softmax, tmp_path, capsys):
    pytest.importorskip("onnxruntime")
    plot = tmp_path / "comparison.png"
    argv = ["compare", softmax, "--batch", 3, "--threads", 1, "--format", "json", "--plot", plot]
    assert main([str(arg) for arg in argv]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["threads"] == 1
    assert report["inputs"] == ["x: float32[3, 5]"]
    assert plot.read_bytes().startswith(b"\x89PNG")


def test_profile_times_the_kernels(softmax, capsys):
    options = ["--shape", "n=7", "--target", "llvm"]
    assert main(["profile", str(softmax), *options]) == 0
    assert "normalise" in capsys.readouterr().out
    main(["profile", str(softmax), *options, "--format", "json"])
    (kernel,) = json.loads(capsys.readouterr().out)["kernels"]
    assert kernel["seconds"] > 0


def test_the_help_shows_an_example_of_every_command(capsys):
    with pytest.raises(SystemExit):
        main(["--help"])
    text = capsys.readouterr().out
    for command in "build", "run", "compare", "profile", "inspect", "ops":
        assert f"\n  tvm-ext {command}" in text
    with pytest.raises(SystemExit) as stop:
        main(["--version"])
    assert stop.value.code == 0


@pytest.mark.parametrize(
    "options, message",
    [
        (["--shape", "n=2", "--shape", "n=3"], "'n' is given twice"),
        (["--input", "x=a.npy", "--input", "x=b.npy"], "'x' is given twice"),
    ],
)
def test_a_name_given_twice_is_an_error(softmax, capsys, options, message):
    assert message in fails(capsys, "run", softmax, *options)


def test_a_built_file_takes_shapes_but_no_target(softmax, tmp_path, capsys):
    built = tmp_path / "any name"
    assert main(["build", str(softmax), "-o", str(built), "--target", "llvm"]) == 0
    capsys.readouterr()
    for shape in "n=7", "x=7,5", "x=7,?":
        assert main(["run", str(built), "--shape", shape]) == 0
        assert capsys.readouterr().out.startswith("a/b  float32[7, 5]")
    for shape in "m=7", "y=7,5", "x=7", "x=7,6":
        assert "--shape" in fails(capsys, "run", built, "--shape", shape)
    for option in ["--target", "cuda"], ["--opt-level", "1"]:
        assert "built already" in fails(capsys, "run", built, *option)


def test_a_build_does_not_write_over_its_model_or_a_folder(softmax, tmp_path, capsys):
    before = softmax.read_bytes()
    (tmp_path / "link.tvmx").symlink_to(softmax)
    for output in softmax, tmp_path / "link.tvmx":
        assert "the model itself" in fails(capsys, "build", softmax, "-o", output)
    assert "is a folder" in fails(capsys, "build", softmax, "-o", tmp_path)
    assert softmax.read_bytes() == before


def test_inputs_of_the_official_test_data_are_read(softmax, tmp_path, capsys):
    x = np.random.default_rng(0).normal(size=(3, 5)).astype("float32")
    (tmp_path / "x.pb").write_bytes(onnx.numpy_helper.from_array(x, "x").SerializeToString())
    np.save(tmp_path / "x.npy", x)
    printed = []
    for name in "x.pb", "x.npy":
        assert main(["run", str(softmax), "--input", f"x={tmp_path / name}"]) == 0
        printed.append(capsys.readouterr().out)
    assert printed[0] == printed[1]
    for name, content in ("text.npy", b"hello"), ("text.pb", b"hello"), ("empty.pb", b""):
        (tmp_path / name).write_bytes(content)
        line = fails(capsys, "run", softmax, "--input", f"x={tmp_path / name}")
        assert name in line and "pickle" not in line


def test_an_interrupt_of_imports_is_not_lost():
    """C++ that imports modules forgets exceptions of theirs: pybind11, where it looks for enum."""
    script = """if True:
        import os, signal, sys
        # Commands in the background of a shell are started with interrupts ignored.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        class Forgetting:
            def find_spec(self, name, *_):
                if name == "tvm_ext.commands":
                    try:
                        os.kill(os.getpid(), signal.SIGINT)
                    except KeyboardInterrupt:
                        pass
        sys.meta_path.insert(0, Forgetting())
        from tvm_ext.cli import main
        sys.exit(main(["ops"]))
    """
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert (run.returncode, run.stdout) == (130, "")
    assert run.stderr == "tvm-ext ops: interrupted\n"


def test_an_interrupt_and_a_full_disk_are_one_line(softmax, capsys, monkeypatch):
    def raising(error):
        def command(_args):
            raise error

        return command

    monkeypatch.setattr("tvm_ext.commands.inspect", raising(KeyboardInterrupt()))
    assert main(["inspect", str(softmax)]) == 130
    assert capsys.readouterr().err == "tvm-ext inspect: interrupted\n"
    monkeypatch.setattr("tvm_ext.commands.inspect", raising(OSError(28, "No space left on device")))
    assert "No space left" in fails(capsys, "inspect", softmax)


def test_names_that_the_terminal_cannot_show_are_escaped(softmax, tmp_path):
    copy = tmp_path / "é.onnx"
    copy.write_bytes(softmax.read_bytes())
    done = subprocess.run(
        [sys.executable, "-m", "tvm_ext", "build", copy, "-o", tmp_path / "é.tvmx"],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert r"\xe9.tvmx (" in done.stdout


# One process: what it imports takes longer than the commands.
SEVERAL_COMMANDS = """
import sys
from tvm_ext.cli import main
command = []
for word in sys.argv[1:]:
    if word != ";":
        command.append(word)
        continue
    code = main(command)
    if code:
        sys.exit(code)
    command = []
"""


@pytest.mark.parametrize("options", [[], ["-OO"]], ids=["plain", "optimised"])
def test_any_path_builds_and_runs_in_the_locale_c(softmax, tmp_path, options):
    """Spaces and what is not ASCII; ``-OO`` leaves out assertions and docstrings."""
    folder = tmp_path / "späce ✓ and 'quotes'"
    folder.mkdir()
    model, built = folder / "mödel.onnx", folder / "mödel.so"
    softmax.rename(model)
    x = np.random.default_rng(0).normal(size=(3, 5)).astype("float32")
    np.save(folder / "x.npy", x)
    commands = (
        ["build", model, "-o", built, "--shape", "n=3", "--no-cache"],
        ["run", built, "--input", f"x={folder / 'x.npy'}", "--output-dir", folder],
        ["export", model, "-o", folder / "päckage", "--shape", "n=3"],
    )
    words = [str(word) for command in commands for word in (*command, ";")]
    subprocess.run(
        [sys.executable, *options, "-c", SEVERAL_COMMANDS, *words],
        env={**os.environ, "LC_ALL": "C"},
        check=True,
    )
    (expected,) = reference(onnx.load(model), {"x": x})
    np.testing.assert_allclose(np.load(folder / "a_b.npy"), expected, rtol=1e-5)
