"""Each known-wrong kernel of set 12 fails with the diagnosis meant for it; right answers pass."""

import pytest
import torch

from kernels.grading import check
from kernels.launch import interpreting
from tests.grading import submissions_12 as s
from tests.grading import submissions_12_kernels as kernels
from tests.grading import submissions_12_splits as splits
from tests.grading.known_wrong import fails, given_out
from tests.grading.right import assert_all_pass_soon
from tests.grading.submissions import AlwaysEqual


def counted_by_a_launch(n, d, block_m, block_n, itemsize, causal):
    """Ask the ledger of a small call in place of a prediction."""
    with interpreting() as launches:
        kernels.causal_with()(*torch.zeros(3, 1, 16, 16))
    assert len(launches) == 1
    return s.requested(n, d, block_m, block_n, itemsize, causal)


RIGHT = {
    "12.1": (s.merge, s.merge_by_numpy, s.merge_one_way),
    "12.2": (s.merge_outputs, s.merge_outputs_by_shares, s.merge_outputs_by_torch),
    "12.3": (s.row_flops, s.row_flops_line_by_line, s.flops_with()),
    "12.4": (s.requested, s.requested_by_lanes, s.of_k_but()),
    "12.5": (s.when_doubled, s.when_doubled_in_closed_form, s.doubled_with()),
    "12.6": (s.fault_with(), s.fault_by_models, s.fault_with({})),
    "12.7": (
        kernels.padded_with(),
        kernels.padded_with("lowest"),
        kernels.padded_with(tile=(16, 64)),
    ),
    "12.8": (
        kernels.causal_with(),
        kernels.causal_in_two_loops,
        kernels.causal_with(tile=(128, 16)),
        kernels.causal_with("lowest"),
        kernels.causal_with("finite"),
    ),
    "12.9": (
        splits.split_with(),
        splits.striding_attention,
        splits.split_with("ragged shares", block=16),
    ),
    "12.10": (s.leaves_roofs, s.leaves_roofs_by_search, s.roofs_with()),
}


@pytest.mark.parametrize("question", RIGHT)
def test_right_answers_pass_in_less_than_five_seconds(question):
    assert_all_pass_soon(question, RIGHT[question])


@pytest.mark.parametrize(
    ("answer", "message", "means"),
    [
        (kernels.padded_with("behind"), "scores near -140", "belongs in front of the maximum"),
        (kernels.padded_with("no guard"), "the first keys are hidden", "-inf - (-inf) is nan"),
        (kernels.padded_with("no zero"), "all keys are hidden", "0 / 0 is nan"),
        (kernels.padded_with("finite"), "all keys are hidden", "has a finite score"),
        (kernels.padded_with("m from 0"), "scores near -140", "a maximum that begins at 0"),
        (kernels.padded_with("no maximum"), "should be", "takes the largest score away first"),
        (kernels.padded_with("ignored"), "should be", "The mask of scores does nothing"),
        (kernels.padded_with("inverted"), "should be", "the wrong way round"),
        (kernels.padded_with("zero"), "should be", "The score of what isn't seen is -inf"),
        (kernels.padded_with("left in l"), "should be", "their weights are still in l"),
        (kernels.padded_with("no scale"), "should be", "Scores lack their scale"),
        (kernels.padded_with("scale twice"), "should be", "The scale is applied twice"),
        (kernels.padded_with("exp2"), "should be", "to the base 2"),
        (kernels.padded_with("no correction"), "should be", "The correction is missing"),
        (
            kernels.padded_with("own maximum"),
            "that fall by 280",
            "that of a block alone",
        ),
        (kernels.padded_with("l alone"), "should be", "applied to l alone"),
        (kernels.padded_with("acc alone"), "should be", "applied to acc alone"),
        (kernels.padded_with("l replaced"), "should be", "l is that of the last block"),
        (kernels.padded_with("acc replaced"), "should be", "acc is that of the last block"),
        (kernels.padded_with("m kept"), "should be", "Only the last block of keys"),
        (kernels.padded_with("whole blocks"), "should be", "behind the last whole block"),
        (kernels.padded_with("first block"), "should be", "Only the first block of keys"),
        (kernels.padded_with("not divided"), "should be", "never divided by l"),
        (kernels.padded_with("times l"), "should be", "multiplied by l"),
        (kernels.padded_with("narrow"), "should be", "16 bits"),
        (kernels.padded_with("no other"), "masked lanes enter", "other=0.0"),
        (kernels.padded_with("unmasked"), "a load at index", "Queries take rows < M"),
        (kernels.padded_with("unmasked store"), "a store at index", "Queries take rows < M"),
        (kernels.padded_with("few programs"), "is nan", "were never stored"),
        (kernels.padded_with("fp32 output"), "torch.float32, not", "dtype that the question"),
        (kernels.padded_by_pytorch, "launched no Triton kernel", "a kernel of yours"),
    ],
)
def test_padded_wrong(answer, message, means):
    fails(check("12.7", answer, seed=1), message=message, means=means)


