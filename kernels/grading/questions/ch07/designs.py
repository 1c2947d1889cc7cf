"""07.8: which design a backward pass has, told from its ledger, and what the design costs."""

from __future__ import annotations

import random
from dataclasses import replace

import torch
import triton
import triton.language as tl

from kernels.grading.question import Attempt, Wrong
from kernels.grading.questions.kits.numbers import answered, kind, pair, real
from kernels.grading.questions.kits.numbers import same as equal
from kernels.lab.counting import traffic
from kernels.lab.counting.ledger import Ledger, Step, TensorTraffic

DESIGNS = ("atomics", "second reading", "partial sums")


@triton.jit
def rows_kernel(  # type: ignore[no-untyped-def]
    x_ptr,
    dy_ptr,
    weight_ptr,
    inv_rms_ptr,
    dx_ptr,
    sums_ptr,
    n_rows,
    n_cols,
    ATOMIC: tl.constexpr,
    SUMS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """dx of RMSNorm, the rows shared by all programs; with SUMS dweight's too, at the end."""
    program = tl.program_id(0)
    cols = tl.arange(0, BLOCK)
    mask = cols < n_cols
    weight = tl.load(weight_ptr + cols, mask=mask, other=0.0)
    sums = tl.zeros([BLOCK], tl.float32)
    for row in range(program, n_rows, tl.num_programs(0)):
        inv_rms = tl.load(inv_rms_ptr + row)
        x_hat = tl.load(x_ptr + row * n_cols + cols, mask=mask, other=0.0) * inv_rms
        dy = tl.load(dy_ptr + row * n_cols + cols, mask=mask, other=0.0).to(tl.float32)
        g = dy * weight
        dx = (g - x_hat * (tl.sum(g * x_hat, axis=0) / n_cols)) * inv_rms
        tl.store(dx_ptr + row * n_cols + cols, dx.to(dx_ptr.dtype.element_ty), mask=mask)
        sums += dy * x_hat
    if ATOMIC:
        tl.atomic_add(sums_ptr + cols, sums, mask=mask)
    elif SUMS:
        tl.store(sums_ptr + program * n_cols + cols, sums, mask=mask)


@triton.jit
def columns_kernel(  # type: ignore[no-untyped-def]
    x_ptr,
    dy_ptr,
    inv_rms_ptr,
    dweight_ptr,
    n_rows,
    n_cols,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_COLS: tl.constexpr,
):
    """dweight of RMSNorm alone, BLOCK_COLS columns a program, from x and dy."""
    cols = tl.program_id(0) * BLOCK_COLS + tl.arange(0, BLOCK_COLS)
    sums = tl.zeros([BLOCK_ROWS, BLOCK_COLS], tl.float32)
    for start in range(0, n_rows, BLOCK_ROWS):
        rows = start + tl.arange(0, BLOCK_ROWS)[:, None]
        mask = (rows < n_rows) & (cols < n_cols)[None, :]
        inv_rms = tl.load(inv_rms_ptr + rows, mask=rows < n_rows, other=0.0)
        x = tl.load(x_ptr + rows * n_cols + cols[None, :], mask=mask, other=0.0)
        dy = tl.load(dy_ptr + rows * n_cols + cols[None, :], mask=mask, other=0.0)
        sums += dy * (x * inv_rms)
    tl.store(dweight_ptr + cols, tl.sum(sums, axis=0), mask=cols < n_cols)


@triton.jit
def finish_kernel(  # type: ignore[no-untyped-def]
    parts_ptr, dweight_ptr, n_parts, n_cols, BLOCK: tl.constexpr
):
    """Add up the partial sums of BLOCK columns."""
    cols = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    sums = tl.zeros([BLOCK], tl.float32)
    for part in range(n_parts):
        sums += tl.load(parts_ptr + part * n_cols + cols, mask=cols < n_cols, other=0.0)
    tl.store(dweight_ptr + cols, sums, mask=cols < n_cols)


def _launch(
    design: str, rows: int, cols: int, dtype: torch.dtype, programs: int, sums_first: bool
) -> None:
    x, dy, dx = torch.ones(3, rows, cols, dtype=dtype)
    weight, inv_rms, dweight = torch.ones(cols, dtype=dtype), torch.ones(rows), torch.zeros(cols)
    parts = torch.empty(programs, cols) if design == "partial sums" else dweight
    block = triton.next_power_of_2(cols)

    def columns() -> None:
        columns_kernel[(triton.cdiv(cols, 32),)](
            x, dy, inv_rms, dweight, rows, cols, BLOCK_ROWS=8, BLOCK_COLS=32
        )

    if design == "second reading" and sums_first:
        columns()
    rows_kernel[(programs,)](
        x,
        dy,
        weight,
        inv_rms,
        dx,
        parts,
        n_rows=rows,
        n_cols=cols,
        ATOMIC=design == "atomics",
        SUMS=design == "partial sums",
        BLOCK=block,
    )
    if design == "second reading" and not sums_first:
        columns()
    if design == "partial sums":
        finish_kernel[(triton.cdiv(cols, 32),)](parts, dweight, programs, cols, BLOCK=32)


_KNOWN = ("x", "dy", "weight", "inv_rms", "dx")


def backward_ledger(
    design: str, rows: int, cols: int, dtype: torch.dtype, programs: int, sums_first: bool = False
) -> Ledger:
    """Return the ledger of RMSNorm's backward by one of `DESIGNS`, told without telling names.

    `programs` programs share the rows for dx; with `sums_first` the second pass is the first. The
    launches are called "launch 1" and "launch 2", and every tensor but x, dy, weight, inv_rms and
    dx "buffer 1" or "buffer 2", in the order in which they are met.
    """
    counted = traffic.count(_launch, design, rows, cols, dtype, programs, sums_first)
    seen: list[str] = []
    steps = []
    for number, step in enumerate(counted, 1):
        tensors = []
        for tensor in step.tensors:
            # What the first kernel calls its sums is the second one's parts, or dweight itself.
            name = {"sums": "parts" if design == "partial sums" else "dweight"}.get(
                tensor.tensor, tensor.tensor
            )
            if name not in _KNOWN and tensor.requested:
                if name not in seen:
                    seen.append(name)
                name = f"buffer {seen.index(name) + 1}"
            if tensor.requested:
                tensors.append(replace(tensor, tensor=name))
        steps.append(replace(step, name=f"launch {number}", tensors=tuple(tensors)))
    return Ledger(tuple(steps), counted.method)


def _pass_of_dx(ledger: Ledger) -> Step:
    return next(step for step in ledger if step.tensor("dx").write_unique)


def _buffers(ledger: Ledger) -> list[TensorTraffic]:
    return [t for step in ledger for t in step.tensors if t.tensor.startswith("buffer")]


def price(design: str, ledger: Ledger) -> int:
    """Return the bytes that a design asks for on account of dweight, its one store left out."""
    if design == "second reading":
        (other,) = (step for step in ledger if step is not _pass_of_dx(ledger))
        return sum(tensor.read_requested for tensor in other.tensors)
    buffers = _buffers(ledger)
    return sum(t.requested for t in buffers if t.tensor == "buffer 1")


_TELLS = {
    "atomics": "There is one launch, and it reads what it writes: a buffer with read_unique and "
    "write_unique in one step. An atomic add is a read and a write.",
    "second reading": "x and dy are read by both launches.",
    "partial sums": "A buffer is written by the first launch and read by the second, and x is read "
    "by one launch alone.",
}
_PRICE = {
    "atomics": "what the atomics ask for at the buffer, read and written",
    "second reading": "what the launch without dx asks to read",
    "partial sums": "what is asked for at the partial sums, written and read",
}


def _means(design: str, ledger: Ledger, told: float) -> str:
    buffers = [t for t in _buffers(ledger) if t.tensor == "buffer 1"]
    distinct = sum(t.unique for t in buffers)
    asked_read = sum(t.read_requested for t in buffers)
    asked_write = sum(t.write_requested for t in buffers)
    if design == "second reading":
        (other,) = (step for step in ledger if step is not _pass_of_dx(ledger))
        second = other.tensor("x").read_requested + other.tensor("dy").read_requested
        if equal(told, second):
            return "That leaves out inv_rms, which the launch without dx reads too."
        if equal(told, other.bytes_requested):
            return "That counts the store of dweight too, which every design has."
        if equal(told, other.read_unique):
            return "Those are distinct bytes: inv_rms is asked for by each program."
        of_dx = _pass_of_dx(ledger)
        if told in (of_dx.bytes_requested, sum(t.read_requested for t in of_dx.tensors)):
            return "That is the launch that writes dx, which every design has."
        return ""
    if equal(told, distinct):
        return (
            "Those are distinct bytes: the programs meet at the same few, and each asks for them "
            "anew. Take read_requested and write_requested."
        )
    if told in (asked_read, asked_write):
        return "That is the reads or the writes alone: the price has both."
    return ""


def grade_design(attempt: Attempt) -> None:
    """Grade `design(ledger)`: (the design's name, its price in bytes) on random ledgers."""
    rng = random.Random(attempt.seed)
    drawn = [*DESIGNS, *DESIGNS, rng.choice(DESIGNS)]
    for number, right in enumerate(drawn):
        rows, cols = rng.randrange(6, 14), rng.randrange(40, 150)
        dtype = rng.choice((torch.float32, torch.float16))
        programs = rows if number < 3 else rng.randrange(2, rows)
        ledger = backward_ledger(right, rows, cols, dtype, programs, bool(number % 2))
        called = f"{attempt.name}(ledger of {right!r}, {rows}×{cols}, {programs} programs)"
        name, extra = pair(answered(attempt, ledger), called, "(design, price)")
        known = ", ".join(repr(one) for one in DESIGNS)
        if type(name) is not str or name not in DESIGNS:
            got = repr(name[:40]) if type(name) is str else kind(name)
            raise Wrong(f"{attempt.name} returned {got}; a design is one of {known}.")
        if name != right:
            launches = f"{ledger.launches} launch{'es' * (ledger.launches > 1)}"
            raise Wrong(
                f"{called} says {name!r}. The ledger has {launches}; x is asked for "
                f"{sum(step.tensor('x').read_requested for step in ledger):,} B in all.",
                _TELLS[right],
            )
        value, least = real(extra, called, "the price"), price(right, ledger)
        if not equal(value, least):
            raise Wrong(
                f"{called} has the price {value:,.0f} B; it is {least:,} B: {_PRICE[right]}.",
                _means(right, ledger, value),
            )
    attempt.held.append(f"the design and the price of {len(drawn)} backward passes")
