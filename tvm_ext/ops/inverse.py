"""Inverses of square matrices."""

from tvm import te, tirx
from tvm.script.ir_builder import tirx as T

from . import serial

__all__ = ["inverse"]


def inverse(x):
    """The inverses of ``x[B, M, M]``: Gauss-Jordan, pivots by rows, in float64.

    A singular matrix gives infinities and NaN.
    """
    batch, size = x.shape[0], x.shape[1]

    def body(ins, outs):
        (source,) = ins
        result, matrix, row, number, pivot = outs

        def put(buffer, value, *index):
            T.buffer_store(buffer, value, list(index))

        def one_matrix(b):
            with T.grid(size, size) as (i, j):
                put(matrix, source[b, i, j].astype("float64"), b, i, j)
                put(result, tirx.Select(i == j, 1.0, 0.0).astype("float64"), b, i, j)
            with T.serial(0, size) as k:
                find_pivot(b, k)
                for both in (matrix, result):
                    exchange(both, b, k)
                put(number, matrix[b, k, k], b)
                with T.serial(0, size) as j:
                    for both in (matrix, result):
                        put(both, both[b, k, j] / number[b], b, k, j)
                with T.serial(0, size) as i:
                    serial.when(i != k, lambda: subtract(b, k, i))

        def find_pivot(b, k):
            put(pivot, k.astype("int64"), b)
            with T.serial(0, size) as i:
                larger = tirx.abs(matrix[b, i, k]) > tirx.abs(matrix[b, pivot[b], k])
                serial.when(tirx.all(i > k, larger), lambda: put(pivot, i.astype("int64"), b))

        def exchange(both, b, k):
            with T.serial(0, size) as j:
                put(row, both[b, k, j], b, j)
                put(both, both[b, pivot[b], j], b, k, j)
                put(both, row[b, j], b, pivot[b], j)

        def subtract(b, k, i):
            put(number, matrix[b, i, k], b)
            with T.serial(0, size) as j:
                for both in (matrix, result):
                    put(both, both[b, i, j] - number[b] * both[b, k, j], b, i, j)

        return serial.nest([batch], one_matrix)

    square = batch, size, size
    shapes, dtypes = [square, square, (batch, size), (batch,), (batch,)], ["float64"] * 4
    found = serial.kernel(shapes, [*dtypes, "int64"], [x], body, "elimination")[0]
    return te.compute(square, lambda *i: found(*i).astype(x.dtype), "inverse")
