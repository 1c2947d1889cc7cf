"""05.3 and 05.7: a LayerNorm whose sums and lanes meet, and one of the reader's own."""

from __future__ import annotations

import math
import random
import re
from collections.abc import Callable, Iterator

import torch

from kernels.cuda.cuda_launch import CudaLaunch
from kernels.grading.cases import Case, Run
from kernels.grading.checks import reads_once, within_bytes
from kernels.grading.compiled_checks import compiles, enough_programs
from kernels.grading.cuda_checks import in_cuda, no_conflicts
from kernels.grading.diagnosis import far_from_0, last_columns_missing
from kernels.grading.question import Attempt, Speed
from kernels.grading.questions.kits.cuda_cases import Tensor, nearly_right, right_in_cuda, unstored
from kernels.grading.questions.kits.lanes import weights
from kernels.grading.questions.kits.layer_norm import explain_layer_norm
from kernels.grading.questions.kits.packs import (
    ideal_bytes,
    in_packs,
    rounded_once,
)
from kernels.grading.questions.kits.wrong_models import drawn, only_end_missing, recognised
from kernels.registry import Tolerance

_GUARD = "A thread stops at the end of its row: col < n_cols."
_LARGE = "a mean of 200"


def _normalised(x: Tensor, variance: Tensor, eps: float) -> Tensor:
    return (x - x.mean(-1, keepdim=True)) * torch.rsqrt(variance + eps)[:, None]


def _case(rng: random.Random, rows: int, cols: int, dtype: torch.dtype, trait: str = "") -> Case:
    x = drawn(rng, (rows, cols), dtype, mean=200.0 if trait else 0.5)
    if not trait:
        # Rows of different sizes, so that none can stand for another.
        x = (x * (0.5 + 0.5 * torch.arange(rows) % 4)[:, None]).to(dtype)
        x[:, 1::7] = 0.0  # as places behind a row's end may hold
    weight, bias = 1 + drawn(rng, (cols,), torch.float32) / 4, drawn(rng, (cols,), torch.float32)
    inputs = {"x": x, "weight": weight.to(dtype), "bias": bias.to(dtype)}
    eps = rng.choice((0.25, 1e-2))
    wide, scale, shift = (tensor.double() for tensor in inputs.values())
    reference = _normalised(wide, wide.var(-1, correction=0), eps) * scale + shift
    # The mean's rounding against the spread, and some roundings of each result.
    size = (1 + float(wide.mean(-1).abs().max())) * 2.0**-23
    if dtype == torch.float16:
        near = rounded_once(reference, size)
    else:
        size *= 4 + cols**0.5 / 8
        near = Tolerance(size, 2 * size)
    return Case(inputs, (eps,), reference, near, trait)


