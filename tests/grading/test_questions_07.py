"""Each known-wrong submission fails with the diagnosis meant for it; right ones pass."""

import pytest
import torch

from kernels.grading import check
from kernels.grading.questions.ch07.designs import DESIGNS, backward_ledger, price
from kernels.grading.questions.ch07.predict import counted_backward
from kernels.grading.questions.ch07.upstream import FAULTY, right_dx
from tests.grading import submissions_07 as s
from tests.grading import submissions_07_designs as designs
from tests.grading import submissions_07_reuse as reuse
from tests.grading import submissions_07_sums as sums
from tests.grading.known_wrong import fails, given_out
from tests.grading.right import assert_all_pass_soon

RIGHT = {
    "07.1": (s.bytes_by_launch, s.bytes_by_tensor, s.bytes_by_columns),
    "07.2": (s.upstream_by_parts, s.upstream_by_cubes, s.upstream_by_least_squares),
    "07.3": (s.layer_norm_dx_with(""), s.tiled_layer_norm_dx, s.expanded_layer_norm_dx),
    "07.4": (s.rms_norm_dx_with(""), s.tiled_rms_norm_dx, s.expanded_rms_norm_dx),
    "07.5": (sums.parts_with(""), sums.row_by_row, sums.one_tile),
    "07.6": (sums.dweight_with(""), sums.strided_dweight, sums.tiled_dweight),
    "07.7": (sums.one_pass_with(""), sums.strided_one_pass, sums.tiled_one_pass),
    "07.8": (designs.design_by_reads, designs.design_by_buffers, designs.design_by_launches),
    "07.9": (reuse.by_ages, reuse.by_distance, reuse.by_list),
}


@pytest.mark.parametrize("question", RIGHT)
def test_right_answers_pass_in_less_than_five_seconds(question):
    assert_all_pass_soon(question, RIGHT[question])


@pytest.mark.parametrize(
    ("answer", "means"),
    [
        (s.bytes_with(lambda r, n, i, p: -8 * p * n), "partial sums are missing"),
        (s.bytes_with(lambda r, n, i, p: -4 * p * n), "for weight and for bias: two buffers"),
        (s.bytes_with(lambda r, n, i, p: 2 * p * n * (i - 4)), "whatever the dtype of x is"),
        (s.bytes_with(lambda r, n, i, p: 8 * (1 - p) * n), "One row of partial sums"),
        (s.bytes_with(lambda r, n, i, p: 8 * (r - p) * n), "a row of partial sums for each row"),
        (s.bytes_with(lambda r, n, i, p: -8 * r), "statistics are missing"),
        (s.bytes_with(lambda r, n, i, p: -4 * r), "two statistics, mean and inv_std"),
        (s.bytes_with(lambda r, n, i, p: -n * i), "weight is missing"),
        (s.bytes_with(lambda r, n, i, p: (p - 1) * n * i), "weight counts once: all programs"),
        (s.bytes_with(lambda r, n, i, p: n * i), "bias is counted"),
        (s.bytes_with(lambda r, n, i, p: r * n * i), "One matrix too many"),
        (s.bytes_with(lambda r, n, i, p: -r * n * i), "One matrix is missing"),
        (s.bytes_with(None, lambda r, n, i, p: -4 * p * n - n * i), "there are dweight and dbias"),
        (s.bytes_with(None, lambda r, n, i, p: -n * i), "is written in your count"),
        (s.bytes_with(None, lambda r, n, i, p: 2 * n * (4 - i)), "have the dtype of weight"),
        (s.bytes_with(None, lambda r, n, i, p: 8 * p * n), "counted twice"),
        (s.bytes_with(None, lambda r, n, i, p: -2 * n * i), "gradients that it writes are missing"),
    ],
)
def test_bytes_wrong(answer, means):
    fails(check("07.1", answer, seed=1), message="the ledger counted", means=means)


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (lambda *args: 3, "returned an int; it takes the tuple (first, second)"),
        (lambda *args: (1, 2.5), "a float 2.5; the bytes of the second launch is an int"),
    ],
)
def test_bytes_of_another_kind(answer, message):
    fails(check("07.1", answer, seed=1), message=message, means=None)


