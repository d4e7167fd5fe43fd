"""Converters for pooling.

Plain 2-D float pooling stays a Relax operator, which layout passes recognise; other ranks,
dilated averages, partial windows, indices and integers are kernels of ours.
"""

from math import prod

from tvm import relax

from tvm_ext.ops import pooling as ops
from tvm_ext.ops.reduction import reduce_max

from .. import window as windows
from ..indices import demand_between
from ..known import as_expr
from ..precision import accumulator, cast
from ..table import converter

# A window of so many elements costs more than one more pass over the image.
_LARGE = 20


@converter("MaxPool", 1, 8, 10, 11, 12, 22)
def max_pool(bb, x, *, auto_pad="NOTSET", ceil_mode=0, dilations=None, kernel_shape, pads=None,
             storage_order=0, strides=None):  # fmt: skip
    window, outputs = _window(bb, x, kernel_shape, strides, dilations, pads, auto_pad, ceil_mode)
    geometry = (window.kernel, window.strides, window.dilations, window.before, outputs)
    if len(bb.node.outputs) > 1:
        pair = bb.emit_te(ops.max_pool_with_indices, x, *geometry, bool(storage_order))
        return tuple(bb.emit(relax.TupleGetItem(pair, k)) for k in range(2))
    for part, sizes in _axis_by_axis(bb, x, window, outputs):
        x = _max_pool(bb, x, part, sizes)
    return x


def _max_pool(bb, x, window, outputs):
    if _plain(bb, x, window) and outputs == window.outputs(bb.shape(x)[2:]):
        return bb.emit(
            relax.op.nn.max_pool2d(
                x, window.kernel, window.strides, window.pads, window.dilations
            )
        )  # fmt: skip
    return bb.emit_te(ops.max_pool, x, window.kernel, window.strides, window.dilations,
                      window.before, outputs)  # fmt: skip


def _axis_by_axis(bb, x, window, outputs):
    """The windows, with the dims of what they give, that make up a maximum over ``window``.

    One, or where it is large one along each axis: a sum of elements to look at, not a product.
    """
    if prod(window.kernel) < _LARGE or max(window.kernel) == prod(window.kernel):
        yield window, outputs
        return
    sizes = bb.shape(x)[2:]
    for axis, size in enumerate(outputs):
        part = window.along(axis)
        if part != windows.Window.of_one(len(sizes)):
            sizes[axis] = size
            yield part, list(sizes)


@converter("AveragePool", 1, 7, 10, 11, 19, 22)
def average_pool(bb, x, *, auto_pad="NOTSET", ceil_mode=0, count_include_pad=0, dilations=None,
                 kernel_shape, pads=None, strides=None):  # fmt: skip
    window, outputs = _window(bb, x, kernel_shape, strides, dilations, pads, auto_pad, ceil_mode)
    exact = not ceil_mode or outputs == window.outputs(bb.shape(x)[2:])
    if _plain(bb, x, window) and exact and window.dilations == [1, 1]:
        wide = cast(bb, x, accumulator(bb.dtype(x)))
        y = relax.op.nn.avg_pool2d(
            wide, window.kernel, window.strides, window.pads,
            count_include_pad=bool(count_include_pad),
        )  # fmt: skip
        return cast(bb, bb.emit(y), bb.dtype(x))
    after = window.after if count_include_pad else None
    return bb.emit_te(
        ops.avg_pool, x, window.kernel, window.strides, window.dilations, window.before, outputs,
        after,
    )  # fmt: skip


@converter("LpPool", 1, 2, 11, 18, 22)
def lp_pool(bb, x, *, auto_pad="NOTSET", ceil_mode=0, dilations=None, kernel_shape, p=2,
            pads=None, strides=None):  # fmt: skip
    window, outputs = _window(bb, x, kernel_shape, strides, dilations, pads, auto_pad, ceil_mode)
    return bb.emit_te(
        ops.lp_pool, x, window.kernel, window.strides, window.dilations, window.before, outputs, p
    )


