"""How many node cases of the official suite TVM's own importer passes, without and with ours.

    python -m tests.patches.upstream_suite --jobs 2 --filter lstm

Each case runs in a process of its own: what TVM compiles wrongly may crash.
"""

import argparse
import multiprocessing
import os
import re
import warnings
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from multiprocessing.connection import Connection

import numpy as np
import tvm
from onnx.backend.base import Backend, BackendRep
from onnx.backend.test import BackendTest
from tvm import relax
from tvm.relax.frontend.onnx import from_onnx
from tvm_ext.patches.tvm_onnx import converters_in_tvm

_SECONDS_PER_CASE = 60
_FORK = multiprocessing.get_context("fork")  # TVM and the cases are loaded once


class _Compiled(BackendRep):
    def __init__(self, module: tvm.IRModule):
        self.vm = relax.VirtualMachine(tvm.compile(module, "llvm"), tvm.cpu())

    def run(self, inputs, **_options) -> tuple:
        results = self.vm["main"](*(tvm.runtime.tensor(np.asarray(array)) for array in inputs))
        results = [results] if isinstance(results, tvm.runtime.Tensor) else list(results)
        return tuple(result.numpy() for result in results)


class Upstream(Backend):
    """TVM's importer and ``tvm.compile`` as a backend of ONNX."""

    @classmethod
    def prepare(cls, model, device: str = "CPU", **_options) -> BackendRep:
        return _Compiled(relax.transform.DecomposeOpsForInference()(from_onnx(model)))

    @classmethod
    def supports_device(cls, device: str) -> bool:
        return device == "CPU"


def cases() -> dict[str, object]:
    """The node cases by name."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # numpy overflows where expected values are computed
        suite = BackendTest(Upstream, __name__).test_cases["OnnxBackendNodeModelTest"]
    return {name: case for name, case in vars(suite).items() if name.endswith("_cpu")}


def outcome(case: object, patched: bool) -> str:
    """ "passes", or in one line why not."""
    ours, theirs = _FORK.Pipe(duplex=False)
    process = _FORK.Process(target=_serve, args=(case, patched, theirs), daemon=True)
    process.start()
    theirs.close()
    try:
        if not ours.poll(_SECONDS_PER_CASE):
            process.kill()
        return ours.recv()
    except EOFError:
        return "crash"
    finally:
        process.join()


def _serve(case, patched: bool, pipe: Connection) -> None:
    quiet = os.open(os.devnull, os.O_WRONLY)
    os.dup2(quiet, 1)
    os.dup2(quiet, 2)
    with converters_in_tvm() if patched else nullcontext():
        try:
            case(None)
        except Exception as error:  # noqa: BLE001  any failure is what is asked for
            kind = "wrong: " if isinstance(error, AssertionError) else ""
            lines = [line for line in str(error).splitlines() if line.strip()] or [""]
            pipe.send(f"{kind}{type(error).__name__}: {lines[0][:120]}")
        else:
            pipe.send("passes")


def outcomes(names: list[str], patched: bool, jobs: int) -> Iterator[tuple[str, str]]:
    """Each name with its outcome, in order."""
    known = cases()
    with ThreadPoolExecutor(jobs) as pool:
        results = pool.map(lambda name: outcome(known[name], patched), names)
        yield from zip(names, results, strict=True)


def main() -> None:
    parser = argparse.ArgumentParser("python -m tests.patches.upstream_suite", description=__doc__)
    parser.add_argument("--filter", default="", help="regular expression on the name of a case")
    parser.add_argument("--jobs", type=int, default=1, help="processes (default 1)")
    parser.add_argument("--names", action="store_true", help="print each case that fails")
    args = parser.parse_args()
    names = [name for name in sorted(cases()) if re.search(args.filter, name)]
    for patched in False, True:
        results = dict(outcomes(names, patched, args.jobs))
        counts = Counter(result.split(":")[0] for result in results.values())
        print(f"{'with' if patched else 'without'} the patch: {counts['passes']} of {len(names)}")
        if args.names:
            failed = {name: result for name, result in results.items() if result != "passes"}
            print("\n".join(f"  {name}: {result}" for name, result in failed.items()))


if __name__ == "__main__":
    main()
