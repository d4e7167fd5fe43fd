"""``python -m examples.npu``: a small network on the accelerator, step by step."""

import argparse
import importlib
from pathlib import Path

import numpy as np
import onnx
import onnxruntime

from tvm_ext import extend

from .network import small_cnn


def main() -> None:
    """Build, run, compare; print what became of the network."""
    parser = argparse.ArgumentParser(prog="python -m examples.npu", description=__doc__)
    parser.add_argument("--opt-level", type=int, default=3)
    parser.add_argument("--commands", type=int, default=12, help="how many to list per region")
    parser.add_argument("--write", type=Path, help="write the network there, and do nothing else")
    options = parser.parse_args()

    model = small_cnn()
    if options.write:
        onnx.save(model, options.write)
        return
    plugin = extend.load("examples.npu.target")
    target = importlib.import_module("examples.npu.target")
    compiled, report = target.build(model, opt_level=options.opt_level)
    plugin.unload()

    image = np.random.default_rng(0).standard_normal((1, 3, 64, 64)).astype("float32")
    logits = compiled(image)
    session = onnxruntime.InferenceSession(model.SerializeToString())
    (expected,) = session.run(None, {"image": image})

    print(report)
    for program in report.programs:
        print(f"\n{program.region.name}: the device's memory, in floats")
        print(program.memory_map())
        print(f"\n{program.region.name}: {len(program.commands)} commands")
        for number, command in enumerate(program.commands[: options.commands]):
            print(f"{number:5} {command}")
        print(f"\n{program.region.name}: {program.cost()}")
    print(f"\nlargest difference from onnxruntime: {np.abs(logits - expected).max():.2e}")
    print("logits:", np.round(logits[0], 4))


if __name__ == "__main__":
    main()
