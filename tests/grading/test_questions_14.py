"""Each known-wrong kernel of set 14 fails with the diagnosis meant for it; right answers pass."""

import pytest
import torch

from kernels.grading import check
from kernels.launch import interpreting
from tests.grading import submissions_14 as s
from tests.grading import submissions_14_kernels as kernels
from tests.grading.known_wrong import fails, given_out
from tests.grading.right import assert_all_pass_soon
from tests.grading.submissions import AlwaysEqual


def counted_by_a_launch(*args):
    """Ask the ledger of a small call in place of a prediction."""
    with interpreting() as launches:
        kernels.linear_with()(*torch.zeros(2, 16, 16), torch.zeros(16), torch.zeros(16, 16))
    assert len(launches) == 1
    return s.workspace_bytes(*args)


RIGHT = {
    "14.1": (s.layer_bytes, s.layer_bytes_row_by_row, s.moved_with()),
    "14.2": (s.norm_place, s.norm_place_by_counting),
    "14.3": (s.head_strides, s.head_strides_by_a_view, s.strides_with()),
    "14.4": (s.attend, s.attend_by_pytorch, s.attend_head_by_head),
    "14.5": (s.mask_bytes, s.masks_with()),
    "14.6": (
        kernels.linear_with(),
        kernels.linear_with("begins", edges=(16, 64, 16)),
        kernels.linear_with(edges=(32, 16, 32)),
    ),
    "14.7": (
        kernels.between_with(),
        kernels.between_with("rounded h"),
        kernels.between_with_two_rows,
    ),
    "14.8": (s.workspace_bytes, s.workspace_with()),
    "14.9": (s.places, s.places_by_trying, s.places_from_the_top),
    "14.10": (s.launch_bound, s.bound_with()),
}


@pytest.mark.parametrize("question", RIGHT)
def test_right_answers_pass_in_less_than_five_seconds(question):
    assert_all_pass_soon(question, RIGHT[question])


@pytest.mark.parametrize(
    ("faults", "means"),
    [
        ({"layout": "by head"}, "(3, heads, d)"),
        ({"layout": "d first"}, "stand side by side"),
        ({"layout": "tokens as heads"}, "takes pieces of other tokens"),
        ({"layout": "k and v changed"}, "have changed places"),
        ({"mask": "turned"}, "True for what is seen"),
        ({"mask": "queries"}, "padding[:, None, None, :]"),
        ({"mask": "queries turned"}, "along the queries and is turned"),
        ({"mask": "none"}, "Padding is seen"),
        ({"mask": "both"}, "every query is answered, a padded one too"),
        ({"mask": "causal"}, "Later keys are hidden as well"),
        ({"mask": "added"}, "added to the scores as 1"),
        ({"mask": "zero"}, "exp(0) is no small weight"),
        ({"rows": "not turned"}, "the axes are turned back"),
        ({"scale": "missing"}, "lack their scale"),
        ({"scale": "of E"}, "not of all E"),
        ({"layout": "by head", "rows": "not turned"}, "And more: The output"),
        ({"mask": "turned", "scale": "missing"}, "And more: Scores"),
    ],
)
def test_heads_wrong(faults, means):
    fails(check("14.4", s.attend_with(**faults), seed=1), message="should be", means=means)


def test_a_softmax_of_nothing_wrong():
    def answer(qkv, padding, heads):
        return s.attend(qkv, ~padding, heads)

    fails(check("14.4", answer, seed=1), message="is nan", means="True for what is seen")


@pytest.mark.parametrize(
    ("fault", "message", "means"),
    [
        ("in the loop", "should be", "in every step of the K loop, and asked for as often"),
        ("bias in the loop", "should be", "The bias is added in every step"),
        ("no bias", "should be", "The bias is not added"),
        ("rounded", "takes nearly all of the sum away", "convert once, at the store"),
        ("rows of K", "a load at index", "residual lies as y does"),
        ("first rows", "should be", "counted from the matrix' first"),
        ("transposed", "should be", "The residual is read transposed"),
        ("none", "should be", "The residual is not added"),
        ("taken away", "should be", "The residual is taken away"),
        ("half residual", "should be", "The residual is rounded to fp16"),
        ("twice loaded", "residual is read 2.0 times", "stays in registers"),
    ],
)
def test_residual_wrong(fault, message, means):
    fails(check("14.6", kernels.linear_with(fault), seed=1), message=message, means=means)


