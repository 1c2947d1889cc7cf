"""Counts, over a whole run of tests, what became of known-wrong answers: by set, refused and told.

Every check that a test named `…_wrong` makes is one of a wrong answer. No check is made for the
count: it is taken where the tests make theirs, in whichever process, and summed at the end.
"""

from collections import defaultdict
from dataclasses import dataclass

import pytest

REFUSED, REMARKS = 0.98, 0.80
# Fewer answers than these say nothing of a share.
ENOUGH = 20
PROPERTY = "wrong answer"


@dataclass
class Count:
    """Wrong answers to the questions of one set: all, those refused, those with a remark."""

    wrong: int = 0
    refused: int = 0
    remarks: int = 0

    @property
    def faults(self) -> str:
        """What of it is too few; "" for nothing."""
        if self.wrong < ENOUGH:
            return ""
        few = [
            f"{had} of {of} {what}, {had / of:.1%}, and {least:.0%} is the least"
            for what, had, of, least in (
                ("refused", self.refused, self.wrong, REFUSED),
                ("of these told why", self.remarks, max(self.refused, 1), REMARKS),
            )
            if had < least * of
        ]
        return "; ".join(few)


def counted(noted) -> dict[str, Count]:
    """The counts by set of (question, passed, remark) triples."""
    counts: dict[str, Count] = defaultdict(Count)
    for question, passed, remark in noted:
        one = counts[question.partition(".")[0]]
        one.wrong += 1
        one.refused += not passed
        one.remarks += not passed and remark
    return dict(sorted(counts.items()))


def counted_reports(terminalreporter) -> dict[str, Count]:
    """The counts of all answers that the tests of a run have noted, in whichever process."""
    return counted(
        value
        for reports in terminalreporter.stats.values()
        for report in reports
        if isinstance(report, pytest.TestReport) and report.when == "call"
        for name, value in report.user_properties
        if name == PROPERTY
    )
