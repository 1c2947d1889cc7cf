"""05.1: the bytes of a chain of steps, put into launches by cuts."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import pairwise

from kernels.grading.question import Attempt, Wrong
from kernels.grading.questions.kits.numbers import Told, answered, first_wrong, meaning, whole

# A step makes one tensor of those that it needs; the last step's is the output.
Steps = Sequence[tuple[str, Sequence[str]]]
Sizes = dict[str, int]
Cuts = Sequence[int]

_LAYER_NORM: Steps = (
    ("mean", ("x",)),
    ("variance", ("x", "mean")),
    ("normalised", ("x", "mean", "variance")),
    ("y", ("normalised", "weight", "bias")),
)


def _bounds(steps: Steps, cuts: Cuts) -> list[tuple[int, int]]:
    """The first step of each launch, and the one behind its last."""
    return list(pairwise((0, *cuts, len(steps))))


def _needed(steps: Steps) -> list[str]:
    """What steps need, each time that one does."""
    return [name for _, needs in steps for name in needs]


def chain_bytes(
    steps: Steps,
    sizes: Sizes,
    cuts: Cuts,
    *,
    reads_own: bool = False,
    reads_each: bool = False,
    reads_inputs_once: bool = False,
    writes_all: bool = False,
    writes_last: bool = False,
    writes_for_next: bool = False,
    writes_output: bool = True,
) -> int:
    """Return the distinct bytes that the launches read and write; each flag is one mistake."""
    output, total = steps[-1][0], 0
    seen: set[str] = set()
    bounds = _bounds(steps, cuts)
    for number, (first, last) in enumerate(bounds):
        launch = steps[first:last]
        made = [name for name, _ in launch]
        needed = _needed(launch)
        if not reads_each:
            needed = list(dict.fromkeys(needed))
        if not reads_own:
            needed = [name for name in needed if name not in made]
        if reads_inputs_once:
            needed = [name for name in needed if name not in seen]
            seen.update(needed)
        end = len(steps)
        if writes_for_next and last < end:
            end = bounds[number + 1][1]
        later = _needed(steps[last:end])
        kept = [name for name in made if name in later or (name == output and writes_output)]
        if writes_all:
            kept = made
        if writes_last:
            kept = made[-1:]
        total += sum(sizes[name] for name in (*needed, *kept))
    return total


_MISTAKES = (
    (
        "A tensor that a launch makes for itself alone stays in registers: only what a later "
        "launch needs is written, and the output.",
        lambda *a: chain_bytes(*a, writes_all=True),
    ),
    (
        "What a launch made itself it has in registers: it doesn't read that.",
        lambda *a: chain_bytes(*a, reads_own=True),
    ),
    (
        "That is every step by itself: within a launch nothing is written for the next step, and "
        "what one step loaded the next one has.",
        lambda s, z, c: chain_bytes(s, z, range(1, len(s))),
    ),
    (
        "Steps that a launch holds share what they load: it reads a tensor once, however many of "
        "its steps need it.",
        lambda *a: chain_bytes(*a, reads_each=True),
    ),
    (
        "A launch knows nothing of what another one read: every launch that needs a tensor reads "
        "it again.",
        lambda *a: chain_bytes(*a, reads_inputs_once=True),
    ),
    (
        "Not only the last tensor of a launch is written: so is each one that any later launch "
        "needs.",
        lambda *a: chain_bytes(*a, writes_last=True),
    ),
    (
        "A tensor may be needed by a launch further on, not only by the next one: then it is "
        "written too.",
        lambda *a: chain_bytes(*a, writes_for_next=True),
    ),
    ("The output is written as well.", lambda *a: chain_bytes(*a, writes_output=False)),
    (
        "That is the chain in one launch. A cut makes the launches before and behind it hand over "
        "tensors in memory.",
        lambda s, z, c: chain_bytes(s, z, ()),
    ),
    (
        "A cut of i ends a launch before step i, counted from 0: step i is the first of the next.",
        lambda s, z, c: chain_bytes(s, z, [cut + 1 for cut in c if cut + 1 < len(s)]),
    ),
)


def drawn_chain(rng: random.Random) -> tuple[Steps, Sizes]:
    """Return a chain of 3 to 7 steps in which every tensor is needed, and sizes of its tensors."""
    inputs = ["x", "w", "r"][: rng.randrange(2, 4)]
    count = rng.randrange(3, 8)
    names = [f"t{number}" for number in range(count - 1)] + ["y"]
    needs = []
    for number in range(count):
        known = [*inputs, *names[:number]]
        needs.append(set(rng.sample(known, min(len(known), rng.randrange(1, 4)))))
    for number, name in enumerate([*inputs, *names[:-1]]):
        if not any(name in needed for needed in needs):
            needs[rng.randrange(max(number - len(inputs) + 1, 0), count)].add(name)
    steps = tuple((name, tuple(sorted(needed))) for name, needed in zip(names, needs, strict=True))
    # No two are of one size, so that a wrong tensor shows in the sum.
    sizes = rng.sample(range(3, 9000), len(inputs) + count)
    return steps, dict(zip([*inputs, *names], (4 * size for size in sizes), strict=True))


def _asked(rng: random.Random) -> list[tuple[Steps, Sizes, list[int]]]:
    rows, cols, itemsize = 16384, 8192, 2
    row = {"weight": cols * itemsize, "bias": cols * itemsize}
    big = {"x": rows * cols * itemsize, "normalised": rows * cols * 4, "y": rows * cols * itemsize}
    sizes = {**big, "mean": rows * 4, "variance": rows * 4, **row}
    asked = [(_LAYER_NORM, sizes, cuts) for cuts in ([1, 2, 3], [], [2], [3], [1, 3])]
    for _ in range(12):
        steps, sizes = drawn_chain(rng)
        places = range(1, len(steps))
        asked.append((steps, sizes, sorted(rng.sample(places, rng.randrange(len(steps))))))
    return asked


def grade_chain_bytes(attempt: Attempt) -> None:
    """Grade `chain_bytes(steps, sizes, cuts)` on LayerNorm's chain and on drawn ones."""
    told = []
    for steps, sizes, cuts in _asked(random.Random(attempt.seed)):
        given = [(name, list(needs)) for name, needs in steps]
        chain = "; ".join(f"{name} of {', '.join(needs)}" for name, needs in steps)
        label = f"{attempt.name} with the steps [{chain}] and cuts {cuts}"
        got = whole(answered(attempt, given, dict(sizes), list(cuts)), label, "the bytes")
        told.append(Told(label, (steps, sizes, cuts), got, chain_bytes(steps, sizes, cuts)))
    wrong = first_wrong(told)
    if wrong is not None:
        sizes = wrong.args[1]
        shown = ", ".join(f"{name} {size:,}" for name, size in sizes.items())
        raise Wrong(
            f"{wrong.label} is {wrong.got:,}; the launches move {wrong.right:,} bytes "
            f"(the sizes are {shown}).",
            meaning(_MISTAKES, told),
        )
    attempt.held.append(f"the bytes of {len(told)} chains, fused as their cuts say")
