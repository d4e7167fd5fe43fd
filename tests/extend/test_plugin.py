"""Plugins load whole or not at all, and every failure names file and line."""

import importlib.metadata
import sys

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import defs, helper
from tvm_ext.frontend import TABLE

from tests.oracle import node_model
from tvm_ext import convert_and_build, extend, pipeline
from tvm_ext.compare import compare
from tvm_ext.compare.engines import ENGINES, REFERENCE
from tvm_ext.compare.measure import _plugins_of
from tvm_ext.errors import ComparisonError, ConversionError, PluginError
from tvm_ext.extend import plugin as loading

from .conftest import TWICE

X = np.arange(12, dtype="float32").reshape(3, 4)
KEY = "com.acme", "Twice", 1


def model():
    """One node; what it gives is declared, so that it is valid without the plugin too."""
    float32 = onnx.TensorProto.FLOAT
    info = [helper.make_tensor_value_info(name, float32, X.shape) for name in ("x0", "y0")]
    node = helper.make_node("Twice", ["x0"], ["y0"], "node", domain="com.acme")
    graph = helper.make_graph([node], "graph", info[:1], info[1:])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("com.acme", 1)])


def registered():
    return dict(TABLE), list(pipeline.EXTENSIONS), dict(loading.PLUGINS), defs.has(*KEY[1::-1])


def test_an_operator_of_an_unknown_domain_runs(plugin):
    plugin()
    np.testing.assert_array_equal(convert_and_build(model())(X), 2 * X)


def test_what_was_built_outlives_the_plugin(plugin):
    before = registered()
    loaded = plugin()
    compiled = convert_and_build(model())
    loaded.unload()
    assert registered() == before
    np.testing.assert_array_equal(compiled(X), 2 * X)
    with pytest.raises(ConversionError, match="no converter"):
        convert_and_build(model())


def test_loading_twice_is_loading_once(plugin):
    assert plugin() is plugin()


def test_a_changed_file_is_not_what_is_loaded(plugin):
    plugin()
    with pytest.raises(PluginError, match=r"twice.py has changed .*unload") as caught:
        plugin(TWICE + "\n")
    extend.unload(str(caught.value).split()[0])
    plugin(TWICE + "\n")
    with pytest.raises(PluginError, match="no_such is not loaded"):
        extend.unload("no_such")


@pytest.mark.parametrize(
    "text, message",
    [
        (TWICE + "\n1 / 0\n", r"bad.py:\d+: ZeroDivisionError"),
        (TWICE + "\nraise SystemExit(3)\n", r"bad.py:\d+: SystemExit"),
        (TWICE + "\ndef f(:\n", r"bad.py:\d+: SyntaxError"),
        (TWICE + '\ntwice.shapes("y[n]")\n', r"bad.py:\d+: .*com.acme.Twice-1 name inputs \['y'\]"),
        (TWICE + '\ntwice.shapes("x[n")\n', r"bad.py:\d+: .*'x\[n' is not"),
        (TWICE + '\ntwice.shapes("x[n]", beta=[1])\n', r"bad.py:\d+: .*attributes \['beta'\]"),
        (
            TWICE.replace("factor=2.0):\n    return bb", "factor):\n    return bb"),
            "'factor' has no",
        ),
    ],
)
def test_a_plugin_that_fails_leaves_nothing_behind(plugin, text, message):
    before = registered()
    with pytest.raises(PluginError, match=message):
        plugin(text, "bad.py")
    assert registered() == before
    assert not any("bad" in name for name in sys.modules if name.startswith("tvm_ext_plugin"))


OPERATOR = (
    "from tvm_ext.extend import operator\n@operator('A', domain='d')\ndef a(bb, x, *, s=1.0): ...\n"
)
STEP = "from tvm_ext.extend import step\n@step('mine', after='FuseTIR')\ndef mine(module): ...\n"


