"""11.8: a norm's weight and bias folded into a product's, and what is subtracted for the mean."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from kernels.grading.closeness import kind_fault, relative_error, value_fault, wrong_elements
from kernels.grading.question import Attempt, Wrong
from kernels.grading.questions.kits.numbers import answered, several
from kernels.grading.questions.kits.wrong_models import Tensor, drawn
from kernels.registry import DTYPES, Tolerance, dtype_name

PARTS = ("folded", "sums", "bias")
_PLAN = ((24, 64, "fp16"), (17, 50, "bf16"), (64, 24, "fp32"), (9, 300, "bf16"), (40, 40, "fp16"))
_SUM = Tolerance(2.0**-18, 2.0**-17)  # an fp32 sum of some hundred terms, in any order
Given = tuple[Tensor, Tensor, Tensor, Tensor]


def fold(norm_weight: Tensor, norm_bias: Tensor, weight: Tensor, bias: Tensor) -> list[Tensor]:
    """Return W' in the dtype of `weight`, its rows' sums and b', in float64 but for their values.

    norm_weight, norm_bias (K,), weight (N, K), bias (N,), in one dtype.
    """
    # A product of two numbers of 16 bits is exact in float64, and rounded once.
    folded = (weight.double() * norm_weight.double()).to(weight.dtype)
    added = bias.double() + weight.double() @ norm_bias.double()
    return [folded.double(), folded.double().sum(1), added]


def _given(rng: random.Random, n: int, k: int, name: str) -> Given:
    dtype = DTYPES[name]
    gamma, beta = 1 + 0.5 * drawn(rng, (k,), torch.float32), drawn(rng, (k,), torch.float32)
    weight, bias = drawn(rng, (n, k), torch.float32) / k**0.5, drawn(rng, (n,), torch.float32)
    return gamma.to(dtype), 0.3 + beta.to(dtype), (0.1 + weight).to(dtype), bias.to(dtype)


_OF_ROUNDED = (
    "The sums are of weights that were not rounded. The product is made of the rounded ones: what "
    "is subtracted for the mean has to be their sum, or the difference times the mean is left in y."
)


def _models(part: str, given: Given) -> Iterator[tuple[str, Tensor]]:
    """What a part comes to with one fault, in float64."""
    gamma, beta, weight, bias = (t.double() for t in given)
    exact = weight * gamma
    rounded = exact.to(given[2].dtype).double()
    n, k = weight.shape
    if part == "folded":
        yield "norm_weight is not in it: folded[n, k] is weight[n, k] · norm_weight[k].", weight
        yield "The folded weights take norm_weight, and not norm_bias.", weight * beta
        yield "norm_weight is divided by: x̂ is multiplied by it.", weight / gamma
        if n == k:
            yield (
                "norm_weight is indexed by the row: it has an element for each column of weight.",
                weight * gamma[:, None],
            )
        yield (
            "A mean is taken from each row. That is a fold too, and not the one asked for: "
            "folded is weight · norm_weight, rounded once.",
            exact - exact.mean(1, keepdim=True),
        )
    if part == "sums":
        yield _OF_ROUNDED, exact.sum(1)
        yield (
            "Those are the sums of weight: the product is of folded, so its rows are summed.",
            (weight.sum(1)),
        )
        yield "That is the mean of a row of folded: c is its sum.", rounded.mean(1)
        yield "The sign is wrong: c is the sum, and the kernel subtracts mean · c.", -rounded.sum(1)
        if n == k:
            yield "The columns of folded are summed: c has an element for each row.", rounded.sum(0)
    if part == "bias":
        of_beta = weight @ beta
        yield "norm_bias is missing: it goes through the product, weight · norm_bias.", bias
        yield "bias is missing: b' is bias + weight · norm_bias.", of_beta
        yield (
            "norm_bias is multiplied by folded: β comes behind γ, so W as it was takes it.",
            bias + rounded @ beta,
        )
        yield (
            "norm_bias is multiplied by folded: β comes behind γ, so W as it was takes it.",
            (bias + exact @ beta),
        )
        yield "norm_weight is taken where norm_bias belongs.", bias + weight @ gamma
        yield "The sign is wrong: b' is bias + weight · norm_bias.", bias - of_beta
        if n == k:
            yield "norm_bias is added as it is: it goes through the product.", bias + beta
            yield "The product goes along the wrong axis: b'[n] sums over k.", bias + beta @ weight


def _means(part: str, told: Sequence[tuple[Given, Tensor, Tensor, bool]]) -> str:
    """The fault that explains each wrong tensor, and that no right one denies."""
    failed = [one for one in told if one[3]]
    names = dict.fromkeys(what for given, *_ in failed for what, _ in _models(part, given))
    for name in names:
        if all(_shows(part, name, *one[:3]) for one in failed) and not any(
            _denies(part, name, *one[:3]) for one in told if not one[3]
        ):
            return name
    return ""


def _near(got: Tensor) -> float:
    return 4 * torch.finfo(got.dtype).eps + 1e-5


def _shows(part: str, name: str, given: Given, got: Tensor, right: Tensor) -> bool:
    models = [model for what, model in _models(part, given) if what == name]
    # Few numbers round the other way where the reader's fp32 lies beside this float64.
    near = max(1e-5, torch.finfo(got.dtype).eps / 4)
    return any(relative_error(got, one.to(got.dtype).double()) < near for one in models)


def _denies(part: str, name: str, given: Given, got: Tensor, right: Tensor) -> bool:
    models = [model for what, model in _models(part, given) if what == name]
    return bool(models) and all(relative_error(one, right) > 4 * _near(got) for one in models)


def _of(attempt: Attempt, given: Given) -> tuple[Any, ...]:
    copies = [one.clone() for one in given]
    three = several(answered(attempt, *copies), PARTS, attempt.name)
    for name, before, after in zip(
        ("norm_weight", "norm_bias", "weight", "bias"), given, copies, strict=True
    ):
        if not torch.equal(before, after):
            raise Wrong(f"{attempt.name} changed its input {name}.")
    return three


def grade_fold(attempt: Attempt) -> None:
    """Grade `fold(norm_weight, norm_bias, weight, bias)`: (folded, sums, bias)."""
    rng = random.Random(attempt.seed)
    plan = [*_PLAN, (rng.randrange(3, 40), rng.randrange(65, 200), "fp16")]
    calls = [(one, _given(rng, *one)) for one in plan]
    answers = [_of(attempt, given) for _, given in calls]
    for place, part in enumerate(PARTS):
        told: list[tuple[Given, Tensor, Tensor, bool]] = []
        first = ""
        for ((n, k, name), given), three in zip(calls, answers, strict=True):
            right, got = fold(*given)[place], three[place]
            dtype = given[2].dtype if part == "folded" else torch.float32
            where = f"{attempt.name} with weight ({n}, {k}) in {name}: {part}"
            if fault := kind_fault(got, torch.empty(right.shape, dtype=dtype)):
                raise Wrong(f"{where}: {fault}.", _kind_means(part, got, dtype))
            near = Tolerance(0.0, 0.0) if part == "folded" else _SUM
            wrong = wrong_elements(got, right, near)
            bad = bool(wrong.any())
            told.append((given, got, right, bad))
            if bad and not first:
                first = f"{where}: {value_fault(got, right, wrong).replace('y[', f'{part}[', 1)}."
        if first:
            raise Wrong(first, _means(part, told) or _rounded_twice(part, told))
    attempt.held.append(f"folded, sums and bias right for {len(calls)} layers")


def _rounded_twice(part: str, told: Sequence[tuple[Given, Tensor, Tensor, bool]]) -> str:
    """What is told of folded weights that are off by their last digit, and of sums in 16 bits."""
    if all(relative_error(got, right) < 2 * _near(got) for _, got, right, _ in told):
        return "It is right, or nearly: multiply in fp32, and round once, to the dtype of weight."
    wide = [relative_error(got, right) < 0.02 for _, got, right, bad in told if bad]
    if part != "folded" and all(wide):
        return "It is right, or nearly: sum in fp32. In 16 bits each step of a sum is rounded."
    return ""


def _kind_means(part: str, got: Any, dtype: torch.dtype) -> str:
    if type(got) is torch.Tensor and got.dtype != dtype:
        return (
            f"folded has the dtype of weight, as the tensor cores take it; sums and bias are fp32. "
            f"Here {part} takes {dtype_name(dtype)}."
        )
    return ""
