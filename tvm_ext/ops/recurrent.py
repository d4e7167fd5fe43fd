"""LSTM, GRU and RNN: one kernel per direction, with a serial loop over time.

The projection of the input is a matrix product over all steps at once and comes in as ``gates``,
biases included; a kernel adds the recurrent product step by step. ``gates`` is ``[S, B, G*H]``,
the recurrent weights ``r`` are ``[H, G*H]``, states are ``[B, H]``; ``lengths[B]`` (or None) says
how many steps of each sequence count. Results: ``y[S, B, H]`` (0 beyond the length), then the last
states. ``reverse`` runs from the last step of each sequence to the first. ``activations`` and
``clip`` map one scalar expression to another.
"""

from contextlib import contextmanager

from tvm import te, tirx
from tvm.ir import Range
from tvm.script.ir_builder import IRBuilder
from tvm.tirx.script.builder import ir as T

__all__ = ["gru", "lstm", "rnn"]


def rnn(gates, r, h0, lengths, *, reverse, activations, clip):
    """``h = f(gates + h @ r)``; returns ``y, h``."""
    (f,) = activations

    def steps(scan, gates, r, h0, y, h):
        scan.copy("first_hidden", h0, h)
        acc = scan.buffer(gates.shape[2])
        with scan.loop():
            scan.start(acc, gates)
            scan.product(acc, h, r)
            scan.hidden(y, h, lambda b, j: f(clip(acc[b, j])))

    return _scan("rnn", steps, gates, r, [h0], lengths, reverse)


def gru(gates, r, reset_bias, h0, lengths, *, reverse, activations, clip):
    """Gates in the order update (z), reset (r), hidden; returns ``y, h``.

    With a ``reset_bias[H]`` the reset gate applies to ``h @ r + reset_bias`` (ONNX: linear before
    reset), otherwise to ``h`` itself.
    """
    f, g = activations
    hidden = r.shape[0]

    def update(acc, candidate, h):
        def blend(b, j):
            # Built once per use: an expression that binds variables must not occur twice.
            kept = f(clip(acc[b, j])) * h[b, j]
            return (tirx.const(1, h.dtype) - f(clip(acc[b, j]))) * candidate(b, j) + kept

        return blend

    def linear_first(scan, gates, r, reset_bias, h0, y, h):
        scan.copy("first_hidden", h0, h)
        acc = scan.buffer(gates.shape[2])

        def candidate(b, j):
            reset = f(clip(acc[b, hidden + j]))
            return g(clip(scan.at(gates, b, 2 * hidden + j) + reset * acc[b, 2 * hidden + j]))

        with scan.loop():
            scan.start(acc, gates, 2 * hidden)
            with scan.block("reset_bias", hidden) as (b, j):
                T.buffer_store(acc, reset_bias[j], [b, 2 * hidden + j])
            scan.product(acc, h, r)
            scan.hidden(y, h, update(acc, candidate, h))

    def reset_first(scan, gates, r, h0, y, h):
        scan.copy("first_hidden", h0, h)
        acc, kept = scan.buffer(gates.shape[2]), scan.buffer(hidden)
        with scan.loop():
            scan.start(acc, gates)
            scan.product(acc, h, r, 0, 2 * hidden)
            with scan.block("reset", hidden) as (b, j):
                T.buffer_store(kept, f(clip(acc[b, hidden + j])) * h[b, j], [b, j])
            scan.product(acc, kept, r, 2 * hidden, 3 * hidden)
            scan.hidden(y, h, update(acc, lambda b, j: g(clip(acc[b, 2 * hidden + j])), h))

    if reset_bias is None:
        return _scan("gru", reset_first, gates, r, [h0], lengths, reverse)
    return _scan("gru", linear_first, gates, r, [h0], lengths, reverse, [reset_bias])


