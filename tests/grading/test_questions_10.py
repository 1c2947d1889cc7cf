"""Each known-wrong submission of set 10 fails with the diagnosis meant for it; right ones pass."""

import pytest
import torch

from kernels.grading import check
from kernels.launch import interpreting
from tests.grading import submissions_10 as s
from tests.grading import submissions_10_gradients as gradients
from tests.grading import submissions_10_products as products
from tests.grading import submissions_10_splits as splits
from tests.grading.known_wrong import fails, given_out
from tests.grading.right import assert_all_pass_soon
from tests.grading.submissions import AlwaysEqual


class Word(str):
    """A word that equals all others."""

    def __eq__(self, other):
        return True

    __hash__ = str.__hash__


def counted_by_a_launch(m, n, k, block_m, block_n, itemsize):
    """Ask the ledger of a small product in place of a prediction."""
    x, weight = torch.zeros(2, 16, 1)
    with interpreting() as launches:
        products.product_with(tile=(16, 16, 16))(x, weight)
    assert len(launches) == 1
    return s.requests_by_formula(m, n, k, block_m, block_n, itemsize)


def totals_by_a_launch(k, block_k, dtype):
    """Let a kernel add up."""
    products.product_with()(torch.ones(16, 16), torch.ones(16, 16))
    return s.ones_by_loop(k, block_k, dtype)


RIGHT = {
    "10.1": (s.requests_by_tiles, s.requests_by_formula, s.requests_by_numpy),
    "10.2": (s.shares, s.shares_as_fractions, s.shares_by_weight),
    "10.3": (s.ones_by_loop, s.ones_by_numpy, s.ones_by_formula),
    "10.4": (
        products.product_with(tile=(32, 32, 32), warps=4, ieee=False),
        products.product_with(tile=(16, 64, 16), warps=4),
        products.turned_product,
    ),
    "10.5": (
        products.product_with(),
        products.turned_product,
        products.product_with(tile=(64, 64, 16), warps=4, stages=4),
        products.wrapping_product,
    ),
    "10.6": (s.in_groups(8), s.in_even_groups, s.along_n_in_groups),
    "10.7": (s.suspect_by_rule, s.suspect_by_numbers, s.suspect_but("", "")),
    "10.8": (
        gradients.gradients_with(),
        gradients.turned_gradients,
        gradients.gradients_with(tile=(16, 64, 64)),
    ),
    "10.9": (
        splits.product_with(),
        splits.striding_product,
        splits.product_with("ragged shares", block=256),
    ),
    "10.10": (s.roofs, s.roofs_by_fractions, s.roofs_by_search),
}


@pytest.mark.parametrize("question", RIGHT)
def test_right_answers_pass_in_less_than_five_seconds(question):
    assert_all_pass_soon(question, RIGHT[question])


@pytest.mark.parametrize(
    ("answer", "message", "means"),
    [
        (products.product_with("unmasked"), "a load at index", "there is no next one"),
        (products.product_with("x unmasked"), "'x_ptr'", "Both loads take the mask"),
        (products.product_with("weight unmasked"), "'weight_ptr'", "Both loads take the mask"),
        (products.product_with("flat mask"), "should be", "lies in the tensor lets them in"),
        (products.product_with("whole steps"), "should be", "behind the last whole step"),
        (products.product_with("ones"), "should be", "each adds 1"),
        (products.product_with("no other"), "masked lanes enter", "other=0.0"),
        (products.product_with("fp16 sum"), "should be", "nearly, for short sums"),
        (products.product_with("mean"), "should be", "it is a sum, and no mean"),
        (products.product_with("transposed"), "should be", "y is stored transposed"),
        (products.product_with("fp32 output"), "torch.float32, not", "dtype that the question"),
        (products.product_by_pytorch, "launched no Triton kernel", "a kernel of yours"),
        (products.padded_product, "PyTorch operators", "moves bytes of its own"),
    ],
)
def test_tail_wrong(answer, message, means):
    fails(check("10.4", answer, seed=1), message=message, means=means)


