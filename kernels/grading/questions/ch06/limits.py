"""06.8: what a measured norm waits for: Python's launches, DRAM, or something that fusing left."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import NamedTuple

from kernels.grading.question import Attempt
from kernels.grading.questions.kits.words import Words

LIMITS = ("launch", "extra bytes", "memory", "neither")
_FAR = 1.4  # "far above" begins here
_NEAR = 1.2  # "about" ends here; no row lies between the two


class Row(NamedTuple):
    """One variant at one shape: times in µs, bytes of one call.

    `host_us` is a call from Python, `graph_us` the device alone, in a replayed CUDA graph.
    `copy_us` is the device time of a copy that moves the ideal bytes.
    """

    host_us: float
    graph_us: float
    copy_us: float
    bytes_ideal: int
    bytes_dram: int


def limit(row: Row) -> str:
    """Return what a row waits for, by the page's rule."""
    if row.host_us > _FAR * row.graph_us:
        return "launch"
    if row.graph_us > _FAR * _floor_us(row):
        return "neither"
    return "extra bytes" if row.bytes_dram > _FAR * row.bytes_ideal else "memory"


def _floor_us(row: Row) -> float:
    """What DRAM takes for the bytes that it moved, or for the ideal ones if it moved fewer."""
    return row.copy_us * max(row.bytes_dram / row.bytes_ideal, 1.0)


def _made(wanted: str, rng: random.Random, number: int) -> Row:
    """The row of this number that waits for `wanted`; what doesn't decide misleads by turns."""

    def like() -> float:
        return rng.uniform(1.0, 1.12)

    def far() -> float:
        return rng.uniform(1.6, 6.0)

    rows, cols = 2 ** rng.randrange(9, 15), 2 ** rng.randrange(9, 14)
    ideal = 2 * rows * cols * 2 + 2 * cols
    copy = 1.5 + ideal / rng.uniform(0.25e6, 3.0e6)
    cached = rng.uniform(0.45, 0.6)
    extra = far() if wanted == "extra bytes" else (cached, like())[number % 2]
    slow = far() if wanted == "neither" else like()
    if wanted == "launch":
        # Slow on the device or with bytes to spare: the next call is late all the same.
        extra, slow = ((1.0, far()), (far(), like()), (cached, like()))[number % 3]
    elif wanted == "neither":
        extra = (cached, like(), far())[number % 3]
    dram = round(ideal * extra)
    graph = copy * max(dram / ideal, 1.0) * slow
    host = graph * (far() if wanted == "launch" else rng.uniform(1.0, 1.15))
    return Row(round(host, 4), round(graph, 4), round(copy, 4), ideal, dram)


_MISTAKES: tuple[tuple[str, Callable[[Row], str]], ...] = (
    (
        "The device's time is held against a copy of the ideal bytes. Extra bytes take their time "
        "at the speed of DRAM: hold it against a copy of what DRAM moved.",
        lambda r: limit(r._replace(bytes_dram=r.bytes_ideal)),
    ),
    (
        "A call from Python is held against the copy. What the host adds is the difference of "
        "host_us and graph_us; the copy's time is the device's.",
        lambda r: limit(r._replace(graph_us=r.host_us)),
    ),
    (
        "The launch is never looked at: compare host_us with graph_us first.",
        lambda r: limit(r._replace(host_us=r.graph_us)),
    ),
    (
        "Extra bytes are looked for first. They cost nothing where the device waits for Python: "
        "compare host_us with graph_us first.",
        lambda r: "extra bytes" if r.bytes_dram > _FAR * r.bytes_ideal else limit(r),
    ),
    (
        "bytes_dram below the ideal is no sign of speed: the rest stayed in the L2 cache. Never "
        "take less than the copy's own time as the floor.",
        lambda r: limit(r._replace(copy_us=r.copy_us * min(r.bytes_dram / r.bytes_ideal, 1.0))),
    ),
)
_BINDS = {
    "launch": "From Python the call takes far longer than the device works: the device waits for "
    "its next launch. No byte that you save is felt there.",
    "extra bytes": "The device is as fast as DRAM allows for what was moved, and that is far more "
    "than the ideal: there is something left to fuse, or a read to save.",
    "memory": "About the ideal bytes, at about the copy's rate: there is nothing left to fuse.",
    "neither": "The device takes far longer than DRAM needs for what it moved, and Python is not "
    "late: too few programs, spilled registers or long waits, not bytes.",
}


def _shown(row: Row) -> str:
    return (
        f"host {row.host_us:.1f} µs, graph {row.graph_us:.1f} µs, a copy {row.copy_us:.1f} µs; "
        f"{row.bytes_ideal:,} ideal and {row.bytes_dram:,} DRAM bytes"
    )


_WORDS = Words(LIMITS, "row", _shown, _MISTAKES, _BINDS)


def grade_limit(attempt: Attempt) -> None:
    """Grade `limit(row)` on five rows of every kind, in random order."""
    rng = random.Random(attempt.seed)
    made = [(wanted, _made(wanted, rng, n)) for wanted in LIMITS for n in range(5)]
    rng.shuffle(made)
    _WORDS.grade(attempt, made)
    attempt.held.append(f"right for {len(made)} rows, five of each kind")
