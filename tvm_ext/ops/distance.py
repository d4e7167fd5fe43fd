"""Distances between points."""

from tvm import te

__all__ = ["distances"]


def distances(a, b, root):
    """``sum((a[i] - b[k]) ** 2)`` of each row of ``a[M, N]`` and ``b[K, N]``; its square root if
    ``root``: ``[M, K]``."""
    axis = te.reduce_axis((0, a.shape[1]), "axis")

    def square(i, k):
        difference = a[i, axis] - b[k, axis]
        return te.sum(difference * difference, axis=axis)

    squares = te.compute((a.shape[0], b.shape[0]), square, "squared_distance")
    if not root:
        return squares
    return te.compute(squares.shape, lambda *i: te.sqrt(squares(*i)), "distance")
