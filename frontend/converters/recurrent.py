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

from ..precision import accumulator, cast, constant
from ..table import converter
from .matmul import product, transposed

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
    directions = _directions(direction)
    functions = _activations(activations, ("sigmoid", "tanh", "tanh"), len(directions),
                             activation_alpha, activation_beta)  # fmt: skip
    layer = _Layer(bb, x, w, r, b, sequence_lens, layout, gates=4)

    def run(d, reverse):
        peephole = None if p is None else layer.wide(layer.part(p, d))
        states = [layer.state(initial, d) for initial in (initial_h, initial_c)]
        kernel = partial(ops.lstm, reverse=reverse, activations=functions[d], clip=_clip(clip),
                         input_forget=bool(input_forget))  # fmt: skip
        return layer.emit(kernel, "lstm", layer.gates(d), layer.recurrent(d), peephole, *states)

    return layer.results([run(d, reverse) for d, reverse in enumerate(directions)])


@converter("GRU", 1, 3, 7, 14, 22)
def gru(bb, x, w, r, b=None, sequence_lens=None, initial_h=None, *, activation_alpha=None,
        activation_beta=None, activations=None, clip=None, direction="forward", hidden_size=None,
        layout=0, linear_before_reset=0, output_sequence=0):  # fmt: skip
    directions = _directions(direction)
    functions = _activations(activations, ("sigmoid", "tanh"), len(directions), activation_alpha,
                             activation_beta)  # fmt: skip
    layer = _Layer(bb, x, w, r, b, sequence_lens, layout, gates=3)

    def run(d, reverse):
        reset_bias = layer.last_recurrent_bias(d) if linear_before_reset else None
        kernel = partial(ops.gru, reverse=reverse, activations=functions[d], clip=_clip(clip))
        gates = layer.gates(d, without_last=bool(linear_before_reset))
        state = layer.state(initial_h, d)
        return layer.emit(kernel, "gru", gates, layer.recurrent(d), reset_bias, state)

    return layer.results([run(d, reverse) for d, reverse in enumerate(directions)])


@converter("RNN", 1, 7, 14, 22)
def rnn(bb, x, w, r, b=None, sequence_lens=None, initial_h=None, *, activation_alpha=None,
        activation_beta=None, activations=("Tanh", "Tanh"), clip=None, direction="forward",
        hidden_size=None, layout=0, output_sequence=0):  # fmt: skip
    directions = _directions(direction)
    functions = _activations(activations[: len(directions)], ("tanh",), len(directions),
                             activation_alpha, activation_beta)  # fmt: skip
    layer = _Layer(bb, x, w, r, b, sequence_lens, layout, gates=1)

    def run(d, reverse):
        kernel = partial(ops.rnn, reverse=reverse, activations=functions[d], clip=_clip(clip))
        state = layer.state(initial_h, d)
        return layer.emit(kernel, "rnn", layer.gates(d), layer.recurrent(d), state)

    return layer.results([run(d, reverse) for d, reverse in enumerate(directions)])


def _directions(direction):
    """Whether each direction runs in reverse."""
    known = {"forward": [False], "reverse": [True], "bidirectional": [False, True]}
    if direction not in known:
        raise NotImplementedError(f"direction {direction!r}")
    return known[direction]


class _Layer:
    """The operands of a recurrent node, taken apart by direction; sums run in ``dtype``."""

    def __init__(self, bb, x, w, r, b, sequence_lens, layout, gates):
        self.bb, self.layout, self.count = bb, layout, gates
        self.out_dtype = bb.dtype(x)
        self.dtype = accumulator(self.out_dtype)
        self.x = bb.emit(relax.op.permute_dims(x, [1, 0, 2])) if layout else x
        self.time, self.batch, self.features = bb.shape(self.x)
        self.w, self.r, self.b, self.lengths = w, r, b, sequence_lens
        self.hidden = bb.shape(r)[2]

    def emit(self, kernel, name, *operands):
        """The kernel's results: y, then the last states."""
        results = self.bb.emit_te(kernel, *operands, self.lengths, primfunc_name_hint=name)
        count = len(results.ty.fields)
        return [self.bb.emit(relax.TupleGetItem(results, k)) for k in range(count)]

    def gates(self, d, without_last=False):
        """The input of direction ``d`` projected, with its biases: [S, B, gates * H]."""
        bb, width = self.bb, self.count * self.hidden
        weights = transposed(bb, self.part(self.w, d))
        rows = bb.emit(relax.op.reshape(self.x, [self.time * self.batch, self.features]))
        y = product(bb, rows, weights)
        if self.b is not None:
            y = bb.emit(relax.op.add(y, self._bias(d, without_last)))
        return bb.emit(relax.op.reshape(y, [self.time, self.batch, width]))

    def recurrent(self, d):
        return self.wide(transposed(self.bb, self.part(self.r, d)))

    def _bias(self, d, without_last):
        """The biases of input and recurrence added; the last gate's recurrent one may stay out."""
        width, last = self.count * self.hidden, self.hidden
        own = self._slice(self.part(self.b, d), 0, width)
        recurrent = self._slice(self.part(self.b, d), width, 2 * width)
        if without_last:
            kept = np.ones(width, self.dtype)
            kept[width - last :] = 0
            recurrent = self._numeric(
                np.multiply, relax.op.multiply, recurrent, self.bb.const(kept)
            )
        return self._numeric(np.add, relax.op.add, own, recurrent)

    def last_recurrent_bias(self, d):
        if self.b is None:
            return self.bb.const(np.zeros(self.hidden, self.dtype))
        width = 2 * self.count * self.hidden
        return self._slice(self.part(self.b, d), width - self.hidden, width)

    def _numeric(self, now, later, a, b):
        """A binary operation, done now on constants."""
        arrays = constant(self.bb, a), constant(self.bb, b)
        if any(array is None for array in arrays):
            return self.bb.emit(later(a, b))
        return self.bb.const(now(*arrays))

    def _slice(self, vector, begin, end):
        vector = self.wide(vector)
        array = constant(self.bb, vector)
        if array is not None:
            return self.bb.const(array[begin:end])
        return self.bb.emit(relax.op.strided_slice(vector, [0], [begin], [end]))

    def part(self, x, d):
        """``x[d]``."""
        array = constant(self.bb, x)
        if array is not None:
            return self.bb.const(array[d])
        part = relax.op.strided_slice(x, [0], [d], [d + 1])
        return self.bb.emit(relax.op.squeeze(part, [0]))

    def state(self, initial, d):
        """The initial state of direction ``d``: [B, H]."""
        if initial is None:
            return self.bb.emit(relax.op.zeros([self.batch, self.hidden], self.dtype))
        if self.layout:
            initial = self.bb.emit(relax.op.permute_dims(initial, [1, 0, 2]))
        return self.wide(self.part(initial, d))

    def wide(self, x):
        return cast(self.bb, x, self.dtype)

    def results(self, directions):
        """Y, then the last states, from those of each direction."""
        y, *states = zip(*directions, strict=True)
        # y of a direction is [S, B, H], a state [B, H].
        y = self._joined(y, 2 if self.layout else 1)
        if self.layout:
            y = self.bb.emit(relax.op.permute_dims(y, [1, 0, 2, 3]))
        return y, *[self._joined(state, 1 if self.layout else 0) for state in states]

    def _joined(self, parts, axis):
        narrow = [cast(self.bb, part, self.out_dtype) for part in parts]
        return self.bb.emit(relax.op.stack(narrow, axis))
