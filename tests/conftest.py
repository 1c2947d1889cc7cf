"""What every test gets, a progress file of its own; and at the end, which files took the time.

At the end, too, how many of the wrong answers to each set's questions were refused and told why.
"""

from collections import defaultdict

import pytest

from tests.grading.counted import counted_reports

SHOWN = 20


@pytest.fixture(autouse=True)
def own_progress(monkeypatch, tmp_path_factory):
    file = tmp_path_factory.mktemp("progress") / "progress.json"
    monkeypatch.setenv("KERNELS_PROGRESS", str(file))
    return file


def pytest_terminal_summary(terminalreporter, config):
    counts = counted_reports(terminalreporter)
    if counts:
        terminalreporter.section("known-wrong answers, by set")
    for number, one in counts.items():
        line = f"set {number}: {one.wrong} wrong, {one.refused} refused, {one.remarks} told why"
        terminalreporter.write_line(line + (f"   TOO FEW: {one.faults}" if one.faults else ""))
    if config.getoption("numprocesses", None) is None:
        return
    took: dict[str, float] = defaultdict(float)
    slowest: dict[str, tuple[float, str]] = {}
    for reports in terminalreporter.stats.values():
        for report in reports:
            if not isinstance(report, pytest.TestReport):
                continue
            file, _, test = report.nodeid.partition("::")
            took[file] += report.duration
            slowest[file] = max(slowest.get(file, (0.0, "")), (report.duration, test))
    terminalreporter.section("where the time went")
    terminalreporter.write_line("  total  slowest")
    for file in sorted(took, key=lambda file: -took[file])[:SHOWN]:
        seconds, test = slowest[file]
        terminalreporter.write_line(f"{took[file]:5.0f} s {seconds:6.1f} s  {file}::{test}"[:118])
    terminalreporter.write_line(f"{sum(took.values()):5.0f} s in all {len(took)} files")


def pytest_sessionfinish(session, exitstatus):
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if reporter is None or exitstatus != pytest.ExitCode.OK:
        return
    if any(one.faults for one in counted_reports(reporter).values()):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
