"""Loading: what is read, what is refused, by which error, and sizes for symbolic dims."""

import os
import random

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper, parser
from tvm_ext.frontend import Limits, convert, load, specialise

from tvm_ext import convert_and_build
from tvm_ext.errors import ConversionError, InputError, ModelError, ModelLimitError
from tvm_ext.inspect import inspect_model

ADD = """
<ir_version: 8, opset_import: ["" : 17]>
g (float[N, 4] x) => (float[N, 4] y) <float[4] w = {1, 2, 3, 4}> { y = Add(x, w) }
"""


@pytest.fixture
def add():
    return parser.parse_model(ADD)


def external(location, size=4, **entries):
    """A model whose only initializer lies in the file ``location``."""
    tensor = TensorProto(name="w", data_type=1, dims=[size], data_location=TensorProto.EXTERNAL)
    for key, value in {"location": location, **entries}.items():
        tensor.external_data.add(key=key, value=str(value))
    graph = helper.make_graph(
        [helper.make_node("Add", ["x", "w"], ["y"])], "g",
        [helper.make_tensor_value_info("x", 1, [size])],
        [helper.make_tensor_value_info("y", 1, [size])], [tensor],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.fixture
def folder(tmp_path):
    """A model's folder with links to a file outside it."""
    inside = tmp_path / "model"
    inside.mkdir()
    (tmp_path / "secret").write_bytes(bytes(16))
    (inside / "weights").write_bytes(np.arange(4, dtype="float32").tobytes())
    (inside / "symlink").symlink_to("../secret")
    (inside / "inner_symlink").symlink_to("weights")
    os.link(tmp_path / "secret", inside / "hardlink")
    return inside


def test_every_kind_of_source_gives_the_same_model(add, tmp_path):
    path = tmp_path / "add.onnx"
    onnx.save(add, path)
    given = ir.from_proto(add)
    for source in (path, str(path), path.read_bytes(), bytearray(path.read_bytes()), add, given):
        model = load(source)
        assert [node.op_type for node in model.graph] == ["Add"]
        assert model is not given


@pytest.mark.parametrize("content, reason", [
    (b"", "no graph"), (b"\x00garbage" * 9, "not an ONNX model"), (b"\x08\x07", "no graph"),
])  # fmt: skip
def test_a_file_that_is_no_model(content, reason, tmp_path):
    path = tmp_path / "model.onnx"
    path.write_bytes(content)
    with pytest.raises(ModelError, match=reason):
        load(path)
    with pytest.raises(ModelError, match=reason):
        load(content)


def test_a_path_that_is_no_file(tmp_path):
    with pytest.raises(ModelError, match="no such file"):
        load(tmp_path / "absent.onnx")
    with pytest.raises(ModelError, match="no regular file"):
        load(tmp_path)
    with pytest.raises(ModelError, match="cannot read"):
        load("nul\0l.onnx")
    with pytest.raises(ModelError, match="cannot read a model from int"):
        load(7)


def test_a_truncated_file(add):
    data = add.SerializeToString()
    with pytest.raises(ModelError):
        load(data[: len(data) // 2])


def test_seeded_damage_gives_only_our_errors(add):
    random.seed(0)
    data = add.SerializeToString()
    outcomes = set()
    for _ in range(400):
        damaged = bytearray(data)
        for _ in range(random.randint(1, 3)):
            damaged[random.randrange(len(data))] ^= 1 << random.randrange(8)
        try:
            model = load(bytes(damaged[: random.choice((len(data), random.randrange(len(data))))]))
            convert(model)
            outcomes.add("converted")
        except (ModelError, ConversionError) as error:
            outcomes.add(type(error).__name__)
    assert {"converted", "ModelError", "ConversionError"} <= outcomes


def test_external_data_beside_the_model(folder):
    onnx.save(external("weights"), folder / "m.onnx")
    tensor = load(folder / "m.onnx").graph.initializers["w"].const_value
    np.testing.assert_array_equal(tensor.numpy(), np.arange(4))


@pytest.mark.parametrize("location", [
    "symlink", "inner_symlink", "hardlink", "../secret", "sub/../../secret", "%2e%2e/secret",
    "absent", "", ".", "weights\0",
])  # fmt: skip
def test_external_data_elsewhere_is_refused(location, folder):
    (folder / "m.onnx").write_bytes(external(location).SerializeToString())
    with pytest.raises(ModelError, match="w"):
        load(folder / "m.onnx")


def test_external_data_that_is_not_there_is_named(folder):
    (folder / "m.onnx").write_bytes(external("absent").SerializeToString())
    with pytest.raises(ModelError, match="'w' in the file absent, which is not there"):
        load(folder / "m.onnx")


def test_an_absolute_location_is_refused(folder):
    (folder / "m.onnx").write_bytes(external(folder / "weights").SerializeToString())
    with pytest.raises(ModelError, match="relative"):
        load(folder / "m.onnx")


@pytest.mark.parametrize("size, entries", [
    (1000, {}), (4, {"offset": 8}), (4, {"offset": 1 << 60}), (4, {"offset": -4}),
    (4, {"offset": "x"}), (4, {"length": "x"}), (4, {"length": -1}),
])  # fmt: skip
def test_external_data_shorter_than_declared_is_refused(size, entries, folder):
    (folder / "m.onnx").write_bytes(external("weights", size, **entries).SerializeToString())
    with pytest.raises(ModelError):
        load(folder / "m.onnx")


def test_external_data_that_is_cut_short_is_named(folder):
    (folder / "m.onnx").write_bytes(external("weights", 5).SerializeToString())
    with pytest.raises(ModelError, match=r"'w': weights has 16 bytes, but .* takes 20 from byte 0"):
        load(folder / "m.onnx")


@pytest.mark.parametrize("length", [0, 12, 20, 1 << 40])
def test_external_data_of_another_length_than_declared_is_refused(length, folder):
    (folder / "m.onnx").write_bytes(external("weights", length=length).SerializeToString())
    with pytest.raises(ModelError, match=rf"'w': {length} bytes of weights.* takes 16"):
        load(folder / "m.onnx")
    (folder / "m.onnx").write_bytes(external("weights", length=16).SerializeToString())
    load(folder / "m.onnx")


def test_external_data_needs_a_path(folder):
    with pytest.raises(ModelError, match="give the path"):
        load(external("weights"))


def test_two_opsets_of_one_domain(add):
    add.opset_import.add(domain="ai.onnx", version=13)
    with pytest.raises(ModelError, match=r"two opsets of the domain ai\.onnx: 17 and 13"):
        load(add)


@pytest.mark.parametrize("shapes, inputs", [
    ({"N": 1 << 62}, "'x'"), ({"N": 1 << 20}, "'y'"),
])  # fmt: skip
def test_sizes_given_later_are_limited_too(add, shapes, inputs):
    add.graph.node[0].op_type = "Sub"
    wide = numpy_helper.from_array(np.ones((1024, 1, 4), "float32"), "w")
    add.graph.initializer[0].CopyFrom(wide)
    add.graph.output[0].type.tensor_type.ClearField("shape")
    loaded = load(add)
    specialise(loaded, shapes)
    with pytest.raises(ModelLimitError, match=inputs):
        convert(loaded, Limits(bytes=1 << 30))


def test_an_input_without_an_element_type(add):
    add.graph.input[0].type.tensor_type.elem_type = 0
    with pytest.raises(ModelError, match="'x' has no element type"):
        convert(load(add))


def test_versions_that_are_not_known(add):
    add.opset_import[0].version = 1000
    with pytest.raises(ModelError, match=r"needs opset 1000; .* update onnx"):
        load(add)
    add.opset_import[0].version = 17
    add.ir_version = 1000
    with pytest.raises(ModelError, match="IR version 1000"):
        load(add)


def test_the_other_name_of_the_default_domain(add):
    add.opset_import[0].domain = "ai.onnx"
    assert load(add).graph.opset_imports == {"": 17}


@pytest.mark.parametrize("body, reason", [
    ("a = Relu(b) b = Relu(a) y = Add(x, b)", "cycle"),
    ("y = Relu(x) y = Neg(x)", "redeclared"),
    ("y = Relu(missing)", r"input 'missing' of node '' \(Relu\) is no output of a node"),
    ("y = Relu <colour = 1> (x)", r"Unrecognized attribute: colour .* in node '' \(Relu\)$"),
    ("y = Concat <axis = 0, axis = 1> (x, x)", "axis"),
])  # fmt: skip
def test_graphs_that_contradict_themselves(body, reason):
    model = parser.parse_model(
        f'<ir_version: 8, opset_import: ["" : 17]> g (float[4] x) => (float[4] y) {{ {body} }}'
    )
    with pytest.raises(ModelError, match=reason):
        load(model)


def test_nodes_stand_in_any_order(tmp_path):
    """As onnxruntime reads them; a branch reads a node that stands behind its If, too."""
    model = parser.parse_model("""<ir_version: 8, opset_import: ["" : 17]>
        g (float[4] x, bool c) => (float[4] y) {
            y = Neg(z)
            z = If (c) <then_branch = t () => (float[4] p) { p = Relu(q)  q = Abs(w) },
                        else_branch = e () => (float[4] r) { r = Identity(w) }>
            w = Add(x, x)
        }""")
    onnx.save(model, tmp_path / "model.onnx")
    x = np.array([1, -2, 3, -4], "float32")
    for given in (model, str(tmp_path / "model.onnx")):
        built = convert_and_build(given, "llvm", opt_level=0)
        for c, expected in ((True, -2 * abs(x)), (False, -2 * x)):
            np.testing.assert_array_equal(built.run(None, {"x": x, "c": np.array(c)})[0], expected)
    assert [node.op_type for node in model.graph.node] == ["Neg", "If", "Add"]


def test_outputs_that_are_declared_again_have_names_of_their_own(add):
    for _ in range(2):
        add.graph.output.append(add.graph.output[0])
    name = add.graph.output[0].name
    built = convert_and_build(add, "llvm", opt_level=0)
    assert [info.name for info in built.outputs] == [name, f"{name}_2", f"{name}_3"]
    results = built.run(None, {"x": np.ones((3, 4), "float32")})
    assert len(results) == 3
    for result in results:
        np.testing.assert_array_equal(result, [[2, 3, 4, 5]] * 3)


def test_a_cycle_in_an_onnx_ir_model():
    a, b = ir.node("Relu", [None]), ir.node("Relu", [None])
    a.replace_input_with(0, b.outputs[0])
    b.replace_input_with(0, a.outputs[0])
    graph = ir.Graph([], [b.outputs[0]], nodes=[a, b], opset_imports={"": 17})
    with pytest.raises(ModelError, match=r"the given model is not valid.*graph\.sort\(\)"):
        load(ir.Model(graph, ir_version=8))


def nested(depth):
    """``If`` nodes in each other's branches; each branch reads ``c`` from the outermost graph."""
    flag = helper.make_tensor_value_info("y0", TensorProto.BOOL, [])
    graph = helper.make_graph([helper.make_node("Identity", ["c"], ["y0"])], "g", [], [flag])
    for level in range(1, depth):
        node = onnx.NodeProto(op_type="If", input=["c"], output=[f"y{level}"])
        leaf = helper.make_graph([helper.make_node("Not", ["c"], [f"n{level}"])], "leaf", [], [
            helper.make_tensor_value_info(f"n{level}", TensorProto.BOOL, [])])  # fmt: skip
        for name, branch in ("then_branch", graph), ("else_branch", leaf):
            attribute = node.attribute.add(name=name, type=onnx.AttributeProto.GRAPH)
            attribute.g.CopyFrom(branch)
        graph = onnx.GraphProto(name="g", node=[node])
        graph.output.append(helper.make_tensor_value_info(f"y{level}", TensorProto.BOOL, []))
    graph.input.append(helper.make_tensor_value_info("c", TensorProto.BOOL, []))
    return onnx.ModelProto(
        ir_version=8, graph=graph, opset_import=[helper.make_opsetid("", 17)]
    )  # fmt: skip


def test_captured_names_in_nested_graphs_load():
    assert len(list(ir.traversal.RecursiveGraphIterator(load(nested(5)).graph))) == 9


def test_nesting_is_limited():
    with pytest.raises(ModelLimitError, match="5 levels of nested graphs, over the limit of 4"):
        load(nested(5), Limits(nesting=4))


def test_nesting_deeper_than_the_stack_is_a_limit_error():
    inner = ir.Graph([], [], nodes=[], opset_imports={"": 17})
    for _ in range(5000):
        node = ir.Node("", "If", [], [ir.AttrGraph("then_branch", inner)])
        inner = ir.Graph([], [], nodes=[node], opset_imports={"": 17})
    with pytest.raises(ModelLimitError, match="5000 levels"):
        load(ir.Model(inner, ir_version=8))


def test_functions_that_would_explode_are_counted_as_inlined():
    functions = "".join(
        f'<opset_import: ["" : 17, "f" : 1], domain: "f"> f{k} (x) => (y) '
        f"{{ a = f.f{k + 1}(x) y = f.f{k + 1}(a) }}\n" for k in range(40)
    )  # fmt: skip
    model = parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17, "f" : 1]>'
        "g (float[4] x) => (float[4] y) { y = f.f0(x) }\n" + functions
        + '<opset_import: ["" : 17], domain: "f"> f40 (x) => (y) { y = Relu(x) }'
    )  # fmt: skip
    with pytest.raises(ModelLimitError, match="nodes, over the limit"):
        load(model)


def test_functions_that_call_each_other_in_a_cycle():
    model = parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17, "f" : 1]>'
        "g (float[4] x) => (float[4] y) { y = f.a(x) }\n"
        '<opset_import: ["" : 17, "f" : 1], domain: "f"> a (x) => (y) { y = f.b(x) }\n'
        '<opset_import: ["" : 17, "f" : 1], domain: "f"> b (x) => (y) { y = f.a(x) }\n'
    )
    with pytest.raises(ModelError, match="cycle"):
        load(model)


