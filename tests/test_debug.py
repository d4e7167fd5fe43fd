"""bisect names the layer that is wrong, where NaN is born, and saves the part that shows it."""

import json

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx.reference import ReferenceEvaluator
from tvm import relax, te

from tvm_ext import convert_and_build, debug, pipeline, targets
from tvm_ext.errors import ComparisonError, InputError, OptionError, TargetError
from tvm_ext.extend import operator, plugin

TEXT = """<ir_version: 10, opset_import: ["" : 21]>
  g (float[n, 5] x, float[5, 7] w) => (float[n, 7] y, float[n] total) {
    axes = Constant <value_ints = [-1]> ()
    product = MatMul (x, w)
    wave = Sin (product)
    shares = Softmax <axis = -1> (wave)
    doubled = Add (shares, shares)
    y = Exp (doubled)
    total = ReduceSum <keepdims = 0> (y, axes)
  }"""
MODEL = onnx.parser.parse_model(TEXT)
RANDOM = np.random.default_rng(0)
FEEDS = {
    name: RANDOM.normal(size=shape).astype("float32")
    for name, shape in (("x", (3, 5)), ("w", (5, 7)))
}


def with_wrong(op_type, other, level=3):
    """A pipeline that turns every node of one operator into another."""

    def exchange(model):
        for node in model.graph:
            if node.op_type == op_type:
                node.op_type = other
        return model

    steps = pipeline.default(targets.resolve("llvm"), level)
    return steps.insert("exchange", exchange, before="inline-functions")


@pytest.mark.parametrize("against", ["onnxruntime", "reference", 0])
@pytest.mark.parametrize("level", [0, 3])
def test_a_right_model_agrees_everywhere(against, level):
    report = debug.bisect(MODEL, FEEDS, against, opt_level=level)
    assert report.first is None
    assert not report.births
    names = [value.name for value in report.values]
    assert {"y", "total"} <= set(names)
    assert {*names, *report.hidden} == {v for node in MODEL.graph.node for v in node.output}
    if level == 0 and against != 0:
        assert names == ["product", "wave", "shares", "doubled", "y", "total"]


@pytest.mark.parametrize(
    "wrong, other, level, first",
    [
        ("Sin", "Cos", 0, "wave"),
        ("Exp", "Log", 0, "y"),
        ("Add", "Mul", 0, "doubled"),
        ("ReduceSum", "ReduceMax", 3, "total"),
    ],
)
def test_the_first_wrong_value_is_named(wrong, other, level, first):
    report = debug.bisect(MODEL, FEEDS, steps=with_wrong(wrong, other, level))
    assert report.first.name == first
    assert report.first.node.startswith(wrong)
    after = [value.name for value in report.values].index(first)
    assert all(value.agrees for value in report.values[:after])
    assert f"first to differ: {first} ({wrong}" in str(report)


def test_values_inside_of_kernels_leave_the_first_that_can_be_seen():
    report = debug.bisect(MODEL, FEEDS, steps=with_wrong("Sin", "Cos"))
    order = [v for node in MODEL.graph.node for v in node.output]
    seen = {value.name for value in report.values}
    assert report.first.name == next(v for v in order[order.index("wave") :] if v in seen)


def test_blocked_layouts_are_seen_as_onnx_means_them():
    model = onnx.parser.parse_model("""<ir_version: 10, opset_import: ["" : 21]>
      g (float[1, 16, 9, 9] x, float[32, 16, 3, 3] k, float[20, 32, 1, 1] m)
        => (float[1, 20, 9, 9] z) {
        c = Conv <pads = [1, 1, 1, 1]> (x, k)
        r = Relu (c)
        z = Conv (r, m)
      }""")
    feeds = {
        i.name: RANDOM.normal(size=[d.dim_value for d in i.type.tensor_type.shape.dim])
        for i in model.graph.input
    }
    report = debug.bisect(model, {k: v.astype("float32") for k, v in feeds.items()})
    assert report.first is None
    assert [value.name for value in report.values] == ["r", "z"]


