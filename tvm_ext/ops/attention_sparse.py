"""What is added to scores where a query sees some of the keys: 0, or -inf."""

from tvm import te, tirx

__all__ = ["block_mask", "listed_blocks", "window_mask"]


def listed_blocks(rows, columns):
    """Whether block column c is in the list of block row r: int32 ``[L, R, R]``.

    The list of row r in layout l is ``columns[l, rows[l, r] : rows[l, r + 1]]``.
    """
    entry = te.reduce_axis((0, columns.shape[1]), "entry")
    size = rows.shape[1] - 1

    def listed(layout, r, c):
        inside = tirx.all(entry >= rows[layout, r].astype("int64"),
                          entry < rows[layout, r + 1].astype("int64"),
                          columns[layout, entry].astype("int64") == c)  # fmt: skip
        return te.max(tirx.Select(inside, tirx.const(1, "int32"), tirx.const(0, "int32")),
                      axis=entry)  # fmt: skip

    return te.compute((rows.shape[0], size, size), listed, "listed_blocks")


def block_mask(lengths, seen, heads, count, extent, block, dtype):
    """``[B, heads, count, extent]``: a query sees no later key, and those of blocks that are seen.

    ``lengths[B]`` as in :mod:`.attention_cache`; ``seen[L, R, R]``, heads take the layouts in turn.
    A query without a place sees the first key.
    """
    layouts, size, _ = seen.shape

    def element(b, n, s, t):
        position = tirx.max(lengths[b].astype("int64") + 1 - count, 0) + s
        row, column = (tirx.min(tirx.floordiv(place, block), size - 1) for place in (position, t))
        listed = seen[tirx.floormod(n, layouts), row, column] > 0
        visible = tirx.all(t <= position, t <= lengths[b].astype("int64"), listed)
        return tirx.Select(visible, tirx.const(0, dtype), tirx.const(float("-inf"), dtype))

    return te.compute((lengths.shape[0], heads, count, extent), element, "block_mask")


def window_mask(mask, flags, window):
    """``[B, 1, S, S]`` of ``mask[B, S]``, less than 0 where a key is padding, and ``flags[B, S]``.

    A query sees keys up to ``window`` (None: any) places away, and those with a flag.
    """
    batch, length = mask.shape
    dtype = mask.dtype

    def element(b, _, s, t):
        near = [] if window is None else [tirx.any(flags[b, t] != 0, tirx.all(
            t - s <= window, s - t <= window))]  # fmt: skip
        seen = tirx.all(mask[b, t] >= tirx.const(0, dtype), *near)
        return tirx.Select(seen, tirx.const(0, dtype), tirx.const(float("-inf"), dtype))

    return te.compute((batch, 1, length, length), element, "window_mask")