def test_bytes_and_nodes_are_limited(add, tmp_path):
    onnx.save(add, tmp_path / "add.onnx")
    for source in tmp_path / "add.onnx", add.SerializeToString():
        with pytest.raises(ModelLimitError, match="over the limit of 10"):
            load(source, Limits(bytes=10))
    with pytest.raises(ModelLimitError, match="1 nodes"):
        load(add, Limits(nodes=0))


@pytest.mark.parametrize("op_type", ["Tile", "Expand"])
@pytest.mark.parametrize("count", [1 << 62, 1 << 35])
def test_a_huge_result_is_refused_without_computing_it(op_type, count):
    """Neither here nor by onnx, whose inference would give each element a dim."""
    model = parser.parse_model(f"""<ir_version: 8, opset_import: ["" : 17]>
        g (float[n] x) => (float[m] y) <int64[1] one = {{1}}, int64[1] k = {{{count}}}> {{
            z = {op_type}(one, k)
            y = Cast<to = 1>(z)
        }}""")
    with pytest.raises(ModelLimitError, match=f"'z' has the shape .{count}."):
        convert_and_build(model, "llvm")


def test_huge_declared_sizes_are_refused_without_allocating(add):
    add.graph.input[0].type.tensor_type.shape.dim[1].dim_value = 1 << 60
    with pytest.raises(ModelLimitError, match="'x' has the shape"):
        load(add)


