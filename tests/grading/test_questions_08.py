"""Each known-wrong submission of set 08 fails with the diagnosis meant for it; right ones pass."""

import pytest
import torch

from kernels.grading import check
from tests.grading import submissions_08 as s
from tests.grading import submissions_08_backward as backward
from tests.grading import submissions_08_chain as chain
from tests.grading import submissions_08_graphs as graphs
from tests.grading import submissions_08_masks as masks
from tests.grading import submissions_08_packs as packs
from tests.grading import submissions_08_weights as weights
from tests.grading.known_wrong import fails, given_out
from tests.grading.right import assert_all_pass_soon

RIGHT = {
    "08.1": (s.draw_by_element, s.draw_by_divmod, s.draw_by_shifts),
    "08.2": (s.bytes_by_launch, s.bytes_by_tensor, s.bytes_by_columns),
    "08.3": (masks.dropout_with(), masks.dropout_by_blocks, masks.dropout_by_cases),
    "08.4": (weights.weights_with(), weights.tiled_weights, weights.log_weights),
    "08.5": (graphs.pointing, graphs.pointing_by_blocks, graphs.pointing_twice),
    "08.6": (backward.dx_with(), backward.flat_dx, backward.tiled_dx),
    "08.7": (
        packs.dropout_with("right"),
        packs.dropout_with("strided", 4096),
        packs.dropout_with("by_bits"),
    ),
    "08.8": (
        chain.eight_with(),
        chain.eight_with("library", 1024),
        chain.eight_with("", 4096, 8),
        chain.eight_by_matrix,
    ),
    "08.9": (chain.chain_with(), chain.tiled_chain, chain.chain_with(num_warps=16)),
    "08.10": (s.costs_by_max, s.costs_by_room, s.costs_by_cases),
}


@pytest.mark.parametrize("question", RIGHT)
def test_right_answers_pass_in_less_than_five_seconds(question):
    assert_all_pass_soon(question, RIGHT[question])


@pytest.mark.parametrize(
    ("answer", "message", "means"),
    [
        (masks.as_given, "should be", "Every 1,024 elements draw the same numbers"),
        (masks.as_given, "should be", "not multiplied by scale. training is not asked"),
        (masks.dropout_with("tile", block=256), "should be", "Every 256 elements draw the same"),
        (masks.dropout_with("tile", block=256), "should be", "the place in the whole tensor"),
        (masks.dropout_with("unscaled"), "should be", "are not multiplied by scale"),
        (masks.dropout_with("", "drops"), "training = False", "training is not asked"),
        (masks.dropout_with("", "scales"), "training = False", "the scale makes up"),
        (masks.dropout_with("own index"), "should be", "The block is the element's own index"),
        (masks.dropout_with("first number"), "should be", "take its first number"),
        (masks.dropout_with("a call each"), "should be", "makes a call for each element"),
        (masks.dropout_with("four"), "should be", "four numbers of 32 bits"),
        (masks.dropout_with("exchanged"), "should be", "have changed places"),
        (masks.dropout_with("above"), "(1 of", "exactly T is dropped"),
        (masks.dropout_with("multiplied"), "infinite where it is dropped", "inf * 0 is nan"),
        (masks.dropout_with("divided"), "should be", "divided by scale"),
        (masks.dropout_with(factor=masks.by_one_minus_p), "p = 0.1", "scale is 1 / (1 - p)"),
        (masks.dropout_with(factor=masks.by_division), "ZeroDivisionError", "p may be 1"),
        (masks.dropout_with("unmasked"), "index", "a mask in each load"),
        (masks.dropout_with("twice"), "x is read 2.0 times", "Each load asks memory again"),
        (masks.dropout_with(block=8192), "runs 1 program on", "most of them idle"),
        (masks.dropout_by_pytorch, "launched no Triton kernel", "a kernel of yours"),
    ],
)
def test_modes_wrong(answer, message, means):
    fails(check("08.3", answer, seed=1), message=message, means=means)


