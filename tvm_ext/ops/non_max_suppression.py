"""Non-maximum suppression: of boxes that overlap, the one with the best score stays."""

from tvm import tirx
from tvm.script.ir_builder import tirx as T

from . import serial


def non_max_suppression(boxes, scores, limit, overlap, lowest, centred):
    """Rows (batch, class, box) ``int64[batches * classes * boxes, 3]``, and how many ``int64[1]``.

    ``boxes[batches, boxes, 4]`` hold two corners, or centre and size if ``centred``;
    ``scores[batches, classes, boxes]``. Per class at most ``limit[0]`` boxes stay, best first,
    with scores above ``lowest[0]``, none overlapping a better one by more than ``overlap[0]``.
    """
    batches, classes, number = scores.shape
    rows = batches * classes * number

    def body(ins, outs):
        box, score, most, threshold, floor = ins
        selected, count, alive, best, taken = outs

        def store(buffer, value, *index):
            value = tirx.const(value, "int64") if isinstance(value, int) else value
            T.buffer_store(buffer, value, list(index))

        def suppress(b, c):
            store(taken, 0, 0)
            with T.serial(0, number) as j:
                store(alive, (score[b, c, j] > floor[0]).astype("int64"), j)
            with T.serial(0, number):
                serial.when(taken[0] < most[0].astype("int64"), lambda: select(b, c))

        def select(b, c):
            store(best, -1, 0)
            with T.serial(0, number) as j:
                candidate = tirx.max(best[0], 0)
                better = tirx.any(best[0] < 0, score[b, c, j] > score[b, c, candidate])
                serial.when(
                    tirx.all(alive[j] != 0, better), lambda: store(best, j.astype("int64"), 0)
                )
            with T.If(best[0] < 0):
                with T.Then():
                    store(taken, most[0].astype("int64"), 0)
                with T.Else():
                    keep(b, c)

        def keep(b, c):
            for column, value in enumerate((b, c, best[0])):
                store(selected, value.astype("int64"), count[0], column)
            store(count, count[0] + 1, 0)
            store(taken, taken[0] + 1, 0)
            store(alive, 0, best[0])
            with T.serial(0, number) as j:
                covers = _overlaps(
                    _corners(box, b, best[0], centred), _corners(box, b, j, centred), threshold[0]
                )
                serial.when(tirx.all(alive[j] != 0, covers), lambda: store(alive, 0, j))

        clear = serial.nest([1], lambda i: store(count, 0, i))
        return tirx.SeqStmt([clear, serial.nest([batches, classes], suppress)])

    return serial.kernel(
        [(rows, 3), (1,), (number,), (1,), (1,)],
        ["int64"] * 5,
        [boxes, scores, limit, overlap, lowest],
        body,
        "non_max_suppression",
    )


def _corners(box, b, j, centred):
    """Low and high ends in both directions."""
    a, c, d, e = (box[b, j, k] for k in range(4))
    if centred:
        return a - d / 2, c - e / 2, a + d / 2, c + e / 2
    return tirx.min(a, d), tirx.min(c, e), tirx.max(a, d), tirx.max(c, e)


def _overlaps(first, second, threshold):
    """Whether intersection / union exceeds ``threshold``; empty boxes overlap nothing."""
    sides = [
        tirx.max(tirx.min(first[k + 2], second[k + 2]) - tirx.max(first[k], second[k]), 0)
        for k in range(2)
    ]
    shared = sides[0] * sides[1]
    areas = [(r[2] - r[0]) * (r[3] - r[1]) for r in (first, second)]
    union = areas[0] + areas[1] - shared
    return tirx.all(areas[0] > 0, areas[1] > 0, shared > threshold * union)
