"""What the processes of all tasks share, imported once: see :func:`.worker.run`."""

from contextlib import suppress
from importlib import import_module

import torch

from . import check  # noqa: F401
from .torchvision_ops import load_torchvision

# Threads do not survive the fork that follows, and many processes share the cores.
torch.set_num_threads(1)

load_torchvision()
for package in (
    "transformers.modeling_utils",
    "timm",
    "diffusers",
    "sklearn.ensemble",
    "skl2onnx",
    "onnxscript",
    "torch.onnx._internal.exporter._core",
):
    with suppress(ImportError):
        import_module(package)
