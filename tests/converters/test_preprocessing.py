"""Feature preparation of ai.onnx.ml; oracles: onnxruntime, numpy."""

from functools import partial

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import tvm_ext
from tests.export import programs
from tests.onnxruntime_oracle import check_against_onnxruntime, contrib_model
from tests.oracle import check_node
from tests.uses import record
from tvm_ext import convert_and_build, load
from tvm_ext.errors import ConversionError, InputError, ModelError, RunError
from tvm_ext.executors.vm import VMExecutor

RNG = np.random.default_rng(0)
NAN = float("nan")
check = partial(check_against_onnxruntime, domain="ai.onnx.ml")


@pytest.mark.parametrize("shape", [(7,), (3, 7), (2, 3, 7)])
def test_array_feature_extractor(shape):
    x, indices = RNG.normal(size=shape).astype("float32"), np.array([[3, 0, 3, 6]])
    check("ArrayFeatureExtractor", [x, indices])


def test_binarizer():
    x = np.array([[-1, 0.5, 0.25, 2]], "float32")
    check("Binarizer", [x], {"threshold": 0.25})


def test_imputer():
    x = np.array([[1, NAN, 3], [NAN, 0, NAN]], "float32")
    attributes = {"imputed_value_floats": [7.0, 8, 9], "replaced_value_float": NAN}
    for symbolic in (), True:
        check("Imputer", [x], attributes, symbolic=symbolic)
    check("Imputer", [x], {"imputed_value_floats": [7.0]})
    check("Imputer", [np.array([[1, -1, 3]])], {"imputed_value_int64s": [7, 8, 9],
                                                "replaced_value_int64": -1})  # fmt: skip


@pytest.mark.parametrize("norm", ["MAX", "L1", "L2"])
def test_normalizer(norm):
    x = np.concatenate([RNG.uniform(size=(4, 5)), np.zeros((1, 5))]).astype("float32")
    check("Normalizer", [x], {"norm": norm}, symbolic=True)
    check("Normalizer", [np.array([[3, 4, 0]])], {"norm": norm}, types=["float32"])


def test_scaler():
    x = RNG.integers(-9, 9, (3, 4))
    attributes = {"offset": [1.0, 2, 3, 4], "scale": [0.5, 2, 1, 3]}
    check("Scaler", [x], attributes, types=["float32"])
    check("Scaler", [x], attributes, types=["float32"], symbolic=True)
    check("Scaler", [x], {"offset": [1.0], "scale": [0.5]}, types=["float32"])
    check("Scaler", [x], {"offset": [1.0], "scale": [0.5]}, types=["float32"], symbolic=True)


def test_feature_vectorizer():
    check("FeatureVectorizer", [RNG.integers(0, 9, (3, 2)), RNG.integers(0, 9, (3, 4))],
          {"inputdimensions": [2, 5]}, types=["float32"])  # fmt: skip


def test_one_hot_encoder():
    check("OneHotEncoder", [np.array([[3, 1], [7, 9]])], {"cats_int64s": [1, 3, 7], "zeros": 1},
          types=["float32"])  # fmt: skip


def test_one_hot_encoder_that_refuses_what_is_no_category():
    """onnxruntime fails too; known elements are refused when the model is built."""
    x, attributes = np.array([[3, 1], [7, 3]]), {"cats_int64s": [1, 3, 7], "zeros": 0}
    check("OneHotEncoder", [x], attributes, types=["float32"])
    x[1, 1] = 2
    model = contrib_model("OneHotEncoder", [x], attributes, domain="ai.onnx.ml", types=["float32"])
    with pytest.raises(RunError, match="the number of elements that are no category is 1, not 0"):
        convert_and_build(model, "llvm").run(None, {"x0": x})


@pytest.mark.parametrize("size", [1, 4, 5])
def test_label_encoder_of_numbers(size):
    keys = RNG.permutation(9)[:size]
    x = RNG.integers(-2, 11, (3, 7))
    attributes = {"keys_int64s": keys.tolist(), "values_floats": RNG.normal(size=size).tolist(),
                  "default_float": -0.5}  # fmt: skip
    check("LabelEncoder", [x], attributes, version=2, types=["float32"])


