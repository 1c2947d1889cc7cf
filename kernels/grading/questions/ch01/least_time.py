"""01.5: the least time and the rate of a chain of kernels under one roof."""

from __future__ import annotations

import random
from fractions import Fraction
from statistics import mean

from kernels.grading.question import Attempt, Wrong
from kernels.grading.questions.kits.numbers import (
    Mistake,
    Told,
    answered,
    asked,
    first_wrong,
    meaning,
    pair,
    real,
)
from kernels.lab.cards.makers import CARDS

# The kernels of a chain: FLOPs and bytes of each.
Kernels = list[tuple[int, int]]


def _flops(kernels: Kernels) -> int:
    return sum(flops for flops, _ in kernels)


def _moved(kernels: Kernels) -> int:
    return sum(moved for _, moved in kernels)


def _seconds(kernels: Kernels, bandwidth: float, peak: float) -> list[float]:
    return [max(moved / bandwidth, flops / peak) for flops, moved in kernels]


def _rates(kernels: Kernels, bandwidth: float, peak: float) -> list[float]:
    return [min(peak, flops / moved * bandwidth) for flops, moved in kernels]


SECONDS_MISTAKES: tuple[Mistake, ...] = (
    (
        "The kernels are taken for one, in which the bytes of all and the FLOPs of all overlap. "
        "They run one after the other: each waits for the longer of its own two times.",
        lambda k, bw, peak: max(_moved(k) / bw, _flops(k) / peak),
    ),
    (
        "A kernel's two times are added: memory and arithmetic work at once, so the longer one "
        "counts.",
        lambda k, bw, peak: _moved(k) / bw + _flops(k) / peak,
    ),
    (
        "That is the shorter of each kernel's two times: it needs both, and waits for the longer.",
        lambda k, bw, peak: sum(min(moved / bw, flops / peak) for flops, moved in k),
    ),
    ("Only the bytes are timed.", lambda k, bw, peak: _moved(k) / bw),
    ("Only the FLOPs are timed.", lambda k, bw, peak: _flops(k) / peak),
    (
        "That is the longest kernel alone: one runs after the other.",
        lambda *args: max(_seconds(*args)),
    ),
    (
        "That is the first kernel's time, of a chain that may have more.",
        lambda *args: _seconds(*args)[0],
    ),
    (
        "That is the last kernel's time: in a loop, add each kernel's to those before.",
        lambda *args: _seconds(*args)[-1],
    ),
    ("That is the mean of the kernels' times: add them.", lambda *args: mean(_seconds(*args))),
    (
        "That is in microseconds: with base units in, seconds come out.",
        lambda *args: 1e6 * sum(_seconds(*args)),
    ),
)
RATE_MISTAKES: tuple[Mistake, ...] = (
    (
        "Rates don't average, for the kernels take different times: divide all FLOPs by all "
        "seconds.",
        lambda *args: mean(_rates(*args)),
    ),
    (
        "The rates are added: the kernels don't run at once. Divide all FLOPs by all seconds.",
        lambda *args: sum(_rates(*args)),
    ),
    (
        "That is the roof over the intensity of all together. It would hold for one kernel that "
        "did everything; these run one after the other.",
        lambda k, bw, peak: min(peak, _flops(k) / _moved(k) * bw),
    ),
    (
        "That is the slanted part alone: right of the ridge the peak is all there is.",
        lambda k, bw, peak: _flops(k) / _moved(k) * bw,
    ),
    ("That is the peak: left of the ridge memory lets through less.", lambda k, bw, peak: peak),
    (
        "That is in TFLOP/s: with base units in, FLOPs a second come out.",
        lambda *args: _flops(args[0]) / sum(_seconds(*args)) / 1e12,
    ),
    (
        "That is a rate of bytes: FLOPs a second are asked for.",
        lambda *args: _moved(args[0]) / sum(_seconds(*args)),
    ),
)


def roofline_cases(rng: random.Random) -> list[tuple[Kernels, float, float]]:
    """Chains on real cards: kernels on both sides of a ridge, alone and mixed, and copies."""
    cases = []
    # Each number is the intensity of a kernel, in ridges.
    for chain in ((0.3,), (2.0,), (0.01, 0.5), (4.0, 1.5, 3.0), (0.2, 3.0), (5.0, 0.1, 0.6, 1.4)):
        card = rng.choice([card for card in CARDS.values() if card.peaks.fp16])
        bandwidth, peak = card.bandwidth_bytes_per_s, card.peak("fp16")
        kernels = []
        for ridges in chain:
            moved = rng.randrange(10**8, 10**9)
            flops = round(moved * peak / bandwidth * ridges * rng.uniform(0.9, 1.1))
            kernels.append((flops, moved))
        # The longest kernel of three comes first, the longest of two or four comes last.
        kernels.sort(key=lambda one: _seconds([one], bandwidth, peak), reverse=len(kernels) == 3)
        cases.append((kernels, bandwidth, peak))
    rng.shuffle(cases)
    cases.append(([(0, rng.randrange(10**6, 10**9)) for _ in range(2)], bandwidth, peak))
    return cases


def grade_roofline(attempt: Attempt) -> None:
    """Grade `roofline(kernels, bandwidth, peak)` under the roofs of real cards."""
    seconds, rates = [], []
    for case in roofline_cases(random.Random(attempt.seed)):
        kernels, bandwidth, peak = case
        label = asked(attempt, case)
        try:
            result = answered(attempt, [*kernels], bandwidth, peak)
        except Wrong as raised:
            if not _flops(kernels):
                raised.means = (
                    f"All others were answered; the chain is {kernels} here. Copies compute "
                    "nothing: their FLOPs are 0, and so is their rate. Nothing can be divided by "
                    "either."
                )
            raise
        told = pair(result, label, "(seconds, flops_per_s)")
        least = sum(
            max(Fraction(moved) / Fraction(bandwidth), Fraction(flops) / Fraction(peak))
            for flops, moved in kernels
        )
        seconds.append(Told(label, case, real(told[0], label, "the time"), float(least)))
        rate = float(_flops(kernels) / least)
        rates.append(Told(label, case, real(told[1], label, "the rate"), rate))
    if wrong := first_wrong(seconds):
        raise Wrong(
            f"{wrong.label}: the time is {wrong.got:.6g} s and should be {wrong.right:.6g} s.",
            meaning(SECONDS_MISTAKES, seconds),
        )
    if wrong := first_wrong(rates):
        raise Wrong(
            f"{wrong.label}: the rate is {wrong.got:.6g} FLOP/s and should be {wrong.right:.6g}.",
            meaning(RATE_MISTAKES, rates),
        )
    attempt.held.append(f"time and rate of {len(seconds)} chains, one of copies alone")
