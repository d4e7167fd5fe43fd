"""Linear attention: a matrix of state per head, which each step decays, corrects and reads.

A step t of a head has ``q[Dk]``, ``k[Dk]``, ``v[Dv]`` and a state ``S[Dk, Dv]``::

    S = exp(decay) * S                    where there is a decay: one per head, or per row of S
    S = S + k (beta * (v - S^T k))^T      with the delta rule; else S + k v^T
    y = scale * S^T q

Heads are independent, steps are not: one kernel, a serial loop over time, no buffer but the state.
"""

from tvm import te, tirx
from tvm.script.ir_builder import IRBuilder
from tvm.tirx.script.builder import ir as T

from .approximations import exp

__all__ = ["linear_attention"]


def linear_attention(q, k, v, state, decay, beta, ends, scale, delta):
    """All steps of all sequences, which lie behind each other in N rows.

    ``q[N, Hq, Dk]``, ``k[N, Hk, Dk]``, ``v[N, H, Dv]``, ``state[B, H, Dk, Dv]`` (float32),
    ``decay[N, H, 1 or Dk]`` or None, ``beta[N, 1 or H]`` or None (needed if ``delta``). Heads that
    are fewer serve several of the others. ``ends[B]`` (int32, or None: all are of one length) is
    the row behind the last one of each sequence. ``scale`` None is 1 / sqrt(Dk).
    Returns ``y[N, max(Hq, H), Dv]``, the last states, and what the last step added by ``k``
    (scratch); all in float32.
    """
    rows, heads, width = v.shape
    readers = max(int(q.shape[1]), int(heads))
    shapes = [(rows, readers, width), state.shape, (*state.shape[:2], width)]
    given = [x for x in (q, k, v, state, decay, beta, ends) if x is not None]

    def body(ins, outs):
        names = [n for n, x in zip(_NAMES, (q, k, v, state, decay, beta, ends), strict=True)
                 if x is not None]  # fmt: skip
        step = _Step(dict.fromkeys(_NAMES) | dict(zip(names, ins, strict=True)), outs, scale, delta)
        with IRBuilder() as builder:
            step.emit()
        return builder.get()

    # The block around an extern is the function's root; schedules look it up by that name.
    return te.extern(shapes, given, body, name="root", dtype=["float32"] * 3)


_NAMES = ("q", "k", "v", "state", "decay", "beta", "ends")


class _Step:
    """Emits the loops: over sequences and heads, then time, then the state."""

    def __init__(self, operands, results, scale, delta):
        self.operands, self.delta = operands, delta
        self.y, self.last, self.added = results
        self.batch, self.heads, self.depth, self.width = operands["state"].shape
        if scale is None:
            self.scale = tirx.rsqrt(self.depth.astype("float32"))
        else:
            self.scale = tirx.const(scale, "float32")

    def emit(self):
        with T.grid(self.batch, self.heads) as loops, T.sblock("heads"):
            self.b, self.h = T.axis.remap("SS", list(loops))
            self._regions()
            self.kept = T.sblock_alloc_buffer((2,), "float32", scope="local")
            self._each(lambda i, j: self._set(i, j, self.operands["state"][self.b, self.h, i, j]))
            first, count = self._span()
            with T.serial(0, count) as t:
                self.row = first + t
                self._step()

    def _regions(self):
        """What a head reads and writes; of its own results, too, it reads."""
        T.reads(*(x[tuple(slice(0, d) for d in x.shape)] for x in self.operands.values()
                  if x is not None))  # fmt: skip
        T.writes(
            self.y[0 : self.y.shape[0], 0 : self.y.shape[1], 0 : self.width],
            self.last[self.b, self.h, 0 : self.depth, 0 : self.width],
            self.added[self.b, self.h, 0 : self.width],
        )

    def _span(self):
        """The first row of the sequence, and how many it has."""
        rows, ends = self.operands["v"].shape[0], self.operands["ends"]
        if ends is None:
            count = tirx.floordiv(rows, tirx.max(self.batch, 1))
            return self.b * count, count

        def bounded(row):
            return tirx.max(tirx.min(row.astype("int64"), rows), 0)

        nothing, before = tirx.const(0, ends.dtype), tirx.max(self.b - 1, 0)
        first = bounded(tirx.if_then_else(self.b > 0, ends[before], nothing))
        return first, tirx.max(bounded(ends[self.b]) - first, 0)

    def _step(self):
        """Two passes over the state: it decays as it is asked, and is read as it is corrected."""
        b, h = self.b, self.h
        with T.serial(0, self.width) as j:
            T.buffer_store(self.added, tirx.const(0.0, "float32"), [b, h, j])
        self._recall()
        with T.serial(0, self.width) as j:
            value = self._read("v", h, j)
            if self.delta:
                value = self._read("beta", h) * (value - self.added[b, h, j])
            T.buffer_store(self.added, value, [b, h, j])
        group = int(self.y.shape[1]) // int(self.heads)
        self._answer(h * group, corrects=True)
        with T.serial(1, group) as reader:
            self._answer(h * group + reader, corrects=False)

    def _recall(self):
        """Decay the state, and with the delta rule sum up what it holds for the key."""
        decay = self.operands["decay"]
        if decay is None and not self.delta:
            return
        b, h = self.b, self.h
        with T.serial(0, self.depth) as i:
            self._keep(0, self._read("k", h, i))
            if decay is not None:
                column = tirx.min(i, decay.shape[2] - 1)
                self._keep(1, exp(decay[self.row, h, column].astype("float32")))
            with T.serial(0, self.width) as j:
                if decay is not None:
                    self._set(i, j, self.last[b, h, i, j] * self.kept[1])
                if self.delta:
                    held = self.added[b, h, j] + self.kept[0] * self.last[b, h, i, j]
                    T.buffer_store(self.added, held, [b, h, j])

    def _answer(self, reader, corrects):
        """What a query reads of the state, to which the first one adds what the step adds."""
        b, h, row = self.b, self.h, self.row
        with T.serial(0, self.width) as j:
            T.buffer_store(self.y, tirx.const(0.0, "float32"), [row, reader, j])
        with T.serial(0, self.depth) as i:
            self._keep(0, self._read("k", h, i))
            self._keep(1, self._read("q", reader, i) * self.scale)
            with T.serial(0, self.width) as j:
                if corrects:
                    self._set(i, j, self.last[b, h, i, j] + self.kept[0] * self.added[b, h, j])
                total = self.y[row, reader, j] + self.kept[1] * self.last[b, h, i, j]
                T.buffer_store(self.y, total, [row, reader, j])

    def _keep(self, place, value):
        T.buffer_store(self.kept, value, [place])

    def _read(self, name, head, *place):
        """An element of this row as float32; ``head`` is one of the most heads that there are."""
        x = self.operands[name]
        most = int(self.y.shape[1]) if name == "q" else int(self.heads)
        own = tirx.min(head, x.shape[1] - 1)
        if isinstance(x.shape[1], tirx.IntImm):
            own = tirx.floordiv(head * int(x.shape[1]), most)
        return x[(self.row, own, *place)].astype("float32")

    def _each(self, store):
        with T.serial(0, self.depth) as i, T.serial(0, self.width) as j:
            store(i, j)

    def _set(self, i, j, value):
        T.buffer_store(self.last, value.astype("float32"), [self.b, self.h, i, j])
