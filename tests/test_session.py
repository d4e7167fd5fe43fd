"""InferenceSession and the Backend API: what scripts written for onnxruntime and onnx expect."""

import numpy as np
import onnx
import onnxruntime
import pytest
import tvm
from onnx import helper, parser

import tvm_ext
from tvm_ext import InferenceSession, backend, errors

MODEL = parser.parse_model("""
<ir_version: 9, opset_import: ["" : 17], producer_name: "tests", model_version: 7,
 metadata_props: ["classes" : "3"]>
net (float[n, 3] x, int64[1] k) => (float[n, 3] y, double[n] z)
<int64[1] last = {1}> {
  w = Cast <to = 1> (k)
  y = Add (x, w)
  s = ReduceSum <keepdims = 0> (y, last)
  z = Cast <to = 11> (s)
}""")
FEEDS = {"x": np.arange(6, dtype="float32").reshape(2, 3), "k": np.array([1])}


@pytest.fixture(scope="module")
def pair():
    theirs = onnxruntime.InferenceSession(
        MODEL.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    return InferenceSession(MODEL), theirs


def test_inputs_outputs_and_metadata_read_as_theirs(pair):
    ours, theirs = pair
    for ask in "get_inputs", "get_outputs":
        got, expected = ([(i.name, i.shape, i.type) for i in getattr(s, ask)()] for s in pair)
        assert got == expected
    for field in (
        "producer_name",
        "graph_name",
        "domain",
        "description",
        "version",
        "custom_metadata_map",
    ):
        assert getattr(ours.get_modelmeta(), field) == getattr(theirs.get_modelmeta(), field), field


@pytest.mark.parametrize("names", [None, [], ["z"], ["z", "y"]], ids=str)
def test_runs_answer_as_theirs(pair, names):
    results = [session.run(names, FEEDS, None) for session in pair]
    assert len(results[0]) == len(results[1])
    for got, expected in zip(*results, strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-6)
        assert got.dtype == expected.dtype


def test_the_usual_ways_to_make_a_session(tmp_path):
    onnx.save(MODEL, tmp_path / "model.onnx")
    options = onnxruntime.SessionOptions()
    cpu = ["CPUExecutionProvider"]
    for arguments, keywords in (
        ((str(tmp_path / "model.onnx"),), {}),
        ((MODEL.SerializeToString(), options, cpu), {}),
        ((MODEL,), {"sess_options": options, "providers": [("CPUExecutionProvider", {})]}),
        (
            (MODEL,),
            {"providers": ["TensorrtExecutionProvider", *cpu], "provider_options": [{}, {}]},
        ),
    ):
        assert InferenceSession(*arguments, opt_level=0, **keywords).get_providers() == cpu


@pytest.mark.skipif(tvm.cuda(0).exist, reason="needs a machine without a GPU")
def test_a_gpu_that_is_preferred_but_not_here():
    providers = ["CUDAExecutionProvider", "CPUExecutionProvider"]
    assert InferenceSession(MODEL, providers=providers).get_providers() == providers[1:]
    with pytest.raises(errors.TargetError, match="no CUDA device"):
        InferenceSession(MODEL, providers=providers[:1])


@pytest.mark.parametrize(
    "keywords, error",
    [
        ({"providers": ["NixExecutionProvider"]}, errors.TargetError),
        ({"providers": "CPUExecutionProvider"}, errors.OptionError),
        ({"providers": [("CPUExecutionProvider", {"arena": "1"})]}, errors.OptionError),
        ({"provider_options": [{"arena": "1"}]}, errors.OptionError),
    ],
)
def test_providers_that_cannot_be(keywords, error):
    with pytest.raises(error):
        InferenceSession(MODEL, **keywords)


def test_a_prepared_model_answers_to_names_and_positions():
    outputs = backend.prepare(MODEL, "CPU").run([FEEDS["x"], FEEDS["k"]])
    np.testing.assert_array_equal(outputs.y, FEEDS["x"] + 1)
    np.testing.assert_array_equal(outputs[0], outputs.y)
    np.testing.assert_array_equal(backend.run_model(MODEL, FEEDS).y, outputs.y)


@pytest.mark.parametrize("op_type", ["Add", "Nix"])
def test_a_node_that_is_not_valid(op_type):
    node = helper.make_node(op_type, ["a"], ["c"], "bad")
    with pytest.raises(errors.ModelError, match="'bad' is not a valid node"):
        backend.run_node(node, [np.ones(2, "float32")])


def test_a_node_runs_with_what_its_caller_says_of_it():
    x = np.arange(6, dtype="float32").reshape(2, 3)
    add = helper.make_node("Add", ["a", "b"], ["c"], "add")
    assert backend.run_node(add, [x, x], outputs_info=[("float32", (2, 3))]).c.shape == (2, 3)
    legacy = helper.make_node("Add", ["a", "b"], ["c"], broadcast=1)
    np.testing.assert_array_equal(backend.run_node(legacy, [x, x[0]], opset_version=6).c, x + x[0])
    scaled = helper.make_node("Normalizer", ["a"], ["c"], domain="ai.onnx.ml")
    with pytest.raises(errors.InputError, match=r"type of 'c'.* give outputs_info"):
        backend.run_node(scaled, [x])


@pytest.mark.parametrize(
    "given, options, error",
    [
        ({"a": 0}, {}, errors.InputError),
        ({"a": 0, "b": 0, "z": 0}, {}, errors.InputError),
        ([0, 0], {"outputs_info": []}, errors.InputError),
        ([0, 0], {"outputs_info": [5]}, errors.InputError),
        ([0, 0], {"outputs_info": [("float32", (2, 4))]}, errors.ModelError),
        ([0, 0], {"opset_version": "13"}, errors.OptionError),
        ([0, 0], {"opset_version": 99}, errors.ModelError),
    ],
    ids=str,
)
def test_a_node_that_does_not_fit_its_caller(given, options, error):
    x = np.ones((2, 3), "float32")
    given = dict.fromkeys(given, x) if isinstance(given, dict) else [x for _ in given]
    with pytest.raises(error):
        backend.run_node(helper.make_node("Add", ["a", "b"], ["c"], "add"), given, **options)


def test_compatible_is_what_can_be_converted_for_a_device_that_is_here():
    assert backend.is_compatible(MODEL)
    assert not backend.is_compatible(MODEL, "TPU")
    unknown = onnx.ModelProto()
    unknown.CopyFrom(MODEL)
    unknown.graph.node[0].domain = "com.acme"
    unknown.opset_import.add(domain="com.acme", version=1)
    assert not backend.is_compatible(unknown)


@pytest.mark.parametrize("device", ["TPU", "cpu", "", "CPU:1", "CPU:x", None, 5])
def test_devices_that_are_not_known(device):
    assert not backend.supports_device(device)
    with pytest.raises(tvm_ext.errors.TargetError):
        backend.prepare(MODEL, device)
