"""Products of words where no instruction has them: other CPUs, CUDA and C."""

import numpy as np
import onnxruntime
import pytest

import tvm_ext
from tests.export.programs import compiled, ran
from tests.oracle import node_model
from tvm_ext import convert_and_build
from tvm_ext.emulator import NO_COMPILER, run

HIDDEN, FEATURES, DIRECTIONS = 21, 7, 2  # whole words of neither


@pytest.fixture(scope="module")
def rounded():
    """An LSTM of 8-bit weights, what is fed to it, and what onnxruntime answers."""
    random = np.random.default_rng(0)
    x = random.standard_normal((5, 1, FEATURES)).astype("float32")
    weights = [
        # Of larger ones onnxruntime's pairs of products saturate where a CPU lacks VNNI.
        random.integers(-64, 64, (DIRECTIONS, depth, 4 * HIDDEN)).astype("int8")
        for depth in (FEATURES, HIDDEN)
    ]
    bias = random.uniform(-0.3, 0.3, (DIRECTIONS, 8 * HIDDEN)).astype("float32")
    scale, zero = np.full(DIRECTIONS, 0.004, "float32"), np.zeros(DIRECTIONS, "int8")
    inputs = [x, *weights, bias, None, None, None, None, scale, zero, scale, zero]
    attributes = {"hidden_size": HIDDEN, "direction": "bidirectional"}
    model = node_model("DynamicQuantizeLSTM", inputs, attributes, domain="com.microsoft", opset=1,
                       outputs=3, constants=(1, 2, 3, 8, 9, 10, 11))  # fmt: skip
    session = onnxruntime.InferenceSession(model.SerializeToString())
    return model, {"x0": x}, session.run(None, {"x0": x})


def close(got, want):
    for ours, theirs in zip(got, want, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-6)


@pytest.mark.parametrize("target", ["x86-64-v2", "x86-64-v3"])
def test_on_cpus_without_it(rounded, target):
    model, feeds, want = rounded
    close(convert_and_build(model, target).run(None, feeds), want)


@pytest.mark.skipif(NO_COMPILER is not None, reason=str(NO_COMPILER))
@pytest.mark.parametrize("opt_level", [0, 3])
def test_in_cuda(rounded, opt_level, tmp_path):
    model, feeds, want = rounded
    close(run(model, feeds, tmp_path, opt_level=opt_level), want)


@pytest.mark.parametrize("opt_level", [0, 3])
def test_in_c(rounded, opt_level, tmp_path):
    folder = tvm_ext.export(rounded[0], tmp_path / "m", "c-source", name="m", opt_level=opt_level)
    program = compiled(folder, ["main.c", "m.c", "m_weights.c"], libraries=())
    assert ran(program, folder) == "correct\n"