@pytest.mark.parametrize(
    ("answer", "message", "means"),
    [
        (s.upstream_of_ones, "the right dx is 0", "g = a + b · x_hat"),
        (s.upstream_mean_of_dy, "'no mean' is off by", "g has the mean 0, not dy"),
        (s.upstream_hides_both, "'no projection' is off by", "of about 1 / √n only"),
        (s.upstream_random, "'no mean' is off by", "g is dy · weight"),
        (s.upstream_for_weight_one, "'no weight' is off by", "a number that dx doesn't see"),
        (lambda f, x, w: x.float(), "torch.float32; dy is a torch.Tensor of shape", ""),
        (lambda f, x, w: x * torch.nan, "not finite", ""),
        (lambda f, x, w: "no mean", "returned a str", ""),
    ],
)
def test_upstream_wrong(answer, message, means):
    fails(check("07.2", answer, seed=1), message=message, means=means)


@pytest.mark.parametrize(
    ("answer", "message", "means"),
    [
        (s.layer_norm_dx_with("given"), "dx[0, 0] is", "it is the mean of g · x_hat"),
        (s.layer_norm_dx_with("dy"), "should be", "it is the mean of g · x_hat"),
        (s.layer_norm_dx_with("block"), "(3, 17)", "divided by BLOCK"),
        (s.layer_norm_dx_with("no other"), "masked lanes enter", "other=0.0"),
        (s.layer_norm_dx_with("no weight"), "should be", "weight is left out"),
        (s.layer_norm_dx_with("no mean"), "should be", "mean of g is not taken away"),
        (s.layer_norm_dx_with("no projection"), "should be", "projection onto x_hat is not"),
        (s.layer_norm_dx_with("sum"), "should be", "not divided by the number of columns"),
        (s.layer_norm_dx_with("no factor"), "should be", "not multiplied by inv_std"),
        (s.layer_norm_dx_with("x"), "should be", "mean is not taken from x"),
        (s.layer_norm_dx_with("one x_hat"), "should be", ""),
        (s.layer_norm_dx_with("twice"), "x is read 2.0 times", "Each load asks memory again"),
        (s.layer_norm_dx_with("unmasked"), "index", "cols < n_cols"),
    ],
)
def test_layer_norm_dx_wrong(answer, message, means):
    fails(check("07.3", answer, seed=1), message=message, means=means)


@pytest.mark.parametrize(
    ("answer", "message", "means"),
    [
        (s.rms_norm_dx_with("centred"), "dx[0, 0] is", "That is LayerNorm's dx"),
        (s.rms_norm_dx_with("dy"), "should be", "it is the mean of g · x_hat"),
        (s.rms_norm_dx_with("block"), "(3, 17)", "divided by BLOCK"),
        (s.rms_norm_dx_with("no weight"), "should be", "weight is left out"),
        (s.rms_norm_dx_with("no projection"), "should be", "projection onto x_hat is not"),
        (s.rms_norm_dx_with("added"), "should be", "it is taken away"),
        (s.rms_norm_dx_with("sum"), "should be", "not divided by the number of columns"),
        (s.rms_norm_dx_with("no factor"), "should be", "not multiplied by inv_rms"),
        (s.rms_norm_dx_with("one x_hat"), "should be", "x stands for x_hat in both places"),
        (s.rms_norm_dx_with("half"), "should be", "It is right in fp32"),
        (s.rms_norm_dx_of_its_own, "should be", ""),
        (s.rms_norm_dx_with("no other"), "masked lanes enter", "other=0.0"),
        (s.one_program_dx, "runs 1 program on", "most of them idle"),
        (s.rms_norm_dx_by_pytorch, "launched no Triton kernel", "a kernel of yours"),
        (lambda x, dy, weight, inv_rms: dy.clone(), "should be", ""),
    ],
)
def test_rms_norm_dx_wrong(answer, message, means):
    fails(check("07.4", answer, seed=1), message=message, means=means)