@pytest.mark.parametrize(
    ("answer", "message", "means"),
    [
        (products.product_with(tile=(32, 64, 32)), "the budget is", "a larger tile"),
        (products.product_with(tile=(128, 32, 32)), "the budget is", "a larger tile"),
        (products.product_with(tile=(16, 16, 16)), "the budget is", "a larger tile"),
        (products.product_with(tile=(256, 128, 16)), "runs 1 program on", "most of them idle"),
        (products.product_with(tile=(128, 128, 32)), "spills", "no byte count shows it"),
        (products.product_with(warps=4), "spills", "more warps"),
        (products.product_with(ieee=False), "multiplies tf32", "input_precision"),
        (products.product_with("converted", ieee=False), "its operands are fp16", "as they are"),
        (products.product_with("converted"), "has no matrix instruction", "operands in fp32"),
        (products.product_with("no dot"), "", None),
        (products.product_with("fp16 sum"), "should be", "nearly, for short sums"),
        (products.product_with("unmasked"), "a load at index", "A tile of x takes"),
        (products.product_with("unmasked store"), "a store at index", "A tile of x takes"),
        (products.product_with("flat mask"), "should be", "lies in the tensor lets them in"),
        (products.product_with("whole steps"), "should be", "behind the last whole step"),
        (products.product_with("first step"), "should be", "Only the first step"),
        (products.product_with("same step"), "should be", "takes the first BLOCK_K columns"),
        (products.product_with("replaced"), "should be", "Only the last step along K"),
        (products.product_with("ones"), "should be", "each adds 1"),
        (products.product_with("no other"), "masked lanes enter", "other=0.0"),
        (products.product_with("mean"), "should be", "it is a sum, and no mean"),
        (products.product_with(down=(True, False)), "is nan", "The last rows of y"),
        (products.product_with(down=(False, True)), "is nan", "The last columns of y"),
        (products.product_with(down=(True, True)), "is nan", "Edges of y"),
        (products.product_with("fp32 output"), "torch.float32, not", "dtype that the question"),
        (products.float_product, "PyTorch operators", "moves bytes of its own"),
        (products.product_by_pytorch, "launched no Triton kernel", "a kernel of yours"),
    ],
)
def test_tile_wrong(answer, message, means):
    fails(check("10.5", answer, seed=1), message=message, means=means)


@pytest.mark.parametrize(
    ("answer", "message", "means"),
    [
        (gradients.gradients_with("unmasked"), "a load at index", "The sum runs along M"),
        (gradients.gradients_with("whole steps"), "should be", "behind the last whole step"),
        (gradients.gradients_with("replaced"), "should be", "Only the last step along M"),
        (gradients.gradients_with("mean"), "should be", "a gradient is their sum"),
        (gradients.gradients_with("bias mean"), "dbias[", "a gradient is their sum"),
        (gradients.gradients_with("bias replaced"), "dbias[", "Only the last step along M"),
        (gradients.gradients_with("fp16 sum"), "dweight[", "nearly, for short sums"),
        (gradients.gradients_with("narrow bias"), "dbias[", "nearly, for short sums"),
        (gradients.gradients_with("transposed"), "dweight[", "That is xᵀ · dy"),
        (gradients.gradients_with("everybody"), "stores dbias", "One of them stores them"),
        (gradients.gradients_with("first only"), "dbias[", "Only the first 64 elements"),
        (gradients.gradients_with("atomic"), "uses an atomic", "depends on its order"),
        (gradients.gradients_with("read again"), "the budget is", "a larger tile"),
        (gradients.gradients_with(tile=(32, 32, 64)), "the budget is", "a larger tile"),
        (gradients.gradients_with(ieee=False), "multiplies tf32", "input_precision"),
        (gradients.gradients_with(warps=4), "spills", "more warps"),
        (gradients.gradients_with("no other"), "masked lanes enter", "other=0.0"),
        (gradients.in_two_launches, "made 2 launches", ""),
        (gradients.bias_by_pytorch, "PyTorch operators: sum", "moves bytes of its own"),
        (gradients.gradients_by_pytorch, "launched no Triton kernel", "a kernel of yours"),
        (gradients.alone, "it takes the tuple (dweight, dbias)", ""),
        (gradients.other_way_round, "returned the shape", ""),
        (gradients.of_a_turned_weight, "dweight[", "That is xᵀ · dy"),
    ],
)
def test_gradients_wrong(answer, message, means):
    fails(check("10.8", answer, seed=1), message=message, means=means)