def test_an_initializer_that_lies_about_its_size(add):
    add.graph.initializer[0].dims[0] = 1 << 60
    with pytest.raises(ModelError):
        load(add)
    add.graph.initializer[0].CopyFrom(numpy_helper.from_array(np.ones(4, "float32"), "w"))
    add.graph.initializer[0].raw_data = b"123"
    with pytest.raises(ModelError, match="w"):
        load(add)


def test_a_negative_dim_is_refused(add):
    add.graph.input[0].type.tensor_type.shape.dim[1].dim_value = -2
    with pytest.raises(ModelError, match="'x'"):
        load(add)


@pytest.mark.parametrize("dim", [{"dim_value": -1}, {"dim_param": "?"}, {"dim_param": "None"}])
def test_dims_of_any_size_as_exporters_write_them(dim):
    """PaddlePaddle has -1 and ?: dims of that name are not equal."""
    model = parser.parse_model("""<ir_version: 8, opset_import: ["" : 17]>
    g (float[a, b] x) => (float[a, b] y) { z = Neg(x)  y = Neg(z) }""")
    for value in (*model.graph.input, *model.graph.output):
        for declared in value.type.tensor_type.shape.dim:
            declared.CopyFrom(onnx.TensorShapeProto.Dimension(**dim))
    x = np.arange(6, dtype="float32").reshape(2, 3)
    np.testing.assert_array_equal(convert_and_build(model, "llvm")(x), x)


