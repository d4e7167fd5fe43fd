"""Converters for mixtures of experts in com.microsoft.

Each token goes through the k experts that the router ranks highest, and through no others: the
products read only their weights.
"""

from functools import partial
from typing import NamedTuple

from tvm import relax

from tvm_ext.ops import activation
from tvm_ext.ops import experts as ops

from ..microsoft import microsoft
from ..precision import cast
from .search import top_k
from .shape import reshaped

_FUNCTIONS = {
    "gelu": activation.gelu_tanh,
    "identity": None,
    "relu": activation.relu,
    "silu": activation.silu,
}


@microsoft("MoE")
def mixture_of_experts(bb, x, router_probs, fc1_weights, fc1_bias, fc2_weights, fc2_bias=None,
                       fc3_weights=None, fc3_bias=None, *, activation_alpha=1.0,
                       activation_beta=0.0, activation_type="relu", k=1,
                       normalize_routing_weights=0, swiglu_fusion=0, swiglu_limit=None,
                       swiglu_limit_after_activation=0, use_sparse_mixer=0):  # fmt: skip
    _refuse_unserved(use_sparse_mixer, swiglu_limit_after_activation)
    function = _Activation(activation_type, activation_alpha, activation_beta, swiglu_limit,
                           swiglu_fusion)  # fmt: skip
    layers = [
        None if weights is None else partial(_product, weights=weights, bias=bias)
        for weights, bias in (
            (fc1_weights, fc1_bias),
            (fc2_weights, fc2_bias),
            (fc3_weights, fc3_bias),
        )
    ]
    return _mixture(bb, x, router_probs, None, layers, function, k, normalize_routing_weights)


@microsoft("QMoE")
def quantized_mixture_of_experts(
    bb, x, router_probs, fc1_weights, fc1_scales, fc1_bias, fc2_weights, fc2_scales, fc2_bias=None,
    fc3_weights=None, fc3_scales=None, fc3_bias=None, fc1_zero_points=None, fc2_zero_points=None,
    fc3_zero_points=None, router_weights=None, fc1_global_scale=None, fc2_global_scale=None,
    fc1_act_scale=None, fc2_act_scale=None, fc1_act_block_scale=None, fc2_act_block_scale=None, *,
    accuracy_level=0, activation_alpha=1.0, activation_beta=0.0, activation_type="relu",
    block_size=0, expert_weight_bits=4, fc1_expert_weight_bits=0, fc2_expert_weight_bits=0,
    fc3_expert_weight_bits=0, k=1, normalize_routing_weights=0, quant_type="int", swiglu_fusion=0,
    swiglu_limit=None, swiglu_limit_after_activation=0, use_sparse_mixer=0, weights_prepacked=-1,
):  # fmt: skip
    """Codes of 2, 4 or 8 bits, low bits first, with a scale per row or per block of it.

    Global scales and those of activations are of float4 and float8 weights: of integers they say
    nothing, as onnxruntime has it.
    """
    _refuse_unserved(use_sparse_mixer, swiglu_limit_after_activation)
    if quant_type != "int" or weights_prepacked == 1:
        raise NotImplementedError(f"quant_type {quant_type}, weights_prepacked {weights_prepacked}")
    function = _Activation(activation_type, activation_alpha, activation_beta, swiglu_limit,
                           swiglu_fusion)  # fmt: skip
    layers = [
        None if weights is None else partial(
            _product, weights=weights, bias=bias, scales=scales, zeros=zeros, block=block_size,
            bits=_bits(bits or expert_weight_bits))
        for weights, scales, bias, zeros, bits in (
            (fc1_weights, fc1_scales, fc1_bias, fc1_zero_points, fc1_expert_weight_bits),
            (fc2_weights, fc2_scales, fc2_bias, fc2_zero_points, fc2_expert_weight_bits),
            (fc3_weights, fc3_scales, fc3_bias, fc3_zero_points, fc3_expert_weight_bits))
    ]  # fmt: skip
    return _mixture(bb, x, router_probs, router_weights, layers, function, k,
                    normalize_routing_weights)  # fmt: skip


def _refuse_unserved(sparse_mixer, limit_after):
    """Refuse what onnxruntime has on GPUs only."""
    if sparse_mixer or limit_after:
        raise NotImplementedError(
            f"use_sparse_mixer {sparse_mixer}, swiglu_limit_after_activation {limit_after}"
        )


def _mixture(bb, x, logits, weights, layers, function, k, normalize):
    """``function`` of fc1(x), and of fc3(x) where there is one, through fc2, weighted."""
    first, second, third = layers
    tokens, width = bb.shape(logits)[0], bb.shape(x)[-1]
    rows = reshaped(bb, x, [tokens, width])
    chosen, shares = _routes(bb, logits, weights, k, normalize)
    hidden = first(bb, rows, chosen)
    gate = None if third is None else third(bb, rows, chosen)
    hidden = function.emit(bb, hidden, gate)
    y = bb.emit_te(ops.combined, second(bb, hidden, chosen), shares)
    return reshaped(bb, cast(bb, y, bb.dtype(x)), bb.shape(x))


def _routes(bb, logits, weights, k, normalize):
    """The experts of each token, int64 [T, k], and their shares, float32."""
    logits = cast(bb, logits, "float32")
    scores, chosen = top_k(bb, logits, bb.const(k, "int64"))
    if weights is not None:
        shares = bb.emit_te(ops.shares, cast(bb, weights, "float32"), chosen, bool(normalize))
    elif normalize:
        shares = bb.emit(relax.op.nn.softmax(scores, -1))
    else:
        probabilities = bb.emit(relax.op.nn.softmax(logits, -1))
        shares = bb.emit_te(ops.shares, probabilities, chosen, False)
    return chosen, shares


def _product(bb, rows, chosen, *, weights, bias, **quantised):
    return bb.emit_te(ops.expert_product, rows, chosen, weights, bias, **quantised)


def _bits(bits):
    if bits not in (2, 4, 8):
        raise NotImplementedError(f"weights of {bits} bits")
    return bits


class _Activation(NamedTuple):
    """What stands between the products; alpha, beta and the rest are those of swiglu."""

    name: str
    alpha: float
    beta: float
    limit: float | None
    fusion: int

    def emit(self, bb, hidden, gate):
        if self.name == "swiglu":
            return bb.emit_te(ops.swiglu, hidden, gate, self.alpha, self.beta, self.limit,
                              self.fusion == 1)  # fmt: skip
        if self.name not in _FUNCTIONS:
            raise NotImplementedError(f"activation_type {self.name!r}")
        function = _FUNCTIONS[self.name]
        hidden = hidden if function is None else bb.emit_te(function, hidden)
        return hidden if gate is None else bb.emit(relax.op.multiply(hidden, gate))
