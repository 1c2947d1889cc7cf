"""13.10: gradients of a loss over a vocabulary, its logits never whole, in a budget of bytes."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from kernels.grading.cases import Case
from kernels.grading.checks import call
from kernels.grading.question import Attempt, Wrong
from kernels.grading.questions.kits.attention import by_trait
from kernels.grading.questions.kits.gradients import right_gradient
from kernels.grading.questions.kits.products import ProductCase
from kernels.grading.questions.kits.two_outputs import Part, are_two, graded_second
from kernels.grading.questions.kits.wrong_models import Tensor, drawn, recognised
from kernels.lab.counting.alive import Alive
from kernels.lab.counting.operands import tensors_in
from kernels.registry import Tolerance

_HUGE = "logits near 300"
COPIES = 3  # tensors of a chunk's logits that the budget holds
# Tokens, width, words, tokens of a chunk: chunks that divide the tokens, ones that don't, and one.
# A chunk's dx is smaller than its logits, and dweight larger than the budget.
_PLAN: tuple[tuple[int, int, int, int, str], ...] = (
    (24, 40, 60, 8, ""),
    (25, 48, 100, 6, ""),
    (7, 30, 33, 7, ""),
    (1, 16, 40, 1, ""),
    (40, 48, 50, 3, ""),
    (12, 32, 50, 5, _HUGE),
)
_PRODUCTS = ("mm", "addmm", "bmm", "baddbmm", "mv", "addmv", "linear", "dot")


def budget_of(words: int, tokens: int) -> int:
    """The bytes that a budget for chunks of so many tokens has, in fp32."""
    return 4 * COPIES * words * tokens


def _cases(seed: int) -> tuple[list[Case], list[Case]]:
    """The same calls twice: graded by dx, and by dweight."""
    rng = random.Random(seed)
    of_x: list[Case] = []
    of_weight: list[Case] = []
    more = (rng.randrange(20, 40), 32, rng.randrange(40, 90), rng.randrange(2, 7), "")
    for tokens, width, words, chunk, trait in (*_PLAN, more):
        x = drawn(rng, (tokens, width), torch.float32)
        weight = drawn(rng, (words, width), torch.float32) * width**-0.5
        if trait:
            x = 150 * x
        generator = torch.Generator().manual_seed(rng.getrandbits(31))
        targets = torch.randint(words, (tokens,), generator=generator)
        given = {"x": x, "weight": weight, "targets": targets}
        # A budget that is no whole number of chunks.
        options = (budget_of(words, chunk) + rng.randrange(4 * words),)
        dl = _d_logits(x.double() @ weight.double().T, targets)
        for cases, right in ((of_x, dl @ weight.double()), (of_weight, dl.T @ x.double())):
            # Logits of fp32 have an error that grows with them, and exp makes a relative one of it.
            near = 2.0**-24 * (64 + 8 * float((x @ weight.T).abs().max()) * width**0.5)
            cases.append(ProductCase(given, options, right, Tolerance(near, 2 * near), trait))
    return of_x, of_weight


def _d_logits(logits: Tensor, targets: Tensor) -> Tensor:
    """(softmax(logits) − onehot(targets)) / tokens."""
    return (torch.softmax(logits, -1) - _onehot(logits, targets)) / len(logits)


def _onehot(logits: Tensor, targets: Tensor) -> Tensor:
    return torch.nn.functional.one_hot(targets, logits.shape[-1]).double()


def _models(place: int) -> Any:
    def models(case: Case) -> Iterator[tuple[str, Tensor]]:
        x, weight = case.tensors["x"].double(), case.tensors["weight"].double()
        targets, n = case.tensors["targets"], len(x)
        logits = x @ weight.T
        p, wanted = torch.softmax(logits, -1), _onehot(logits, targets)

        def made(dl: Tensor, rows: Tensor | None = None) -> Tensor:
            if place == 0:
                return dl @ weight
            return dl.T @ x if rows is None else (dl * rows[:, None]).T @ x

        chunk = max(int(case.options[0]) // (4 * COPIES * len(weight)), 1)
        right = (p - wanted) / n
        yield (
            "It isn't divided by the number of tokens: the loss is their mean.",
            made(p - wanted),
        )
        sizes = torch.tensor([min(chunk, n - i // chunk * chunk) for i in range(n)])[:, None]
        yield (
            "A chunk is divided by its own number of tokens: the mean is over all of them.",
            made((p - wanted) / sizes),
        )
        yield (
            "The mean is over the tokens, and not over the words.",
            made((p - wanted) / len(weight)),
        )
        yield "The target is missing: 1 is taken from the softmax at its word.", made(p / n)
        yield "The softmax is missing: it is there for every word.", made(-wanted / n)
        yield "The sign is turned: it is softmax - onehot.", made(-right)
        yield "1 is added at the target's word: it is taken away.", made((p + wanted) / n)
        yield "The logits stand for their softmax.", made((logits - wanted) / n)
        down = torch.softmax(logits, 0)
        yield (
            "The softmax runs down the tokens: a token's words lie along the last axis.",
            made((down - wanted) / n),
        )
        parts = [torch.softmax(part, 0) for part in logits.split(chunk)]
        yield (
            "The softmax runs down the tokens: a token's words lie along the last axis.",
            made((torch.cat(parts) - wanted) / n),
        )
        rolled = _onehot(logits, torch.cat([targets[: min(chunk, n - i)]
                                            for i in range(0, n, chunk)]))  # fmt: skip
        yield (
            "Every chunk takes the first targets: they are cut as x is.",
            made((p - rolled) / n),
        )
        place_of = torch.arange(n)
        if place == 1:
            yield (
                "dweight is that of the last chunk: each one adds to it.",
                made(right, (place_of >= (n - 1) // chunk * chunk).double()),
            )
            yield (
                "dweight is that of the first chunk: each one adds to it.",
                made(right, (place_of < chunk).double()),
            )
            yield (
                "The tokens behind the last whole chunk are missing.",
                made(right, (place_of < max(n // chunk, 1) * chunk).double()),
            )
        else:
            model = made(right)
            model[max(n // chunk, 1) * chunk :] = torch.nan
            yield "The tokens behind the last whole chunk are missing.", model
            model = made(right)
            model[max(n // chunk, 1) * chunk :] = 0.0
            yield "The tokens behind the last whole chunk are missing.", model

    return models


_TELLS = {
    _HUGE: "It is right for moderate logits. exp of 300 is infinite in fp32: take the largest "
    "logit of a token away first, as torch.softmax does."
}


def _explain(place: int) -> Any:
    return lambda runs: recognised(runs, _models(place)) or by_trait(runs, _TELLS)


class _Products(TorchDispatchMode):
    """Count how often a tensor is an operand of a product."""

    def __init__(self, of: Tensor) -> None:
        super().__init__()
        self._of = of.untyped_storage().data_ptr()
        self.times = 0

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        given = tensors_in((args, kwargs))
        if func._schema.name.split("::")[1].rstrip("_") in _PRODUCTS and any(
            one.untyped_storage().data_ptr() == self._of for one in given
        ):
            self.times += 1
        return func(*args, **(kwargs or {}))


def _counted(attempt: Attempt, case: Case) -> tuple[int, int]:
    """The peak of a call beside what it returns, and how often weight is in a product."""
    given = {name: t.clone() for name, t in case.tensors.items()}
    with Alive(tuple(given.values())) as alive, _Products(given["weight"]) as products:
        outputs = call(attempt, *given.values(), *case.options)
    kept = {one.untyped_storage().data_ptr(): one.untyped_storage().nbytes() for one in outputs}
    return alive.peak - sum(kept.values()), products.times


def grade_chunks(attempt: Attempt) -> None:
    """Grade `loss_gradients(x, weight, targets, budget)`: (dx, dweight), never all logits."""
    of_x, of_weight = _cases(attempt.seed)
    are_two(attempt, of_x[2], "(dx, dweight)")
    part, alone = (Part(attempt.answer, place) for place in (0, 1))
    first, second = (Attempt(one, attempt.seed) for one in (part, alone))
    outside = ""
    runs = right_gradient(first, of_x, _explain(0), "dx", outside)
    graded_second(
        of_weight,
        runs,
        part.returned,
        lambda: right_gradient(second, of_weight, _explain(1), "dweight", outside),
    )
    attempt.held.append(f"dx and dweight right on {len(runs)} random inputs")
    for case in of_x:
        (tokens, width), words = case.x.shape, len(case.tensors["weight"])
        (budget,) = case.options
        peak, times = _counted(attempt, case)
        if peak > budget:
            raise Wrong(
                f"{attempt.name} has {peak:,} bytes alive at once beside its inputs and more than "
                f"its outputs have on {case}; the budget is {budget:,}. All logits are "
                f"{4 * tokens * words:,} bytes, and dweight is {4 * words * width:,}.",
                _why_so_much(peak, times, tokens, words, width, budget),
            )
        chunk = budget // (4 * COPIES * words)
        most = 2 * -(-tokens // chunk)
        if times > most:
            raise Wrong(
                f"{attempt.name} has weight in {times} products on {case}; with chunks of {chunk} "
                f"tokens, which the budget holds, {most} will do.",
                "Each chunk reads all of weight, once for its logits and once for dx. Smaller "
                "chunks than the budget allows read it more often.",
            )
    attempt.held.append("memory within the budget, and weight in two products a chunk")


def _why_so_much(peak: int, times: int, tokens: int, words: int, width: int, budget: int) -> str:
    """What a peak above the budget is made of, by its size; `times` products had weight in them."""
    logits = 4 * tokens * words
    whole = "All logits are alive at once: take a chunk of tokens, and let go of its logits."
    if times <= 2 and tokens > budget // (4 * COPIES * words):
        return whole
    if peak >= 4 * words * width > budget:
        return (
            "A temporary of dweight's size is alive: dweight += dl.T @ x makes one. "
            "dweight.addmm_(dl.T, x) adds a product where dweight lies."
        )
    if peak >= logits:
        return whole
    return (
        "Count the tensors of a chunk's logits that are alive at once: the logits, their softmax, "
        "what an operation makes of it. One written in place, as with div_, makes none."
    )
