"""What the processes of all tasks share, imported once: see :func:`.worker.run`."""

import gc
from contextlib import suppress
from importlib import import_module

import torch

from . import check, worker  # noqa: F401
from .export import quiet
from .registry import architectures
from .torchvision_ops import load_torchvision

# Threads do not survive the fork that follows, and many processes share the cores.
torch.set_num_threads(1)

architectures()
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

# The first export imports more, and makes the tables of the exporter.
with quiet():
    torch.onnx.export(torch.nn.Identity(), (torch.ones(1),), dynamo=True, verbose=False)

# Else each process would visit, and so copy, all objects that it shares with this one.
gc.collect()
gc.freeze()
