"""01.1 the bytes of an add, 01.2 a product's bound, 01.4 the share of the roof that a time means.

Bytes are those that the ledger counts, FLOPs those that PyTorch's own counter sees.
"""

from __future__ import annotations

import random

import torch
from torch.utils.flop_counter import FlopCounterMode

from kernels.grading.question import Attempt, Wrong
from kernels.grading.questions.kits.numbers import (
    Mistake,
    Told,
    answered,
    asked,
    first_wrong,
    kind,
    meaning,
    pair,
    real,
    shapeless,
    whole,
)
from kernels.lab.cards.makers import CARDS, GIGA, TERA
from kernels.lab.cards.roofline import Ceilings
from kernels.lab.counting import aten

ADD_MISTAKES: tuple[Mistake, ...] = (
    (
        "The output is missing: y is written, as many bytes as x has.",
        lambda r, n, s: (r * n + n) * s,
    ),
    ("The bias is missing: it is read too.", lambda r, n, s: 2 * r * n * s),
    (
        "The bias is counted as if it had x's shape: it has cols elements, and in the best case "
        "each is read once, however many rows need it.",
        lambda r, n, s: 3 * r * n * s,
    ),
    (
        "The bias is counted with rows elements: it has one for each column.",
        lambda r, n, s: (2 * r * n + r) * s,
    ),
    ("Only one of the large tensors is there, and no bias.", lambda r, n, s: r * n * s),
    ("These are elements: each has itemsize bytes.", lambda r, n, s: 2 * r * n + n),
    ("These are bits: a byte has 8.", lambda r, n, s: 8 * (2 * r * n + n) * s),
    (
        "The bias is counted twice: it is read once and written nowhere.",
        lambda r, n, s: (2 * r * n + 2 * n) * s,
    ),
    (
        "An element is taken to have 4 bytes, whatever itemsize is.",
        lambda r, n, s: 4 * (2 * r * n + n),
    ),
    (
        "An element is taken to have 2 bytes, whatever itemsize is.",
        lambda r, n, s: 2 * (2 * r * n + n),
    ),
)


def grade_add(attempt: Attempt) -> None:
    """Grade `add_bytes(rows, cols, itemsize)` against the ledger of PyTorch's add."""
    rng = random.Random(attempt.seed)
    shapes = [(rng.randrange(100, 9000), rng.randrange(100, 9000)) for _ in range(3)]
    shapes += [(1, rng.randrange(2, 9000)), (rng.randrange(2, 9000), 1)]
    told = []
    for size in (4, 2):
        for rows, cols in shapes:
            args = (rows, cols, size)
            label = asked(attempt, args)
            moved = whole(answered(attempt, *args), label, "a number of bytes")
            x, bias = shapeless(rows, cols, itemsize=size), shapeless(cols, itemsize=size)
            told.append(Told(label, args, moved, aten.count(torch.add, x, bias).bytes_unique))
    if wrong := first_wrong(told):
        raise Wrong(
            f"{wrong.label} is {wrong.got:,}; the ledger counted {wrong.right:,} bytes.",
            meaning(ADD_MISTAKES, told),
        )
    attempt.held.append(f"equal to the ledger at {2 * len(shapes)} shapes, in fp32 and fp16")


INTENSITY_MISTAKES: tuple[Mistake, ...] = (
    (
        "A multiply-add is counted as 1 FLOP: it is 2, a product and a sum.",
        lambda m, k, n, s, *_: m * k * n / ((m * k + k * n + m * n) * s),
    ),
    (
        "The output is missing: the m x n result is written.",
        lambda m, k, n, s, *_: 2 * m * k * n / ((m * k + k * n) * s),
    ),
    (
        "Only the matrix B is counted: A is read as well, and C is written.",
        lambda m, k, n, s, *_: 2 * m * n / (n * s),
    ),
    (
        "C is counted twice: it is written, not read.",
        lambda m, k, n, s, *_: 2 * m * k * n / ((m * k + k * n + 2 * m * n) * s),
    ),
    (
        "That is FLOPs per element: an element has itemsize bytes.",
        lambda m, k, n, s, *_: 2 * m * k * n / (m * k + k * n + m * n),
    ),
    (
        "That is bytes per FLOP: the intensity is the other way up.",
        lambda m, k, n, s, *_: (m * k + k * n + m * n) * s / (2 * m * k * n),
    ),
    (
        "The elements are counted with 2 bytes whatever itemsize is.",
        lambda m, k, n, s, *_: m * k * n / (m * k + k * n + m * n),
    ),
)
BOUNDS = ("memory", "arithmetic")
_BOUND_MEANS = {
    "swapped": "Every verdict is the wrong way round: left of the ridge, at a lower intensity, "
    "memory binds.",
    "arithmetic": "You say arithmetic every time. A ridge in FLOPs per byte needs both figures in "
    "base units: 1 TFLOP/s is 1000 times 1 GFLOP/s.",
    "memory": "You say memory every time. Compare the intensity with the card's ridge, the peak "
    "over the bandwidth in base units.",
}


def _products(rng: random.Random) -> list[tuple[int, int, int, int, float, float]]:
    """Products on either side of a card's ridge, near enough that a wrong count crosses it."""
    cases = []
    for size in (2, 4, 2, 4):
        card = rng.choice([c for c in CARDS.values() if c.peaks.fp16 and c.peaks.fp32])
        peak = card.peak("fp16" if size == 2 else "fp32")
        ridge = peak / card.bandwidth_bytes_per_s * size / 2
        for factor in (rng.uniform(0.55, 0.9), rng.uniform(1.1, 1.9)):
            # m rows and a square matrix of k: the intensity is m k / (k + 2 m) with 2-byte numbers.
            k = rng.randrange(max(2000, int(8 * ridge)), max(9000, int(20 * ridge)))
            m = round(factor * ridge * k / (k - 2 * factor * ridge))
            n = k + rng.randrange(1, 40)
            figures = round(card.bandwidth_bytes_per_s / GIGA, 3), round(peak / TERA, 3)
            cases.append((m, k, n, size, *figures))
    rng.shuffle(cases)
    return cases


