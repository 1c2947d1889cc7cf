"""A plugin of pytest that writes proofs: `make gpu` loads it with `-p`.

    pytest -m gpu -p kernels.lab.records.proofs_plugin --proofs FOLDER --proofs-card h100-sxm

writes `FOLDER/h100-sxm/proofs.csv`, from the book's own rows of the card and from what passed.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from kernels.lab.records import proofs, provenance, sources
from kernels.lab.records.proofs import Case


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options."""
    parser.addoption("--proofs", type=Path, help="write <folder>/<card>/proofs.csv")
    parser.addoption("--proofs-card", help="the card's short name, as in h100-sxm")


def pytest_configure(config: pytest.Config) -> None:
    """Watch the run where a folder is named."""
    if config.getoption("--proofs"):
        config.pluginmanager.register(_Run(config))


class _Run:
    """A run of pytest: how each case of each test ended."""

    def __init__(self, config: pytest.Config) -> None:
        self.root = config.rootpath
        self.card: str = config.getoption("--proofs-card")
        self.out: Path = config.getoption("--proofs")
        self.cases: dict[str, Case] = {}  # by the case's name
        tree = sources.of_folder(self.root)
        # Before the tests: what they run is what stands there now.
        self.tests, self.faults = proofs.wanted(tree)

    def _expect(self, items: Sequence[pytest.Item]) -> None:
        for item in items:
            if item.get_closest_marker("gpu"):  # a case for the CPU proves nothing here
                self.cases.setdefault(item.nodeid, Case(item.nodeid))

    def pytest_deselected(self, items: Sequence[pytest.Item]) -> None:
        """A case that was left out was not run."""
        self._expect(items)

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """A case that a broken run never reaches was not run."""
        self._expect(session.items)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keep the worst of a case's setup, call and teardown."""
        outcome, reason = str(report.outcome), ""
        if hasattr(report, "wasxfail"):
            outcome, reason = "skipped", f"expected to fail: {report.wasxfail}"
        elif report.skipped and isinstance(report.longrepr, tuple):
            reason = str(report.longrepr[2]).removeprefix("Skipped: ")
        before = self.cases.get(report.nodeid)
        if before is None or (report.when != "call" and outcome == proofs.PASSED):
            return
        if outcome == "failed" or before.outcome in ("", proofs.PASSED):
            self.cases[report.nodeid] = Case(report.nodeid, outcome, reason)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Write the rows and say what is proved and what not."""
        by_test: dict[str, list[Case]] = {}
        for name, case in self.cases.items():
            by_test.setdefault(name.partition("[")[0], []).append(case)
        source, versions = provenance.source(), provenance.versions()
        stamp = {
            "gpu": self.card,
            "date": provenance.utc_now(),
            "commit": source["commit"] or "",
            "dirty": {True: "yes", False: "no", None: ""}[source["dirty"]],
            "torch": versions["torch"] or "",
            "triton": versions["triton"] or "",
        }
        known = self.root / "book" / "data" / self.card
        said = proofs.record(self.tests, by_test, stamp, known, self.out / self.card)
        for line in [*self.faults, *said]:
            terminalreporter.write_line(line)
