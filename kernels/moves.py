"""What a pass of a variant launches and moves, told by a formula and not counted."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Moved:
    """What a launch moves of one tensor, by a formula, in bytes: distinct ones, and asked for."""

    tensor: str
    read_unique: int = 0
    read_requested: int = 0
    write_unique: int = 0
    write_requested: int = 0


@dataclass(frozen=True)
class MovedStep:
    """One launch by a formula: the kernel's name, its grid, what it moves of each tensor."""

    name: str
    grid: tuple[int, int, int]
    tensors: tuple[Moved, ...]


@dataclass(frozen=True)
class Moves:
    """What a pass of a variant launches and moves, by a formula: the ledger must count the same.

    `unique` are distinct bytes and `requested` those that lanes ask for, summed over the launches;
    None where no formula is known. `steps` tell them launch by launch, tensor by tensor: where all
    programs of a case are too many to run, they are its ledger.
    """

    launches: int
    unique: int | None = None
    requested: int | None = None
    steps: tuple[MovedStep, ...] = ()

    @classmethod
    def of(cls, *steps: MovedStep) -> Moves:
        """Return what these launches move together."""
        moved = [tensor for step in steps for tensor in step.tensors]
        return cls(
            launches=len(steps),
            unique=sum(one.read_unique + one.write_unique for one in moved),
            requested=sum(one.read_requested + one.write_requested for one in moved),
            steps=steps,
        )
