"""15.4: the most bytes alive at once in a list of steps, and with one tensor made again."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from kernels.grading.question import Attempt, Wrong
from kernels.grading.questions.kits.numbers import (
    Mistake,
    Told,
    answered,
    first_wrong,
    meaning,
    pair,
    whole,
)

# What a step reads and what it writes, by name.
Step = tuple[tuple[str, ...], tuple[str, ...]]
NAMES = ("plain", "with_again")


class Timeline(NamedTuple):
    """A training step; `told` names it in a sentence."""

    told: str
    steps: list[Step]
    back: int
    sizes: dict[str, int]
    again: str


def alive(steps: Sequence[Step], sizes: Mapping[str, int]) -> list[int]:
    """Return the bytes alive in each step; a tensor written anew is another one."""
    spans: list[tuple[int, int, int]] = []
    for place, (_, writes) in enumerate(steps):
        for name in writes:
            end = place
            until = next(
                (n for n in range(place + 1, len(steps)) if name in steps[n][1]), len(steps)
            )
            readers = [n for n in range(place + 1, until) if name in steps[n][0]]
            if readers:
                end = readers[-1]
            elif until == len(steps):
                end = len(steps) - 1  # a result
            spans.append((place, end, sizes[name]))
    return [
        sum(size for first, last, size in spans if first <= place <= last)
        for place in range(len(steps))
    ]


def checkpointed(steps: Sequence[Step], back: int, again: str) -> list[Step]:
    """Return the steps with the one that writes `again` repeated before its first reader back."""
    maker = next(step for step in steps if again in step[1])
    first = next(n for n in range(back, len(steps)) if again in steps[n][0])
    return [*steps[:first], maker, *steps[first:]]


def peaks(
    steps: Sequence[Step], back: int, sizes: Mapping[str, int], again: str
) -> tuple[int, int]:
    """Return the most bytes alive at once as it is, and with `again` made again."""
    return max(alive(steps, sizes)), max(alive(checkpointed(steps, back, again), sizes))


def _ended(steps: Sequence[Step], sizes: Mapping[str, int], shorter: int, results: bool) -> int:
    """The peak by spans that end `shorter` steps early, or results that end with their step."""
    total = [0] * len(steps)
    for place, (_, writes) in enumerate(steps):
        for name in writes:
            until = next(
                (n for n in range(place + 1, len(steps)) if name in steps[n][1]), len(steps)
            )
            readers = [n for n in range(place + 1, until) if name in steps[n][0]]
            end = len(steps) - 1 if results and until == len(steps) else place
            if readers:
                end = max(readers[-1] - shorter, place)
            for n in range(place, end + 1):
                total[n] += sizes[name]
    return max(total)


def _not_held(steps: Sequence[Step], back: int, sizes: Mapping[str, int], again: str) -> int:
    """The peak where what the repeated step reads isn't kept for it."""
    maker = next(step for step in steps if again in step[1])
    first = next(n for n in range(back, len(steps)) if again in steps[n][0])
    return max(alive([*steps[:first], ((), maker[1]), *steps[first:]], sizes))


def _not_beside(steps: Sequence[Step], back: int, sizes: Mapping[str, int], again: str) -> int:
    """The peak where the repeated step isn't looked at by itself."""
    one = alive(checkpointed(steps, back, again), sizes)
    first = next(n for n in range(back, len(steps)) if again in steps[n][0])
    return max(one[:first] + one[first + 1 :])


def _with(
    steps: Sequence[Step], back: int, sizes: Mapping[str, int], again: str, fault: str
) -> int:
    """The peak with a copy in another place, or with a first life that lasts too long or not."""
    maker = next(step for step in steps if again in step[1])
    first = next(n for n in range(back, len(steps)) if again in steps[n][0])
    if fault == "at the turn":
        return max(alive([*steps[:back], maker, *steps[back:]], sizes))
    if fault == "never gone":
        return max(alive([*steps[:first], (maker[0], ()), *steps[first:]], sizes))
    # The second life by another name: the first one, if nobody reads it, looks like a result.
    renamed = [
        (tuple("" if name == again else name for name in reads), writes)
        for reads, writes in steps[first:]
    ]
    size = 0 if fault == "one life" else sizes[again]
    copied = [*steps[:first], (maker[0], ("",)), *renamed]
    return max(alive(copied, {**sizes, "": sizes[again], again: size}))


