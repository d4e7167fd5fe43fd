"""LSTM, GRU and RNN: one kernel per layer, with a serial loop over time.

The projection of the input is a matrix product over all steps at once and comes in as ``gates``,
biases included; the kernel adds the recurrent product step by step. Hidden units are rounded up
to P, whole panels of ``width`` units. A panel holds the recurrent weights of its units for all
gates, and makes their next state from the whole previous one. With D directions, S steps, B
sequences, G gates and H hidden units::

    gates[S, B, D, G, P]   panels[D, P / width, H, G, width]   states[D, B, H]

Of 8-bit weights, panels hold words of four neighbours in H, ``[D, P / width, H / 4, G, width]``.
``lengths[B]`` (or None) says how many steps of each sequence count. Results: ``y[S, D, B, H]`` (0
beyond the length), then the last states. ``reverse[d]`` runs from the last step of each sequence to
the first. ``activations[d]`` and ``clip`` map one scalar expression to another.
"""

from contextlib import contextmanager
from dataclasses import dataclass
from functools import reduce
from math import prod

import numpy as np
from tvm import DataType, te, tirx
from tvm.ir import Range
from tvm.script.ir_builder import IRBuilder
from tvm.tirx.script.builder import ir as T

from .integer_dots import BYTES, dot, word_of
from .quantization import code_range

__all__ = ["gru", "lstm", "panel_width", "rnn", "word_panels"]

# One vector register of the widest machines; a panel has whole ones per gate.
VECTOR_BYTES = 64
# Vectors that a panel has in all: with fewer, additions wait for each other.
PANEL_VECTORS = 4
# Recurrent weights that a core can keep in its own cache while it runs sequences alone.
SMALL_WEIGHTS = 512 << 10
_EXTREMES = [("low", tirx.min), ("high", tirx.max)]
# The most sequences that step together, with small weights and with others.
FEW_ROWS, MANY_ROWS = 4, 32


