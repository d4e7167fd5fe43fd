"""The memory plan: what is alive together has bytes of its own, and few bytes are wasted."""

import random

import numpy as np
import pytest
from onnx import numpy_helper, parser
from onnx.reference import ReferenceEvaluator

from tvm_ext import convert_and_build
from tvm_ext.executors.plan import Slot, aligned
from tvm_ext.executors.planning import adjacent, peak, place


def slots_of(rows):
    return [Slot((size,), "uint8", live=[first, last]) for size, first, last in rows]


def placed(slots):
    """The arena by its lower bound; no two slots that are alive together share a byte."""
    end = max(slot.live[1] for slot in slots)
    bound = peak(slots, end)
    total = place(slots, bound)
    for k in range(end + 1):
        alive = sorted((s.offset, s.nbytes) for s in slots if s.live[0] <= k <= s.live[1])
        ends = [0, *(offset + size for offset, size in alive)]
        assert all(start >= end for (start, _), end in zip(alive, ends, strict=False))
        assert ends[-1] <= total
    return total / bound


def test_a_chain_whose_last_link_would_be_in_the_way():
    """As at the end of an image network: the largest takes the place that the second next needs."""
    chain = [(660, 0, 1), (320, 1, 2), (320, 2, 3), (1300, 3, 4), (640, 4, 5), (640, 5, 6)]
    assert placed(slots_of([*((64 * s, a, b) for s, a, b in chain), (64 * 690, 6, 7)])) == 1


@pytest.mark.parametrize("seed", range(20))
def test_tensors_of_any_size_and_life(seed):
    rng = random.Random(seed)
    count = rng.randint(3, 60)
    starts = [rng.randint(0, count) for _ in range(count)]
    rows = [(rng.randint(1, 4000), a, a + rng.choice([0, 1, 1, 2, 9])) for a in starts]
    assert placed(slots_of(rows)) <= 1.15


def test_offsets_are_aligned():
    slots = slots_of([(1, 0, 2), (65, 0, 2), (7, 1, 2)])
    assert place(slots, 0) == 64 + 128 + 64
    assert all(slot.offset == aligned(slot.offset) or slot.offset == 0 for slot in slots)


def test_equal_weights_are_kept_once():
    """Whatever their type and shape; others differ in one byte that no sample of them shows."""
    many = np.arange(5000, dtype="float32")
    changed = many.copy()
    changed[4321] = -1
    arrays = [many, changed, many.reshape(50, 100).copy(), many.view("int32"), changed[:0],
              np.array(3, "int64"), np.array([3, 0], "int32"), np.zeros(0, "int8")]  # fmt: skip
    weights = {Slot(a.shape, str(a.dtype), "weight", k): a for k, a in enumerate(arrays)}
    whole = adjacent(weights)
    assert whole.size == 2 * aligned(many.nbytes) + 2 * 64  # numbers, nothing
    for slot, array in weights.items():
        kept = whole[slot.offset : slot.offset + array.nbytes]
        np.testing.assert_array_equal(kept.view(array.dtype).reshape(array.shape), array)


@pytest.mark.parametrize("size", ["2", "N"])
def test_a_layer_that_is_used_twice_is_packed_once(size):
    model = parser.parse_model(
        f"""<ir_version: 8, opset_import: ["" : 17]>
        twice (float[{size},64,9,9] x, float[64,64,3,3] w) => (float[{size},64,9,9] y) {{
            a = Conv<pads = [1,1,1,1]>(x, w)
            b = Tanh(a)
            y = Conv<pads = [1,1,1,1]>(b, w)
        }}"""
    )
    rng = np.random.default_rng(0)
    w = (rng.standard_normal((64, 64, 3, 3)) / 24).astype("float32")
    del model.graph.input[1]
    model.graph.initializer.append(numpy_helper.from_array(w, "w"))
    x = rng.standard_normal((2, 64, 9, 9), dtype="float32")
    twice = convert_and_build(model)
    (got,), (want,) = twice.run(None, {"x": x}), ReferenceEvaluator(model).run(None, {"x": x})
    np.testing.assert_allclose(got, want, atol=1e-4)
    once = model
    del once.graph.node[1:]
    once.graph.node[0].output[0] = "y"
    assert twice.executor.weights.size <= convert_and_build(once).executor.weights.size + 1024
