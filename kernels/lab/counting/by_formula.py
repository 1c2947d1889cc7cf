"""The ledger of launches by their formula, where all their programs would take too long to run."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import astuple

from kernels.lab.counting.ledger import Ledger, Step, TensorTraffic
from kernels.registry import Case, MovedStep, Variant

MOST_FLOPS = 1 << 31  # of a pass that is run: some seconds of a product
MOST_REQUESTED = 1 << 24  # bytes asked for by an operator that is run inside of a model


def ledger_of(steps: Iterable[MovedStep]) -> Ledger:
    """The ledger that a formula tells of, launch by launch."""
    return Ledger(tuple(_step(one) for one in steps), "formula")


def _step(told: MovedStep) -> Step:
    tensors = tuple(TensorTraffic(*astuple(moved)) for moved in told.tensors)
    return Step(told.name, "launch", tensors, told.grid)


def by_formula(variant: Variant, case: Case, pass_: str) -> Ledger | None:
    """The ledger of a pass as the variant's formula has it; None if it doesn't tell of launches."""
    if variant.moves is None:
        return None
    ways = ("fwd", "bwd") if pass_ == "train" and variant.has("bwd") else (pass_,)
    steps = [variant.moves(case, way).steps for way in ways]
    return ledger_of(one for way in steps for one in way) if all(steps) else None
