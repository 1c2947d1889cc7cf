"""14.9: a place in one workspace for each tensor of a list of launches, graded by its replay."""

from __future__ import annotations

import math
import random
from typing import Any, NamedTuple

from kernels.grading.question import Attempt, Wrong
from kernels.grading.questions.ch14.layers import (
    FUSED,
    FUSED_POST,
    OPERATORS,
    Step,
    Steps,
    alive,
    numbers,
)
from kernels.grading.questions.kits.numbers import answered, kind, whole

Sizes = dict[str, int]
Places = dict[str, int]


class Task(NamedTuple):
    """Launches, and the bytes of each tensor that needs a place; `told` names it in a sentence."""

    told: str
    steps: Steps
    sizes: Sizes


def least(task: Task) -> int:
    """The most bytes that live at once: no workspace is smaller."""
    kept = [name for step in task.steps for name in step.reads if name not in task.sizes]
    return max(sum(task.sizes[name] for name in one) for one in alive(task.steps, kept))


def placed(task: Task, order: list[str] | None = None, careless: bool = False) -> Places:
    """Each tensor at the lowest place that is free while it lives; the largest first by default.

    `careless`: those beside it are looked at once, and not from the lowest on.
    """
    sets = alive(task.steps, [])
    order = order or sorted(task.sizes, key=lambda name: -task.sizes[name])
    found: Places = {}
    for name in order:
        beside = [one for one in found if any(name in s and one in s for s in sets)]
        at = 0
        for one in beside if careless else sorted(beside, key=lambda one: found[one]):
            if at + task.sizes[name] > found[one]:
                at = max(at, found[one] + task.sizes[one])
        found[name] = at
    return found


def extent(task: Task, places: Places) -> int:
    """Where the last tensor ends."""
    return max(places[name] + size for name, size in task.sizes.items())


def _layers(told: str, steps: Steps, e: int, i: int, tokens: int, count: int) -> Task:
    """So many layers, one behind the other; the first one's x is the caller's."""
    made: list[Step] = []
    sizes: Sizes = {}
    x = "x"
    for layer in range(count):
        new = {step.writes: f"{step.writes}{layer}" for step in steps} | {"x": x}
        for step in steps:
            made.append(Step(step.does, tuple(new[one] for one in step.reads), new[step.writes]))
            sizes[new[step.writes]] = 2 * tokens * numbers(step.writes, e, i)
        x = new["y"]
    layers = f"{count} layer{'s' * (count > 1)}"
    return Task(f"{layers} {told}, E = {e}, I = {i}, {tokens} tokens", tuple(made), sizes)


def _drawn(rng: random.Random, careless: bool) -> Task:
    """A random chain whose launches read what came before, now and then of long ago.

    Giving out places launch by launch takes too much of it; with `careless`, that goes wrong too.
    """
    while True:
        count = rng.randrange(7, 11)
        names = ["x", *(f"t{number}" for number in range(count))]
        steps = []
        for at in range(count):
            more = rng.sample(names[: at + 1], 1) if rng.random() < 0.5 else []
            steps.append(Step("launch", tuple(dict.fromkeys([names[at], *more])), names[at + 1]))
        sizes = {name: 256 * rng.randrange(1, 9) for name in names[1:]}
        task = Task(f"{count} launches at random", tuple(steps), sizes)
        by_launch = extent(task, placed(task, list(sizes)))
        wrong = careless and placed(task) == placed(task, careless=True)
        if extent(task, placed(task)) == least(task) < by_launch and not wrong:
            return task


def tasks(seed: int) -> list[Task]:
    """Layers of three kinds, stacks, and chains that placing in the launches' order gets wrong."""
    rng = random.Random(seed)
    made: list[Task] = []
    for told, steps, count in (
        ("pre-LN, fused", FUSED, 1),
        ("pre-LN by operators", OPERATORS, 1),
        ("pre-LN, fused", FUSED, 3),
        ("post-LN, fused", FUSED_POST, 2),
    ):
        task = None
        while task is None or extent(task, placed(task)) > least(task):
            e = 8 * rng.randrange(4, 20)
            i = e * rng.choice((1, 2, 3, 4))
            task = _layers(told, steps, e, i, rng.randrange(5, 60), count)
        made.append(task)
    return [*made, *(_drawn(rng, careless) for careless in (False, True, True, True))]


def sample_task() -> tuple[list[tuple[tuple[str, ...], str]], Sizes]:
    """The launches and sizes of a fused layer, which the page prints."""
    task = _layers("fused", FUSED, 64, 256, 8, 1)
    return [(step.reads, step.writes) for step in task.steps], dict(task.sizes)