@pytest.mark.parametrize(
    ("answer", "message", "means"),
    [
        (kernels.causal_with("whole loop"), "the budget is", "its loop ends at"),
        (kernels.causal_with(tile=(32, 32)), "the budget is", "walks over the keys less often"),
        (kernels.causal_with(tile=(64, 128)), "the budget is", "its loop ends at"),
        (kernels.causal_with(tile=(256, 16)), "runs 1 program on", "most of them idle"),
        (kernels.causal_with(tile=(64, 64)), "spills", "no byte count shows it"),
        (kernels.causal_with(warps=4), "spills", "more warps"),
        (kernels.causal_with(ieee=False), "multiplies tf32", "input_precision"),
        (kernels.causal_with("converted"), "has no matrix instruction", "operands in fp32"),
        (kernels.causal_with("weights in fp32"), "number by number", "converted to the dtype of v"),
        (kernels.causal_with("before the diagonal"), "is nan", "that holds the diagonal"),
        (kernels.causal_with("strict"), "is nan", "doesn't see its own key"),
        (kernels.causal_with("one more"), "should be", "sees one key too many"),
        (kernels.causal_with("sees all"), "should be", "The mask of scores does nothing"),
        (kernels.causal_with("places in the tile"), "should be", "count from the head's first"),
        (kernels.causal_with("first head"), "should be", "Every head takes the keys"),
        (kernels.causal_with("left in l"), "should be", "their weights are still in l"),
        (kernels.causal_with("zero"), "should be", "The score of what isn't seen is -inf"),
        (kernels.causal_with("behind"), "scores near -140", "belongs in front of the maximum"),
        (kernels.causal_with("m from 0"), "scores near -140", "m starts at -inf"),
        (kernels.causal_with("no maximum"), "should be", "takes the largest score of a row away"),
        (kernels.causal_with("no correction"), "should be", "The correction is missing"),
        (kernels.causal_with("own maximum"), "is nan", "of all blocks so far"),
        (kernels.causal_with("l alone"), "should be", "applied to l alone"),
        (kernels.causal_with("acc alone"), "should be", "applied to acc alone"),
        (kernels.causal_with("correction upside down"), "is nan", "-inf - (-inf)"),
        (kernels.causal_with("no scale"), "should be", "Scores lack their scale"),
        (kernels.causal_with("scale twice"), "should be", "The scale is applied twice"),
        (kernels.causal_with("exp2"), "should be", "to the base 2"),
        (kernels.causal_with("first block"), "should be", "Only the first block of keys"),
        (kernels.causal_with("whole blocks"), "should be", "behind the last whole block"),
        (kernels.causal_with("not divided"), "should be", "never divided by l"),
        (kernels.causal_with("narrow"), "should be", "16 bits"),
        (kernels.causal_with("no other"), "masked lanes enter", "other=0.0"),
        (kernels.causal_with("unmasked"), "a load at index", "a head begins at"),
        (kernels.causal_with("few programs"), "is nan", "were never stored"),
        (kernels.causal_with("fp32 output"), "torch.float32, not", "dtype that the question"),
        (kernels.causal_scaled_first, "PyTorch operators: mul", "moves bytes of its own"),
        (kernels.causal_a_head_at_a_time, "PyTorch operators", "moves bytes of its own"),
        (kernels.causal_by_pytorch, "launched no Triton kernel", "a kernel of yours"),
    ],
)
def test_causal_wrong(answer, message, means):
    fails(check("12.8", answer, seed=1), message=message, means=means)


