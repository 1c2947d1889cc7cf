"""15.8: back through dropout, residual and LayerNorm in one launch, neither mask nor x̂ read."""

from __future__ import annotations

import random
from collections.abc import Iterator

import torch
import triton

from kernels.grading.cases import Case, Run
from kernels.grading.checks import computed_by_kernels, reads_once, within_bytes
from kernels.grading.compiled_checks import compiles, enough_programs
from kernels.grading.question import Attempt, Wrong
from kernels.grading.questions.kits.gradients import (
    gradient_tolerance,
    norm_inputs,
    right_gradient,
)
from kernels.grading.questions.kits.masks import (
    edge,
    explains_all,
    kept,
    masks_and_scales,
    numbers,
    right_masked,
    state,
)
from kernels.grading.questions.kits.rms_gradients import right_in_fp32, row_mean
from kernels.grading.questions.kits.row_norms import row_groups
from kernels.grading.questions.kits.two_outputs import Part, are_two, graded_second
from kernels.grading.questions.kits.wrong_models import (
    Tensor,
    drawn,
    masked_lanes_named,
    recognised,
)
from kernels.philox import scale, threshold

_PLAN: tuple[tuple[int, int, str, float | None], ...] = (
    (4, 64, "fp32", 0.25),
    (3, 17, "fp32", 0.5),
    (2, 1000, "fp16", 0.1),
    (5, 9, "bf16", 0.4),
    (2, 520, "fp32", None),
    (3, 40, "fp32", 0.0),
)
_OUTSIDE = "Columns beyond the row need a mask in each load and in both stores: cols < n_cols."


def _terms(given: dict[str, Tensor]) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """x_hat, dy, dh, g (rows, cols) and inv_std (rows, 1), in float64."""
    dy, dh, h, weight, mean, inv_std = (one.double() for one in list(given.values())[:6])
    x_hat = (h - mean[:, None]) * inv_std[:, None]
    return x_hat, dy, dh, dy * weight, inv_std[:, None]


def _back(given: dict[str, Tensor]) -> Tensor:
    x_hat, _, dh, g, inv_std = _terms(given)
    return (g - row_mean(g) - x_hat * row_mean(g * x_hat)) * inv_std + dh


def _cases(seed: int) -> tuple[list[Case], list[Case]]:
    """The same calls twice: graded by dresidual, and by dx."""
    rng = random.Random(seed)
    found: tuple[list[Case], list[Case]] = ([], [])
    for rows, cols, name, p in (*_PLAN, (rng.randrange(3, 6), rng.randrange(65, 250), "fp32", 0.2)):
        made = norm_inputs(rng, rows, cols, name, centred=True)
        seed_offset = state(rng)
        if p is None:
            p = edge(rng, rows * cols, seed_offset)
        given = {
            "dy": made["dy"],
            "dh": (0.5 + drawn(rng, (rows, cols), torch.float32)).to(made["x"].dtype),
            "h": made["x"],
            "weight": made["weight"],
            "mean": made["mean"],
            "inv_std": made["inv_std"],
            "seed_offset": seed_offset,
        }
        right = _back(given)
        *_, g, inv_std = _terms(given)
        near = gradient_tolerance(g * inv_std, right, made["x"].dtype)
        found[0].append(Case(given, (p,), right, near))
        mask = kept((rows, cols), p, seed_offset)
        dx = torch.where(mask, right * scale(p), 0.0)
        # dx may be made of dresidual as it was rounded.
        wider = type(near)(2 * near.relative_norm, 2 * near.largest)
        found[1].append(Case(given, (p,), dx, wider))
    return found


def _models(case: Case) -> Iterator[tuple[str, Tensor]]:
    x_hat, dy, dh, g, inv_std = _terms(case.tensors)
    n = x_hat.shape[-1]
    share = n / triton.next_power_of_2(n)
    along = row_mean(g * x_hat)

    def made(first: Tensor, second: Tensor, g: Tensor = g, x_hat: Tensor = x_hat) -> Tensor:
        return (g - first - x_hat * second) * inv_std + dh

    of_norm = made(row_mean(g), along) - dh
    yield (
        "dh is missing: h goes on as the next residual too, and what comes back on that way is "
        "added.",
        of_norm,
    )
    yield "That is dh alone: the norm's part is missing.", dh
    yield "dh is taken away: it is added.", of_norm - dh
    yield (
        "dh is added before the norm goes back: it reaches h past the norm.",
        (g + dh - row_mean(g + dh) - x_hat * row_mean((g + dh) * x_hat)) * inv_std,
    )
    yield (
        "dh is multiplied by inv_std: it comes past the norm, and is added last.",
        (of_norm + dh * inv_std),
    )
    yield "dh is added twice.", of_norm + 2 * dh
    yield (
        "dh is added as dy · weight and dh have changed places.",
        (dh - row_mean(dh) - x_hat * row_mean(dh * x_hat)) * inv_std + g,
    )
    block = "A sum is divided by BLOCK: divide by the number of columns."
    for first, second in ((share, share), (share, 1.0), (1.0, share)):
        yield block, made(row_mean(g) * first, along * second)
    yield (
        "The projection takes the mean of dy · x_hat; it is the mean of g · x_hat.",
        made(row_mean(g), row_mean(dy * x_hat)),
    )
    yield "weight is left out: g is dy · weight.", made(row_mean(dy), row_mean(dy * x_hat), dy)
    yield "The mean of dy is taken away; it is the mean of g.", made(row_mean(dy), along)
    yield "The mean of g is not taken away.", made(torch.zeros_like(along), along)
    yield "The mean of g is added; it is taken away.", made(-row_mean(g), along)
    yield "The projection onto x_hat is not taken away.", made(row_mean(g), 0 * along)
    yield "The projection is added; it is taken away.", made(row_mean(g), -along)
    yield (
        "A sum of a row is not divided by the number of columns.",
        made(n * row_mean(g), n * along),
    )
    yield "A sum of a row is not divided by the number of columns.", made(row_mean(g), n * along)
    yield "A sum of a row is not divided by the number of columns.", made(n * row_mean(g), along)
    over = dy / case.tensors["weight"].double()
    yield (
        "dy is divided by weight: g is dy · weight.",
        made(row_mean(over), row_mean(over * x_hat), over),
    )
    yield "The norm's part is not multiplied by inv_std.", of_norm / inv_std + dh
    yield "The norm's part is divided by inv_std.", of_norm / inv_std**2 + dh
    h = case.tensors["h"].double()
    yield (
        "The mean is not taken from h: x_hat is (h - mean) · inv_std.",
        made(row_mean(g), row_mean(g * h * inv_std), x_hat=h * inv_std),
    )
    yield (
        "h - mean stands for x_hat: it is not multiplied by inv_std.",
        made(row_mean(g), along / inv_std, x_hat=x_hat / inv_std),
    )
    yield (
        "h stands for x_hat, which is (h - mean) · inv_std.",
        made(row_mean(g), row_mean(g * h), x_hat=h),
    )
    (p,) = case.options
    mask = kept(tuple(h.shape), p, case.tensors["seed_offset"])
    yield (
        "dresidual and dx have changed places: the residual was not dropped, x was.",
        torch.where(mask, case.reference * scale(p), 0.0),
    )