@pytest.mark.parametrize("channels", [(3, 5, 8), (16, 20, 17), (8, 24, 3)])
@pytest.mark.parametrize("kernel", [1, 3])
def test_what_layouts_add_is_taken_for_no_value(channels, kernel):
    """A convolution before its bias is no value of ONNX, whatever the variables are called."""
    first, second, third = channels
    rows = [f"float[1, {first}, 9, 9] x"]
    for name, shape in {"k": (second, first), "l": (third, second)}.items():
        rows.append(f"float[{shape[0]}, {shape[1]}, {kernel}, {kernel}] {name}")
    model = onnx.parser.parse_model(f"""<ir_version: 10, opset_import: ["" : 21]>
      g ({rows[0]}, {rows[1]}, {rows[2]}, float[{second}] a, float[{third}] b)
        => (float[1, {third}, n, n] c2) {{
        c = Conv (x, k, a)
        c1 = Relu (c)
        c_1 = Conv (c1, l, b)
        c2 = Relu (c_1)
      }}""")
    feeds = {
        i.name: RANDOM.normal(size=[d.dim_value for d in i.type.tensor_type.shape.dim])
        for i in model.graph.input
    }
    for name in "klab":
        array = onnx.numpy_helper.from_array(feeds.pop(name).astype("float32"), name)
        model.graph.initializer.append(array)
    del model.graph.input[1:]
    report = debug.bisect(model, {k: v.astype("float32") for k, v in feeds.items()})
    assert report.first is None
    assert "c2" in [value.name for value in report.values]


def test_the_smallest_model_that_shows_it_is_saved(tmp_path):
    path = tmp_path / "part.onnx"
    steps = with_wrong("Add", "Mul", 0)
    report = debug.bisect(MODEL, FEEDS, steps=steps, save=path)
    assert report.submodel == str(path)
    part = onnx.load(path)
    assert [node.op_type for node in part.graph.node] == ["Add"]
    with np.load(tmp_path / "part.npz") as file:
        feeds = dict(file)
    (want,) = ReferenceEvaluator(part).run(None, feeds)
    (wrong,) = convert_and_build(part, steps=steps).run(None, feeds)
    assert np.abs(wrong - want).max() > 1e-3
    assert sorted(p.name for p in tmp_path.iterdir()) == ["part.npz", "part.onnx"]


