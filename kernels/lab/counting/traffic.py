"""The ledger of launches: which bytes each one touches and asks for, counted with no GPU.

Kernels in Triton are interpreted, kernels in CUDA C++ emulated; a chain of both is one ledger.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

from kernels.lab.counting.ledger import Ledger, Step, TensorTraffic
from kernels.launch import Access, Launch, Launches, interpreting


def told_names(parameters: Iterable[str]) -> dict[str, str]:
    """How a ledger tells a kernel's parameters: `x_ptr` and `x_desc` as `x`, if it is one alone."""
    names = list(dict.fromkeys(parameters))
    short = {name: name.removesuffix("_ptr").removesuffix("_desc") for name in names}
    seen = Counter(short.values())
    return {name: short[name] if seen[short[name]] == 1 else name for name in names}


def step_of(launch: Launch) -> Step:
    """The ledger's entry for one launch that was run and counted; `x_ptr` is told as `x`."""
    arena = launch.arena
    if arena is None:
        raise ValueError(f"launch of {launch.name!r} was recorded, not run: no counts")
    totals = list(arena.totals())
    names = told_names([*launch.arguments, *(name for name, *_ in totals)])
    tensors = tuple(TensorTraffic(names[name], *rest) for name, *rest in totals)
    return Step(
        launch.name,
        "launch",
        tensors,
        launch.grid,
        *launch.lanes,
        arena.note,
        launch.bytes_sectors,
    )


def ledger_of(launches: Launches) -> Ledger:
    """The ledger of all launches seen in an `interpreting()` block."""
    return Ledger(tuple(step_of(launch) for launch in launches))


def count(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Ledger:
    """Call `fn(*args, **kwargs)`, interpret or emulate every launch in it, and return the ledger.

    Tensors may lie on a CPU or a GPU; the outputs are computed either way. PyTorch operators that
    `fn` calls are not in the ledger; `kernels.lab.counting.aten.count` counts those.
    """
    with interpreting() as launches:
        fn(*args, **kwargs)
    return ledger_of(launches)


def trace(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> tuple[Access, ...]:
    """Call `fn`, interpret or emulate every launch in it, and return each access in order."""
    with interpreting(trace=True) as launches:
        fn(*args, **kwargs)
    return tuple(access for launch in launches for access in launch.trace)