@pytest.mark.parametrize(
    ("answer", "message", "means"),
    [
        (sums.parts_with("first tile"), "sums[0] is", "Only the first 16 rows"),
        (sums.parts_with("replaces"), "should be", "replaces what it should add to"),
        (sums.parts_with("rounded down"), "should be", "after the last whole tile are missing"),
        (sums.parts_with("ones"), "should be", "Masked rows enter the sums"),
        (sums.parts_with("mean"), "should be", "they are added up, and not divided"),
        (sums.parts_with("", fewer=1), "is nan", "The last columns were never stored"),
        (sums.parts_with("no row mask"), "index", "two edges"),
        (sums.parts_with("twice"), "parts is read 2.0 times", "Each load asks memory again"),
        (sums.parts_with("", cols=256), "64 columns a program at most", "take longer"),
        (sums.parts_with("", cols=4), "8 columns a program at least", "sectors of 32 bytes"),
        (sums.parts_with("no other"), "masked lanes enter", "other=0.0"),
        (lambda parts: parts.sum(0), "PyTorch's sum", "a kernel of yours"),
    ],
)
def test_sum_parts_wrong(answer, message, means):
    fails(check("07.5", answer, seed=1), message=message, means=means)


@pytest.mark.parametrize(
    ("answer", "message", "means"),
    [
        (sums.dweight_with("no factor"), "dweight[0] is", "inv_rms is left out"),
        (sums.dweight_with("dbias"), "should be", "the sum of dy alone"),
        (sums.dweight_with("one row"), "should be", "Each program took one row"),
        (sums.dweight_with("replaces"), "should be", "kept the last of its rows"),
        (sums.dweight_with("rounded down"), "should be", "rounds down"),
        (sums.dweight_with("first alone"), "should be", "partial sums of the first program alone"),
        (sums.dweight_with("no zeros"), "(3, 40)", "A program without one has partial sums"),
        (sums.dweight_with("half"), "in bf16", "before they are multiplied"),
        (sums.dweight_with("beyond"), "index", "no program has a row beyond the last"),
        (sums.dweight_with("atomic"), "uses an atomic", "in any order"),
        (sums.dweight_with("twice"), "x is read 2.0 times", "Each load asks memory again"),
        (sums.dweight_with("each row"), "the call says programs = 4", "so many rows of partial"),
        (sums.dweight_with("a program a row"), "runs 8 programs on", "share them"),
        (sums.dweight_by_half_the_programs, "runs 2 programs on", "a part of it idles"),
        (sums.finished_by_one_program, "64 columns a program at most", "take longer"),
        (sums.dweight_by_pytorch, "launched no Triton kernel", "a kernel of yours"),
    ],
)
def test_dweight_wrong(answer, message, means):
    fails(check("07.6", answer, seed=1), message=message, means=means)


@pytest.mark.parametrize(
    ("answer", "message", "means"),
    [
        (sums.three_launches, "and 2 of them read x", "can make both"),
        (sums.one_pass_with("weighted"), "dweight[0] is", "and not of g · x_hat"),
        (sums.one_pass_with("no weight"), "dx[0, 0] is", "weight is left out"),
        (sums.one_pass_with("block"), "dx[0, 0] is", "divided by BLOCK"),
        (sums.one_pass_with("no zeros"), "dweight[0] is nan", "A program without one"),
        (sums.one_pass_with("replaces"), "should be", "kept the last of its rows"),
        (sums.one_pass_with("atomic"), "uses an atomic", "in any order"),
        (sums.one_pass_with("twice"), "x is read 2.0 times", "Each load asks memory again"),
        (sums.one_pass_with("a program a row"), "the call says programs = 4", "share them"),
        (sums.the_wrong_way_round, "it returned the shape (64,), not (8, 64)", ""),
        (lambda x, dy, weight, inv_rms, programs: x, "it takes the tuple (dx, dweight)", ""),
    ],
)
def test_one_pass_wrong(answer, message, means):
    fails(check("07.7", answer, seed=1), message=message, means=means)


@pytest.mark.parametrize(
    ("answer", "message", "means"),
    [
        (designs.design_without_passes, "says 'partial sums'", "x and dy are read by both"),
        (lambda ledger: ("second reading", 0), "says 'second reading'", "reads what it writes"),
        (
            designs.design_with(designs.priced_by_distinct_bytes),
            "what the atomics ask for",
            "distinct",
        ),
        (designs.design_with(designs.priced_by_writes), "read and written", "or the writes alone"),
        (
            designs.design_with(designs.priced_by_matrices),
            "without dx asks to read",
            "leaves out inv_rms",
        ),
        (
            designs.design_with(designs.priced_by_last_launch),
            "without dx asks to read",
            "launch that w",
        ),
        (lambda ledger: ("locks", 0), "returned 'locks'; a design is one of", ""),
        (lambda ledger: "atomics", "it takes the tuple (design, price)", ""),
    ],
)
def test_design_wrong(answer, message, means):
    fails(check("07.8", answer, seed=1), message=message, means=means)


