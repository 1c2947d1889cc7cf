"""The arena: where a kernel's arguments live while it is interpreted.

A kernel sees no real addresses. Each argument gets a window of 2^48 bytes of its own, so that an
address tells which argument it was made from however far it strays, and every access is held
against the span of that argument's view: one element past `y` is an error even where `x` begins
in memory. Checked addresses are moved to the real ones and handed on.

The arena also keeps, for every element of every storage, which program read it and which wrote it.
That gives the distinct bytes of a launch, and two programs that meet at one address.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from kernels.launch.errors import KernelError, Place, Program
from kernels.launch.storage import Offsets, Storage, as_slice

WINDOW_BITS = 48
_NOBODY, _SEVERAL, _ATOMIC = 0, -1, -2
_ORDERED = "programs met at addresses that atomics may order; not judged"
_EQUAL = "several programs stored one same value at one address"


@dataclass(frozen=True)
class Access:
    """One load, store or atomic of one program, on one argument: an entry of the trace.

    `offsets` are the active lanes' places in elements of `itemsize` bytes from the argument's
    first element, in lane order. `program` is linear: x + nx·(y + ny·z).
    """

    program: int
    argument: str
    kind: str
    offsets: Offsets
    itemsize: int
    line: int | None


@dataclass
class _Argument:
    name: str
    shape: tuple[int, ...]
    itemsize: int
    base: int
    start: int
    span: int
    storage: Storage
    read_requested: int = 0
    write_requested: int = 0

    @property
    def delta(self) -> int:
        """What to add to a window's address to get the real one."""
        return self.storage.address + self.start - self.base

    def describe(self) -> str:
        count = self.span // self.itemsize
        if count == 0:
            return f"{self.name!r} has no element (shape {self.shape})"
        return f"{self.name!r} spans the indices 0 to {count - 1} (shape {self.shape})"


