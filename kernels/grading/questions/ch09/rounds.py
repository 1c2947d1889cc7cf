"""09.3: where a + b + c is rounded, operator by operator and in one generated kernel."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import torch

from kernels.grading.closeness import index_of, kind_fault, told
from kernels.grading.question import Attempt, Wrong
from kernels.grading.questions.kits.numbers import answered, pair
from kernels.grading.questions.kits.wrong_models import Tensor, drawn
from kernels.registry import DTYPES, dtype_name

_PLAN = ((5, 40, "bf16"), (3, 17, "fp16"), (4, 64, "fp32"), (7, 90, "bf16"))
_Model = Callable[[Tensor, Tensor, Tensor], Tensor]


def eager(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    """Return a + b + c as two operators give it: each rounds what it writes."""
    return (a.float() + b.float()).to(a.dtype).float().add(c.float()).to(a.dtype)


def compiled(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    """Return a + b + c as the kernel gives it: in fp32, rounded once, by the store."""
    return (a.float() + b.float() + c.float()).to(a.dtype)


_TURNED = "b + c is added first. The page adds a + b, and then c: sums depend on their order."
_EAGER: tuple[tuple[str, _Model], ...] = (
    (
        "That is the fused kernel's result. Eager, a + b is a tensor in the dtype of a, and so it "
        "is rounded before c is added.",
        compiled,
    ),
    (_TURNED, lambda a, b, c: eager(b, c, a)),
    ("c is missing.", lambda a, b, c: a + b),
)
_COMPILED: tuple[tuple[str, _Model], ...] = (
    (
        "That is eager's result, rounded twice. In the kernel tmp2 is in fp32, and only the store "
        "rounds.",
        eager,
    ),
    (_TURNED, lambda a, b, c: compiled(b, c, a)),
    ("c is missing.", lambda a, b, c: a + b),
)


def _kind(output: Any, like: Tensor) -> tuple[str, str]:
    fault = kind_fault(output, like)
    if fault is None:
        return "", ""
    fp32 = type(output) is torch.Tensor and output.dtype == torch.float32
    means = "Both write y in the dtype of a: the kernel's store rounds." if fp32 else ""
    return fault, means


def _means(models: tuple[tuple[str, _Model], ...], seen: list[tuple[Any, ...]]) -> str:
    for what, model in models:
        if all(torch.equal(output, model(*given)) for output, *given in seen):
            return what
    return ""


def grade_rounds(attempt: Attempt) -> None:
    """Grade `rounded(a, b, c)`: (eager, compiled), both to the bit, in the dtype of a."""
    rng = random.Random(attempt.seed)
    seen: tuple[list[tuple[Any, ...]], ...] = ([], [])
    wrong: list[tuple[int, str]] = []
    for rows, cols, name in _PLAN:
        given = [drawn(rng, (rows, cols), DTYPES[name]) for _ in range(3)]
        both = pair(
            answered(attempt, *(t.clone() for t in given)), attempt.name, "(eager, compiled)"
        )
        where = f"a of shape {(rows, cols)} in {dtype_name(DTYPES[name])}"
        for place, (output, model) in enumerate(zip(both, (eager, compiled), strict=True)):
            part = ("eager", "compiled")[place]
            right = model(*given)
            fault, means = _kind(output, right)
            if fault:
                raise Wrong(f"{attempt.name} on {where}, {part}: {fault}.", means)
            seen[place].append((output, *given))
            off = (output != right).flatten()
            if bool(off.any()):
                first = int(off.int().argmax())
                got, should = (told(float(t.flatten()[first])) for t in (output, right))
                at = f"{part}{index_of(first, (rows, cols))}"
                wrong.append(
                    (
                        place,
                        f"{attempt.name} on {where}: {at} is {got} and should be {should} "
                        f"({int(off.sum())} of {off.numel()} elements are wrong).",
                    )
                )
    if wrong:
        place, sentence = min(wrong, key=lambda one: one[0])
        raise Wrong(sentence, _means((_EAGER, _COMPILED)[place], seen[place]))
    attempt.held.append("both to the bit: bf16, fp16, fp32")
