"""One launch in a process of its own, on copies of the tensors in shared memory.

Whatever a kernel does wrong ends that process, never the caller's. The tensors change only where
the launch ends well.
"""

from __future__ import annotations

import contextlib
import os
import re
import select
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch

from kernels.cuda.emulator.faults import Faults, Fields
from kernels.cuda.emulator.initcheck import bytes_of, unwritten_bytes
from kernels.cuda.emulator.results import (
    KINDS,
    ArgumentBytes,
    Counts,
    LineBanks,
    LineTraffic,
    WarpAccess,
)
from kernels.cuda.errors import CudaError
from kernels.cuda.signature import Parameter
from kernels.launch.errors import KernelError, Program

# The `__device__` variables of a source, by program: as its last launch left them.
Variables = dict[Path, bytes]

_FILES = ("request", "memory", "result")
# Two values that differ in every type, and neither is lost in a maximum.
_NOBODYS = (0xC2F6E979_C2F6E979, 0x7149F2CA_7149F2CA)
_PAGE = 4096
_GRACE_SECONDS = 2.0
_SHARED_MEMORY = Path("/dev/shm")


@dataclass
class _Storage:
    """The memory behind one or more arguments: bytes low to high of a tensor's storage.

    `offset` is its place in the launch's memory file, and `flags_offset` that of a flag for each
    byte which nobody has written, where such a byte is known; 0 elsewhere.
    """

    tensor: torch.Tensor
    low: int
    high: int
    granule: int
    offset: int = 0
    unwritten: np.ndarray | None = None
    flags_offset: int = 0

    def host(self) -> np.ndarray:
        return bytes_of(self.tensor.untyped_storage())[self.low : self.high]

    def parts(self) -> Iterator[tuple[np.ndarray, slice]]:
        """What of the caller's memory belongs where in the memory file."""
        size = self.high - self.low
        yield self.host(), slice(self.offset, self.offset + size)
        if self.unwritten is not None:
            yield self.unwritten, slice(self.flags_offset, self.flags_offset + size)


def _span(tensor: torch.Tensor) -> tuple[int, int]:
    """First byte and number of bytes of a view within its storage."""
    item = tensor.element_size()
    start = int(tensor.storage_offset()) * item
    if not tensor.numel():
        return start, 0
    steps = zip(tensor.shape, tensor.stride(), strict=True)
    return start, (sum((size - 1) * stride for size, stride in steps) + 1) * item


