"""02.5: a LayerNorm of PyTorch operators, within a budget of bytes."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence

import torch

from kernels.grading.cases import Case, Run
from kernels.grading.checks import call, right_everywhere, run
from kernels.grading.diagnosis import only_in_16_bits
from kernels.grading.question import Attempt, Wrong
from kernels.grading.questions.kits.layer_norm import explain_layer_norm, norm_tolerance
from kernels.lab.counting import aten
from kernels.lab.counting.ledger import Ledger
from kernels.ops.norms.layernorm import OP
from kernels.registry import DTYPES

# The budget. Four wide passes and two narrow ones need 20 bytes an element in fp32.
AN_ELEMENT, A_ROW, A_COLUMN = 24, 64, 16
_SHAPES = ((3, 64), (2, 17), (2, 1000), (4, 8))
_NORM = re.compile(r"(layer|batch|group|instance|rms)_norm")


def budget(rows: int, cols: int) -> int:
    """Return the bytes that all operators together may move, in every dtype."""
    return AN_ELEMENT * rows * cols + A_ROW * rows + A_COLUMN * cols


def _cases(seed: int) -> list[Case]:
    rng = random.Random(seed)

    def case(rows: int, cols: int, name: str, trait: str = "", **options: float) -> Case:
        eps = options.pop("eps", 1e-5)
        drawn = rng.getrandbits(31)
        inputs = OP.inputs((rows, cols), DTYPES[name], "cpu", drawn, **options)
        reference = OP.reference(**inputs, eps=eps)
        return Case(inputs, (eps,), reference, norm_tolerance(inputs, eps), trait)

    shapes = [*_SHAPES, (rng.randrange(20, 50), rng.randrange(65, 600))]
    cases = [case(rows, cols, name) for rows, cols in shapes for name in DTYPES]
    cases.append(case(2, 128, "fp32", eps=0.5))
    for cols in (64, 1000):
        cases.append(case(3, cols, "fp32", "mean near 1000", mean=1000.0, spread=1.0))
        # Here fp16 still tells numbers 1 apart.
        cases.append(case(3, cols, "fp16", "mean near 2000", mean=2000.0, spread=2.0))
        cases.append(case(3, cols, "bf16", "mean near 30", mean=30.0))
    return cases


def _operators_alone(attempt: Attempt, runs: Sequence[Run]) -> None:
    """`Wrong` unless PyTorch's own operators, and none of its fused norms, did the work."""
    for r in runs:
        if r.launches.seen:
            names = ", ".join(dict.fromkeys(launch.name for launch in r.launches))
            raise Wrong(
                f"{attempt.name} launched a kernel ({names or 'of this package'}).",
                "Here PyTorch's operators do the work: a kernel of your own is for 02.6 and 02.7.",
            )
        for name in r.operators:
            if _NORM.search(name) or "::" in name:
                raise Wrong(
                    f"{attempt.name} called {name}, which is LayerNorm, or most of it, in one "
                    f"operator.",
                    "It is right, and in your own code you would take it. Here you are to see how "
                    "far separate operators can go: means, variances, sums and products.",
                )


def _counted(attempt: Attempt, rows: int, cols: int, dtype: torch.dtype) -> Ledger:
    """The ledger of the reader's function on fake tensors, whatever else it raises as `Wrong`."""
    shapes = ((rows, cols), (cols,), (cols,))
    tensors = [torch.empty(shape, dtype=dtype, device="meta") for shape in shapes]

    def my_layer_norm(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> None:
        call(attempt, x, weight, bias, 1e-5)

    try:
        return aten.count(my_layer_norm, *tensors)
    except Wrong as wrong:
        wrong.means = (
            "It was counted on tensors that have a shape and no data, as if they lay on a GPU: "
            "nothing may depend on the values, and every new tensor lies where x lies."
        )
        raise


def _told(ledger: Ledger, rows: int, cols: int) -> str:
    each = [f"{step.name} {step.bytes_unique / (rows * cols):.1f}" for step in ledger]
    return ", ".join(each)


def _within_budget(
    attempt: Attempt, runs: Sequence[Run], shapes: Sequence[tuple[int, int]]
) -> None:
    """`Wrong` if the operators move more bytes than the budget in any dtype."""
    per_element = []
    for name, dtype in DTYPES.items():
        ran = {r.operators for r in runs if r.case.x.dtype == dtype}
        for rows, cols in shapes:
            ledger = _counted(attempt, rows, cols, dtype)
            where = f"x of shape ({rows}, {cols}) in {name}"
            counted = tuple(step.name for step in ledger)
            if ran != {counted}:
                other = next(iter(ran - {counted}))
                raise Wrong(
                    f"{attempt.name} runs the operators {', '.join(counted)} on {where}, and "
                    f"{', '.join(other) or 'none'} on other inputs of that dtype.",
                    "What is counted has to be what computes.",
                )
            moved, most = ledger.bytes_unique, budget(rows, cols)
            if moved > most:
                each = ", ".join(f"{s.name} {s.bytes_unique / (rows * cols):.1f}" for s in ledger)
                raise Wrong(
                    f"{attempt.name} moves {moved:,} bytes on {where}, {moved / rows / cols:.1f} "
                    f"an element; the budget is {most:,}. Bytes an element, operator by "
                    f"operator: {each}.",
                    _means(ledger, rows * cols),
                )
        per_element.append(f"{moved / (rows * cols):.1f} in {name}")
    attempt.held.append(f"bytes an element: {', '.join(per_element)}")


def _means(ledger: Ledger, numel: int) -> str:
    """What a ledger beyond the budget wastes most."""
    # Every dtype has 2 bytes or more: what reads and writes less is no whole matrix.
    whole = [s.name for s in ledger if min(s.read_unique, s.write_unique) >= 2 * numel]
    conversions = whole.count("_to_copy") + whole.count("copy_")
    if len(whole) - conversions > 2:
        return (
            "More than two operators take a whole matrix to a whole matrix, conversions left out. "
            "Two are enough: one for what belongs to a row, one for weight and bias."
        )
    if conversions > 1:
        return (
            "The last conversion is a pass of its own. An operator that is given out= rounds to "
            "that tensor's dtype as it stores."
        )
    return ""


def _explain(runs: list[Run]) -> str:
    if told := explain_layer_norm(runs):
        return told
    if only_in_16_bits(runs):
        return (
            "It is right in fp32: do the arithmetic in fp32, and convert when you store. Mind the "
            "statistics: var_mean's results have the dtype of x, so in 16 bits they are rounded."
        )
    return ""


def grade_eager(attempt: Attempt) -> None:
    """Grade `lean_layer_norm(x, weight, bias, eps)`: right, operators alone, within the budget."""
    rng = random.Random(attempt.seed)
    shapes = [(rng.randrange(900, 9000), rng.randrange(1000, 9000)) for _ in range(2)]
    if hasattr(attempt.answer, "_torchdynamo_orig_callable"):
        raise Wrong(
            f"{attempt.name} is compiled: what it launches is the compiler's choice.",
            "No ledger sees into a compiled graph. Hand in the function itself.",
        )
    with torch.compiler.set_stance("force_eager"):
        cases = _cases(attempt.seed)
        # What may not be used is told before anything that is wrong with it.
        _operators_alone(attempt, [run(attempt, cases[0])])
        runs = right_everywhere(attempt, cases, _explain)
        _operators_alone(attempt, runs)
        attempt.held.append("separate operators of PyTorch, and no kernel or norm among them")
        _within_budget(attempt, runs, shapes)
