"""The parts of support vector machines that are no matrix product.

Of C classes, pair (i, j), i < j, has a score above 0 where i wins; pairs come in lexical order.
"""

from dataclasses import dataclass

from tvm import te, tirx
from tvm.script.ir_builder import tirx as T

from . import serial
from .approximations import exp, sigmoid

__all__ = ["coupled", "radial_basis", "votes"]

# The bounds of pairwise probabilities, and the steps and precision of coupling them.
LEAST, STEPS, PRECISION = 1e-7, 100, 0.005


def radial_basis(x, vectors, gamma):
    """``exp(-gamma |x[r] - vectors[v]|**2)``, ``[R, V]``; differences are taken before squares."""
    f = te.reduce_axis((0, x.shape[1]), "f")

    def square(r, v):
        difference = x[r, f] - vectors[v, f]
        return te.sum(difference * difference, axis=f)

    distance = te.compute((x.shape[0], vectors.shape[0]), square, "distance")
    return te.compute(distance.shape, lambda *i: exp(distance(*i) * -gamma), "radial_basis")


def votes(scores, classes):
    """How many pairs each class wins: ``[R, pairs] -> float32[R, C]``."""
    other = te.reduce_axis((0, classes), "k")

    def wins(r, c):
        k = other.var  # tirx.min of an axis would reduce along it
        won = scores[r, _pair(tirx.min(c, k), tirx.max(c, k), classes)] > 0
        won = tirx.Select(c < k, won, tirx.Not(won))
        return te.sum(tirx.all(won, c != k).astype("float32"), axis=other)

    return te.compute((scores.shape[0], classes), wins, "votes")


def _pair(i, j, classes):
    """The place of a pair; of a class with itself, some place."""
    place = i * classes - tirx.floordiv(i * (i + 1), 2) + j - i - 1
    return tirx.max(tirx.min(place, classes * (classes - 1) // 2 - 1), 0)


def coupled(against, classes):
    """Probabilities of classes from those of pairs: ``[R, pairs] -> [R, C]``.

    Class i wins pair (i, j) with probability ``1 - sigmoid(against)``. The probabilities minimise
    the sum over pairs of ``(r[j, i] p[i] - r[i, j] p[j])**2``, by the method of Wu, Lin and Weng
    (2004), section 4, with the precision and the number of steps that libsvm has.
    """
    rows, _ = against.shape

    def body(inputs, outputs):
        return serial.nest([rows], _Coupling(classes, *inputs, *outputs).couple)

    square = classes, classes
    shapes = [(rows, classes), square, square, (classes,), (1,), (1,), (1,)]
    outs = serial.kernel(shapes, ["float32"] * 7, [against], body, "coupled")
    return outs[0]


@dataclass(frozen=True)
class _Coupling:
    """What is emitted for a row of pairs, with the letters of the paper: minimise ``p' Q p``."""

    classes: int
    against: tirx.Var
    p: tirx.Var
    r: tirx.Var
    q: tirx.Var
    qp: tirx.Var
    total: tirx.Var
    worst: tirx.Var
    step: tirx.Var

    def couple(self, row):
        """Steps until the error is small."""
        self.prepare(row)
        self.measure(row)
        with T.serial(0, STEPS):
            with T.If(self.worst[0] >= PRECISION / self.classes), T.Then():
                self.improve(row)
                self.measure(row)

    def prepare(self, row):
        """The matrix, and probabilities to start from."""
        p, r, q, zero = self.p, self.r, self.q, tirx.const(0, "float32")
        with T.grid(self.classes, self.classes) as (i, j):
            _set(r, self.wins(row, i, j), i, j)
        with T.serial(0, self.classes) as i:
            _set(p, tirx.const(1 / self.classes, "float32"), row, i)
            _set(q, zero, i, i)
            with T.serial(0, self.classes) as j, T.If(i != j), T.Then():
                _set(q, zero - r[j, i] * r[i, j], i, j)
                _add(q, r[j, i] * r[j, i], i, i)

    def wins(self, row, i, j):
        """The probability that class ``i`` wins against class ``j``."""
        loss = self.against[row, _pair(tirx.min(i, j), tirx.max(i, j), self.classes)]
        own = sigmoid(tirx.Select(i < j, tirx.const(0, "float32") - loss, loss))
        return tirx.max(tirx.min(own, 1 - LEAST), LEAST)

    def measure(self, row):
        """``Q p``, ``p' Q p`` and how far they are from the minimum, where all are equal."""
        p, q, qp, zero = self.p, self.q, self.qp, tirx.const(0, "float32")
        _set(self.total, zero, 0)
        _set(self.worst, zero, 0)
        with T.serial(0, self.classes) as i:
            _set(qp, zero, i)
            with T.serial(0, self.classes) as j:
                _add(qp, q[i, j] * p[row, j], i)
            _add(self.total, p[row, i] * qp[i], 0)
        with T.serial(0, self.classes) as i:
            _set(self.worst, tirx.max(self.worst[0], tirx.abs(qp[i] - self.total[0])), 0)

    def improve(self, row):
        """A step along each class in turn, to the minimum there."""
        p, q, qp, total = self.p, self.q, self.qp, self.total
        with T.serial(0, self.classes) as i:
            _set(self.step, (total[0] - qp[i]) / q[i, i], 0)
            change, scale = self.step[0], self.step[0] + 1
            _add(p, change, row, i)
            gain = change * (change * q[i, i] + qp[i] * 2)
            _set(total, (total[0] + gain) / scale / scale, 0)
            with T.serial(0, self.classes) as j:
                _set(qp, (qp[j] + change * q[i, j]) / scale, j)
                _set(p, p[row, j] / scale, row, j)


def _set(buffer, value, *index):
    T.buffer_store(buffer, value, list(index))


def _add(buffer, value, *index):
    _set(buffer, buffer[index] + value, *index)
