"""Each known-wrong submission fails with the diagnosis meant for it; right ones pass."""

from dataclasses import replace

import pytest
import torch

from kernels.grading import check
from kernels.grading.cases import Run
from kernels.grading.questions.ch02.eager_bytes import _right
from kernels.grading.questions.kits.layer_norm import _layer_norm_cases, explain_layer_norm
from kernels.lab.counting.op_ledger import count_op
from kernels.ops.norms.layernorm import OP
from tests.grading import submissions as s
from tests.grading.known_wrong import fails
from tests.grading.right import assert_all_pass_soon, assert_passes_soon

RIGHT = {
    "02.1": (s.bytes_by_operator, s.bytes_in_one_formula),
    "02.2": (s.masked_square, s.two_rows, s.with_fault("")),
    "02.3": (s.merge, s.merge_by_identity, s.merge_one_way),
}


@pytest.mark.parametrize("question", RIGHT)
def test_right_answers_pass_whatever_is_set(question):
    assert_all_pass_soon(question, RIGHT[question])


@pytest.mark.parametrize(
    ("formula", "means"),
    [
        (lambda r, c, s: _right(r, c, s) - 32 * r, "small tensors of shape (rows, 1)"),
        (lambda r, c, s: _right(r, c, s) - 2 * c * s, "Weight and bias are missing"),
        (lambda r, c, s: 48 * r * c + (12 * r * c if s == 2 else 0), "small tensors are missing"),
        (lambda r, c, s: _right(r, c, s) - 8 * r, "adding of eps"),
        (lambda r, c, s: _right(r, c, 4) - 2 * c * (4 - s), "two conversions are missing"),
        (lambda r, c, s: _right(r, c, s) + 16 * r * c * (s == 4), "for fp32 too"),
        (lambda r, c, s: 28 * r * c + 16 * r + 2 * c * s + 6 * r * c * (s == 2), "Only reads"),
        (lambda r, c, s: 20 * r * c + 16 * r + 6 * r * c * (s == 2), "Only writes"),
        (lambda r, c, s: s * (12 * r * c + 8 * r + 2 * c), "counted in x's dtype"),
        (lambda r, c, s: _right(r, c, s) + 2 * c * (4 - s), "counted as fp32"),
        (lambda r, c, s: _right(r, c, s) + 2 * (r - 1) * c * s, "once a row"),
        (lambda r, c, s: _right(r, c, s) + 4 * r * c, "square reads centred twice"),
        (lambda r, c, s: 2 * (r + 1) * c * s, "That is the ideal"),
        (lambda r, c, s: _right(r, c, s) / 1, "float"),
        (lambda r, c, s: _right(r, c, s) - 16 * r, "That is 16 bytes too few for each row. A ten"),
        (lambda r, c, s: _right(r, c, s) + c * s, "4 bytes too many for each column. Bytes"),
        (
            lambda r, c, s: 60 * r * c + 28 * r + 2 * c * s,
            "12 bytes too many for each element of x, and 4 bytes too few for each row.",
        ),
        (lambda r, c, s: _right(r, c, s) + 1, None),
    ],
)
def test_bytes_wrong(formula, means):
    fails(check("02.1", formula), means=means)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("shape", [(1, 1), (7, 33), (1, 9), (5, 1)])
def test_the_formula_behind_the_diagnoses_is_the_ledger(shape, dtype):
    assert _right(*shape, dtype.itemsize) == count_op(OP, "eager", shape, dtype).bytes_unique


def test_a_diagnosis_explains_every_run_that_failed_and_none_that_passed():
    """Where one row fails without its bias, and another without its weight, neither is told."""

    def output(case, place):
        if place == 0:
            return case.reference - case.tensors["bias"].double()
        weight = case.tensors["weight"].double()
        bias = case.tensors["bias"].double()
        return (case.reference - bias) / weight + bias

    cases = [case for case in _layer_norm_cases(0) if min(case.x.shape) > 1][:2]
    wrong = torch.ones(cases[0].x.numel(), dtype=torch.bool)

    def runs(*places):
        return [
            Run(case, output(case, place).to(case.x.dtype), None, (), "wrong", wrong)
            for case, place in zip(cases, places, strict=True)
        ]

    assert explain_layer_norm(runs(0, 0)) == "Bias is not added."
    assert explain_layer_norm(runs(1, 1)) == "Weight is not applied."
    assert explain_layer_norm(runs(0, 1)) == ""
    first, second = runs(0, 0)
    right = replace(second, output=second.case.reference, fault=None)
    assert explain_layer_norm([first, right]) == ""


