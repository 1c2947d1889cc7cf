"""01.7: a chain of steps cut into kernels, graded by playing the plan and counting its bytes."""

from __future__ import annotations

import copy
import itertools
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from kernels.grading.question import Attempt, Wrong
from kernels.grading.questions.kits.numbers import answered, asked, kind, whole

Step = tuple[tuple[str, ...], str]
Plan = tuple[int, ...]


@dataclass(frozen=True)
class Chain:
    """Steps in order, the bytes of each tensor, what must be in memory at the end, the limit."""

    steps: tuple[Step, ...]
    sizes: dict[str, int]
    results: tuple[str, ...]
    most: int

    def plans(self) -> Iterator[Plan]:
        """Every way to cut the steps into kernels of at most `most` steps."""
        n = len(self.steps)
        for cuts in itertools.product((False, True), repeat=n - 1):
            ends = [place for place, cut in enumerate(cuts, 1) if cut]
            plan = tuple(b - a for a, b in itertools.pairwise([0, *ends, n]))
            if max(plan) <= self.most:
                yield plan

    def kernels(self, plan: Plan) -> list[tuple[Step, ...]]:
        """The steps of each kernel of a plan."""
        ends = [0, *itertools.accumulate(plan)]
        return [self.steps[a:b] for a, b in itertools.pairwise(ends)]


def played(chain: Chain, plan: Plan) -> int:
    """The bytes that a plan moves, found by playing it on a memory that counts."""
    kernels, moved = chain.kernels(plan), 0
    for number, kernel in enumerate(kernels):
        registers: set[str] = set()
        for reads, written in kernel:
            for name in reads:
                if name not in registers:
                    moved += chain.sizes[name]
                    registers.add(name)
            registers.add(written)
        wanted = set(chain.results)
        for later in kernels[number + 1 :]:
            wanted.update(name for reads, _ in later for name in reads)
        moved += sum(chain.sizes[written] for _, written in kernel if written in wanted)
    return moved


def _unit_sizes(chain: Chain, plan: Plan) -> int:
    return played(Chain(chain.steps, dict.fromkeys(chain.sizes, 1), chain.results, 0), plan)


def _all_written(chain: Chain, plan: Plan) -> int:
    names = tuple(written for _, written in chain.steps)
    return played(Chain(chain.steps, chain.sizes, names, 0), plan)


def _neighbours(chain: Chain, plan: Plan) -> int:
    """As if what one step hands to the next in its kernel were never written nor read."""
    moved = 0
    for kernel in chain.kernels(plan):
        inside = {
            (place, a[1]) for place, (a, b) in enumerate(itertools.pairwise(kernel)) if a[1] in b[0]
        }
        for place, (reads, written) in enumerate(kernel):
            moved += sum(chain.sizes[name] for name in reads if (place - 1, name) not in inside)
            moved += 0 if (place, written) in inside else chain.sizes[written]
    return moved


def _reads_again(chain: Chain, plan: Plan) -> int:
    """As if a kernel loaded an input again for each of its steps that reads it."""
    moved = played(chain, plan)
    for kernel in chain.kernels(plan):
        made: set[str] = set()
        seen: set[str] = set()
        for reads, written in kernel:
            for name in set(reads) - made:
                moved += chain.sizes[name] if name in seen else 0
                seen.add(name)
            made.add(written)
    return moved


def _last_written(chain: Chain, plan: Plan) -> int:
    """As if a kernel wrote the tensor of its last step, and no other."""
    moved = 0
    for kernel in chain.kernels(plan):
        read: set[str] = set()
        made: set[str] = set()
        for reads, written in kernel:
            read.update(set(reads) - made)
            made.add(written)
        moved += sum(chain.sizes[name] for name in read) + chain.sizes[kernel[-1][1]]
    return moved


def _own_read(chain: Chain, plan: Plan) -> int:
    """As if a kernel loaded, once, what it made itself and reads."""
    moved = played(chain, plan)
    for kernel in chain.kernels(plan):
        read = {name for reads, _ in kernel for name in reads}
        moved += sum(chain.sizes[written] for _, written in kernel if written in read)
    return moved


