"""Converters for the ONNX normalisation operators."""

import numpy as np
from tvm import relax, tirx

from tvm_ext.ops import arithmetic
from tvm_ext.ops import normalization as ops
from tvm_ext.ops.instance_norm import instance_norm

from ..axes import placed, placed_all
from ..broadcasting import demand_broadcast, emit_broadcast
from ..precision import accumulator, cast, constant
from ..run_time import demand_parts
from ..table import converter

# The values of stash_type, and the type of the statistics.
_STASH = {1: "float32", 10: "float16", 11: "float64", 16: "bfloat16"}


@converter("InstanceNormalization", 6, 22)
def instance_normalization(bb, x, scale, bias, *, epsilon=1e-5):
    if bb.rank(x) < 3:
        raise NotImplementedError(f"rank {bb.rank(x)}, needs [N, C, D1, ...]")
    x = _of_static_channels(bb, x, scale, bias)
    channels = bb.shape(x)[1]
    scale, bias = (_of_channels(bb, operand, channels) for operand in (scale, bias))
    return bb.emit_te(instance_norm, x, scale, bias, epsilon)


def _of_static_channels(bb, x, *operands):
    """``x``; where only ``operands`` tell how many channels it has, asserted to have them."""
    batch, channels, *sizes = bb.shape(x)
    known = [dim for operand in operands for dim in bb.shape(operand) if isinstance(dim, int)]
    if isinstance(channels, int) or not known:
        return x
    return bb.match(x, [batch, known[0], *sizes])


def _of_channels(bb, operand, channels):
    """``operand``, which has one element per channel: provably, or asserted at run time."""
    (given,) = bb.shape(operand)
    if isinstance(given, int) and isinstance(channels, int) and given != channels:
        raise ValueError(f"{given} elements for {channels} channels")
    return operand if bb.equal(given, channels) else bb.match(operand, [channels])


@converter("InstanceNormalization", 1)
def instance_normalization_1(bb, x, scale, bias, *, consumed_inputs=None, epsilon=1e-5):
    return instance_normalization(bb, x, scale, bias, epsilon=epsilon)


@converter("LayerNormalization", 17)
def layer_normalization(bb, x, scale, bias=None, *, axis=-1, epsilon=1e-5, stash_type=1):
    if stash_type not in _STASH:
        raise NotImplementedError(f"stash_type {stash_type}")
    rank, shape = bb.rank(x), bb.shape(x)
    scale = aligned(bb, scale, shape)
    bias = None if bias is None else aligned(bb, bias, shape)
    statistics = _STASH[stash_type] if len(bb.node.outputs) > 1 else None
    axes = list(range(placed(axis, rank), rank))
    results = bb.emit_te(
        ops.normalize, x, scale, bias, axes, epsilon, statistics=statistics,
        primfunc_name_hint="layer_norm",
    )  # fmt: skip
    if statistics is None:
        return results
    return tuple(bb.emit(relax.TupleGetItem(results, k)) for k in range(3))


@converter("RMSNormalization", 23)
def rms_normalization(bb, x, scale, *, axis=-1, epsilon=1e-5, stash_type=1):
    rank = bb.rank(x)
    axes = list(range(placed(axis, rank), rank))
    return bb.emit_te(
        ops.normalize, x, aligned(bb, scale, bb.shape(x)), None, axes, epsilon, centred=False,
        primfunc_name_hint="rms_norm",
    )  # fmt: skip


@converter("GroupNormalization", 18)
def group_normalization_18(bb, x, scale, bias, *, epsilon=1e-5, num_groups):
    """``scale`` and ``bias`` are per group."""
    scale, bias = (bb.of_shape(operand, [num_groups]) for operand in (scale, bias))
    return _group_normalization(bb, x, scale, bias, epsilon, num_groups, [num_groups, 1])