_SUM = "That is the sum of all tensors: a peak is of those that are alive at one time."
_INSIDE = (
    "While a step runs, what it reads and what it writes are there together: a tensor lives up to "
    "its last reader, and that step counts."
)
_RESULTS = "What is written and never read is a result, as a gradient of a weight: it stays."
_LAST = "That is what is alive in the last step: the peak may be in any."
_TURN = "The peak need not be where the backward begins: look at every step."
_MISTAKES: tuple[tuple[Mistake, ...], ...] = (
    (
        (_SUM, lambda t, b, z, a: sum(z[name] for _, writes in t for name in writes)),
        (_SUM, lambda t, b, z, a: sum(z.values())),
        (_INSIDE, lambda t, b, z, a: _ended(t, z, 1, True)),
        (_INSIDE, lambda t, b, z, a: _ended(t, z, 1, False)),
        (_RESULTS, lambda t, b, z, a: _ended(t, z, 0, False)),
        (_LAST, lambda t, b, z, a: alive(t, z)[-1]),
        (_TURN, lambda t, b, z, a: alive(t, z)[b]),
        (_TURN, lambda t, b, z, a: alive(t, z)[b - 1]),
        (
            "Forward and back are one timeline: the peak may be in either part.",
            lambda t, b, z, a: max(alive(t, z)[:b]),
        ),
        (
            "What no step writes, as weights, is there all the time, and isn't counted.",
            lambda t, b, z, a: max(alive(t, z)) + sum(
                z.get(name, 0)
                for name in {n for reads, _ in t for n in reads} - {n for _, w in t for n in w}
            ),
        ),
        ("That is the peak with the checkpoint.", lambda t, b, z, a: peaks(t, b, z, a)[1]),
    ),
    (
        (
            "That is the peak without the checkpoint: behind its last reader of the forward the "
            "tensor is gone until it is made again.",
            lambda t, b, z, a: peaks(t, b, z, a)[0],
        ),
        (
            "The tensor isn't simply off the peak: where another moment sets it, or where the "
            "tensor was not alive, nothing is spared there.",
            lambda t, b, z, a: peaks(t, b, z, a)[0] - z[a],
        ),
        (
            "The tensor isn't simply off the peak: made again, it is alive once more.",
            lambda t, b, z, a: max(alive(t, z | {a: 0})),
        ),
        (
            "What the step reads that makes it again has to live until then: a checkpoint "
            "lengthens other lives.",
            _not_held,
        ),
        (
            "The step that makes it again is a step too: what is alive then counts.",
            _not_beside,
        ),
        (
            "The copy stands before the first step back that reads the tensor, and not where the "
            "backward begins: until then it takes no memory.",
            lambda t, b, z, a: _with(t, b, z, a, "at the turn"),
        ),
        (
            "Behind its last reader before the copy the tensor is gone: that is what a checkpoint "
            "is for.",
            lambda t, b, z, a: _with(t, b, z, a, "never gone"),
        ),
        (
            "The tensor has two lives, and the first counts too: from its first writing to its "
            "last reader before the copy.",
            lambda t, b, z, a: _with(t, b, z, a, "one life"),
        ),
        (
            "A first life that nobody reads is no result: it ends with the step that writes it.",
            lambda t, b, z, a: _with(t, b, z, a, "a result"),
        ),
        (
            "A checkpoint may cost memory: with_again can be the larger of the two.",
            lambda t, b, z, a: min(peaks(t, b, z, a)),
        ),
        (_INSIDE, lambda t, b, z, a: _ended(checkpointed(t, b, a), z, 1, True)),
        (_RESULTS, lambda t, b, z, a: _ended(checkpointed(t, b, a), z, 0, False)),
        (_LAST, lambda t, b, z, a: alive(checkpointed(t, b, a), z)[-1]),
        (_SUM, lambda t, b, z, a: sum(z.values())),
    ),
)  # fmt: skip


