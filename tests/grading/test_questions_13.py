"""Each known-wrong kernel of set 13 fails with the diagnosis meant for it; right answers pass."""

import pytest
import torch

from kernels.grading import check
from kernels.launch import interpreting
from tests.grading import submissions_13 as s
from tests.grading import submissions_13_kernels as kernels
from tests.grading.known_wrong import fails, given_out
from tests.grading.right import assert_all_pass_soon
from tests.grading.submissions import AlwaysEqual


def counted_by_a_launch(*args):
    """Ask the ledger of a small call in place of a prediction."""
    with interpreting() as launches:
        kernels.delta_with()(*torch.zeros(2, 1, 16, 16))
    assert len(launches) == 1
    return s.kept_bytes(*args)


RIGHT = {
    "13.1": (s.score_gradient, s.score_gradient_by_product, s.score_gradient_by_pytorch),
    "13.2": (kernels.delta_with(), kernels.delta_a_head_at_a_time),
    "13.3": (s.product_flops, s.product_flops_row_by_row, s.flops_with()),
    "13.4": (s.kept_bytes, s.kept_bytes_tensor_by_tensor, s.kept_with()),
    "13.5": (s.adders, s.adders_by_pairs, s.adders_with()),
    "13.6": (s.causal_bounds, s.causal_bounds_by_search, s.bounds_with()),
    "13.7": (kernels.dq_with(), kernels.dq_with(step=16)),
    "13.8": (kernels.dkdv_with(), kernels.dkdv_rows_first),
    "13.9": (s.dropout_fault_with(), s.dropout_fault_by_formula, s.dropout_fault_with({})),
    "13.10": (s.loss_gradients_with(""), s.loss_gradients_in_place),
}


@pytest.mark.parametrize("question", RIGHT)
def test_right_answers_pass_in_less_than_five_seconds(question):
    assert_all_pass_soon(question, RIGHT[question])


@pytest.mark.parametrize(
    ("fault", "message", "means"),
    [
        ("unmasked", "a load at index", "rows < heads * M"),
        ("narrow", "should be", "right in fp32"),
        ("o alone", "should be", "the sum of o:"),
        ("o squared", "should be", "the sum of o · o"),
        ("do squared", "should be", "the sum of do · do"),
        ("added", "should be", "each is a product"),
        ("mean", "should be", "delta is a sum"),
        ("negative", "should be", "The sign is turned"),
        ("dtype of o", "torch.float16, not", "dtype that the question"),
        ("one head", "is nan", "Only the first head's rows"),
        ("few programs", "is nan", "triton.cdiv of their number"),
    ],
)
def test_delta_wrong(fault, message, means):
    fails(check("13.2", kernels.delta_with(fault), seed=1), message=message, means=means)


# What both kernels may do; the rest that is told of ds is told by the same models.
BOTH = (
    ("first head", "should be", "begin at head * N"),
    ("late", "should be", "leaves out the tile that holds the diagonal"),
    ("all", "the budget is", "its loop"),
    ("whole steps", "should be", "behind the last whole block are missing"),
    ("no other", "masked lanes enter", "other=0.0"),
    ("tf32", "multiplies tf32", "input_precision"),
    ("no mask", "should be", "The mask does nothing"),
    ("fp32 operands", "number by number", "Operands of 16 bits stay so"),
    ("replaced", "should be", "each step adds to what was there"),
    ("no scale", "should be", "The scale is missing from"),
    ("few programs", "is nan", "were never stored"),
)


@pytest.mark.parametrize(
    ("fault", "message", "means"),
    [
        *BOTH,
        ("strict", "should be", "doesn't see its own key"),
        ("first step", "should be", "Only the first block of keys"),
        ("scores unscaled", "should be", "Scores lack their scale"),
        ("no lse", "should be", "L is taken away first"),
        ("divided", "scores near 140", "never exp(s) / exp(L)"),
        ("no delta", "should be", "delta is not taken away"),
        ("delta last", "should be", "the difference first"),
        ("no p", "should be", "lacks its factor p"),
        ("unmasked", "a load at index", "masked by < N"),
        ("upside down", "should be", "the wrong way round"),
        ("narrow", "should be", "16 bits"),
        ("scale twice", "should be", "dq has the scale twice"),
        ("turned", "should be", "The sign is turned"),
    ],
)
def test_dq_wrong(fault, message, means):
    fails(check("13.7", kernels.dq_with(fault), seed=1), message=message, means=means)


@pytest.mark.parametrize(
    ("fault", "message", "means"),
    [
        *BOTH,
        ("q for do", "dv[", "dv takes q"),
        ("dv replaced", "dv[", "each step adds to what was there"),
        ("dv scaled", "dv[", "dv has the scale in it"),
        ("atomic", "uses an atomic", "depends on its order"),
        ("changed places", "dk[", "have changed places"),
        ("ds for p", "dv[", ""),
    ],
)
def test_dkdv_wrong(fault, message, means):
    fails(check("13.8", kernels.dkdv_with(fault), seed=1), message=message, means=means)