MATCHED = """
<ir_version: 8, opset_import: ["" : 17]>
g (float[N, M] a, float[N, ?] b, float[2] c) => (float[P, Q] y)
{ s = Add(a, a) t = Concat <axis = 0> (b, b) y = MatMul(s, t) }
"""


@pytest.fixture
def matched():
    return load(parser.parse_model(MATCHED))


def shapes_of(model):
    return [list(value.shape) for value in model.graph.inputs]


def test_sizes_by_dim_name_and_by_input_name(matched):
    specialise(matched, {"N": 3, "b": [None, np.int64(5)], "c": (2,)})
    assert shapes_of(matched) == [[3, "M"], [3, 5], [2]]


def test_shapes_named_for_the_general_sizes_are_dropped(matched):
    specialise(matched, {"N": 3})
    assert [dim.value for dim in matched.graph.outputs[0].shape] == [None, None]


@pytest.mark.parametrize("shapes, reason", [
    ({"N": 3, "a": [4, 2]}, "'N' is given two values: 3 and 4"),
    ({"a": [4, 2], "b": [3, 5]}, "'N' is given two values"),
    ({"c": [3]}, "axis 0 is 2, not 3"),
    ({"a": [1]}, "rank 2, not 1"),
    ({"K": 1}, "no symbolic dim 'K'; the model has .'M', 'N'."),
    ({"z": [1]}, "no input 'z'"),
    ({"a": 3}, "'a' needs a shape"),
    ({"N": -1}, "-1 is not a size"),
    ({"N": 1.5}, "1.5 is not a size"),
    ({"N": "x"}, "'x' is not a size"),
    ({"c": ["x"]}, "c axis 0: 'x' is not a size"),
])  # fmt: skip
def test_sizes_that_do_not_fit(matched, shapes, reason):
    with pytest.raises(ModelError, match=reason):
        specialise(matched, shapes)


