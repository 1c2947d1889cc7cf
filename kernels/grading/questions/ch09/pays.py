"""09.10: when compiling pays: calls, shapes and captures, eager and compiled in two ways."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from kernels.grading.question import Attempt, Wrong
from kernels.grading.questions.kits.numbers import (
    Told,
    answered,
    asked,
    first_wrong,
    meaning,
    real,
    several,
)

# Graphs of a function that PyTorch keeps: a further shape runs eagerly.
KEPT = 8
Rows = Sequence[int]


def eager(rows: Rows, eager_ns: float, compiled_ns: float, compile_s: float) -> float:
    """Return the seconds of all calls without the compiler."""
    return sum(rows) * eager_ns * 1e-9


def default(rows: Rows, eager_ns: float, compiled_ns: float, compile_s: float) -> float:
    """Return them with torch.compile as it is: a graph for the first shape, and one for all."""
    return sum(rows) * compiled_ns * 1e-9 + min(len(set(rows)), 2) * compile_s


def static(rows: Rows, eager_ns: float, compiled_ns: float, compile_s: float) -> float:
    """Return them with dynamic=False: a graph for each shape, up to the most that are kept."""
    known = set(list(dict.fromkeys(rows))[:KEPT])
    slow = sum(r for r in rows if r not in known)
    fast = sum(rows) - slow
    return (fast * compiled_ns + slow * eager_ns) * 1e-9 + len(known) * compile_s


_Mistakes = tuple[tuple[str, Callable[..., float]], ...]
_UNITS = "The units are mixed: a nanosecond is 1e-9 seconds."
_EAGER: _Mistakes = (
    (
        "Nothing is compiled without the compiler.",
        lambda r, e, c, s: eager(r, e, c, s) + s,
    ),
    (_UNITS, lambda r, e, c, s: sum(r) * e * 1e-6),
    (_UNITS, lambda r, e, c, s: sum(r) * e),
    ("A call takes its rows times eager_ns.", lambda r, e, c, s: len(r) * e * 1e-9),
)
_DEFAULT: _Mistakes = (
    (
        "Its first call compiles for one shape. The first call of another shape compiles once "
        "more, for all.",
        lambda r, e, c, s: sum(r) * c * 1e-9 + s,
    ),
    (
        "Two compilations at most: the second graph takes the rows as a symbol, and serves every "
        "shape.",
        lambda r, e, c, s: sum(r) * c * 1e-9 + len(set(r)) * s,
    ),
    (
        "Calls of one shape alone are compiled once.",
        lambda r, e, c, s: sum(r) * c * 1e-9 + 2 * s,
    ),
    ("The compilations are missing.", lambda r, e, c, s: sum(r) * c * 1e-9),
    (
        "A call of a known shape compiles nothing.",
        lambda r, e, c, s: sum(r) * c * 1e-9 + len(r) * s,
    ),
    (_UNITS, lambda r, e, c, s: sum(r) * c * 1e-6 + min(len(set(r)), 2) * s),
)
_STATIC: _Mistakes = (
    (
        f"Beyond {KEPT} shapes nothing is compiled any more: a ninth runs eagerly.",
        lambda r, e, c, s: sum(r) * c * 1e-9 + len(set(r)) * s,
    ),
    (
        "Shapes beyond the eighth run eagerly, each of their calls.",
        lambda r, e, c, s: sum(r) * c * 1e-9 + min(len(set(r)), KEPT) * s,
    ),
    ("Each shape has a graph of its own with dynamic=False.", default),
    ("The compilations are missing.", lambda r, e, c, s: sum(r) * c * 1e-9),
    (
        "A shape that came before has its graph: it is compiled once, however often it comes.",
        lambda r, e, c, s: sum(r) * c * 1e-9 + len(r) * s,
    ),
    (
        f"The first {KEPT} shapes keep their graphs: after the ninth they still run compiled.",
        lambda r, e, c, s: _all_eager_after(r, e, c, s),
    ),
)


def _all_eager_after(rows: Rows, eager_ns: float, compiled_ns: float, compile_s: float) -> float:
    """Everything eager from the first shape on that is too much."""
    seen: dict[int, None] = {}
    total = 0.0
    for r in rows:
        if len(seen) <= KEPT:
            seen.setdefault(r)
        each = compiled_ns if len(seen) <= KEPT else eager_ns
        total += r * each * 1e-9
    return total + min(len(seen), KEPT) * compile_s


def _calls(rng: random.Random) -> list[tuple[list[int], int, int, float]]:
    calls = []
    for shapes in (1, 2, 5, 8, 12, 11):
        sizes = rng.sample(range(16, 4096), shapes)
        rows = sizes + rng.choices(sizes, k=rng.randrange(4, 9))
        if shapes != 11:
            rng.shuffle(rows)
        compiled = rng.randrange(20, 90)
        calls.append((rows, compiled * rng.randrange(2, 6), compiled, rng.randrange(2, 90) / 10))
    return calls


def grade_pays(attempt: Attempt) -> None:
    """Grade `totals(rows, eager_ns, compiled_ns, compile_s)`: seconds, of three ways to run."""
    names = ("eager", "default", "static")
    told: dict[str, list[Told]] = {name: [] for name in names}
    calls = _calls(random.Random(attempt.seed))
    for args in calls:
        label = asked(attempt, args)
        value = several(answered(attempt, list(args[0]), *args[1:]), names, label)
        rights = (eager(*args), default(*args), static(*args))
        for name, number, right in zip(names, value, rights, strict=True):
            told[name].append(Told(label, args, real(number, label, "a time"), right))
    for name, mistakes in zip(names, (_EAGER, _DEFAULT, _STATIC), strict=True):
        if wrong := first_wrong(told[name]):
            raise Wrong(
                f"{wrong.label}: {name} is {wrong.got:.6g} s; it is {wrong.right:.6g} s.",
                meaning(mistakes, told[name]),
            )
    attempt.held.append(f"the seconds of {len(calls)} series of calls, in three ways")
