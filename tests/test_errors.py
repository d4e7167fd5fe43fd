"""Bad input: each kind raises one class of ours that says what, where and what to do."""

import tempfile

import numpy as np
import onnx
import pytest
import torch
import tvm
from onnx import helper

import tvm_ext
import tvm_ext.compare
import tvm_ext.pipeline
import tvm_ext.targets
from tvm_ext import convert_and_build, errors, frontend
from tvm_ext.executors import cpu_features

VALUE = helper.make_tensor_value_info
FLOAT = onnx.TensorProto.FLOAT


def model(*, opset=18, node=("Relu", ""), shape=("n", 3)):
    """Two inputs of one shape: y = op(x0), z = x0 - x1."""
    op_type, domain = node
    imports = {"": opset} | ({domain: 1} if domain else {})
    graph = helper.make_graph(
        [
            helper.make_node(op_type, ["x0"], ["y"], "first", domain=domain),
            helper.make_node("Sub", ["x0", "x1"], ["z"], "second"),
        ],
        "graph",
        [VALUE("x0", FLOAT, shape), VALUE("x1", FLOAT, shape)],
        [VALUE("y", FLOAT, shape), VALUE("z", FLOAT, shape)],
    )
    return helper.make_model(
        graph, ir_version=10, opset_imports=[helper.make_opsetid(*i) for i in imports.items()]
    )


@pytest.fixture(scope="module")
def compiled():
    return convert_and_build(model(), "llvm", opt_level=0)


def x(*shape, dtype="float32"):
    return np.zeros(shape, dtype)


class Raising:
    """An object of another package that cannot be made an array."""

    def __array__(self, *_, **__):
        raise LookupError("nothing is here")


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda f: f(x(2, 3)), "inputs missing: \\['x1'\\]"),
        (lambda f: f(x(2, 3), x(2, 3), x(2, 3)), "3 inputs given, the model has 2"),
        (lambda f: f(x(2, 3), x0=x(2, 3)), "inputs given twice: \\['x0'\\]"),
        (lambda f: f(x(2, 3), nix=x(2, 3)), "unknown: \\['nix'\\]"),
        (lambda f: f(x(2, 3), x(2, 3, dtype="float64")), "'x1' needs dtype float32, got float64"),
        (lambda f: f(x(2, 3), [[1, 2, 3], [4, 5]]), "'x1' cannot be read as an array"),
        (lambda f: f(x(2, 3), torch.zeros(2, 3, device="meta")), "'x1' cannot be read"),
        (lambda f: f(x(2, 3), Raising()), "'x1' cannot be read as an array: nothing is here"),
        (lambda f: f(x(2, 3), [[1e99, 2, 3]] * 2), "^input 'x1' has numbers that float32 cannot"),
        (lambda f: f(x(2, 3), np.ma.array(x(2, 3), mask=True)), "'x1' has a mask.*filled"),
        (lambda f: f(x(2, 3), [np.ma.array(x(3)), x(3)]), "'x1' has a mask.*filled"),
        (lambda f: f(x(2, 3), None), "'x1' needs dtype float32, got object"),
        (lambda f: f.run(None, [x(2, 3), x(2, 3)]), "feeds map the names"),
        (lambda f: f.run("yz", {"x0": x(2, 3), "x1": x(2, 3)}), "a list of names"),
        (lambda f: f(x(2, 3), x(3)), "'x1' needs rank 2 .*got shape \\(3,\\)"),
        (lambda f: f(x(2, 3), x(2, 4)), "'x1' axis 1: needs 3, got 4"),
        (lambda f: f(x(2, 3), x(5, 3)), "'x1' axis 0: needs n = 2, got 5"),
        (lambda f: f.run(["nix"], {"x0": x(2, 3), "x1": x(2, 3)}), "no outputs \\['nix'\\]"),
    ],
)
def test_inputs_that_do_not_fit(compiled, call, message):
    with pytest.raises(errors.InputError, match=message):
        call(compiled)


def test_arrays_that_are_not_contiguous_are_read_right(compiled):
    wide = np.random.default_rng(0).normal(size=(6, 4)).astype("float32")
    views = wide[::2, ::-1][:, :3], wide.T[:3, 1:4]
    y, z = compiled(*views)
    np.testing.assert_array_equal(y, np.maximum(views[0], 0))
    np.testing.assert_array_equal(z, views[0] - views[1])


@pytest.mark.parametrize(
    "shapes, message",
    [
        ({"x0": (2, 3), "x1": (4, 3)}, "'n' is given two values: 2 and 4"),
        ({"n": 2, "x0": (4, 3)}, "'n' is given two values: 2 and 4"),
        ({"m": 2}, "no symbolic dim 'm'.*'n'"),
        ({"nix": (2, 3)}, "no input 'nix'.*'x0'"),
        ({"x0": (2, 4)}, "'x0' axis 1 is 3, not 4"),
        ({"x0": (2,)}, "'x0' has rank 2, not 1"),
        ({"n": -1}, "-1 is not a size"),
        ({"n": 1 << 63}, "is not a size"),
        ({"n": 2.0}, "is not a size"),
        ({"x0": np.array([2, 4])}, "'x0' axis 1 is 3, not 4"),
    ],
)
def test_shapes_that_contradict_the_model(shapes, message):
    with pytest.raises(errors.ModelError, match=message):
        convert_and_build(model(), "llvm", shapes=shapes)


