"""Is one variant faster than another? Paired ratios, their interval, the noise, a verdict.

Variants of a cell are timed in turns, one sample each a turn, so a slow moment of the card hits
both samples of a pair. The speed-up is the median of the pairs' ratios. Its interval is made of
two of the ordered ratios, which needs no assumption on how times are distributed: with n pairs,
the ratios of rank k and n + 1 − k hold the true median between them with the probability that of n
fair coins at least k and at most n − k show heads.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from kernels.lab.measuring.timing import quantile

BASELINES = (
    *("copy", "eager", "torch", "compile", "compile_max_autotune", "liger", "helion"),
    "product_alone",
)
CONFIDENCE = 0.95
SUPPORTED, NOT_SUPPORTED, RERUN = "supported", "not supported", "rerun: noise"


@dataclass(frozen=True)
class SpeedUp:
    """How many times faster a variant is than a baseline, and the interval around it.

    `noise` is the larger of the two variants' spread, (p95 − p20) / p50. `pairs` is how many
    turns there were.
    """

    ratio: float
    low: float
    high: float
    noise: float
    pairs: int

    @property
    def verdict(self) -> str:
        """Whether "the variant is faster" is supported, not supported, or lost in the noise."""
        clear = self.low > 1 or self.high < 1
        if not clear or abs(self.ratio - 1) < self.noise / 2:
            return RERUN if self.noise > abs(self.ratio - 1) else NOT_SUPPORTED
        return SUPPORTED if self.low > 1 else NOT_SUPPORTED


def spread(samples: Sequence[float]) -> float:
    """(p95 − p20) / p50 of the samples: how far a typical one lies from another."""
    return (quantile(samples, 0.95) - quantile(samples, 0.20)) / quantile(samples, 0.50)


def rank_of_interval(pairs: int, confidence: float = CONFIDENCE) -> int:
    """The largest k for which the k-th smallest and k-th largest of `pairs` are wide enough.

    1 (the extremes) if even those are not: fewer than 6 pairs at 95 %.
    """
    outside = 1 - confidence
    tail, k = 0.0, 0
    while 2 * (tail + math.comb(pairs, k) / 2**pairs) <= outside and k < pairs // 2:
        tail += math.comb(pairs, k) / 2**pairs
        k += 1
    return max(k, 1)


def speed_up(times: Sequence[float], baseline: Sequence[float]) -> SpeedUp:
    """The speed-up of `times` over `baseline`, paired by index; ValueError without pairs."""
    if not times or len(times) != len(baseline):
        raise ValueError(f"{len(times)} and {len(baseline)} samples are no pairs")
    ratios = sorted(b / t for t, b in zip(times, baseline, strict=True))
    k = rank_of_interval(len(ratios))
    return SpeedUp(
        median(ratios),
        ratios[k - 1],
        ratios[-k],
        max(spread(times), spread(baseline)),
        len(ratios),
    )


def speed_ups(samples: Mapping[str, Sequence[float]]) -> dict[str, dict[str, dict[str, Any]]]:
    """Every variant's speed-up over each baseline that was timed with it, ready for JSON."""
    told: dict[str, dict[str, dict[str, Any]]] = {}
    for name, times in samples.items():
        for base in BASELINES:
            if base != name and base in samples and name != "copy":
                found = speed_up(times, samples[base])
                told.setdefault(name, {})[base] = {
                    "ratio": round(found.ratio, 4),
                    "low": round(found.low, 4),
                    "high": round(found.high, 4),
                    "noise": round(found.noise, 4),
                    "pairs": found.pairs,
                    "verdict": found.verdict,
                }
    return told
