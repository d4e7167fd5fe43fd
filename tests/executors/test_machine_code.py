"""Kernels that LLVM compiles in parts, beside the lowering of others."""

import numpy as np
import pytest
from onnx import numpy_helper, parser
from tvm.ir.instrument import PassTimingInstrument
from tvm.ir.transform import PassContext
from tvm.target import Target

import tvm_ext
from tests.export.programs import compiled, ran
from tvm_ext.errors import BuildError
from tvm_ext.executors import machine_code

# Kernels with threads, with scratch memory, and with tables; N is a number, or a symbol.
NET = """<ir_version: 9, opset_import: ["": 17]>
net (float[N, 16, 24, 24] x) => (float[N, 16, 12, 12] y, float[N, 16, 24, 24] z)
<float[16, 16, 3, 3] w> {
  a = Conv<pads = [1, 1, 1, 1]>(x, w)
  b = Relu(a)
  c = Conv<pads = [1, 1, 1, 1]>(b, w)
  s = Softmax<axis = 3>(c)
  z = Mul(s, b)
  y = MaxPool<kernel_shape = [2, 2], strides = [2, 2]>(z)
}"""


def net(batch):
    model = parser.parse_model(NET.replace("N,", f"{batch},"))
    weights = np.random.default_rng(0).standard_normal((16, 16, 3, 3)).astype("float32")
    model.graph.initializer.append(numpy_helper.from_array(0.1 * weights, "w"))
    return model


X = np.random.default_rng(1).standard_normal((2, 16, 24, 24)).astype("float32")


@pytest.mark.parametrize("batch", ["2", "n"])
def test_kernels_in_parts_are_those_of_one(batch, tmp_path, monkeypatch):
    monkeypatch.setattr(machine_code, "_PART", 1000)  # more than all have
    whole = tvm_ext.convert_and_build(net(batch), "llvm")
    monkeypatch.setattr(machine_code, "_PART", 1)  # each by itself
    parts = tvm_ext.convert_and_build(net(batch), "llvm")
    again = tvm_ext.convert_and_build(net(batch), "llvm")
    path = tmp_path / "net.so"
    parts.save(path)
    for model in parts, tvm_ext.load(path):
        for got, want in zip(model(X), whole(X), strict=True):
            np.testing.assert_array_equal(got, want)
    assert bytes(again.executor.linked()) == bytes(parts.executor.linked())
    assert parts.sources()["llvm"].count("source_filename") > 3
    assert whole.sources()["llvm"].count("source_filename") == 1
    if batch == "2":
        kept = tvm_ext.load(path).executor.parts().kernels
        assert kept == parts.executor.parts().kernels and len(kept) > 3


def test_a_package_of_parts(tmp_path, monkeypatch):
    monkeypatch.setattr(machine_code, "_PART", 1)
    folder = tvm_ext.export(net("2"), tmp_path / "net", name="net")
    assert ran(compiled(folder, ["main.c"]), folder).splitlines()[-1] == "correct"


def test_parts_are_of_about_equal_size(monkeypatch):
    taken = []
    real = machine_code.parted

    def parted(kernels):
        taken.append([[machine_code._stores(f.body) for f in part.functions.values()]
                      for part in real(kernels)])  # fmt: skip
        return real(kernels)

    monkeypatch.setattr("tvm_ext.executors.c_abi.parted", parted)
    monkeypatch.setattr(machine_code, "_PART", 100)
    tvm_ext.convert_and_build(net("2"), "llvm")
    ((*parts,),) = taken
    assert len(parts) > 1
    largest = max(size for part in parts for size in part)
    assert max(map(sum, parts)) <= sum(map(sum, parts)) / len(parts) + largest


def test_what_fails_in_a_part_ends_the_build(monkeypatch):
    monkeypatch.setattr(machine_code, "_PART", 1)
    calls = []

    def object_code(module):
        calls.append(module)
        if len(calls) > 1:
            raise BuildError("cannot write the kernels: no room")
        return real(module)

    real = machine_code._object_code
    monkeypatch.setattr(machine_code, "_object_code", object_code)
    with pytest.raises(BuildError, match="no room"):
        tvm_ext.convert_and_build(net("2"), "llvm")


def test_options_of_the_process_and_instruments_belong_to_one_thread():
    here, context = Target("llvm"), PassContext.current()
    assert machine_code._stands_alone(here, context)
    riscv = Target({"kind": "llvm", "mtriple": "riscv64-unknown-linux-gnu"})
    told = Target({"kind": "llvm", "cl-opt": ["-unroll-threshold:uint=16"]})
    assert not machine_code._stands_alone(riscv, context)
    assert not machine_code._stands_alone(told, context)
    assert not machine_code._stands_alone(here, PassContext(instruments=[PassTimingInstrument()]))
