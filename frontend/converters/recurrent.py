"""Converters for LSTM, GRU and RNN.

The input is projected for all steps at once, as a matrix product that the passes see; a kernel
of ours then runs the steps, one per direction. ``output_sequence`` (version 1) only repeats
whether Y is used.
"""

from collections.abc import Callable
from functools import partial

import numpy as np
from tvm import relax, tirx

from tvm_ext.ops import recurrent as ops
from tvm_ext.ops.approximations import exp, log1p_positive, sigmoid, tanh

from ..arithmetic import multiplied
from ..precision import accumulator, cast, constant
from ..table import converter
from .matmul import product, transposed
from .quantization import dynamic_quantize_linear, matmul_integer

Scalar = Callable[[tirx.Expr], tirx.Expr]


def _like(value, x):
    return tirx.const(value, x.ty)


def _relu(x):
    return tirx.max(x, _like(0, x))


def _elu(x, alpha):
    return tirx.Select(x < 0, _like(alpha, x) * (exp(x) - 1), x)


def _hard_sigmoid(x, alpha, beta):
    return tirx.max(tirx.min(_like(alpha, x) * x + _like(beta, x), _like(1, x)), _like(0, x))


def _softplus(x):
    return _relu(x) + log1p_positive(exp(-tirx.abs(x)))


# Lower-case name -> function of x and, by position, alpha and beta; their defaults.
_ACTIVATIONS = {
    "affine": (lambda x, a, b: _like(a, x) * x + _like(b, x), (1.0, 0.0)),
    "elu": (_elu, (1.0,)),
    "hardsigmoid": (_hard_sigmoid, (0.2, 0.5)),
    "leakyrelu": (lambda x, a: tirx.Select(x < 0, _like(a, x) * x, x), (0.01,)),
    "relu": (_relu, ()),
    "scaledtanh": (lambda x, a, b: _like(a, x) * tanh(_like(b, x) * x), (1.0, 1.0)),
    "sigmoid": (sigmoid, ()),
    "softplus": (_softplus, ()),
    "softsign": (lambda x: x / (_like(1, x) + tirx.abs(x)), ()),
    "tanh": (tanh, ()),
    "thresholdedrelu": (lambda x, a: tirx.Select(x > _like(a, x), x, _like(0, x)), (1.0,)),
}


def _activations(names, defaults, directions, alpha, beta) -> list[list[Scalar]]:
    """The functions of each direction; alpha and beta go to those that take them, in order."""
    names = [name.lower() for name in names or list(defaults) * directions]
    if len(names) != len(defaults) * directions:
        raise NotImplementedError(f"{len(names)} activations, needs {len(defaults) * directions}")
    unknown = [name for name in names if name not in _ACTIVATIONS]
    if unknown:
        raise NotImplementedError(f"activation {', '.join(unknown)}")
    given = [list(alpha or ()), list(beta or ())]
    functions = []
    for name in names:
        function, standard = _ACTIVATIONS[name]
        values = [own.pop(0) if own else value for own, value in zip(given, standard, strict=False)]
        functions.append(_bound(function, values))
    count = len(defaults)
    return [functions[k : k + count] for k in range(0, len(functions), count)]


def _bound(function, values) -> Scalar:
    return lambda x: function(x, *values)


def _clip(threshold) -> Scalar:
    if not threshold:
        return lambda x: x
    return lambda x: tirx.max(tirx.min(x, _like(threshold, x)), _like(-threshold, x))


@converter("LSTM", 1, 7, 14, 22)
def lstm(bb, x, w, r, b=None, sequence_lens=None, initial_h=None, initial_c=None, p=None, *,
         activation_alpha=None, activation_beta=None, activations=None, clip=None,
         direction="forward", hidden_size=None, input_forget=0, layout=0,
         output_sequence=0):  # fmt: skip
    return lstm_of(bb, x, (w, None), (r, None), b, sequence_lens, initial_h, initial_c, p,
                   activation_alpha, activation_beta, activations, clip, direction, hidden_size,
                   input_forget, layout)  # fmt: skip