@converter("GroupNormalization", 21)
def group_normalization(bb, x, scale, bias, *, epsilon=1e-5, num_groups, stash_type=1):
    """``scale`` and ``bias`` are per channel."""
    channels = bb.shape(x)[1]
    scale, bias = (bb.of_shape(operand, [channels]) for operand in (scale, bias))
    per_group = bb.simplify(channels // num_groups)
    return _group_normalization(bb, x, scale, bias, epsilon, num_groups, [num_groups, per_group])


def _group_normalization(bb, x, scale, bias, epsilon, groups, affine):
    n, channels, *spatial = bb.shape(x)
    demand_parts(bb, channels, groups, "the number of channels")
    grouped = bb.reshape(x, [n, groups, channels // groups, *spatial])
    affine = [1, *affine, *[1] * len(spatial)]
    scale, bias = (_reshaped(bb, operand, affine) for operand in (scale, bias))
    axes = list(range(2, len(affine)))
    y = bb.emit_te(
        ops.normalize, grouped, scale, bias, axes, epsilon, primfunc_name_hint="group_norm"
    )
    return bb.reshape(y, bb.shape(x))


@converter("MeanVarianceNormalization", 9, 13)
def mean_variance_normalization(bb, x, *, axes=(0, 2, 3)):
    return bb.emit_te(ops.mean_variance_normalization, x, placed_all(axes, bb.rank(x)))


@converter("LpNormalization", 1, 22)
def lp_normalization(bb, x, *, axis=-1, p=2):
    if p not in (1, 2):
        raise NotImplementedError(f"p {p}, must be 1 or 2")
    return bb.emit_te(ops.lp_normalization, x, p, placed(axis, bb.rank(x)))


@converter("LRN", 1, 13)
def lrn(bb, x, *, alpha=1e-4, beta=0.75, bias=1.0, size):
    return bb.emit_te(ops.lrn, x, size, alpha, beta, bias)


@converter("BatchNormalization", 14, 15)
def batch_normalization(bb, x, scale, bias, mean, variance, *, epsilon=1e-5, momentum=0.9,
                        training_mode=0):  # fmt: skip
    if not training_mode:
        # Running statistics pass through where a node asks for them.
        y = _normalized(bb, x, scale, bias, mean, variance, epsilon, _channels(bb, x))
        return y, mean, variance
    y, running, _ = _trained(bb, x, scale, bias, mean, variance, epsilon, momentum, spatial=1)
    return y, *running


@converter("BatchNormalization", 9)
def batch_normalization_9(bb, x, scale, bias, mean, variance, *, epsilon=1e-5, momentum=0.9):
    return batch_normalization_7(
        bb, x, scale, bias, mean, variance, epsilon=epsilon, momentum=momentum
    )


@converter("BatchNormalization", 7)
def batch_normalization_7(bb, x, scale, bias, mean, variance, *, epsilon=1e-5, momentum=0.9,
                          spatial=1):  # fmt: skip
    """Trains where more than one output is asked for."""
    if len(bb.node.outputs) == 1:
        shape = _channels(bb, x) if spatial else [1, *bb.shape(x)[1:]]
        return _normalized(bb, x, scale, bias, mean, variance, epsilon, shape)
    y, running, batch = _trained(bb, x, scale, bias, mean, variance, epsilon, momentum, spatial)
    return y, *running, *batch


@converter("BatchNormalization", 6)
def batch_normalization_6(bb, x, scale, bias, mean, variance, *, epsilon=1e-5, is_test=0,
                          momentum=0.9, spatial=1):  # fmt: skip
    if is_test and len(bb.node.outputs) > 1:
        raise NotImplementedError("is_test with the outputs of training")
    return batch_normalization_7(bb, x, scale, bias, mean, variance, epsilon=epsilon,
                                 momentum=momentum, spatial=spatial)  # fmt: skip


@converter("BatchNormalization", 1)
def batch_normalization_1(bb, x, scale, bias, mean, variance, *, consumed_inputs, epsilon=1e-5,
                          is_test=0, momentum=0.9, spatial=1):  # fmt: skip
    return batch_normalization_6(bb, x, scale, bias, mean, variance, epsilon=epsilon,
                                 is_test=is_test, momentum=momentum, spatial=spatial)  # fmt: skip


def _channels(bb, x):
    """The shape of a per-channel value that broadcasts against ``x[N, C, ...]``."""
    return [1, bb.shape(x)[1], *[1] * (bb.rank(x) - 2)] if bb.rank(x) > 1 else [1]


def _normalized(bb, x, scale, bias, mean, variance, epsilon, shape):
    """``x * factor + shift``, the two folded in float64 where the statistics are constants."""
    dtype = bb.dtype(x)
    wide = accumulator(dtype)
    arrays = [constant(bb, value) for value in (scale, bias, mean, variance)]
    if all(array is not None for array in arrays):
        s, b, m, v = (array.astype("float64") for array in arrays)
        factor = s / np.sqrt(v + epsilon)
        shift = b - m * factor
        after = [1] * (len(shape) - 1 - factor.ndim)
        spread = [1, *factor.shape, *after] if len(shape) > 1 else list(factor.shape)
        factor, shift = (bb.const(a.reshape(spread).astype(wide)) for a in (factor, shift))
        demand_broadcast(bb, factor, bb.shape(x))
    else:
        values = [_of_some_axes(bb, value, shape) for value in (scale, bias, mean, variance)]
        s, b, m, v = (cast(bb, value, wide) for value in values)
        spread = relax.op.sqrt(relax.op.add(v, relax.const(epsilon, wide)))
        factor = bb.emit(relax.op.divide(s, spread))
        shift = bb.emit(relax.op.subtract(b, relax.op.multiply(m, factor)))
        factor, shift = (_reshaped(bb, value, shape) for value in (factor, shift))
    scaled = emit_broadcast(bb, relax.op.multiply, arithmetic.mul, cast(bb, x, wide), factor)
    return cast(bb, emit_broadcast(bb, relax.op.add, arithmetic.add, scaled, shift), dtype)


def _of_some_axes(bb, value, shape):
    """``value``, which has ``shape``, or without the first and the last dims of that."""
    rank = bb.rank(value)
    return bb.of_shape(value, shape if rank == len(shape) else shape[1 : 1 + rank])


def _trained(bb, x, scale, bias, mean, variance, epsilon, momentum, spatial):
    """The output, the running statistics and those of the batch (population variance)."""
    axes = [0, *range(2, bb.rank(x))] if spatial else [0]
    shape = _channels(bb, x) if spatial else [1, *bb.shape(x)[1:]]
    moments = bb.emit_te(ops.moments, x, axes)
    batch = [bb.emit(relax.TupleGetItem(moments, k)) for k in range(2)]
    scale, bias = (_of_dims(bb, operand, bb.shape(batch[0])) for operand in (scale, bias))
    y = _normalized(bb, x, scale, bias, *batch, epsilon, shape)
    running = [
        _moving(bb, cast(bb, old, bb.dtype(new)), new, momentum, bb.dtype(old))
        for old, new in zip((mean, variance), batch, strict=True)
    ]
    return y, running, [cast(bb, value, bb.dtype(mean)) for value in batch]


def _moving(bb, old, new, momentum, dtype):
    """``old * momentum + new * (1 - momentum)``."""
    wide = bb.dtype(new)
    kept = relax.op.multiply(_of_dims(bb, old, bb.shape(new)), relax.const(momentum, wide))
    added = relax.op.multiply(new, relax.const(1 - momentum, wide))
    return cast(bb, bb.emit(relax.op.add(kept, added)), dtype)


def _of_dims(bb, operand, dims):
    """``operand``, which has ``dims``, or as many elements in other dims."""
    same = bb.rank(operand) == len(dims)
    return bb.of_shape(operand, dims) if same else _reshaped(bb, operand, dims)


def aligned(bb, operand, outs):
    """``operand``, which broadcasts to the dims ``outs``, with as many by leading ones."""
    demand_broadcast(bb, operand, outs)
    return with_leading_ones(bb, operand, len(outs))


def with_leading_ones(bb, operand, rank):
    """``operand`` with leading dims of 1 up to ``rank``."""
    shape = bb.shape(operand)
    return _reshaped(bb, operand, [*[1] * (rank - len(shape)), *shape])


def _reshaped(bb, operand, shape):
    array = constant(bb, operand)
    if array is not None and all(not isinstance(dim, tirx.Expr) for dim in shape):
        return bb.const(array.reshape(shape))
    return operand if bb.shape(operand) == shape else bb.reshape(operand, shape)
