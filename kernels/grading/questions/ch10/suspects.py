"""10.7: why a tile that asks for fewer bytes is slower, told from what its binary takes."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import NamedTuple

from kernels.grading.question import Attempt
from kernels.grading.questions.kits.words import Words
from kernels.hardware import LIMITS, WARP_THREADS

SUSPECTS = ("spills", "no room", "idle", "alone", "tail", "nothing")
_EVEN = 0.75  # of the turns that SMs take, so many have to have a program
_OWN_SHARED = 1024  # bytes of shared memory that CUDA keeps for each program


class Tile(NamedTuple):
    """A product's launch as it was compiled, and the card it is for; sizes in bytes.

    `programs` is the grid, `stages` how many steps along K are under way at once. `registers` and
    `stack_bytes` are a thread's, `shared_bytes` a program's, `sm_shared_bytes` an SM's.
    """

    programs: int
    warps: int
    stages: int
    registers: int
    stack_bytes: int
    shared_bytes: int
    sms: int
    sm_registers: int
    sm_shared_bytes: int


def programs_an_sm(tile: Tile) -> int:
    """Return how many programs an SM holds at once, by its registers and its shared memory."""
    by_registers = tile.sm_registers // (tile.registers * WARP_THREADS * tile.warps)
    return min(by_registers, tile.sm_shared_bytes // (tile.shared_bytes + _OWN_SHARED))


def suspect(tile: Tile) -> str:
    """Return what speaks against a tile, by the page's rule."""
    if tile.stack_bytes:
        return "spills"
    held = programs_an_sm(tile)
    if not held:
        return "no room"
    if tile.programs < tile.sms:
        return "idle"
    if held == 1 and tile.stages == 1:
        return "alone"
    return "tail" if _even(tile) < _EVEN else "nothing"