def _dropped_models(case: Case) -> Iterator[tuple[str, Tensor]]:
    (p,) = case.options
    seed_offset, whole = case.tensors["seed_offset"], _back(case.tensors)
    mask = kept(tuple(whole.shape), p, seed_offset)
    dh = case.tensors["dh"].double()
    of_norm = whole - dh
    yield (
        "dh is left out of dx: dx is made of the whole dresidual, which has dh in it.",
        torch.where(mask, of_norm * scale(p), 0.0),
    )
    yield (
        "dh is added to dx behind the dropout: what was dropped reaches h on neither way.",
        torch.where(mask, of_norm * scale(p), 0.0) + dh,
    )
    yield "That is dresidual: dx is dropped as x was.", whole
    g = case.tensors["dy"].double() * case.tensors["weight"].double()
    yield (
        "The dropout stands before the norm's gradient: it is the last step back.",
        _masked_first(case, mask, scale(p)),
    )
    yield "That is g dropped: dx is dresidual, dropped.", torch.where(mask, g * scale(p), 0.0)
    for what, wrong, factor in masks_and_scales(tuple(whole.shape), p, seed_offset):
        yield what, torch.where(wrong, whole * factor, 0.0)
    # Behind the others: where no number is 0, p itself drops nothing.
    found = numbers(torch.arange(mask.numel()).view(mask.shape), seed_offset)
    for what, below in (
        ("The numbers are held to p itself: they are whole, below 65536, as threshold(p) is.", p),
        ("As many are kept as are to be dropped: it is not threshold(1 - p).", threshold(1 - p)),
    ):
        yield what, torch.where(found >= below, whole * scale(p), 0.0)


def _masked_first(case: Case, mask: Tensor, factor: float) -> Tensor:
    x_hat, _, dh, g, inv_std = _terms(case.tensors)
    g = torch.where(mask, g * factor, 0.0)
    return (g - row_mean(g) - x_hat * row_mean(g * x_hat)) * inv_std + dh


def _explain(runs: list[Run]) -> str:
    return recognised(runs, _models) or right_in_fp32(runs)


def _explain_dropped(runs: list[Run]) -> str:
    return explains_all(runs, _dropped_models) or recognised(runs, _models) or right_in_fp32(runs)


def grade_normed(attempt: Attempt) -> None:
    """Grade `normed_backward(dy, dh, h, weight, mean, inv_std, seed_offset, p)`: both gradients."""
    of_residual, of_x = _cases(attempt.seed)
    are_two(attempt, of_residual[0], "(dresidual, dx)")
    part, alone = (Part(attempt.answer, place) for place in (0, 1))
    first, second = (Attempt(one, attempt.seed) for one in (part, alone))
    runs = right_gradient(first, of_residual, _explain, "dresidual", _OUTSIDE)
    of_drop = graded_second(
        of_x, runs, part.returned, lambda: right_masked(second, of_x, _explain_dropped, "dx")
    )
    attempt.held.append(f"dresidual and dx right on {len(runs)} random inputs")
    try:
        computed_by_kernels(attempt, runs, launches=1)
    except Wrong as wrong:
        if "read all of mean" in wrong.sentence or "read all of inv_std" in wrong.sentence:
            wrong.means = wrong.means or (
                "mean and inv_std were kept for this: to make them again takes sums of their own."
            )
        raise
    computed_by_kernels(second, of_drop, launches=1)
    for name in ("dy", "dh", "h"):
        reads_once(attempt, runs, name)

    def ideal(case: Case) -> int:
        rows, cols = case.x.shape
        return (5 * rows + 1) * cols * case.x.itemsize + 8 * rows + 16

    what = "dy, dh, h, weight, two statistics a row and the seed read, dresidual and dx written"
    within_bytes(attempt, runs, ideal, what)
    enough_programs(attempt, runs, row_groups, "one for every four rows")
    masked_lanes_named(first, runs)
    masked_lanes_named(second, of_drop)
    compiles(attempt, (r.case for r in runs))
