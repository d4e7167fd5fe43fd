"""Compound operators: where they are found and where not, what they become, and what is wrong."""

import re
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper
from tvm import te
from tvm.relax.dpl import is_const, is_op, wildcard

from tests.oracle import reference
from tvm_ext import convert_and_build, extend, pipeline, targets
from tvm_ext.build import import_model, run_phase
from tvm_ext.cli import main
from tvm_ext.emulator import NO_COMPILER
from tvm_ext.errors import BuildError, OptionError, PluginError, RunError
from tvm_ext.extend import CCode, compound, samples
from tvm_ext.extend.compound_samples import CompoundSample
from tvm_ext.extend.models import text_model
from tvm_ext.extend.plugin import INTERACTIVE
from tvm_ext.passes.blocked_conv2d import BLOCKED_CONV2D
from tvm_ext.passes.tiled_attention import TILED_ATTENTION
from tvm_ext.passes.tiled_matmul import TILED_MATMUL
from tvm_ext.passes.winograd import winograd
from tvm_ext.provenance import Provenance

EXAMPLE = Path(__file__).parents[2] / "examples" / "plugins" / "conv_bias_relu.py"


@pytest.fixture(autouse=True)
def unload():
    """What a test declares is gone after it."""
    yield
    INTERACTIVE.unload()


def relu_of_add(name="acme.relu_of_add", **options):
    """relu(a + b), as one kernel made of its parts."""
    a, b = wildcard(), wildcard()
    pattern = is_op("relax.nn.relu")(is_op("relax.add")(a, b))
    return compound(name, pattern, parts={"a": a, "b": b}, **options)


def graph(body, inputs="float[3,5] x, float[3,5] z", outputs="float[n,m] y"):
    return text_model(f"({inputs}) => ({outputs}) {{ {body} }}", ())


RELU_OF_ADD = graph("s = Add(x, z) y = Relu(s)")


def selected(model, target="llvm", level=3, without=()):
    """How many compounds ``model`` holds after the phase select, by name."""
    steps = pipeline.default(targets.resolve(target), level)
    for name in without:
        steps = steps.without(name)
    conversion = import_model(model, steps)
    with steps.target:
        module = run_phase(steps, "select", conversion.module, Provenance(conversion.origin))
    return re.findall(r'"Composite": "(acme[^"]*)"', module.script())


def check_answer(model, **options):
    random = np.random.default_rng(3)
    feeds = {
        info.name: random.standard_normal(
            [d.dim_value or 7 for d in info.type.tensor_type.shape.dim]
        ).astype("float32")
        for info in model.graph.input
    }
    built = convert_and_build(model, "llvm", **options)
    wanted = reference(model, feeds)
    for got, want in zip(built.run(None, feeds), wanted, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)
    return built


# --- what is found ---------------------------------------------------------------------------


def test_operators_become_one_kernel_with_attributes():
    declared = relu_of_add()
    declared.attributes(lambda m: {"size": m.dims("a"), "kind": "sum"})
    built = check_answer(RELU_OF_ADD)
    (kernel,) = built.profile().kernels
    assert kernel.nodes == ("Add s", "Relu y")
    assert kernel.compounds == ("acme.relu_of_add(size=(3, 5), kind=sum)",)
    assert '"attributes": {"kind": "sum", "size": [3, 5]}' in built.sources()["select"]


def test_a_saved_model_still_knows_its_compounds(tmp_path):
    relu_of_add()
    built = convert_and_build(RELU_OF_ADD, "llvm")
    built.save(tmp_path / "model.tvmx")
    import tvm_ext

    (kernel,) = tvm_ext.load(tmp_path / "model.tvmx").profile().kernels
    assert kernel.compounds == ("acme.relu_of_add()",)