@pytest.mark.parametrize("options, reason", [
    ({"precision": 3}, "no precision 3"), ({"precision": ""}, "no precision ''"),
    ({"without": None}, "a list of names"), ({"without": 3}, "a list of names"),
])  # fmt: skip
def test_options_of_other_types(options, reason):
    with pytest.raises(errors.OptionError, match=reason):
        convert_and_build(model(), "llvm", **options)


@pytest.mark.parametrize("options, reason", [
    ({"sizes": {"n": [True]}}, "whole numbers above 0"), ({"name": 3}, "name is what"),
])  # fmt: skip
def test_options_of_an_export(options, reason, tmp_path):
    with pytest.raises(errors.OptionError, match=reason):
        tvm_ext.export(model(), tmp_path / "package", **options)


@pytest.mark.parametrize("folder", [3, b"folder", "\0"])
def test_folders_that_are_no_path(folder):
    for option in ("cache", "keep"):
        with pytest.raises(errors.OutputPathError, match="give the path of a folder"):
            convert_and_build(model(), "llvm", **{option: folder})
    with pytest.raises(errors.OutputPathError, match="give the path of a folder"):
        tvm_ext.export(model(), folder)


def test_folders_of_too_long_names(tmp_path):
    folder = tmp_path / ("x" * 300)
    with pytest.raises(errors.OutputPathError, match=r"cannot write .*: File name too long"):
        convert_and_build(b"no model", "llvm", keep=folder)
    with pytest.raises(errors.OutputPathError, match=r"cannot write .*: File name too long"):
        tvm_ext.export(b"no model", folder)


@pytest.mark.parametrize("call", [tvm_ext.set_threads, tvm_ext.set_spin,
                                  lambda number: tvm_ext.set_affinity([number])])  # fmt: skip
def test_numbers_that_c_cannot_hold(call):
    """1 << 40 was core 0."""
    with pytest.raises(errors.OptionError, match="less than 2147483648, not 1099511627776"):
        call(1 << 40)


def test_an_input_that_memory_cannot_hold(compiled):
    huge = np.broadcast_to(np.float32(1), (1 << 45, 3))
    with pytest.raises(errors.RunError, match="need more memory than there is"):
        compiled(huge, huge)
    with pytest.raises(errors.OptionError, match="repeat is a whole number"):
        compiled.benchmark(repeat=True)


@pytest.mark.parametrize("shapes", [{"n": 2}, None])
def test_a_temporary_folder_that_cannot_be_made(shapes, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "absent"))
    with pytest.raises(errors.BuildError, match=r"temporary folder: No such file.*TMPDIR"):
        convert_and_build(model(), "llvm", shapes=shapes)