@pytest.mark.parametrize(
    "text, message",
    [
        ("def f(\n", r"bad.py:1: SyntaxError: '\(' was never closed"),
        ("x = 1\0\n", r"bad.py: SyntaxError: .*null bytes"),
        ("class E(BaseException): ...\nraise E('why')\n", r"bad.py:2: E: why"),
        ("raise StopIteration\n", r"bad.py:1: StopIteration$"),
        ("import no_such_module\n", r"bad.py:1: ModuleNotFoundError"),
        (OPERATOR.replace("'A',", "'A', 0,"), r"bad.py:2: operator 'A': versions are \(0,\)"),
        (OPERATOR.replace("'A'", "'A b'"), r"bad.py:2: .*an operator's name is a word"),
        (OPERATOR.replace("'d'", "'d', outputs=0"), "bad.py:2: .*outputs 0; needs 1"),
        (OPERATOR.replace("bb, x, *, s=1.0", ""), "bad.py:2: .*takes the builder first"),
        (OPERATOR.replace("*, s=1.0", "**all"), r"bad.py:2: .*instead of \*\*all"),
        (OPERATOR.replace("'d'", "'d', schema=7"), "bad.py:2: .*is 7, no onnx.defs.OpSchema"),
        (
            OPERATOR.replace("'d'", "'d', schema=defs.get_schema('Relu')").replace(
                "from", "from onnx import defs\nfrom", 1
            ),
            r"bad.py:3: the schema is that of \.Relu-14, declared is d.A-1",
        ),
        (OPERATOR + "a.shapes('x[n, n n]')", "bad.py:4: .*'n n' is no number, name or arithmetic"),
        (OPERATOR + "a.shapes('x[f(n)]')", "bad.py:4: .*more than arithmetic on names"),
        (OPERATOR + "a.shapes('x[n // 0]')", "bad.py:4: .*division"),
        (OPERATOR + "a.shapes('x[n, 1 - n]')", r"bad.py:4: .*'1 - n' is -1"),
        (OPERATOR + "a.shapes('x[n]', dtypes=['float33'])", "bad.py:4: .*float33"),
        (OPERATOR + "a.shapes('x[n]', s=2.0)", "bad.py:4: .*s=2.0 is no list"),
        (OPERATOR + "a.reference(7)", "bad.py:4: the reference of d.A-1 is 7"),
        (OPERATOR + "a.schedule('llvn')", "bad.py:4: .*no target kind 'llvn' .is 'llvm' meant"),
        (OPERATOR + "a.schedule('llvm')(lambda sch: sch)", "bad.py:4: .*called with the schedule"),
        (OPERATOR + "a.schedule(print)", "bad.py:4: .*a target kind is a name"),
        (STEP.replace("FuseTIR", "FuseTir"), "bad.py:2: .*no step 'FuseTir' .is 'FuseTIR' meant"),
        (
            STEP.replace("after='FuseTIR'", "phase='fused'"),
            "bad.py:2: .*no phase 'fused' .is 'fuse'",
        ),
        (STEP.replace("'FuseTIR'", "'FuseTIR', target='cud'"), "bad.py:2: .*is 'cuda' meant"),
        (STEP.replace("'FuseTIR'", "'FuseTIR', opt_level=4"), "bad.py:2: .*opt_level is 0, 1, 2"),
        (STEP.replace("module", "module, context"), "bad.py:2: .*called with the model or module"),
        (STEP.replace("('mine', after='FuseTIR')", ""), "bad.py:2: a step has a name"),
    ],
)
def test_a_slip_is_named_where_it_stands(plugin, text, message):
    before = registered()
    with pytest.raises(PluginError, match=message):
        plugin(text, "bad.py")
    assert registered() == before


@pytest.mark.parametrize("source", ["", None, 7, ".relative", "a-b", "folder"])
def test_what_is_no_plugin_is_refused(source, tmp_path, monkeypatch):
    (tmp_path / "folder").mkdir()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(PluginError, match=r"not (''|None|7)|neither a file nor|Is a directory"):
        extend.load(source)