@pytest.mark.parametrize(
    "body, outputs",
    [
        ("s = Add(x, z) r = Relu(s) y = Mul(r, s)", "float[n,m] y"),  # read outside, too
        ("s = Add(x, z) y = Relu(s)", "float[n,m] y, float[a,b] s"),  # a result of the model
        ("s = Sub(x, z) y = Relu(s)", "float[n,m] y"),  # another operator
        ("s = Add(x, z) n = Neg(s) y = Relu(n)", "float[n,m] y"),  # one between
    ],
)
def test_what_is_no_match_stays(body, outputs):
    relu_of_add()
    model = graph(body, outputs=outputs)
    assert not selected(model)
    check_answer(model)


def test_inner_values_may_be_shared_on_request():
    relu_of_add(shared=True)
    model = graph("s = Add(x, z) r = Relu(s) y = Mul(r, s)")
    assert selected(model) == ["acme.relu_of_add"]
    check_answer(model)


def test_a_value_read_twice_inside_is_not_shared():
    x, z = wildcard(), wildcard()
    total = is_op("relax.add")(x, z)
    compound("acme.twice", is_op("relax.multiply")(total, is_op("relax.tanh")(total)))
    model = graph("s = Add(x, z) t = Tanh(s) y = Mul(s, t)")
    assert selected(model) == ["acme.twice"]
    check_answer(model)


@pytest.mark.parametrize("verdict", [False, "not today"])
def test_a_constraint_keeps_operators_apart(verdict):
    declared = relu_of_add()
    declared.check(lambda m: verdict)
    assert not selected(RELU_OF_ADD)
    reason = verdict or "check says no"
    text = convert_and_build(RELU_OF_ADD, "llvm").sources()["select"]
    assert f'"declined": {{"y": ["acme.relu_of_add: {reason}"]}}' in text


def test_a_compound_is_for_its_targets_and_levels():
    relu_of_add(targets=["cuda"], opt_level=1)
    assert not selected(RELU_OF_ADD, "llvm")
    assert selected(RELU_OF_ADD, "cuda", 1) == ["acme.relu_of_add"]
    assert not selected(RELU_OF_ADD, "cuda", 0)


def test_a_compound_is_switched_off_by_name(tmp_path, capsys):
    relu_of_add()
    assert "acme" not in check_answer(RELU_OF_ADD, without=["acme.relu_of_add"]).sources()["select"]
    with pytest.raises(OptionError, match=r"no step 'acme\.other'"):
        convert_and_build(RELU_OF_ADD, "llvm", without=["acme.other"])
    onnx.save(RELU_OF_ADD, tmp_path / "m.onnx")
    argv = ["inspect", str(tmp_path / "m.onnx"), "--passes"]
    assert main(argv) == 0
    assert "select    acme.relu_of_add (compound)" in capsys.readouterr().out
    assert main([*argv, "--without", "acme.relu_of_add"]) == 0
    assert "acme" not in capsys.readouterr().out


def test_the_largest_of_nested_matches_wins():
    a, b, c = (wildcard() for _ in range(3))
    inner = is_op("relax.add")(a, b)
    compound("acme.sum", is_op("relax.multiply")(inner, c) | inner, parts={"a": a, "b": b})
    assert selected(graph("s = Add(x, z) y = Mul(s, x)")) == ["acme.sum"]
    check_answer(graph("s = Add(x, z) t = Mul(s, x) u = Add(t, z) y = Neg(u)"))


@pytest.mark.parametrize("names", [("acme.first", "acme.second"), ("acme.second", "acme.first")])
def test_of_two_compounds_the_earlier_takes_the_operators(names):
    relu_of_add("acme.first")
    relu_of_add("acme.second", **({} if names[0] == "acme.first" else {"before": "acme.first"}))
    assert selected(RELU_OF_ADD) == [names[0]]
    assert selected(RELU_OF_ADD, without=[names[0]]) == [names[1]]


def test_symbolic_dims():
    relu_of_add()
    model = graph("s = Add(x, z) y = Relu(s)", "float[n,5] x, float[n,5] z")
    assert selected(model) == ["acme.relu_of_add"]
    check_answer(model)