def test_files_that_are_no_model(tmp_path):
    whole = model().SerializeToString()
    for name, content in (
        ("truncated", whole[: len(whole) // 2]),
        ("text", b"hello"),
        ("empty", b""),
    ):
        path = tmp_path / name
        path.write_bytes(content)
        with pytest.raises(errors.ModelError, match=name):
            convert_and_build(path)
    for missing in tmp_path / "missing", tmp_path:
        with pytest.raises(errors.ModelError, match=missing.name):
            convert_and_build(missing)
    with pytest.raises(errors.ModelError, match="list"):
        convert_and_build([])
    with pytest.raises(errors.ModelError, match="utf-8"):
        convert_and_build(tmp_path / "\udcff.onnx")


@pytest.mark.parametrize(
    "options",
    [
        {"opt_level": 4},
        {"opt_level": "3"},
        {"opt_level": None},
        {"opt_level": 2.0},
        {"opt_level": np.array([3, 2])},
        {"steps": 3},
        {"feeds": {}},
        {"shapes": [("n", 2)]},
        {"shapes": "n=2"},
        {"limits": 5},
    ],
    ids=str,
)
def test_options_that_are_none(options):
    with pytest.raises(errors.OptionError, match=next(iter(options))):
        convert_and_build(model(), "llvm", **options)


@pytest.mark.parametrize("name", ["profile", "benchmark"])
@pytest.mark.parametrize("repeat", [0, -1, 1.5])
def test_counts_that_are_none(compiled, name, repeat):
    with pytest.raises(errors.OptionError, match="at least 1"):
        getattr(compiled, name)({"x0": x(2, 3), "x1": x(2, 3)}, repeat=repeat)


@pytest.mark.parametrize("opset", [0, 9999])
def test_an_opset_that_is_not_known(opset):
    with pytest.raises(errors.ModelError, match=f"opset.*{opset}|{opset}.*opset"):
        convert_and_build(model(opset=opset), "llvm")


def test_operators_that_are_not_known_are_all_named():
    unknown = model(node=("Zeta", "my.ops"))
    unknown.graph.node[1].op_type = "Alpha"
    unknown.graph.node[1].domain = "my.ops"
    with pytest.raises(errors.ConversionError, match=r"Alpha(.|\n)*Zeta") as caught:
        convert_and_build(unknown, "llvm")
    assert [(n.op_type, n.node, n.opset) for n in caught.value.nodes] == [
        ("Alpha", "second", 1),
        ("Zeta", "first", 1),
    ]


@pytest.mark.parametrize("limits", [frontend.Limits(nodes=1), frontend.Limits(bytes=10)])
def test_a_model_over_the_limits(limits):
    with pytest.raises(errors.ModelLimitError, match="over the limit of 1"):
        convert_and_build(model().SerializeToString(), "llvm", limits=limits)


@pytest.mark.parametrize(
    "target",
    [
        "nonsense",
        "",
        3,
        {"kind": "nonsense"},
        "llvm -mcpu=x",
        "llvm mcpu=x",
        "llvm -mattr=+nonsense",
        "llvm -mattr=-nonsense",
        {"kind": "llvm", "mtriple": "nonsense"},
        {"kind": "llvm", "num-cores": 0},
        '{"kind":',
    ],
)
def test_a_target_that_is_not_known(target):
    with pytest.raises(errors.TargetError, match="unknown target"):
        convert_and_build(model(), target)


@pytest.mark.parametrize("kind", ["c", "opencl", "vulkan"])
def test_a_target_without_kernels(kind):
    with pytest.raises(errors.TargetError, match=f"no kernels for targets of kind '{kind}'"):
        convert_and_build(model(), kind)


def test_options_of_a_target_in_the_old_notation():
    target = tvm_ext.targets.resolve("llvm -mcpu=core-avx2 -num-cores=3 -mattr=-fma,+avx2")
    assert target.attrs["mcpu"] == "core-avx2"
    assert int(target.attrs["num-cores"]) == 3
    assert list(target.attrs["mattr"]) == ["-fma", "+avx2"]


def test_what_a_virtual_machine_hides_is_switched_off(monkeypatch):
    seen = cpu_features._host_features()
    monkeypatch.setattr(
        cpu_features,
        "_host_features",
        lambda: {**seen, "sse4.1": False, "pku": False},
    )
    assert list(tvm_ext.targets.host_target().attrs["mattr"]) == ["-sse4.1"]


@pytest.mark.skipif(tvm.cuda(0).exist, reason="needs a machine without a GPU")
def test_cuda_without_a_gpu_builds_and_says_that_it_cannot_run():
    built = convert_and_build(model(shape=(2, 3)), "cuda")
    with pytest.raises(errors.TargetError, match=r"(?i)no cuda device|gpu"):
        built(x(2, 3), x(2, 3))
    with pytest.raises(errors.TargetError, match="CUDA"):
        tvm_ext.backend.prepare(model(), "CUDA")


@pytest.mark.parametrize("place", ["missing/out.tvmx", "a_file/out.tvmx"])
def test_a_place_that_cannot_be_written(compiled, tmp_path, place):
    (tmp_path / "a_file").touch()
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(errors.OutputPathError, match=r"out\.tvmx|missing|a_file"):
        compiled.save(tmp_path / place)
    assert sorted(tmp_path.rglob("*")) == before


def test_every_class_is_one_of_ours_and_one_of_pythons():
    for name in errors.__all__:
        error = getattr(errors, name)
        if (
            isinstance(error, type)
            and issubclass(error, Exception)
            and error is not (errors.TvmExtError)
        ):
            assert issubclass(error, errors.TvmExtError)
            assert issubclass(
                error, ValueError | OSError | RuntimeError | ImportError | AttributeError
            ), name


def test_what_compares_numbers_refuses_strings_by_name():
    graph = helper.make_graph(
        [helper.make_node("Identity", ["words"], ["y"])],
        "graph",
        [VALUE("words", onnx.TensorProto.STRING, [2])],
        [VALUE("y", onnx.TensorProto.STRING, [2])],
    )
    strings = helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 18)])
    with pytest.raises(errors.OptionError, match=r"not words: string\[2\]"):
        convert_and_build(strings, "llvm", verify="each-pass")
    with pytest.raises(errors.InputError, match=r"'words' is of strings, .* give inputs"):
        tvm_ext.compare.compare(strings)
    with pytest.raises(errors.InputError, match=r"'words' needs strings, got int64"):
        tvm_ext.compare.compare(strings, {"words": np.array([1, 2])})


def test_a_step_that_fails_is_named():
    def broken(_module):
        raise RuntimeError("nothing works")

    host = tvm_ext.targets.host_target()
    steps = tvm_ext.pipeline.default(host).insert("broken", broken, before="ScheduleKernels")
    with pytest.raises(
        errors.BuildError, match=r"'broken' of phase 'schedule' failed.*nothing works"
    ):
        convert_and_build(model(), steps=steps)