def _no_results(chain: Chain, plan: Plan) -> int:
    """As if only the chain's last tensor had to be in memory at the end."""
    return played(Chain(chain.steps, chain.sizes, (chain.steps[-1][1],), 0), plan)


def parsed(steps: str, sizes: str, results: str) -> Chain:
    """A chain of letters: steps as "ax:b" (b from a and x), sizes as "a2", results as "bd"."""
    pairs = (step.split(":") for step in steps.split())
    made = tuple((tuple(reads), written) for reads, written in pairs)
    return Chain(made, {size[0]: int(size[1:]) for size in sizes.split()}, tuple(results), 3)


class Telling(NamedTuple):
    """A wrong way to count bytes, what it means, and a chain.

    Every plan that is the best of the chain by that count moves more bytes than need be. So does
    the plan of filled kernels, and that of one step each.
    """

    means: str
    moved: Callable[[Chain, Plan], int]
    chain: Chain


TELLING = (
    Telling(
        "Tensors are counted, not bytes: a cut through small tensors costs little.",
        _unit_sizes,
        parsed("x:a a:b b:c cb:d dx:e ea:f", "x1 a7 b3 c8 d6 e1 f1", "f"),
    ),
    Telling(
        "A tensor that a later kernel reads, or that is a result, has to be written, also if the "
        "next step of its own kernel has it already.",
        _neighbours,
        parsed("xw:a a:b b:c cb:d d:e ex:f", "x4 w3 a8 b6 c6 d7 e2 f1", "f"),
    ),
    Telling(
        "A tensor made and used up within one kernel needs no write: count a write only for a "
        "result, and for what a later kernel reads.",
        _all_written,
        parsed("x:a a:b xb:c cb:d da:e ed:f", "x2 a6 b6 c5 d4 e2 f7", "f"),
    ),
    Telling(
        "A kernel loads each tensor once, however many of its steps read it: two steps that share "
        "an input save a read of it.",
        _reads_again,
        parsed("x:a a:b xb:c xb:d dc:e e:f", "x6 a1 b6 c5 d4 e2 f8", "f"),
    ),
    Telling(
        "Every result has to be in memory at the end, those too that a later step of the same "
        "kernel reads.",
        _no_results,
        parsed("x:a xa:b b:c cw:d dw:e eb:f", "x6 w2 a7 b3 c8 d4 e6 f1", "ef"),
    ),
    Telling(
        "A kernel may have to write several tensors: not its last one alone, but every one that a "
        "later kernel reads, and every result.",
        _last_written,
        parsed("x:a x:b x:c ca:d d:e x:f", "x4 a2 b5 c8 d1 e5 f1", "bef"),
    ),
    Telling(
        "What a kernel made itself is still in its registers: its later steps read it for nothing.",
        _own_read,
        parsed("xw:a x:b b:c c:d dx:e e:f", "x2 w2 a4 b5 c4 d2 e5 f3", "abf"),
    ),
)


def filled(chain: Chain) -> Plan:
    """The plan that fills each kernel before it starts the next."""
    full, rest = divmod(len(chain.steps), chain.most)
    return (chain.most,) * full + ((rest,) if rest else ())


def _drawn(rng: random.Random) -> Chain:
    """A random chain of six to eight steps, most of them reading what the last one made."""
    n = rng.randrange(6, 9)
    sizes = {"x": rng.randrange(1, 40), "w": rng.randrange(1, 40)}
    steps: list[Step] = []
    made: list[str] = []
    for number in range(n):
        first = made[-1] if made and rng.random() < 0.75 else "x"
        reads = [first]
        if rng.random() < 0.6:
            second = rng.choice(["x", "w", *made])
            reads += [second] if second != first else []
        name = "abcdefgh"[number]
        steps.append((tuple(reads), name))
        sizes[name] = rng.randrange(1, 40)
        made.append(name)
    used = {name for reads, _ in steps for name in reads}
    results = tuple(name for name in made if name not in used or rng.random() < 0.15)
    return Chain(tuple(steps), sizes, results, rng.randrange(2, 5))


