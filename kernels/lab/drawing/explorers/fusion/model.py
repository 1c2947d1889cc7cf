"""What a choice of joints launches, moves, holds and takes: the page's sums, in Python.

`fusion_logic.js` computes the same in the page; tests hold the two equal. The rules:

- A launch reads each tensor once that it does not make itself, whoever of its steps reads it.
- What a launch makes is written if a later launch reads it, if it is kept, or if nobody reads it,
  which makes it an output. Otherwise it never leaves the launch.
- A tensor is alive from the launch that writes it to the last one that reads or holds it; to the
  end if it is kept or an output. What no step makes, inputs and parameters, is not counted.
- A launch takes a launch's own time and the largest of: its bytes over the bandwidth, its FLOPs of
  each arithmetic over that peak. Launched from Python all takes no less than Python's calls do.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kernels.lab.drawing.explorers.fusion.chain import Chain, total

LAUNCHED = ("graph", "host")


@dataclass(frozen=True)
class Launch:
    """One launch: its steps' names, bytes read, written and alive, time in µs, what binds it.

    `time_us` is without the launch's own time, and None where the card's figures are not known;
    `bound` is "memory" or "compute".
    """

    steps: tuple[str, ...]
    read: float
    write: float
    alive: float
    time_us: float | None
    bound: str | None


@dataclass(frozen=True)
class Plan:
    """All launches of a choice, and their sums: bytes moved, most bytes alive, time in µs."""

    launches: tuple[Launch, ...]
    bytes_moved: float
    memory_bytes: float
    time_us: float | None


def groups(closed: Sequence[bool]) -> list[range]:
    """The steps of each launch, by their places from 0."""
    starts = [0, *(joint + 1 for joint, shut in enumerate(closed) if not shut)]
    ends = [*starts[1:], len(closed) + 1]
    return [range(*pair) for pair in zip(starts, ends, strict=True)]


def barred(chain: Chain, closed: Sequence[bool], joint: int) -> str | None:
    """Why a joint (from 0) that is open can't be closed as the others stand; None if it can."""
    now = groups(closed)
    left = next(one for one in now if joint in one)
    right = next(one for one in now if joint + 1 in one)
    for later in right:
        for name, why in chain.steps[later].apart.items():
            if name in {chain.steps[at].name for at in left}:
                return why
    return None


def fault(chain: Chain, closed: Sequence[bool]) -> str | None:
    """What is wrong with a choice of joints, in a sentence; None if all of it can be."""
    if len(closed) != chain.joints:
        return f"closed has {len(closed)} joints; {chain.key!r} has {chain.joints}"
    for launch in groups(closed):
        names = [chain.steps[at].name for at in launch]
        for at in launch:
            for name, why in chain.steps[at].apart.items():
                if name in names:
                    return f"{name!r} and {chain.steps[at].name!r} can't be one launch: {why}"
    return None


def plan(
    chain: Chain,
    sizes: Mapping[str, int],
    closed: Sequence[bool],
    card: Mapping[str, Any] | None = None,
    launched: str = "graph",
) -> Plan:
    """The launches of a choice; `card` is a dict as of `fusion_cards`, `launched` of `LAUNCHED`."""
    size = {name: total(of, sizes) for name, of in chain.tensors.items()}
    now = groups(closed)
    of_step = [number for number, launch in enumerate(now) for _ in launch]
    made = {name: of_step[at] for at, step in enumerate(chain.steps) for name in step.writes}
    last_read = _last(chain, of_step, "reads")
    last_held = _last(chain, of_step, "holds")
    end = len(now)
    until = {}  # of each tensor that is written: the last launch that it lives in
    for name, launch in made.items():
        if name in chain.kept or name not in last_read:
            until[name] = end
        elif last_read[name] > launch:
            until[name] = max(last_read[name], last_held.get(name, 0))
    launches = []
    for number, steps in enumerate(now):
        reads = {name for at in steps for name in chain.steps[at].reads}
        read = sum(size[name] for name in reads if made.get(name) != number)
        write = sum(size[name] for name in until if made[name] == number)
        alive = sum(size[name] for name, last in until.items() if made[name] <= number <= last)
        took = _time(chain, sizes, steps, read + write, card)
        names = tuple(chain.steps[at].name for at in steps)
        launches.append(Launch(names, read, write, alive, *took))
    times = [one.time_us for one in launches]
    known = card is not None and None not in times
    time = sum(one + card["launch_us"] for one in times) if known else None  # type: ignore
    if time is not None and card is not None and launched == "host":
        time = max(time, len(launches) * card["host_us"])
    return Plan(
        tuple(launches),
        sum(one.read + one.write for one in launches),
        max(one.alive for one in launches),
        time,
    )


def _last(chain: Chain, of_step: Sequence[int], what: str) -> dict[str, int]:
    """The last launch in which each tensor is read, or held."""
    return {
        name: of_step[at] for at, step in enumerate(chain.steps) for name in getattr(step, what)
    }


def _time(
    chain: Chain,
    sizes: Mapping[str, int],
    steps: range,
    moved: float,
    card: Mapping[str, Any] | None,
) -> tuple[float | None, str | None]:
    if card is None:
        return None, None
    memory = moved / card["bandwidth"] * 1e6
    flops: dict[str, float] = {}
    for at in steps:
        step = chain.steps[at]
        flops[step.arithmetic] = flops.get(step.arithmetic, 0) + total(step.flops, sizes)
    compute = 0.0
    for arithmetic, count in flops.items():
        if count:
            peak = card["peaks"].get(arithmetic)
            if not peak:
                return None, None
            compute = max(compute, count / peak * 1e6)
    return max(memory, compute), "memory" if memory >= compute else "compute"