def _even(tile: Tile) -> float:
    turns = -(-tile.programs // tile.sms)
    return tile.programs / (turns * tile.sms)


# SMs and the capability of a T4, an A100, an H100.
_CARDS = ((40, 75), (108, 80), (132, 90))


def _made(wanted: str, rng: random.Random, number: int) -> Tile:
    """The tile of this number that has one fault, and looks as if it had others."""
    sms, capability = _CARDS[number % 3]
    limits = LIMITS[capability]
    shared, registers = limits.shared_bytes_per_sm, limits.registers_per_sm
    warps = rng.choice((4, 8))
    most = min(registers // (WARP_THREADS * warps), 255)
    stages = rng.choice((2, 3, 4))
    # By turns, registers or shared memory is what binds; in numbers that leave nobody in doubt.
    small, large = rng.randrange(4, 11) * 1024, int(shared * rng.uniform(0.55, 0.85))
    few, many = 8 * rng.randrange(8, 12), most // 8 * 8
    turns = rng.randrange(2, 5)
    even = sms * turns - rng.randrange(sms // 12)
    uneven = rng.choice((sms + rng.randrange(1, sms // 3), 2 * sms + rng.randrange(1, sms // 8)))
    tile = Tile(even, warps, stages, few, 0, small, sms, registers, shared)
    if wanted == "spills":
        stack = 8 * rng.randrange(1, 90)
        return tile._replace(
            stack_bytes=stack, registers=255, programs=(even, uneven, sms // 2)[number % 3]
        )
    if wanted == "no room":
        if number % 2:
            return tile._replace(warps=16, registers=168, programs=(even, uneven)[number // 2 % 2])
        return tile._replace(
            shared_bytes=shared - rng.randrange(1024), stages=(4, 1)[number % 4 // 2]
        )
    if wanted == "idle":
        programs = (sms - rng.randrange(1, sms // 2), sms // 2)[number % 2]
        alone = {"shared_bytes": large, "stages": 1} if number % 2 else {}
        return tile._replace(programs=programs, **alone)
    if wanted == "alone":
        held = (
            {"shared_bytes": large}
            if number % 2
            else {"warps": 8, "registers": 8 * rng.randrange(17, 31)}
        )
        return tile._replace(stages=1, programs=(even, uneven)[number // 2 % 2], **held)
    if wanted == "tail":
        alone = {"shared_bytes": large, "stages": 3} if number % 2 else {}
        return tile._replace(programs=uneven, **alone)
    # Nothing: one program an SM with stages under way, or several with one stage; and just as many
    # programs as SMs, or three quarters of two turns.
    if number > 3:
        tile = tile._replace(programs=sms)
    elif number == 2:
        tile = tile._replace(programs=3 * sms // 2)
    if number % 2:
        return tile._replace(shared_bytes=large)
    return tile._replace(stages=1, registers=min(few, many))


_MISTAKES: tuple[tuple[str, Callable[[Tile], str]], ...] = (
    (
        "Spills are never looked at. They come first: whatever else holds, their loads and stores "
        "go to memory.",
        lambda t: suspect(t._replace(stack_bytes=0)),
    ),
    (
        "One program an SM speaks against a tile only where it has one stage: with more, the loads "
        "of the next steps are under way while it computes.",
        lambda t: suspect(t._replace(stages=1)),
    ),
    (
        "Shared memory binds as well: an SM holds no more programs than it has shared memory for.",
        lambda t: suspect(t._replace(shared_bytes=0)),
    ),
    (
        "Registers bind as well: a program takes registers · 32 · warps of them.",
        lambda t: suspect(t._replace(registers=1)),
    ),
    (
        "Each program takes 1024 bytes of shared memory beside its own.",
        lambda t: suspect(t._replace(shared_bytes=max(0, t.shared_bytes - _OWN_SHARED))),
    ),
    (
        "Registers are a thread's: a warp has 32 threads.",
        lambda t: suspect(t._replace(registers=max(1, t.registers // WARP_THREADS))),
    ),
    (
        "The last turn is never looked at: programs over the SMs, rounded up, is how many turns "
        "the busiest SM takes.",
        lambda t: "nothing" if suspect(t) == "tail" else suspect(t),
    ),
    (
        "Three quarters are enough: a tail is less than that.",
        lambda t: "tail" if suspect(t) == "nothing" and _even(t) == _EVEN else suspect(t),
    ),
    (
        "A lone program without stages is never looked at.",
        lambda t: suspect(t._replace(stages=max(2, t.stages))),
    ),
    (
        "Fewer programs than SMs: that comes before the last turn, for there is none.",
        lambda t: "tail" if suspect(t) == "idle" else suspect(t),
    ),
    (
        "Where no program fits, none runs: that comes before all but spills.",
        lambda t: (
            "idle"
            if suspect(t) == "no room" and t.programs < t.sms
            else "tail"
            if suspect(t) == "no room" and _even(t) < _EVEN
            else "nothing"
            if suspect(t) == "no room"
            else suspect(t)
        ),
    ),
)
_TELLS = {
    "spills": "stack_bytes is not 0: a thread keeps in memory what its registers don't hold.",
    "no room": "Not even one program fits an SM: the launch fails.",
    "idle": "There are fewer programs than SMs: some have nothing to do.",
    "alone": "One program fits an SM and one step is under way: while it waits nobody computes.",
    "tail": "In the last turn few SMs have a program, and all wait for these.",
    "nothing": "Its registers hold everything, an SM holds a program or more, and every turn is "
    "nearly full.",
}
_WORDS = Words(SUSPECTS, "tile", str, _MISTAKES, _TELLS)


def grade_suspect(attempt: Attempt) -> None:
    """Grade `suspect(tile)` on six tiles of every kind, in random order."""
    rng = random.Random(attempt.seed)
    made = [(wanted, _made(wanted, rng, n)) for wanted in SUSPECTS for n in range(6)]
    rng.shuffle(made)
    _WORDS.grade(attempt, made)
    attempt.held.append(f"right for {len(made)} tiles, six of each kind")