def chains(rng: random.Random) -> list[Chain]:
    """The telling chains and four random ones, in random order, the sizes scaled."""
    drawn = [telling.chain for telling in TELLING] + [_drawn(rng) for _ in range(4)]
    rng.shuffle(drawn)
    scales = [rng.randrange(1, 100) * 4000 for _ in drawn]
    return [
        replace(chain, sizes={name: size * scale for name, size in chain.sizes.items()})
        for chain, scale in zip(drawn, scales, strict=True)
    ]


def least(chain: Chain, count: Callable[[Chain, Plan], int]) -> list[Plan]:
    """The plans that move the fewest bytes by a count, in the order of `Chain.plans`."""
    moved = {plan: count(chain, plan) for plan in chain.plans()}
    fewest = min(moved.values())
    return [plan for plan, total in moved.items() if total == fewest]


_LENGTHS = (
    "A plan lists how many steps each kernel takes, in the order of the chain: [1, 3, 2] for a "
    "chain of six. The lengths add up to the number of steps, and none is above the most."
)
_CUTS = (
    "These look like the places of the cuts. A plan is the lengths of its kernels: four steps cut "
    "after the first and after the third are [1, 2, 1]."
)


def _are_cuts(plan: Plan, n_steps: int) -> bool:
    """Whether numbers that are no plan could be where its kernels end: they grow, up to the end."""
    grow = all(a < b for a, b in itertools.pairwise(plan))
    return len(plan) > 1 and grow and plan[-1] <= n_steps != sum(plan)


def _plan_of(attempt: Attempt, args: Sequence[Any], label: str) -> Plan:
    steps, _, _, most = args
    told = answered(attempt, *copy.deepcopy(args))
    if type(told) not in (list, tuple):
        raise Wrong(f"{label} returned {kind(told)}; it takes a list of lengths.", _LENGTHS)
    if len(told) > len(steps):
        raise Wrong(f"{label} returned {len(told):,} kernels for {len(steps)} steps.", _LENGTHS)
    plan = tuple(whole(length, label, "a kernel's length") for length in told)
    if any(length < 1 for length in plan):
        raise Wrong(f"{label} returned {list(plan)}: a kernel has one step at least.", _LENGTHS)
    if any(length > most for length in plan):
        raise Wrong(
            f"{label} returned {list(plan)}: a kernel holds at most {most} steps.",
            _CUTS if _are_cuts(plan, len(steps)) else _LENGTHS,
        )
    if sum(plan) != len(steps):
        raise Wrong(
            f"{label} returned {list(plan)}, {sum(plan)} steps in all; the chain has {len(steps)}.",
            _CUTS if _are_cuts(plan, len(steps)) else _LENGTHS,
        )
    return plan


def _meaning(told: list[tuple[Chain, Plan]]) -> str:
    if all(plan == filled(chain) for chain, plan in told):
        return (
            "Each kernel is filled before the next starts. That makes few launches, and it may "
            "cut where much is handed over: try every place of the cuts."
        )
    if all(set(plan) == {1} for _, plan in told):
        return "Nothing is fused: each step alone writes what the next one reads."
    for means, moved, _ in TELLING:
        if all(plan in least(chain, moved) for chain, plan in told):
            return means
    if all(len(plan) == min(map(len, chain.plans())) for chain, plan in told):
        return (
            "These are as few kernels as can be, and that is not as few bytes: one launch more may "
            "spare handing over a large tensor."
        )
    if all(played(c, plan) == max(played(c, p) for p in c.plans()) for c, plan in told):
        return "That is the plan that moves the most bytes."
    return ""


def grade_fusion(attempt: Attempt) -> None:
    """Grade `best_plan(steps, sizes, results, most)`: no plan may move fewer bytes."""
    told = []
    for chain in chains(random.Random(attempt.seed)):
        args = ([*chain.steps], chain.sizes, chain.results, chain.most)
        label = asked(attempt, args)
        told.append((chain, _plan_of(attempt, args, label), label))
    for chain, plan, label in told:
        best = least(chain, played)
        if plan not in best:
            raise Wrong(
                f"{label} is {list(plan)}, which moves {played(chain, plan):,} bytes; "
                f"{list(best[0])} moves {played(chain, best[0]):,}.",
                _meaning([(chain, plan) for chain, plan, _ in told]),
            )
    attempt.held.append(f"no plan of {len(told)} chains moves fewer bytes")
