"""What questions on the tensor cores share: which products go there, and what fits both cards."""

from __future__ import annotations

import re
from collections.abc import Sequence

import torch

from kernels.grading.cases import Case
from kernels.grading.compiled_checks import built_for, compiles
from kernels.grading.question import Attempt, Wrong

# A matrix instruction and its types; a kernel's own name may say tf32 too.
_TF32 = re.compile(r"\bw?g?mma\.\S*\btf32\b")


def on_tensor_cores(attempt: Attempt, cases: Sequence[Case]) -> None:
    """`Wrong` unless launches on sm_80 multiply fp16 by matrix instructions.

    fp32 has to be multiplied as fp32: a matrix instruction would round its operands to tf32.
    """
    for dtype in (torch.float16, torch.float32):
        known = [case for case in cases if case.x.dtype == dtype]
        if not known:
            continue
        case = max(known, key=lambda one: one.x.shape[-1])
        built = [one for _, one in built_for(attempt, case, 80)]
        tf32 = any(_TF32.search(one.ptx) for one in built)
        where = f"compiled for sm_80, on {case},"
        if dtype == torch.float16 and not any(one.matrix_instruction for one in built):
            raise Wrong(
                f"{attempt.name}, {where} has no matrix instruction: it multiplies and adds number "
                "by number.",
                "The tensor cores take what tl.dot makes of two tiles of 16 bits, each edge 16 or "
                "more. A sum of products by tl.sum, or operands in fp32, go to the ordinary cores, "
                "at a small part of the rate.",
            )
        if dtype == torch.float16 and tf32:
            raise Wrong(
                f"{attempt.name}, {where} multiplies tf32, and its operands are fp16.",
                "They were converted to fp32 before tl.dot. The tensor cores take 16 bits as they "
                "are, twice as many at a time, and their sum is fp32 all the same.",
            )
        if dtype == torch.float32 and tf32:
            raise Wrong(
                f"{attempt.name}, {where} multiplies tf32: each operand is rounded to 11 bits.",
                "That is tl.dot's choice for fp32. The interpreter multiplies exactly, so no value "
                'here shows it. input_precision="ieee" asks for fp32.',
            )
    attempt.held.append("16 bits go to the tensor cores of sm_80, fp32 stays fp32")


def all_on_tensor_cores(attempt: Attempt, cases: Sequence[Case], means: str) -> None:
    """`Wrong`, with what it `means`, if a product of fp16 goes number by number on sm_80."""
    known = [case for case in cases if case.x.dtype == torch.float16]
    case = max(known, key=lambda one: int(one.x.shape[-1]))
    for launch, built in built_for(attempt, case, 80):
        # One for a score, at most, beside its exp; without the tensor cores they are d times more.
        if built.ptx.count("fma.rn.f32") > 8 * max(built.ptx.count("ex2.approx"), 1):
            raise Wrong(
                f"{launch.name}, compiled for sm_80, on {case}, multiplies and adds number by "
                "number in one of its products, or in all.",
                means,
            )


def compiles_in_both(attempt: Attempt, cases: Sequence[Case]) -> None:
    """`Wrong` unless the launches in fp16 and those in fp32 compile for both cards, and fit."""
    for dtype in (torch.float16, torch.float32):
        compiles(attempt, [case for case in cases if case.x.dtype == dtype])
    attempt.held.pop()  # it says the same of both