def unshaped(model):
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.ClearField("shape")
    return model


def test_ports_without_a_shape_load(add):
    given = unshaped(add)
    loaded = load(given)
    assert [value.shape for value in (*loaded.graph.inputs, *loaded.graph.outputs)] == [None] * 2
    assert not given.graph.output[0].type.tensor_type.HasField("shape")


UNTYPED = """<ir_version: 10, opset_import: ["" : 23]> g (float[N, 2] x) => (y) {
    b = Neg (x)
    y = Relu (b)
}"""


@pytest.mark.parametrize("declare", [
    lambda output: None,
    lambda output: output.type.tensor_type.SetInParent(),
    lambda output: [output.type.tensor_type.shape.dim.add() for _ in range(2)],
])  # fmt: skip
def test_an_output_without_a_type_has_the_one_that_its_node_gives(declare, tmp_path):
    """As onnxruntime has it; onnx's checker wants it declared."""
    model = parser.parse_model(UNTYPED)
    declare(model.graph.output[0])
    model.graph.value_info.add(name="b")
    path = tmp_path / "m.onnx"
    onnx.save(model, path)
    for given in (path, path.read_bytes(), model, ir.from_proto(model)):
        (output,) = convert_and_build(given, "llvm", opt_level=0).outputs
        assert (output.name, output.shape, output.dtype) == ("y", ("N", 2), "float32")
        assert str(inspect_model(given).outputs[0]) == "y: float32[N, 2]"


@pytest.mark.parametrize("ports", ["(float[2] x) => (x)", "(float[2] x) => (w) <float[2] w={1,2}>"])
def test_an_output_without_a_type_that_no_node_gives(ports):
    model = parser.parse_model(f'<ir_version: 10, opset_import: ["" : 23]> g {ports} {{ }}')
    (output,) = convert_and_build(model, "llvm", opt_level=0).outputs
    assert (output.shape, output.dtype) == ((2,), "float32")


def test_an_input_without_a_type_is_refused(tmp_path):
    model = parser.parse_model(
        '<ir_version: 10, opset_import: ["" : 23]> g (x) => (float[2] y) { y = Relu (x) }'
    )
    onnx.save(model, tmp_path / "m.onnx")
    for given in (tmp_path / "m.onnx", model, ir.from_proto(model)):
        with pytest.raises(ModelError, match=r"input 'x' of .* has no type: declare"):
            load(given)


@pytest.mark.parametrize("change", [
    lambda model: model.graph.output[0].ClearField("type"),
    lambda model: model.graph.node.insert(0, helper.make_node("Relu", ["y"], ["z"])),
    lambda model: setattr(model, "ir_version", 3),
])  # fmt: skip
def test_external_data_of_what_the_checker_refuses(change, folder):
    """Types that are not declared, nodes in another order, initializers that early models had among
    their inputs: links are refused all the same."""
    for location in ("weights", "symlink", "inner_symlink", "hardlink"):
        model = external(location)
        change(model)
        onnx.save(model, folder / "m.onnx")
        if location == "weights":
            assert len(load(folder / "m.onnx").graph.initializers) == 1
        else:
            with pytest.raises(ModelError, match="link"):
                load(folder / "m.onnx")