def panel_width(gates: int, hidden: int, dtype: str) -> int:
    """The hidden units of a panel that holds at least ``gates`` gates, in whole vectors."""
    lanes = VECTOR_BYTES // DataType(dtype).itemsize
    vectors = -(-hidden // lanes)
    panels = -(-vectors // -(-PANEL_VECTORS // gates))
    return -(-vectors // panels) * lanes


def word_panels(panels: np.ndarray) -> np.ndarray:
    """int8 ``[D, P / width, H, G, width]`` -> int32 ``[.., ceil(H/4), G, width]``, 0 behind H."""
    directions, count, depth, gates, width = panels.shape
    whole = np.pad(panels, ((0, 0), (0, 0), (0, -depth % BYTES), (0, 0), (0, 0)))
    split = whole.reshape(directions, count, -1, BYTES, gates, width)
    words = np.ascontiguousarray(np.moveaxis(split, 3, -1))
    return words.view("<i4")[..., 0].astype("int32")


def rnn(gates, panels, h0, lengths, *, reverse, activations, clip):
    """``h = f(gates + h @ r)``; returns ``y, h``."""
    (f,) = zip(*activations, strict=True)

    def step(scan, panels):
        with scan.panels(panels):
            acc = scan.product(panels, scan.hidden, scan.gates)
            scan.write_hidden(lambda b, j: scan.apply(f, clip(acc[b, 0, j])))

    return _kernel("rnn", step, gates, [panels], [h0], lengths, reverse)


def gru(gates, panels, candidate_panels, reset_bias, h0, lengths, *, reverse, activations, clip):
    """Gates in the order update (z), reset (r), hidden; returns ``y, h``.

    With a ``reset_bias[D, P]`` the reset gate applies to ``h @ r + reset_bias`` (ONNX: linear
    before reset) and ``panels`` hold all gates. Otherwise it applies to ``h`` itself, and
    ``candidate_panels`` hold the last gate alone.
    """
    f, g = zip(*activations, strict=True)

    def gate(scan, acc, k):
        return lambda b, j: scan.apply(f, clip(acc[b, k, j]))

    def write_blend(scan, update, candidate):
        def blend(b, j):
            z = update(b, j)
            return (tirx.const(1, z.ty) - z) * candidate(b, j) + z * scan.own(b, j)

        scan.write_hidden(blend)

    def linear_first(scan, panels, bias):
        def start(b, k, j):
            return tirx.Select(k == 2, bias[scan.d, scan.unit(j)], scan.gates(b, k, j))

        with scan.panels(panels):
            acc = scan.product(panels, scan.hidden, start)
            update = scan.named("update", gate(scan, acc, 0))
            reset = scan.named("reset", gate(scan, acc, 1))

            def candidate(b, j):
                return scan.apply(g, clip(scan.gates(b, 2, j) + reset(b, j) * acc[b, 2, j]))

            write_blend(scan, update, candidate)

    def reset_first(scan, panels, candidate_panels):
        update, kept = scan.units(), scan.units()
        with scan.panels(panels):
            acc = scan.product(panels, scan.hidden, scan.gates)
            reset = gate(scan, acc, 1)
            scan.write("update", update, gate(scan, acc, 0))
            scan.write("reset", kept, lambda b, j: reset(b, j) * scan.own(b, j))
        with scan.panels(candidate_panels):
            acc = scan.product(candidate_panels, lambda b, k: kept[b, k],
                               lambda b, k, j: scan.gates(b, 2, j))  # fmt: skip
            write_blend(scan, lambda b, j: update[b, scan.unit(j)],
                        lambda b, j: scan.apply(g, clip(acc[b, 0, j])))  # fmt: skip

    if reset_bias is None:
        operands = [panels, candidate_panels]
        return _kernel("gru", reset_first, gates, operands, [h0], lengths, reverse)
    return _kernel("gru", linear_first, gates, [panels, reset_bias], [h0], lengths, reverse)


def lstm(
    gates, panels, integers, peephole, h0, c0, lengths, *, reverse, activations, clip, input_forget
):
    """Gates in the order input, output, forget, cell; returns ``y, h, c``.

    ``peephole[D, 3, P]`` (or None) weighs the cell in the input, output and forget gates.
    ``input_forget`` makes the forget gate 1 - input gate. ``integers`` (or None): what the units of
    :func:`word_panels` are multiplied by, ``[D, 4, P]``, and their int32 sums over H; the hidden
    state of each sequence is rounded to 8 bits in front of the product then.
    """
    f, g, last = zip(*activations, strict=True)
    integers = integers or ()

    def step(scan, panels, *others):
        parameters, peepholes = others[: len(integers)], others[len(integers) :]
        rounded = scan.codes() if parameters else None

        def product(b, k, j):
            if rounded is None:
                return acc[b, k, j]
            scales, sums = (each[scan.d, k, scan.unit(j)] for each in parameters)
            total = (acc[b, k, j] - rounded.zeros[b] * sums).astype(scan.dtype)
            return scan.gates(b, k, j) + total * (rounded.scales[b] * scales)

        def cell(b, j):
            return scan.cell[b, scan.unit(j)]

        def gate(k):
            def value(b, j):
                total = product(b, k, j)
                for weights in peepholes:  # one, or none
                    total = total + weights[scan.d, k, scan.unit(j)] * cell(b, j)
                return scan.apply(f, clip(total))

            return value

        with scan.panels(panels):
            if rounded is None:
                acc = scan.product(panels, scan.hidden, scan.gates)
            else:
                acc = scan.dots(panels, rounded.word)
            enter = scan.named("input", gate(0))

            def next_cell(b, j):
                keep = tirx.const(1, scan.dtype) - enter(b, j) if input_forget else gate(2)(b, j)
                return keep * cell(b, j) + enter(b, j) * scan.apply(g, clip(product(b, 3, j)))

            scan.write_cell(next_cell)
            scan.write_hidden(lambda b, j: gate(1)(b, j) * scan.apply(last, cell(b, j)))

    operands = [panels, *integers, *([] if peephole is None else [peephole])]
    return _kernel("lstm", step, gates, operands, [h0, c0], lengths, reverse)


def _kernel(name, step, gates, operands, initial, lengths, reverse):
    """The kernel whose steps ``step(scan, *operands)`` emits; returns y, then the last states."""

    def body(ins, outs):
        *most, counts = [*ins, None] if lengths is None else ins
        scan = _Scan(most[0], most[1 : -len(initial)], most[-len(initial) :], counts, reverse)
        with IRBuilder() as builder, T.sblock(name):
            scan.emit(step, *outs)
        return builder.get()

    inputs = [gates, *operands, *initial, *([] if lengths is None else [lengths])]
    shapes = [state.shape for state in initial]
    shapes.insert(0, [gates.shape[0], *shapes[0]])
    # The block around an extern is the function's root; schedules look it up by that name.
    return te.extern(shapes, inputs, body, name="root", dtype=[gates.dtype] * len(shapes))


class _Scan:
    """Emits the loops of one kernel and the blocks in them.

    Directions, and groups of ``rows`` sequences, are independent of each other; what the last
    group has too many repeats the last sequence. In a group: the first states, then step by step
    all panels (again independent), each with its units of the result, at the end the last states.

    ``d``, ``group``, ``step`` and ``panel`` are variables of the blocks that are being emitted;
    values in a panel are functions of the row in the group and the unit in the panel.
    """

    def __init__(self, gates, operands, initial, lengths, reverse):
        self.projected, self.operands, self.initial = gates, operands, initial
        self.lengths, self.reverse = lengths, reverse
        self.dtype = str(gates.dtype)
        self.time, self.batch, self.directions, _, self.padded = gates.shape
        self.hidden_size = initial[0].shape[2]

    def emit(self, step, y, *last):
        """The whole kernel; ``step(scan, *operands)`` emits one step."""
        if isinstance(self.batch, int | tirx.IntImm):
            rows = _rows(int(self.batch), self.operands[0], int(self.directions))
            self._emit_groups(rows, -(-int(self.batch) // rows), 0, step, y, *last)
            return
        # One sequence alone, or one too many for groups, would repeat the work of a group.
        groups = tirx.floordiv(self.batch + (FEW_ROWS - 2), FEW_ROWS)
        single = tirx.floordiv(self.batch + (FEW_ROWS - 1), FEW_ROWS) - groups
        self._emit_groups(FEW_ROWS, groups, 0, step, y, *last)
        self._emit_groups(1, single, self.batch - 1, step, y, *last)

    def _emit_groups(self, rows, groups, first, step, y, *last):
        """So many groups of ``rows`` sequences, from number ``first`` on."""
        self.rows, self.first = _int64(rows), first
        with T.grid(self.directions, _int64(groups)) as loops, T.sblock("sequences"):
            self.d, self.group = T.axis.remap("SS", list(loops))
            # The hidden states before and after a step: panels need all of the one.
            self.hiddens = self.buffer(_int64(2), self.rows, self.padded)
            self.cell = self.units() if len(last) > 1 else None
            self.y = y
            self._first_states()
            with T.serial(_int64(0), self.time) as self.time_loop:
                step(self, *self.operands)
            self._last_states(last)

    def _first_states(self):
        with self.block("first_hidden", self.rows, self.padded) as (b, j):
            T.buffer_store(self.hiddens, self._first(0, b, j), [0, b, j])
        if self.cell is not None:
            with self.block("first_cell", self.rows, self.padded) as (b, j):
                T.buffer_store(self.cell, self._first(1, b, j), [b, j])

    def _first(self, k, b, j):
        unit = tirx.min(j, self.hidden_size - 1)
        zero = tirx.const(0, self.dtype)
        value = self.initial[k][self.d, self.sequence(b), unit]
        return tirx.Select(j < self.hidden_size, value, zero)

    def _last_states(self, last):
        for k, target in enumerate(last):
            with self.block("last", self.rows, self.hidden_size) as (b, j):
                value = self.cell[b, j] if k else self.hiddens[tirx.floormod(self.time, 2), b, j]
                T.buffer_store(target, value, [self.d, self.sequence(b), j])

    # --- what the operators emit ----------------------------------------------------------

    @contextmanager
    def panels(self, weights):
        """For each panel of ``weights``, a block around what is emitted inside."""
        self.width = weights.shape[4]
        with T.serial(_int64(0), weights.shape[1]) as loop, T.sblock("panel"):
            self.step = T.axis.opaque(Range(0, self.time), self.time_loop)
            self.panel = T.axis.spatial(Range(0, weights.shape[1]), loop)
            yield

    def product(self, weights, source, start):
        """``start(b, gate, j)`` plus ``source(b, unit)`` times the panel's weights."""
        return self._sum(weights, start, lambda b, k, weight: source(b, k) * weight, self.dtype)

    def dots(self, weights, word):
        """The products of the words ``word(b, k)`` and those of the panel's weights, summed."""
        zero = tirx.const(0, "int32")
        return self._sum(
            weights, lambda *_: zero, lambda b, k, weight: dot(word(b, k), weight), "int32"
        )

    def _sum(self, weights, start, term, dtype):
        """``start(b, gate, j)`` plus ``term(b, k, weight)`` of the panel's weights."""
        depth, gates = weights.shape[2:4]
        acc = self.buffer(self.rows, gates, self.width, dtype=dtype)
        with self.block("start", self.rows, gates, self.width) as (b, g, j):
            T.buffer_store(acc, start(b, g, j), [b, g, j])
        with self.block("recurrent_product", self.rows, depth, gates, self.width,
                        kinds="SRSS") as (b, k, g, j):  # fmt: skip
            weight = weights[self.d, self.panel, k, g, j]
            T.buffer_store(acc, acc[b, g, j] + term(b, k, weight), [b, g, j])
        return acc

    def named(self, name, value):
        """``value`` of the panel, computed once."""
        local = self.buffer(self.rows, self.width)
        with self.block(name, self.rows, self.width) as (b, j):
            T.buffer_store(local, value(b, j), [b, j])
        return lambda b, j: local[b, j]

    def codes(self):
        """The hidden states before the step, of each sequence as DynamicQuantizeLinear has them."""
        lanes = VECTOR_BYTES // DataType(self.dtype).itemsize
        extremes = [(name, self.buffer(self.rows, lanes), f) for name, f in _EXTREMES]
        for name, target, extreme in extremes:
            with self.block(f"{name}_start", self.rows, lanes) as (b, lane):
                T.buffer_store(target, tirx.const(0, self.dtype), [b, lane])
            with self.stepped(name, self.rows, self.padded // lanes, lanes, kinds="SRS") as axes:
                b, k, lane = axes
                value = extreme(target[b, lane], self.hidden(b, k * lanes + lane))
                T.buffer_store(target, value, [b, lane])
        scales, zeros = self.buffer(self.rows), self.buffer(self.rows, dtype="int32")
        with self.block("parameters", self.rows, _int64(1)) as (b, _):
            least, most = (
                reduce(extreme, (target[b, lane] for lane in range(lanes)))
                for _, target, extreme in extremes
            )
            start, scale = code_range(least, most)
            T.buffer_store(scales, scale, [b])
            T.buffer_store(zeros, tirx.nearbyint(-start / scale).astype("int32"), [b])
        codes = self.buffer(self.rows, self.padded, dtype="uint8")
        with self.stepped("codes", self.rows, self.padded) as (b, j):
            code = tirx.nearbyint(self.hidden(b, j) / scales[b]).astype("int32") + zeros[b]
            code = tirx.max(tirx.min(code, tirx.const(255, "int32")), tirx.const(0, "int32"))
            T.buffer_store(codes, code.astype("uint8"), [b, j])
        words = self.buffer(self.rows, self.padded // BYTES, dtype="int32")
        # The last axis is of one, since a word is loaded at once where words are no vector.
        with self.block("words", self.rows, self.padded // BYTES, _int64(1)) as (b, k, _):
            T.buffer_store(words, word_of(lambda at: codes[b, at], k, None, False), [b, k])
        return _Codes(scales, zeros, words)

    def write(self, name, target, value):
        """``value`` of the panel into its units of ``target``; kept where no step counts."""
        with self.block(name, self.rows, self.width) as (b, j):
            T.buffer_store(target, value(b, j), [b, self.unit(j)])

    def write_cell(self, value):
        """The next cell state."""

        def counted(b, j):
            return self._where_counted(b, value(b, j), self.cell[b, self.unit(j)])

        self.write("cell", self.cell, counted)

    def write_hidden(self, value):
        """The next hidden state, and the result of the step."""
        with self.block("hidden", self.rows, self.width) as (b, j):
            kept = self._where_counted(b, value(b, j), self.own(b, j))
            T.buffer_store(self.hiddens, kept, [self._after(), b, self.unit(j)])
        with T.grid(self.rows, self.width) as loops, T.sblock("result"):
            T.where(self.unit(loops[1]) < self.hidden_size)
            b, j = T.axis.remap("SS", list(loops))
            value = self.hiddens[self._after(), b, self.unit(j)]
            value = self._where_counted(b, value, tirx.const(0, self.dtype))
            T.buffer_store(self.y, value, [self._place(b), self.d, self.sequence(b), self.unit(j)])

    def units(self):
        """A buffer for one value per row and unit."""
        return self.buffer(self.rows, self.padded)

    def gates(self, b, k, j):
        """The projected input of gate ``k``."""
        return self.projected[self._place(b), self.sequence(b), self.d, k, self.unit(j)]

    def hidden(self, b, unit):
        """The hidden state before the step, of any unit."""
        return self.hiddens[tirx.floormod(self.step, 2), b, unit]

    def own(self, b, j):
        """The hidden state before the step, of a unit of the panel."""
        return self.hidden(b, self.unit(j))

    def unit(self, j):
        """The unit of the layer."""
        return self.panel * self.width + j

    def apply(self, functions, x):
        """The function of this direction."""
        first, *others = functions
        if all(other is first for other in others):
            return first(x)
        return tirx.Select(self.d == 0, *(function(x) for function in functions))

    # --- plumbing -------------------------------------------------------------------------

    def buffer(self, *shape, dtype=None):
        return T.sblock_alloc_buffer(shape, dtype or self.dtype)

    @contextmanager
    def block(self, name, *extents, kinds=None):
        with T.grid(*extents) as loops, T.sblock(name):
            yield T.axis.remap(kinds or "S" * len(extents), list(loops))

    @contextmanager
    def stepped(self, name, *extents, kinds=None):
        """A block outside of panels that reads the states of the step."""
        with T.grid(*extents) as loops, T.sblock(name):
            self.step = T.axis.opaque(Range(0, self.time), self.time_loop)
            yield T.axis.remap(kinds or "S" * len(extents), list(loops))

    def sequence(self, b):
        """The sequence that is row ``b`` of the group."""
        return tirx.min(self.first + self.group * self.rows + b, self.batch - 1)

    def _after(self):
        return tirx.floormod(self.step + 1, 2)

    def _place(self, b):
        """The element of the sequence that this step works on."""
        if not any(self.reverse):
            return self.step
        back = self.time - 1 - self.step
        if self.lengths is not None:
            own = self.lengths[self.sequence(b)].astype("int64") - 1 - self.step
            back = tirx.Select(self._counted(b), own, self.step)
        return back if all(self.reverse) else tirx.Select(self.d == 0, self.step, back)

    def _counted(self, b):
        return self.step < self.lengths[self.sequence(b)].astype("int64")

    def _where_counted(self, b, value, otherwise):
        return value if self.lengths is None else tirx.Select(self._counted(b), value, otherwise)


@dataclass(frozen=True)
class _Codes:
    """States as ``scales[b] * (code - zeros[b])``, codes in words of four neighbours."""

    scales: tirx.Var
    zeros: tirx.Var
    words: tirx.Var

    def word(self, b, k):
        return self.words[b, k]


def _rows(batch: int, panels, directions: int) -> int:
    """How many sequences step together."""
    weights = prod(map(int, panels.shape[1:])) * DataType(str(panels.dtype)).itemsize
    small = weights <= SMALL_WEIGHTS
    groups = -(-batch // (FEW_ROWS if small else MANY_ROWS))
    # With small weights, two groups are better than one: they need not meet at every step. Two
    # directions are.
    least = 2 if small and directions == 1 else 1
    rows = -(-batch // max(groups, min(batch, least)))
    # Whole register tiles of 4, 5 or 6 rows.
    return rows if rows <= 6 else min(-(-rows // tile) * tile for tile in (4, 5, 6))


def _int64(value):
    return tirx.const(value, "int64") if isinstance(value, int) else value
