"""12.8: causal attention on the tensor cores, within a budget of requested bytes."""

from __future__ import annotations

import random
from collections.abc import Iterator

import torch

from kernels.grading.cases import Case, Run
from kernels.grading.checks import computed_by_kernels
from kernels.grading.compiled_checks import enough_programs
from kernels.grading.question import Attempt, Speed
from kernels.grading.questions.kits.attention import (
    CORRECTIONS,
    FALLING,
    FELL,
    HIGH,
    LOW,
    NO_MASK,
    RISING,
    AttentionCase,
    all_nan,
    attended,
    attention_case,
    attention_inputs,
    attention_models,
    by_trait,
    keys_asked_for,
    scores,
    within_requests_of,
)
from kernels.grading.questions.kits.tensor_cores import (
    all_on_tensor_cores,
    compiles_in_both,
    on_tensor_cores,
)
from kernels.grading.questions.kits.wrong_models import (
    Tensor,
    lanes_named,
    recognised,
    right_or_told,
)

_QUERIES, _KEYS, _MOST = 64, 32, 128
# Heads, N, d, dtype, what is special.
_PLAN: tuple[tuple[int, int, int, str, str], ...] = (
    (2, 64, 32, "fp32", ""),
    (3, 33, 16, "fp16", ""),
    (1, 140, 64, "fp16", ""),
    (2, 70, 32, "bf16", ""),
    (2, 1, 16, "fp32", ""),
    (1, 97, 64, "fp32", ""),
    (1, 100, 16, "fp32", LOW),
    (1, 100, 16, "fp32", HIGH),
    (1, 140, 16, "fp32", RISING),
    (1, 90, 16, "fp32", FALLING),
    (2, 64, 32, "fp32", ""),
)
_OUTSIDE = (
    "Queries take rows < N, and keys and values keys < N; a head begins at head * N * d, and ends "
    "where the next one begins."
)
_LARGE = "It is right for moderate scores: exp(s - m) takes the largest score of a row away first."
_TELLS = {
    HIGH: _LARGE,
    FALLING: FELL,
    LOW: "It is right for moderate scores. Where all lie far below 0, a masked lane with the score "
    "0 is the maximum, or a maximum starts at 0, and exp(s - m) of the others is 0. The mask "
    "belongs in front of the maximum, and m starts at -inf.",
    RISING: "It is right, or nearly, where the first block has the largest score. Where the "
    "maximum rises, what l and acc hold is multiplied by exp(m - new).",
}
_STOP = (
    "A program's last query sees keys up to its own number: its loop ends at min((tile + 1) * "
    "BLOCK_M, N). What lies behind is masked anyway, and it costs bytes and products. And a larger "
    "tile of queries walks over the keys less often."
)


_ONE_MORE = "A query sees one key too many: it sees its own and those before it."


def _below(n: int, first: int = 0) -> Tensor:
    return torch.arange(n) <= torch.arange(n)[:, None] + first


def _cases(seed: int) -> list[Case]:
    rng = random.Random(seed)
    plan = [*_PLAN, (2, rng.randrange(65, 100), 32, "fp16", "")]
    return [
        attention_case(attention_inputs(rng, (heads, n, d), n, name, trait), _below(n), trait)
        for heads, n, d, name, trait in plan
    ]


