"""Each known-wrong function of set 15 fails with the diagnosis meant for it; right answers pass."""

import pytest
import torch

from kernels.grading import check
from kernels.launch import interpreting
from tests.grading import submissions_15 as s
from tests.grading import submissions_15_functions as functions
from tests.grading import submissions_15_kernels as kernels
from tests.grading.known_wrong import fails, given_out
from tests.grading.right import assert_all_pass_soon
from tests.grading.submissions import AlwaysEqual


def counted_by_a_launch(*args):
    """Ask the ledger of a small call in place of a prediction."""
    of_rows, of_cols = torch.zeros(3, 1, 16), torch.ones(16)
    with interpreting() as launches:
        kernels.normed_with()(*of_rows, of_cols, *torch.ones(2, 1), torch.tensor([3, 4]), 0.5)
    assert len(launches) == 1
    return s.kept_bytes(*args)


RIGHT = {
    "15.1": (s.kept_bytes, s.kept_tensor_by_tensor, s.kept_with()),
    "15.2": (s.kept_for_nothing_with(), s.kept_for_nothing_by_nan),
    "15.3": (
        functions.mlp_block_with(),
        functions.mlp_block_by_addmm,
        functions.mlp_block_over_y,
    ),
    "15.4": (s.peaks, s.peaks_as_time_goes, s.peaks_with()),
    "15.5": (functions.product_with(), functions.product_as_needed),
    "15.6": (
        functions.dropped_with(),
        functions.dropped_by_numbers,
        functions.dropped_by_a_generator,
    ),
    "15.7": (functions.back_with(), functions.back_in_one_buffer, functions.back_inside),
    "15.8": (kernels.normed_with(), kernels.normed_by_rows),
    "15.9": (s.rebuilt, s.rebuilt_the_other_way),
    "15.10": (s.again_costs, s.again_costs_of_a_sequence, s.costs_with()),
}


@pytest.mark.parametrize("question", RIGHT)
def test_right_answers_pass_in_less_than_five_seconds(question):
    assert_all_pass_soon(question, RIGHT[question])


@pytest.mark.parametrize(
    ("fault", "message", "means"),
    [
        ("over x", "dw1[", "where x was the sum lies now"),
        ("x in place", "inplace operation", "PyTorch counts what is written in place"),
        ("x put back", "bytes alive at once", "read by no backward"),
        ("a new tensor", "bytes alive at once", "read by no backward"),
        ("u over", "dx[", "u was overwritten"),
        ("a over", "dw2[", "a was overwritten"),
        ("residual by data", "dx[", "Only the MLP's part got to x"),
        ("mlp detached", "dx[", "Only the residual's part got to x"),
        ("all detached", "no gradient gets to x", "leaves no trace in the graph"),
        ("no residual", "y[", "The residual is missing"),
        ("twice", "y[", "added twice"),
        ("taken away", "y[", "taken away"),
        ("tanh", "y[", "GELU's tanh form"),
    ],
)
def test_residual_wrong(fault, message, means):
    fails(check("15.3", functions.mlp_block_with(fault), seed=1), message=message, means=means)


@pytest.mark.parametrize(
    ("fault", "message", "means"),
    [
        ("relu", "y[", "That is ReLU"),
        ("no bias", "y[", "The bias is missing"),
        ("a kept", "keeps 768 bytes", "stays alive until the backward"),
        ("y kept", "keeps 384 bytes", "y and a are not"),
        ("a on ctx", "keeps 768 bytes", "by another name"),
        ("in a list", "keeps 768 bytes", "by another name"),
        ("u copied", "keeps 768 bytes", "u and weight are the caller's"),
        ("slope kept", "keeps 768 bytes", "by another name"),
        ("a of u", "dweight[", "dweight is made of u"),
        ("gelu twice", "dweight[", "GELU is taken twice"),
        ("mean of bias", "dbias[", "and not their mean"),
        ("slope at a", "du[", "it is taken at u"),
        ("slope at da", "du[", "gelu_backward(da, u) has da first"),
        ("no slope", "du[", "GELU's slope is missing"),
        ("gelu for slope", "du[", "it takes the slope"),
        ("no gradient", "returns None as the gradient of weight", "one for each"),
        ("cut off", "no gradient gets to weight", "leaves no trace"),
        ("tanh", "y[", "GELU's tanh form"),
        ("tanh for dweight", "dweight[", "GELU's tanh form"),
        ("tanh slope", "du[", "GELU's tanh form"),
        ("16 bits", "du[", "went through 16 bits"),
        ("over u", "it changed its input u", "belongs to the caller"),
        ("by the engine", "PyTorch's engine", "by their formulas"),
        ("order", "raised RuntimeError", "in their order"),
    ],
)
def test_product_wrong(fault, message, means):
    fails(check("15.5", functions.product_with(fault), seed=1), message=message, means=means)


