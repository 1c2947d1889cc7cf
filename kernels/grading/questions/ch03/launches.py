"""03.1 and 03.2: a launch predicted, and the fault of a launch named from its ledger."""

from __future__ import annotations

import random
from collections.abc import Callable

import torch
import triton
import triton.language as tl

from kernels.grading.checks import call
from kernels.grading.question import Attempt, NotAnswered, Wrong
from kernels.grading.questions.kits.numbers import kind
from kernels.grading.questions.kits.wrong_models import drawn, whole_number
from kernels.lab.counting import traffic
from kernels.lab.counting.ledger import Step

_Numbers = tuple[int, int, int]


@triton.jit
def add_kernel(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """Add x and y, BLOCK elements a program: two loads and one store, all with one mask."""
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    total = tl.load(x_ptr + offsets, mask=mask) + tl.load(y_ptr + offsets, mask=mask)
    tl.store(out_ptr + offsets, total, mask=mask)


def counted_launch(n: int, block: int) -> _Numbers:
    """Return programs, lanes and masked lanes of one real launch over n elements."""
    x, y, out = torch.zeros(3, n)
    grid = (triton.cdiv(n, block),)
    (step,) = traffic.count(lambda: add_kernel[grid](x, y, out, n, BLOCK=block))
    return step.programs, step.lanes, step.masked_lanes


def _blocks(n: int, block: int) -> int:
    return -(-n // block)


# For each of the three numbers: what a wrong formula forgot, and what it then gives.
_Mistakes = tuple[tuple[str, Callable[[int, int], int]], ...]
_PROGRAMS: _Mistakes = (
    (
        "The quotient is rounded down: the elements after the last whole block need a program "
        "too. triton.cdiv rounds up.",
        lambda n, b: n // b,
    ),
    (
        "One program too many where BLOCK divides n: n // BLOCK + 1 is right only where a part "
        "of a block is left over.",
        lambda n, b: n // b + 1,
    ),
    ("That counts elements: a program covers BLOCK of them.", lambda n, b: n),
)
_LANES: _Mistakes = (
    (
        "Only one access is counted: the kernel has two loads and a store, and each has BLOCK "
        "lanes a program.",
        lambda n, b: _blocks(n, b) * b,
    ),
    ("The two loads are counted and the store is not.", lambda n, b: 2 * _blocks(n, b) * b),
    ("Those are the lanes that are switched on: masked lanes are lanes too.", lambda n, b: 3 * n),
    (
        "The lanes of one program are counted: every program has as many.",
        lambda n, b: 3 * b,
    ),
)
_MASKED: _Mistakes = (
    (
        "Only one access is counted: the same mask switches lanes off in both loads and in the "
        "store.",
        lambda n, b: _blocks(n, b) * b - n,
    ),
    ("The two loads are counted and the store is not.", lambda n, b: 2 * (_blocks(n, b) * b - n)),
    ("Those are the lanes that are switched on.", lambda n, b: 3 * n),
    (
        "n % BLOCK lanes of the last program are switched on; the others are the masked ones.",
        lambda n, b: 3 * (n % b),
    ),
    (
        "BLOCK - n % BLOCK is BLOCK where BLOCK divides n: then no lane is masked.",
        lambda n, b: 3 * (b - n % b),
    ),
)


def grade_launch(attempt: Attempt) -> None:
    """Grade `launch_numbers(n, BLOCK)` against the ledger of real launches."""
    rng = random.Random(attempt.seed)
    block = 2 ** rng.randrange(6, 9)
    # An odd rest below half a block: no two mistakes give one number.
    asked = [(block * rng.randrange(3, 9) + rng.randrange(3, block // 2, 2), block)]
    asked += [(block * rng.randrange(3, 9), block), (rng.randrange(2, 60), 64), (1, 128), (1, 1)]
    asked += [(rng.randrange(1000, 5000), 2 ** rng.randrange(7, 11)) for _ in range(3)]
    for n, size in asked:
        told = call(attempt, n, size)
        if told is None or told is ...:
            raise NotAnswered
        sentence = f"{attempt.name}({n}, {size})"
        if type(told) not in (tuple, list) or len(told) != 3:
            raise Wrong(
                f"{sentence} returned {kind(told)}; it takes the tuple "
                "(programs, lanes, masked_lanes)."
            )
        names = ("programs", "lanes", "masked_lanes")
        for name, value, right, mistakes in zip(
            names, told, counted_launch(n, size), (_PROGRAMS, _LANES, _MASKED), strict=True
        ):
            number = whole_number(value, sentence, name)
            if number != right:
                means = next((what for what, f in mistakes if f(n, size) == number), "")
                raise Wrong(f"{sentence}: {name} is {number:,}; a launch counted {right:,}.", means)
    attempt.held.append(f"equal to the ledger of {len(asked)} launches")


CAUSES = ("nothing", "grid too small", "loads twice", "lanes idle", "stores wider")


@triton.jit
def double_kernel(  # type: ignore[no-untyped-def]
    x_ptr, y_ptr, n, BLOCK: tl.constexpr, TWICE: tl.constexpr
):
    """Store 2 x, BLOCK elements a program; TWICE loads x for each summand."""
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    first = tl.load(x_ptr + offsets, mask=mask)
    second = tl.load(x_ptr + offsets, mask=mask) if TWICE else first
    tl.store(y_ptr + offsets, (first + second).to(y_ptr.dtype.element_ty), mask=mask)


def _step(x: torch.Tensor, block: int, cause: str = "nothing") -> Step:
    """Return the ledger's entry of one launch of `double_kernel`, with the fault `cause`."""
    n = x.numel()
    y = torch.empty(n, dtype=torch.float32 if cause == "stores wider" else x.dtype)
    grid = (triton.cdiv(n, block) - (cause == "grid too small"),)
    twice = cause == "loads twice"
    (step,) = traffic.count(lambda: double_kernel[grid](x, y, n, BLOCK=block, TWICE=twice))
    return step


_TELLS = {
    "nothing": "The same bytes are asked for and no more lanes are masked. How many programs share "
    "the work is no fault, and fewer masked lanes are none.",
    "grid too small": "Look at y's write_unique: elements of y were never stored, because the last "
    "program is missing.",
    "loads twice": "Look at x's times_read: each element was asked for more than once, while the "
    "distinct bytes stayed the same.",
    "lanes idle": "Look at lanes and masked_lanes: the same bytes move, and more lanes are "
    "switched off.",
    "stores wider": "Look at y's write_unique: more bytes are stored, for as many elements.",
}


def _pairs(rng: random.Random) -> list[tuple[Step, Step, str, str]]:
    """Return pairs of launches (right, other) with the cause and what was launched."""
    made = []
    # In the second half with more programs, and so fewer masked lanes: no fault by themselves.
    for place, cause in enumerate((*CAUSES, *rng.sample(CAUSES, len(CAUSES)))):
        block = 2 ** rng.randrange(5, 8)
        # At most half of the last block is switched on, so that a wider one idles for sure.
        n = block * rng.randrange(4, 12) + rng.randrange(1, block // 2)
        x = drawn(rng, (n,), torch.float16)
        other = block if place < len(CAUSES) else block // 2
        if cause == "lanes idle":
            other = triton.next_power_of_2(4 * n)
        made.append((_step(x, block), _step(x, other, cause), cause, f"n = {n}, BLOCK = {other}"))
    # One program either way, and more lanes in it: they idle, and no load came twice.
    x = drawn(rng, (rng.randrange(3, 60),), torch.float16)
    wide = 2 ** rng.randrange(7, 10)
    launched = f"n = {x.numel()}, BLOCK = {wide}"
    made.append((_step(x, 64), _step(x, wide), "lanes idle", launched))
    # Another block that divides n as well: fewer programs, and the same lanes.
    x = drawn(rng, (256 * rng.randrange(1, 6),), torch.float16)
    made.append((_step(x, 64), _step(x, 256), "nothing", f"n = {x.numel()}, BLOCK = 256"))
    return made


def grade_cause(attempt: Attempt) -> None:
    """Grade `cause(right, other)` on the ledgers of real launches with one fault at most."""
    pairs = _pairs(random.Random(attempt.seed))
    for right, other, cause, launched in pairs:
        told = call(attempt, right, other)
        if told is None or told is ...:
            raise NotAnswered
        known = ", ".join(repr(name) for name in CAUSES)
        if type(told) is not str or told not in CAUSES:
            got = repr(told[:40]) if type(told) is str else kind(told)
            raise Wrong(f"{attempt.name} returned {got}; a cause is one of {known}.")
        if told != cause:
            raise Wrong(
                f"{attempt.name} says {told!r} of a launch whose cause is {cause!r} ({launched}: "
                f"x asked {other.tensor('x').read_requested:,} B, y stored "
                f"{other.tensor('y').write_unique:,} B, {other.masked_lanes:,} of {other.lanes:,} "
                f"lanes masked; the right launch: {right.tensor('x').read_requested:,} B, "
                f"{right.tensor('y').write_unique:,} B, {right.masked_lanes:,} of "
                f"{right.lanes:,}).",
                _TELLS[cause],
            )
    attempt.held.append(f"the cause of {len(pairs)} launches, told from their ledgers")
