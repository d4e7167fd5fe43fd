"""The parts of support vector machines that are no matrix product.

Of C classes, pair (i, j), i < j, has a score above 0 where i wins; pairs come in lexical order.
"""

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

    def wins(values, row, i, j):
        """The probability that class ``i`` wins against class ``j``."""
        loss = values[row, _pair(tirx.min(i, j), tirx.max(i, j), classes)]
        own = sigmoid(tirx.Select(i < j, tirx.const(0, "float32") - loss, loss))
        return tirx.max(tirx.min(own, 1 - LEAST), LEAST)

    def body(ins, outs):
        (values,), (p, r, q, qp, total, worst, step) = ins, outs

        def set_(buffer, value, *index):
            T.buffer_store(buffer, value, list(index))

        def add(buffer, value, *index):
            set_(buffer, buffer[index] + value, *index)

        def prepare(row):
            with T.grid(classes, classes) as (i, j):
                set_(r, wins(values, row, i, j), i, j)
            with T.serial(0, classes) as i:
                set_(p, tirx.const(1 / classes, "float32"), row, i)
                set_(q, tirx.const(0, "float32"), i, i)
                with T.serial(0, classes) as j:
                    with T.If(i != j), T.Then():
                        set_(q, tirx.const(0, "float32") - r[j, i] * r[i, j], i, j)
                        add(q, r[j, i] * r[j, i], i, i)

        def measure(row):
            set_(total, tirx.const(0, "float32"), 0)
            set_(worst, tirx.const(0, "float32"), 0)
            with T.serial(0, classes) as i:
                set_(qp, tirx.const(0, "float32"), i)
                with T.serial(0, classes) as j:
                    add(qp, q[i, j] * p[row, j], i)
                add(total, p[row, i] * qp[i], 0)
            with T.serial(0, classes) as i:
                set_(worst, tirx.max(worst[0], tirx.abs(qp[i] - total[0])), 0)

        def improve(row):
            with T.serial(0, classes) as i:
                set_(step, (total[0] - qp[i]) / q[i, i], 0)
                change, scale = step[0], step[0] + 1
                add(p, change, row, i)
                gain = change * (change * q[i, i] + qp[i] * 2)
                set_(total, (total[0] + gain) / scale / scale, 0)
                with T.serial(0, classes) as j:
                    set_(qp, (qp[j] + change * q[i, j]) / scale, j)
                    set_(p, p[row, j] / scale, row, j)

        def couple(row):
            prepare(row)
            measure(row)
            with T.serial(0, STEPS):
                with T.If(worst[0] >= PRECISION / classes), T.Then():
                    improve(row)
                    measure(row)

        return serial.nest([rows], couple)

    square = classes, classes
    shapes = [(rows, classes), square, square, (classes,), (1,), (1,), (1,)]
    outs = serial.kernel(shapes, ["float32"] * 7, [against], body, "coupled")
    return outs[0]