def _of_sums(case: Case) -> Iterator[tuple[str, Tensor]]:
    """LayerNorms with a fault in their sums."""
    x, weight, bias = (tensor.double() for tensor in case.tensors.values())
    (eps,) = case.options
    n, column = x.shape[1], torch.arange(x.shape[1])

    def made(first: Tensor, second: Tensor, x: Tensor = x) -> Tensor:
        """With the columns' weights in the sum and in the sum of squares."""
        mean = (x * first).sum(-1, keepdim=True) / n
        squares = ((x - mean) ** 2 * second).sum(-1, keepdim=True) / n
        return (x - mean) * torch.rsqrt(squares + eps) * weight + bias

    one = torch.ones(n, dtype=torch.float64)
    yield "A sum is multiplied by the columns; it is divided.", made(one * n**2, one)
    yield "A sum is multiplied by the columns; it is divided.", made(one, one * n**2)
    for what, kept in weights(n, 256, (1, 8)):
        yield what, made(kept, kept)
    last_packs = (column % 8 == 7) & (column >= (n // 8 - 256) * 8)
    for kept in (column >= 768, column >= n - 256, last_packs):
        yield (
            "A thread keeps its last square alone: the loop replaces what it should add to.",
            made(one, kept.double()),
        )
    yield (
        "The last column is taken for 0: a thread holds its columns while col < n_cols.",
        made(one, one, torch.where(column < n - 1, x, 0.0)),
    )


def _models(case: Case) -> Iterator[tuple[str, Tensor]]:
    x, weight, bias = (tensor.double() for tensor in case.tensors.values())
    (eps,) = case.options
    n, variance = x.shape[1], x.var(-1, correction=0)
    mean = x.mean(-1)
    right = _normalised(x, variance, eps)
    yield "weight is missing.", right + bias
    yield "bias is missing.", right * weight
    yield "eps is not added.", _normalised(x, variance, 0.0) * weight + bias
    yield "eps is not the one given.", _normalised(x, variance, 1e-5) * weight + bias
    yield (
        "The squares are not divided by the number of columns.",
        _normalised(x, variance * n, eps) * weight + bias,
    )
    for count in (n - 1, max(n - 1, 1)):  # with one column that is 0 / 0, or guarded
        yield (
            "The variance is divided by n - 1; LayerNorm takes n.",
            _normalised(x, variance * n / count, eps) * weight + bias,
        )
    root = torch.rsqrt(variance + eps)[:, None]
    yield "weight and bias are swapped: weight multiplies, bias is added.", right * bias + weight
    outside = (x - mean[:, None]) / (variance.sqrt() + eps)[:, None] * weight + bias
    yield "eps is added to the root; it belongs under it.", outside
    yield (
        "eps is added to the reciprocal of the root; it belongs under the root.",
        (x - mean[:, None]) * (variance.rsqrt() + eps)[:, None] * weight + bias,
    )
    yield (
        "The centred values are divided by the variance, not by its root.",
        (x - mean[:, None]) / (variance + eps)[:, None] * weight + bias,
    )
    yield "The centred values are not divided at all.", (x - mean[:, None]) * weight + bias
    yield "The mean is not taken away.", x * root * weight + bias
    yield (
        "That is RMSNorm's scale: the mean has to be taken away before the squares are summed.",
        _normalised(x, (x * x).mean(-1), eps) * weight + bias,
    )
    yield "The mean is added; it is taken away.", (x + mean[:, None]) * root * weight + bias
    yield "weight is added; it multiplies.", right + weight + bias
    yield from _of_sums(case)
    yield (
        "Every block takes the first row: its row is blockIdx.x.",
        right[:1].expand_as(right) * weight + bias,
    )
    for held in (32 * 2**power for power in range(10)):
        places = -(-n // held) * held if held < n else held
        padded = variance + (places - n) / n * mean**2
        yield (
            "Places past the end of the row hold 0, and each adds mean² to the squares: the "
            "condition has to stand in the second sum too.",
            _normalised(x, padded, eps) * weight + bias,
        )
    for width in (256, 512, 1024):
        if n > width:
            part = x[:, :width].sum(-1) / n
            squares = ((x[:, :width] - part[:, None]) ** 2).sum(-1) / n
            y = (x - part[:, None]) * torch.rsqrt(squares + eps)[:, None]
            yield (
                f"Only the first {width} columns are in the sums: each thread takes more than one.",
                y * weight + bias,
            )


def _explain(runs: list[Run]) -> str:
    lost = unstored(runs)
    if lost and only_end_missing(runs) and all(len(r.case.x) > 1 for r in runs if r.fault):
        return "The last rows were never stored: the grid takes one block for every row."
    if told := recognised(runs, _models) or explain_layer_norm(runs):
        return told.replace("tl.rsqrt", "rsqrtf")
    if lost:
        return (
            "Elements that are nan were never stored: the block's threads and what each of them "
            "holds must cover the row, and the loop that stores goes as far as the one that loads."
        )
    if told := far_from_0(runs):
        return told
    if nearly_right(runs):
        return "It is right to three digits: on its way a value or a sum went through fp16."
    return ""


def _explain_packs(runs: list[Run]) -> str:
    """What `_explain` says, and where a row has more columns than its block's threads hold."""
    if told := _explain(runs):
        return told
    failed = [r for r in runs if r.fault is not None]
    if all(r.wrong.numel() and last_columns_missing(r) for r in failed):
        held = {_held(r) for r in failed}
        if len(held) == 1 and None not in held:
            return (
                f"Columns at the end were never stored: {held.pop()} is less than n_cols. Hold "
                "more packs a thread."
            )
    return ""


def _held(run: Run) -> str | None:
    """SIZE · HELD · threads, where an instance of these holds less than a row; else None."""
    for launch in run.launches:
        if isinstance(launch, CudaLaunch) and (found := re.search(r"<(\d+), *(\d+)>", launch.name)):
            threads = math.prod(launch.block)
            size, packs = map(int, found.groups())
            if size * packs * threads < run.case.x.shape[1]:
                return f"SIZE · HELD · {threads}"
    return None


def _graded(
    attempt: Attempt, cases: list[Case], explain: Callable[[list[Run]], str] = _explain
) -> list[Run]:
    """Runs that are right, in one launch that asks for x once."""
    runs = right_in_cuda(attempt, cases, explain, _GUARD)
    in_cuda(attempt, runs, launches=1)
    reads_once(attempt, runs, "x")
    within_bytes(attempt, runs, ideal_bytes, "x, weight and bias read, the output written")
    no_conflicts(attempt, runs)
    enough_programs(attempt, runs, lambda case: -(-len(case.x) // 32), "one for every 32 rows")
    return runs


def grade_mended_norm(attempt: Attempt) -> None:
    """Grade `my_norm(x, weight, bias, eps)`: x (rows, cols) in fp32, 1 to 1024 columns."""
    rng = random.Random(attempt.seed)
    shapes = [(4, 1024), (3, 17), (2, 1000), (5, 1), (1, 256), (2, 257), (40, 24)]
    shapes.append((rng.randrange(2, 6), rng.randrange(65, 1000)))
    cases = [_case(rng, *shape, torch.float32) for shape in shapes]
    cases.append(_case(rng, 3, 700, torch.float32, _LARGE))
    compiles(attempt, (r.case for r in _graded(attempt, cases)))


def grade_layer_norm(attempt: Attempt) -> None:
    """Grade `my_layer_norm(x, weight, bias, eps)`: x (rows, cols) in fp16, 1 to 2048 columns."""
    rng = random.Random(attempt.seed)
    shapes = [(4, 2048), (3, 17), (5, 1), (1, 256), (2, 257), (40, 24), (2, 2047)]
    # A width that 4 divides, or 2 alone, is none of whole packs either.
    for rest in (4, 2, 0):
        shapes.append((rng.randrange(2, 6), 8 * rng.randrange(10, 250) + rest))
    cases = [_case(rng, *shape, torch.float16) for shape in shapes]
    cases.append(_case(rng, 3, 1400, torch.float16, _LARGE))
    runs = _graded(attempt, cases, _explain_packs)
    whole = [r for r in runs if r.case.x.shape[1] % 8 == 0]
    for name in ("x", "the output"):
        in_packs(attempt, whole, name)
    compiles(attempt, (r.case for r in runs))


SPEED = Speed(lambda seed: _case(random.Random(seed), 8192, 2048, torch.float16), 0.75)
MENDED_SPEED = Speed(lambda seed: _case(random.Random(seed), 16384, 1024, torch.float32), 0.7)
