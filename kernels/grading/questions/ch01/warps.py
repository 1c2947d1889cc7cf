"""01.6: the warps that Little's law asks for, found by adding one after another."""

from __future__ import annotations

import random
from fractions import Fraction

from kernels.grading.question import Attempt, Wrong
from kernels.grading.questions.kits.numbers import (
    Mistake,
    Told,
    answered,
    asked,
    first_wrong,
    meaning,
    whole,
)
from kernels.lab.cards.makers import CARDS, GIGA, Card


def _enough(bandwidth_gbs: int, latency_ns: int, sms: int, loads: int, width: int) -> int:
    """Add a warp to each multiprocessor until one latency's worth of loads feeds the memory."""
    warps, delivered = 0, Fraction(0)
    a_warp = sum(width * loads for _ in range(32)) * sms
    while delivered < bandwidth_gbs * 10**9:
        warps += 1
        delivered = Fraction(warps * a_warp * 10**9, latency_ns)
    return warps


def _ceil(top: float, bottom: float) -> int:
    return int(-(-top // bottom))


WARP_MISTAKES: tuple[Mistake, ...] = (
    (
        "The quotient is rounded down: then the memory is not quite busy. Round up.",
        lambda bw, lat, sms, loads, width: bw * lat // (sms * 32 * loads * width),
    ),
    (
        "The quotient is rounded to the nearest: where that is down, the memory is not quite "
        "busy. Round up.",
        lambda bw, lat, sms, loads, width: round(bw * lat / (sms * 32 * loads * width)),
    ),
    (
        "One warp too many where the quotient is a whole number: rounding that up adds nothing.",
        lambda bw, lat, sms, loads, width: bw * lat // (sms * 32 * loads * width) + 1,
    ),
    (
        "These are threads: a warp has 32.",
        lambda bw, lat, sms, loads, width: _ceil(bw * lat, sms * loads * width),
    ),
    (
        "These are the warps of the whole card: divide among its multiprocessors.",
        lambda bw, lat, sms, loads, width: _ceil(bw * lat, 32 * loads * width),
    ),
    (
        "Each thread is taken to have one load on its way: it has several.",
        lambda bw, lat, sms, loads, width: _ceil(bw * lat, sms * 32 * width),
    ),
    (
        "The loads are counted, not their bytes: each brings width bytes.",
        lambda bw, lat, sms, loads, width: _ceil(bw * lat, sms * 32 * loads),
    ),
    (
        "The width is taken for bits: it is in bytes already.",
        lambda bw, lat, sms, loads, width: _ceil(8 * bw * lat, sms * 32 * loads * width),
    ),
    (
        "The latency is missing: bytes on their way = bandwidth × latency.",
        lambda bw, lat, sms, loads, width: _ceil(bw * 10**9, sms * 32 * loads * width),
    ),
    (
        "These are bytes on their way for each multiprocessor: divide by what a warp has.",
        lambda bw, lat, sms, loads, width: _ceil(bw * lat, sms),
    ),
    (
        "A factor of 1000 is too much: GB/s times ns is bytes.",
        lambda bw, lat, sms, loads, width: _ceil(1000 * bw * lat, sms * 32 * loads * width),
    ),
    (
        "A GB is taken as 2**30 bytes: it is 1e9.",
        lambda bw, lat, sms, loads, width: _ceil(bw * lat * 1.073741824, sms * 32 * loads * width),
    ),
)

WarpCase = tuple[int, int, int, int, int]


def warps_and_rest(case: WarpCase) -> tuple[int, float]:
    """The warps of a case before they are rounded up: whole ones, and the fraction of one more."""
    bandwidth_gbs, latency_ns, sms, loads, width = case
    a_warp = sms * 32 * loads * width
    warps, rest = divmod(bandwidth_gbs * latency_ns, a_warp)
    return warps, rest / a_warp


def between(card: Card, loads: int, width: int, low: float, high: float) -> list[WarpCase]:
    """Cases of a card, one for each latency at which the fraction of a warp is in the range."""
    bandwidth = round(card.bandwidth_bytes_per_s / GIGA)
    cases = [(bandwidth, latency, card.sms or 1, loads, width) for latency in range(400, 900)]
    return [case for case in cases if low < warps_and_rest(case)[1] < high]


def exact(rng: random.Random) -> WarpCase:
    """A case of a made-up card whose quotient is whole.

    All its numbers are powers of two: no order of the operations in floating point rounds, so none
    loses a right answer.
    """
    bandwidth, sms = rng.choice((1024, 2048, 4096)), rng.choice((64, 128))
    return bandwidth, 512, sms, rng.choice((2, 4)), rng.choice((4, 8))


def warp_cases(rng: random.Random) -> list[WarpCase]:
    """Quotients below and above a half for every width, and two that are whole."""
    cards = [card for card in CARDS.values() if card.sms]
    cases = []
    for width in (2, 4, 8, 16):
        # Never near a whole number, where a right formula's rounding would decide.
        for low, high in ((0.1, 0.4), (0.6, 0.9)):
            cases.append(
                rng.choice(between(rng.choice(cards), rng.randrange(2, 5), width, low, high))
            )
    cases += [exact(rng) for _ in range(2)]
    rng.shuffle(cases)
    return cases


def grade_warps(attempt: Attempt) -> None:
    """Grade `warps_needed(bandwidth_gbs, latency_ns, sms, loads, width)`, found by adding warps."""
    told = []
    for case in warp_cases(random.Random(attempt.seed)):
        label = asked(attempt, case)
        warps = whole(answered(attempt, *case), label, "a number of warps")
        told.append(Told(label, case, warps, _enough(*case)))
    if wrong := first_wrong(told):
        right = int(wrong.right)
        raise Wrong(
            f"{wrong.label} is {wrong.got:,} and should be {right:,}: {right} warps on each "
            f"multiprocessor have bandwidth × latency bytes on their way, {right - 1} have fewer.",
            meaning(WARP_MISTAKES, told),
        )
    attempt.held.append(f"right for {len(told)} loads, two of them with an exact quotient")
