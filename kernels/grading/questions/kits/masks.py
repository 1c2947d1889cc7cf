"""Dropout's masks in questions: seeds and inputs drawn, wrong masks, and what explains all runs."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from itertools import product

import numpy as np
import torch

from kernels.grading.cases import Case, Run
from kernels.grading.closeness import relative_error
from kernels.grading.question import Attempt, Wrong
from kernels.grading.questions.kits.wrong_models import Models, Tensor, drawn, right_or_told
from kernels.philox import keeps, philox, scale, threshold
from kernels.registry import Tolerance

TILES = (64, 128, 256, 512, 1024, 2048, 4096)
OUTSIDE = "Elements beyond the last need a mask in each load and in the store."
NOTHING_LEFT = (
    "p may be 1: then T is 65536, all is dropped, and nothing is left to divide by. "
    "kernels.philox.scale gives 0.0 there."
)


def state(rng: random.Random) -> Tensor:
    """Return a seed and an offset, int64 (2,); both take more than 32 bits."""
    return torch.tensor([rng.getrandbits(62) | 1 << 40, rng.getrandbits(40) | 1 << 33])


def nonzero(rng: random.Random, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """Return normal numbers without a zero, so that a zero of the output was dropped."""
    x = drawn(rng, shape, dtype)
    return torch.where(x.abs() < 0.05, 1.0, x).to(dtype)


def numbers(element: Tensor, seed_offset: Tensor) -> Tensor:
    """Return the 16-bit number of each row-major index, int64 of any shape."""
    words = _words((element // 8).flatten(), seed_offset)
    halves = torch.stack([words & 0xFFFF, words >> 16], dim=2).flatten(1)
    return halves.gather(1, (element % 8).view(-1, 1)).view(element.shape)


def _words(block: Tensor, seed_offset: Tensor) -> Tensor:
    """The four words of each block, int64 (n,) to (n, 4)."""
    seed, offset = seed_offset.tolist()
    counters = np.empty((len(block), 4), np.uint32)
    for place, number in enumerate((block.numpy(), np.full(len(block), offset))):
        counters[:, 2 * place] = number & 0xFFFFFFFF
        counters[:, 2 * place + 1] = number >> 32
    return torch.from_numpy(philox(seed, counters).astype(np.int64))


def kept(shape: tuple[int, ...], p: float, seed_offset: Tensor) -> Tensor:
    """Return the right mask: bool of `shape`."""
    seed, offset = seed_offset.tolist()
    return torch.from_numpy(keeps(shape, p, seed, offset))


def edge(rng: random.Random, n: int, seed_offset: Tensor) -> float:
    """Return a p near 0.3 whose threshold is exactly the number of one of n elements."""
    drawn_numbers = numbers(torch.arange(n), seed_offset)
    middle = drawn_numbers[(drawn_numbers > 6000) & (drawn_numbers < 50000)]
    number = int(middle[rng.randrange(len(middle))]) if len(middle) else 20000
    return number / 65536


def wrong_masks(
    shape: tuple[int, ...], p: float, seed_offset: Tensor
) -> Iterator[tuple[str, Tensor]]:
    """Yield what people draw instead of the right mask, each with what is wrong about it.

    All of them are told of every tensor, also of one where it makes no difference: so a fault is
    known by what it does to all inputs.
    """
    right, dropped = kept(shape, p, seed_offset), threshold(p)
    n = right.numel()
    index = torch.arange(n).view(shape)
    cols = shape[-1]

    def at(element: Tensor, offset: int = 0) -> Tensor:
        return numbers(element, seed_offset + torch.tensor([0, offset])) >= dropped

    yield "What is kept and what is dropped have changed places.", ~right
    yield "Nothing is dropped.", torch.ones_like(right)
    yield "Everything is dropped.", torch.zeros_like(right)
    for tile in TILES:
        yield (
            f"Every {tile:,} elements draw the same numbers: the counter is taken from the place "
            "in the tile. It is the place in the whole tensor that counts.",
            at(index % tile),
        )
    if len(shape) > 1:
        yield (
            "All rows draw the same numbers: an element's index is row · cols + col, and not its "
            "column alone.",
            at(index % cols),
        )
        lanes = 1 << (cols - 1).bit_length()
        yield (
            "The index is row · BLOCK + col: masked lanes are no elements, and a row has cols.",
            at(index // cols * lanes + index % cols),
        )
    yield "That is the mask of the next call: the offset has 1 added to it.", at(index, 1)
    for what, state in (
        ("The offset is left out of the counter.", seed_offset * torch.tensor([1, 0])),
        ("Seed and offset have changed places.", seed_offset.flip(0)),
    ):
        yield what, numbers(index, state) >= dropped
    words = _words(index.flatten() // 4, seed_offset)
    of_four = words.gather(1, (index.flatten() % 4).view(-1, 1)).view(shape)
    yield (
        "That takes four numbers of 32 bits from a call, word e % 4 of block e // 4. A call has "
        "eight numbers of 16 bits, and element e has number e % 8 of block e // 8.",
        of_four >= dropped << 16,
    )
    yield (
        "That makes a call for each element and takes its first word: the block is e // 8, and "
        "the number e % 8 of its eight.",
        _words(index.flatten(), seed_offset)[:, 0].view(shape) >= dropped << 16,
    )
    yield (
        "All eight elements of a block take its first number: element e takes number e % 8.",
        at(index // 8 * 8),
    )
    yield (
        "The block is the element's own index: it takes that divided by 8.",
        at(8 * index + index % 8),
    )
    words = _words((index // 8).flatten(), seed_offset)
    places = (index % 8).flatten()
    for what, word, high in (
        ("A word's high half comes first; the low half does.", places // 2, places % 2 == 0),
        (
            "The numbers stand in another order: 0 and 1 are the halves of word 0, 2 and 3 those "
            "of word 1, and so on. A join adds a last axis: turn the axes before the reshape.",
            _TURNED[places // 2],
            places % 2 == 1,
        ),
        (
            "The four low halves come first, then the four high ones: number 2 · i is the low "
            "half of word i, and number 2 · i + 1 the high half.",
            places % 4,
            places >= 4,
        ),
    ):
        whole = words.gather(1, word.view(-1, 1)).flatten()
        number = torch.where(high, whole >> 16, whole & 0xFFFF)
        yield what, number.view(shape) >= dropped
    yield (
        "An element whose number is exactly T is dropped: it is kept, for T numbers are below T.",
        numbers(index, seed_offset) > dropped,
    )


# Words as (word % 2, word // 2) in place of (word // 2, word % 2).
_TURNED = torch.tensor([0, 2, 1, 3])


def wrong_scales(p: float) -> Iterator[tuple[str, float]]:
    """Yield wrong factors of what is kept."""
    yield "Kept values are not multiplied by scale.", 1.0
    yield (
        "scale is 1 / (1 - p) here: T is rounded, so that the mean is kept exactly by "
        "65536 / (65536 - T).",
        1 / (1 - p) if p < 1 else 0.0,
    )
    yield "Kept values are divided by scale.", 1 / scale(p) if scale(p) else 0.0
    yield "Kept values are multiplied by scale twice.", scale(p) ** 2
    yield "Kept values are multiplied by 1 - p.", 1 - p


def masks_and_scales(
    shape: tuple[int, ...], p: float, seed_offset: Tensor
) -> Iterator[tuple[str, Tensor, float]]:
    """Yield one wrong mask, one wrong factor, or one of each, as (what, mask, factor)."""
    masks = list(wrong_masks(shape, p, seed_offset))
    factors = list(wrong_scales(p))
    for what, mask in masks:
        yield what, mask, scale(p)
    right = kept(shape, p, seed_offset)
    for what, factor in factors:
        yield what, right, factor
    for (one, mask), (other, factor) in product(masks, factors):
        yield f"{one} {other}", mask, factor


def explains_all(runs: Sequence[Run], models: Models) -> str:
    """Return the fault that gives every output of `runs`, right and wrong ones; "" if none does.

    A model that is as good as the right output in each wrong run tells nothing. Elements that
    were never stored are NaN, in an output and in a model alike, and count as equal.
    """
    failed = [r for r in runs if r.fault is not None]
    if not failed or any(not r.wrong.numel() for r in failed):
        return ""
    fits: list[set[str]] = []
    speaks: set[str] = set()
    for r in sorted(runs, key=lambda r: r.fault is None):
        output, near = r.output.detach().double(), max(4 * r.case.tolerance.relative_norm, 1e-6)
        here = set()
        for what, model in models(r.case):
            if what not in here and (not fits or what in fits[-1]) and _same(output, model, near):
                here.add(what)
                if r.fault is not None and not _same(model, r.case.reference, near):
                    speaks.add(what)
        fits.append(here)
        if not here:
            return ""
    return next((what for what, _ in models(failed[0].case) if what in fits[-1] & speaks), "")


def _same(output: Tensor, model: Tensor, near: float) -> bool:
    """Whether two are equal up to roundings, and not finite at the same places."""
    if not torch.equal(output.isnan(), model.isnan()):
        return False
    ends = model.isinf()
    if not torch.equal(output.isinf(), ends):
        return False
    if bool((output[ends] != model[ends]).any()):
        return False
    return (
        relative_error(output.nan_to_num(posinf=0, neginf=0), model.nan_to_num(posinf=0, neginf=0))
        <= near
    )


def only_when_infinite(runs: Sequence[Run]) -> str:
    """Say so where only inputs with an infinity fail: there a mask is multiplied."""
    failed = [r for r in runs if r.fault is not None]
    if failed and all(r.case.trait and r.wrong.numel() and _has_nan(r) for r in failed):
        return (
            "An infinity that is dropped gave nan: inf * 0 is nan. Choose between the value and 0, "
            "and don't multiply by a mask."
        )
    return ""


def _has_nan(run: Run) -> bool:
    return bool(run.output.isnan().any())


def near(dtype: torch.dtype) -> Tolerance:
    """The tolerance of element-wise arithmetic in fp32, rounded once to `dtype`."""
    unit = torch.finfo(dtype).eps / 2
    return Tolerance(unit + 2.0**-20, 2 * unit + 2.0**-19)


def right_masked(
    attempt: Attempt, cases: Sequence[Case], explain: Callable[[list[Run]], str], output: str = "y"
) -> list[Run]:
    """Run all cases as `right_or_told` does; say where a division by 1 - p comes to an end.

    A wrong element is one of `output`, as "dx".
    """
    try:
        return right_or_told(attempt, cases, explain, OUTSIDE)
    except Wrong as wrong:
        if "ZeroDivisionError" in wrong.sentence:
            wrong.means = NOTHING_LEFT
        wrong.sentence = wrong.sentence.replace(": y[", f": {output}[", 1)
        raise