@pytest.mark.parametrize(
    ("question", "answer", "message", "means"),
    [
        ("13.2", kernels.delta_with(rows_each=256), "runs 1 program on", "most of them idle"),
        ("13.2", kernels.delta_by_pytorch, "launched no Triton kernel", "a kernel of yours"),
        ("13.7", kernels.dq_with(block=16, step=32, warps=4), "the budget is", "its loop ends"),
        ("13.7", kernels.dq_with(block=128, step=16), "runs 1 program on", "of them idle"),
        ("13.7", kernels.dq_with(warps=4), "spills", "more warps"),
        ("13.7", kernels.dq_by_pytorch, "launched no Triton kernel", "a kernel of yours"),
        ("13.7", kernels.dq_scaled_last, "PyTorch operators: mul", "moves bytes of its own"),
        ("13.8", kernels.dkdv_with(block=16, step=32, warps=4), "the budget is", "its loop begins"),
        ("13.8", kernels.dkdv_with(block=128, step=16), "runs 1 program on", "of them idle"),
        ("13.8", kernels.dkdv_by_pytorch, "launched no Triton kernel", "a kernel of yours"),
        ("13.8", kernels.dkdv_in_two_launches, "made 2 launches", ""),
    ],
)
def test_launches_wrong(question, answer, message, means):
    fails(check(question, answer, seed=1), message=message, means=means)


@pytest.mark.parametrize(
    ("fault", "message", "means"),
    [
        ("half the chunk", "weight in 12 products", "read it more often"),
        ("all at once", "bytes alive at once", "All logits are alive"),
        ("whole chunks", "should be", "behind the last whole chunk are missing"),
        ("logits", "should be", "The logits stand for their softmax"),
        ("no maximum", "logits near 300", "the largest logit"),
        ("down", "should be", "a token's words lie along the last axis"),
        ("first targets", "should be", "they are cut as x is"),
        ("no target", "should be", "The target is missing"),
        ("added", "should be", "it is taken away"),
        ("not divided", "should be", "divided by the number of tokens"),
        ("own mean", "should be", "the mean is over all of them"),
        ("by words", "should be", "not over the words"),
        ("turned", "should be", "it is softmax - onehot"),
        ("last chunk", "dweight[", "each one adds to it"),
        ("temporary", "bytes alive at once", "dweight.addmm_"),
        ("kept logits", "bytes alive at once", "All logits are alive"),
    ],
)
def test_loss_wrong(fault, message, means):
    fails(check("13.10", s.loss_gradients_with(fault), seed=1), message=message, means=means)


def test_loss_joined_wrong():
    result = check("13.10", s.loss_gradients_parts_joined, seed=1)
    fails(result, message="bytes alive at once", means="Count the tensors of a chunk's logits")


@pytest.mark.parametrize(
    ("question", "answer", "message", "means"),
    [
        ("13.2", kernels.delta_by_the_packages_kernel, "a kernel of the package", "of your own"),
        ("13.8", kernels.dkdv_by_the_packages_kernel, "a kernel of the package", "of your own"),
        ("13.1", lambda p, dp: AlwaysEqual(), "not a torch.Tensor", ""),
        ("13.1", lambda p, dp: exit(), "raised SystemExit", ""),
        ("13.3", lambda *args: (AlwaysEqual(),) * 4, "is an int", ""),
        ("13.4", lambda *args: AlwaysEqual(), "it takes the tuple", ""),
        ("13.4", counted_by_a_launch, "launches switched_delta", "asks for a prediction"),
        ("13.5", lambda programs, group: (programs.clear(), 1), "is an int", ""),
        ("13.6", lambda *args: (True, 1, 1), "a bool; begin is an int", ""),
        ("13.7", lambda *args: args[0], "should be", None),
        ("13.8", lambda *args: args[0], "it takes the tuple (dk, dv)", ""),
        ("13.8", lambda *args: (None, None), "not a torch.Tensor", ""),
        ("13.9", lambda layer: AlwaysEqual(), "a verdict is one of", ""),
        ("13.9", lambda layer: layer.forward(3, 4), "raised ValueError", ""),
        ("13.10", lambda x, weight, targets, budget: (x, weight), "should be", None),
        ("13.10", "loss_gradients", "The answer is a str", ""),
    ],
)
def test_hostile_answers_earn_nothing(question, answer, message, means):
    fails(check(question, answer, seed=1), message=message, means=means)


@pytest.mark.parametrize(
    ("question", "message", "means"),
    [
        ("13.7", "should be", "And more: The scale is missing from dq"),
        ("13.10", "bytes alive at once", "All logits are alive"),
    ],
)
def test_what_is_given_out_fails_by_its_faults(question, message, means):
    fails(check(question, given_out(question), seed=1), message=message, means=means)