def _stack(rng: random.Random, layers: int, told: str) -> Timeline:
    """MLPs with a norm and a residual each, a loss behind them; which tensor is large, is drawn."""
    big = {"u": 4, "a": 4, "l": rng.choice((2, 9, 40))}
    sizes: dict[str, int] = {}

    def made(name: str, kind: str) -> str:
        sizes[name] = rng.randrange(50, 90) * big.get(kind, 1)
        sizes.setdefault(f"d{name}", sizes[name])
        return name

    steps: list[Step] = []
    for i in range(layers):
        x, n, u, a, y = (made(f"{kind}{at}", kind) for kind, at in
                         (("x", i), ("n", i), ("u", i), ("a", i), ("x", i + 1)))  # fmt: skip
        if i == 0:
            steps.append((("tokens",), (x,)))
        steps += [((x,), (n,)), ((n, "w1"), (u,)), ((u,), (a,)), ((a, "w2", x), (y,))]
        for name in (f"dw{i}", f"dv{i}"):
            sizes[name] = rng.randrange(20, 200)
    last = f"x{layers}"
    steps += [((last, "w"), (made("l", "l"),))]
    back = len(steps)
    steps += [(("l", "targets"), ("dl",)), (("dl", "w"), (f"d{last}",))]
    for i in reversed(range(layers)):
        dy = f"dx{i + 1}"
        steps += [
            ((dy, f"a{i}"), (f"dv{i}",)),
            ((dy, "w2"), (f"da{i}",)),
            ((f"da{i}", f"u{i}"), (f"du{i}",)),
            ((f"du{i}", f"n{i}"), (f"dw{i}",)),
            ((f"du{i}", "w1"), (f"dn{i}",)),
            ((f"dn{i}", f"x{i}", dy), (f"dx{i}",)),
        ]
    sizes |= {"w1": 400, "w2": 400, "w": 900, "tokens": 8, "targets": 8}
    names = [f"{kind}{rng.randrange(layers)}" for kind in rng.choice(("a", "an", "nu"))]
    return Timeline(told, steps, back, sizes, rng.choice(names))


def _drawn(rng: random.Random) -> Timeline:
    """A chain of drawn sizes: each step back reads what its step forward read and wrote."""
    count = rng.randrange(4, 8)
    sizes = {f"t{i}": rng.randrange(1, 100) for i in range(count + 1)}
    sizes |= {f"g{i}": rng.randrange(1, 100) for i in range(count + 1)}
    steps: list[Step] = [(("x",), ("t0",))]
    steps += [((f"t{i}",), (f"t{i + 1}",)) for i in range(count)]
    back = len(steps)
    steps.append(((f"t{count}",), (f"g{count}",)))
    for i in reversed(range(count)):
        held = [f"t{i}", f"t{i + 1}"] if rng.random() < 0.5 else [f"t{i}"]
        steps.append(((f"g{i + 1}", *held), (f"g{i}",)))
    sizes["x"] = 50
    return Timeline("a chain of drawn sizes", steps, back, sizes, f"t{rng.randrange(1, count)}")


def _lengthened(rng: random.Random) -> Timeline:
    """u made from an n that nobody else reads: made again it keeps n, and sets the peak."""
    names = ("n", "u", "a", "l", "dl", "da", "du")
    sizes = {name: rng.randrange(5, 20) for name in names}
    sizes |= {name: rng.randrange(80, 120) for name in ("n", "u")}
    sizes |= {"da": rng.randrange(40, 60), "w": 7}
    steps: list[Step] = [
        (("x",), ("n",)), (("n",), ("u",)), (("u",), ("a",)), (("a", "w"), ("l",)),
        (("l",), ("dl",)), (("dl", "w"), ("da",)), (("da", "u"), ("du",)),
    ]  # fmt: skip
    return Timeline("a chain whose n is read once", steps, 4, sizes | {"x": 30}, "u")


