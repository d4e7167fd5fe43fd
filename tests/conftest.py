"""What the test run says at its end."""


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