def lstm_of(bb, x, input_weights, recurrent_weights, b, sequence_lens, initial_h, initial_c, p,
            activation_alpha, activation_beta, activations, clip, direction, hidden_size,
            input_forget, layout=0):  # fmt: skip
    """The layer; beside weights are None, or the scales ``[D, 4 H]`` of what are int8 then."""
    (w, w_scale), (r, r_scale) = input_weights, recurrent_weights
    reverse = _directions(direction)
    functions = _activations(activations, ("sigmoid", "tanh", "tanh"), len(reverse),
                             activation_alpha, activation_beta)  # fmt: skip
    layer = _Layer(bb, x, w, r, b, sequence_lens, layout, len(reverse), hidden_size, gates=4,
                   together=4, w_scale=w_scale)  # fmt: skip
    peephole = None if p is None else layer.by_gate(layer.wide(p), 3)
    panels, integers = layer.panels(0, 4), None
    if r_scale is not None:
        panels, sums = layer.word_panels()
        integers = layer.by_gate(r_scale, 4), sums
    states = [layer.state(initial) for initial in (initial_h, initial_c)]
    kernel = partial(ops.lstm, reverse=reverse, activations=functions, clip=_clip(clip),
                     input_forget=bool(input_forget))  # fmt: skip
    return layer.emit(kernel, "lstm", [layer.gates(), panels, integers, peephole], *states)


@converter("GRU", 1, 3, 7, 14, 22)
def gru(bb, x, w, r, b=None, sequence_lens=None, initial_h=None, *, activation_alpha=None,
        activation_beta=None, activations=None, clip=None, direction="forward", hidden_size=None,
        layout=0, linear_before_reset=0, output_sequence=0):  # fmt: skip
    reverse = _directions(direction)
    functions = _activations(activations, ("sigmoid", "tanh"), len(reverse), activation_alpha,
                             activation_beta)  # fmt: skip
    layer = _Layer(bb, x, w, r, b, sequence_lens, layout, len(reverse), hidden_size, gates=3,
                   together=3 if linear_before_reset else 1)  # fmt: skip
    kernel = partial(ops.gru, reverse=reverse, activations=functions, clip=_clip(clip))
    if linear_before_reset:
        weights = layer.panels(0, 3), None, layer.last_recurrent_bias()
    else:
        weights = layer.panels(0, 2), layer.panels(2, 3), None
    gates = layer.gates(without_last=bool(linear_before_reset))
    return layer.emit(kernel, "gru", [gates, *weights], layer.state(initial_h))


@converter("RNN", 1, 7, 14, 22)
def rnn(bb, x, w, r, b=None, sequence_lens=None, initial_h=None, *, activation_alpha=None,
        activation_beta=None, activations=("Tanh", "Tanh"), clip=None, direction="forward",
        hidden_size=None, layout=0, output_sequence=0):  # fmt: skip
    reverse = _directions(direction)
    functions = _activations(activations[: len(reverse)], ("tanh",), len(reverse),
                             activation_alpha, activation_beta)  # fmt: skip
    layer = _Layer(bb, x, w, r, b, sequence_lens, layout, len(reverse), hidden_size, gates=1,
                   together=1)  # fmt: skip
    kernel = partial(ops.rnn, reverse=reverse, activations=functions, clip=_clip(clip))
    operands = [layer.gates(), layer.panels(0, 1)]
    return layer.emit(kernel, "rnn", operands, layer.state(initial_h))


def _directions(direction):
    """Whether each direction runs in reverse."""
    known = {"forward": [False], "reverse": [True], "bidirectional": [False, True]}
    if direction not in known:
        raise NotImplementedError(f"direction {direction!r}")
    return known[direction]


