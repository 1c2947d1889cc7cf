"""01.8: what a measured row waits for. Each row is made from a cause, and that cause is asked."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import NamedTuple

from kernels.grading.question import Attempt, Wrong
from kernels.grading.questions.kits.numbers import answered, kind
from kernels.lab.cards.makers import CARDS

CAUSES = ("launches", "arithmetic", "passes", "misses", "roof", "latency")


class Row(NamedTuple):
    """One measured run: times in µs, rates in base units."""

    time_us: float
    launches: int
    launch_us: float
    flops: int
    bytes_ideal: int
    bytes_unique: int
    bytes_dram: int
    bandwidth: float
    peak: float

    @property
    def floors_us(self) -> dict[str, float]:
        """What launches, arithmetic and DRAM alone would take."""
        return {
            "launches": self.launches * self.launch_us,
            "arithmetic": self.flops / self.peak * 1e6,
            "DRAM": self.bytes_dram / self.bandwidth * 1e6,
        }


def _made(cause: str, rng: random.Random, handed_on: bool = False) -> Row:
    """A row of a run that waits for `cause`; what doesn't bind is drawn so that it misleads.

    A row of misses that is `handed_on` also touches far more than the ideal: it is no pass still.
    """

    def low() -> float:
        return rng.uniform(0.05, 0.5)

    def like() -> float:
        return rng.uniform(1.0, 1.08)

    def more() -> float:
        return rng.uniform(2.0, 4.0)

    card = rng.choice([card for card in CARDS.values() if card.peaks.fp16])
    bandwidth, peak = card.bandwidth_bytes_per_s, card.peak("fp16")
    longest = rng.uniform(60.0, 900.0)
    launches = rng.randrange(1, 4)
    if handed_on or cause in ("launches", "passes"):
        launches = rng.randrange(8, 16)
    binding = {"launches": "launches", "arithmetic": "arithmetic"}.get(cause, "DRAM")
    if cause == "latency":
        binding = rng.choice(["launches", "arithmetic", "DRAM"])
    floors = {name: longest * low() for name in ("launches", "arithmetic", "DRAM")}
    floors[binding] = longest
    dram = floors["DRAM"] * 1e-6 * bandwidth
    # Bytes tell a cause only where they bind: elsewhere they show fusions that wouldn't help.
    kind = cause if cause in ("passes", "misses", "roof") else rng.choice(("passes", "misses"))
    unique = dram / like() / (more() if kind == "misses" else 1)
    ideal = unique / like() / (more() if handed_on or kind == "passes" else 1)
    stretch = more() if cause == "latency" else like()
    return Row(
        time_us=round(longest * stretch, 3),
        launches=launches,
        launch_us=round(floors["launches"] / launches, 4),
        flops=round(floors["arithmetic"] * 1e-6 * peak),
        bytes_ideal=round(ideal),
        bytes_unique=round(unique),
        bytes_dram=round(dram),
        bandwidth=bandwidth,
        peak=peak,
    )


# What (the cause, the answer) has overlooked.
_OVERLOOKED: dict[tuple[str, str], str] = {
    ("passes", "roof"): "It runs at the speed of DRAM, and moves more than it has to: compare the "
    "unique bytes with the ideal ones.",
    ("misses", "roof"): "It runs at the speed of DRAM, and moves more than it has to: compare "
    "DRAM's bytes with the unique ones.",
    ("passes", "misses"): "DRAM moved what the launches touched, no more. The launches touch more "
    "than the ideal: intermediates.",
    ("misses", "passes"): "DRAM moved far more than the launches touch, since the cache had lost "
    "it. Compare these two first: passes are told where they are about equal.",
    ("latency", "roof"): "The time is far above every floor: nothing that was counted explains it.",
}
_BINDS = {
    "launches": "The launches take longest, all of them together: launches times launch_us.",
    "arithmetic": "The FLOPs over the peak take longest: more bytes than needed cost nothing here.",
    "latency": "The time is far above every floor: too little was under way.",
    "roof": "It moves about its ideal bytes at about the speed of DRAM: there is nothing to find.",
    "passes": "DRAM's bytes take longest, and the launches touch far more than the ideal.",
    "misses": "DRAM's bytes take longest, and they are far more than the launches touch.",
}


def by_floors(row: Row, floors_us: dict[str, float]) -> str:
    """The cause of a row by the page's rule, if these were its floors in µs."""
    longest = max(floors_us, key=lambda name: floors_us[name])
    # Between "about" and "far above": no row lies between.
    if row.time_us > 1.6 * floors_us[longest]:
        return "latency"
    if longest != "DRAM":
        return longest
    if row.bytes_dram > 1.6 * row.bytes_unique:
        return "misses"
    return "passes" if row.bytes_unique > 1.6 * row.bytes_ideal else "roof"


