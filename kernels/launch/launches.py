"""What was launched while a block of code ran, in Triton and in CUDA C++ alike.

Both kinds of kernel ask here whether somebody is counting or recording, and tell here what they
launched, so that a chain of both stands in one list, in the order of its launches. A block is told
what its own thread launches, and what a backward pass does that it calls.
"""

from __future__ import annotations

import contextlib
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from kernels.launch.arena import Access
from kernels.launch.errors import Program

if TYPE_CHECKING:
    from kernels.launch.binary import Specialization


TIME_LIMIT_S = 20.0  # of one interpreted program; an emulated launch has as long


class Totals(Protocol):
    """What one launch moved: the arena of an interpreted one, the counts of an emulated one."""

    @property
    def note(self) -> str:
        """What the count could not judge, or ""."""

    def totals(self) -> Iterator[tuple[str, int, int, int, int]]:
        """Yield (argument, read unique, read requested, write unique, write requested), bytes."""


@dataclass(frozen=True, kw_only=True)
class Launch(ABC):
    """One launch as it was asked for: `arguments` by name, and the grid.

    `arena` and `trace` are there if it was interpreted or emulated, not if it was recorded.
    """

    kernel: Any
    arguments: dict[str, Any]
    grid: Program
    arena: Totals | None = None
    trace: tuple[Access, ...] = ()

    @property
    @abstractmethod
    def name(self) -> str:
        """The kernel's name."""

    @property
    @abstractmethod
    def lanes(self) -> tuple[int, int]:
        """Lanes of all its loads, stores and atomics; how many of them were switched off."""

    @property
    def bytes_sectors(self) -> int | None:
        """Bytes of the 32-byte sectors that warps asked for; None where no warps were seen."""
        return None

    @abstractmethod
    def specialize(self, capability: int) -> Specialization:
        """What this launch would run on a compute capability such as 75 or 90."""


@dataclass(eq=False)
class Launches:
    """What was launched while a block of code ran, in order."""

    mode: str
    trace: bool = False
    time_limit_s: float = TIME_LIMIT_S
    seen: list[Launch] = field(default_factory=list)

    def __iter__(self) -> Iterator[Launch]:
        return iter(self.seen)

    def __len__(self) -> int:
        return len(self.seen)


@dataclass(eq=False)
class _Blocks:
    """The blocks and the watchers around what one thread does."""

    active: list[Launches] = field(default_factory=list)
    watchers: list[Callable[[Launch], None]] = field(default_factory=list)


_here = threading.local()
_all: list[_Blocks] = []  # of the threads that have any, the newest last
open_blocks: set[object] = set()  # of all threads: where there is none, nobody has to look further


def _mine() -> _Blocks:
    # A thread that Python didn't start is one of PyTorch's, which run a backward pass: what it
    # launches belongs to the block around that pass. With blocks open in several threads, nobody
    # tells which of them it is; the newest is taken.
    thread = threading._active.get(threading.get_ident())  # type: ignore[attr-defined]
    if thread is None or isinstance(thread, threading._DummyThread):
        return _all[-1] if _all else _Blocks()
    if not hasattr(_here, "blocks"):
        _here.blocks = _Blocks()
    blocks: _Blocks = _here.blocks
    return blocks


@contextlib.contextmanager
def _listed(blocks: _Blocks, where: list[Any], what: Any) -> Iterator[Any]:
    token = object()
    where.append(what)
    _all.append(blocks)
    open_blocks.add(token)
    try:
        yield what
    finally:
        open_blocks.discard(token)
        _all.remove(blocks)
        where.remove(what)


def interpreting(
    trace: bool = False, *, time_limit_s: float = TIME_LIMIT_S
) -> contextlib.AbstractContextManager[Launches]:
    """Interpret or emulate every launch inside the block, whatever its device; keep its counts.

    With `trace`, every access is kept too, in order: many times slower and larger. A program in
    Triton may take `time_limit_s` seconds of its thread's time.
    """
    mine = _mine()
    return _listed(mine, mine.active, Launches("interpret", trace, time_limit_s))


def recording() -> contextlib.AbstractContextManager[Launches]:
    """Keep every launch inside the block and run none: outputs stay as they were allocated."""
    mine = _mine()
    return _listed(mine, mine.active, Launches("record"))


def watching(watch: Callable[[Launch], None]) -> contextlib.AbstractContextManager[object]:
    """Call `watch` with each launch inside the block that is interpreted, emulated or recorded."""
    mine = _mine()
    return _listed(mine, mine.watchers, watch)


def mode() -> str | None:
    """What the innermost block asks of a launch, "interpret" or "record"; None outside a block."""
    if not open_blocks:
        return None
    active = _mine().active
    return active[-1].mode if active else None


def wants_trace() -> bool:
    """Whether one of the blocks around a launch keeps every access."""
    return any(launches.trace for launches in _mine().active)


def time_limit_s() -> float:
    """How long one interpreted program may take, in seconds: as the innermost block says."""
    active = _mine().active if open_blocks else []
    return active[-1].time_limit_s if active else TIME_LIMIT_S


def keep(launch: Launch) -> None:
    """Tell a launch to the blocks around it; one that was only recorded to the innermost."""
    mine = _mine()
    for watch in mine.watchers:
        watch(launch)
    for launches in mine.active if mode() == "interpret" else mine.active[-1:]:
        launches.seen.append(launch)