@pytest.mark.parametrize(
    ("answer", "message", "means"),
    [
        (functions.product_by_operators, "keeps 768 bytes", "stays alive until the backward"),
        (functions.product_by_checkpoint, "a torch.autograd.Function of yours", "own checkpoint"),
        (functions.product_by_the_package, "a function of the package", "of your own"),
    ],
)
def test_products_by_others_wrong(answer, message, means):
    fails(check("15.5", answer, seed=1), message=message, means=means)


@pytest.mark.parametrize(
    ("fault", "message", "means"),
    [
        ("one seed", "the same numbers in two calls", "each call draws its seed"),
        ("no dropout", "is not gelu(u)", "Nothing is dropped"),
        ("no scale", "is not gelu(u)", "lacks the scale"),
        ("scale twice", "is not gelu(u)", "The scale is applied twice"),
        ("gelu last", "is not gelu(u)", "it comes first, then the factors"),
        ("mask kept", "keeps 1,552 bytes", "keep the seed alone"),
        ("mask of bool", "keeps 400 bytes", "keep the seed alone"),
        ("a kept", "keeps 1,552 bytes", "keep the seed alone"),
        ("generator's state", "bytes on u", "keep the seed alone"),
        ("drawn again", "du[", "draw() gives another seed each time"),
        ("last call's", "du[", "stands on its ctx"),
        ("next offset", "du[", "drops other numbers than its forward"),
        ("turned", "du[", "drops other numbers than its forward"),
        ("no mask in du", "du[", "du has no dropout in it"),
        ("no mask in dweight", "dweight[", "dweight has no dropout in it"),
        ("no scale in du", "du[", "the mask and not the scale"),
        ("factors twice", "du[", "the factors of dropout twice"),
    ],
)
def test_dropped_wrong(fault, message, means):
    fails(check("15.6", functions.dropped_with(fault), seed=1), message=message, means=means)


@pytest.mark.parametrize(
    ("fault", "message", "means"),
    [
        ("as given out", "1,536 bytes more alive", "Make dweight of it, let go of it"),
        ("da first", "768 bytes more alive", "only then make da"),
        ("a held", "768 bytes more alive", "let go of it"),
        ("a new du", "768 bytes more alive", "du is written over da"),
        ("dy copied", "384 bytes more alive", "What .contiguous(), .clone()"),
        ("tanh slope", "du[", "GELU's tanh form"),
        ("over u", "it changed its input u", "u is the caller's"),
        ("a written over", "dweight[", "make it before a is written over"),
        ("du over a first", "dweight[", "make it before a is written over"),
        ("a of u", "dweight[", "dweight is made of u"),
        ("transposed", "the shape (24, 12)", "dweight that of weight"),
        ("mean", "dweight[", "a mean over the tokens"),
        ("no slope", "du[", "GELU's slope is missing"),
        ("slope at da", "du[", "has da first"),
        ("changed places", "the shape (12, 24)", "in this order"),
        ("du alone", "it takes the tuple (du, dweight)", ""),
    ],
)
def test_product_back_wrong(fault, message, means):
    fails(check("15.7", functions.back_with(fault), seed=1), message=message, means=means)


def test_product_back_in_pieces_wrong():
    result = check("15.7", functions.back_in_pieces, seed=1)
    fails(result, message="bytes more alive at once", means="the memory that du will take")


