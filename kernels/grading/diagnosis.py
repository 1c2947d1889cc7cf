"""From symptoms to causes: which inputs fail, and what that says about a kernel."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch

from kernels.cuda.cuda_launch import CudaLaunch
from kernels.grading.cases import KEPT, Run
from kernels.grading.closeness import relative_error
from kernels.grading.pictures import as_rows


def symptom(runs: Sequence[Run]) -> str:
    """The cause that fits which of `runs` are wrong and where, or "" if none does."""
    failed = [r for r in runs if r.fault is not None]
    if failed and all(_kept(r) for r in failed):
        return (
            "What a call returns is the caller's from then on. Allocate the output in the "
            "function, at every call, and keep nothing."
        )
    if failed and all(_other_dtype(r) for r in failed):
        return (
            "The values were not looked at: the output takes the dtype that the question names, "
            "and torch.empty_like(x) has that of x. A store into it converts by itself."
        )
    if failed and all(_other_axis(r) for r in failed):
        return (
            "The output has an element for each column, so the sum ran down the columns: a row "
            "lies along the last axis, and what belongs to a row is reduced along that."
        )
    if failed and all(_element_for_row(r) for r in failed):
        return (
            "The output has the shape of x, where each row has one value: it is "
            "torch.empty(rows, ...), and not torch.empty_like(x)."
        )
    if not failed or any(not r.wrong.numel() for r in failed):
        return ""

    in_cuda = any(isinstance(launch, CudaLaunch) for r in failed for launch in r.launches)
    if all(_stale(r, runs) for r in failed):
        return "These are the values of an earlier call: the inputs are new at every call."
    if all(map(_last_rows_missing, failed)):
        if in_cuda:
            return (
                "The last rows were never stored: the grid has too few blocks. Their number is a "
                "quotient rounded up."
            )
        return (
            "The last rows were never stored: the grid has too few programs. It takes "
            "triton.cdiv(rows, rows a program), which rounds up."
        )
    if all(map(_is_zero, failed)):
        return "The output is 0 everywhere: nothing was stored in it, or nothing but 0."
    if all(map(_is_x, failed)):
        return "What comes back is x, as it was given."
    columns = {last_columns_missing(r) for r in failed}
    if 0 not in columns:
        what = "The last column of each row was" if columns == {1} else "Columns at the end were"
        if in_cuda:
            return (
                f"{what} never stored: a guard ends too early, or the threads of a row take too "
                "few columns. It takes col < n_cols, and a loop, or more columns a thread."
            )
        return (
            f"{what} never stored: the mask ends too early, or the block is too narrow. It takes "
            "cols < n_cols, and a block of triton.next_power_of_2(n_cols), or a loop."
        )
    if only_in_16_bits(runs):
        return "It is right in fp32: do the arithmetic in fp32, and convert when you store."
    if told := far_from_0(runs):
        return told
    if all(map(_only_nan, failed)):
        return (
            "An element that is nan was never stored, or comes from 0 / 0, from the root of a "
            "negative number, or from inf - inf. New memory holds nan in this check."
        )
    if only_where(runs, lambda r: not _power_of_two(r.case.x.shape[-1])):
        return "It is right where the width is a power of two: look at the lanes beyond the row."
    # Of inputs that are hard to get right, such as those far from 0, 16 bits leave nothing.
    plain = [r for r in failed if not r.case.trait]
    if all(map(_as_in_16_bits, plain or failed)):
        return (
            "It is right to two or three digits: on its way a value or a sum went through 16 bits. "
            "Keep what is summed in fp32, and convert when you store."
            + (" Far from 0, 16 bits leave less than that." if len(plain) < len(failed) else "")
        )
    if only_where(runs, lambda r: r.case.x.shape[0] > 1):
        if all(r.case.x.dim() > 1 for r in runs):
            return "It is right for one row: look at how a program finds its row."
        return "It is right for one element: look at how a lane finds its element."
    return ""


def only_where(runs: Sequence[Run], trait: Callable[[Run], bool]) -> bool:
    """Whether the runs with a trait are the wrong ones, and others are right."""
    failed = [r for r in runs if r.fault is not None]
    passed = [r for r in runs if r.fault is None]
    # Where nothing passed, no input without the trait has been seen to be right.
    both = bool(failed) and bool(passed)
    return both and all(map(trait, failed)) and not any(map(trait, passed))


def only_where_not_square(runs: Sequence[Run]) -> bool:
    """Whether x (rows, cols) is taken rightly where it is square; one row or column may pass."""
    some = [r for r in runs if r.fault is not None or min(r.case.x.shape) > 1]
    return only_where(some, lambda r: r.case.x.shape[0] != r.case.x.shape[1])


def only_in_16_bits(runs: Sequence[Run]) -> bool:
    """Whether fp32 is right, and 16 bits are off as sums or products in 16 bits are.

    Some inputs in 16 bits may be right: short sums are. Of those that are hard to get right, 16
    bits leave nothing.
    """
    failed = [r for r in runs if r.fault is not None]
    wide = {r.fault is None for r in runs if r.case.x.dtype == torch.float32}
    if not failed or wide != {True} or any(not r.wrong.numel() for r in failed):
        return False
    return all(r.case.trait or _coarse(r) for r in failed)


def _coarse(run: Run) -> bool:
    """Whether an output has the right size, or an infinity, or a nan that comes of one."""
    output = run.output.detach().double()
    finite = output.isfinite()
    if not bool(finite.any()):
        return True
    return relative_error(output[finite], run.case.reference[finite]) < 0.5


def far_from_0(runs: Sequence[Run]) -> str:
    """What is told where all inputs far from 0 are wrong and no others; or ""."""
    failed = [r for r in runs if r.fault is not None]
    traits = {r.case.trait for r in failed}
    right = {r.case.trait for r in runs if r.fault is None}
    if not failed or "" not in right or traits & right or any("mean" not in t for t in traits):
        return ""
    return (
        "It is wrong where the mean is large against the spread: a variance as E[x²] - E[x]² "
        "takes two nearly equal numbers from each other. Centre first, then square."
    )


def _only_nan(run: Run) -> bool:
    """Whether what is wrong in an output is nan, all of it."""
    return torch.equal(run.output.detach().isnan().flatten(), run.wrong)


def _kept(run: Run) -> bool:
    """Whether an output lies in the memory of an earlier one."""
    return run.fault is not None and run.fault.startswith(KEPT)


def _other_dtype(run: Run) -> bool:
    """Whether an output is a tensor of the right shape in a dtype that is not the one asked for."""
    like = run.case.like
    tensor = type(run.output) is torch.Tensor and run.output.shape == like.shape
    return tensor and run.output.dtype != like.dtype


def _other_axis(run: Run) -> bool:
    """Whether an output has an element for each column, where each row should have one."""
    rows, shape = run.case.reference.shape, getattr(run.output, "shape", None)
    x = run.case.x.shape
    return len(x) == 2 and rows == x[:1] and shape == x[1:] and shape != rows


def _element_for_row(run: Run) -> bool:
    """Whether an output has an element for each of x's, where each row should have one."""
    rows, shape, x = run.case.reference.shape, getattr(run.output, "shape", None), run.case.x.shape
    return len(x) == 2 and rows == x[:1] and shape == x