@pytest.mark.parametrize(
    "fault", ["1 / 0", "raise SystemExit(1)", "raise type('E', (Exception,), {})('why')"]
)
def test_a_converter_that_raises_is_named_with_its_line(plugin, fault):
    plugin(TWICE.replace("    return bb.emit_te", f"    {fault}\n    return bb.emit_te"))
    with pytest.raises(ConversionError, match=r"com.acme.Twice-1 'node' .*twice.py:10: \w+"):
        convert_and_build(model())
    np.testing.assert_array_equal(convert_and_build(node_model("Neg", [X]))(X), -X)


def test_two_plugins_cannot_have_one_operator(plugin):
    plugin()
    with pytest.raises(PluginError, match=r"other.py:\d+: com.acme.Twice-1 .* at .*twice.py:\d+"):
        plugin(TWICE, "other.py")
    np.testing.assert_array_equal(convert_and_build(model())(X), 2 * X)


def test_a_plain_converter_leaves_with_its_plugin(plugin):
    text = (
        "from tvm_ext.frontend import converter\n"
        '@converter("Plain", 1, domain="com.acme")\n'
        "def plain(bb, x):\n    return x\n"
    )
    loaded = plugin(text)
    assert ("com.acme", "Plain", 1) in TABLE
    loaded.unload()
    assert ("com.acme", "Plain", 1) not in TABLE


RELU = TWICE.replace('operator("Twice", domain="com.acme")', 'operator("Relu", 14, domain="")')


def test_a_built_in_operator_is_replaced_only_on_request(plugin):
    relu = node_model("Relu", [X])
    with pytest.raises(PluginError, match=r"ai.onnx.Relu-14 is built in: override=True"):
        plugin(RELU)
    loaded = plugin(RELU.replace('domain=""', 'domain="", override=True'), "override.py")
    np.testing.assert_array_equal(convert_and_build(relu)(X - 5), 2 * (X - 5))
    loaded.unload()
    np.testing.assert_array_equal(convert_and_build(relu)(X - 5), np.maximum(X - 5, 0))


@pytest.mark.parametrize("source", ["no_such_module", "/no/such/file.py"])
def test_what_is_not_there_is_named(source):
    with pytest.raises(PluginError, match=source):
        extend.load(source)


def test_installed_plugins_load_by_entry_point(plugin, tmp_path, monkeypatch):
    for name, text in ("good", TWICE), ("broken", "1 / 0"):
        (tmp_path / f"acme_{name}.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    points = [
        importlib.metadata.EntryPoint(name, f"acme_{name}", "tvm_ext.plugins")
        for name in ("good", "broken")
    ]
    monkeypatch.setattr(loading, "entry_points", lambda group: points)
    monkeypatch.setattr(loading, "_loaded_groups", set())
    with pytest.warns(UserWarning, match=r"'broken' is left out: plugin .*acme_broken.py:1: Zero"):
        compiled = convert_and_build(model())
    np.testing.assert_array_equal(compiled(X), 2 * X)
    assert extend.load("good") is loading.PLUGINS["acme_good"]
    loading.PLUGINS["acme_good"].unload()


def test_a_cell_that_runs_again_replaces_its_operator():
    for factor in 2.0, 3.0:

        @extend.operator("Cell", domain="com.acme")
        def cell(bb, x, *, factor=factor):
            return bb.emit_te(lambda x: compute(x, factor), x)

    def compute(x, factor):
        from tvm import te

        return te.compute(x.shape, lambda *i: x(*i) * te.const(factor, x.dtype))

    np.testing.assert_array_equal(
        convert_and_build(node_model("Cell", [X], domain="com.acme", opset=1))(X), 3 * X
    )
    cell.undo.close()
    loading.INTERACTIVE.operators.remove(cell)


