"""A chain of steps, as data: what each reads and writes, and which may not share a launch.

A step is named, and so is a tensor. A joint lies between two neighbouring steps: joint 1 behind the
first of them. Bytes and FLOPs are sums of products of sizes, as those of `explorers.formulas`, so
that the page adds them up for any shape without knowing a chain.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kernels.registry import DTYPES

Term = tuple[float | str, ...]  # (7, "rows", "cols") is 7 · rows · cols
Terms = tuple[Term, ...]
ARITHMETIC = tuple(DTYPES)


@dataclass(frozen=True)
class Step:
    """One step of a chain: `Step("GELU", ["h"], ["g"], flops=5 * n)`.

    `reads` and `writes` are names of tensors. `flops` is a number, or a sum of terms such as
    (7, "rows", "cols"); `arithmetic` is the dtype whose peak holds for it: "fp32" for plain
    arithmetic, "bf16" or "fp16" for a product of such numbers. `apart` names earlier steps that no
    launch can hold together with this one, each with the reason, a sentence; `takes` is a sentence
    on what it takes to close the joint before this step. `holds` are tensors that are held while
    the step runs though it does not read them: by the function that calls it, say.
    """

    name: str
    reads: Sequence[str]
    writes: Sequence[str]
    flops: float | Terms = 0
    arithmetic: str = "fp32"
    apart: Mapping[str, str] = field(default_factory=dict)
    takes: str = ""
    holds: Sequence[str] = ()


@dataclass(frozen=True)
class Preset:
    """A choice to start from: the names of the steps behind which the joint is closed."""

    key: str
    label: str
    closed_behind: tuple[str, ...] = ()


@dataclass(frozen=True)
class Chain:
    """Steps in order, their tensors' bytes and the choices to start from; see `checked`.

    `kept` are tensors that last until the end, whoever reads them, and are written in any case;
    `kept_for` says in a clause what for.
    """

    key: str
    label: str
    steps: tuple[Step, ...]
    tensors: Mapping[str, Terms]
    kept: tuple[str, ...] = ()
    kept_for: str = "it is kept"
    presets: tuple[Preset, ...] = (Preset("open", "every step a launch of its own"),)

    @property
    def joints(self) -> int:
        """How many joints it has, one fewer than steps."""
        return len(self.steps) - 1

    def closed(self, preset: Preset) -> list[bool]:
        """Return a preset as one bool a joint, True where it is closed."""
        return [step.name in preset.closed_behind for step in self.steps[:-1]]

    def as_data(self) -> dict[str, Any]:
        """Return the chain as JSON takes it, formulas as lists of terms."""
        place = {step.name: index for index, step in enumerate(self.steps)}
        return {
            "key": self.key,
            "label": self.label,
            "steps": [
                {
                    "name": step.name,
                    "reads": list(step.reads),
                    "writes": list(step.writes),
                    "holds": list(step.holds),
                    "flops": [list(term) for term in terms(step.flops)],
                    "arithmetic": step.arithmetic,
                    "takes": step.takes,
                    "apart": [[place[name], why] for name, why in step.apart.items()],
                }
                for step in self.steps
            ],
            "tensors": {name: [list(term) for term in of] for name, of in self.tensors.items()},
            "kept": list(self.kept),
            "kept_for": self.kept_for,
            "presets": [
                {"key": one.key, "label": one.label, "closed": self.closed(one)}
                for one in self.presets
            ],
        }


def terms(value: float | Terms) -> Terms:
    """Return a number as a sum of one term; a sum of terms as it is."""
    return value if isinstance(value, tuple) else ((value,),)


def total(value: float | Terms, sizes: Mapping[str, int]) -> float:
    """The value of a sum of terms at some sizes."""
    return sum(
        math.prod(sizes[part] if isinstance(part, str) else part for part in term)
        for term in terms(value)
    )


def checked(chain: Chain) -> Chain:
    """Return the chain; ValueError or TypeError with one sentence on what is wrong with it."""
    if not chain.steps:
        raise ValueError("steps is empty; a chain has at least one step")
    for step in chain.steps:
        if not isinstance(step, Step):
            raise TypeError(f"steps has {step!r}; it takes steps as Step(name, reads, writes)")
    _check_names(chain)
    _check_tensors(chain)
    for number, step in enumerate(chain.steps):
        _check_step(chain, number, step)
    used = {name for step in chain.steps for name in (*step.reads, *step.writes)}
    if unused := sorted(set(chain.tensors) - used):
        raise ValueError(f"tensor {unused[0]!r} is neither read nor written by any step")
    made = {name for step in chain.steps for name in step.writes}
    if unmade := sorted(set(chain.kept) - made):
        raise ValueError(
            f"kept has {unmade[0]!r}; it takes tensors that a step writes: {_of(made)}"
        )
    return chain


def _of(names: object) -> str:
    assert isinstance(names, set | dict | list | tuple)
    return ", ".join(sorted(names)) or "none"


def _check_names(chain: Chain) -> None:
    seen: set[str] = set()
    for step in chain.steps:
        if step.name in seen:
            raise ValueError(f"two steps are called {step.name!r}; each takes a name of its own")
        seen.add(step.name)


def _check_tensors(chain: Chain) -> None:
    for name, size in chain.tensors.items():
        for term in terms(size):
            if not _is_number(term[0]):
                raise ValueError(
                    f"tensor {name!r} has {term[0]!r} bytes; it takes a number that is not negative"
                )
    writer: dict[str, str] = {}
    for step in chain.steps:
        for name in step.writes:
            if name in writer:
                raise ValueError(
                    f"tensor {name!r} is written by {writer[name]!r} and by {step.name!r}; each "
                    "step gives what it makes a name of its own"
                )
            writer[name] = step.name


def _is_number(value: object) -> bool:
    whole = isinstance(value, int | float) and not isinstance(value, bool)
    return whole and math.isfinite(value) and value >= 0  # type: ignore[arg-type, operator]


def _check_step(chain: Chain, number: int, step: Step) -> None:
    for what, names in (("reads", step.reads), ("writes", step.writes), ("holds", step.holds)):
        if isinstance(names, str):
            raise TypeError(f"step {step.name!r} {what} {names!r}; it takes a list of names")
        for name in names:
            if name not in chain.tensors:
                raise ValueError(
                    f"step {step.name!r} {what} {name!r}, whose bytes are not told; tensors has: "
                    f"{_of(chain.tensors)}"
                )
    if not step.writes:
        raise ValueError(f"step {step.name!r} writes nothing; it takes at least one tensor")
    late = {name: one.name for one in chain.steps[number:] for name in one.writes}
    for name in (*step.reads, *step.holds):
        if name in late:
            by = "itself" if late[name] == step.name else f"the later step {late[name]!r}"
            raise ValueError(f"step {step.name!r} reads {name!r}, which {by} writes")
    if not all(_is_number(term[0]) for term in terms(step.flops)):
        raise ValueError(
            f"flops of {step.name!r} is {step.flops!r}; it takes a number that is not negative"
        )
    if step.arithmetic not in ARITHMETIC:
        raise ValueError(
            f"arithmetic of {step.name!r} is {step.arithmetic!r}; it takes: {', '.join(ARITHMETIC)}"
        )
    earlier = {one.name for one in chain.steps[:number]}
    if unknown := sorted(set(step.apart) - earlier):
        raise ValueError(
            f"apart of {step.name!r} has {unknown[0]!r}; it takes earlier steps: {_of(earlier)}"
        )
