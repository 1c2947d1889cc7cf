"""12.6: eight walks over keys whose code nobody sees, and what is wrong with each."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import torch

from kernels.grading.question import Attempt
from kernels.grading.questions.kits.attention import FAULTS, scores, walk
from kernels.grading.questions.kits.experiments import grade_verdicts

VERDICTS = (*FAULTS, "nothing")
BLOCK = 4
_MOST = 8
_KEYS = 64


def _numbers(values: Any, what: str, count: int | None = None) -> list[float]:
    if type(values) not in (list, tuple) or not 1 <= len(values) <= _KEYS:
        raise ValueError(f"{what} is {values!r}; it takes a list of 1 to {_KEYS} numbers")
    if count is not None and len(values) != count:
        raise ValueError(f"{what} has {len(values)} numbers, and takes {count}")
    if any(type(x) not in (int, float) or not abs(x) <= 1e6 for x in values):
        raise ValueError(f"{what} is {values!r}; it takes numbers from -1e6 to 1e6")
    return [float(x) for x in values]


class Walk:
    """Attention of one query, in float64, that may have a fault: call it with keys of your own."""

    def __init__(self, fault: str) -> None:
        self._fault = "" if fault == "nothing" else fault
        self.calls: list[str] = []

    def __call__(self, q: Sequence[float], k: Sequence[Any], v: Sequence[float]) -> float:
        """Return the output of one query, whose keys have one value each.

        q: d numbers. k: from 1 to 64 keys of d numbers. v: a number for each key. They are lists;
        ValueError names what it got instead.
        """
        query = _numbers(q, "q")
        if type(k) not in (list, tuple) or not 1 <= len(k) <= _KEYS:
            raise ValueError(f"k takes a list of 1 to {_KEYS} keys")
        keys = [_numbers(key, "a key", len(query)) for key in k]
        values = _numbers(v, "v", len(keys))
        self.calls.append(f"{len(keys)} key{'s' * (len(keys) != 1)} of {len(query)} numbers")
        return self.walked(query, keys, values)

    def walked(self, q: list[float], k: list[list[float]], v: list[float]) -> float:
        """Return the output for lists that are sound."""
        s = scores(torch.tensor([q]), torch.tensor(k, dtype=torch.float64))
        if self._fault == "scale twice":
            s = s * len(q) ** -0.5
        value = torch.tensor(v, dtype=torch.float64)[:, None]
        seen = torch.ones(1, len(k), dtype=torch.bool)
        return float(walk(s, value, seen, BLOCK, self._fault))


def ward(seed: int) -> list[Walk]:
    """Return a walk with each fault and one with none, in random order."""
    return [Walk(fault) for fault in random.Random(seed).sample(VERDICTS, len(VERDICTS))]


_TELLS = {
    "no correction": "It is right as long as the first block has the largest score. Where a later "
    "one brings a larger maximum, weights are wrong; with values that are all 1 nothing shows.",
    "l alone": "With values of 1 the output is 1, if l and acc are treated alike. Here it is above "
    "1 where a later block has the larger maximum: acc keeps what it had.",
    "acc alone": "With values of 1 the output is 1, if l and acc are treated alike. Here it is "
    "below 1 where a later block has the larger maximum: l keeps what it had.",
    "scale twice": "It is wrong on the plainest input: one whole block, small scores, d above 1. "
    "With d = 1 the scale is 1, and twice is as good as once.",
    "masked with 0": "It is wrong where the last block is not whole: the lanes left over have the "
    "score 0 each, and their weights are in l.",
    "masked behind the maximum": "It is wrong only where all scores lie far below 0 and the last "
    "block is not whole: lanes left over make the maximum 0, and exp of every score is 0.",
    "no maximum": "It is wrong only where a score is so large that exp of it is infinite, above "
    "709, or all are so small that exp is 0.",
    "nothing": "It is right on every input there is.",
}
_PAIRS = {
    frozenset(("no maximum", "masked behind the maximum")): "Both fail where all scores lie far "
    "below 0. With a whole block no lane is left over, and a mask has nothing to do.",
    frozenset(("masked with 0", "masked behind the maximum")): "Both have lanes left over behind "
    "the last key. Scores near 0 tell them apart: one is wrong there already.",
    frozenset(("l alone", "acc alone")): "Both are wrong where the maximum rises. If acc keeps too "
    "much the output is too large, and if l does it is too small: take values of 1.",
    frozenset(("l alone", "no correction")): "Both are wrong where the maximum rises. Values of 1 "
    "tell them apart: where l and acc are treated alike, the output is 1.",
    frozenset(("acc alone", "no correction")): "Both are wrong where the maximum rises. Values of "
    "1 tell them apart: where l and acc are treated alike, the output is 1.",
}


def grade_fault(attempt: Attempt) -> None:
    """Grade `fault(attend)` on each walk, and on some of them once more."""
    grade_verdicts(attempt, VERDICTS, lambda fault, _: Walk(fault), _MOST, _TELLS, _PAIRS)
