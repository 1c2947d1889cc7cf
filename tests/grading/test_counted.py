"""The counts of wrong answers tell where a set refuses too few, or tells too few why."""

import pytest

from tests.grading.counted import Count, counted


def test_verdicts_are_counted_by_set():
    noted = [("05.1", False, True), ("02.3", False, False), ("02.1", True, False)]
    assert counted(noted) == {"02": Count(2, 1, 0), "05": Count(1, 1, 1)}


@pytest.mark.parametrize(
    ("count", "told"),
    [
        (Count(100, 98, 79), ""),
        (Count(100, 97, 90), "97 of 100 refused, 97.0%, and 98% is the least"),
        (Count(100, 100, 79), "79 of 100 of these told why, 79.0%, and 80% is the least"),
        (Count(19, 0, 0), ""),
    ],
)
def test_too_few_are_told(count, told):
    assert count.faults == told