@pytest.mark.parametrize(
    ("fault", "message", "means"),
    [
        ("no mean", "dresidual[", "The mean is not taken from h"),
        ("h for x_hat", "dresidual[", "h stands for x_hat"),
        ("no weight", "dresidual[", "weight is left out"),
        ("dh first", "dresidual[", "it reaches h past the norm"),
        ("no dh", "dresidual[", "dh is missing"),
        ("dh taken away", "dresidual[", "dh is taken away"),
        ("block", "dresidual[", "divided by BLOCK"),
        ("of dy", "dresidual[", "it is the mean of g · x_hat"),
        ("no mean of g", "dresidual[", "The mean of g is not taken away"),
        ("no projection", "dresidual[", "is not taken away"),
        ("projection added", "dresidual[", "The projection is added"),
        ("no inv_std", "dresidual[", "not multiplied by inv_std"),
        ("changed places", "dresidual[", "have changed places"),
        ("a row too few", "dresidual[", "the grid has too few programs"),
        ("place in the row", "dx[", "All rows draw the same numbers"),
        ("by blocks", "dx[", "row · BLOCK + col"),
        ("turned mask", "dx[", "have changed places"),
        ("above", "dx[", "exactly T"),
        ("dx without dh", "dx[", "dh is left out of dx"),
        ("no scale", "dx[", "not multiplied by scale"),
        ("scale twice", "dx[", "by scale twice"),
        ("p itself", "dx[", "Nothing is dropped"),
        ("1 - p", "dx[", "threshold(1 - p)"),
        ("dh behind", "dx[", "behind the dropout"),
        ("not dropped", "dx[", "That is dresidual"),
        ("no other", "masked lanes enter", "other=0.0"),
        ("mean again", "don't read all of mean", "were kept for this"),
        ("read twice", "dh is read 2.0 times", "Each load asks memory again"),
        ("unmasked", "in the same launch", "Two programs meet"),
    ],
)
def test_normed_wrong(fault, message, means):
    fails(check("15.8", kernels.normed_with(fault), seed=1), message=message, means=means)


@pytest.mark.parametrize(
    ("answer", "message", "means"),
    [
        (kernels.normed_by_pytorch, "launched no Triton kernel", "a kernel of yours"),
        (kernels.normed_in_two_launches, "made 2 launches", ""),
        (kernels.normed_dropped_by_pytorch, "ran PyTorch operators", "moves bytes of its own"),
        (kernels.normed_by_the_package, "a function of the package", "of your own"),
    ],
)
def test_launches_wrong(answer, message, means):
    fails(check("15.8", answer, seed=1), message=message, means=means)


@pytest.mark.parametrize(
    ("question", "answer", "message", "means"),
    [
        ("15.1", lambda *args: (AlwaysEqual(),) * 3, "is an int", ""),
        ("15.1", lambda *args: (1.0, 1, 1), "plain is an int", "// divides whole numbers"),
        ("15.1", counted_by_a_launch, "launches switched_normed", "asks for a prediction"),
        ("15.2", lambda layer: AlwaysEqual(), "it takes the set of names", ""),
        ("15.2", lambda layer: {"dy"}, "no name of layer.saved", ""),
        ("15.2", lambda layer: layer.backward({}), "raised ValueError", ""),
        ("15.3", lambda x, w1, w2: x, "y[", "The MLP is missing"),
        ("15.3", lambda x, w1, w2: AlwaysEqual(), "not a torch.Tensor", ""),
        ("15.4", lambda steps, *args: (steps.clear(), 1), "is an int", ""),
        ("15.5", lambda u, weight, bias: exit(), "raised SystemExit", ""),
        ("15.5", lambda u, weight, bias: u, "the shape", ""),
        ("15.6", lambda u, weight: AlwaysEqual(), "not a torch.Tensor", ""),
        ("15.6", lambda u, weight: u @ weight.T, "is not gelu(u)", ""),
        ("15.7", lambda dy, u, weight: (None, None), "not a torch.Tensor", ""),
        ("15.8", lambda *args: args[0], "it takes the tuple (dresidual, dx)", ""),
        ("15.9", lambda *args: (args[0], AlwaysEqual()), "not a torch.Tensor", ""),
        ("15.10", lambda *args: (float("nan"),) * 3, "returned nan as gelu", ""),
        ("15.10", "again_costs", "The answer is a str", ""),
    ],
)
def test_hostile_answers_earn_nothing(question, answer, message, means):
    fails(check(question, answer, seed=1), message=message, means=means)


@pytest.mark.parametrize(
    ("question", "message", "means"),
    [
        ("15.3", "dw1[", "where x was the sum lies now"),
        ("15.6", "du[", "draw() gives another seed each time"),
        ("15.7", "bytes more alive", "Make dweight of it"),
        ("15.9", "lost[", "No column is called lost"),
    ],
)
def test_what_is_given_out_fails_by_its_faults(question, message, means):
    fails(check(question, given_out(question), seed=1), message=message, means=means)