def _hidden_size(bb, r, hidden_size):
    hidden = bb.shape(r)[2]
    hidden = hidden if isinstance(hidden, int) else hidden_size
    if hidden is None:
        raise NotImplementedError("R has a symbolic shape: needs the attribute hidden_size")
    return hidden


class _Layer:
    """The operands of a recurrent node as the kernels take them; sums run in ``dtype``.

    Weights, biases and peepholes, "[D, gates * H, ...]", are cut by gate and rounded up with
    zeros to whole panels: constants now, others at run time. No panel holds less than ``together``
    gates.
    """

    def __init__(self, bb, x, w, r, b, sequence_lens, layout, directions, hidden_size,
                 gates, together, w_scale=None):  # fmt: skip
        self.bb, self.layout, self.count = bb, layout, gates
        self.out_dtype = bb.dtype(x)
        self.dtype = accumulator(self.out_dtype)
        self.x = bb.emit(relax.op.permute_dims(x, [1, 0, 2])) if layout else x
        self.time, self.batch, features = bb.shape(self.x)
        self.empty = 0 in [dim for dim in (self.time, self.batch) if isinstance(dim, int)]
        known = bb.shape(w)[2]
        self.features = known if isinstance(known, int) else features
        self.x = bb.of_shape(self.x, [self.time, self.batch, self.features])
        self.lengths = sequence_lens
        if sequence_lens is not None:
            self.lengths = bb.of_shape(sequence_lens, [self.batch])
        self.directions, self.hidden = directions, _hidden_size(bb, r, hidden_size)
        self.width = ops.panel_width(together, self.hidden, self.dtype)
        self.padded = -(-self.hidden // self.width) * self.width
        self.w = self.by_gate(w, gates, self.features)
        self.w_scale = None if w_scale is None else self.by_gate(w_scale, gates)
        self.r = self.by_gate(r, gates, self.hidden)
        self.bias = None if b is None else self.by_gate(self.wide(b), 2 * gates)

    def emit(self, kernel, name, operands, *initial):
        """Y and the last states, of the kernel's results of those; without a step the initial."""
        if self.empty:
            shape = [self.time, self.directions, self.batch, self.hidden]
            results = [self._zeros(shape), *initial]
        else:
            results = self._stepped(kernel, name, *operands, *initial)
        y, *states = (cast(self.bb, each, self.out_dtype) for each in results)
        if self.layout:
            y = self.bb.emit(relax.op.permute_dims(y, [2, 0, 1, 3]))
            states = [self._transposed(state, [1, 0, 2]) for state in states]
        return y, *states

    def _stepped(self, kernel, name, *operands):
        results = self.bb.emit_te(kernel, *operands, self.lengths, primfunc_name_hint=name)
        fields = range(len(results.ty.fields))
        return [self.bb.emit(relax.TupleGetItem(results, k)) for k in fields]

    def gates(self, without_last=False):
        """The input projected, with its biases: [S, B, D, gates, P]."""
        if self.empty:  # relax.op.reshape would read a 0 as "copy the dim of x"
            shape = [self.time, self.batch, self.directions, self.count, self.padded]
            return self._zeros(shape)
        bb, width = self.bb, self.directions * self.count * self.padded
        weights = self._reshaped(self.w, [width, self.features])
        rows = bb.reshape(self.x, [self.time * self.batch, self.features])
        y = self._projected(rows, transposed(bb, weights))
        if self.bias is not None:
            bias = self._reshaped(self._both_biases(without_last), [width])
            y = bb.emit(relax.op.add(y, bias))
        shape = [self.time, self.batch, self.directions, self.count, self.padded]
        return bb.reshape(y, shape)

    def _projected(self, rows, weights):
        """The product; of int8 weights with rows that are rounded to 8 bits, too."""
        if self.w_scale is None:
            return product(self.bb, rows, weights)
        codes, scale, zero = dynamic_quantize_linear(self.bb, rows)
        total = self.wide(matmul_integer(self.bb, codes, weights, zero))
        columns = self._reshaped(self.w_scale, [self.directions * self.count * self.padded])
        return multiplied(self.bb, multiplied(self.bb, total, scale), columns)

    def panels(self, begin, end):
        """The recurrent weights of some gates: [D, P / width, H, gates, width]."""
        return self._panels(self.wide(self._gates_of(self.r, begin, end)), end - begin)

    def word_panels(self):
        """Recurrent int8 weights, which are known: words of them, and their sums [D, gates, P]."""
        panels = constant(self.bb, self._panels(self.r, self.count))
        sums = constant(self.bb, self.r).sum(-1, dtype="int32")
        return self.bb.const(ops.word_panels(panels)), self.bb.const(sums)

    def _panels(self, weights, gates):
        tiles = [self.padded // self.width, self.width]
        shape = [self.directions, gates, *tiles, self.hidden]
        return self._transposed(self._reshaped(weights, shape), [0, 2, 4, 1, 3])

    def by_gate(self, x, gates, *rest):
        """``[D, gates * H, *rest]`` as ``[D, gates, P, *rest]``."""
        x = self.bb.of_shape(x, [self.directions, gates * self.hidden, *rest])
        x = self._reshaped(x, [self.directions, gates, self.hidden, *rest])
        missing = self.padded - self.hidden
        if not missing:
            return x
        widths = [(0, 0), (0, 0), (0, missing), *[(0, 0)] * len(rest)]
        array = constant(self.bb, x)
        if array is not None:
            return self.bb.const(np.pad(array, widths))
        return self.bb.emit(relax.op.nn.pad(x, [side for pair in widths for side in pair]))

    def last_recurrent_bias(self):
        """The recurrent bias of the last gate: [D, P]."""
        shape = [self.directions, self.padded]
        if self.bias is None:
            return self.bb.const(np.zeros(shape, self.dtype))
        last = self._gates_of(self.bias, 2 * self.count - 1, 2 * self.count)
        return self._reshaped(last, shape)

    def _both_biases(self, without_last):
        """The biases of input and recurrence added; the last gate's recurrent one may stay out."""
        own = self._gates_of(self.bias, 0, self.count)
        recurrent = self._gates_of(self.bias, self.count, 2 * self.count)
        if without_last:
            kept = np.ones([1, self.count, 1], self.dtype)
            kept[:, -1] = 0
            recurrent = self._binary(np.multiply, relax.op.multiply, recurrent,
                                     self.bb.const(kept))  # fmt: skip
        return self._binary(np.add, relax.op.add, own, recurrent)

    def state(self, initial):
        """The initial states: [D, B, H]."""
        shape = [self.directions, self.batch, self.hidden]
        if initial is None:
            return self._zeros(shape)
        initial = self._transposed(initial, [1, 0, 2]) if self.layout else initial
        return self.wide(self.bb.of_shape(initial, shape))

    def _zeros(self, shape):
        return self.bb.emit(relax.op.zeros(shape, self.dtype))

    def wide(self, x):
        return cast(self.bb, x, self.dtype)

    # --- done now on constants, else at run time ------------------------------------------

    def _gates_of(self, x, begin, end):
        """``x[:, begin:end]``."""
        array = constant(self.bb, x)
        if array is not None:
            return self.bb.const(array[:, begin:end])
        return self.bb.emit(relax.op.strided_slice(x, [1], [begin], [end]))

    def _reshaped(self, x, shape):
        array = constant(self.bb, x)
        if array is not None:
            return self.bb.const(array.reshape(shape))
        return self.bb.reshape(x, shape)

    def _transposed(self, x, axes):
        array = constant(self.bb, x)
        if array is not None:
            return self.bb.const(np.ascontiguousarray(array.transpose(axes)))
        return self.bb.emit(relax.op.permute_dims(x, axes))

    def _binary(self, now, later, a, b):
        arrays = constant(self.bb, a), constant(self.bb, b)
        if any(array is None for array in arrays):
            return self.bb.emit(later(a, b))
        return self.bb.const(now(*arrays))
