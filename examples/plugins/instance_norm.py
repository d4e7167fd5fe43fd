"""Instance normalisation in one file: converter, compute, schedules, reference, samples.

It is ONNX's own operator under a domain of its own; two passes over each row, so that a large mean
costs no digits.
"""

import numpy as np
from tvm import te
from tvm.topi.utils import prod

from tvm_ext.extend import operator


def compute(x, scale, bias, epsilon):
    """Normalise ``x[N, C, D1, ..., Dk]`` over D1..Dk; ``scale`` and ``bias`` are ``[C]``."""
    rows, spatial = x.shape[:2], x.shape[2:]
    count = prod(spatial).astype("float32")

    def row_sum(term, name):
        axes = [te.reduce_axis((0, d), f"r{k}") for k, d in enumerate(spatial)]
        return te.compute(rows, lambda n, c: te.sum(term(n, c, *axes), axis=axes), name)

    def centred(n, c, *i):
        return x(n, c, *i).astype("float32") - total[n, c] / count

    def affine(n, c, *i):
        unit = centred(n, c, *i) * te.rsqrt(square[n, c] / count + epsilon)
        return (unit * scale[c].astype("float32") + bias[c].astype("float32")).astype(x.dtype)

    total = row_sum(lambda *i: x(*i).astype("float32"), "row_sum")
    square = row_sum(lambda *i: centred(*i) * centred(*i), "row_square_sum")
    return te.compute(x.shape, affine, "instance_norm")


@operator("InstanceNorm", domain="com.example")
def instance_norm(bb, x, scale, bias, *, epsilon=1e-5):
    if bb.rank(x) < 3:
        raise NotImplementedError(f"rank {bb.rank(x)}, needs [N, C, D1, ...]")
    return bb.emit_te(compute, x, scale, bias, epsilon)


@instance_norm.reference
def _(x, scale, bias, *, epsilon=1e-5):
    axes, channels = tuple(range(2, x.ndim)), (-1,) + (1,) * (x.ndim - 2)
    unit = (x - x.mean(axes, keepdims=True)) / np.sqrt(x.var(axes, keepdims=True) + epsilon)
    return unit * scale.reshape(channels) + bias.reshape(channels)


instance_norm.shapes("x[n, c, h, w], scale[c], bias[c]", dtypes=["float32", "float16"])
instance_norm.shapes("x[n, c, d], scale[c], bias[c]", epsilon=[1e-5, 1e-2])


# The built-in rules serve this operator well (check-op compares): these two show the form.
def over_rows(sch):
    """The blocks, each now a loop over rows around a loop over the rest of the row."""
    blocks = sch.get_child_blocks(sch.get_sblock("root"))
    for block in blocks:
        n, c, *inner = sch.get_loops(block)
        sch.fuse(n, c)
        sch.fuse(*inner)
    return blocks


@instance_norm.schedule("llvm")
def one_task_per_row(sch, target):
    *sums, write = over_rows(sch)
    row = sch.get_loops(write)[0]
    sch.parallel(row)
    for block in reversed(sums):
        sch.compute_at(block, row, preserve_unit_loops=True)


@instance_norm.schedule("cuda")
def one_block_per_row(sch, target):
    for block in over_rows(sch):
        row, inner = sch.get_loops(block)
        sch.bind(row, "blockIdx.x")
        sch.bind(sch.split(inner, [None, 128])[1], "threadIdx.x")
