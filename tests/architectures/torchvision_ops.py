"""torchvision, also where its compiled operators do not load.

Its wheel on PyPI is built against the CUDA build of torch; beside the CPU build the package does
not import. The operators that the architectures here need are then defined in torch.
"""

import sys
from importlib import import_module
from importlib.util import find_spec

import torch

__all__ = ["load_torchvision"]

_SCHEMAS = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "roi_align(Tensor input, Tensor rois, float spatial_scale, int pooled_height, "
    "int pooled_width, int sampling_ratio, bool aligned) -> Tensor",
)
_library = None


def load_torchvision() -> None:
    """Import the package, where it is installed, with operators that run on the CPU.

    timm and, where they find it, transformers import it themselves.
    """
    if find_spec("torchvision") is None:
        return
    try:
        import_module("torchvision")
    except RuntimeError as error:
        if "does not exist" not in str(error):
            raise
        for module in [key for key in sys.modules if key.partition(".")[0] == "torchvision"]:
            del sys.modules[module]
        _define()
        import_module("torchvision")
        for module in ("extension", "ops.roi_align"):  # the latter has a name of its own for it
            sys.modules[f"torchvision.{module}"]._has_ops = _has_ops


def _has_ops() -> bool:  # scripted by torchvision: no lambda
    return True


def _define() -> None:
    global _library
    if _library is not None:
        return
    _library = torch.library.Library("torchvision", "FRAGMENT")
    for schema in _SCHEMAS:
        _library.define(schema)
    _library.impl("nms", _nms, "CPU")
    _library.impl("roi_align", _roi_align, "CPU")
    _library.impl("roi_align", _empty_roi_align, "Meta")


def _nms(boxes: torch.Tensor, scores: torch.Tensor, iou_threshold: float) -> torch.Tensor:
    """The boxes [N, 4] to keep, best first: none overlaps a better one by more."""
    from torchvision.ops import box_iou

    order = scores.argsort(descending=True, stable=True)
    overlapping = (box_iou(boxes, boxes) > iou_threshold).tolist()
    kept: list[int] = []
    for box in order.tolist():
        if not any(overlapping[better][box] for better in kept):
            kept.append(box)
    return torch.tensor(kept, dtype=torch.int64)


def _roi_align(image, rois, spatial_scale, height, width, sampling_ratio, aligned):
    from torchvision.ops.roi_align import _roi_align as compute

    eager = compute.__wrapped__  # without torch.compile
    return eager(image, rois, spatial_scale, height, width, sampling_ratio, aligned)


def _empty_roi_align(image, rois, spatial_scale, height, width, sampling_ratio, aligned):
    return image.new_empty((rois.size(0), image.size(1), height, width))