def test_label_encoder_of_nan_and_tensors():
    x = np.array([[1.5, NAN], [-3, 2]], "float32")
    attributes = {"keys_floats": [NAN, 1.5, -3.0], "values_int64s": [7, 8, 9], "default_int64": 4}
    check("LabelEncoder", [x], attributes, version=4, types=["int64"])
    tensor = numpy_helper.from_array
    attributes = {"keys_tensor": tensor(np.array([2.5, NAN])),
                  "values_tensor": tensor(np.array([5, -6], "int16")),
                  "default_tensor": tensor(np.array([3], "int16"))}  # fmt: skip
    check_node("LabelEncoder", [np.array([NAN, 2.5, 1])], attributes, domain="ai.onnx.ml", opset=4,
               expected=[np.array([-6, 5, 3], "int16")])  # fmt: skip


def zip_map(labels, declared, shape=("n", 3)):
    """Three classes, whose scores a softmax gives; ``declared``: the results have their types."""
    name = "classlabels_strings" if isinstance(labels[0], str) else "classlabels_int64s"
    nodes = [
        helper.make_node("Softmax", ["x"], ["scores"]),
        helper.make_node("ZipMap", ["scores"], ["maps"], domain="ai.onnx.ml", **{name: labels}),
    ]
    key = TensorProto.STRING if isinstance(labels[0], str) else TensorProto.INT64
    kind = helper.make_map_type_proto(key, helper.make_tensor_type_proto(TensorProto.FLOAT, ()))
    kind = helper.make_sequence_type_proto(kind)
    maps = onnx.ValueInfoProto(name="maps", type=kind)
    graph = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)], [maps]
    )
    if declared:
        graph.value_info.append(maps)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 3)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=9)


@pytest.mark.parametrize("labels", [[7, -1, 2**40], ["a", "b", "ü"]])
@pytest.mark.parametrize("declared", [False, True])
def test_maps_from_labels_to_scores(labels, declared, tmp_path):
    model = zip_map(labels, declared)
    x = np.random.default_rng(0).standard_normal((4, 3)).astype("float32")
    session = onnxruntime.InferenceSession(model.SerializeToString())
    (wanted,) = session.run(None, {"x": x})
    built = convert_and_build(model, "llvm", shapes={"n": 4} if declared else None)
    assert not isinstance(built.executor, VMExecutor)
    (info,) = built.outputs
    assert str(info.type) == f"seq(map({'string' if labels[0] == 'a' else 'int64'}, float32))"
    built.save(tmp_path / "m.so")
    for compiled in built, load(tmp_path / "m.so"):
        assert compiled(x) == [pytest.approx(row, rel=1e-5) for row in wanted]
    record(model)


@pytest.mark.parametrize(("shape", "count"), [((5,), 5), ((2, 12), 12), ((12,), 12), ((0, 3), 3)])
def test_maps_of_any_number(shape, count):
    model = zip_map([f"label {k}" for k in range(count)], False, shape)
    x = RNG.normal(size=shape).astype("float32")
    session = onnxruntime.InferenceSession(model.SerializeToString())
    (wanted,) = session.run(None, {"x": x})
    assert convert_and_build(model, "llvm")(x) == [pytest.approx(row, rel=1e-5) for row in wanted]


def test_of_maps_c_code_computes_the_scores(tmp_path):
    package = tvm_ext.export(zip_map([7, 5, 9], False, (2, 3)), tmp_path / "package", name="maps")
    assert "float32[2, 3]" in (package / "maps.h").read_text()
    program = programs.compiled(package, ["main.c"])
    assert programs.ran(program, package).splitlines()[-1] == "correct"


def test_labels_that_do_not_fit_the_scores_are_named():
    with pytest.raises(ConversionError, match=r"ZipMap.*3 labels for 5 columns"):
        convert_and_build(zip_map([1, 2, 3], False, (2, 5)), "llvm")
    built = convert_and_build(zip_map([1, 2, 3], False, (2, "c")), "llvm")
    with pytest.raises(RunError, match=r"ZipMap.*3 labels for 5 columns"):
        built(np.zeros((2, 5), "float32"))


@pytest.mark.parametrize("op_type", ["Neg", "SequenceLength", "Identity"])
def test_of_lists_of_maps_nothing_is_computed(op_type):
    model = zip_map([1, 2, 3], False)
    model.graph.node.append(helper.make_node(op_type, ["maps"], ["y"]))
    model.graph.output[0].name = "y"
    if op_type == "Identity":
        x = np.zeros((1, 3), "float32")
        assert convert_and_build(model, "llvm")(x)[0].keys() == {1, 2, 3}
    else:
        with pytest.raises(ConversionError, match=rf"{op_type}.*input 'maps' is a list of maps"):
            convert_and_build(model, "llvm")


