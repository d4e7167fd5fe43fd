"""Determinants of square matrices."""

from tvm import te, tirx
from tvm.script.ir_builder import tirx as T

from . import serial

__all__ = ["determinant"]


def determinant(x):
    """``[B]`` determinants of ``x[B, M, M]``: Gauss elimination, pivots by rows, in float64."""
    batch, size = x.shape[0], x.shape[1]
    zero, one = tirx.const(0.0, "float64"), tirx.const(1.0, "float64")

    def body(ins, outs):
        (source,) = ins
        result, matrix, spare, pivot = outs

        def one_matrix(b):
            T.buffer_store(result, one, [b])
            with T.grid(size, size) as (i, j):
                T.buffer_store(matrix, source[b, i, j].astype("float64"), [b, i, j])
            with T.serial(0, size) as k:
                find_pivot(b, k)
                exchange(b, k)
                T.buffer_store(result, result[b] * matrix[b, k, k], [b])
                eliminate(b, k)

        def find_pivot(b, k):
            T.buffer_store(pivot, k.astype("int64"), [b])
            with T.serial(0, size) as i:
                larger = tirx.abs(matrix[b, i, k]) > tirx.abs(matrix[b, pivot[b], k])
                below = i > k
                serial.when(
                    tirx.all(below, larger),
                    lambda: T.buffer_store(pivot, i.astype("int64"), [b]),
                )

        def exchange(b, k):
            differs = tirx.NE(pivot[b], k.astype("int64"))
            serial.when(differs, lambda: T.buffer_store(result, zero - result[b], [b]))
            with T.serial(0, size) as j:
                T.buffer_store(spare, matrix[b, k, j], [b])
                T.buffer_store(matrix, matrix[b, pivot[b], j], [b, k, j])
                T.buffer_store(matrix, spare[b], [b, pivot[b], j])

        def eliminate(b, k):
            with T.grid(size, size) as (i, j):
                factor = matrix[b, i, k] / matrix[b, k, k]
                reduced = matrix[b, i, j] - factor * matrix[b, k, j]
                serial.when(
                    tirx.all(i > k, j > k, tirx.NE(matrix[b, k, k], zero)),
                    lambda: T.buffer_store(matrix, reduced, [b, i, j]),
                )

        return serial.nest([batch], one_matrix)

    shapes = [(batch,), (batch, size, size), (batch,), (batch,)]
    dtypes = ["float64", "float64", "float64", "int64"]
    found = serial.kernel(shapes, dtypes, [x], body, "elimination")[0]
    return te.compute((batch,), lambda b: found(b).astype(x.dtype), "determinant")
