"""The Triton ledger: which bytes each launch touches and asks for, counted in the interpreter."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kernels.lab.ledger import Ledger, Step, TensorTraffic
from kernels.launch import Access, Launch, Launches, interpreting


def _name(parameter: str) -> str:
    return parameter.removesuffix("_ptr")


def step_of(launch: Launch) -> Step:
    """The ledger's entry for one interpreted launch; `x_ptr` is told as `x`."""
    arena = launch.arena
    if arena is None:
        raise ValueError(f"launch of {launch.name!r} was recorded, not interpreted: no counts")
    tensors = tuple(TensorTraffic(_name(name), *rest) for name, *rest in arena.totals())
    return Step(
        launch.name, "launch", tensors, launch.grid, arena.lanes, arena.masked_lanes, arena.note
    )


def ledger_of(launches: Launches) -> Ledger:
    """The ledger of all launches seen in an `interpreting()` block."""
    return Ledger(tuple(step_of(launch) for launch in launches))


def count(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Ledger:
    """Call `fn(*args, **kwargs)`, interpret every Triton launch in it, and return the ledger.

    Tensors may lie on a CPU or a GPU; the outputs are computed either way. PyTorch operators that
    `fn` calls are not in the ledger; `kernels.lab.aten.count` counts those.
    """
    with interpreting() as launches:
        fn(*args, **kwargs)
    return ledger_of(launches)


def trace(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> tuple[Access, ...]:
    """Call `fn`, interpret every Triton launch in it, and return each access in order."""
    with interpreting(trace=True) as launches:
        fn(*args, **kwargs)
    return tuple(access for launch in launches for access in launch.trace)
