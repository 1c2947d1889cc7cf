"""11.7: in which way a norm and a product were computed, told from four ledgers."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import NamedTuple

from kernels.grading.question import Attempt
from kernels.grading.questions.kits.words import Words

WAYS = ("two, L2", "two, DRAM", "prologue", "folded", "folded anew")
_FP32 = 4


class Record(NamedTuple):
    """What the ledgers say of y = LayerNorm(x) · weightᵀ + bias, x (m, k), weight (n, k).

    `launches`; bytes: `unique` distinct ones, summed over launches, `requested`, and `dram`, what
    DRAM read and wrote. Elements have `itemsize` bytes, tiles block_m × block_n outputs.
    """

    m: int
    n: int
    k: int
    itemsize: int
    block_m: int
    block_n: int
    launches: int
    unique: int
    requested: int
    dram: int

    @property
    def of_x(self) -> int:
        """The bytes of x; h = LayerNorm(x) has as many."""
        return self.m * self.k * self.itemsize

    @property
    def of_weight(self) -> int:
        """The bytes of weight; folded weights have as many."""
        return self.n * self.k * self.itemsize

    @property
    def of_y(self) -> int:
        """The bytes of y."""
        return self.m * self.n * self.itemsize


def _up(size: int, block: int) -> int:
    return -(-size // block)


def _recorded(way: str, shape: tuple[int, int, int, int, int, int], spread: float) -> Record:
    """Return what a way's ledgers count, and DRAM's bytes times `spread`."""
    m, n, k, size, block_m, block_n = shape
    x, weight, y = m * k * size, n * k * size, m * n * size
    down, across = _up(m, block_m), _up(n, block_n)
    bias, norm = n * size, 2 * k * size
    unique, requested = x + weight + y, across * x + down * weight + y
    launches, dram = 1, x + weight + y
    if way.startswith("two"):
        launches = 2
        unique += norm + bias + 2 * x
        requested += m * norm + down * bias + 2 * x
        dram += x if way == "two, L2" else 2 * x
    elif way == "prologue":
        unique += norm + bias
        requested += across * x + down * across * norm + down * bias
    else:
        added = 2 * n * _FP32
        unique += added
        requested += down * added
        if way == "folded anew":
            launches = 2
            unique += 2 * weight + norm + bias + added
            requested += 2 * weight + n * norm + bias + added
            dram += 2 * weight
    return Record(*shape, launches, unique, requested, round(dram * spread))


def which(record: Record) -> str:
    """Return the way of a record, by what each ledger alone can tell."""
    if record.launches == 2:
        more = record.unique - record.of_x - record.of_weight - record.of_y
        if abs(more - 2 * record.of_weight) < abs(more - 2 * record.of_x):
            return "folded anew"
        least = record.of_x + record.of_weight + record.of_y
        return "two, L2" if record.dram < least + 1.5 * record.of_x else "two, DRAM"
    of_weight = _up(record.m, record.block_m) * record.of_weight
    asked = record.requested - of_weight - record.of_y
    return "folded" if asked < 1.5 * _up(record.n, record.block_n) * record.of_x else "prologue"


def _made(way: str, rng: random.Random, number: int) -> Record:
    """The record of this number that was made in a way."""
    block_m, block_n = rng.choice(((64, 128), (128, 128), (128, 256)))
    # Where K is small y is a large part of what is asked for.
    k = 256 * (rng.randrange(4, 12) if way.startswith("two") else rng.choice((1, 2, 8)))
    m, n = 256 * rng.randrange(16, 60), 256 * rng.randrange(4, 8)
    # Either matrix may be the larger one, clearly.
    if number % 2:
        m, n = n, m
    spread = rng.uniform(0.99, 1.01)
    if way.startswith("two"):
        # What the L2 kept is a small part of all bytes where y is large: it has to be seen.
        n = min(n, 2 * k)
        spread = 1.0 + rng.uniform(-0.1, 0.1) * m * k / (3 * m * k + n * k + m * n)
        if 0.7 < m / n < 1.5:
            m *= 2
    return _recorded(way, (m, n, k, rng.choice((2, 4)), block_m, block_n), spread)


def _by_launches(record: Record) -> str:
    return "two, DRAM" if record.launches == 2 else "prologue"


_ALWAYS_H = (
    "Two launches need not be a norm and a product: the other may make folded weights anew. What "
    "the distinct bytes hold beside x, weight and y is 2 · of_x of h, or 2 · of_weight of the "
    "folded ones."
)
_ONCE_OR_TWICE = (
    "A prologue needs the row's statistics first: it asks for x twice for each block of columns, "
    "and a folded product once. Take what weight and y ask for from `requested`."
)
_IN_DRAM = (
    "What DRAM moved is never looked at. Beside x, weight and y it is h written, and once more h "
    "where the L2 did not hold it."
)
_MISTAKES: tuple[tuple[str, Callable[[Record], str]], ...] = (
    (_IN_DRAM, lambda r: "two, DRAM" if which(r) == "two, L2" else which(r)),
    (_IN_DRAM, lambda r: "two, L2" if which(r) == "two, DRAM" else which(r)),
    (_ONCE_OR_TWICE, lambda r: "prologue" if which(r) == "folded" else which(r)),
    (_ONCE_OR_TWICE, lambda r: "folded" if which(r) == "prologue" else which(r)),
    (
        "Prologue and folded have changed places: the prologue asks for x twice as often.",
        lambda r: {"folded": "prologue", "prologue": "folded"}.get(which(r), which(r)),
    ),
    (
        "Those two have changed places: where the L2 holds h, DRAM moves less.",
        lambda r: {"two, L2": "two, DRAM", "two, DRAM": "two, L2"}.get(which(r), which(r)),
    ),
    (
        _ALWAYS_H,
        lambda r: "two, DRAM" if which(r) == "folded anew" else which(r),
    ),
    (_ALWAYS_H, lambda r: "two, L2" if which(r) == "folded anew" else which(r)),
    (
        _ALWAYS_H,
        lambda r: (
            which(r)
            if which(r) != "folded anew"
            else "two, L2"
            if r.dram < r.of_x + r.of_weight + r.of_y + 1.5 * r.of_x
            else "two, DRAM"
        ),
    ),
    (
        "The shape alone doesn't tell: weights may be folded anew though they are the larger "
        "matrix, and h may be. Which of them do the distinct bytes hold twice more?",
        lambda r: (
            which(r)
            if r.launches == 1
            else "folded anew"
            if r.m > r.n
            else "two, L2"
            if r.dram < r.of_x + r.of_weight + r.of_y + 1.5 * r.of_x
            else "two, DRAM"
        ),
    ),
    (
        "The number of launches tells two ways from one kernel each, and no more.",
        _by_launches,
    ),
    (
        "The number of launches tells two ways from one kernel each, and no more.",
        lambda r: "two, L2" if r.launches == 2 else "folded",
    ),
)
_TELLS = {
    "two, L2": "Two launches; the distinct bytes hold h, written and read. DRAM moved h once, for "
    "its write: the read came from the L2.",
    "two, DRAM": "Two launches; the distinct bytes hold h, written and read, and DRAM moved both.",
    "prologue": "One launch, and each block of columns asks for x twice.",
    "folded": "One launch, and each block of columns asks for x once.",
    "folded anew": "Two launches; beside x, weight and y the distinct bytes hold weight's bytes "
    "twice more: the folded weights, written and read.",
}
_WORDS = Words(WAYS, "record", str, _MISTAKES, _TELLS)


def grade_ways(attempt: Attempt) -> None:
    """Grade `which_way(record)` on five records of every way, in random order."""
    rng = random.Random(attempt.seed)
    made = [(way, _made(way, rng, n)) for way in WAYS for n in range(5)]
    rng.shuffle(made)
    _WORDS.grade(attempt, made)
    attempt.held.append(f"right for {len(made)} records, five of each way")
