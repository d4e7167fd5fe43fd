"""What surrounds the test run, and what it says at its end."""

import pytest


@pytest.fixture(scope="session", autouse=True)
def surroundings(tmp_path_factory):
    """Commands keep what they build in a folder of this run; tables have room to print."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLUMNS", "140")
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


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