def test_dims_that_no_operand_tells():
    """The kernel of rows ``[a * b, 5]`` is given ``a`` and ``b``."""
    relu_of_add()
    rows = "shape = Constant<value = int64[2] {-1, 5}>() r = Reshape(x, shape)"
    model = graph(f"{rows} s = Add(r, z) y = Relu(s)", "float[a,b,5] x, float[5] z")
    assert selected(model) == ["acme.relu_of_add"]
    check_answer(model)


@pytest.mark.parametrize("epilogue", [False, True])
def test_consumers_are_fused_where_it_allows(epilogue):
    relu_of_add(epilogue=epilogue)
    model = graph("s = Add(x, z) r = Relu(s) y = Neg(r)")
    kernels = check_answer(model).profile().kernels
    assert len(kernels) == 2 - epilogue
    assert kernels[0].compounds == ("acme.relu_of_add()",)
    assert kernels[0].nodes == ("Add s", "Relu r", *["Neg y"] * epilogue)


IF = """total = ReduceMax<keepdims=0>(x) opposite = Neg(total) flag = Less(total, opposite)
    b = If(flag)<then_branch = t () => (float[3,5] p) { p = Tanh(x) },
                 else_branch = e () => (float[3,5] q) { q = Exp(x) }>"""


def test_operands_of_a_block_before_an_if():
    """What was computed for the add alone, and fused, is read behind the If now."""
    relu_of_add()
    model = graph(f"t = Exp(x) n = Neg(t) s = Add(n, z) {IF} r = Relu(s) y = Mul(r, b)")
    assert selected(model) == ["acme.relu_of_add"]
    check_answer(model)


def test_an_operand_is_what_its_dims_were_found_of():
    """A loop's result has its shape by a cast, which patterns must not look through."""
    x = wildcard()
    declared = compound("acme.tanh", is_op("relax.tanh")(x), parts={"x": x})
    known = []
    declared.check(lambda m: known.append(m.dims("x")) or True)
    model = graph(
        "one = Constant<value = int64 {1}>() go = Constant<value = bool {1}>()"
        "w = Loop(one, go, x) <body = l (int64 i, bool c, float[3,5] v)"
        " => (bool d, float[3,5] u) { d = Identity(c) u = Add(v, z) }> y = Tanh(w)"
    )
    assert selected(model) == ["acme.tanh"]
    assert known == [[3, 5]]
    check_answer(model)


def test_a_pattern_may_be_a_function():
    def find(graph, var):
        add = graph.call(var, "relax.add")
        return None if add is None else extend.Match(graph, var, (var,), {"a": add.args[0]})

    compound("acme.found", find, parts=["a"])
    assert selected(RELU_OF_ADD) == ["acme.found"]
    check_answer(RELU_OF_ADD)


