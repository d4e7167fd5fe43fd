"""Whole networks on a GPU against torch there, batch 1, float32 without TF32.

    python -m benchmarks.cuda                       # all examples
    python -m benchmarks.cuda --model resnet50 --model unet --size small

Milliseconds per run, inputs and outputs on the device: ours as the VM launches kernels, torch as
it runs eagerly, and as a captured graph, which leaves its launches out ("-" where it cannot: the
reason is printed). "with copies" is ours from and to arrays of numpy. Needs the extra ``examples``
with a torch that has CUDA.
"""

import argparse
import math
import sys
import time
from collections.abc import Callable, Iterator
from statistics import median
from typing import Any

import numpy as np
import tvm
from rich.table import Table

from examples.export import to_onnx
from examples.registry import EXAMPLES, SIZES, Example
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


def torch_runs(example: Example, size: str) -> Iterator[Callable[[], Any]]:
    """A run of torch, eagerly; one of it as a graph, which returns nothing.

    Raises:
        RuntimeError, AssertionError: this torch has no CUDA, or cannot run or capture the network.
    """
    import torch

    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    network = example.build(size).eval().cuda()
    inputs = [value.cuda() for value in example.inputs(size).values()]

    @torch.no_grad()
    def eager() -> Any:
        result = network(*inputs)
        torch.cuda.synchronize()
        return result if isinstance(result, torch.Tensor) else result[0]

    yield eager
    graph = torch.cuda.CUDAGraph()
    with torch.no_grad(), torch.cuda.graph(graph):  # eager runs have warmed it up
        network(*inputs)

    def replayed() -> None:
        graph.replay()
        torch.cuda.synchronize()

    yield replayed


def row(name: str, size: str) -> list[str]:
    """The cells of an example."""
    example = EXAMPLES[name]
    feeds = {key: value.numpy() for key, value in example.inputs(size).items()}
    model = to_onnx(name, size=size)
    begin = time.perf_counter()
    compiled = convert_and_build(model, "cuda")
    built = time.perf_counter() - begin
    got = compiled.run(None, feeds)[0]
    ours = milliseconds(on_device(compiled, feeds))
    copies = milliseconds(lambda: compiled.run(None, feeds))
    rival, error = [math.nan, math.nan], math.nan  # eagerly, as a graph
    try:
        for place, run in enumerate(torch_runs(example, size)):
            rival[place] = milliseconds(run)
            if place == 0:
                want = run().cpu().numpy()
                error = np.abs(got - want).max() / np.abs(want).max()
    except (RuntimeError, AssertionError) as failure:
        print(f"{name}, torch: {failure}", file=sys.stderr)
    times = [_cell(value, ".3f") for value in (ours, copies, *rival)]
    ratios = [_cell(value / ours, ".2f") for value in rival]
    return [name, *times, *ratios, _cell(error, ".1e"), f"{built:.0f}"]


def _cell(value: float, form: str) -> str:
    return "-" if math.isnan(value) else format(value, form)


def main() -> int:
    """The command; 1 where there is no GPU."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", action="append", choices=list(EXAMPLES), help="all by default")
    parser.add_argument("--size", choices=SIZES, default="full")
    options = parser.parse_args()
    if not tvm.cuda(0).exist:
        print("TVM finds no CUDA device here", file=sys.stderr)
        return 1
    table = Table(title=f"{tvm.cuda(0).device_name}, ms per run, {time.strftime('%Y-%m-%d')}")
    heads = "model", "ours", "with copies", "torch", "its graph", "x", "x graph", "error", "build s"
    for head in heads:
        table.add_column(head, justify="left" if head == "model" else "right")
    for name in options.model or EXAMPLES:
        cells = row(name, options.size)
        table.add_row(*cells)
        print(*cells, file=sys.stderr)  # what was measured stays, whatever becomes of the next
    console().print(table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
