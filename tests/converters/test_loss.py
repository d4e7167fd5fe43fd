"""The losses over class labels; oracle: torch. Dropout, whose oracle is its definition."""

import numpy as np
import pytest
import torch
from torch.nn import functional

from tests.oracle import check_node, node_model
from tvm_ext import convert_and_build

RNG = np.random.default_rng(0)
SCORES = (3 * RNG.normal(size=(4, 5, 2))).astype("float32")
LABELS = RNG.integers(0, 5, (4, 2))
WEIGHTS = RNG.uniform(0.5, 2, 5).astype("float32")


@pytest.mark.parametrize(
    "reduction, weights",
    [
        ("none", None),
        ("sum", None),
        ("mean", None),
        ("none", WEIGHTS),
        ("sum", WEIGHTS),
        ("mean", WEIGHTS),
    ],
)
def test_cross_entropy(reduction, weights):
    tensors = torch.from_numpy(SCORES), torch.from_numpy(LABELS)
    weight = None if weights is None else torch.from_numpy(weights)
    loss = functional.cross_entropy(*tensors, weight, ignore_index=2, reduction=reduction)
    log_prob = functional.log_softmax(tensors[0], 1)
    inputs = [SCORES, LABELS] if weights is None else [SCORES, LABELS, weights]
    check_node("SoftmaxCrossEntropyLoss", inputs, {"reduction": reduction, "ignore_index": 2},
               outputs=2, expected=[loss.numpy(), log_prob.numpy()], atol=1e-5)  # fmt: skip


def test_an_ignored_target_need_not_be_a_class():
    labels = LABELS.copy()
    labels[0, 0] = -100
    want = functional.nll_loss(torch.from_numpy(SCORES), torch.from_numpy(labels))
    check_node("NegativeLogLikelihoodLoss", [SCORES, labels], {"ignore_index": -100},
               expected=[want.numpy()])  # fmt: skip


@pytest.mark.parametrize("opset, mask", [(7, "float32"), (10, "bool"), (13, "bool")])
def test_dropout_at_inference(opset, mask):
    x = RNG.normal(size=(3, 4)).astype("float32")
    check_node("Dropout", [x], opset=opset, outputs=2, expected=[x, np.ones(x.shape, mask)])


def test_dropout_in_training_drops_its_share_and_scales_the_rest():
    x = np.ones((100, 100), "float32")
    model = node_model("Dropout", [x, np.array(0.25, "float32"), np.array(True)], {"seed": 3},
                       outputs=2)  # fmt: skip
    feeds = {"x0": x, "x1": np.array(0.25, "float32"), "x2": np.array(True)}
    compiled = convert_and_build(model, "llvm", opt_level=0)
    y, mask = compiled.run(None, feeds)
    np.testing.assert_allclose(y, mask / np.float32(0.75), rtol=1e-6)
    assert abs(mask.mean() - 0.75) < 0.02
    assert compiled.run(None, feeds | {"x2": np.array(False)})[1].all()
