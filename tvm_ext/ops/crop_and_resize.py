"""Boxes cut out of images and brought to one size."""

from tvm import te, tirx

__all__ = ["crop_and_resize"]


def crop_and_resize(x, boxes, images, size, nearest, outside):
    """``y[R, C, *size]`` of ``x[N, C, H, W]``: box ``boxes[r]`` of image ``images[r]``.

    Boxes are top, left, bottom, right, as parts of the distance between the first and the last
    row or column. What lies outside of the image is ``outside``; images out of range are too.
    """
    one, zero = tirx.const(1.0, "float32"), tirx.const(0.0, "float32")

    def place(r, i, k):
        """Where index ``i`` along spatial axis ``k`` is in the image, and the last place there."""
        last = (x.shape[2 + k] - 1).astype("float32")
        low, high = (boxes[r, k + end].astype("float32") for end in (0, 2))
        count = tirx.const(size[k], "int64") if isinstance(size[k], int) else size[k]
        step = (high - low) * last / tirx.max(count - 1, 1).astype("float32")
        at = tirx.Select(
            count > 1, low * last + i.astype("float32") * step, (low + high) * 0.5 * last
        )
        return at, last

    def element(r, c, i, j):
        image = images[r].astype("int64")
        (row, bottom), (column, right) = place(r, i, 0), place(r, j, 1)

        def pixel(at_row, at_column):
            where = (
                tirx.max(tirx.min(at, x.shape[axis] - 1), 0)
                for at, axis in ((image, 0), (at_row, 2), (at_column, 3))
            )
            n, h, w = where
            return x[n, c, h, w].astype("float32")

        def bilinear():
            top, left = (tirx.floor(at).astype("int64") for at in (row, column))
            down, across = (at - tirx.floor(at) for at in (row, column))
            upper, lower = (
                pixel(at, left) * (one - across) + pixel(at, left + 1) * across
                for at in (top, top + 1)
            )
            return upper * (one - down) + lower * down

        def closest():
            return pixel(*(tirx.floor(at + 0.5).astype("int64") for at in (row, column)))

        inside = tirx.all(row >= zero, row <= bottom, column >= zero, column <= right,
                          image >= 0, image < x.shape[0])  # fmt: skip
        value = closest() if nearest else bilinear()
        return tirx.if_then_else(inside, value, tirx.const(outside, "float32")).astype(x.dtype)

    return te.compute((boxes.shape[0], x.shape[1], *size), element, "crop_and_resize")
