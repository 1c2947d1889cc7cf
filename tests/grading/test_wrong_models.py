"""A fault is told where it explains every run that failed, and none that passed."""

import pytest
import torch

from kernels.grading.cases import Case, Run
from kernels.grading.questions.kits.wrong_models import recognised
from kernels.registry import Tolerance

X = torch.arange(1.0, 9.0).view(2, 4)


def case(x=X, dtype=torch.float32):
    return Case({"x": x.to(dtype)}, (), x.double() * 3, Tolerance(1e-3, 1e-3))


def models(case):
    x = case.x.double()
    yield "added", x + 3
    yield "doubled", 2 * x
    yield "first", torch.where(torch.arange(x.shape[-1]) < 4, 3 * x, torch.nan)
    yield "overflow", x * 1e6


def run(output, of=None):
    of = of or case()
    reference = of.reference.to(of.x.dtype)
    if output is None:
        return Run(of, reference, None, ())
    wrong = ~(output.double() == reference.double()).flatten()
    return Run(of, output, None, (), "wrong", wrong if output.dtype == of.x.dtype else wrong[:0])


WIDE = torch.arange(1.0, 17.0).view(2, 8)
LOST = torch.where(torch.arange(8) < 4, 3 * WIDE, torch.nan)
BIG = X.half() * 60000


@pytest.mark.parametrize(
    ("runs", "told"),
    [
        ([run(X + 3)], "added"),
        ([run(X + 3), run(2 * X)], ""),
        ([run(X + 3), run(X * 7)], ""),
        ([run(X + 3), run(None)], ""),
        ([run(2 * X), run(2 * X)], "doubled"),
        # What is left out beyond column 4 is missing in the wide one alone.
        ([run(LOST, case(WIDE)), run(None)], "first"),
        ([run(LOST, case(WIDE)), run(2 * X)], ""),
        ([run(BIG * torch.inf, case(X, torch.float16))], "overflow"),
        # The dtype is another, and the values tell the fault.
        ([run(2 * X, case(X, torch.float16))], "doubled"),
        ([run(3 * X, case(X, torch.float16))], ""),
        ([run(None)], ""),
        ([Run(case(), "text", None, (), "no tensor"), run(X + 3)], ""),
    ],
)
def test_a_fault_explains_all_runs_that_failed_and_none_that_passed(runs, told):
    assert recognised(runs, models) == told