def of_map(op_type, key, value, result, **attributes):
    """One node that reads a map from ``key`` to ``value``."""
    scalar = helper.make_tensor_type_proto(value, ())
    x = onnx.ValueInfoProto(name="x", type=helper.make_map_type_proto(key, scalar))
    node = helper.make_node(op_type, ["x"], ["y"], domain="ai.onnx.ml", **attributes)
    y = helper.make_tensor_value_info("y", result, (1, "n"))
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 3)]
    graph = helper.make_graph([node], "g", [x], [y])
    return helper.make_model(graph, opset_imports=opsets, ir_version=9)


T = TensorProto


@pytest.mark.parametrize(
    ("node", "feeds"),
    [
        (
            of_map("DictVectorizer", T.STRING, T.FLOAT, T.FLOAT, string_vocabulary=["a", "b", "c"]),
            [{"zz": 5.0, "c": 1.5, "a": NAN}, {"b": 2.0}],
        ),
        (
            of_map("DictVectorizer", T.INT64, T.FLOAT, T.FLOAT, int64_vocabulary=[7, -1, 5]),
            [{5: 2.0, 7: 5.0, 2**40: 1.0}, {-1: 0.25}],
        ),
        (of_map("CastMap", T.INT64, T.FLOAT, T.FLOAT), [{7: 2.0, -5: 3.5}, {1: 1.0}]),
        (
            of_map("CastMap", T.INT64, T.FLOAT, T.INT64, cast_to="TO_INT64"),
            [{7: 2.7, 5: -3.5}, {1: 1.0}],
        ),
        (
            of_map("CastMap", T.INT64, T.FLOAT, T.FLOAT, map_form="SPARSE", max_map=6),
            [{7: 2.0, 5: 3.5, 0: 1.0}, {9: 1.0}],
        ),
    ],
)
def test_maps_as_inputs(node, feeds, tmp_path):
    session = onnxruntime.InferenceSession(node.SerializeToString())
    built = convert_and_build(node, "llvm")
    key, value = str(built.inputs[0].type)[4:-1].split(", ")
    assert f"map({key},tensor({value.removesuffix('32')}))" == session.get_inputs()[0].type
    built.save(tmp_path / "m.so")
    for compiled in built, load(tmp_path / "m.so"):
        for feed in feeds:
            (wanted,) = session.run(None, {"x": feed})
            np.testing.assert_array_equal(compiled(feed), wanted)
    record(node)


def test_maps_that_onnxruntime_takes_from_nobody():
    """Maps to strings, which its Python face reads wrongly, and empty ones, which it refuses."""
    node = of_map("CastMap", T.INT64, T.STRING, T.FLOAT, cast_to="TO_FLOAT")
    built = convert_and_build(node, "llvm")
    np.testing.assert_array_equal(built({7: "2.5", -3: "4e1"}), np.array([[40, 2.5]], "float32"))
    assert built({}).shape == (1, 0)
    node = of_map("DictVectorizer", T.INT64, T.STRING, T.STRING, int64_vocabulary=[7, 1])
    built = convert_and_build(node, "llvm")
    assert built({1: "ü", 2: "x"}).tolist() == [["", "ü"]]
    assert built({}).tolist() == [["", ""]]


def test_what_is_no_such_map_is_named():
    built = convert_and_build(of_map("CastMap", T.INT64, T.FLOAT, T.FLOAT), "llvm")
    for feed, reason in (
        ([1.0], "'x' is map.*give a dict, not list"),
        ({"a": 1.0}, "keys of x"),
        ({1: "a"}, "values of x"),
        ({1: [2.0, 3.0]}, "values of x"),
        ({2**70: 1.0}, "keys of x"),
    ):
        with pytest.raises(InputError, match=reason):
            built(feed)
    model = of_map("CastMap", T.INT64, T.FLOAT, T.FLOAT, map_form="NONE")
    with pytest.raises(ConversionError, match=r"CastMap.*map_form is 'NONE'"):
        convert_and_build(model, "llvm")


def test_maps_inside_of_something_else_are_refused():
    model = zip_map([1, 2, 3], False)
    model.graph.input[0].type.CopyFrom(model.graph.output[0].type)
    with pytest.raises(ModelError, match=r"input 'x' .* holds maps inside"):
        convert_and_build(model, "llvm")