def lstm(gates, r, peephole, h0, c0, lengths, *, reverse, activations, clip, input_forget):
    """Gates in the order input, output, forget, cell; returns ``y, h, c``.

    ``peephole[3*H]`` (or None) weighs the cell in the input, output and forget gates.
    ``input_forget`` makes the forget gate 1 - input gate.
    """
    f, g, last = activations
    hidden = r.shape[0]

    def steps(scan, gates, r, *rest):
        *weights, h0, c0, y, h, c = rest
        scan.copy("first_hidden", h0, h)
        scan.copy("first_cell", c0, c)
        acc = scan.buffer(gates.shape[2])

        def gate(k, b, j):
            value = acc[b, k * hidden + j]
            for weight in weights:  # one, or none
                value = value + weight[k * hidden + j] * c[b, j]
            return f(clip(value))

        def cell(b, j):
            keep = tirx.const(1, c.dtype) - gate(0, b, j) if input_forget else gate(2, b, j)
            return keep * c[b, j] + gate(0, b, j) * g(clip(acc[b, 3 * hidden + j]))

        with scan.loop():
            scan.start(acc, gates)
            scan.product(acc, h, r)
            with scan.block("cell", hidden) as (b, j):
                T.buffer_store(c, scan.where_counted(b, cell(b, j), c[b, j]), [b, j])
            scan.hidden(y, h, lambda b, j: gate(1, b, j) * last(c[b, j]))

    extra = [] if peephole is None else [peephole]
    return _scan("lstm", steps, gates, r, [h0, c0], lengths, reverse, extra)


def _scan(name, steps, gates, r, states, lengths, reverse, extra=()):
    """The kernel whose body ``steps(scan, gates, r, *extra, *states, y, *last_states)`` emits."""
    time, batch, _ = gates.shape
    shape = (batch, r.shape[0])

    def body(ins, outs):
        inputs, counts = (ins, None) if lengths is None else (ins[:-1], ins[-1])
        with IRBuilder() as builder, T.sblock(name):
            steps(_Scan(inputs[0], counts, reverse), *inputs, *outs)
        return builder.get()

    operands = [gates, r, *extra, *states, *([] if lengths is None else [lengths])]
    shapes = [(time, *shape), *[shape] * len(states)]
    # The block around an extern is the function's root; schedules look it up by that name.
    return te.extern(shapes, operands, body, name="root", dtype=[gates.dtype] * len(shapes))


class _Scan:
    """Emits the blocks of one kernel; in a time loop, every block knows its step."""

    def __init__(self, gates, lengths, reverse):
        self.time, self.batch, _ = gates.shape
        self.dtype = gates.dtype
        self.lengths, self.reverse = lengths, reverse
        self.loop_var = self.step = None

    def buffer(self, width):
        return T.sblock_alloc_buffer((self.batch, width), self.dtype)

    @contextmanager
    def loop(self):
        with T.serial(0, self.time) as self.loop_var:
            yield
        self.loop_var = None

    @contextmanager
    def block(self, name, *extents, kinds="S"):
        """A block over (batch, *extents); ``kinds`` of the extents."""
        with T.grid(self.batch, *extents) as loops, T.sblock(name):
            if self.loop_var is not None:
                self.step = T.axis.opaque(Range(0, self.time), self.loop_var)
            yield T.axis.remap("S" + kinds, list(loops))

    def copy(self, name, source, target):
        with self.block(name, target.shape[1]) as (b, j):
            T.buffer_store(target, source[b, j], [b, j])

    def start(self, acc, gates, width=None):
        """``acc[b, j] = gates[step, b, j]`` for the first ``width`` columns."""
        with self.block("start", width or gates.shape[2]) as (b, j):
            T.buffer_store(acc, self.at(gates, b, j), [b, j])

    def product(self, acc, source, r, low=0, high=None):
        """``acc[b, low:high] += source[b] @ r[:, low:high]``, row by row of ``r``."""
        width = (r.shape[1] if high is None else high) - low
        with self.block("recurrent_product", r.shape[0], width, kinds="RS") as (b, k, j):
            total = acc[b, low + j] + source[b, k] * r[k, low + j]
            T.buffer_store(acc, total, [b, low + j])

    def hidden(self, y, h, value):
        """The new hidden state, and its copy in the result."""
        with self.block("hidden", h.shape[1]) as (b, j):
            T.buffer_store(h, self.where_counted(b, value(b, j), h[b, j]), [b, j])
            zero = tirx.const(0, self.dtype)
            T.buffer_store(y, self.where_counted(b, h[b, j], zero), [self.place(b), b, j])

    def at(self, gates, b, j):
        return gates[self.place(b), b, j]

    def place(self, b):
        """The element of the sequence that this step works on."""
        if not self.reverse:
            return self.step
        if self.lengths is None:
            return self.time - 1 - self.step
        back = self.lengths[b].astype("int64") - 1 - self.step
        return tirx.Select(self.counted(b), back, self.step)

    def counted(self, b):
        return self.step < self.lengths[b].astype("int64")

    def where_counted(self, b, value, otherwise):
        return value if self.lengths is None else tirx.Select(self.counted(b), value, otherwise)
