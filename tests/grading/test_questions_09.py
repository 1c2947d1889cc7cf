"""Each known-wrong submission of set 09 fails with the diagnosis meant for it; right ones pass."""

import pytest
import torch
import torch.nn.functional as F

from kernels.grading import check
from tests.grading import submissions_09 as s
from tests.grading import submissions_09_graphs as graphs
from tests.grading import submissions_09_router as router
from tests.grading.known_wrong import fails, given_out
from tests.grading.right import assert_all_pass_soon

EPS = 1e-6
RIGHT = {
    "09.1": (s.forecast_by_table, s.forecast_by_rule, s.forecast_by_match),
    "09.2": (router.read_by_parts, router.read_in_float64, router.read_by_rms_norm),
    "09.3": (s.rounded_by_operators, s.rounded_in_steps, s.rounded_by_hand),
    "09.4": (s.asked_by_access, s.asked_by_tensor, s.asked_by_rows),
    "09.5": (s.chain_by_launch, s.chain_by_element, s.chain_by_tensor),
    "09.6": (
        graphs.logs_tensor,
        graphs.logs_detached,
        graphs.logs_by_helper,
        graphs.logs_compiled,
        graphs.LogsWhenCalled(),
    ),
    "09.7": (
        graphs.clips_clamped,
        graphs.clips_maximum,
        graphs.clips_safe_where,
        graphs.clips_with_eps,
    ),
    "09.8": (
        graphs.steps_inside,
        graphs.steps_outside,
        graphs.steps_by_tensor,
        graphs.steps_by_mask,
    ),
    "09.9": (
        router.routed_with(),
        router.routed_with("", 16),
        router.routed_with("", 64),
        router.guarded_router,
    ),
    "09.10": (s.totals_by_call, s.totals_by_shape, s.totals_from_eager),
}


@pytest.mark.parametrize("question", RIGHT)
def test_right_answers_pass_in_less_than_five_seconds(question):
    assert_all_pass_soon(question, RIGHT[question])


def _normed(h, c, square=None):
    square = (h * h).mean(-1, keepdim=True) if square is None else square
    return h * torch.rsqrt(square + EPS) * c


@pytest.mark.parametrize(
    ("answer", "message", "means"),
    [
        (router.read_with(lambda a, b: a.sigmoid() * b), "should be", "not 1 by it"),
        (router.read_with(lambda a, b: F.silu(a)), "should be", "b is not multiplied with"),
        (router.read_with(lambda a, b: a * (-a).sigmoid() * b), "should be", "The exponent is -a"),
        (router.read_with(lambda a, b: a * b), "should be", "The gate is missing"),
        (router.read_with(lambda a, b: F.silu(b) * a), "should be", "The gate is taken of b"),
        (router.read_with(lambda a, b: F.gelu(a) * b), "should be", "That is GELU"),
        (router.read_with(lambda a, b: F.relu(a) * b), "should be", "That is ReLU"),
        (router.read_with(norm=lambda h, c: _normed(h, 1)), "should be", "c is missing"),
        (router.read_with(norm=lambda h, c: h * c), "should be", "Nothing is normalised"),
        (
            router.read_with(norm=lambda h, c: _normed(h, c, (h * h).sum(-1, keepdim=True))),
            "should be",
            "The sum is not divided",
        ),
        (
            router.read_with(norm=lambda h, c: _normed(h, c, (h * h).sum(-1, keepdim=True) / 4096)),
            "should be",
            "only where a row has as many",
        ),
        (
            router.read_with(norm=lambda h, c: _normed(h, c, (h * h).mean(-1, True) - EPS)),
            "should be",
            "eps is missing",
        ),
        (
            router.read_with(norm=lambda h, c: _normed(h, c, (h * h).mean(-1, True) + 9e-6)),
            "should be",
            "eps is 1e-5 here",
        ),
        (
            router.read_with(norm=lambda h, c: h / ((h * h).mean(-1, True).sqrt() + EPS) * c),
            "small values",
            "outside the root",
        ),
        (
            router.read_with(norm=lambda h, c: h * ((h * h).mean(-1, True) + EPS).sqrt() * c),
            "should be",
            "multiplied by the root",
        ),
        (
            router.read_with(norm=lambda h, c: h / ((h * h).mean(-1, True) + EPS) * c),
            "should be",
            "not by its root",
        ),
        (
            router.read_with(norm=lambda h, c: F.layer_norm(h, h.shape[-1:], c, None, EPS)),
            "should be",
            "The mean of h is taken away",
        ),
        (
            router.read_with(norm=lambda h, c: _normed(h, c, h.var(-1, False, keepdim=True))),
            "should be",
            "the standard deviation",
        ),
        (
            router.read_with(norm=lambda h, c: _normed(h, c, (h * h).mean(0, True))),
            "should be",
            "down the columns",
        ),
        (
            router.read_with(norm=lambda h, c: _normed(h, c, (h * h).mean())),
            "should be",
            "each row has its own",
        ),
        (router.read_with(norm=lambda h, c: _normed(h, 1 / c)), "should be", "divided by c"),
        (router.read_step_by_step, "6: y[", "rounds to 16 bits after each step"),
    ],
)
@pytest.mark.parametrize("seed", [1, 2])
def test_gated_wrong(answer, message, means, seed):
    fails(check("09.2", answer, seed=seed), message=message, means=means)