@pytest.mark.parametrize(
    ("answer", "message", "means"),
    [
        (splits.whole_sum, "runs 1 program on", "a share of K for each"),
        (splits.product_with("same share"), "should be", "All splits take the same share"),
        (splits.product_with("all of K"), "should be", "Every split sums all of K"),
        (splits.product_with("past K"), "a load at index", "at the next one's begin or at K"),
        (splits.product_with("rounded down"), "should be", "K // splits rounds down"),
        (splits.product_with("overlap"), "should be", "Shares overlap"),
        (splits.product_with("empty left out"), "should be", "One without stores zeros"),
        (splits.product_with("one place"), "'parts_ptr'", "meet at one element"),
        (splits.product_with("atomic"), "uses an atomic", "depends on its order"),
        (splits.product_with("no other"), "masked lanes enter", "other=0.0"),
        (splits.product_with("", "last"), "should be", "One split's partial sums alone"),
        (splits.product_with("", "first"), "should be", "The first split's partial sums alone"),
        (splits.product_with("", "mean"), "should be", "they are added up"),
        (splits.product_with(narrow=True), "beyond 65504", "partial sums are fp32"),
        (splits.product_with(edge=32, warps=4), "the budget is", "a larger tile"),
        (splits.product_with(warps=4), "spills", "more warps"),
        (splits.product_with(block=8192), "finish_kernel runs 1 program", "most of them idle"),
        (splits.product_with(ieee=False), "multiplies tf32", "input_precision"),
        (splits.summed_by_pytorch, "PyTorch operators", "moves bytes of its own"),
        (splits.product_by_pytorch, "launched no Triton kernel", "a kernel of yours"),
    ],
)
def test_splits_wrong(answer, message, means):
    fails(check("10.9", answer, seed=1), message=message, means=means)


@pytest.mark.parametrize(
    ("answer", "message", "means"),
    [
        (s.row_major, "its waves touch", "one row of tiles after another"),
        (s.column_major, "its waves touch", "one column of tiles after another"),
        (s.along_the_group, "its waves touch", "one row of tiles after another"),
        (s.in_groups(2), "its waves touch", "in a square"),
        (s.in_groups(64), "its waves touch", "one column of tiles after another"),
        (s.turned, "there are", "changed places"),
        (s.groups_all_as_high, "there are", "its height is what is left"),
        (s.last_group_wraps, "and so is that of number", "divide by its own height"),
        (lambda number, tiles_m, tiles_n, wave: (0, 0), "and so is that of number", "its own"),
        (lambda number, tiles_m, tiles_n, wave: number, "it takes the tuple (m, n)", ""),
        (
            lambda number, tiles_m, tiles_n, wave: (number / tiles_n, number % tiles_n),
            "m is an int",
            "// divides whole numbers",
        ),
    ],
)
@pytest.mark.parametrize("seed", [1, 2])
def test_order_wrong(answer, message, means, seed):
    fails(check("10.6", answer, seed=seed), message=message, means=means)


@pytest.mark.parametrize(
    ("question", "answer", "message", "means"),
    [
        ("10.5", products.by_the_package, "a function of the package", "an answer of your own"),
        ("10.5", products.into_its_input, "changed its input weight", ""),
        (
            "10.5",
            products.once_and_for_all(),
            "the memory of an earlier call",
            "Allocate the output in the function",
        ),
        ("10.5", products.behind_the_dispatcher, "don't read all of x", ""),
        ("10.5", products.launched_and_thrown_away, "of the output's", ""),
        ("10.5", AlwaysEqual(), "not a torch.Tensor", ""),
        ("10.4", products.behind_the_dispatcher, "don't read all of x", ""),
        ("10.9", lambda x, weight, splits: exit(), "raised SystemExit", ""),
        ("10.8", lambda dy, x: (AlwaysEqual(), AlwaysEqual()), "not a torch.Tensor", ""),
        ("10.1", lambda *args: (AlwaysEqual(), AlwaysEqual()), "is an int", ""),
        ("10.1", lambda *args: (2**200, 1), "beyond 2**63", ""),
        ("10.1", counted_by_a_launch, "launches switched_kernel", "asks for a prediction"),
        ("10.3", totals_by_a_launch, "launches switched_kernel", "asks for a prediction"),
        ("10.2", lambda *args: (AlwaysEqual(),) * 3, "is a number", ""),
        ("10.3", lambda *args: AlwaysEqual(), "is a number", ""),
        ("10.6", lambda *args: (True, True), "is an int", ""),
        ("10.6", lambda *args: AlwaysEqual(), "it takes the tuple", ""),
        ("10.7", lambda tile: Word("nothing"), "it takes one of", ""),
        ("10.7", lambda tile: AlwaysEqual(), "it takes one of", ""),
        ("10.10", lambda *args: (float("inf"), 3), "is an int", "makes a float"),
        ("10.10", "leaves_roofs", "The answer is a str", ""),
    ],
)
def test_hostile_answers_earn_nothing(question, answer, message, means):
    fails(check(question, answer, seed=1), message=message, means=means)


@pytest.mark.parametrize(
    ("question", "message", "means"),
    [
        ("10.4", "a load at index", "there is no next one"),
        ("10.6", "its waves touch", "one row of tiles after another"),
        ("10.9", "runs 1 program on", "a share of K for each"),
    ],
)
def test_what_is_given_out_fails_by_its_faults(question, message, means):
    fails(check(question, given_out(question), seed=1), message=message, means=means)
