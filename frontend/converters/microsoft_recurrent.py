"""Converter for the LSTM of com.microsoft, whose weights are of 8 bits."""

from tvm import relax

from tvm_ext.ops import arithmetic

from ..broadcasting import emit_broadcast
from ..microsoft import microsoft
from ..precision import cast, constant
from .recurrent import lstm
from .shape import reshaped


@microsoft("DynamicQuantizeLSTM")
def dynamic_quantize_lstm(bb, x, w, r, b, sequence_lens, initial_h, initial_c, p, w_scale, w_zero,
                          r_scale, r_zero, *, activation_alpha=None, activation_beta=None,
                          activations=None, clip=None, direction="forward", hidden_size=None,
                          input_forget=0):  # fmt: skip
    """Weights are ``[D, I, 4 H]``. Rows stay float32, which onnxruntime rounds to 8 bits."""
    w, r = (
        _dequantized(bb, *quantised) for quantised in ((w, w_scale, w_zero), (r, r_scale, r_zero))
    )
    return lstm(bb, x, w, r, b, sequence_lens, initial_h, initial_c, p,
                activation_alpha=activation_alpha, activation_beta=activation_beta,
                activations=activations, clip=clip, direction=direction, hidden_size=hidden_size,
                input_forget=input_forget)  # fmt: skip


def _dequantized(bb, codes, scale, zero):
    """``codes[D, K, 4 H]``, with a scale and a zero per direction or per column, transposed."""
    scale, zero = (_per_column(bb, value) for value in (scale, cast(bb, zero, "float32")))
    codes = cast(bb, codes, "float32")
    arrays = [constant(bb, value) for value in (codes, scale, zero)]
    if all(array is not None for array in arrays):
        codes, scale, zero = arrays
        return bb.const(((codes - zero) * scale).transpose(0, 2, 1))
    wide = emit_broadcast(bb, relax.op.subtract, arithmetic.sub, codes, zero)
    wide = emit_broadcast(bb, relax.op.multiply, arithmetic.mul, wide, scale)
    return bb.emit(relax.op.permute_dims(wide, [0, 2, 1]))


def _per_column(bb, x):
    """``x[D]`` or ``x[D, 4 H]`` with three axes."""
    known = constant(bb, x)
    shape = [bb.shape(x)[0], 1, bb.shape(x)[1] if bb.rank(x) == 2 else 1]
    return reshaped(bb, x, shape) if known is None else bb.const(known.reshape(shape))
