"""How a kernel of the catalogue is proved: interpreted, compared, counted, then compiled.

Each is compiled for every card that has its dtype. What compiled once is known by its digest in
`compiled.txt`, since a compiler makes the same again; one card of each launch is compiled anew all
the same, in the process that interpreted it. `python -m tests.launch.catalogue.proof` compiles all
and writes the digests down; the changed kernel of an unknown digest is compiled wherever tests run.
"""

from __future__ import annotations

import os
import sys
import zlib
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from kernels.hardware import LIMITS
from kernels.lab import traffic
from kernels.lab.counting import aot
from kernels.launch import Launches, interpreting, recording

COMPILED = Path(__file__).with_name("compiled.txt")
KEEP = "KEEP_COMPILED"
DTYPES = [torch.float32, torch.float16, torch.bfloat16]
every_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=["fp32", "fp16", "bf16"])

# Bytes of one tensor: distinct ones and those asked for, or one number where they are the same.
Bytes = int | tuple[int, int]


def cards_of(dtype: torch.dtype) -> list[int]:
    """The compute capabilities that have a dtype: bf16 came with 8.0."""
    return [card for card in LIMITS if dtype != torch.bfloat16 or card >= 80]


def filled(shape: Sequence[int], dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    """Normal numbers of a dtype."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator).to(dtype)


def close(output: torch.Tensor, right: torch.Tensor, units: float) -> None:
    """Hold an output to float64, in roundings of its dtype, and of fp32 at the least."""
    assert output.shape == right.shape
    error = (output.double() - right.double()).norm() / right.double().norm()
    assert error <= units * torch.finfo(output.dtype).eps / 2


def moved(launches: Launches, reads: Mapping[str, Bytes], writes: Mapping[str, Bytes]) -> None:
    """Hold the bytes of all launches, tensor by tensor, to those of a formula."""
    ledger = traffic.ledger_of(launches)
    told_reads, told_writes = {}, {}
    for name in ledger.tensors:
        tensor = ledger.tensor(name)
        if tensor.read_requested:
            told_reads[name] = (tensor.read_unique, tensor.read_requested)
        if tensor.write_requested:
            told_writes[name] = (tensor.write_unique, tensor.write_requested)
    pairs = [
        {name: (size, size) if isinstance(size, int) else size for name, size in sizes.items()}
        for sizes in (reads, writes)
    ]
    assert [told_reads, told_writes] == pairs


def known() -> frozenset[str]:
    """The digests of what compiled for its card when they were written down."""
    return frozenset(COMPILED.read_text().split()) if COMPILED.exists() else frozenset()


def compiles(call: Callable[[], object], dtype: torch.dtype) -> None:
    """Compile each launch of a call for every card that has its dtype."""
    with recording() as launches:
        call()
    keep, cards = bool(os.environ.get(KEEP)), cards_of(dtype)
    for launch in launches:
        wanted = {card: launch.specialize(card) for card in cards}
        digests = {card: aot.digest(aot.Job("", "", "", one)) for card, one in wanted.items()}
        anew = cards[zlib.crc32(f"{launch.name}{dtype}".encode()) % len(cards)]
        new = [
            one
            for card, one in wanted.items()
            if keep or card == anew or digests[card] not in known()
        ]
        with ThreadPoolExecutor(2) as pool:
            for compiled in pool.map(lambda one: one.compile(), new):
                assert compiled.registers > 0
                assert compiled.shared_bytes <= LIMITS[compiled.capability].shared_bytes_per_block
        if keep:
            COMPILED.write_text("\n".join(sorted(known() | set(digests.values()))) + "\n")


def prove(
    call: Callable[[], object],
    dtype: torch.dtype,
    right: Sequence[tuple[torch.Tensor, torch.Tensor]],
    reads: Mapping[str, Bytes],
    writes: Mapping[str, Bytes],
    units: float = 2.0,
) -> Launches:
    """Interpret `call`, hold its outputs and its bytes to what is right, then compile it.

    `right` pairs outputs with their float64 values, `units` is the error allowed, in halves of an
    epsilon: one for the rounding of the output, one for the sums behind it.
    """
    with interpreting() as launches:
        call()
    for output, value in right:
        close(output, value, units)
    moved(launches, reads, writes)
    compiles(call, dtype)
    return launches


if __name__ == "__main__":
    COMPILED.unlink(missing_ok=True)
    os.environ[KEEP] = "1"
    sys.exit(pytest.main(["-q", str(Path(__file__).parent)]))