def test_a_cell_that_runs_again_replaces_its_step():
    for number in range(2):

        @extend.step("cell", after="FuseTIR")
        def cell(module, number=number):
            seen.append(number)
            return module

    seen = []
    try:
        convert_and_build(node_model("Neg", [X]), "llvm")
    finally:
        loading.INTERACTIVE.steps.pop("cell").close()
    assert seen == [1]


# --- the schema that follows from the signature ------------------------------------------------


def test_onnx_infers_shapes_through_the_operator(plugin):
    plugin()
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        [
            helper.make_node("Twice", ["x"], ["a"], domain="com.acme"),
            helper.make_node("Transpose", ["a"], ["y"]),
        ],
        "graph",
        [value("x", onnx.TensorProto.FLOAT16, ["n", 4])],
        [helper.make_empty_tensor_value_info("y")],
    )
    imports = [helper.make_opsetid("", 21), helper.make_opsetid("com.acme", 1)]
    inferred = onnx.shape_inference.infer_shapes(helper.make_model(graph, opset_imports=imports))
    tensor = inferred.graph.output[0].type.tensor_type
    assert tensor.elem_type == onnx.TensorProto.FLOAT16
    assert [d.dim_param or d.dim_value for d in tensor.shape.dim] == [4, "n"]


def test_the_schema_has_optional_inputs_and_typed_attributes(plugin):
    plugin(
        "from tvm_ext.extend import operator\n"
        '@operator("Many", 1, 3, domain="com.acme", outputs=2)\n'
        "def many(bb, x, y=None, *, axes: list[int], scale=0.5, mode='up',\n"
        "         last: int | None = None):\n"
        "    return x, x\n"
    )
    for version in 1, 3:
        schema = defs.get_schema("Many", version, "com.acme")
        assert (schema.since_version, schema.min_input, schema.max_input) == (version, 1, 2)
    assert schema.max_output == 2
    kinds = {name: str(a.type).rpartition(".")[2] for name, a in schema.attributes.items()}
    assert kinds == {"axes": "INTS", "scale": "FLOAT", "mode": "STRING", "last": "INT"}
    assert [name for name, a in schema.attributes.items() if a.required] == ["axes"]


def test_the_checker_knows_the_attributes(plugin):
    plugin()
    wrong = model()
    wrong.graph.node[0].attribute.append(helper.make_attribute("faktor", 3.0))
    with pytest.raises(ValueError, match="faktor"):
        convert_and_build(wrong)


def test_a_refusal_of_the_converter_names_the_node(plugin):
    plugin(TWICE.replace("    return bb", '    raise NotImplementedError("why")\n    return bb'))
    with pytest.raises(ConversionError, match=r"com.acme.Twice-1 'node' \(opset 1\): why"):
        convert_and_build(model())


# --- comparison -------------------------------------------------------------------------------


def test_a_comparison_uses_the_reference_that_onnxruntime_lacks(plugin, tmp_path):
    loaded = plugin()
    assert _plugins_of(ir.from_proto(model())) == {"com.acme.Twice-1": loaded.name}
    onnx.save(model(), tmp_path / "model.onnx")
    (y,) = ENGINES[REFERENCE].open(tmp_path / "model.onnx", 1)({"x0": X})
    np.testing.assert_array_equal(y, 2 * X)
    assert y.dtype == X.dtype


@pytest.mark.slow
def test_a_whole_comparison_against_the_reference(plugin, caplog):
    plugin()
    report = compare(model(), rounds=1, seconds=0.01)
    assert report.theirs.engine == REFERENCE
    assert report.agrees(1e-6)
    assert "onnxruntime lacks com.acme.Twice-1" in caplog.text


def test_a_comparison_needs_a_reference(plugin):
    plugin(TWICE.replace("@twice.reference", ""))
    with pytest.raises(ComparisonError, match="numpy reference"):
        compare(model(), rounds=1, seconds=0.01)
