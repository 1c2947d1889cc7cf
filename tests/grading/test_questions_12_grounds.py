"""What the checks of set 12 rest on is right: formulas, budgets, walks, and what a case is for."""

import math
import random

import pytest
import torch

from kernels.grading import progress
from kernels.grading.questions.ch12 import faulty, halves, predict, roofs, splits
from kernels.grading.questions.ch12.causal import CAUSAL_SPEED, budget
from kernels.grading.questions.ch12.causal import _cases as causal_cases
from kernels.grading.questions.ch12.splits import SPLIT_SPEED
from kernels.grading.questions.kits import attention as kit
from kernels.launch import interpreting
from tests.grading import submissions_12 as s
from tests.grading.submissions_12_kernels import causal_with


@pytest.mark.parametrize(
    ("n", "tile"), [(70, (16, 32)), (64, (64, 32)), (100, (32, 16)), (9, (16, 16))]
)
@pytest.mark.parametrize("bound", ["", "whole loop"])
def test_requests_are_those_that_a_kernel_makes(n, tile, bound):
    q, k, v = torch.randn(3, 1, n, 16, dtype=torch.float16)
    with interpreting() as launches:
        causal_with(bound, tile=tile)(q, k, v)
    (launch,) = launches
    read = {name: asked for name, _, asked, *_ in launch.arena.totals()}
    args = (n, 16, *tile, 2, not bound)
    assert read["q_ptr"] == predict.of_q(*args)
    assert read["k_ptr"] == predict.of_k(*args) == read["v_ptr"]


def test_the_budget_is_that_of_the_tile_it_names():
    for case in causal_cases(5):
        given = [one.clone() for one in case.tensors.values()]
        with interpreting() as launches:
            causal_with()(*given)
        (launch,) = launches
        read = {name: asked for name, _, asked, *_ in launch.arena.totals()}
        assert read["k_ptr"] + read["v_ptr"] == budget(case)


def test_halves_merge_to_the_state_of_all():
    rng = random.Random(4)
    keys = [(rng.gauss(0, 3), rng.gauss(1, 2)) for _ in range(40)]
    for cut in (0, 1, 17, 40):
        a, b = halves.state_of(keys[:cut]), halves.state_of(keys[cut:])
        whole = halves.state_of(keys)
        assert halves.merged(a, b) == pytest.approx(whole)
        outputs = halves.merged_outputs(halves.output_of(a), halves.output_of(b))
        assert outputs == pytest.approx(halves.output_of(whole))
        log = torch.tensor([score for score, _ in keys], dtype=torch.float64).logsumexp(0)
        assert outputs[0] == pytest.approx(float(log))


def test_a_walk_without_a_fault_is_attention():
    torch.manual_seed(3)
    q, k, v = torch.randn(5, 8), torch.randn(37, 8), torch.randn(37, 4)
    scores, seen = kit.scores(q, k), torch.rand(5, 37) < 0.6
    right = kit.attended(scores, v, seen)
    for block in (4, 16, 64):
        assert torch.allclose(kit.walk(scores, v, seen, block), right)
        for fault in kit.CORRECTIONS:
            if fault == "scale twice" or (block > 37 and fault != "masked with 0"):
                continue
            assert not torch.allclose(kit.walk(scores, v, seen, block, fault), right), fault


def test_flops_are_those_of_the_lines_on_the_page():
    for n, d, block in ((64, 16, 16), (256, 32, 64), (128, 128, 128)):
        assert s.row_flops_line_by_line(n, d, block) == list(s.row_flops(n, d, block))


def test_each_verdict_has_an_input_that_shows_it():
    """On a whole block of small scores with d = 1 all agree; the experiments tell all apart."""
    plain = {name: faulty.Walk(name)([1.0], [[0.5], [0.1], [0.3], [0.2]], [1.0, 2.0, 3.0, 4.0])
             for name in faulty.VERDICTS}  # fmt: skip
    assert len({round(one, 12) for one in plain.values()}) == 1
    for name in faulty.VERDICTS:
        assert s.fault_with()(faulty.Walk(name)) == name
        assert s.fault_by_models(faulty.Walk(name)) == name
    assert sorted(one._fault or "nothing" for one in faulty.ward(3)) == sorted(faulty.VERDICTS)


def test_a_length_takes_as_long_in_flops_as_in_bytes():
    for card in ((312, 1555, 4500, 64, 2), (67, 3350, 7000, 128, 4)):
        tflops, dram, l2, d, itemsize = card
        n, tile = roofs.least_length(*card), roofs.least_tile(*card)
        for one, holds in ((n, True), (n - 1, False)):
            moved = 4 * one * d * itemsize / (dram * 1e9)
            assert (4 * one**2 * d / (tflops * 1e12) >= moved) == holds
        for one, holds in ((tile, True), (tile - 1, False)):
            # A block of 32 keys for a tile of so many queries.
            asked = 2 * 32 * d * itemsize / (l2 * 1e9)
            assert (4 * one * 32 * d / (tflops * 1e12) >= asked) == holds


def test_what_a_case_is_for():
    """Scores near ±140 overflow and underflow in fp32 without a maximum; splits are left empty."""
    rng = random.Random(3)
    for trait, limit in ((kit.HIGH, math.inf), (kit.LOW, 0.0)):
        given = kit.attention_inputs(rng, (4, 16), 40, "fp32", trait)
        powers = torch.exp(kit.scores(given["q"], given["k"]).float())
        assert bool((powers == limit).all())
    given = kit.attention_inputs(rng, (50, 16), 150, "fp32", kit.RISING)
    rows = kit.scores(given["q"], given["k"])
    assert float((rows[:, 128:].amax(-1) > rows[:, :64].amax(-1)).double().mean()) > 0.8
    shares = [(-(-n // splits_) // 32 + 1) * 32 * (splits_ - 1) >= n
              for _, _, n, *_, splits_ in splits._PLAN]  # fmt: skip
    assert any(shares)


@pytest.mark.parametrize("speed", [CAUSAL_SPEED, SPLIT_SPEED])
def test_what_is_timed_is_what_pytorch_computes(speed):
    case = speed.make(3)
    given = [one.float() for one in case.tensors.values()]
    error = speed.against(*given).double() - case.reference
    assert float(error.norm() / case.reference.norm()) < case.tolerance.relative_norm / 100


def test_the_tenth_question_stands_behind_the_ninth(own_progress):
    (names,) = [
        [name for name, _, _ in rows] for chapter, rows in progress().sets if chapter == "12"
    ]
    assert names == [f"12.{number}" for number in range(1, 11)]