@pytest.mark.parametrize(
    ("answer", "message", "means"),
    [
        (weights.weights_with("given"), "should be", "The sum is taken behind the mask"),
        (weights.weights_with("given, no nan"), "should be", "The sum is taken behind the mask"),
        (weights.weights_with("sum of kept"), "should be", "And the scale is no part"),
        (weights.weights_with("scaled sum"), "should be", "so the scale cancels"),
        (weights.weights_with("unscaled"), "should be", "not multiplied by scale"),
        (weights.weights_with("logits"), "should be", "a dropped weight is 0"),
        (weights.weights_with("zeros"), "(3, 17)", "Masked lanes enter the sum"),
        (weights.weights_with("no maximum"), "values near", "No maximum is taken away"),
        (weights.weights_with("columns"), "should be", "All rows draw the same numbers"),
        (weights.weights_with("padded"), "should be", "masked lanes are no elements"),
        (weights.weights_with("four"), "should be", "four numbers of 32 bits"),
        (weights.weights_with("no other"), "(3, 17)", "Masked lanes enter the sum"),
        (weights.weights_with("no value"), "masked lanes enter", "other=0.0"),
        (weights.weights_with("twice"), "x is read 2.0 times", "Each load asks memory again"),
        (lambda x, seed_offset, p: x.softmax(-1), "should be", "Nothing is dropped"),
    ],
)
def test_weights_wrong(answer, message, means):
    fails(check("08.4", answer, seed=1), message=message, means=means)


@pytest.mark.parametrize(
    ("answer", "message", "means"),
    [
        (graphs.frozen, "draws the mask of the capture again", "seed and offset of host_kernel"),
        (graphs.frozen_item, "draws the mask of the capture again", "are ints of the host"),
        (graphs.half_frozen, "draws another mask", "offset of half_host_kernel is an int"),
        (graphs.copied_state, "draws the mask of the capture again", "lies in the memory of seed"),
        (graphs.remade_state, "draws the mask of the capture again", "lies in the memory of seed"),
        (graphs.kept_state, "should be", "the numbers of the first"),
        (graphs.pointing_with("tile", 256), "should be", "Every 256 elements"),
        (graphs.pointing_with("unscaled"), "should be", "not multiplied by scale"),
        (graphs.pointing_with("twice"), "x is read 2.0 times", "Each load asks memory again"),
    ],
)
def test_frozen_wrong(answer, message, means):
    fails(check("08.5", answer, seed=1), message=message, means=means)


@pytest.mark.parametrize(
    ("answer", "message", "means"),
    [
        (backward.dx_with("no slope", later=1), "dx[0, 0] is", "that of the next offset"),
        (backward.dx_with("no slope", later=1), "dx[0, 0] is", "GELU's slope is missing"),
        (backward.dx_with(later=1), "should be", "that of the next offset"),
        (backward.dx_with(later=2), "should be", ""),
        (backward.dx_with("no slope"), "should be", "GELU's slope is missing"),
        (backward.dx_with("gelu"), "should be", "it takes the slope"),
        (backward.dx_with("no bias"), "should be", "The slope is taken at x"),
        (backward.dx_with("no dy"), "should be", "dy is missing"),
        (backward.dx_with("of dy"), "should be", "gelu' is taken of dy"),
        (backward.dx_with("residual"), "should be", "the residual's gradient is dy"),
        (backward.dx_with("unscaled"), "should be", "not multiplied by scale"),
        (backward.dx_with("exchanged"), "should be", "have changed places"),
        (backward.dx_with("everything"), "should be", "Nothing is dropped"),
        (backward.dx_with("columns"), "should be", "All rows draw the same numbers"),
        (backward.dx_with("padded"), "should be", "masked lanes are no elements"),
        (backward.dx_with("twice"), "dy is read 2.0 times", "Each load asks memory again"),
        (backward.dx_by_operators, "launched no Triton kernel", "a kernel of yours"),
        (lambda dy, x, bias, seed_offset, p: dy.clone(), "should be", "GELU's slope is missing"),
    ],
)
def test_backward_wrong(answer, message, means):
    fails(check("08.6", answer, seed=1), message=message, means=means)


@pytest.mark.parametrize(
    ("answer", "message", "means"),
    [
        (packs.dropout_with("each", 256), "for every 1.0 elements", "throws seven of them away"),
        (packs.dropout_with("single"), "loads x with 2 bytes", "copied whole"),
        (packs.dropout_with("first_number"), "should be", "take the first number"),
        (packs.dropout_with("block_0"), "should be", "the block of element e is e / 8"),
        (packs.dropout_with("first_index"), "should be", "it takes that divided by 8"),
        (packs.dropout_with("own_index", 256), "should be", "the element's own index"),
        (packs.dropout_with("multiplied"), "infinite where it is dropped", "inf * 0 is nan"),
        (packs.dropout_with("unscaled"), "should be", "not multiplied by scale"),
        (packs.dropout_with("exchanged"), "should be", "have changed places"),
        (packs.dropout_with("no_offset"), "should be", "The offset is left out"),
        (packs.dropout_with("no_rest"), "is nan", "behind the last whole pack"),
        (packs.dropout_with("overrun"), "from index 0 of 'x'", "whoever has none does nothing"),
        (lambda x, *_: torch.zeros_like(x), "should be", "Everything is dropped"),
    ],
)
def test_packs_wrong(answer, message, means):
    fails(check("08.7", answer, seed=1), message=message, means=means)