_AT_ONCE = (
    "A launch's programs run in any order: one may still read what another has written over. So "
    "what is written lies beside all that this launch reads, its last reader or not."
)
_LATER = (
    "A tensor lives until its last reader, and not its first: go through the list once, and note "
    "for each tensor the last launch that reads it."
)
_RESULT = "What the last launch writes is the result: nothing may lie over it at the end."
_NOTHING_AGAIN = (
    "Nothing is used again. Two tensors may share bytes where the last reader of the one comes "
    "before the launch that writes the other."
)
_HOLES = (
    "No byte is lost by what lives, and some by holes: what gets a place early stands where a "
    "larger one will need it. Place the largest first, and each at the lowest place where nothing "
    "lies that lives at the same time."
)
_TIES = (
    "The largest first is the rule. What is left to choose is the order of those of one size: the "
    "one that is written first gets its place first."
)
_ROUNDED = (
    "Your places are multiples of {grain}, and not all sizes are: a tensor takes its bytes, not "
    "rounded up."
)
_BEGINS = "Nothing begins at byte 0: places count from there."


def _checked(attempt: Attempt, task: Task, told: Any) -> Places:
    if type(told) is not dict or set(map(str, told)) != set(task.sizes):
        missing = [name for name in task.sizes if type(told) is not dict or name not in told]
        what = f"a dict without {missing[0]}" if missing and type(told) is dict else kind(told)
        raise Wrong(
            f"{attempt.name} returned {what} for {task.told}; it takes a dict with a place for "
            "each name in sizes, and for no other.",
            "Every tensor that a launch writes needs a place, the result too; x has one already."
            if type(told) is dict
            else "",
        )
    places = {
        name: whole(told[name], f"{attempt.name}, for {task.told},", f"the place of {name}")
        for name in task.sizes
    }
    for name, at in places.items():
        if at < 0:
            raise Wrong(f"{attempt.name} places {name} at {at:,}, of {task.told}.",
                        "Places count from 0, the workspace's first byte.")  # fmt: skip
    return places


def _meet(task: Task, places: Places, one: str, other: str) -> bool:
    """Whether two tensors share a byte."""
    begin = max(places[one], places[other])
    return begin < min(places[one] + task.sizes[one], places[other] + task.sizes[other])


def replay(attempt: Attempt, task: Task, places: Places) -> None:
    """Go through the launches; `Wrong` at the first one that reads what was written over."""
    whole_: set[str] = set()  # the tensors of which every byte is there
    over: dict[str, tuple[str, int]] = {}
    for number, step in enumerate(task.steps, 1):
        where = f"launch {number} of {task.told}"
        for name in step.reads:
            if name in task.sizes and name not in whole_:
                by, at = over[name]
                raise Wrong(
                    f"{attempt.name}: {where} reads {name}, and {by}, which launch {at} wrote, "
                    "lies over it.",
                    _LATER,
                )
        for name in step.reads:
            if name in task.sizes and _meet(task, places, name, step.writes):
                raise Wrong(
                    f"{attempt.name}: {where} reads {name} and writes {step.writes} over it.",
                    _AT_ONCE,
                )
        for name in [one for one in whole_ if _meet(task, places, one, step.writes)]:
            whole_.discard(name)
            over[name] = step.writes, number
        whole_.add(step.writes)


def _largest_first(task: Task, places: Places) -> bool:
    """Whether each tensor is at the lowest place that larger ones and some of its size left."""
    left, order = sorted(task.sizes, key=lambda name: -task.sizes[name]), list[str]()
    while left:
        alike = [name for name in left if task.sizes[name] == task.sizes[left[0]]]
        at = {name: placed(task, [*order, name])[name] for name in alike}
        fits = [name for name in alike if at[name] == places[name]]
        if not fits:
            return False
        order.append(fits[0])
        left.remove(fits[0])
    return True


def _lost(found: list[tuple[Task, Places]]) -> str:
    """Why places take more than lives at once."""
    if all(extent(task, places) >= sum(task.sizes.values()) for task, places in found):
        return _NOTHING_AGAIN
    if all(min(places.values()) > 0 for _, places in found):
        return _BEGINS
    grain = math.gcd(*(at for _, places in found for at in places.values()))
    odd = [task for task, _ in found if any(size % grain for size in task.sizes.values())]
    if grain % 128 == 0 and len(odd) > 1:  # smaller ones come about by what sizes have in common
        return _ROUNDED.format(grain=grain)
    return _TIES if all(_largest_first(*one) for one in found) else _HOLES


def grade_places(attempt: Attempt) -> None:
    """Grade `places(launches, sizes)`: nothing written over that is read, and the fewest bytes."""
    made = tasks(attempt.seed)
    found: list[tuple[Task, Places]] = []
    for task in made:
        launches = [(step.reads, step.writes) for step in task.steps]
        told = answered(attempt, launches, dict(task.sizes))
        found.append((task, _checked(attempt, task, told)))
    for task, places in found:
        replay(attempt, task, places)
    attempt.held.append(f"nothing is written over that is still read, in {len(made)} lists")
    for task, places in found:
        if (end := extent(task, places)) > least(task):
            raise Wrong(
                f"{attempt.name} takes {end:,} bytes for {task.told}; {least(task):,} live at once "
                "at most, and will do.",
                _lost(found),
            )
    attempt.held.append("the fewest bytes that there can be")