@pytest.mark.parametrize(
    ("answer", "means"),
    [
        (reuse.every_reading, "Every reading is counted"),
        (reuse.distinct, "as if the cache held everything"),
        (reuse.moved_with(renews=False), "The block that came first leaves"),
        (reuse.moved_with(oldest=False), "The newest block leaves"),
        (reuse.one_byte_less, "to its last byte still fits"),
        (reuse.moved_with(most_out=1), "more leave, until it fits"),
        (reuse.moved_with(empties=True), "All blocks leave"),
        (reuse.moved_with(in_bytes=False), "not bytes"),
    ],
)
@pytest.mark.parametrize("seed", [1, 2])
def test_a_second_reading_wrong(answer, means, seed):
    fails(check("07.9", answer, seed=seed), message="the cache asks DRAM for", means=means)


def test_a_second_reading_is_a_whole_number_and_may_change_its_list():
    fails(check("07.9", lambda readings, capacity: 1.5, seed=1), message="is an int", means=None)

    def eats(readings, capacity):
        answer = reuse.by_list(list(readings), capacity)
        readings.clear()
        return answer

    assert check("07.9", eats, seed=1).passed


@pytest.mark.parametrize("args", [(10, 48, 2, 3), (3, 5, 4, 7), (1, 1, 4, 1)])
def test_the_bytes_of_the_equation_are_those_of_the_launches(args):
    assert counted_backward(*args) == s.bytes_by_launch(*args)


def test_a_dy_of_ones_hides_two_faults_and_a_random_one_none():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(64, dtype=torch.float64, generator=generator)
    x_hat = (x - x.mean()) / x.std(correction=0)
    one = torch.ones_like(x)
    assert right_dx(one, x_hat, one).norm() < 1e-12
    shown = {name: float(f(one, x_hat, one).norm()) > 1e-12 for name, f in FAULTY.items()}
    assert shown == {"no mean": True, "no projection": False, "no weight": False}


@pytest.mark.parametrize("shape", [(2, 8), (5, 33)])
def test_right_dx_is_autograds(shape):
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(*shape, dtype=torch.float64, generator=generator, requires_grad=True)
    dy = torch.randn(*shape, dtype=torch.float64, generator=generator)
    weight = torch.rand(shape[1], dtype=torch.float64, generator=generator)
    torch.nn.functional.layer_norm(x, shape[1:], weight, eps=0.0).backward(dy)
    std = x.detach().std(-1, correction=0, keepdim=True)
    x_hat = (x.detach() - x.detach().mean(-1, keepdim=True)) / std
    for row in range(shape[0]):
        ours = right_dx(dy[row], x_hat[row], weight) / std[row]
        torch.testing.assert_close(ours, x.grad[row])


@pytest.mark.parametrize("sums_first", [False, True])
@pytest.mark.parametrize("itemsize", [2, 4])
def test_prices_are_those_of_the_page(itemsize, sums_first):
    rows, cols, programs = 9, 40, 4
    dtype = torch.float16 if itemsize == 2 else torch.float32
    ledgers = {d: backward_ledger(d, rows, cols, dtype, programs, sums_first) for d in DESIGNS}
    prices = {d: price(d, ledger) for d, ledger in ledgers.items()}
    assert prices["atomics"] == prices["partial sums"] == 8 * programs * cols
    # Each of the two programs reads inv_rms.
    assert prices["second reading"] == 2 * rows * cols * itemsize + 2 * 4 * rows
    for ledger in ledgers.values():
        told = [step.name for step in ledger] + [t.tensor for step in ledger for t in step.tensors]
        assert not [name for name in told if "sum" in name or "part" in name or "dweight" in name]


def test_the_fix_as_given_fails_by_its_faults():
    fails(check("07.3", given_out("07.3"), seed=1), message="dx[0, 0]", means="g · x_hat")
