"""05.2: which kernel of chapter 05 a ledger belongs to, told from requests and widths alone."""

from __future__ import annotations

import random
from collections.abc import Sequence

import torch

from kernels.cuda.cuda_launch import CudaLaunch
from kernels.cuda.emulator.results import LineTraffic
from kernels.grading.checks import call
from kernels.grading.question import Attempt, NotAnswered, Wrong
from kernels.grading.questions.kits.numbers import kind
from kernels.launch import interpreting
from kernels.ops.norms import layernorm
from kernels.registry import dtype_name

RUNGS = ("chain", "loops", "packs", "wide", "held")
Lines = tuple[LineTraffic, ...]
# Variant, rows, columns and dtype. A pack takes 16 bytes where the width allows it alone, and a row
# is held where registers allow it: the variant's name doesn't tell the rung.
_LAUNCHES = (
    ("cuda_3", 4, 256, torch.bfloat16),
    ("cuda_4", 4, 256, torch.bfloat16),
    ("fused_cuda", 4, 256, torch.bfloat16),
    ("unfused_cuda", 4, 256, torch.bfloat16),
    ("cuda_4", 3, 201, torch.bfloat16),
    ("fused_cuda", 3, 201, torch.bfloat16),
    ("cuda_3", 2, 1000, torch.float32),
    ("fused_cuda", 1, 17000, torch.float16),
    ("fused_cuda", 1, 5001, torch.float16),
)
_NAMES = {"layer_norm_loops": "loops", "layer_norm_wide": "wide", "layer_norm": "held"}


def launched(variant: str, rows: int, cols: int, dtype: torch.dtype) -> tuple[list[Lines], str]:
    """Return the ledger by line of each launch of a variant of LayerNorm, and its rung."""
    x, weight = torch.ones(rows, cols, dtype=dtype), torch.ones(cols, dtype=dtype)
    with interpreting() as launches:
        layernorm.OP.variant(variant).fn(x, weight, weight.clone())
    made = [launch for launch in launches if isinstance(launch, CudaLaunch)]
    ledgers = [launch.arena.lines for launch in made if launch.arena is not None]
    if len(made) > 1:
        return ledgers, "chain"
    name, _, numbers = made[0].name.partition("<")
    rung = _NAMES[name]
    if rung == "loops" and not numbers.endswith(", 1>"):
        rung = "packs"
    return ledgers, rung


def read_of_x(ledgers: Sequence[Lines], x_bytes: int) -> tuple[float, int]:
    """How many times x is asked for in all, and the bytes of the widest load of it."""
    loads = [one for lines in ledgers for one in lines if (one.argument, one.kind) == ("x", "load")]
    return sum(one.bytes_requested for one in loads) / x_bytes, max(one.width for one in loads)


def _means(told: str, right: str, times: float, itemsize: int) -> str:
    if "chain" in (told, right):
        return "The chain is the only one that takes more than one launch."
    if {told, right} == {"loops", "packs"}:
        return (
            "Both ask for x three times. Packs do it in loads of 16 bytes; in loops of single "
            f"elements a load has the width of one, here {itemsize}."
        )
    if told not in RUNGS:
        return ""
    return (
        f"Add up bytes_requested of the loads of x alone, and divide by the bytes of x: {times:.0f}"
        " here. Three times is three loops, twice is a state that merges, once is a row that is "
        "held. Width says nothing of that: a row of an odd width is held in single elements."
    )


def grade_rung(attempt: Attempt) -> None:
    """Grade `rung(launches, x_bytes)` on the ledgers of real launches."""
    rng = random.Random(attempt.seed)
    asked = [*_LAUNCHES]
    for variant in ("cuda_3", "cuda_4", "fused_cuda"):
        dtype = rng.choice((torch.float16, torch.bfloat16))
        asked.append((variant, rng.randrange(2, 5), rng.randrange(40, 900), dtype))
    rng.shuffle(asked)
    for variant, rows, cols, dtype in asked:
        ledgers, right = launched(variant, rows, cols, dtype)
        x_bytes = rows * cols * dtype.itemsize
        told = call(attempt, [list(lines) for lines in ledgers], x_bytes)
        if told is None or told is ...:
            raise NotAnswered
        where = f"{attempt.name} on a LayerNorm of {rows} rows of {cols} in {dtype_name(dtype)}"
        if type(told) is not str:
            raise Wrong(f"{where} returned {kind(told)}; it is one of {RUNGS}.")
        if told != right:
            times, width = read_of_x(ledgers, x_bytes)
            plural = "launch" if len(ledgers) == 1 else "launches"
            raise Wrong(
                f"{where} says {told!r}; the ledger is that of {right!r}: x is asked for "
                f"{times:.1f} times in {len(ledgers)} {plural}, {width} bytes a load.",
                _means(told, right, times, dtype.itemsize),
            )
    attempt.held.append(f"the rung of {len(asked)} calls, told from their ledgers")