@pytest.mark.parametrize(
    ("answer", "message", "means"),
    [
        (graphs.logs_item, "falls into 2 graphs", "needs a number of a tensor in Python"),
        (graphs.logs_float, "falls into 2 graphs", "needs a number of a tensor in Python"),
        (graphs.logs_list, "falls into 2 graphs", "needs a number of a tensor in Python"),
        (graphs.logs_numpy, "falls into 2 graphs", "needs a number of a tensor in Python"),
        (graphs.logs_and_prints, "falls into 2 graphs", "prints. A graph holds operations"),
        (graphs.logs_selected, "falls into 2 graphs", "whose shape depends on values"),
        (graphs.logs_hidden, "falls into 2 graphs", "the compiler was told to skip"),
        (graphs.logs_broken, "falls into 2 graphs", "asks for the end of the graph itself"),
        (graphs.logs_branching, "falls into 2 graphs", "branches on the value of a tensor"),
        (graphs.logs_at_the_end, "", "needs a number of a tensor in Python"),
        (graphs.logs_as_configured, "sets torch._dynamo.config.capture_sc", "by itself"),
        (graphs.logs_where_asked, "appended nothing to log", "does less than it did"),
        (graphs.logs_nothing, "appended nothing to log", "does less than it did"),
        (graphs.logs_twice, "appended 2 entries", "one entry for each call"),
        (graphs.logs_returned, "it returned a tuple", "What is logged goes into log"),
        (graphs.logs_in_place, "changed its input x", "return a new tensor"),
        (graphs.logging(lambda h: (h > 0).float().mean()), "logs", "that are not 0"),
        (graphs.logging(lambda h: (h == 0).float().sum()), "logs", "the number of zeros"),
        (graphs.logging(lambda h: h.mean()), "logs", "the mean of h"),
        (graphs.logging(lambda h: h.max()), "logs", "is the share of zeros in h"),
        (graphs.logging(lambda h: h == 0), "a Tensor of shape (5, 24) to log", ""),
        (graphs.logging(lambda h: "half"), "appended a str to log", ""),
        (graphs.logging(lambda h: (h == 0).float().mean(), 1), "should be", "y is 2 · relu"),
    ],
)
def test_logs_wrong(answer, message, means):
    fails(check("09.6", answer, seed=1), message=message, means=means)


def test_an_endless_capture_is_stopped(monkeypatch):
    monkeypatch.setattr("kernels.grading.isolation.LIMIT_S", 3.0)
    result = check("09.6", graphs.endless_after_a_graph, seed=1)
    assert "did not end within" in result.message


def test_the_settings_of_a_reader_change_no_verdict():
    with torch._dynamo.config.patch(capture_scalar_outputs=True, automatic_dynamic_shapes=False):
        assert not check("09.6", graphs.logs_item, seed=1).passed
        assert check("09.8", graphs.steps_inside, seed=1).passed


def test_a_break_is_told_by_its_line():
    code = graphs.logs_item.__code__
    result = check("09.6", graphs.logs_item, seed=1)
    assert result.means.startswith(f"Line {code.co_firstlineno + 2} of the cell needs a number")


@pytest.mark.parametrize(
    ("answer", "message", "means"),
    [
        (graphs.clips_given, "2 graphs on a norm above limit", "branches on the value"),
        (graphs.clips_loop, "falls into 2 graphs", "branches on the value"),
        (graphs.clips_where, "a norm of 0: dg[0] is nan", "Both sides of a choice"),
        (graphs.clips_ratio, "a norm of 0: dg[0] is nan", "Both sides of a choice"),
        (graphs.clips_own_root, "a norm of 0: dg[0] is nan", "Both sides of a choice"),
        (graphs.clips_whole_where, "a norm of 0: dg[0] is nan", "divide by the larger of"),
        (graphs.clips_always, "a norm below limit: y[0]", "It is scaled always"),
        (graphs.clips_never, "a norm above limit: y[0]", "Nothing is clipped"),
        (graphs.clips_elements, "should be", "Each element is clamped by itself"),
        (graphs.clips_to_one, "should be", "the norm becomes limit"),
        (graphs.clips_upside_down, "should be", "limit / norm makes it shorter"),
        (graphs.clips_squares, "should be", "the sum of the squares"),
        (graphs.clips_detached, "above limit: dg[0]", "The factor is taken for a constant"),
        (graphs.clips_item, "above limit: dg[0]", "a number of Python loses that part"),
        (graphs.clips_no_gradient, "has no gradient", "something is detached"),
        (graphs.clips_in_place, "changed its input g", "g is the caller's"),
        (lambda g, limit: g / g.norm() * limit, "norm below limit: y[0]", "It is scaled always"),
        (lambda g, limit: g.sum(), "it returned the shape", ""),
    ],
)
def test_clips_wrong(answer, message, means):
    fails(check("09.7", answer, seed=1), message=message, means=means)