@pytest.mark.parametrize(
    ("answer", "message", "means"),
    [
        (splits.whole_keys, "runs 1 program on", "each with a share of its own"),
        (splits.split_with("same share"), "should be", "either all splits take it"),
        (splits.split_with("all keys"), "k is read 3.0 times", "asks for it anew"),
        (splits.split_with("past N"), "a load at index", "at the share's end or at N"),
        (splits.split_with("rounded down"), "should be", "N // splits rounds down"),
        (splits.split_with("overlap"), "should be", "Shares overlap"),
        (splits.split_with("empty left out"), "is nan", "It stores zeros, with L = -inf"),
        (splits.split_with("empty divided"), "is nan", "It stores zeros, with L = -inf"),
        (splits.split_with("one place"), "'parts_ptr'", "meet at one element"),
        (splits.split_with("atomic"), "uses an atomic", "depends on its order"),
        (splits.split_with("lse is m"), "should be", "weighed by exp(m) alone"),
        (splits.split_with("lse is l"), "should be", "weighed by l alone"),
        (
            splits.split_with("own maximum"),
            "that fall by 280",
            "that of a block alone",
        ),
        (splits.split_with("l alone"), "should be", "applied to l alone"),
        (splits.split_with("scale twice"), "should be", "The scale is applied twice"),
        (splits.split_with("zero"), "should be", "The score of what isn't seen is -inf"),
        (splits.split_with("no other"), "masked lanes enter", "other=0.0"),
        (splits.split_with("", "mean"), "should be", "The splits' outputs are averaged"),
        (splits.split_with("", "sum"), "should be", "added, and not weighed"),
        (splits.split_with("", "first"), "should be", "or the second launch merges no other"),
        (splits.split_with("", "last"), "should be", "one split's output alone"),
        (splits.split_with("", "not divided"), "should be", "The shares don't add up to 1"),
        (splits.split_with("", "no maximum"), "scores near 140", "take the largest L away first"),
        (splits.split_with(narrow=True), "takes parts_ptr in fp16", "rounded once"),
        (splits.split_with(ieee=False), "multiplies tf32", "input_precision"),
        (splits.split_with(warps=1), "spills", "more warps"),
        (splits.merged_by_pytorch, "PyTorch operators", "moves bytes of its own"),
        (splits.a_program_a_query, "PyTorch operators", "moves bytes of its own"),
        (splits.split_by_pytorch, "launched no Triton kernel", "a kernel of yours"),
    ],
)
def test_splits_wrong(answer, message, means):
    fails(check("12.9", answer, seed=1), message=message, means=means)


@pytest.mark.parametrize(
    ("question", "answer", "message", "means"),
    [
        ("12.7", kernels.padded_by_the_package, "a function of the package", "of your own"),
        ("12.8", kernels.causal_by_the_package, "a function of the package", "of your own"),
        ("12.8", kernels.causal_by_the_packages_kernel, "a kernel of the package", "of your own"),
        ("12.8", kernels.causal_into_its_input, "changed its input k", ""),
        (
            "12.8",
            kernels.causal_once_and_for_all(),
            "the memory of an earlier call",
            "Allocate the output in the function",
        ),
        ("12.8", kernels.causal_behind_the_dispatcher, "don't read all of q", ""),
        ("12.8", AlwaysEqual(), "not a torch.Tensor", ""),
        ("12.9", lambda q, k, v, splits: exit(), "raised SystemExit", ""),
        ("12.1", lambda a, b: (AlwaysEqual(),) * 3, "it is a number", ""),
        ("12.1", lambda a, b: (2**200, 1, 1), "beyond 2**63", ""),
        ("12.1", lambda a, b: AlwaysEqual(), "it takes the tuple (m, l, acc)", ""),
        ("12.2", lambda a, b: (float("nan"), float("nan")), "is nan and should be", ""),
        ("12.3", lambda *args: (AlwaysEqual(),) * 3, "is an int", ""),
        ("12.4", lambda *args: (AlwaysEqual(),) * 2, "is an int", ""),
        ("12.4", counted_by_a_launch, "launches switched_kernel", "asks for a prediction"),
        ("12.5", lambda *args: (AlwaysEqual(),) * 3, "is a number", ""),
        ("12.6", lambda attend: AlwaysEqual(), "a verdict is one of", ""),
        ("12.6", lambda attend: attend([1.0], [[1.0]] * 99, [1.0]), "raised ValueError", ""),
        ("12.10", lambda *args: (3, 3, AlwaysEqual()), "True or False", ""),
        ("12.10", "leaves_roofs", "The answer is a str", ""),
    ],
)
def test_hostile_answers_earn_nothing(question, answer, message, means):
    fails(check(question, answer, seed=1), message=message, means=means)


@pytest.mark.parametrize(
    ("question", "message", "means"),
    [
        ("12.7", "scores near -140", "belongs in front of the maximum"),
        ("12.9", "runs 1 program on", "each with a share of its own"),
    ],
)
def test_what_is_given_out_fails_by_its_faults(question, message, means):
    fails(check(question, given_out(question), seed=1), message=message, means=means)