def _storages(tensors: Sequence[torch.Tensor]) -> tuple[list[_Storage], list[int], int]:
    """The distinct storages, which one each tensor lies in, and the bytes of all together."""
    found: dict[int, int] = {}
    storages: list[_Storage] = []
    which = []
    for tensor in tensors:
        start, span = _span(tensor)
        key = tensor.untyped_storage().data_ptr() or -len(storages) - 1
        if key not in found:
            found[key] = len(storages)
            storages.append(_Storage(tensor, start, start + span, tensor.element_size()))
        one = storages[found[key]]
        one.low, one.high = min(one.low, start), max(one.high, start + span)
        one.granule = min(one.granule, tensor.element_size())
        which.append(found[key])
    total = 0
    for one in storages:
        one.low -= one.low % 256  # so that an address keeps its alignment within the storage
        pages = -(-max(one.high - one.low, 1) // _PAGE) * _PAGE
        one.offset, total = total, total + pages
        flags = unwritten_bytes(one.tensor)
        if flags is not None and flags[one.low : one.high].any():
            one.unwritten = flags[one.low : one.high]
            one.flags_offset, total = total, total + pages
    return storages, which, max(total, _PAGE)


def launch(
    program: Path,
    entry: int,
    kernel: str,
    parameters: Sequence[Parameter],
    values: Sequence[torch.Tensor | bytes | None],
    grid: Program,
    block: Program,
    shared_bytes: int,
    time_limit_s: float,
    trace: bool,
    variables: Variables,
) -> Counts:
    """Run `entry` of `program` once and return its counts; KernelError if it does wrong.

    `values` are tensors and None for pointers, the bytes of each number otherwise; `variables` are
    those that the source declares `__device__`.
    """
    tensors = [value for value in values if isinstance(value, torch.Tensor)]
    storages, which, total = _storages(tensors)
    scratch = _SHARED_MEMORY if os.access(_SHARED_MEMORY, os.W_OK) else None
    if scratch and shutil.disk_usage(scratch).free < 2 * total:
        scratch = None
    words: list[int] = [entry, *grid, *block, shared_bytes, len(storages)]
    for one in storages:
        words += [one.offset, one.high - one.low, one.granule, one.flags_offset]
    words.append(len(values))
    numbers = iter(which)
    for value in values:
        if isinstance(value, torch.Tensor):
            number, (start, span) = next(numbers), _span(value)
            words += [1, number, start - storages[number].low, span, value.element_size()]
        else:
            words += [0, int.from_bytes(value or b"", "little")]
    names = [
        p.name
        for p, value in zip(parameters, values, strict=True)
        if isinstance(value, torch.Tensor)
    ]
    with tempfile.TemporaryDirectory(prefix="fusing-kernels-", dir=scratch) as folder:
        trace_file, kept = Path(folder) / "trace", Path(folder) / "variables"

        def ran(nobodys_value: int) -> tuple[np.ndarray, list[Fields]]:
            """The memory and what was told, where a lane that asks nobody gets that value."""
            files = [Path(folder) / f"{name}-{nobodys_value}" for name in _FILES]
            files[0].write_text(" ".join(map(str, [nobodys_value, *words])))
            memory = np.memmap(files[1], dtype=np.uint8, mode="w+", shape=(total,))
            for one in storages:
                for part, place in one.parts():
                    memory[place] = part
            kept.unlink(missing_ok=True)
            if program in variables:
                kept.write_bytes(variables[program])
            _run([str(program), *map(str, files), str(trace_file) * trace, str(kept)], time_limit_s)
            return memory, _records(files[2])

        memory, records = ran(_NOBODYS[0])
        if strayed := [one for one in records if one["record"] == "stray"]:
            # What no lane gave is thrown away if nothing depends on it.
            second, others = ran(_NOBODYS[1])
            if others[-1:] != records[-1:] or not np.array_equal(memory, second):
                records = [{**strayed[0], "record": "fault"}]
        lines = _Lines(program, records)
        if not records or records[-1]["record"] != "done":
            described = [
                (name, tuple(t.shape), _span(t)[1] // t.element_size(), t.element_size())
                for name, t in zip(names, tensors, strict=True)
            ]
            faults = Faults(kernel, grid, block, described, lines.of, time_limit_s)
            if records and records[-1]["record"] == "fault":
                raise faults.error(records[-1])
            raise KernelError(
                f"kernel {kernel!r}: its process ended without a word; it may have run out of "
                f"memory",
                kind="pointer",
                kernel=kernel,
                program=(0, 0, 0),
            )
        counts = _counts(kernel, grid, block, names, records, lines)
        written = {a.name for a in counts.arguments if a.write_requested}
        for number in {n for n, name in zip(which, names, strict=True) if name in written}:
            for part, place in storages[number].parts():
                part[:] = memory[place]
        if kept.exists():
            variables[program] = kept.read_bytes()
        if trace:
            items = [t.element_size() for t in tensors]
            accesses = _trace(trace_file, names, items, records, lines)
            counts = Counts(**{**counts.__dict__, "trace": tuple(accesses)})
        return counts


def _run(command: list[str], time_limit_s: float) -> None:
    try:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL)
    except OSError as error:
        raise CudaError(f"can't start the emulated kernel: {error}") from None
    try:
        _wait(process, time_limit_s)
    except subprocess.TimeoutExpired:
        process.terminate()  # it says where it was
        with contextlib.suppress(subprocess.TimeoutExpired):
            _wait(process, _GRACE_SECONDS)
    finally:
        process.kill()
        process.wait()


def _wait(process: subprocess.Popen[bytes], seconds: float) -> None:
    """Wait for the end of a process; TimeoutExpired if it takes longer."""
    try:
        ended = os.pidfd_open(process.pid)
    except OSError:  # an old or a guarded system: ask again and again
        process.wait(seconds)
        return
    try:
        waiting = select.poll()
        waiting.register(ended, select.POLLIN)
        waiting.poll(1000 * seconds)
    finally:
        os.close(ended)
    process.wait(0)


def _records(result: Path) -> list[Fields]:
    """Each line of the result as its fields; a fault's own address is kept as `address2`."""
    records = []
    for text in result.read_text().splitlines() if result.exists() else []:
        head, *pairs = text.split()
        record = {"record": head}
        for pair in pairs:
            name, equals, value = pair.partition("=")
            if not equals:
                continue
            record[name + "2" if name == "address" and name in record else name] = value
        records.append(record)
    return records


class _Lines:
    """The source line of each instruction that touched memory, by the debug information."""

    _of_program: ClassVar[dict[Path, dict[int, int | None]]] = {}

    def __init__(self, program: Path, records: list[Fields]) -> None:
        self.known = self._of_program.setdefault(program, {})
        wanted = {
            int(record[name])
            for record in records
            for name in ("address", "otheraddress")
            if int(record.get(name, 0))
        }
        ordered = sorted(wanted - self.known.keys())
        tool = shutil.which("addr2line")
        if not ordered or tool is None:
            return
        # The call before the return address is the instruction.
        asked = "\n".join(hex(address - 1) for address in ordered)
        said = subprocess.run(
            [tool, "-a", "-i", "-e", str(program)], input=asked, capture_output=True, text=True
        ).stdout
        for address, frames in zip(
            ordered, re.split(r"^0x.*\n", said, flags=re.M)[1:], strict=False
        ):
            match = re.search(r"source\.cu:(\d+)", frames)
            self.known[address] = int(match[1]) if match else None

    def of(self, address: int) -> int | None:
        return self.known.get(address)


def _counts(
    kernel: str,
    grid: Program,
    block: Program,
    names: list[str],
    records: list[Fields],
    lines: _Lines,
) -> Counts:
    arguments: list[ArgumentBytes] = []
    traffic: dict[tuple[int | None, str, str, int], list[int]] = {}
    banks: dict[tuple[int | None, str, int], list[int]] = {}
    note = ""
    for record in records:
        if record["record"] == "total":
            figures = [int(record[name]) for name in ("read", "asked", "written", "told")]
            arguments.append(ArgumentBytes(names[int(record["argument"])], *figures))
        elif record["record"] == "unjudged":
            note = "threads met at addresses that atomics may order; not judged"
        elif record["record"] == "site":
            line, kind = lines.of(int(record["address"])), KINDS[int(record["kind"])]
            width, argument = int(record["size"]), int(record["argument"])
            if argument < 0:
                fields = ("requests", "bytes", "wavefronts", "conflicts")
                sums = banks.setdefault((line, kind, width), [0] * 4)
            else:
                fields = ("requests", "bytes", "distinct", "sectors")
                sums = traffic.setdefault((line, names[argument], kind, width), [0] * 4)
            for place, name in enumerate(fields):
                sums[place] += int(record[name])
    return Counts(
        kernel,
        grid,
        block,
        tuple(arguments),
        tuple(LineTraffic(*key, *sums) for key, sums in traffic.items()),
        tuple(LineBanks(*key, *sums) for key, sums in banks.items()),
        note=note,
    )


def _trace(
    path: Path, names: list[str], items: list[int], records: list[Fields], lines: _Lines
) -> list[WarpAccess]:
    line_of_site = {
        int(record["number"]): lines.of(int(record["address"]))
        for record in records
        if record["record"] == "site"
    }
    words, place, accesses = np.fromfile(path, dtype=np.int64), 0, []
    while place < words.size:
        program, warp, site, argument, kind, size, mask = map(int, words[place : place + 7])
        lanes = [lane for lane in range(32) if mask >> lane & 1]
        place += 7 + len(lanes)
        offsets = words[place - len(lanes) : place] // size
        threads = np.array([32 * warp + lane for lane in lanes], dtype=np.int64)
        accesses.append(
            WarpAccess(
                program, names[argument], KINDS[kind], offsets, size, line_of_site[site], threads
            )
        )
    return accesses