@pytest.mark.parametrize(
    ("fault", "message", "means"),
    [
        ("column alone", "h[", "All rows draw the same numbers"),
        ("padded rows", "h[", "row · BLOCK + col"),
        ("dropped kept", "h[", "have changed places"),
        ("beyond", "h[", "exactly T"),
        ("no scale", "h[", "not multiplied by scale"),
        ("no bias", "h[", "The bias is not added"),
        ("bias behind", "h[", "added behind dropout"),
        ("all dropped", "h[", "Dropout is taken of the whole sum"),
        ("no residual", "h[", "The residual is not added"),
        ("changed places", "h[", "the order is (n, h)"),
        ("norm of x", "n[", "of what dropout left"),
        ("norm of the residual", "n[", "of the residual alone"),
        ("by BLOCK", "n[", "divide by the number of columns"),
        ("masked lanes", "n[", "Masked lanes enter the variance"),
        ("squares", "a mean near 1000", "subtract the mean first"),
        ("eps outside", "n[", "belongs under it"),
        ("own bias", "n[", "the norm has a bias of its own"),
        ("no weight", "n[", "Weight is not applied"),
        ("no norm", "n[", "n is h itself"),
        ("rounded sum", "nearly all of the rest away", "convert once, at the store"),
        ("rounded branch", "nearly all of the rest away", "convert once, at the store"),
        ("the norm's bias", "h[", "norm_bias is added to y"),
        ("dropped as it is", "h[", "in its place stands 0"),
        ("no norm bias", "on y of shape", "norm_bias is not added"),
        ("masked lanes", "n[", "so h - mean is -mean there"),
        ("read back", "bytes of h back", "Store it, and go on with the variable"),
    ],
)
def test_between_wrong(fault, message, means):
    fails(check("14.7", kernels.between_with(fault), seed=1), message=message, means=means)


@pytest.mark.parametrize(
    ("question", "answer", "message", "means"),
    [
        ("14.6", kernels.linear_then_added, "takes nearly all", "convert once, at the store"),
        ("14.6", kernels.linear_by_pytorch, "launched no Triton kernel", "a kernel of yours"),
        ("14.7", kernels.between_by_pytorch, "launched no Triton kernel", "a kernel of yours"),
        ("14.7", kernels.between_in_two_launches, "made 2 launches", ""),
        ("14.7", kernels.between_with_eight_rows, "runs 1 program on", "of them idle"),
    ],
)
def test_launches_wrong(question, answer, message, means):
    fails(check(question, answer, seed=1), message=message, means=means)


@pytest.mark.parametrize(
    ("question", "answer", "message", "means"),
    [
        ("14.6", kernels.linear_by_the_packages_kernel, "a function of the package", "of your own"),
        ("14.7", kernels.between_by_the_packages_kernel, "a function of the package", "own"),
        ("14.4", s.attend_by_the_package, "a function of the package", "of your own"),
        ("14.8", s.workspace_by_the_package, "a function of the package", "of your own"),
        ("14.1", lambda *args: (AlwaysEqual(),) * 2, "is an int", ""),
        ("14.2", lambda ledger: AlwaysEqual(), "it takes one of", ""),
        ("14.2", lambda ledger: [one.reads.clear() for one in ledger] and "pre", "should", None),
        ("14.3", lambda *args: exit(), "raised SystemExit", ""),
        ("14.4", lambda *args: AlwaysEqual(), "not a torch.Tensor", ""),
        ("14.4", lambda qkv, padding, heads: qkv[..., : qkv.shape[-1] // 3], "should be", None),
        ("14.5", lambda *args: (True,) * 4, "a bool; as_bool is an int", ""),
        ("14.7", lambda *args: args[0], "it takes the tuple (n, h)", ""),
        ("14.7", lambda *args: (None, None), "not a torch.Tensor", ""),
        ("14.8", counted_by_a_launch, "launches switched_linear", "asks for a prediction"),
        ("14.9", lambda launches, sizes: AlwaysEqual(), "it takes a dict", ""),
        ("14.9", lambda launches, sizes: dict.fromkeys(sizes, AlwaysEqual()), "is an int", ""),
        ("14.9", lambda launches, sizes: (sizes.clear(), {})[1], "a dict without", "x has one"),
        ("14.10", "launch_bound", "The answer is a str", ""),
    ],
)
def test_hostile_answers_earn_nothing(question, answer, message, means):
    fails(check(question, answer, seed=1), message=message, means=means)


@pytest.mark.parametrize(
    ("question", "message", "means"),
    [
        ("14.4", "should be", "And more: The output"),
        ("14.6", "a load at index", "residual lies as y does"),
    ],
)
def test_what_is_given_out_fails_by_its_faults(question, message, means):
    fails(check(question, given_out(question), seed=1), message=message, means=means)