def grade_bound(attempt: Attempt) -> None:
    """Grade `product_bound(m, k, n, itemsize, bandwidth_gbs, peak_tflops)` on real cards."""
    told, bounds = [], []
    for case in _products(random.Random(attempt.seed)):
        m, k, n, size, *_ = case
        label = asked(attempt, case)
        intensity, bound = pair(answered(attempt, *case), label, "(intensity, bound)")
        if type(bound) is not str or bound not in BOUNDS:
            got = repr(bound[:40]) if type(bound) is str else kind(bound)
            raise Wrong(f"{label} returned {got} as bound; it is 'memory' or 'arithmetic'.")
        a, b = shapeless(m, k, itemsize=size), shapeless(k, n, itemsize=size)
        with FlopCounterMode(display=False) as counter:
            torch.mm(a, b)
        right = counter.get_total_flops() / aten.count(torch.mm, a, b).bytes_unique
        told.append(Told(label, case, real(intensity, label, "the intensity"), right))
        bounds.append(bound)
    if wrong := first_wrong(told):
        raise Wrong(
            f"{wrong.label}: the intensity is {wrong.got:.6g} and should be {wrong.right:.6g} "
            "FLOP a byte.",
            meaning(INTENSITY_MISTAKES, told),
        )
    ridges = [_ridge(*number.args[-2:]) for number in told]
    right_bounds = [BOUNDS[t.right > ridge] for t, ridge in zip(told, ridges, strict=True)]
    missed = [i for i, bound in enumerate(bounds) if bound != right_bounds[i]]
    if missed:
        first = missed[0]
        swapped = "swapped" if len(missed) == len(bounds) else ""
        always = bounds[0] if len(set(bounds)) == 1 else ""
        raise Wrong(
            f"{told[first].label}: you say {bounds[first]}. The intensity is "
            f"{told[first].right:.4g} and the ridge {ridges[first]:.4g} FLOP a byte, so it waits "
            f"for {right_bounds[first]}.",
            _BOUND_MEANS.get(swapped or always, ""),
        )
    attempt.held.append(f"intensity and bound of {len(told)} products, on either side of a ridge")


def _ridge(bandwidth_gbs: float, peak_tflops: float) -> float:
    return Ceilings("", bandwidth_gbs * GIGA, "", peak_tflops * TERA, "").ridge


_GIB = "1 GB/s is 1e9 bytes a second. 2**30 is a GiB, 7 % more: every share comes out 7 % low."
_OUT = "The output is missing: the add reads a and b, and writes y."


def _share(passes: float, giga: float, r: float, n: float, s: float, t: float, bw: float) -> float:
    return passes * r * n * s / (t * 1e-6) / giga / bw


SHARE_MISTAKES: tuple[Mistake, ...] = (
    (
        "Both faults are still there: the bytes of one tensor are missing, and a unit is not the "
        "one in the name.",
        lambda *args: _share(2, 2**30, *args),
    ),
    (_OUT, lambda *args: _share(2, 1e9, *args)),
    (_GIB, lambda *args: _share(3, 2**30, *args)),
    (
        "Four tensors are counted: the output is written and not read.",
        lambda *args: _share(4, 1e9, *args),
    ),
    ("Only one tensor is counted, of three.", lambda *args: _share(1, 1e9, *args)),
    ("That is in percent: the share of the whole roof is 1.", lambda *a: 100 * _share(3, 1e9, *a)),
    ("That is the share's inverse.", lambda *args: 1 / _share(3, 1e9, *args)),
    (
        "That is the bandwidth that was reached: it is not yet divided by the roof's.",
        lambda r, n, s, t, bw: _share(3, 1e9, r, n, s, t, 1),
    ),
)


def grade_share(attempt: Attempt) -> None:
    """Grade `share_of_roof(rows, cols, itemsize, time_us, bandwidth_gbs)`, bytes by the ledger."""
    rng = random.Random(attempt.seed)
    told, bytes_of = [], {}
    for number in range(8):
        rows, cols = rng.randrange(1000, 20000), rng.randrange(1000, 9000)
        size = (2, 4)[number % 2]
        bandwidth_gbs = float(rng.randrange(300, 5000))
        a, b = (shapeless(rows, cols, itemsize=size) for _ in range(2))
        counted = aten.count(torch.add, a, b).bytes_unique
        share = rng.uniform(0.3, 0.98)
        time_us = round(counted / (share * bandwidth_gbs * GIGA) * 1e6, 3)
        args = (rows, cols, size, time_us, bandwidth_gbs)
        label = asked(attempt, args)
        bytes_of[args] = counted
        got = real(answered(attempt, *args), label, "a share")
        told.append(Told(label, args, got, counted / time_us * 1e6 / GIGA / bandwidth_gbs))
    if wrong := first_wrong(told):
        raise Wrong(
            f"{wrong.label} is {wrong.got:.4g} and should be {wrong.right:.4g}: the ledger counted "
            f"{bytes_of[wrong.args]:,} bytes.",
            meaning(SHARE_MISTAKES, told),
        )
    attempt.held.append("right for 8 runs, in fp32 and fp16; the bytes are the ledger's")
