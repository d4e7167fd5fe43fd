"""Converters for the ONNX normalisation operators."""

from tvm_ext.ops.instance_norm import instance_norm

from ..table import converter


@converter("InstanceNormalization", 6, 22)
def instance_normalization(bb, x, scale, bias, *, epsilon=1e-5):
    if bb.rank(x) < 3:
        raise NotImplementedError(f"rank {bb.rank(x)}, needs [N, C, D1, ...]")
    return bb.emit_te(instance_norm, x, scale, bias, epsilon)