def test_nothing_is_written_where_nothing_differs_or_nobody_asks(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert debug.bisect(MODEL, FEEDS, save=tmp_path / "part.onnx").submodel is None
    debug.bisect(MODEL, FEEDS, steps=with_wrong("Exp", "Log", 0))
    assert list(tmp_path.iterdir()) == []


def test_nan_and_infinity_are_told_where_they_are_born():
    model = onnx.parser.parse_model("""<ir_version: 10, opset_import: ["" : 21]>
      g (float[4] x) => (float[4] z) {
        a = Neg (x)
        l = Log (a)
        s = Sin (l)
        z = Add (s, x)
      }""")
    x = np.array([1, -1, 0, -3], "float32")
    report = debug.bisect(model, {"x": x}, opt_level=0)
    assert [value.name for value in report.births] == ["l"]
    assert [value.non_finite for value in report.values] == [0, 2, 2, 2]
    assert report.first is None  # both sides have them
    assert "born here" in str(report)
    wrong = debug.bisect(model, {"x": x}, steps=with_wrong("Log", "Abs", 0))
    assert (wrong.first.name, wrong.first.error) == ("l", np.inf)


def test_what_was_not_finite_before_is_not_born():
    """NaN of an input, infinity of an initializer."""
    model = onnx.parser.parse_model("""<ir_version: 10, opset_import: ["" : 21]>
      g (float[3] x) => (float[3] z) <float[3] limits = {0.0, 0.0, 1.0}> {
        a = Neg (x)
        b = Add (a, limits)
        z = Sqrt (b)
      }""")
    limits = np.array([0, np.inf, 1], "float32")
    model.graph.initializer[0].CopyFrom(onnx.numpy_helper.from_array(limits, "limits"))
    nan = debug.bisect(model, {"x": np.array([np.nan, 1, -4], "float32")}, opt_level=0)
    assert [value.non_finite for value in nan.values] == [1, 2, 2]
    assert not nan.births
    born = debug.bisect(model, {"x": np.array([4, 1, -4], "float32")}, opt_level=0)
    assert [value.non_finite for value in born.values] == [0, 1, 2]
    assert not born.births, "the infinity came with the weights"


def test_errors_that_add_up_are_shown_by_a_longer_part(tmp_path):
    """Each layer alone keeps its bound; the part goes up as far as the sum needs."""
    layers = "".join(f"v{k + 1} = Neg (v{k}) " for k in range(6))
    model = onnx.parser.parse_model(
        f'<ir_version: 10, opset_import: ["" : 21]> g (float[5] v0) => (float[5] v6) {{ {layers} }}'
    )

    @operator("Neg", 13, domain="", override=True)
    def coarse(bb, x):
        return bb.emit(relax.op.multiply(x, relax.const(-1.0006, "float32")))

    try:
        feeds = {"v0": np.full(5, 1e3, "float32")}
        report = debug.bisect(model, feeds, opt_level=0, save=tmp_path / "part.onnx")
    finally:
        coarse.undo.close()
        plugin.INTERACTIVE.operators.remove(coarse)
    assert report.first.name == "v2"
    assert [node.op_type for node in onnx.load(report.submodel).graph.node] == ["Neg", "Neg"]


def test_each_result_of_a_kernel_is_a_value():
    model = onnx.parser.parse_model("""<ir_version: 11, opset_import: ["" : 21, "com.acme" : 1]>
      g (float[3, 7] x) => (float[3, 7] y, float[3, 7] z) {
        once, twice = com.acme.Both (x)
        y = Exp (once)
        z = Neg (twice)
      }""")

    @operator("Both", domain="com.acme", outputs=2)
    def both(bb, x):
        def compute(x):
            once = te.compute(x.shape, lambda *i: x(*i), "once")
            return once, te.compute(x.shape, lambda *i: once(*i) * 2.5, "more")

        return bb.emit_te(compute, x)

    @both.reference
    def _(x):
        return x, 2 * x

    try:
        report = debug.bisect(
            model, {"x": FEEDS["x"].repeat(2, 1)[:, :7]}, "reference", opt_level=0
        )
    finally:
        both.undo.close()
        plugin.INTERACTIVE.operators.remove(both)
    assert [value.name for value in report.values] == ["once", "twice", "y", "z"]
    assert report.first.name == "twice"
    assert report.values[0].agrees


def test_symbolic_dims_have_the_sizes_of_the_inputs():
    report = debug.bisect(MODEL, {**FEEDS, "x": np.ones((11, 5), "float32")}, opt_level=0)
    assert report.values[0].type == "float32[11, 7]"


def test_a_report_is_a_table_a_plot_and_json(tmp_path):
    report = debug.bisect(MODEL, FEEDS, steps=with_wrong("Sin", "Cos", 0))
    assert json.loads(report.to_json())["first"] == "wave"
    assert report.plot(tmp_path / "errors.png").stat().st_size > 1000


@pytest.mark.parametrize(
    "options, error, message",
    [
        ({"against": "nonsense"}, ComparisonError, "onnxruntime, reference or a level"),
        ({"against": 7}, OptionError, "opt_level is 0, 1, 2 or 3, not 7"),
        ({"opt_level": 9}, OptionError, "opt_level is 0, 1, 2 or 3, not 9"),
        ({"target": "cuda"}, TargetError, "on a CPU"),
        ({"inputs": [FEEDS["x"]]}, InputError, "inputs given: list"),
        ({"inputs": FEEDS | {"x": np.ones((3, 5))}}, InputError, r"float32\['n', 5\], given .*64"),
        ({"inputs": FEEDS | {"x": np.ones(5, "f")}}, InputError, r"given is float32\[5\]"),
        ({"inputs": FEEDS | {"w": np.ones((5, 3), "f")}}, InputError, r"given is float32\[5, 3\]"),
        ({"inputs": {"x": FEEDS["x"]}}, InputError, r"the model has \['x', 'w'\]"),
        ({"inputs": None}, InputError, "give a size for n"),
    ],
)
def test_what_cannot_be_bisected_is_refused(options, error, message):
    with pytest.raises(error, match=message):
        debug.bisect(MODEL, **{"inputs": FEEDS, **options})


def test_an_operator_that_onnxruntime_lacks_is_named():
    text = TEXT.replace('"" : 21', '"" : 21, "com.acme" : 1').replace("Sin (", "com.acme.Sine (")
    model = onnx.parser.parse_model(text)

    @operator("Sine", domain="com.acme")
    def sine(bb, x):
        return bb.emit(relax.op.sin(x))

    @sine.reference
    def _(x):
        return np.sin(x)

    try:
        with pytest.raises(ComparisonError, match=r"(?s)onnxruntime: .*against='reference'"):
            debug.bisect(model, FEEDS)
        assert debug.bisect(model, FEEDS, "reference").first is None
    finally:
        sine.undo.close()
        plugin.INTERACTIVE.operators.remove(sine)


# --- shapes and branches that are known as the model runs ---------------------------------------

BRANCH = onnx.parser.parse_model("""<ir_version: 11, opset_import: ["" : 21]>
  g (float[n, 4] x, bool chosen, int64 trips) => (float[n, 4] y, float[k] kept)
    <float row_bound = {1.0}> {
    a = Neg (x)
    b = If (chosen) <
      then_branch = t () => (float[n, 4] p) { p = Sin (a) },
      else_branch = e () => (float[n, 4] q) { q = Cos (x) }>
    z = Constant <value = bool {1}> ()
    c = Loop (trips, z, b) <body = l (int64 i, bool go, float[n, 4] s)
      => (bool on, float[n, 4] next) { on = Identity (go)  next = Mul (s, a) }>
    y = Exp (c)
    flat = Constant <value_ints = [-1]> ()
    row = Reshape (y, flat)
    m = Sub (row, row_bound)
    r = Relu (m)
    places = NonZero (r)
    zero = Constant <value_ints = [0]> ()
    at = Squeeze (places, zero)
    kept = Gather (row, at)
  }""")
BRANCH_FEEDS = {
    "x": RANDOM.normal(size=(3, 4)).astype("float32"),
    "chosen": np.array(True),
    "trips": np.array(3),
}


@pytest.mark.parametrize("against, level", [("onnxruntime", 0), ("reference", 3), (0, 1)])
def test_values_are_seen_whose_shapes_are_read_at_run_time(against, level):
    report = debug.bisect(BRANCH, BRANCH_FEEDS, against, opt_level=level)
    assert report.first is None
    types = {value.name: value.type for value in report.values}
    assert {"a", "c", "r", "kept"} <= types.keys()
    assert 0 < int(types["kept"].removeprefix("float32[").rstrip("]")) < 12
    if level == 0:
        assert {"b", "y", "row", "places", "at"} <= types.keys()


@pytest.mark.parametrize(
    "wrong, other, first, kept",
    [
        ("Sin", "Tan", "b", ["If"]),
        ("Mul", "Add", "c", ["Constant", "Loop"]),
    ],
)
def test_the_node_around_a_wrong_subgraph_is_named(wrong, other, first, kept, tmp_path):
    def exchange(model):
        for node in ir.traversal.RecursiveGraphIterator(model.graph):
            if node.op_type == wrong:
                node.op_type = other
        return model

    steps = pipeline.default(targets.resolve("llvm"), 0)
    steps = steps.insert("exchange", exchange, before="inline-functions")
    report = debug.bisect(BRANCH, BRANCH_FEEDS, steps=steps, save=tmp_path / "part.onnx")
    assert report.first.name == first
    part = onnx.load(report.submodel)
    assert [node.op_type for node in part.graph.node] == kept
    with np.load(tmp_path / "part.npz") as file:
        feeds = dict(file)
    (want,) = ReferenceEvaluator(part).run(None, feeds)
    (wrong,) = convert_and_build(part, steps=steps).run(None, feeds)
    assert np.abs(wrong - want).max() > 1e-3


def test_not_finite_values_of_a_branch_are_born_where_it_reads_finite_ones():
    model = onnx.parser.parse_model("""<ir_version: 11, opset_import: ["" : 21]>
      g (float[2] x, bool chosen) => (float[2] y) {
        a = Abs (x)
        b = If (chosen) <then_branch = t () => (float[2] p) { p = Log (a) },
                         else_branch = e () => (float[2] q) { q = Neg (a) }>
        y = Sqrt (b)
      }""")
    for x, born in (([0, 1], ["b"]), ([np.inf, 1], [])):
        feeds = {"x": np.array(x, "float32"), "chosen": np.array(True)}
        report = debug.bisect(model, feeds, opt_level=0)
        assert [value.name for value in report.births] == born


def test_a_difference_that_needs_what_follows_is_shown_by_the_whole_model(tmp_path):
    """A pass that breaks Sin only before Softmax."""

    def exchange(model):
        if any(node.op_type == "Softmax" for node in model.graph):
            for node in model.graph:
                node.op_type = "Cos" if node.op_type == "Sin" else node.op_type
        return model

    steps = pipeline.default(targets.resolve("llvm"), 0)
    steps = steps.insert("exchange", exchange, before="inline-functions")
    report = debug.bisect(MODEL, FEEDS, steps=steps, save=tmp_path / "part.onnx")
    assert report.first.name == "wave"
    part = onnx.load(report.submodel)
    assert [node.op_type for node in part.graph.node] == [n.op_type for n in MODEL.graph.node]
    assert np.load(tmp_path / "part.npz").files == ["x", "w"]