def _for_the_backward(rng: random.Random) -> Timeline:
    """A tensor m that forward makes and doesn't read, as a mask: it can wait for the backward."""
    names = ("t0", "m", "t1", "t2", "g2", "g1", "g0")
    sizes = {name: rng.randrange(5, 20) for name in names}
    sizes |= {"m": rng.randrange(20, 40), "t2": rng.randrange(60, 90), "x": 30}
    steps: list[Step] = [
        (("x",), ("t0",)), (("t0",), ("m",)), (("t0",), ("t1",)), (("t1",), ("t2",)),
        (("t2",), ("g2",)), (("g2", "t1"), ("g1",)), (("g1", "m"), ("g0",)),
    ]  # fmt: skip
    return Timeline("a chain with a mask that forward doesn't read", steps, 4, sizes, "m")


def _early(rng: random.Random) -> Timeline:
    """A chain whose peak lies in the forward, while m lives for the first time."""
    names = ("t0", "m", "t1", "t2", "g2", "g1", "g0")
    sizes = {name: rng.randrange(5, 20) for name in names}
    sizes |= {"m": rng.randrange(60, 90), "t1": rng.randrange(100, 150), "x": 30}
    steps: list[Step] = [
        (("x",), ("t0",)), (("t0",), ("m",)), (("m",), ("t1",)), (("t1",), ("t2",)),
        (("t2",), ("g2",)), (("g2", "m"), ("g1",)), (("g1", "t0"), ("g0",)),
    ]  # fmt: skip
    return Timeline("a chain whose peak lies in the forward", steps, 4, sizes, "m")


def _of_gradients(rng: random.Random) -> Timeline:
    """A chain whose gradients are larger than its tensors: the peak lies in the backward."""
    names = ("t0", "t1", "t2", "g2", "g1", "g0")
    sizes = {name: rng.randrange(5, 20) * (4 if name[0] == "g" else 1) for name in names}
    steps: list[Step] = [
        (("x",), ("t0",)), (("t0",), ("t1",)), (("t1",), ("t2",)),
        (("t2",), ("g2",)), (("g2", "t1"), ("g1",)), (("g1", "t0"), ("g0",)),
    ]  # fmt: skip
    return Timeline("a chain of large gradients", steps, 3, sizes | {"x": 30}, "t1")


def timelines(rng: random.Random) -> list[Timeline]:
    """Stacks of MLPs whose peak lies in one place or another, and chains of drawn sizes."""
    made = [_stack(rng, n, f"{n} MLP{'s' * (n > 1)} and a loss") for n in (1, 2, 3, 4, 3, 2)]
    chains = [_drawn(rng) for _ in range(6)]
    others = (_lengthened, _for_the_backward, _early, _of_gradients)
    return [*made, *chains, *(one(rng) for one in others)]


def grade_peaks(attempt: Attempt) -> None:
    """Grade `peaks(steps, back, sizes, again)`: the most bytes alive at once, plain and with it."""
    told: tuple[list[Told], list[Told]] = ([], [])
    made = timelines(random.Random(attempt.seed))
    for one in made:
        args = (one.steps, one.back, one.sizes, one.again)
        given = ([tuple(step) for step in one.steps], one.back, dict(one.sizes), one.again)
        both = pair(answered(attempt, *given), attempt.name, f"({', '.join(NAMES)})")
        for numbers, value, wanted, name in zip(told, both, peaks(*args), NAMES, strict=True):
            label = f"of {one.told}, {one.again!r} made again"
            numbers.append(Told(label, args, whole(value, attempt.name, name), wanted))
    for numbers, mistakes, name in zip(told, _MISTAKES, NAMES, strict=True):
        if wrong := first_wrong(numbers):
            raise Wrong(
                f"{attempt.name} says {name} = {wrong.got:,}, and it is {wrong.right:,}, "
                f"{wrong.label}.",
                meaning(mistakes, numbers),
            )
    attempt.held.append(f"the peak of {len(made)} timelines, with a checkpoint and without")
