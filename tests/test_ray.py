"""Compiled models on a cluster: a local one of Ray maps a data set in processes of its own."""

import os

import numpy as np
import onnx
import pytest
from onnx import parser
from onnx.reference import ReferenceEvaluator

import tvm_ext

pytestmark = pytest.mark.slow

NET = parser.parse_model("""<ir_version: 8, opset_import: ["": 17]>
net (float[8, 3, 16, 16] x) => (float[8, 4] y) {
  c = Conv<pads=[1, 1, 1, 1]>(x, w)
  r = Relu(c)
  p = GlobalAveragePool(r)
  y = Flatten(p)
}""")
RNG = np.random.default_rng(0)
W = RNG.standard_normal((4, 3, 3, 3)).astype("float32")
NET.graph.initializer.append(onnx.numpy_helper.from_array(W, "w"))


@pytest.fixture(scope="module")
def ray():
    ray = pytest.importorskip("ray", reason="needs ray: pip install 'tvm_ext[ray]'")
    pytest.importorskip("ray.data", reason="needs ray's data sets: pip install 'tvm_ext[ray]'")
    ray.init(num_cpus=2, include_dashboard=False, logging_level="ERROR")
    yield ray
    ray.shutdown()


def test_a_model_maps_a_data_set_on_a_cluster(ray):
    images = RNG.standard_normal((64, 3, 16, 16)).astype("float32")
    model = tvm_ext.convert_and_build(NET, "llvm")

    def classify(batch):  # carries the model: by pickle
        return {"id": batch["id"], "y": model(batch["x"]), "by": np.full(8, os.getpid())}

    rows = [{"id": k, "x": image} for k, image in enumerate(images)]
    mapped = ray.data.from_items(rows, override_num_blocks=8).map_batches(classify, batch_size=8)
    found = sorted(mapped.take_all(), key=lambda row: row["id"])
    assert [row["id"] for row in found] == list(range(64))
    assert os.getpid() not in {row["by"] for row in found}
    reference = ReferenceEvaluator(NET)
    for start in range(0, 64, 8):
        (wanted,) = reference.run(None, {"x": images[start : start + 8]})
        got = np.stack([row["y"] for row in found[start : start + 8]])
        np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-5)


def test_an_actor_holds_a_loaded_model(ray, tmp_path):
    tvm_ext.convert_and_build(NET, "llvm").save(tmp_path / "m.so")

    class Server:
        def __init__(self, model):
            self.model = model

        def answer(self, x):
            return self.model(x)

    x = RNG.standard_normal((8, 3, 16, 16)).astype("float32")
    server = ray.remote(Server).remote(tvm_ext.load(tmp_path / "m.so"))
    (wanted,) = ReferenceEvaluator(NET).run(None, {"x": x})
    np.testing.assert_allclose(ray.get(server.answer.remote(x)), wanted, rtol=1e-4, atol=1e-5)