@pytest.mark.parametrize(
    ("answer", "message", "means"),
    [
        (s.with_fault("given"), "(3, 17) in fp32", "Masked lanes enter the variance"),
        (s.with_fault("lanes off twice"), "(3, 17) in fp32", "these lanes add nothing"),
        (s.with_fault("block"), "(3, 17) in fp32", "divided by BLOCK"),
        (s.with_fault("twice"), "x is read 2.0 times", "Each load asks memory again"),
        (s.with_fault("one pass"), "mean near 1000", "E[x²] - E[x]²"),
        (s.with_fault("unbiased"), "should be", "divided by N - 1"),
        (s.with_fault("eps"), "(2, 128)", "eps is not used"),
        (s.with_fault("sum"), "should be", "not divided by the number of columns"),
        (s.with_fault("no root"), "should be", "not divided by the root of the variance"),
        (s.with_fault("eps outside"), "should be", "it belongs under it"),
        (s.with_fault("half"), "should be", "do the arithmetic in fp32"),
        (s.with_fault("nan"), "y[0, 0] is nan", "root of a negative number"),
        (s.with_fault("shifted"), "a store at index 256", "reaches past its tensor"),
        (s.with_fault("unmasked"), "argument 'y_ptr'", "Two programs meet"),
        (s.with_fault("last column"), "y[0, 63] is nan", "never stored"),
        (s.with_fault("last column"), "stored 1,008 of the output's 1,024 bytes", None),
        (s.with_fault("", fewer_rows=1), "y[3, 0] is nan", "never stored"),
        (s.with_fault("input"), "changed its input x", ""),
        (lambda x, w, b, eps: s.masked_square(x.clone(), w, b, eps), "operators: clone", None),
        (lambda x, w, b, eps: s.masked_square(x, w, b, eps) + 0 * x.t_().sum(), "input x", ""),
        (
            s.with_fault("", dtype=torch.float32),
            "returned torch.float32, not torch.float16",
            "torch.empty_like(x)",
        ),
        (s.with_fault("eps beside"), "should be", "the reciprocal of the root"),
        (s.with_fault("swapped"), "should be", "Weight and bias are swapped"),
        (s.with_fault("short mask"), "should be", "never stored"),
        (lambda x, w, b, eps: torch.zeros_like(x), "should be", "0 everywhere"),
        (s.pytorch_alone, "no Triton kernel: PyTorch's native_layer_norm", "a kernel of yours"),
        (s.pytorch_then_a_copy, "ran PyTorch operators: mean, sub", "a launch of its own"),
        (s.numpy_then_a_copy, "don't read all of x", ""),
        (s.own_operator, "layernorm.layer_norm, a function of the package", "of your own"),
        (s.zeroed_first, "ran PyTorch operators: zero", "torch.empty_like"),
        (s.two_launches, "2 launches (row_kernel, copy_kernel)", ""),
        (s.AlwaysEqual(), "returned a AlwaysEqual, not a torch.Tensor", ""),
        (lambda x, w, b, eps: x, "should be", "What comes back is x itself"),
        (lambda x, w, b, eps: x[:1], "(4, 64) in fp32: it returned the shape (1, 64)", ""),
        (lambda x: x, "raised TypeError", ""),
    ],
)
def test_layer_norm_wrong(answer, message, means):
    # Which input is the first to fail may depend on the draw.
    fails(check("02.2", answer, seed=1), message=message, means=means)


def broken(**how):
    return lambda a, b: s.merge(a, b, **how)


@pytest.mark.parametrize(
    ("answer", "means"),
    [
        (broken(m2_of=lambda na, ma, sa, nb, mb, sb: sa + sb), "delta² term is missing"),
        (broken(mean_of=lambda na, ma, nb, mb: (ma + mb) / 2), "without their counts"),
        (broken(mean_of=lambda na, ma, nb, mb: (ma * nb + mb * na) / (na + nb)), "swapped"),
        (
            broken(m2_of=lambda na, ma, sa, nb, mb, sb: sa + sb + (mb - ma) ** 2),
            "lacks its weight",
        ),
        (
            broken(m2_of=lambda na, ma, sa, nb, mb, sb: sa + sb + (mb - ma) ** 2 * na * nb),
            "not divided by the count",
        ),
        (s.merge_without_empty, "nothing may be divided by their count"),
        (s.merge_naively, "E[x²] - E[x]²"),
    ],
)
def test_merge_wrong(answer, means):
    fails(check("02.3", answer), means=means)


def test_a_fault_of_a_merge_explains_every_pair():
    # Of this seed's pairs one looks as if a weight were missing, by chance.
    fails(check("02.3", s.merge_naively, seed=3802783044), means="E[x²] - E[x]²")


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (lambda a, b: (1, 2.0), "it takes the tuple (count, mean, m2)"),
        (lambda a, b: (a[0] + b[0], "mean", 0.0), "returned a str as mean"),
        (lambda a, b: (s.AlwaysEqual(),) * 3, "returned a AlwaysEqual as count"),
        (lambda a, b: (10**400, 0.0, 0.0), "beyond 2**63"),
        (lambda a, b: (a[0] + b[0], float("nan"), 0.0), "returned nan as mean"),
        (lambda a, b: (a[0], a[1], a[2]), "the count is"),
        (lambda a, b: ((a[0] + b[0]) / 3 + 0.1, 0.0, 0.0), "which is no whole number"),
    ],
)
def test_merge_of_another_kind(answer, message):
    fails(check("02.3", answer), message=message, means=None)


@pytest.mark.parametrize("seed", range(8))
def test_right_answers_pass_whatever_the_seed(seed):
    assert_passes_soon("02.3", s.merge_by_identity, seed)
    assert_passes_soon("02.2", s.masked_square, seed)