def test_a_cell_that_runs_again_takes_the_place_of_the_one_before():
    """What else was placed beside it stays where it is."""
    for bound in (1.0, 2.0):
        declared = relu_of_add()
        declared.check(lambda m, bound=bound: bound > 1)
        declared.check(lambda m, bound=bound: bound > 1)  # a cell of its own
        declared.schedule("llvm")(lambda sch, target: 1 // 0)
        declared.schedule("llvm")(lambda sch, target: None)
        if bound == 1:
            assert not selected(RELU_OF_ADD)
            relu_of_add("acme.second", after="acme.relu_of_add")
    assert selected(RELU_OF_ADD) == ["acme.relu_of_add"]
    check_answer(RELU_OF_ADD)
    names = [step.name for step in pipeline.default(targets.resolve("llvm")).steps]
    assert names.index("acme.second") == names.index("acme.relu_of_add") + 1
    assert names.count("acme.relu_of_add:llvm") == 1
    INTERACTIVE.unload()
    assert not any("acme" in step.name for step in pipeline.default(targets.resolve("llvm")).steps)


def test_two_files_cannot_declare_one_compound(plugin):
    plugin(PLUGIN, "own.py")
    with pytest.raises(PluginError, match=r"declared already, at .*own.py:6; here at .*test_com"):
        relu_of_add("acme.own")
    with pytest.raises(PluginError, match=r"at .*own.py:6; here at .*other.py:6"):
        plugin(PLUGIN, "other.py")
    assert selected(RELU_OF_ADD) == ["acme.own"]


def test_attributes_are_printed(tmp_path, capsys):
    relu_of_add().attributes(lambda m: {"size": m.dims("a")})
    onnx.save(RELU_OF_ADD, tmp_path / "m.onnx")
    argv = ["inspect", str(tmp_path / "m.onnx"), "--target", "llvm"]
    assert main([*argv, "--dump-after", "acme.relu_of_add"]) == 0
    assert re.search(r'"Composite": "acme.relu_of_add".*"size": \[3, 5\]', capsys.readouterr().out)
    assert main(["profile", *argv[1:], "--no-cache"]) == 0
    assert "acme.relu_of_add(size=(3, 5))" in capsys.readouterr().out


def test_nothing_is_stored_between_the_parts():
    assert check_answer(RELU_OF_ADD, opt_level=0).memory.arena_bytes >= 4 * 15
    relu_of_add(opt_level=0)
    assert check_answer(RELU_OF_ADD, opt_level=0).memory.arena_bytes == 0


# --- compute, layout, C ----------------------------------------------------------------------


def conv_model(filters=8, channels=16, outputs=16, size=(5, 7)):
    random = np.random.default_rng(0)
    weight = random.standard_normal((filters, channels, 1, 1)).astype("float32") / 4
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"]),
        helper.make_node("Conv", ["c", "v"], ["y"], pads=[1] * 4),
    ]
    other = random.standard_normal((outputs, filters, 3, 3)).astype("float32") / 8
    value = helper.make_tensor_value_info
    return helper.make_model(
        helper.make_graph(
            nodes,
            "g",
            [value("x", onnx.TensorProto.FLOAT, [2, channels, *size])],
            [value("y", onnx.TensorProto.FLOAT, [2, outputs, *size])],
            [numpy_helper.from_array(weight, "w"), numpy_helper.from_array(other, "v")],
        ),
        opset_imports=[helper.make_opsetid("", 17)],
        ir_version=9,
    )


