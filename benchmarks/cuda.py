"""Whole networks on a GPU against torch there, batch 1, float32 without TF32.

    python -m benchmarks.cuda                       # all examples
    python -m benchmarks.cuda --model resnet50 --model unet

Milliseconds per run, inputs and outputs on the device: ours as the VM launches kernels, torch as
it runs eagerly, and as a captured graph, which leaves its launches out. "with copies" is ours from
and to arrays of numpy. Needs the extra ``examples`` with a torch that has CUDA.
"""

import argparse
import sys
import time
from collections.abc import Callable
from statistics import median
from typing import Any

import numpy as np
import tvm
from rich.table import Table

from examples.export import to_onnx
from examples.registry import EXAMPLES, Example
from tvm_ext import CompiledModel, convert_and_build

from .display import console

__all__ = ["main"]

RUNS = 30


def milliseconds(run: Callable[[], object]) -> float:
    """The median over runs; ``run`` waits for the device."""
    for _ in range(3):
        run()
    seconds = []
    for _ in range(RUNS):
        begin = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - begin)
    return median(seconds) * 1e3


def on_device(compiled: CompiledModel, feeds: dict[str, np.ndarray]) -> Callable[[], object]:
    """A run of ``compiled`` whose inputs stay on the device."""
    run = compiled._executor.bound([feeds[info.name] for info in compiled.inputs])

    def waited() -> None:
        run()
        tvm.cuda(0).sync()

    return waited


def torch_runs(example: Example, inputs: list[Any]) -> tuple[np.ndarray, float, float]:
    """The first output of torch; milliseconds of it eagerly, and as a graph."""
    import torch

    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    network, placed = example.build("full").eval().cuda(), [value.cuda() for value in inputs]

    def eager() -> Any:
        result = network(*placed)
        torch.cuda.synchronize()
        return result

    with torch.no_grad():
        seconds = milliseconds(eager)
        result = eager()
        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            network(*placed)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            network(*placed)

        def replayed() -> None:
            graph.replay()
            torch.cuda.synchronize()

        first = result if isinstance(result, torch.Tensor) else next(iter(result))
        return first.cpu().numpy(), seconds, milliseconds(replayed)


def row(name: str) -> list[str]:
    """The cells of an example."""
    example = EXAMPLES[name]
    inputs = example.inputs("full")
    feeds = {key: value.numpy() for key, value in inputs.items()}
    begin = time.perf_counter()
    compiled = convert_and_build(to_onnx(name, size="full"), "cuda")
    built = time.perf_counter() - begin
    got = compiled.run(None, feeds)[0]
    ours = milliseconds(on_device(compiled, feeds))
    copies = milliseconds(lambda: compiled.run(None, feeds))
    want, eager, graph = torch_runs(example, list(inputs.values()))
    error = np.abs(got - want).max() / np.abs(want).max()
    times = [f"{value:.3f}" for value in (ours, copies, eager, graph)]
    return [
        name,
        *times,
        f"{eager / ours:.2f}",
        f"{graph / ours:.2f}",
        f"{error:.1e}",
        f"{built:.0f}",
    ]


def main() -> int:
    """The command; 1 where there is no GPU."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", action="append", choices=list(EXAMPLES), help="all by default")
    chosen = parser.parse_args().model or list(EXAMPLES)
    if not tvm.cuda(0).exist:
        print("TVM finds no CUDA device here", file=sys.stderr)
        return 1
    table = Table(title=f"{tvm.cuda(0).device_name}, ms per run, {time.strftime('%Y-%m-%d')}")
    heads = "model", "ours", "with copies", "torch", "its graph", "x", "x graph", "error", "build s"
    for head in heads:
        table.add_column(head, justify="left" if head == "model" else "right")
    for name in chosen:
        table.add_row(*row(name))
    console().print(table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