def test_initializers_of_early_models_need_not_be_inputs(add):
    add.ir_version = 3
    built = convert_and_build(add, "llvm", opt_level=0)
    np.testing.assert_array_equal(built(np.zeros((1, 4), "float32")), [[1, 2, 3, 4]])


def test_graphs_need_no_name(add):
    add.graph.ClearField("name")
    assert convert_and_build(add, "llvm", opt_level=0).outputs[0].name == "y"


def test_an_input_that_is_an_output_too_keeps_its_dims():
    model = parser.parse_model(
        '<ir_version: 10, opset_import: ["" : 21]> '
        "g (float[2, N] x) => (float[A, B] x, float[2, N] y) { y = Neg (x) }"
    )
    built = convert_and_build(model, "llvm", opt_level=0)
    assert built.inputs[0].shape == (2, "N")
    with pytest.raises(InputError, match="x"):
        built(np.zeros((3, 4), "float32"))


def sparse(indices, dims=(2, 3), values=(5.0, 7.0)):
    """x + w, where w is a sparse initializer."""
    model = parser.parse_model(
        '<ir_version: 10, opset_import: ["" : 21]> g (float[2, 3] x) => (float[2, 3] y) '
        "{ y = Add (x, w) }"
    )
    tensor = model.graph.sparse_initializer.add(dims=dims)
    tensor.values.CopyFrom(numpy_helper.from_array(np.array(values, "float32"), "w"))
    tensor.indices.CopyFrom(numpy_helper.from_array(np.array(indices), "w_indices"))
    return model


@pytest.mark.parametrize("indices", [[1, 5], [[0, 1], [1, 2]]])
def test_a_sparse_initializer_is_a_dense_one(indices):
    built = convert_and_build(sparse(indices), "llvm", opt_level=0)
    np.testing.assert_array_equal(built(np.zeros((2, 3), "float32")), [[0, 5, 0], [0, 0, 7]])


@pytest.mark.parametrize("place", ["graph", "branch", "function"])
def test_a_sparse_constant_is_a_dense_one(place):
    nodes = "{ c = Constant () y = Add (x, c) }"
    head = '<ir_version: 10, opset_import: ["" : 21, "f" : 1]> '
    model = parser.parse_model(head + {
        "graph": f"g (float[2, 3] x) => (float[2, 3] y) {nodes}",
        "branch": "g (float[2, 3] x, bool p) => (float[2, 3] z) { z = If (p) <then_branch = t () "
                  f"=> (float[2, 3] y) {nodes}, else_branch = e () => (float[2, 3] u) "
                  "{ u = Identity (x) }> }",
        "function": "g (float[2, 3] x) => (float[2, 3] z) { z = f.plus (x) } "
                    f'<domain: "f", opset_import: ["" : 21]> plus (x) => (y) {nodes}',
    }[place])  # fmt: skip
    values = sparse([1, 5]).graph.sparse_initializer[0]
    scopes = {"graph": model.graph, "function": (model.functions or [None])[0]}
    if place == "branch":
        scopes[place] = model.graph.node[0].attribute[0].g
    constant = scopes[place].node[0]
    constant.attribute.add(
        name="sparse_value", type=onnx.AttributeProto.SPARSE_TENSOR
    ).sparse_tensor.CopyFrom(values)
    feeds = {"x": np.zeros((2, 3), "float32")} | (
        {"p": np.array(True)} if place == "branch" else {}
    )
    (y,) = convert_and_build(model, "llvm", opt_level=0).run(None, feeds)
    np.testing.assert_array_equal(y, [[0, 5, 0], [0, 0, 7]])


@pytest.mark.parametrize("given, reason", [
    (sparse([1, 6]), "do not fit"), (sparse([-1, 2]), "do not fit"), (sparse([1]), "do not fit"),
    (sparse([[0, 1], [2, 0]]), "invalid entry"), (sparse([0, 1], (1 << 40, 1 << 20)), "over the"),
    (sparse([5, 1]), "sorted"), (sparse([0, 1], (-2, -3)), "w"),
])  # fmt: skip
def test_a_sparse_initializer_that_is_none(given, reason):
    with pytest.raises(ModelError, match=reason):
        load(given)


def test_an_input_of_unknown_rank_needs_its_shape_from_the_caller(add):
    given = unshaped(add)
    with pytest.raises(ModelError, match="no shape: give its rank by shapes"):
        convert(load(given))
    loaded = load(given)
    specialise(loaded, {"x": [None, 4]})
    (output,) = convert(loaded).outputs.values()
    assert int(output.shape[1]) == 4