# What is wrong with the floors, and the cause that such floors give.
FLOOR_MISTAKES: tuple[tuple[str, Callable[[Row], str]], ...] = (
    (
        "The units are mixed: bytes over bandwidth and FLOPs over peak are seconds, time_us and "
        "launch_us are µs. A second is 1e6 µs.",
        lambda row: by_floors(
            row,
            {n: t if n == "launches" else t / 1e6 for n, t in row.floors_us.items()},
        ),
    ),
    (
        "DRAM's floor is made of the ideal bytes: it is the time of the bytes that DRAM moved.",
        lambda row: by_floors(row, row.floors_us | {"DRAM": row.bytes_ideal / row.bandwidth * 1e6}),
    ),
    (
        "DRAM's floor is made of the unique bytes: it is the time of the bytes that DRAM moved.",
        lambda row: by_floors(
            row, row.floors_us | {"DRAM": row.bytes_unique / row.bandwidth * 1e6}
        ),
    ),
)


_TIME = "Your time never reaches twice a floor: is it compared at all, and in the same unit? "


def _means(rows: list[Row], pairs: list[tuple[str, str]], right: str, told: str) -> str:
    said = {answer for _, answer in pairs}
    if len(said) == 1:
        return "You give the same cause for every row; they have different ones."
    for means, model in FLOOR_MISTAKES:
        if all(model(row) == answer for row, (_, answer) in zip(rows, pairs, strict=True)):
            return means
    if all(cause == "latency" for cause, answer in pairs if cause != answer):
        return _TIME + _BINDS["latency"]
    if all(cause == "launches" for cause, answer in pairs if cause != answer):
        return _BINDS["launches"]
    extra = ("passes", "misses")
    binds = ("launches", "arithmetic", "latency")
    if told in extra and right in binds:
        first = "Extra bytes cost time only where DRAM binds, so look at the floors first."
        return f"{first} {_BINDS[right]}"
    return _OVERLOOKED.get((right, told), _BINDS[right])


def grade_cause(attempt: Attempt) -> None:
    """Grade `cause(row)` on four rows of every cause, in random order.

    Two of the four rows of misses are handed on from launch to launch as well.
    """
    rng = random.Random(attempt.seed)
    made = [
        (cause, _made(cause, rng, handed_on=cause == "misses" and number < 2))
        for cause in CAUSES
        for number in range(4)
    ]
    rng.shuffle(made)
    pairs = []
    for _, row in made:
        told = answered(attempt, row._asdict())
        if type(told) is not str or told not in CAUSES:
            got = repr(told[:40]) if type(told) is str else kind(told)
            raise Wrong(f"{attempt.name} returned {got}; it takes one of {', '.join(CAUSES)}.")
        pairs.append(told)
    verdicts = [(cause, told) for (cause, _), told in zip(made, pairs, strict=True)]
    for (cause, row), told in zip(made, pairs, strict=True):
        if told != cause:
            floors = ", ".join(f"{name} {time:.1f}" for name, time in row.floors_us.items())
            raise Wrong(
                f"{attempt.name} says {told!r} and should say {cause!r}: {row.time_us:.1f} µs "
                f"measured; floors in µs: {floors}; {row.bytes_ideal:,} ideal, "
                f"{row.bytes_unique:,} unique and {row.bytes_dram:,} DRAM bytes.",
                _means([row for _, row in made], verdicts, cause, told),
            )
    attempt.held.append(f"right for {len(made)} rows, four of each cause")
