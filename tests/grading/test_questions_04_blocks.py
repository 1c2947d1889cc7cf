"""Known-wrong answers to 04.5, 04.6, 04.7, 04.9 and 04.10: each fails with its diagnosis."""

import pytest
import torch

from kernels.grading import check
from tests.grading import submissions_04 as s
from tests.grading import submissions_04_blocks as b
from tests.grading.known_wrong import fails


@pytest.mark.parametrize(
    ("answer", "message", "means"),
    [
        (b.sum_with("given"), "a divergent __syncthreads()", "Move it to where every thread"),
        (b.sum_with("in_branch"), "thread (128, 0, 0) has returned", "Move it to where"),
        (b.sum_with("first_missing"), "thread (0, 0, 0) read on line", "stands a __syncthreads()"),
        (b.sum_with("none_in_loop"), "with no barrier between", "stands a __syncthreads()"),
        (b.sum_with("half_loop"), "should be", "The step with offset 1 is missing"),
        (b.sum_with("low_loop"), "should be", "The step with offset 128 is missing"),
        (b.sum_with("no_tree"), "should be", "what thread 0 summed"),
        (b.sum_with("overlapping"), "should be", "Row r begins at r * n_cols"),
        (b.sum_with("first_row"), "should be", "sums the first row"),
        (b.sum_with("mean"), "should be", "That is the mean"),
        (b.sum_with("interleaved"), "bank conflicts", "want different words of one bank"),
        (b.sum_with("beyond"), "at index", "col < n_cols"),
        (b.sum_with("endless"), "did not end within", "would never end"),
        (b.sum_with("right", fewer=1), "is nan", "one block for every row"),
        (b.sum_with("right", threads=128), "which no thread of the block has written", "shared"),
        (lambda x: x.sum(-1), "PyTorch's sum", "a kernel of yours"),
    ],
)
def test_row_sum_wrong(answer, message, means):
    fails(check("04.5", answer, seed=1), message=message, means=means)


@pytest.mark.parametrize(
    ("answer", "message", "means"),
    [
        (b.rms_with("tree"), "numbers to shared memory", "by shuffles, from register"),
        (b.rms_with("half"), "should be", "The step with offset 16 is missing"),
        (b.rms_with("early"), "should be", "The step with offset 1 is missing"),
        (b.rms_with("first_warp"), "should be", "the block's first warp"),
        (b.rms_with("last_warp"), "should be", "the block's last warp"),
        (b.rms_with("a_warp_a_row"), "x is read 1.5 times", None),
        (b.rms_with("no_barrier"), "with no barrier between", "stands a __syncthreads()"),
        (
            b.rms_with("all_store"),
            "which thread (0, 0, 0) also stores, on the same line; only one thread should.",
            "give each element to one thread",
        ),
        (b.rms_with("divergent"), "which has returned", "Keep it out of branches"),
        (b.rms_with("undivided"), "should be", "not divided by the number of columns"),
        (b.rms_with("no_eps"), "should be", "eps is not added"),
        (b.rms_with("root"), "should be", "1 / root"),
        (b.rms_with("plain"), "should be", "not their squares"),
        (b.rms_with("narrow"), "should be", "through 16 bits"),
        (b.rms_with("neutral"), "should be", "the neutral element of a sum is 0"),
        (lambda x, eps: torch.rsqrt((x * x).mean(-1) + eps), "PyTorch's", "a kernel of yours"),
    ],
)
def test_inverse_rms_wrong(answer, message, means):
    fails(check("04.6", answer, seed=1), message=message, means=means)


def test_of_one_number_a_row_elements_are_told_wrong():
    shown = check("04.6", b.rms_with("plain"), seed=1).pictures[0]
    assert "wrong in all 4 elements" in shown


@pytest.mark.parametrize(
    ("answer", "message", "means"),
    [
        (b.scale_with("given", b.given_grid), "with 32.0 sectors a request", "share sectors"),
        (
            b.scale_with("right", b.given_grid),
            "no thread stored it",
            "too few blocks along one axis",
        ),
        (b.scale_with("given"), "is nan", "too few blocks along one axis"),
        (b.scale_with("no_inverse"), "should be", "inverse is missing"),
        (b.scale_with("exchanged"), "at index", "inverse has a value for each row"),
        (b.scale_with("divided"), "should be", "divided by inverse"),
        (b.scale_with("row_guard"), "at index", "a guard each"),
        (b.scale_with("strict"), "is nan", "a guard is too strict"),
        (lambda x, inverse, weight: x * inverse[:, None] * weight, "PyTorch's mul", None),
    ],
)
def test_scale_wrong(answer, message, means):
    fails(check("04.7", answer, seed=1), message=message, means=means)


@pytest.mark.parametrize(
    ("answer", "message", "means"),
    [
        (b.turn_with("naive", 32), "the output takes 1,024 sectors", "share sectors"),
        (b.turn_with("other_naive", 32), "x takes 1,024 sectors", "share sectors"),
        (
            b.turn_with("unpadded"),
            "takes 32.0 passes over the banks",
            "different words of one bank",
        ),
        (b.turn_with("no_barrier"), "with no barrier between", "stands a __syncthreads()"),
        (b.turn_with("straight"), "should be", "copied in its own order"),
        (b.turn_with("right", like_view=True), "should be", "empty_like keeps them"),
        (b.turn_with("one_guard"), "which no thread of the block has", "A tile at the edge"),
        (b.turn_with("stride"), "at index", "A tile at the edge"),
        (b.turn_with("right", grid=lambda rows, cols: (1, -(-rows // 32))), "is nan", "tiles"),
        (lambda x: x.t().contiguous(), "PyTorch's clone", "a kernel of yours"),
        (
            lambda x: s.add_with("right")(x.view(-1), 0 * x.view(-1)).view(x.shape).t(),
            "strides",
            None,
        ),
    ],
)
def test_transpose_wrong(answer, message, means):
    fails(check("04.9", answer, seed=1), message=message, means=means)


ADD, RMS, SCALE = s.add_with("right"), b.rms_with("right"), b.scale_with("right")


def without_residual(x, residual, weight, eps):
    return SCALE(x, RMS(x, eps), weight)


def of_x_alone(x, residual, weight, eps):
    h = ADD(x.view(-1), residual.view(-1)).view(x.shape)
    return SCALE(h, RMS(x, eps), weight)


def scaled_x(x, residual, weight, eps):
    h = ADD(x.view(-1), residual.view(-1)).view(x.shape)
    return SCALE(x, RMS(h, eps), weight)


def other_eps(x, residual, weight, eps):
    return b.chain_of(ADD, RMS, SCALE)(x, residual, weight, 1e-5)


def in_pytorch(x, residual, weight, eps):
    h = x + residual
    return SCALE(h, RMS(h, eps), weight)


def added_twice(x, residual, weight, eps):
    h = ADD(x.view(-1), residual.view(-1)).view(x.shape)
    again = ADD(x.view(-1), residual.view(-1)).view(x.shape)
    return SCALE(again, RMS(h, eps), weight)


@pytest.mark.parametrize(
    ("answer", "message", "means"),
    [
        (without_residual, "should be", "residual is not added"),
        (of_x_alone, "should be", "takes the sum, x + residual"),
        (scaled_x, "should be", "x is scaled by it"),
        (other_eps, "should be", "eps is not passed on"),
        (in_pytorch, "ran PyTorch operators: add", "a launch of its own"),
        (added_twice, "made 4 launches", ""),
    ],
)
def test_chain_wrong(answer, message, means):
    fails(check("04.10", answer, seed=1), message=message, means=means)