def _models(case: Case) -> Iterator[tuple[str, Tensor]]:
    q, k, v = (case.tensors[name] for name in ("q", "k", "v"))
    s, n = scores(q, k), q.shape[-2]
    yield (
        "A query doesn't see its own key: the diagonal belongs to it, keys <= rows.",
        attended(s, v, _below(n, -1)).index_fill(-2, torch.tensor([0]), torch.nan),
    )
    yield _ONE_MORE, attended(s, v, _below(n, 1))
    for edge in (16, 32, 64, 128):
        starts = torch.arange(n) // edge * edge
        within = torch.arange(n) < starts[:, None] + edge
        yield NO_MASK, attended(s, v, within)
        weights = torch.softmax(s.masked_fill(~within, -torch.inf), -1)
        yield (
            "Keys behind the diagonal are left out of acc, and their weights are still in l.",
            weights.masked_fill(~_below(n), 0.0) @ v.double(),
        )
        yield _ONE_MORE, attended(s, v, _below(n, 1) & within)
        for block in (16, 32, 64, 128):
            # What is walked over and not seen has the score 0, and beyond the last key v is 0.
            lanes = -(-(starts + edge).clamp(max=n) // block) * block
            over = torch.arange(-(-n // 128) * 128) < lanes[:, None]
            pad = (0, over.shape[1] - n)
            zeros = torch.nn.functional.pad(s.masked_fill(~_below(n), 0.0), pad)
            values = torch.nn.functional.pad(v.double(), (0, 0, *pad))
            yield CORRECTIONS["masked with 0"], attended(zeros, values, over)
        before = torch.arange(n) < starts[:, None]
        model = attended(s, v, before)
        model[..., : min(edge, n), :] = torch.nan
        yield (
            "The loop ends before the block that holds the diagonal: a program goes on to its last "
            "query's key.",
            model,
        )
        yield (
            "The mask compares a query's place in its tile with the number of a key: rows count "
            "from the head's first query.",
            attended(s, v, torch.arange(n) <= (torch.arange(n) % edge)[:, None]),
        )
    yield from attention_models(case)


def _explain(runs: list[Run]) -> str:
    if told := recognised(runs, _models) or by_trait(runs, _TELLS):
        return told
    failed = [r for r in runs if r.fault is not None]
    traits = {r.case.trait for r in failed}
    if {LOW, HIGH} <= traits <= {LOW, HIGH, FALLING} and all(r.wrong.numel() for r in failed):
        return _LARGE
    if all_nan(runs):
        return (
            "An output that is nan was never stored, or comes from 0 / 0 or from -inf - (-inf): is "
            "there a query whose maximum is -inf behind a block? m is the largest score of all "
            "blocks so far, and everybody sees key 0."
        )
    return ""


def budget(case: Case) -> int:
    """The bytes of k and v that tiles of 64 queries and 32 keys ask for, up to the diagonal."""
    heads, n, d = case.x.shape
    return 2 * int(heads) * keys_asked_for(n, _QUERIES, _KEYS, causal=True) * d * case.x.itemsize


def grade_causal(attempt: Attempt) -> None:
    """Grade `causal_attention(q, k, v)`: right, in the budget, on tensor cores, and it fits."""
    runs = right_or_told(attempt, _cases(attempt.seed), _explain, _OUTSIDE)
    computed_by_kernels(attempt, runs, launches=1)
    within_requests_of(
        attempt, runs, budget, "tiles of 64 queries and 32 keys that stop at the diagonal", _STOP
    )

    def least(case: Case) -> int:
        heads, n, _ = case.x.shape
        return int(heads) * -(-int(n) // _MOST)

    enough_programs(attempt, runs, least, "one for every 128 queries of a head")
    lanes_named(attempt, [r.case for r in runs if r.case.x.shape[1] % 16][:2])
    on_tensor_cores(attempt, [r.case for r in runs])
    all_on_tensor_cores(
        attempt,
        [r.case for r in runs],
        "Both products take operands of 16 bits: q and k as they are, and the weights converted to "
        "the dtype of v. An operand in fp32 sends the product to the ordinary cores, at a small "
        "part of the rate.",
    )
    compiles_in_both(attempt, [r.case for r in runs])


def scaled_dot_product_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """PyTorch's own, causal, of one batch."""
    given = (q[None], k[None], v[None])
    return torch.nn.functional.scaled_dot_product_attention(*given, is_causal=True)[0]


def _timed(seed: int) -> AttentionCase:
    n = 2048
    given = attention_inputs(random.Random(seed), (16, n, 64), n, "fp16")
    # Head by head: the scores of all in float64 would take half a gigabyte, several times.
    heads = [
        attention_case({name: t[head : head + 1] for name, t in given.items()}, _below(n))
        for head in range(16)
    ]
    largest = max((one.tolerance for one in heads), key=lambda one: one.largest)
    return AttentionCase(given, (), torch.cat([one.reference for one in heads]), largest)


CAUSAL_SPEED = Speed(_timed, 0.5, against=scaled_dot_product_attention)