@pytest.mark.parametrize(
    ("answer", "message", "means"),
    [
        (chain.eight_with("at", 512), "instructions for each element", "here it serves 4"),
        (chain.eight_with("at", 4096), "instructions for each element", "here it serves 4"),
        (chain.eight_with("at", 2048, 8), "instructions for each element", "here it serves 4"),
        (chain.eight_with("", 512), "instructions for each element", "serves 4"),
        (chain.eight_with("library", 512), "instructions for each element", "serves 4"),
        (chain.eight_with("", 2048, 16), "instructions for each element", "serves 4"),
        (chain.eight_with("a call each"), "should be", "makes a call for each element"),
        (chain.eight_with("four"), "should be", "four numbers of 32 bits"),
        (chain.eight_with("turned"), "should be", "turn the axes before the reshape"),
        (chain.eight_with("high first"), "should be", "the low half does"),
        (chain.eight_with("low halves"), "should be", "The four low halves come first"),
        (chain.eight_with("tile"), "should be", "Every 2,048 elements"),
        (chain.eight_with("elements"), "should be", ""),
        (chain.eight_with("unscaled"), "should be", "not multiplied by scale"),
        (chain.eight_with("above"), "(1 of", "exactly T is dropped"),
        (chain.looping_dropout, "has a loop", "stand there once"),
    ],
)
def test_eight_wrong(answer, message, means):
    fails(check("08.8", answer, seed=1), message=message, means=means)


@pytest.mark.parametrize(
    ("answer", "message", "means"),
    [
        (chain.chain_with("no residual"), "should be", "residual is not added"),
        (chain.chain_with("all dropped"), "should be", "is never dropped"),
        (chain.chain_with("no gelu"), "should be", "GELU is missing"),
        (chain.chain_with("silu"), "should be", "That is SiLU"),
        (chain.chain_with("dropout first"), "should be", "Dropout comes before GELU"),
        (chain.chain_with("unscaled"), "should be", "not multiplied by scale"),
        (chain.chain_with("columns"), "should be", "All rows draw the same numbers"),
        (chain.chain_with("padded"), "should be", "masked lanes are no elements"),
        (chain.chain_with("row"), "should be", ""),
        (chain.chain_with("lanes"), "(3, 24)", "Masked lanes enter the variance"),
        (chain.chain_with("block"), "(3, 24)", "divided by BLOCK"),
        (chain.chain_with("eps"), "should be", "eps is not used"),
        (chain.chain_with("no weight"), "should be", "weight is not applied"),
        (chain.chain_with("no bias"), "should be", "bias is not added"),
        (chain.chain_with("no norm"), "should be", "LayerNorm is missing"),
        (chain.chain_with("one pass"), "a mean of 2000", "Centre first"),
        (chain.chain_with("no other"), "masked lanes enter", "other=0.0"),
        (chain.chain_with("twice"), "x is read 2.0 times", "Each load asks memory again"),
        (chain.in_two_launches, "made 2 launches", ""),
        (chain.one_program_chain, "runs 1 program on", "most of them idle"),
        (chain.chain_by_pytorch, "launched no Triton kernel", "a kernel of yours"),
    ],
)
def test_chain_wrong(answer, message, means):
    fails(check("08.9", answer, seed=1), message=message, means=means)


@pytest.mark.parametrize(
    ("question", "message", "means"),
    [
        ("08.3", "should be", "training is not asked"),
        ("08.4", "should be", "Normalise first, then drop"),
        ("08.5", "the mask of the capture again", "seed and offset of captured_kernel are ints"),
        ("08.6", "dx[0, 0]", "GELU's slope is missing"),
        ("08.8", "at most", "here it serves 4"),
    ],
)
def test_what_is_given_out_fails_by_its_faults(question, message, means):
    fails(check(question, given_out(question), seed=1), message=message, means=means)
