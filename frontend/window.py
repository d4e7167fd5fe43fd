"""The sliding window that convolution and pooling share: strides, dilations, pads.

``auto_pad`` and ``ceil_mode`` are resolved here, so that the operators see explicit pads only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tvm import relax, tirx, topi

from .builder import Builder, Dim

__all__ = ["Window", "padded", "resolve"]


@dataclass(frozen=True)
class Window:
    """One entry per spatial axis.

    Pads may be symbolic where SAME meets a symbolic dim, the kernel of Col2Im is where it is read
    at run time.
    """

    kernel: list[Dim]
    strides: list[int]
    dilations: list[int]
    before: list[Dim]
    after: list[Dim]

    @staticmethod
    def of_one(rank: int) -> Window:
        """Windows of one element, each element by itself."""
        return Window([1] * rank, [1] * rank, [1] * rank, [0] * rank, [0] * rank)

    def along(self, axis: int) -> Window:
        """This window along one axis; along the others, each element by itself."""
        part = Window.of_one(len(self.kernel))
        for own, other in zip(vars(part).values(), vars(self).values(), strict=True):
            own[axis] = other[axis]
        return part

    @property
    def extents(self) -> list[Dim]:
        """The span of the dilated kernel along each axis."""
        return [d * (k - 1) + 1 for k, d in zip(self.kernel, self.dilations, strict=True)]

    @property
    def pads(self) -> list[Dim]:
        """Begin pads, then end pads, as ONNX and Relax list them."""
        return [*self.before, *self.after]

    @property
    def static(self) -> bool:
        return all(isinstance(pad, int) for pad in self.pads)

    def outputs(self, spatial: Sequence[Dim], ceil_mode: int = 0) -> list[Dim]:
        """The spatial dims of the result.

        With ``ceil_mode`` a partial window counts, unless it starts in the end pad. Without, ONNX
        and its reference have none that is wider than the padded image; onnxruntime, which rounds
        towards 0, has one where it is by less than a stride.
        """
        return [
            _positions(size, *axis, ceil_mode)
            for size, *axis in zip(
                spatial, self.extents, self.strides, self.before, self.after, strict=True
            )
        ]


def _positions(size: Dim, extent: Dim, stride: int, before: Dim, after: Dim, ceil: int) -> Dim:
    if not ceil:
        return (size + before + after - extent) // stride + 1
    # The last window is the partial one, or the last that starts before the end pad. Each size is
    # there once: the formulas of pools one after another would double with each.
    partial = after + stride - extent
    least = min if isinstance(partial, int) else tirx.min
    return (size + before + least(partial, 0) + stride - 1) // stride


def resolve(
    spatial: Sequence[Dim],
    kernel: Sequence[Dim],
    strides: Sequence[int] | None,
    dilations: Sequence[int] | None,
    pads: Sequence[int] | None,
    auto_pad: str,
) -> Window:
    """The window that the ONNX attributes describe over dims ``spatial``.

    Raises:
        NotImplementedError: an attribute has the wrong length or an unknown value.
    """
    rank = len(spatial)
    strides = list(strides or [1] * rank)
    dilations = list(dilations or [1] * rank)
    pads = list(pads or [0] * 2 * rank)
    if not (len(kernel) == len(strides) == len(dilations) == rank and len(pads) == 2 * rank):
        raise NotImplementedError(f"kernel, strides, dilations or pads do not fit {rank} axes")
    if min([*strides, *dilations, *(k for k in kernel if isinstance(k, int))]) < 1:
        raise NotImplementedError("kernel, strides and dilations must be positive")

    window = Window(list(kernel), strides, dilations, pads[:rank], pads[rank:])
    if auto_pad == "NOTSET":
        return window
    if auto_pad == "VALID":
        return Window(window.kernel, strides, dilations, [0] * rank, [0] * rank)
    if auto_pad not in ("SAME_UPPER", "SAME_LOWER"):
        raise NotImplementedError(f"auto_pad {auto_pad!r}")
    totals = [_same_pad(*axis) for axis in zip(spatial, window.extents, strides, strict=True)]
    less = [total // 2 for total in totals]
    more = [total - half for total, half in zip(totals, less, strict=True)]
    before, after = (less, more) if auto_pad == "SAME_UPPER" else (more, less)
    return Window(window.kernel, strides, dilations, before, after)


def _same_pad(size: Dim, extent: int, stride: int) -> Dim:
    """What makes ceil(size / stride) windows fit."""
    if stride == 1:
        return extent - 1
    total = (-(-size // stride) - 1) * stride + extent - size
    return max(total, 0) if isinstance(total, int) else tirx.max(total, 0)


def padded(bb: Builder, x: relax.Expr, window: Window, value: float = 0) -> relax.Expr:
    """``x[N, C, ...]`` with the pads of ``window`` made explicit."""
    before, after = ([0, 0, *side] for side in (window.before, window.after))
    return bb.emit_te(topi.nn.pad, x, before, after, value)