@pytest.mark.parametrize(
    ("answer", "message", "means"),
    [
        (graphs.steps_given, "is captured 6 times", "takes from a list or a dict"),
        (graphs.steps_by_dict, "is captured 6 times", "takes from a list or a dict"),
        (graphs.steps_by_branches, "is captured", "decides by a branch"),
        (graphs.steps_by_loop, "is captured 6 times", "counts in a loop"),
        (graphs.steps_tensor_of_one, "is captured 6 times", "found by the graph, each time"),
        (graphs.steps_item, "ends before the function does", "needs a number of a tensor"),
        (graphs.steps_first, "at step 1", "takes the rate of the first"),
        (graphs.steps_earlier, "at step 1", "that of the step before"),
        (graphs.steps_against, "at step 0", "against the gradient"),
        (graphs.steps_with(lambda step: 1.0), "at step 0", "The rate is missing"),
        (graphs.steps_with(float), "at step 0", "The number of the step is taken"),
        (graphs.steps_with(lambda step: 1 / graphs.RATES[step]), "at step 0", "it multiplies"),
        (graphs.steps_with(lambda step: 0.1), "at step 0", ""),
        (graphs.steps_in_place, "changed w", "return a new one"),
        (graphs.steps_scale_grad, "changed grad", "return a new one"),
        (lambda w, grad, step: w.double(), "it returned torch.float64", ""),
    ],
)
def test_steps_wrong(answer, message, means):
    fails(check("09.8", answer, seed=1), message=message, means=means)


@pytest.mark.parametrize(
    ("answer", "message", "means"),
    [
        (router.routed_with("no row mask"), "a load at index 850", "A tile has two edges"),
        (router.routed_with("unmasked parts"), "a store at index 34", "past its tensor"),
        (router.routed_with("zeros"), "(50, 17)", "Masked lanes enter the sum of a row"),
        (router.routed_with("no other"), "(50, 17)", "Masked lanes enter the sum of a row"),
        (router.routed_with("twice"), "x is read 2.0 times", "Each load asks memory again"),
        (router.routed_with("no maximum"), "values near 200", "No maximum is taken away"),
        (router.routed_with("one maximum"), "should be", "One sum serves all rows of a tile"),
        (router.routed_with("columns", 64), "should be", "The sum runs down the columns"),
        (router.routed_with("undivided"), "should be", "not divided by the sum of its row"),
        (router.routed_with("nan rows"), "load[0] is nan", "-inf - (-inf) is nan"),
        (router.routed_with("uniform rows"), "load[0] is", "Masked rows enter the sums"),
        (router.routed_with("rounded"), "in bf16: load[0]", "The rounded probs are summed"),
        (router.routed_with("means"), "load[0] is", "It is divided twice"),
        (router.routed_with("means", by=lambda t, e, p, k: p), "load[0] is", "A mean of means"),
        (router.routed_with(by=lambda t, e, p, k: 1), "load[0] is", "not divided by the tokens"),
        (router.routed_with(by=lambda t, e, p, k: e), "load[0] is", "divided by the experts"),
        (router.routed_with(by=lambda t, e, p, k: p), "load[0] is", "number of partial sums"),
        (router.routed_with(by=lambda t, e, p, k: p * k), "(50, 17)", "the lanes of the tiles"),
        (router.routed_with(finish="last part"), "(2100, 5)", "Only the last tile"),
        (router.routed_with(finish="first part"), "load[0] is", "the first tile alone"),
        (router.routed_with(few_columns=True), "load[16] is nan", "the grid is too small"),
        (router.routed_with("", 8), "runs 8 programs", "a row of partial sums"),
        (router.routed_with("", 128), "runs 1 program on", "most of them idle"),
        (router.routed_through_probs, "of probs back", "sum its columns there"),
        (router.routed_through_x, "2 launches read x", "sum its columns there"),
        (router.routed_and_pytorch, "ran PyTorch operators: sum", "a launch of its own"),
        (router.routed_by_atomics, "uses an atomic", "Each program stores a partial sum"),
        (router.routed_by_pytorch, "launched no Triton kernel", "a kernel of yours"),
        (router.routed_alone, "it takes the tuple (probs, load)", ""),
        (router.routed_in_16_bits, "it returned torch.float16", "the dtype that the question"),
        (router.routed_in_three, "made 3 launches", ""),
    ],
)
def test_router_wrong(answer, message, means):
    fails(check("09.9", answer, seed=1), message=message, means=means)


@pytest.mark.parametrize(
    ("question", "message", "means"),
    [
        ("09.6", "falls into 2 graphs", "needs a number of a tensor in Python"),
        ("09.7", "falls into 2 graphs", "branches on the value of a tensor"),
        ("09.8", "is captured 6 times", "takes from a list or a dict"),
    ],
)
def test_what_is_given_out_fails_by_its_faults(question, message, means):
    fails(check(question, given_out(question), seed=1), message=message, means=means)
