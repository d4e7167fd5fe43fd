"""The official ONNX backend suite on ``tvm_ext.backend``, and the lists of cases that fail."""

import os
import tempfile
import warnings
import zlib
from pathlib import Path
from typing import NamedTuple

from onnx.backend.test import BackendTest

from .forms import DEVICES, FORMS, LEVELS, FormBackend

__all__ = [
    "CASES",
    "DEVICES",
    "FORMS",
    "LEVELS",
    "PARTS",
    "SHIFT",
    "SUITES",
    "Task",
    "exclusion_list",
    "exclusions",
    "part",
]

PARTS = 120
#: The part that the tests run of what is not run whole.
SHIFT = int(os.environ.get("CONFORMANCE_SHIFT", "0")) % PARTS


def _suites() -> dict[str, type]:
    # Where the suite writes what it computes for the light models.
    os.environ.setdefault("ONNX_MODELS", tempfile.mkdtemp(prefix="onnx_models_"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # numpy overflows where expected values are computed
        suites = BackendTest(FormBackend, "tests.test_official_suite").test_cases
    for suite in suites.values():
        for name in [name for name in vars(suite) if name.endswith("_cuda")]:
            delattr(suite, name)
    return suites


SUITES = _suites()  # the unittest classes, with the cases for the CPU only
CASES = {
    name: case
    for suite in SUITES.values()
    for name, case in vars(suite).items()
    if name.startswith("test_")
}


class Task(NamedTuple):
    """A case in one of the forms, built at an opt level for a device."""

    name: str
    form: str = "plain"
    level: int = 3
    device: str = "CPU"

    def run(self) -> None:
        """Build the model and compare what it computes; raises whatever goes wrong."""
        CASES[self.name](None, form=self.form, opt_level=self.level, on=self.device)


def exclusions(form: str = "plain") -> dict[Task, str]:
    """What fails on a CPU -> why: each case that fails in ``form`` and, if not plain, passes plain.

    A line of the list is ``name: reason`` or, where one level only fails, ``name at 0: reason``.
    """
    lines = exclusion_list(form).read_text(encoding="utf-8").splitlines()
    found = {}
    for line in lines:
        if line and not line.startswith("#"):
            case, reason = line.split(": ", 1)
            name, _, level = case.partition(" at ")
            for each in [int(level)] if level else LEVELS:
                found[Task(name, form, each)] = reason
    return found


def exclusion_list(form: str) -> Path:
    """The file that lists what fails in ``form``."""
    suffix = "" if form == "plain" else f"_{form}"
    return Path(__file__).with_name(f"exclusions{suffix}.txt")


def part(name: str) -> int:
    """Which of ``PARTS`` equal parts of the suite a case belongs to, whatever else is in it."""
    return zlib.crc32(name.encode()) % PARTS
