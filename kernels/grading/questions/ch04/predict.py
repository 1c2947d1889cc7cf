"""04.1 and 04.8: the sectors of a warp's request, and its passes over the banks, predicted."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence

import torch

from kernels.cuda import cuda
from kernels.grading.checks import call
from kernels.grading.question import Attempt, NotAnswered, Wrong
from kernels.grading.questions.kits.wrong_models import whole_number

_WIDTHS = {2: "__half", 4: "float", 8: "double", 16: "float4"}
_DTYPES = {2: torch.float16, 4: torch.float32, 8: torch.float64, 16: torch.float32}
_WALK = cuda(
    r"""
template <typename T>
__global__ void walk(const T* x, T* y, int stride, int first) {
    y[threadIdx.x] = x[first + (int)threadIdx.x * stride];
}
""",
    instances=[f"walk<{name}>" for name in _WIDTHS.values()],
)


def counted_sectors(stride: int, width: int, first: int) -> int:
    """Return the sectors of a real warp's load: lane i takes element first + i * stride."""
    floats = max(width // _DTYPES[width].itemsize, 1)
    x = torch.zeros((max(first, first + 31 * stride) + 1) * floats, dtype=_DTYPES[width])
    y = torch.zeros(32 * floats, dtype=_DTYPES[width])
    counts = _WALK[f"walk<{_WIDTHS[width]}>"][1, 32](x, y, stride, first)
    assert counts is not None
    return sum(line.sectors for line in counts.lines if line.argument == "x")


def _touched(stride: int, width: int, first: int, size: int = 32) -> int:
    return len({(first + lane * stride) * width // size for lane in range(32)})


_Mistakes = tuple[tuple[str, Callable[[int, int, int], int]], ...]
_SECTOR_MISTAKES: _Mistakes = (
    (
        "That is where lane 0 begins at a sector. Element `first` lies `first * width` bytes "
        "behind one, and a request that begins inside a sector reaches into one more.",
        lambda s, w, f: _touched(s, w, 0),
    ),
    (
        "That is what the lanes ask for, in sectors. Bytes between the lanes move too, for a "
        "sector moves whole.",
        lambda s, w, f: w,
    ),
    (
        "That is a sector for each lane. Lanes whose bytes lie in one sector share it.",
        lambda s, w, f: 32,
    ),
    (
        "That counts lines of 128 bytes. What moves is a sector, of 32 bytes.",
        lambda s, w, f: _touched(s, w, f, 128),
    ),
    (
        "That is the whole span from the first lane to the last. A stride wider than a sector "
        "leaves sectors out.",
        lambda s, w, f: -(-(31 * abs(s) + 1) * w // 32),
    ),
    (
        "The stride counts elements, not bytes: lane 1 lies stride * width bytes from lane 0.",
        lambda s, w, f: len({(f * w + lane * s) // 32 for lane in range(32)}),
    ),
    (
        "That is right for elements of 4 bytes; an element has `width` of them.",
        lambda s, w, f: _touched(s, 4, f),
    ),
)


def grade_sectors(attempt: Attempt) -> None:
    """Grade `sectors(stride, width, first)` against real requests on the emulator."""
    rng = random.Random(attempt.seed)
    asked = [(1, 4, 0), (1, 4, 1), (2, 4, 0), (8, 4, 0), (33, 4, 5), (1, 2, 0), (1, 2, 15)]
    asked += [(1, 16, 0), (3, 16, 1), (1, 8, 3), (0, 4, 9), (-1, 4, 31), (-1, 4, 40)]
    for _ in range(5):
        width = rng.choice(list(_WIDTHS))
        asked.append((rng.randrange(1, 40), width, rng.randrange(0, 64)))
    for stride, width, first in asked:
        sentence = f"{attempt.name}({stride}, {width}, {first})"
        told = whole_number(call(attempt, stride, width, first), sentence, "the sectors")
        right = counted_sectors(stride, width, first)
        if told != right:
            wrongs = (what for what, f in _SECTOR_MISTAKES if f(stride, width, first) == told)
            raise Wrong(
                f"{sentence} is {told:,}; a warp's request took {right:,} sectors.",
                next(wrongs, ""),
            )
    attempt.held.append(f"equal to the sectors of {len(asked)} requests")


_TILE_WORDS = 2048
_BANKS = cuda(
    r"""
#define WORDS 2048
__global__ void gather(const int* words, float* y) {
    __shared__ float tile[WORDS];
    for (int i = threadIdx.x; i < WORDS; i += blockDim.x) tile[i] = i;
    __syncthreads();
    y[threadIdx.x] = tile[words[threadIdx.x]];
}
"""
)


def counted_passes(words: Sequence[int]) -> int:
    """Return the passes of a real warp's load from shared memory: lane i takes word words[i]."""
    y = torch.zeros(32)
    counts = _BANKS.gather[1, 32](torch.tensor(words, dtype=torch.int32), y)
    assert counts is not None
    return sum(line.wavefronts for line in counts.banks if line.kind == "load")


def _in_banks(words: Sequence[int]) -> Counter[int]:
    """How many different words each bank is asked for."""
    return Counter(word % 32 for word in set(words))


_BankMistakes = tuple[tuple[str, Callable[[Sequence[int]], int]], ...]
_BANK_MISTAKES: _BankMistakes = (
    (
        "Lanes that want one word are counted each. A bank gives a word to all lanes that want "
        "it, in one pass.",
        lambda w: max(Counter(word % 32 for word in w).values()),
    ),
    (
        "That is the passes beyond the first: a request takes one at least.",
        lambda w: max(_in_banks(w).values()) - 1,
    ),
    (
        "That is how many banks are asked. They answer at the same time; the one that is asked "
        "for the most words takes longest.",
        lambda w: len(_in_banks(w)),
    ),
    (
        "That adds up the conflicts of all banks. They work at the same time, and the slowest one "
        "counts.",
        lambda w: 1 + sum(count - 1 for count in _in_banks(w).values()),
    ),
    (
        "You group by w // 32; the bank is w % 32.",
        lambda w: max(Counter(word // 32 for word in set(w)).values()),
    ),
    (
        "You group by w // 32; the bank is w % 32.",
        lambda w: max(Counter(word // 32 for word in w).values()),
    ),
    (
        "That is how many different words are wanted. Words of different banks come in one pass.",
        lambda w: len(set(w)),
    ),
)


def _patterns(rng: random.Random) -> list[list[int]]:
    made = [[lane * pitch for lane in range(32)] for pitch in (1, 2, 32, 33, 0, 48)]
    # A tile of 8 columns by 4 rows, with and without a word of padding.
    made += [[lane // 8 * pitch + lane % 8 for lane in range(32)] for pitch in (8, 32, 33)]
    # Pairs of lanes share a word, and two banks have more than one.
    made.append([lane // 2 + (lane % 16 // 8) * 32 for lane in range(32)])
    for spread in (64, 300, _TILE_WORDS):
        made.append([rng.randrange(spread) for _ in range(32)])
    return made


def _told_passes(attempt: Attempt, words: Sequence[int]) -> int:
    shown = ", ".join(map(str, words[:6]))
    sentence = f"{attempt.name}([{shown}, ...])"
    return whole_number(call(attempt, list(words)), sentence, "the passes")


def _bank_mistake(attempt: Attempt, patterns: Sequence[list[int]]) -> str:
    """The mistake that explains the first pattern's answer, and most of those that follow."""
    left = list(_BANK_MISTAKES)
    for words in patterns:
        try:
            told = _told_passes(attempt, words)
        except (Wrong, NotAnswered):
            break
        agree = [(what, f) for what, f in left if f(words) == told]
        if not agree:
            # The first answer is the one that is told of.
            return left[0][0] if words is not patterns[0] else ""
        left = agree
    return left[0][0]


def grade_passes(attempt: Attempt) -> None:
    """Grade `bank_passes(words)` against real requests of shared memory on the emulator."""
    rng = random.Random(attempt.seed)
    patterns = _patterns(rng)
    for words in patterns:
        told = _told_passes(attempt, words)
        right = counted_passes(words)
        if told != right:
            raise Wrong(
                f"{attempt.name}(words) is {told:,}; a warp's request took {right:,} "
                f"{'pass' if right == 1 else 'passes'} over the banks (the words are {words}).",
                _bank_mistake(attempt, [words, *patterns]),
            )
    attempt.held.append(f"equal to the passes of {len(patterns)} requests")