@converter("GlobalAveragePool", 1, 22)
def global_average_pool(bb, x):
    wide = cast(bb, x, accumulator(bb.dtype(x)))
    return cast(bb, bb.emit(relax.op.mean(wide, _spatial_axes(bb, x), True)), bb.dtype(x))


@converter("GlobalMaxPool", 1, 22)
def global_max_pool(bb, x):
    return bb.emit_te(reduce_max, x, [k > 1 for k in range(bb.rank(x))], True)


@converter("GlobalLpPool", 1, 2, 22)
def global_lp_pool(bb, x, *, p=2):
    spatial = bb.shape(x)[2:]
    one, zero = [1] * len(spatial), [0] * len(spatial)
    return bb.emit_te(ops.lp_pool, x, spatial, one, one, zero, one, p)


@converter("MaxUnpool", 9, 11, 22)
def max_unpool(bb, x, indices, output_shape=None, *, kernel_shape, pads=None, strides=None):
    """Places count in the image that a MaxPool has numbered, or else in that the windows give."""
    shape = bb.shape(x)
    indices = bb.of_shape(indices, shape)
    rank = len(kernel_shape)
    strides, pads = strides or [1] * rank, pads or [0] * 2 * rank
    inferred = [
        (size - 1) * stride + kernel - before - after
        for size, stride, kernel, before, after in zip(
            shape[2:], strides, kernel_shape, pads[:rank], pads[rank:], strict=True
        )
    ]
    inferred = [*shape[:2], *inferred]
    outputs = inferred
    if output_shape is not None:
        outputs = bb.dims(output_shape, len(shape))
        reasons = [
            f"axis {axis} of the output_shape is {{given}}, not {{wanted}}" for axis in (0, 1)
        ]
        bb.demand_dims(outputs[:2], shape[:2], *reasons)
    if _are_of_pool(bb, outputs):  # of an odd size, of which the windows leave some out
        inferred = outputs
    elif not _are_of_pool(bb, inferred):
        area = prod(map(as_expr, inferred[2:]))
        inside = bb.emit_te(ops.channel_places, indices, area)
        demand_between(bb, inside, 0, bb.simplify(area - 1), "a place in a channel")
    return bb.emit_te(ops.max_unpool, x, indices, outputs, inferred)


def _are_of_pool(bb, shape):
    """Whether the indices of the node come from a MaxPool of a tensor of ``shape``."""
    pool = None if bb.walk is None else bb.node.inputs[1].producer()
    if pool is None or (pool.domain, pool.op_type) != ("", "MaxPool"):
        return False
    order = pool.attributes.get("storage_order")
    source = bb.walk.values.get(pool.inputs[0])
    if source is None or (order is not None and order.as_int()) or bb.rank(source) != len(shape):
        return False
    return all(map(bb.equal, bb.shape(source), shape))


def _window(bb, x, kernel_shape, strides, dilations, pads, auto_pad, ceil_mode):
    """The window over ``x``, and the spatial dims of the result."""
    if bb.rank(x) < 3:
        raise NotImplementedError(f"rank {bb.rank(x)}, needs [N, C, D1, ...]")
    spatial = bb.shape(x)[2:]
    window = windows.resolve(spatial, kernel_shape, strides, dilations, pads, auto_pad)
    # auto_pad says how many windows there are.
    outputs = window.outputs(spatial, ceil_mode if auto_pad == "NOTSET" else 0)
    return window, [bb.simplify(dim) for dim in outputs]


def _plain(bb, x, window):
    """Whether Relax's own operator serves: float images with static pads."""
    static = window.static and all(isinstance(dim, int) for dim in bb.shape(x)[2:])
    return bb.rank(x) == 4 and static and min(window.pads) >= 0 and "float" in bb.dtype(x)


def _spatial_axes(bb, x):
    return list(range(2, bb.rank(x)))
