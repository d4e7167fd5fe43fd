"""Converter for the LSTM of com.microsoft, whose weights are of 8 bits."""

import numpy as np
from tvm import relax

from tvm_ext.ops import arithmetic

from ..broadcasting import emit_broadcast
from ..microsoft import microsoft
from ..precision import cast, constant
from .recurrent import lstm_of
from .shape import reshaped


@microsoft("DynamicQuantizeLSTM")
def dynamic_quantize_lstm(bb, x, w, r, b, sequence_lens, initial_h, initial_c, p, w_scale, w_zero,
                          r_scale, r_zero, *, activation_alpha=None, activation_beta=None,
                          activations=None, clip=None, direction="forward", hidden_size=None,
                          input_forget=0):  # fmt: skip
    """Weights are ``[D, I, 4 H]``; they stay 8 bits where they are known.

    The input is rounded to 8 bits then, with one scale, and so is the hidden state in front of each
    step, with a scale for each sequence, as in onnxruntime, where sequences that a thread steps
    together share one.
    """
    weights = [
        _codes(bb, *quantised) or (_dequantized(bb, *quantised), None)
        for quantised in ((w, w_scale, w_zero), (r, r_scale, r_zero))
    ]
    return lstm_of(bb, x, *weights, b, sequence_lens, initial_h, initial_c, p,
                   activation_alpha, activation_beta, activations, clip, direction, hidden_size,
                   input_forget)  # fmt: skip


def _codes(bb, codes, scale, zero):
    """``codes[D, K, 4 H]`` less their zero as int8, transposed, and their scales ``[D, 4 H]``.

    None where they are not known, or need nine bits.
    """
    scale, zero = (_per_column(bb, value) for value in (scale, zero))
    arrays = [constant(bb, value) for value in (codes, scale, zero)]
    if any(array is None for array in arrays):
        return None
    codes, scale, zero = arrays
    whole = codes.astype("int16") - zero
    narrow = whole.astype("int8")
    if (narrow != whole).any():
        return None
    columns = np.broadcast_to(scale[:, 0], (len(codes), codes.shape[2]))
    return bb.const(narrow.transpose(0, 2, 1)), bb.const(np.ascontiguousarray(columns))


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