@dataclass
class Arena:
    """The arguments of one launch, and a check and a count of every access to them."""

    kernel: str
    grid: Program
    trace: list[Access] | None = None
    lanes: int = 0
    masked_lanes: int = 0
    note: str = ""
    program: Program = (0, 0, 0)
    _arguments: list[_Argument] = field(default_factory=list)
    _storages: dict[int, Storage] = field(default_factory=dict)
    _ordered: set[int] = field(default_factory=set)

    def place(self, name: str, tensor: torch.Tensor, itemsize: int) -> int:
        """Give `tensor` a window and return the address of its first element in it.

        The low 8 bits are those of the real address: alignment is what kernels are compiled for.
        """
        # A storage of zero bytes has address 0, and several such storages aren't one.
        key = tensor.untyped_storage().data_ptr() or -len(self._storages) - 1
        if key not in self._storages:
            self._storages[key] = Storage(tensor)
        storage = self._storages[key]
        start = int(tensor.storage_offset()) * tensor.element_size()
        storage.refine(math.gcd(itemsize, start))
        span = 0
        if tensor.numel():
            steps = zip(tensor.shape, tensor.stride(), strict=True)
            last = sum((size - 1) * stride for size, stride in steps)
            span = int(last + 1) * tensor.element_size()
        window = len(self._arguments) + 1
        middle = (window << WINDOW_BITS) + (1 << (WINDOW_BITS - 1))
        base = middle + (storage.address + start) % 256
        argument = _Argument(name, tuple(tensor.shape), itemsize, base, start, span, storage)
        self._arguments.append(argument)
        return base

    @property
    def linear_program(self) -> int:
        """The running program's number: x + nx·(y + ny·z)."""
        x, y, z = self.program
        return x + self.grid[0] * (y + self.grid[1] * z)

    def access(
        self,
        kind: str,
        addresses: np.ndarray[Any, np.dtype[np.uint64]],
        mask: np.ndarray[Any, np.dtype[np.bool_]],
        itemsize: int,
        place: Place,
        data: np.ndarray[Any, Any] | None = None,
    ) -> np.ndarray[Any, np.dtype[np.uint64]]:
        """Check and count one access of `kind` "load", "store" or "atomic"; return real addresses.

        `addresses` has one address a lane, `mask` which lanes are active, `data` what a store
        writes. KernelError if an active lane leaves its argument or meets another program; two
        programs may store one same value.
        """
        mask = np.broadcast_to(mask, addresses.shape)
        active = addresses[mask]
        stored = None if data is None else data[mask]
        self.lanes += addresses.size
        self.masked_lanes += addresses.size - active.size
        if not active.size:
            return addresses
        real = addresses.copy()
        windows = active >> np.uint64(WINDOW_BITS)
        if bool((windows == windows[0]).all()):
            argument = self._argument(int(windows[0]), int(active[0]), kind, place)
            self._touch(argument, kind, active, itemsize, place, stored)
            real += np.uint64(argument.delta % (1 << 64))
            return real
        everywhere = addresses >> np.uint64(WINDOW_BITS)
        for window in np.unique(windows):
            there = windows == window
            argument = self._argument(int(window), int(active[there][0]), kind, place)
            part = None if stored is None else stored[there]
            self._touch(argument, kind, active[there], itemsize, place, part)
            real[everywhere == window] += np.uint64(argument.delta % (1 << 64))
        return real

    def _argument(self, window: int, address: int, kind: str, place: Place) -> _Argument:
        if 1 <= window <= len(self._arguments):
            return self._arguments[window - 1]
        raise KernelError(
            f"kernel {self.kernel!r}, program {self.program}{place}: a {kind} at address "
            f"{address:#x}, which belongs to no argument; make pointers from the arguments",
            kind="pointer",
            kernel=self.kernel,
            program=self.program,
            line=place.line,
            file=place.file,
        )

    def _touch(
        self,
        argument: _Argument,
        kind: str,
        addresses: np.ndarray[Any, np.dtype[np.uint64]],
        itemsize: int,
        place: Place,
        data: np.ndarray[Any, Any] | None,
    ) -> None:
        offsets = addresses.view(np.int64) - np.int64(argument.base)
        outside = (offsets < 0) | (offsets > argument.span - itemsize)
        if bool(outside.any()):
            raise self._outside(argument, kind, int(offsets[outside][0]), place)
        if kind != "store":
            argument.read_requested += offsets.size * itemsize
        if kind != "load":
            argument.write_requested += offsets.size * itemsize
            argument.storage.written = True
        if self.trace is not None:
            places = offsets // itemsize
            self.trace.append(
                Access(self.linear_program, argument.name, kind, places, itemsize, place.line)
            )
        self._mark(argument, kind, offsets, itemsize, place, data)

    def _outside(self, argument: _Argument, kind: str, offset: int, place: Place) -> KernelError:
        index = offset // argument.itemsize
        return KernelError(
            f"kernel {self.kernel!r}, argument {argument.name!r}, program {self.program}"
            f"{place}: a {kind} at index {index}, but {argument.describe()}",
            kind="bounds",
            kernel=self.kernel,
            program=self.program,
            argument=argument.name,
            index=index,
            line=place.line,
            file=place.file,
        )

    def _mark(
        self,
        argument: _Argument,
        kind: str,
        offsets: Offsets,
        itemsize: int,
        place: Place,
        data: np.ndarray[Any, Any] | None,
    ) -> None:
        storage = argument.storage
        storage.refine(itemsize)
        places = (offsets + argument.start) // storage.granule
        wide = itemsize // storage.granule
        if wide > 1:
            places = (places[:, None] + np.arange(wide)).ravel()
        where = as_slice(places)
        at: Any = places if where is None else where
        me = self.linear_program + 1
        if kind == "atomic":
            self._meet(argument, storage.written_by[at], (me, _ATOMIC), places, kind, place)
            self._ordered.add(me)
            storage.read_by[at] = storage.written_by[at] = _ATOMIC
            return
        # A program that did an atomic may be ordered after others by it: not judged.
        if kind == "load":
            if storage._written_by is not None:
                self._meet(argument, storage.written_by[at], (me,), places, kind, place)
            before = storage.read_by[at]
            new = (before == _NOBODY) | (before == me)
            storage.read_by[at] = me if bool(new.all()) else np.where(new, me, _SEVERAL)
            return
        if storage._read_by is not None:
            self._meet(argument, storage.read_by[at], (me,), places, kind, place)
        before = storage.written_by[at]
        if not self._stores_the_same(argument, before, offsets, itemsize, data):
            self._meet(argument, before, (me,), places, kind, place)
        storage.written_by[at] = me

    def _stores_the_same(
        self,
        argument: _Argument,
        before: np.ndarray[Any, np.dtype[np.int32]],
        offsets: Offsets,
        itemsize: int,
        data: np.ndarray[Any, Any] | None,
    ) -> bool:
        """Whether a store meets other programs' stores, and only of the value that it stores."""
        others = (before != _NOBODY) & (before != self.linear_program + 1)
        if data is None or bool((before == _ATOMIC).any()) or not bool(others.any()):
            return False
        met = others.reshape(offsets.size, -1).any(axis=1)
        there = argument.storage.bytes_at(offsets[met] + argument.start, itemsize)
        new = np.ascontiguousarray(data[met]).view(np.uint8).reshape(there.shape)
        if not np.array_equal(there, new):
            return False
        self._tell(_EQUAL)
        return True

    def _tell(self, note: str) -> None:
        if note not in self.note:
            self.note = f"{self.note}; {note}" if self.note else note

    def _meet(
        self,
        argument: _Argument,
        users: np.ndarray[Any, np.dtype[np.int32]],
        allowed: tuple[int, ...],
        places: Offsets,
        kind: str,
        place: Place,
    ) -> None:
        """Raise KernelError if one of `users` is another program than those `allowed`."""
        others = users != _NOBODY
        for user in allowed:
            others &= users != user
        if not bool(others.any()):
            return
        if allowed[0] in self._ordered:
            self._tell(_ORDERED)
            return
        first = int(np.argmax(others))
        offset = int(places[first]) * argument.storage.granule - argument.start
        user, index = int(users[first]), offset // argument.itemsize
        stored = argument.storage._written_by is not None and bool(
            argument.storage.written_by[places[first]]
        )
        who = "another program" if user < 0 else f"program {self._program_of(user - 1)}"
        did = "stored to" if stored else "read"
        raise KernelError(
            f"kernel {self.kernel!r}, argument {argument.name!r}, program {self.program}"
            f"{place}: a {kind} at index {index}, which {who} {did} in the same launch; "
            f"programs run in no fixed order",
            kind="race",
            kernel=self.kernel,
            program=self.program,
            argument=argument.name,
            index=index,
            line=place.line,
            file=place.file,
        )

    def _program_of(self, linear: int) -> Program:
        x, rest = linear % self.grid[0], linear // self.grid[0]
        return (x, rest % self.grid[1], rest // self.grid[1])

    def totals(self) -> Iterator[tuple[str, int, int, int, int]]:
        """Yield (name, read unique, read requested, write unique, write requested) in bytes.

        Two arguments that view the same bytes count them once, under the first one's name.
        """
        told: dict[int, list[tuple[int, int]]] = {}
        for argument in self._arguments:
            if not argument.read_requested and not argument.write_requested:
                continue
            spans = told.setdefault(id(argument.storage), [])
            stop = argument.start + argument.span
            read = written = 0
            for start, end in _uncovered((argument.start, stop), spans):
                r, w = argument.storage.unique(start, end)
                read, written = read + r, written + w
            spans.append((argument.start, stop))
            yield (
                argument.name,
                read,
                argument.read_requested,
                written,
                argument.write_requested,
            )

    def copy_back(self) -> None:
        """Bring what was stored back to the device the arguments came from."""
        for storage in self._storages.values():
            storage.copy_back()


def _uncovered(span: tuple[int, int], spans: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """The parts of `span` that none of `spans` covers."""
    parts = [span]
    for start, end in spans:
        parts = [
            part
            for low, high in parts
            for part in ((low, min(high, start)), (max(low, end), high))
            if part[0] < part[1]
        ]
    return parts
