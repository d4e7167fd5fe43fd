"""The official ONNX backend suite on ``tvm_ext.backend``, and the list of cases that fail."""

import os
import tempfile
import warnings
from pathlib import Path

from onnx.backend.test import BackendTest

from tvm_ext import backend

__all__ = ["CASES", "EXCLUSIONS", "SUITES", "exclusions"]

EXCLUSIONS = Path(__file__).with_name("exclusions.txt")


def _suites() -> dict[str, type]:
    # Where the suite writes what it computes for the light models.
    os.environ.setdefault("ONNX_MODELS", tempfile.mkdtemp(prefix="onnx_models_"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # numpy overflows where expected values are computed
        suites = BackendTest(backend, "tests.test_official_suite").test_cases
    for suite in suites.values():
        for name in [name for name in vars(suite) if name.endswith("_cuda")]:
            delattr(suite, name)
    return suites


def exclusions() -> dict[str, str]:
    """Case name -> why it fails; one ``name: reason`` per line of the list."""
    lines = EXCLUSIONS.read_text(encoding="utf-8").splitlines()
    return dict(line.split(": ", 1) for line in lines if line and not line.startswith("#"))


SUITES = _suites()  # the unittest classes, with the cases for the CPU only
CASES = {
    name: case
    for suite in SUITES.values()
    for name, case in vars(suite).items()
    if name.startswith("test_")
}
