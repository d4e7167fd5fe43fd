"""3x3 convolutions of stride 1 by Winograd's method, where a cost model says it pays.

Before: ``y = R.nn.conv2d(x, w)``
After:  ``y = unblock(conv2d_winograd(block(x), transformed_w))``

Within the error bound that :mod:`tvm_ext.ops.conv2d_winograd` states; float32 only. Weights are
transformed here, and grow 16/9 (tiles of 2 x 2) or 4 times (4 x 4).
"""

from tvm import relax
from tvm.target import Target

from tvm_ext.ops.conv2d_blocked import unpack_weight
from tvm_ext.ops.conv2d_winograd import KERNEL, conv2d_winograd, transform_weight
from tvm_ext.schedules.llvm.contraction import size
from tvm_ext.schedules.llvm.winograd import Convolution, WinogradModel

from .blocked_conv2d import CONV2D, Dense
from .compound import Compound, Kernel, Match

__all__ = ["winograd"]


def winograd(model: WinogradModel | None = None) -> Compound:
    """The compound; ``model`` chooses tile and grouping of each convolution."""
    chooses = model or WinogradModel()

    def kernel(match: Match, target: Target) -> Kernel | None:
        dense = Dense.matched(match, target)
        return _kernel(dense, target, chooses) if dense is not None and _simple(dense) else None

    return Compound("Winograd", CONV2D, kernel)


def _simple(dense: Dense) -> bool:
    conv = dense.conv
    kernel = (*conv.weight.shape[2:], conv.weight.dtype.name)
    shape = (conv.groups, conv.strides, conv.dilations, kernel)
    return shape == (1, [1, 1], [1, 1], (KERNEL, KERNEL, "float32"))


def _kernel(dense: Dense, target: Target, model: WinogradModel) -> Kernel | None:
    conv, lanes = dense.conv, dense.lanes
    images, _, height, width = conv.result
    weight = unpack_weight(dense.weight)  # with the channels that fill the last block
    filters, channels = weight.shape[:2]
    plan = model.choose(
        Convolution(size(images), channels, filters, height, width, dense.in_lanes, lanes), target
    )
    if plan is None:
        return None
    transformed = transform_weight(weight, plan.m, dense.in_lanes, plan.register.vectors * lanes)
    return Kernel(
        (conv.x, relax.const(transformed, "float32")),
        conv2d_winograd,
        (lanes, conv.pads, plan.m, (plan.images, plan.rows), plan.register.columns),
        {"m": plan.m},
        lanes={0: dense.in_lanes},
        result_lanes=lanes,
        epilogue=True,
        name=conv2d_winograd.__name__,
    )
