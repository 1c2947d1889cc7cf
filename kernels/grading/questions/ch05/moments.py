"""05.6: a weighted variance of rows read once, by states that merge across a warp."""

from __future__ import annotations

import functools
import math
import random
from collections.abc import Callable, Iterator, Sequence

import torch

from kernels.cuda.cuda_launch import CudaLaunch
from kernels.grading.cases import Case, Run
from kernels.grading.checks import reads_once, within_bytes
from kernels.grading.compiled_checks import compiles, enough_programs
from kernels.grading.cuda_checks import in_cuda, within_sectors
from kernels.grading.diagnosis import only_where
from kernels.grading.question import Attempt, Speed, Wrong
from kernels.grading.questions.kits.cuda_cases import Tensor, aligned, right_in_cuda, unstored
from kernels.grading.questions.kits.lanes import BY_FOURS, LANES
from kernels.grading.questions.kits.wrong_models import drawn, only_end_missing, recognised
from kernels.registry import Tolerance

_GUARD = (
    "A warp without a row does nothing: row < n_rows; and a lane stops at the end of its row: "
    "col < n_cols."
)
_FAR = "a mean of 1000"
_MASKED = "many weights of 0"
_STATE_BYTES = 12  # weight, mean and squares


def _weighed(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Total weight, mean and weighted squares of each row of x, in float64; 0 without weight."""
    total = w.sum().expand(len(x))
    mean = torch.where(total > 0, (x * w).sum(-1) / total, 0.0)
    return total, mean, (w * (x - mean[:, None]) ** 2).sum(-1)


def weighted_variance(x: Tensor, w: Tensor) -> Tensor:
    """Return sum(w (x - m)^2) / sum(w) of each row of x, m being its weighted mean, in float64."""
    total, _, squares = _weighed(x.double(), w.double())
    return squares / total


def _case(rng: random.Random, rows: int, cols: int, trait: str = "") -> Case:
    x = drawn(rng, (rows, cols), torch.float32)
    x *= 0.5 + torch.arange(rows)[:, None] % 5
    # A trend along the row: its parts have means of their own.
    x += 3 * torch.arange(cols) / cols
    if trait == _FAR:
        x += 1000.0
    w = drawn(rng, (cols,), torch.float32).abs() + 0.25
    if trait == _MASKED:
        # The first lanes meet none but zeros, and all lanes begin with one.
        column = torch.arange(cols)
        w[(column < 32) | (column % 32 < 9)] = 0.0
    reference = weighted_variance(x, w)
    # Each merge rounds the mean, against the spread of the row that varies least, and the squares.
    mean = (x.double() * w).sum(-1) / w.double().sum()
    shift = float((mean.abs() / reference.sqrt().clamp(min=0.1)).max())
    near = 2.0**-23 * (8 + math.sqrt(cols) / 2) * (1 + shift / 4)
    return Case({"x": x, "w": w}, (), reference, Tolerance(near, near), trait)


# A row's (weight, mean, squares), lane by lane.
State = tuple[Tensor, Tensor, Tensor]


def _merge(
    a: State,
    b: State,
    share: Callable[[Tensor, Tensor], Tensor] = lambda a, b: b,
    sign: float = 1.0,
    squares: Callable[[Tensor, Tensor, Tensor], Tensor] = lambda d, a, share: d * d * a * share,
) -> State:
    """Merge two states, with a fault in b's share, the mean's sign or what the squares gain."""
    weight = a[0] + b[0]
    delta, of_b = b[1] - a[1], share(a[0], b[0]) / weight
    merged = (weight, a[1] + sign * delta * of_b, a[2] + b[2] + squares(delta, a[0], of_b))
    empty, zero = weight == 0, torch.zeros_like(weight)
    return tuple(torch.where(empty, zero, one) for one in merged)  # type: ignore[return-value]


_GAIN = "What merging adds to the squares is delta * delta * a.weight * b.weight / weight: "
_MERGES: tuple[tuple[str, Callable[[State, State], State]], ...] = (
    (
        "The merged mean goes away from b: it is a.mean + delta * share.",
        functools.partial(_merge, sign=-1.0),
    ),
    (
        "The share is a's: the mean moves towards b by b.weight / weight.",
        functools.partial(_merge, share=lambda a, b: a),
    ),
    (
        "The share is one half, whatever the weights are: it is b.weight / weight.",
        functools.partial(_merge, share=lambda a, b: (a + b) / 2),
    ),
    (
        f"{_GAIN}it is taken away here.",
        functools.partial(_merge, squares=lambda d, a, share: -d * d * a * share),
    ),
    (
        f"{_GAIN}the last two factors are missing.",
        functools.partial(_merge, squares=lambda d, a, share: d * d * a),
    ),
    (
        f"{_GAIN}a.weight is missing.",
        functools.partial(_merge, squares=lambda d, a, share: d * d * share),
    ),
    (
        f"{_GAIN}delta is not squared.",
        functools.partial(_merge, squares=lambda d, a, share: d * a * share),
    ),
    (
        f"{_GAIN}the last factors are added.",
        functools.partial(_merge, squares=lambda d, a, share: d * d * a + share),
    ),
)


def _merged(x: Tensor, w: Tensor, merge: Callable[[State, State], State]) -> Tensor:
    """Each row's variance by the lanes of a warp: they merge their columns, then one another."""
    over = -x.shape[1] % LANES
    columns = torch.nn.functional.pad(x, (0, over)).view(len(x), -1, LANES)
    shares = torch.nn.functional.pad(w, (0, over)).view(-1, LANES)
    zero = torch.zeros(len(x), LANES, dtype=x.dtype)
    state: State = (zero, zero, zero)
    for step in range(columns.shape[1]):
        state = merge(state, (shares[step].expand_as(zero), columns[:, step], zero))
    lane = torch.arange(LANES)
    for offset in (16, 8, 4, 2, 1):
        weight, mean, squares = state
        other = lane ^ offset
        state = merge(state, (weight[:, other], mean[:, other], squares[:, other]))
    return (state[2] / state[0])[:, 0]


def _models(case: Case) -> Iterator[tuple[str, Tensor]]:
    x, w = (tensor.double() for tensor in case.tensors.values())
    n = x.shape[1]
    total, mean, squares = _weighed(x, w)
    variance = squares / total
    yield "The squares are not divided by the sum of the weights.", squares
    yield "The squares are divided by the number of columns, not by the weights' sum.", squares / n
    yield "w is left out: each column counts once.", x.var(-1, correction=0)
    yield "That is the standard deviation: leave the root away.", variance.sqrt()
    yield "That is the mean of the row.", mean
    yield (
        "The squares of every state are 0 or added up alone: merging two means that differ adds "
        "delta² times a.weight * b.weight / weight.",
        torch.zeros_like(variance),
    )
    lanes = torch.arange(n) % 32
    own = [_weighed(x[:, lanes == lane], w[lanes == lane]) for lane in range(min(n, 32))]
    yield (
        "The lanes' squares are added up, but not what lies between their means: merging adds "
        "delta² times a.weight * b.weight / weight.",
        torch.stack([part[2] for part in own]).sum(0) / total,
    )
    for by in (total, own[0][0]):
        yield "That is the state of lane 0 alone: the lanes' states are lost.", own[0][2] / by
    for offset in (16, 8, 4, 2, 1):
        kept = lanes & offset == 0
        part = _weighed(x[:, kept], w[kept])
        for by in (total, part[0]):
            yield (
                f"The step with offset {offset} is missing: half of the states that it should "
                "bring in are never merged.",
                part[2] / by,
            )
    kept = lanes & 10 == 0
    part = _weighed(x[:, kept], w[kept])
    for by in (total, part[0]):
        yield BY_FOURS, part[2] / by
    for what, merge in _MERGES:
        yield what, _merged(x, w, merge)
    yield "Every warp takes the first row.", variance[:1].expand(len(x))


def _nearly_0(run: Run) -> bool:
    """Whether rows of one column have a variance that is 0 but for roundings of x²."""
    x = run.case.x.double().flatten()
    output = run.output.detach().double()
    return run.case.x.shape[1] == 1 and bool((output.abs() <= 2.0**-20 * x * x).all())


def _explain(runs: list[Run]) -> str:
    if unstored(runs):
        if only_end_missing(runs):
            return "The last rows were never stored: every row needs a warp."
        return "A row that is nan was never stored: one lane of each row stores the result."
    if told := recognised(runs, _models):
        return told
    failed = [r for r in runs if r.fault is not None]
    # With few columns there a right answer's digits may be right by chance. Of one column the
    # variance is 0, and what two nearly equal numbers leave of each other need not be.
    rest = [r for r in failed if r.case.trait != _FAR]
    if len(rest) < len(failed) and all(map(_nearly_0, rest)):
        right = "nearly right" if rest else "right"
        return (
            f"It is {right} where the mean is small. With E[x²] - E[x]² two nearly equal numbers "
            "are taken from each other, and their digits cancel: merge states instead. Where "
            "columns come in one by one, the first mean has to be exactly x: take the quotient of "
            "the weights first, for delta * weight / weight is not always delta."
        )
    empty = [r for r in failed if r.case.trait == _MASKED or r.case.x.shape[1] < 32]
    if len(empty) == len(failed) and all(bool(r.output.isnan().any()) for r in empty):
        return (
            "A lane without columns has an empty state, and so has one that met none but weights "
            "of 0. Two empty ones have a weight of 0, and a quotient by it is nan: what they merge "
            "to is an empty state again."
        )
    if only_where(runs, lambda r: r.case.trait == _MASKED):
        return "It is right without zeros among the weights: a column of weight 0 has no say."
    return ""


def _few_stores(attempt: Attempt, runs: Sequence[Run]) -> None:
    """`Wrong` if the threads store more to shared memory than one state for each warp."""
    for r in runs:
        for launch in r.launches:
            if not isinstance(launch, CudaLaunch) or launch.arena is None:
                continue
            stores = [line for line in launch.arena.banks if line.kind != "load"]
            stored = sum(line.bytes_requested for line in stores)
            warps = math.prod(launch.grid) * -(-math.prod(launch.block) // 32)
            if stored > _STATE_BYTES * warps:
                worst = max(stores, key=lambda line: line.bytes_requested)
                raise Wrong(
                    f"{launch.name} stores {stored:,} bytes to shared memory on {r.case}, most in "
                    f"line {worst.line}; a state for each of its {warps:,} warps takes "
                    f"{_STATE_BYTES * warps:,}.",
                    "The lanes of a warp hand one another their states by shuffles, a number at a "
                    "time. Only what has to leave a warp goes through shared memory.",
                )
    attempt.held.append("lanes hand one another states by shuffles")


def grade_row_variance(attempt: Attempt) -> None:
    """Grade `row_variance(x, w)`: x (rows, cols), w (cols,) in fp32, (rows,), x asked for once."""
    rng = random.Random(attempt.seed)
    shapes = [(4, 64), (3, 17), (2, 1000), (5, 1), (1, 2048), (3, 300), (2, 33), (70, 40)]
    shapes.append((rng.randrange(2, 6), rng.randrange(65, 900)))
    cases = [_case(rng, *shape) for shape in shapes]
    cases += [_case(rng, 3, cols, _FAR) for cols in (500, 20)]
    cases += [_case(rng, 3, cols, _MASKED) for cols in (500, 70)]
    runs = right_in_cuda(attempt, cases, _explain, _GUARD)
    in_cuda(attempt, runs, launches=1)
    reads_once(attempt, runs, "x")

    def ideal(case: Case) -> int:
        return 4 * (case.x.numel() + sum(case.x.shape))

    within_bytes(attempt, runs, ideal, "x and w read, a variance a row written")
    within_sectors(attempt, aligned(runs), "x")
    _few_stores(attempt, runs)
    enough_programs(attempt, runs, lambda case: -(-len(case.x) // 32), "one for every 32 rows")
    compiles(attempt, (r.case for r in runs))


# A merge has a division; an H100 ran a warp a row at 0.53 of the copy.
SPEED = Speed(lambda seed: _case(random.Random(seed), 16384, 1024), 0.45)
