"""How many threads kernels run on, where, and how long they look for work."""

import os
import subprocess
import sys

import pytest
from onnx import parser

import tvm_ext
from tvm_ext.errors import OptionError

TEXT = """<ir_version: 9, opset_import: ["" : 17]>
g (float[ROWS, 1000] x) => (float[ROWS, 1000] y) { y = Exp(x) }"""

# The cores that each thread which kernels started may use.
PROGRAM = """
import os, sys
import numpy as np
import tvm_ext

def allowed():
    found = {}
    for task in os.listdir("/proc/self/task"):
        lines = open(f"/proc/self/task/{task}/status").read().splitlines()
        (line,) = (line for line in lines if line.startswith("Cpus_allowed_list"))
        found[task] = line.split()[1]
    return found

model, x = tvm_ext.load(sys.argv[1]), np.ones((64, 1000), "float32")
exec(sys.argv[2])
before = allowed()
y = model(x)
assert np.allclose(y, np.exp(x))
print(*sorted(where for task, where in allowed().items() if task not in before))
"""


@pytest.fixture(scope="module", params=["64", "rows"], ids=["static", "symbolic"])
def saved(request, tmp_path_factory):
    path = tmp_path_factory.mktemp("threads") / "m.so"
    model = parser.parse_model(TEXT.replace("ROWS", request.param))
    tvm_ext.convert_and_build(model, "llvm").save(path)
    return path


def started(saved, statement, **variables):
    command = [sys.executable, "-c", PROGRAM, saved, statement]
    environment = dict(os.environ) | {"TVM_NUM_THREADS": "4"} | variables
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


@pytest.mark.skipif(not os.path.exists("/proc/self/task"), reason="needs Linux")
def test_what_is_set_is_what_threads_do(saved):
    core = max(os.sched_getaffinity(0))
    assert len(started(saved, "")) == 3
    assert len(started(saved, "tvm_ext.set_threads(2)")) == 1
    assert len(started(saved, "tvm_ext.set_threads(99); assert tvm_ext.threads() == 4")) == 3
    pinned = f"tvm_ext.set_threads(3); tvm_ext.set_spin(0); tvm_ext.set_affinity([{core}])"
    assert started(saved, pinned) == [str(core)] * 2
    assert started(saved, f"model(x); {pinned}") == [str(core)] * 2  # a pool that runs moves
    assert started(saved, "", TVMX_AFFINITY=str(core)) == [str(core)] * 3


@pytest.mark.parametrize(
    "function, value",
    [("set_threads", v) for v in (0, -1, 1.5, "2", None, True)]
    + [("set_spin", v) for v in (-1, None)]
    + [("set_affinity", v) for v in (3, [-1], ["a"], None)],
)
def test_what_is_no_number_is_refused(function, value):
    with pytest.raises(OptionError, match=r"whole number|list of numbers"):
        getattr(tvm_ext, function)(value)


def test_a_core_that_no_machine_has_is_refused(saved):
    failing = "\n".join(
        ["try:", "    model(x); tvm_ext.set_affinity([10**6])", "except Exception as e:"]
    )
    failing += (
        "\n    assert type(e).__name__ == 'OptionError' and '1000000' in str(e), e\nelse: 1/0"
    )
    started(saved, failing)