def _as_in_16_bits(run: Run) -> bool:
    """Whether an output is off by about what a rounding to fp16 or bf16 on the way loses."""
    output, reference = run.output.detach().double(), run.case.reference
    too_large = reference.abs() > 65504  # for fp16
    finite = output.isfinite()
    if bool((~finite & ~too_large).any()):
        return False
    if not bool(finite.any()):
        return True
    return 2e-5 < relative_error(output[finite], reference[finite]) < 5e-3


def _power_of_two(n: int) -> bool:
    return n & (n - 1) == 0


def _last_rows_missing(run: Run) -> bool:
    """Whether whole rows at the end, and nothing else, still hold the NaN of new memory."""
    shape = tuple(run.output.shape)
    if len(shape) < 2:
        return False
    wrong = np.all(as_rows(run.wrong.numpy(), shape), axis=1, keepdims=True)
    lost = np.all(as_rows(run.output.detach().isnan().flatten().numpy(), shape), axis=1)
    rows = int(wrong.sum())
    whole = rows * shape[-1] == int(run.wrong.sum())
    return 0 < rows < len(wrong) and whole and bool(wrong[-rows:].all() and lost[-rows:].all())


def last_columns_missing(run: Run) -> int:
    """How many columns at the end, and nothing else, hold the NaN of new memory; 0 if not so."""
    if run.output.dim() < 2 or not len(run.launches):
        return 0
    lost = run.output.detach().isnan().flatten(0, -2)
    columns = int(lost[0].sum())
    rest = lost.shape[1] - columns
    at_end = bool(lost[:, rest:].all()) and not bool(lost[:, :rest].any())
    return columns if at_end and (rest or columns == 1) else 0


def _is_zero(run: Run) -> bool:
    return bool((run.output == 0).all()) and bool(run.case.reference.any())


def _is_x(run: Run) -> bool:
    x = run.case.x
    return run.output.dtype == x.dtype and torch.equal(run.output, x)


def _stale(run: Run, runs: Sequence[Run]) -> bool:
    """Whether an output is, bit for bit, what an earlier call should have returned."""
    for earlier in runs:
        if earlier is run:
            return False
        same = earlier.fault is None and earlier.output.shape == run.output.shape
        if same and run.output.numel() > 1 and torch.equal(earlier.output, run.output):
            return True
    return False
