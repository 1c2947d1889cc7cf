"""What questions about attention share: cases, a walk over the keys with one fault, models.

q (..., M, d), k and v (..., N, d) lie row by row, in one dtype; o (..., M, d) has it too:

    s = q · kᵀ / √d,   o = softmax(s) · v

A walk takes the keys in blocks, with a state (m, l, acc) a query: the largest score so far,
Σ exp(s − m) and Σ exp(s − m) · v.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch

from kernels.grading.cases import Case, Run
from kernels.grading.question import Attempt, Wrong
from kernels.grading.questions.kits.wrong_models import Tensor, drawn
from kernels.registry import DTYPES, Tolerance, dtype_name

FAULTS = (
    "no correction",
    "l alone",
    "acc alone",
    "scale twice",
    "masked with 0",
    "masked behind the maximum",
    "no maximum",
)
# What the keys of a case are like: their scores about so much, or rising from block to block.
LOW, HIGH, RISING, FALLING = (
    "scores near -140",
    "scores near 140",
    "scores that rise",
    "scores that fall by 280",
)
FELL = (
    "It is right where a row's maximum is never far below that of an earlier block. m is the "
    "largest score of all blocks so far, tl.maximum(m, ...): with that of a block alone the "
    "correction exp(m - new) may be infinite."
)
_BLOCKS = (16, 32, 64, 128)
_INF = float("inf")
NO_MASK = "The mask of scores does nothing: keys that a query doesn't see take part."
CORRECTIONS = {
    "no correction": "The correction is missing: when a block of keys brings a larger maximum, l "
    "and acc still belong to the old one. Both are multiplied by exp(m - new).",
    "l alone": "The correction is applied to l alone: acc is a sum about the old maximum too, and "
    "takes the same factor, exp(m - new).",
    "acc alone": "The correction is applied to acc alone: l is a sum about the old maximum too, "
    "and takes the same factor, exp(m - new).",
    "scale twice": "The scale is applied twice: scores are q · k / √d, and no more.",
    "masked with 0": "What isn't seen takes part: masked, its score is 0, and each such lane adds "
    "exp(0 - m) to l. The score of what isn't seen is -inf.",
    "l replaced": "l is that of the last block alone: a block's sum is added to what l was, times "
    "exp(m - new).",
    "acc replaced": "acc is that of the last block alone: a block's sum is added to what acc was, "
    "times exp(m - new).",
}


@dataclass(frozen=True)
class AttentionCase(Case):
    """A call that sentences name by its queries and keys; `seen` says who sees whom, (M, N)."""

    seen: Tensor | None = None

    def __str__(self) -> str:
        q, k = self.tensors["q"], self.tensors["k"]
        shape = f"q {tuple(q.shape)}, k and v {tuple(k.shape)} in {dtype_name(q.dtype)}"
        told = [f"splits = {self.options[0]}"] if self.options else []
        return ", ".join([shape, *told, *([self.trait] if self.trait else [])])


def scores(q: Tensor, k: Tensor) -> Tensor:
    """q · kᵀ / √d in float64, (..., M, N)."""
    return q.double() @ k.double().mT * q.shape[-1] ** -0.5


def attended(s: Tensor, v: Tensor, seen: Tensor | None = None) -> Tensor:
    """softmax(s) · v in float64, over the keys that are seen; 0 for who sees none."""
    if seen is not None:
        s = s.masked_fill(~seen, -_INF)
    return torch.softmax(s, -1).nan_to_num(0.0) @ v.double()


def walk(
    s: Tensor, v: Tensor, seen: Tensor, block: int, fault: str = "", single: bool = False
) -> Tensor:
    """acc / l of `walk_state`."""
    _, l, acc = walk_state(s, v, seen, block, fault, single)  # noqa: E741
    return acc / l


def walk_state(
    s: Tensor, v: Tensor, seen: Tensor, block: int, fault: str = "", single: bool = False
) -> tuple[Tensor, Tensor, Tensor]:
    """Walk over all keys in float64, `block` at a time; with a `fault` of those told above.

    s: scores (..., M, N). v: (..., N, d). seen: (..., M, N); lanes beyond N are not.
    With `single` a weight is what fp32 can hold: it may underflow, or be infinite.
    """
    over = -s.shape[-1] % block
    s = torch.nn.functional.pad(s, (0, over))
    v = torch.nn.functional.pad(v.double(), (0, 0, 0, over))
    seen = torch.nn.functional.pad(seen, (0, over)).expand(s.shape)
    if fault not in ("masked with 0", "masked behind the maximum"):
        s = s.masked_fill(~seen, -_INF)
    elif fault == "masked with 0":
        s = s.masked_fill(~seen, 0.0)
    m = s.new_full((*s.shape[:-1], 1), 0.0 if fault == "no maximum" else -_INF)
    l, acc = torch.zeros_like(m), s.new_zeros((*s.shape[:-1], v.shape[-1]))  # noqa: E741
    for start in range(0, s.shape[-1], block):
        part = slice(start, start + block)
        here = s[..., part]
        new = m if fault == "no maximum" else torch.maximum(m, here.amax(-1, keepdim=True))
        p = torch.exp(here - new.masked_fill(new == -_INF, 0.0))
        p = p.float().double() if single else p
        if fault == "masked behind the maximum":
            p = p * seen[..., part]
        # Without any correction a first block still finds a state of zeros.
        factor = torch.exp(m - new).nan_to_num(1.0)
        of_l, of_acc = factor, factor
        if fault in ("no correction", "acc alone", "l replaced"):
            of_l = torch.full_like(factor, float(fault != "l replaced"))
        if fault in ("no correction", "l alone", "acc replaced"):
            of_acc = torch.full_like(factor, float(fault != "acc replaced"))
        l = l * of_l + p.sum(-1, keepdim=True)  # noqa: E741
        acc = acc * of_acc
        acc = acc + p @ v[..., part, :]
        m = new
    return m, l, acc


def attention_tolerance(
    s: Tensor, v: Tensor, o: Tensor, dtype: torch.dtype, largest: float
) -> Tolerance:
    """Weights and outputs rounded to `dtype`, scores and sums in fp32, in any order.

    s: the scores that are seen, −inf elsewhere, and v, o, in float64; `largest`: of all scores.
    """
    terms = torch.softmax(s, -1).nan_to_num(0.0) @ v.double().abs()
    size = max(1.0, float(terms.max() / o.abs().max())) if bool(o.any()) else 1.0
    unit = torch.finfo(dtype).eps / 2
    # A score's own rounding, which exp turns into a relative one, and sums of p.
    sums = 2.0**-24 * (16 + 4 * largest) * size
    return Tolerance(unit * (1 + 2 * size) + sums, 2 * unit * (1 + 2 * size) + sums)


def attention_inputs(
    rng: random.Random, q_shape: Sequence[int], n_keys: int, name: str, trait: str = ""
) -> dict[str, Tensor]:
    """Return q of `q_shape`, k and v (..., n_keys, d) in one dtype; scores as the trait says."""
    *heads, _, d = q_shape
    dtype, near = DTYPES[name], (140.0 / d**0.5) ** 0.5
    q, k, v = (
        drawn(rng, shape, torch.float32)
        for shape in (q_shape, (*heads, n_keys, d), (*heads, n_keys, d))
    )
    if trait in (LOW, HIGH, FALLING):
        sign = torch.full((n_keys, 1), 1.0 if trait == HIGH else -1.0)
        if trait == FALLING:  # the first keys, fewer than a block has, are far above all others
            sign[: _BLOCKS[0]] = 1.0
        q, k = near + 0.05 * q, near * sign + 0.05 * k
    elif trait == RISING:
        q, k = 1 + 0.3 * q, 0.5 * k + torch.linspace(-1, 1, n_keys)[:, None]
    return {"q": q.to(dtype), "k": k.to(dtype), "v": (0.4 + v).to(dtype)}


def attention_case(
    given: dict[str, Tensor],
    seen: Tensor | None = None,
    trait: str = "",
    options: tuple[object, ...] = (),
) -> AttentionCase:
    """Return a call on q, k, v, and what else is `given`, with its reference in float64."""
    q, k, v = given["q"], given["k"], given["v"]
    s = scores(q, k)
    o = attended(s, v, seen)
    masked = s if seen is None else s.masked_fill(~seen, -_INF)
    near = attention_tolerance(masked, v, o, q.dtype, float(s.abs().max()))
    return AttentionCase(given, options, o, near, trait, seen=seen)


def walks(case: Case) -> Iterator[tuple[str, Tensor]]:
    """Walks with a fault in their corrections, their scale or the mask of their last block."""
    q, k, v = (case.tensors[name] for name in ("q", "k", "v"))
    s, seen = scores(q, k), _seen(case)
    for fault, means in CORRECTIONS.items():
        if fault == "scale twice":
            yield means, attended(s * q.shape[-1] ** -0.5, v, seen)
            continue
        for block in _BLOCKS:
            _, l, acc = walk_state(s, v, seen, block, fault, single=True)  # noqa: E741
            if fault != "masked with 0":
                acc = acc.masked_fill(~seen.any(-1)[..., None], 0.0)
            # Who sees no key has an output of 0 where that is asked for.
            for divisor in (l, l.masked_fill(l == 0, 1.0)):
                yield means, acc / divisor


def _seen(case: Case) -> Tensor:
    seen = getattr(case, "seen", None)
    shape = case.tensors["q"].shape[-2], case.tensors["k"].shape[-2]
    return torch.ones(shape, dtype=torch.bool) if seen is None else seen


def attention_models(case: Case) -> Iterator[tuple[str, Tensor]]:
    """Attention with one fault each, in float64."""
    q, k, v = (case.tensors[name] for name in ("q", "k", "v"))
    s, seen, o = scores(q, k), _seen(case), case.reference
    d, n = q.shape[-1], k.shape[-2]
    yield "Scores lack their scale: they are q · k / √d.", attended(s * d**0.5, v, seen)
    yield from walks(case)
    hidden = s.masked_fill(~seen, -_INF)
    total = torch.exp(hidden - hidden.amax(-1, keepdim=True).nan_to_num(neginf=0.0)).sum(-1)
    yield "acc is never divided by l: the weights of a row add up to 1.", o * total[..., None]
    yield "acc is multiplied by l: it is divided by it.", o * total[..., None] ** 2
    yield (
        "exp is taken to the base 2: either exp(s), or exp2 of s · log2(e).",
        attended(s * 0.6931471805599453, v, seen),
    )
    yield NO_MASK, attended(s, v)
    yield "The mask is the wrong way round.", attended(s, v, ~seen)
    for block in _BLOCKS:
        whole = n // block * block
        some = seen & (torch.arange(n) < whole)
        for empty in (0.0, torch.nan):
            yield (
                "The keys behind the last whole block are missing: the loop goes on to the last "
                "key, and its last block is masked.",
                attended(s, v, some).masked_fill(~some.any(-1)[..., None], empty),
            )
        first = seen & (torch.arange(n) < block)
        yield (
            "Only the first block of keys takes part: the loop goes on to the last one.",
            attended(s, v, first),
        )
        last = seen & (torch.arange(n) >= (n - 1) // block * block)
        yield (
            "Only the last block of keys is in the output: l and acc are added to, and m goes on "
            "to the next block as new.",
            attended(s, v, last),
        )
    if q.dim() == 3:
        yield (
            "Every head takes the keys and values of the first one: a head's begin at "
            "head * N * d.",
            attended(scores(q, k[:1]), v[:1], seen),
        )
    for edge in _BLOCKS:
        whole = o.shape[-2] // edge * edge
        # A grid of no tiles stores nothing, and one that is never empty has one.
        for rows in {whole, max(edge, whole)}:
            model = torch.full_like(o, torch.nan)
            model[..., :rows, :] = o[..., :rows, :]
            yield (
                "The last queries' outputs were never stored: the grid takes triton.cdiv of their "
                "number.",
                model,
            )


def keys_asked_for(n: int, block_m: int, block_n: int, causal: bool) -> int:
    """Return how many keys all tiles of one head's queries ask for together."""
    if not causal:
        return -(-n // block_m) * n
    ends = (min(first + block_m, n) for first in range(0, n, block_m))
    return sum(min(-(-end // block_n) * block_n, n) for end in ends)


def by_trait(runs: Sequence[Run], tells: dict[str, str]) -> str:
    """The remark for the trait that all wrong runs have, and no right one; or ""."""
    failed = {r.case.trait for r in runs if r.fault is not None}
    passed = {r.case.trait for r in runs if r.fault is None}
    if len(failed) != 1 or failed & passed or any(not r.wrong.numel() for r in _failed(runs)):
        return ""
    return tells.get(failed.pop(), "")


def _failed(runs: Sequence[Run]) -> list[Run]:
    return [r for r in runs if r.fault is not None]


def all_nan(runs: Sequence[Run]) -> bool:
    """Whether every wrong run has NaN in it, and values."""
    failed = _failed(runs)
    return bool(failed) and all(
        r.wrong.numel() > 0 and bool(r.output.isnan().any()) for r in failed
    )


def within_requests_of(
    attempt: Attempt,
    runs: Sequence[Run],
    budget: Callable[[Case], int],
    what: str,
    means: str,
    names: tuple[str, str] = ("k", "v"),
) -> None:
    """`Wrong` if the launches ask for more bytes of two tensors together than `budget(case)`."""
    one, other = names
    for r in runs:
        moved = [r.traffic(r.case.tensors[name]) for name in names]
        requested = sum(each.read_requested for each in moved)
        if requested > budget(r.case):
            raise Wrong(
                f"{attempt.name} asks for {requested:,} bytes of {one} and {other} on {r.case}; "
                f"the budget is {budget(r.case):,}: {what}. It reads {one} "
                f"{moved[0].times_read:.1f} times and {other} {moved[1].times_read:.1f} times.",
                means,
            )
    attempt.held.append(f"requested bytes of {one} and {other} within the budget: {what}")