def pointwise(filters):
    x, w = wildcard(), is_const()
    conv = is_op("relax.nn.conv2d")(x, w)
    declared = compound("acme.pointwise", conv, parts={"x": x, "w": w, "conv": conv})
    declared.check(lambda m: m.dims("w")[2:] == [1, 1])
    declared.layouts(lambda m: {"x": "NCHW8c", "result": "NCHW8c"})

    @declared.compute
    def _(x, w):
        n, _, h, wide, lanes = x.shape
        c = te.reduce_axis((0, w.shape[1]), "c")
        return te.compute(
            (n, -(-filters // 8), h, wide, 8),
            lambda n, o, i, j, f: te.sum(
                x[n, c // lanes, i, j, c % lanes] * w[te.min(o * 8 + f, filters - 1), c, 0, 0], c
            ),
            "pointwise",
        )

    return declared


@pytest.mark.parametrize("filters", [8, 5])
def test_a_compound_has_layouts_of_its_own(filters):
    pointwise(filters)
    model = conv_model(filters)
    assert selected(model) == ["acme.pointwise"]
    built = check_answer(model)
    names = [kernel.kernel for kernel in built.profile().kernels]
    assert names.count("pointwise") == 1
    # A neighbour of the same layout reads the result as it is; padded channels must be cut off.
    assert sum("unblock" in name for name in names) == (1 if filters == 8 else 2)


def test_a_layout_must_divide_the_channels():
    pointwise(8)
    with pytest.raises(BuildError, match=r"layouts of compound 'acme.pointwise', .*test_compound"):
        convert_and_build(conv_model(8, channels=12), "llvm")


C_TEXT = """
#include <stdint.h>
int acme_device(void);
int32_t TVMX_KERNEL(const float *a, const float *b, float *y) {
  for (int i = 0; i < 15; i++) y[i] = a[i] + b[i] > 0 ? a[i] + b[i] : 0;
  return acme_device();
}
"""


def in_c(text, support="int acme_device(void) { return 0; }"):
    declared = relu_of_add()
    declared.emit(lambda a, b: CCode(text, support))


def test_a_kernel_may_be_c(tmp_path):
    in_c(C_TEXT)
    model = graph("s = Add(x, z) r = Relu(s) t = Add(r, x) y = Relu(t)")  # two such kernels
    built = check_answer(model)
    assert built.sources()["c"].count("int acme_device(void) {") == 1
    built.save(tmp_path / "model.tvmx")
    import tvm_ext

    x = np.ones((3, 5), "float32")
    np.testing.assert_array_equal(tvm_ext.load(tmp_path / "model.tvmx")(x, x), 3 * x)


IN_VM = graph(  # a symbolic dim elsewhere
    "s = Add(x, z) r = Relu(s) y = Mul(r, k)",
    "float[3,5] x, float[3,5] z, float[n,3,5] k",
    "float[n,a,b] y",
)


def test_c_runs_in_the_vm_too(tmp_path):
    in_c(C_TEXT.replace("> 0", "> 0.25f"))  # not what the operators mean: it tells who computed
    built = convert_and_build(IN_VM, "llvm")
    built.save(tmp_path / "model.tvmx")
    import tvm_ext

    x, k = np.linspace(-1, 1, 15, dtype="float32").reshape(3, 5), np.ones((2, 3, 5), "float32")
    for model in built, tvm_ext.load(tmp_path / "model.tvmx"):
        assert "acme_device" in model.sources()["c"]
        (y,) = model.run(None, {"x": x, "z": 0 * x, "k": k})
        np.testing.assert_array_equal(y, np.stack([np.where(x > 0.25, x, 0)] * 2))


@pytest.mark.parametrize("model", [RELU_OF_ADD, IN_VM], ids=["static", "vm"])
def test_c_that_gives_up_ends_the_run(model):
    in_c(C_TEXT, "int acme_device(void) { return 7; }")
    with pytest.raises(RunError, match="returned 7"):
        check_answer(model)


def test_of_symbolic_shapes_te_computes_and_says_so(caplog):
    in_c(C_TEXT)
    check_answer(graph("s = Add(x, z) y = Relu(s)", "float[n,5] x, float[n,5] z"))
    assert "compound acme.relu_of_add: its C code is for static shapes" in caplog.text


@pytest.mark.parametrize("model", [RELU_OF_ADD, IN_VM], ids=["static", "vm"])
def test_c_that_does_not_compile_ends_the_build(model):
    in_c(C_TEXT.replace("15", "fifteen"))
    with pytest.raises(BuildError, match=r"C code of compound acme.relu_of_add:5:.*fifteen"):
        convert_and_build(model, "llvm")


# --- the built-in ones ---------------------------------------------------------------------------

ATTENTION = """
    t = Transpose <perm = [0, 2, 1]> (x) s = MatMul(x, t) w = Softmax(s) y = MatMul(w, x)
"""


@pytest.mark.parametrize(
    "built_in, model",
    [
        (TILED_ATTENTION, graph(ATTENTION, "float[2,16,8] x", "float[n,m,k] y")),
        (winograd(), conv_model(64, 16, 64, size=(15, 14))),
        (BLOCKED_CONV2D, conv_model(8, 16)),
        (TILED_MATMUL, graph("m = MatMul(x, z) y = Relu(m)", "float[8,16] x, float[16,32] z")),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_built_in_compounds_use_no_private_door(built_in, model):
    """Declared as a plugin declares, they give the same kernels."""
    level = 3 if built_in.name in ("TiledAttention", "Winograd") else 2
    wanted = convert_and_build(model, "llvm", opt_level=level).sources()["schedule"]
    own = compound("acme.own", built_in.find, opt_level=level, before=built_in.name)
    own.select(built_in.kernel)
    built = check_answer(model, opt_level=level, without=[built_in.name])
    assert any("acme.own" in text for k in built.profile().kernels for text in k.compounds)
    assert built.sources()["schedule"].replace("acme.own", built_in.name) == wanted


# --- what is wrong ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "what, function, message",
    [
        ("check", lambda m: None, r"check of .*test_compound.py:\d+: gives None, not True"),
        ("check", lambda m: m["c"], r"check of .*test_compound.py:\d+: KeyError"),
        ("attributes", lambda m: 3, r"attributes of .*test_compound.py:\d+: gives 3, not a dict"),
        ("emit", lambda a, b: "int x;", r"emit of .*test_compound.py:\d+: gives 'int x;'"),
        ("compute", lambda a, b: 1 // 0, r"compute of .*test_compound.py:\d+: ZeroDivisionError"),
        (
            "compute",
            lambda a, b: te.compute((3, 4), lambda *i: a(*i)),
            r"test_compound.py:\d+: gives float32\[3, 4\], what it replaces gives float32\[3, 5\]",
        ),
        (
            "compute",
            lambda a, b: te.compute((3, 5), lambda *i: a(*i).astype("float16")),
            r"gives float16\[3, 5\]",
        ),
    ],
)
def test_a_function_that_is_wrong_is_named(what, function, message):
    getattr(relu_of_add(), what)(function)
    with pytest.raises(BuildError, match=message):
        convert_and_build(RELU_OF_ADD, "llvm")
    check_answer(RELU_OF_ADD, without=["acme.relu_of_add"])


@pytest.mark.parametrize("what", ["check", "attributes", "compute"])
def test_a_function_that_loops_is_stopped_and_named(what, monkeypatch):
    def loops(*_):
        while True:
            pass

    monkeypatch.setattr(pipeline, "SECONDS", 0.3)
    declared = relu_of_add()
    getattr(declared, what)((lambda a, b: loops()) if what == "compute" else loops)
    with pytest.raises(BuildError, match=rf"{what} of .*: not finished .*\.py:\d+: does it loop"):
        convert_and_build(RELU_OF_ADD)


@pytest.mark.parametrize(
    "find, reason", [(lambda g, v: 1 // 0, "ZeroD"), (lambda g, v: v, "gives")]
)
def test_a_function_that_finds_wrongly_is_named(find, reason):
    compound("acme.found", find)
    with pytest.raises(BuildError, match=rf"pattern of .*acme.found', .*test_.*py:\d+: {reason}"):
        convert_and_build(RELU_OF_ADD, "llvm")


def test_a_declaration_that_is_wrong_is_refused():
    declared = relu_of_add()
    with pytest.raises(PluginError, match=r"takes \['q'\]; its parts are \('a', 'b'\)"):
        declared.compute(lambda a, q: a)
    with pytest.raises(PluginError, match="is no pattern"):
        compound("acme.other", "relax.add")
    with pytest.raises(PluginError, match="parts are names and patterns"):
        compound("acme.other", wildcard(), parts=["x"])
    with pytest.raises(PluginError, match=r"results \['c'\] are no parts"):
        relu_of_add("acme.other", results=["c"])
    with pytest.raises(PluginError, match="nothing can be fused behind several results"):
        relu_of_add("acme.other", results=["a"], epilogue=True)
    with pytest.raises(PluginError, match="a function that finds matches says itself"):
        compound("acme.other", lambda graph, var: None, shared=True)
    with pytest.raises(PluginError, match="no step 'Nowhere'"):
        relu_of_add("acme.other", after="Nowhere")
    with pytest.raises(PluginError, match="sample of acme"):
        declared.sample("(float[1] x) => (float[1] y) { y = }")
    assert "acme.other" not in str(pipeline.default(targets.resolve("llvm")))
    assert selected(RELU_OF_ADD) == ["acme.relu_of_add"]


def test_schedules_that_raise_or_bind_no_threads_are_named():
    declared = relu_of_add()
    declared.schedule("llvm")(lambda sch, target: 1 // 0)
    declared.schedule("cuda")(lambda sch, target: None)
    for kind in ("llvm", "cuda"):
        with pytest.raises(BuildError, match=rf"the {kind} schedule of acme.*test_compound.py:\d+"):
            convert_and_build(RELU_OF_ADD, kind)
    check_answer(RELU_OF_ADD, without=["acme.relu_of_add"])


# --- check-op --------------------------------------------------------------------------------

PLUGIN = """\
from tvm import te, tirx
from tvm.relax.dpl import is_op, wildcard
from tvm_ext.extend import compound

a, b = wildcard(), wildcard()
own = compound(
    "acme.own", is_op("relax.nn.relu")(is_op("relax.add")(a, b)), parts={"a": a, "b": b}
)

@own.compute
def _(a, b):
    return te.compute(a.shape, lambda *i: te.max(a(*i) + b(*i), tirx.const(0, a.dtype)), "own")

@own.schedule("llvm")
def _(sch, target):
    sch.parallel(sch.get_loops(sch.get_sblock("own"))[0])

own.sample("(float[n,m] x, float[n,m] z) => (float[n,m] y) { s = Add(x, z) y = Relu(s) }")
"""


def test_the_contract_of_a_right_compound_holds(plugin, monkeypatch):
    monkeypatch.setattr(samples, "EXTENTS", ((2, 3), (1, 17)))
    report = extend.check(plugin(PLUGIN, "own.py"))
    assert report.passed, report
    assert {
        (finding.check, finding.case.removeprefix("sample 0 ")) for finding in report.findings
    } == {
        ("found, llvm", "n=2, m=3"),
        ("found, cuda", "n=2, m=3"),
        ("llvm, all levels", "n=2, m=3"),
        ("llvm, speed", "n=2, m=3, against unfused"),
        ("cuda on the CPU", "n=2, m=3"),
        ("llvm, sizes", "n=1, m=17"),
        ("llvm, dtypes", "float64"),
        ("llvm, dtypes", "float16"),
        ("llvm, dtypes", "bfloat16"),
        ("llvm, symbolic dims", "symbolic n, m"),
    }
    assert not any("not" in f.detail for f in report.findings), report  # all are taken


@pytest.mark.parametrize(
    "right, wrong, message",
    [
        ("a(*i) + b(*i)", "a(*i) - b(*i)", r"own.py:6: opt level 2: output 0 is off by"),
        ("relax.nn.relu", "relax.sigmoid", r"own.py:6: the pattern is not found"),
        ('own.sample("', '("', "own.py:6 declares no sample"),
        ('get_sblock("own")', 'get_sblock("none")', r"schedule .*own.py:\d+: declines its own"),
    ],
)
def test_a_wrong_compound_is_found(plugin, monkeypatch, right, wrong, message):
    monkeypatch.setattr("tvm_ext.extend.compound_contract.NO_COMPILER", "left out here")
    monkeypatch.setattr(samples, "EXTENTS", ((3, 5),))
    monkeypatch.setattr(CompoundSample, "retyped", lambda sample: [])
    assert right in PLUGIN
    report = extend.check(plugin(PLUGIN.replace(right, wrong), "own.py"))
    assert any(re.search(message, finding.detail) for finding in report.failures), report


@pytest.mark.skipif(NO_COMPILER is not None, reason=str(NO_COMPILER))
def test_a_compound_for_cuda_alone_is_tried_in_all_sizes(plugin, monkeypatch):
    monkeypatch.setattr(samples, "EXTENTS", ((2, 3), (1, 17)))
    report = extend.check(plugin(PLUGIN.replace("parts=", "targets=['cuda'], parts="), "own.py"))
    assert report.passed, report
    assert [(finding.check, finding.case) for finding in report.findings] == [
        ("found, cuda", "sample 0 n=2, m=3"),
        ("cuda on the CPU", "sample 0 n=2, m=3"),
        ("cuda on the CPU", "sample 0 n=1, m=17"),
    ]


HIDDEN = PLUGIN.replace(
    "def _(a, b):\n",
    """def _(a, b):
    if {wrong}:
        return te.compute(a.shape, lambda *i: a(*i) + tirx.const(7, a.dtype), "own")
""",
)


@pytest.mark.parametrize(
    "wrong, check",
    [
        ("isinstance(a.shape[1], tirx.IntImm) and a.shape[1] == 1", "sizes"),
        ("str(a.dtype.dtype) == 'float16'", "dtypes"),
        ("not isinstance(a.shape[1], tirx.IntImm)", "symbolic dims"),
    ],
)
def test_what_is_wrong_only_in_a_variant_is_found(plugin, monkeypatch, wrong, check):
    monkeypatch.setattr("tvm_ext.extend.compound_contract.NO_COMPILER", "left out here")
    monkeypatch.setattr(samples, "EXTENTS", ((3, 5), (1, 1)))
    report = extend.check(plugin(HIDDEN.replace("{wrong}", wrong), "own.py"))
    assert {finding.check for finding in report.failures} == {f"llvm, {check}"}, report


def test_a_schedule_that_breaks_symbolic_dims_is_named(plugin, monkeypatch):
    monkeypatch.setattr("tvm_ext.extend.compound_contract.NO_COMPILER", "left out here")
    monkeypatch.setattr(samples, "EXTENTS", ((3, 5),))
    monkeypatch.setattr(CompoundSample, "retyped", lambda sample: [])
    report = extend.check(plugin(PLUGIN.replace("sch.parallel", "sch.unroll"), "own.py"))
    (failure,) = report.failures
    assert failure.check == "llvm, symbolic dims"
    assert re.search(r"schedule .*own.py:1\d: opt level 3: ", failure.detail)


def test_what_the_constraints_leave_alone_is_told(plugin, monkeypatch):
    monkeypatch.setattr("tvm_ext.extend.compound_contract.NO_COMPILER", "left out here")
    monkeypatch.setattr(samples, "EXTENTS", ((3, 5),))
    check = "own.check(lambda m: m.dtype() == 'float32' or f'no {m.dtype()}')"
    report = extend.check(plugin(f"{PLUGIN}\n{check}\n", "own.py"))
    assert report.passed, report
    told = {finding.detail for finding in report.findings if finding.check == "llvm, dtypes"}
    assert told == {"not taken: no float64", "not taken: no float16", "not taken: no bfloat16"}


def test_the_scaffold_passes_its_own_check(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(samples, "EXTENTS", ((3, 5), (1, 17)))
    argv = ["new-op", "--compound", "acme.BiasRelu", "--output-dir", str(tmp_path)]
    assert main(argv) == 0
    assert sorted(p.name for p in tmp_path.iterdir()) == ["bias_relu.py", "test_bias_relu.py"]
    assert main(argv) == 2
    assert main([*argv[:2], "noname", *argv[3:]]) == 2
    assert "is not a name such as acme.bias_relu" in capsys.readouterr().err
    path = tmp_path / "bias_relu.py"
    assert main(["check-op", str(path)]) == 0
    extend.load(path).unload()


def test_the_example_is_one_short_file_that_passes():
    assert len(EXAMPLE.read_text().splitlines()) <= 60
    loaded = extend.load(EXAMPLE)
    try:
        report = extend.check(loaded)
    finally:
        loaded.unload()
    assert report.passed, report
