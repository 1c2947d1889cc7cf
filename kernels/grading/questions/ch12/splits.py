"""12.9: few queries and many keys, which several programs share and a second launch merges."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator

import torch

from kernels.grading.cases import Case, Run, memory_of
from kernels.grading.checks import computed_by_kernels, within_bytes
from kernels.grading.question import Attempt, Speed, Wrong
from kernels.grading.questions.kits.attention import (
    CORRECTIONS,
    FALLING,
    FELL,
    HIGH,
    LOW,
    RISING,
    AttentionCase,
    all_nan,
    attended,
    attention_case,
    attention_inputs,
    attention_models,
    by_trait,
    scores,
    walk_state,
)
from kernels.grading.questions.kits.gradients import no_atomics
from kernels.grading.questions.kits.tensor_cores import compiles_in_both, on_tensor_cores
from kernels.grading.questions.kits.wrong_models import (
    Tensor,
    lanes_named,
    recognised,
    right_or_told,
)
from kernels.launch.interpreter import tensors_of
from kernels.registry import dtype_name

_MOST_QUERIES = 16
# Heads, M, N, d, dtype, what is special, splits: with keys that splits don't divide, and splits
# without a key.
_PLAN: tuple[tuple[int, int, int, int, str, str, int], ...] = (
    (1, 4, 160, 32, "fp32", "", 3),
    (2, 1, 130, 16, "fp16", "", 3),
    (1, 16, 100, 64, "fp16", "", 1),
    (2, 5, 190, 32, "bf16", "", 4),
    (1, 2, 20, 16, "fp32", "", 5),
    (2, 1, 1, 16, "fp16", "", 2),
    (1, 3, 90, 64, "fp32", "", 2),
    (1, 2, 160, 16, "fp32", RISING, 3),
    (1, 2, 100, 16, "fp32", HIGH, 2),
    (1, 2, 100, 16, "fp32", LOW, 2),
    (1, 2, 90, 16, "fp32", FALLING, 1),
    (1, 4, 160, 32, "fp32", "", 3),
)
_OUTSIDE = (
    "Queries take rows < M, keys and values stop at the share's end or at N, whichever comes "
    "first, and partial results begin at (head * splits + split) * M."
)
_WEIGHED = (
    "The splits' outputs are averaged. A split whose keys weigh more counts more: its share is "
    "exp(its L - the largest L), over the sum of these."
)
_TELLS = {
    FALLING: FELL,
    HIGH: "It is right for moderate scores. exp(L) of a split is infinite where scores are large: "
    "take the largest L away first, as with scores.",
    LOW: "It is right for moderate scores. exp(L) of every split is 0 where scores lie far below "
    "0: take the largest L away first, as with scores.",
    RISING: "It is right, or nearly, where all splits weigh about as much, or the first block has "
    "the largest score. A split's share of the output is exp(its L - the largest L), and within a "
    "split l and acc take exp(m - new).",
}


def _case(
    rng: random.Random, heads: int, m: int, n: int, d: int, name: str, trait: str, splits: int
) -> AttentionCase:
    return attention_case(
        attention_inputs(rng, (heads, m, d), n, name, trait), None, trait, (splits,)
    )


def _cases(seed: int) -> list[Case]:
    rng = random.Random(seed)
    plan = [*_PLAN, (1, rng.randrange(2, 9), rng.randrange(100, 200), 32, "fp16", "", 4)]
    return [_case(rng, *one) for one in plan]


def _merges(case: Case) -> Iterator[tuple[str, Tensor]]:
    q, k, v = (case.tensors[name] for name in ("q", "k", "v"))
    s, n, splits = scores(q, k), k.shape[-2], int(case.options[0])

    def over(first: int, last: int) -> tuple[Tensor, Tensor]:
        part = s[..., first:last]
        return attended(part, v[..., first:last, :]), torch.logsumexp(part, -1, keepdim=True)

    # Where a fault does no harm its model is right, so that a right output doesn't deny it.
    yield (
        "The last keys are missing: N // splits rounds down, and what is left over is nobody's.",
        over(0, max(n // splits, 1) * splits)[0],
    )
    for step in (1, 16, 32, 64, 128):
        each = math.ceil(math.ceil(n / splits) / step) * step
        shares = [over(first, min(n, first + each)) for first in range(0, n, each)]
        outputs = torch.stack([o for o, _ in shares])
        logs = torch.stack([log for _, log in shares])
        yield _WEIGHED, outputs.mean(0)
        yield _WEIGHED, outputs.sum(0) / splits
        yield "The splits' outputs are added, and not weighed: that is no mean.", outputs.sum(0)
        largest = logs.amax(0)
        weights = torch.exp(logs - largest)
        yield (
            "The shares don't add up to 1: divide by the sum of exp(its L - the largest L).",
            (outputs * weights).sum(0),
        )
        parts = [s[..., f : f + each] for f in range(0, n, each)]
        ms = torch.stack([part.amax(-1, keepdim=True) for part in parts])
        totals = torch.exp(logs - ms)
        yield (
            "The splits are weighed by l alone. Each l is about its split's own maximum: a share "
            "is l · exp(m - the largest m).",
            (outputs * totals).sum(0) / totals.sum(0),
        )
        tops = torch.exp(ms - ms.amax(0))
        yield (
            "The splits are weighed by exp(m) alone. How many keys there are and how near they "
            "come to the maximum says l: a share is l · exp(m - the largest m).",
            (outputs * tops).sum(0) / tops.sum(0),
        )
        yield (
            "The first share of the keys alone is in the output: either all splits take it, where "
            "a split's begins at its number times the share, or the second launch merges no other.",
            shares[0][0],
        )
        last = shares[-1][0] if len(shares) == splits else torch.zeros_like(shares[-1][0])
        for one in (shares[-1][0], last):
            yield (
                "That is one split's output alone: the second launch merges all, and each split "
                "stores to a place of its own.",
                one,
            )
        for fault in ("no correction", "l alone", "acc alone", "masked with 0"):
            for block in (16, 32, 64):
                states = [
                    walk_state(
                        s[..., f : f + each],
                        v[..., f : f + each, :],
                        torch.ones_like(s[..., f : f + each], dtype=torch.bool),
                        block,
                        fault,
                    )
                    for f in range(0, n, each)
                ]
                ls = torch.stack([m + torch.log(total) for m, total, _ in states])
                outs = torch.stack([acc / total for _, total, acc in states])
                yield CORRECTIONS[fault], (outs * torch.softmax(ls, 0)).sum(0)
        for block in (16, 32, 64, 128):
            length = math.ceil(each / block) * block
            wide = [over(first, min(n, first + length)) for first in range(0, n, each)]
            outs, ls = torch.stack([o for o, _ in wide]), torch.stack([log for _, log in wide])
            yield (
                "Shares overlap: the last block of a share goes on into the next one's. A share is "
                "a multiple of the block, or its blocks are masked at its end.",
                (outs * torch.softmax(ls, 0)).sum(0),
            )


def _explain(runs: list[Run]) -> str:
    for models in (_merges, attention_models):
        if told := recognised(runs, models):
            return told
    if told := by_trait(runs, _TELLS):
        return told
    failed = [r for r in runs if r.fault is not None]
    if {HIGH, LOW} <= {r.case.trait for r in failed} <= {HIGH, LOW, FALLING} and all(
        r.wrong.numel() for r in failed
    ):
        return _TELLS[HIGH]
    if any(_only_empty(runs, step) for step in (1, 16, 32, 64, 128)) and all_nan(runs):
        return (
            "It is right where each split has a key. One without has l = 0 and m = -inf: 0 / 0 is "
            "nan, and so is nan times the share 0. It stores zeros, with L = -inf, since the "
            "second launch reads its part too."
        )
    if all_nan(runs):
        return (
            "An output that is nan was never stored, or comes from 0 / 0 or -inf - (-inf): does "
            "every split store its part, one without keys too?"
        )
    return ""


def _only_empty(runs: list[Run], step: int) -> bool:
    """Whether runs fail just where a split has no key, if shares are multiples of `step`."""

    def empty(case: Case) -> bool:
        n, splits = case.tensors["k"].shape[-2], int(case.options[0])
        each = math.ceil(math.ceil(n / splits) / step) * step
        return math.ceil(n / each) < splits

    return all(empty(r.case) == (r.fault is not None) for r in runs)


def _in_fp32(attempt: Attempt, runs: list[Run]) -> None:
    """`Wrong` if a launch takes a tensor of 16 bits that is none of q, k, v and o."""
    for r in runs:
        known = {memory_of(t) for t in (*r.case.tensors.values(), r.output)}
        for launch in r.launches:
            for name, value in launch.arguments.items():
                for t in tensors_of(value):
                    if memory_of(t) not in known and t.dtype.itemsize < 4:
                        raise Wrong(
                            f"{launch.name} takes {name} in {dtype_name(t.dtype)} on {r.case}; "
                            "partial results are fp32.",
                            "A split's output would be rounded once, and the merged one again, and "
                            "exp of a rounded L is off by as much as L was.",
                        )
    attempt.held.append("partial results in fp32")


def _asked_once(attempt: Attempt, runs: list[Run]) -> None:
    """`Wrong` if the launches ask for an element of k or v more than once."""
    for r in runs:
        for name in ("k", "v"):
            times = r.traffic(r.case.tensors[name]).times_read
            if times > 1:
                raise Wrong(
                    f"{name} is read {times:.1f} times on {r.case}; once will do.",
                    "Each program that walks over a key asks for it anew. No two shares have a key "
                    "in common, and all queries of a head go with a share: at most 16 of them are "
                    "one tile.",
                )
    attempt.held.append("k and v are read 1.0 times")


def _enough(attempt: Attempt, runs: list[Run]) -> None:
    """`Wrong` if the first launch has fewer programs than splits a head."""
    for r in runs:
        first, splits, heads = r.launches.seen[0], int(r.case.options[0]), len(r.case.x)
        count = math.prod(first.grid)
        if count < splits * heads:
            raise Wrong(
                f"{first.name} runs {count} program{'s' * (count != 1)} on {r.case}; the question "
                f"takes {splits * heads} at least: splits for each head.",
                "With one program a head, so many SMs work and the others idle, however many keys "
                "there are. Let several programs share them, each with a share of its own.",
            )
    attempt.held.append("as many programs share a head's keys as the call says")


def grade_splits(attempt: Attempt) -> None:
    """Grade `split_attention(q, k, v, splits)`: two launches, partial results in fp32."""
    cases = _cases(attempt.seed)
    runs = right_or_told(attempt, cases, _explain, _OUTSIDE)
    no_atomics(attempt, cases[0])
    if launched := [r for r in runs if len(r.launches)]:
        _enough(attempt, launched)
    computed_by_kernels(attempt, runs, launches=2)
    _in_fp32(attempt, runs)
    _asked_once(attempt, runs)

    def ideal(case: Case) -> int:
        inputs = sum(t.numel() * t.itemsize for t in case.tensors.values())
        queries = case.x[..., 0].numel()
        partial = 8 * int(case.options[0]) * queries * (case.x.shape[-1] + 2)
        return inputs + case.x.numel() * case.x.itemsize + partial

    within_bytes(
        attempt,
        runs,
        ideal,
        "q, k and v read, d + 2 numbers a split and query written and read in fp32, o written",
    )
    lanes_named(attempt, [r.case for r in runs if r.case.tensors["k"].shape[1] % 16][:2])
    on_tensor_cores(attempt, [case for case in cases if case.x.dtype == torch.float32])
    attempt.held[-1] = "fp32 stays fp32"
    compiles_in_both(attempt, cases)


def scaled_dot_product_attention(q: Tensor, k: Tensor, v: Tensor, splits: int = 1) -> Tensor:
    """PyTorch's own, of one batch."""
    return torch.nn.functional.scaled_dot_product_attention(q[None], k[None], v[None])[0]


SPLIT_SPEED = Speed(
    lambda seed: _case(random.Random(seed), 8, 16, 32768, 64, "fp16", "", 32),
    0.5,
    against=scaled_dot_product_attention,
)
