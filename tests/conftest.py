"""What surrounds the test run, and what it says at its end."""

import gc
import logging
import os

import pytest


def pytest_configure():
    """Kernels that go beyond their tensors end the process, where that is asked for."""
    gc.disable()  # until all is imported: of that nothing is garbage
    if os.environ.get("TVM_EXT_CHECK_BOUNDS") == "1":
        from tests.bounds import check_all_bounds

        check_all_bounds()


def pytest_collection_finish():
    """What has been imported stays: to look for garbage in it is 4 % of the run."""
    gc.freeze()
    gc.enable()


@pytest.fixture(scope="session", autouse=True)
def surroundings(tmp_path_factory):
    """Commands keep what they build in a folder of this run; tables have room to print."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLUMNS", "140")
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


class _Failures(logging.Handler):
    """What schedule rules raised: a kernel goes to the next rule then, most often a slow one, and
    nothing but a debug message says so."""

    def __init__(self):
        super().__init__()
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.name == "tvm_ext.schedules":  # not what rules of cuda say to one another
            self.found.append(record.getMessage())


@pytest.fixture(scope="session")
def rule_failures():
    """Those since the last test: of this one, and of what was built for it and others."""
    logger, handler = logging.getLogger("tvm_ext.schedules"), _Failures()
    logger.setLevel(logging.DEBUG)
    logger.addHandler(handler)
    return handler.found


@pytest.fixture(autouse=True)
def no_schedule_rule_fails(request, rule_failures):
    """Rules decline what they do not serve; those of a test marked ``rule_fails`` raise."""
    yield
    found = rule_failures.copy()
    rule_failures.clear()
    assert bool(found) == (request.node.get_closest_marker("rule_fails") is not None), found


def pytest_terminal_summary(terminalreporter):
    """Print how much of the official ONNX backend suite passes."""
    counts = {
        outcome: sum(
            "test_official_suite.py::OnnxBackend" in report.nodeid
            for report in terminalreporter.getreports(outcome)
        )
        for outcome in ("passed", "failed", "xfailed", "skipped")
    }
    if counts["passed"] or counts["failed"]:
        terminalreporter.section("official ONNX backend suite")
        terminalreporter.line(f"{counts['passed']} of {sum(counts.values())} cases pass")
