"""Wrong numbers of set 12 get the remark meant for them; what its checks rest on is right."""

import math
import random

import pytest
import torch

from kernels.grading import check, progress
from kernels.grading.questions.ch12 import doubled, faulty, flops, halves, predict, roofs, splits
from kernels.grading.questions.ch12.causal import _cases as causal_cases
from kernels.grading.questions.ch12.causal import budget
from kernels.grading.questions.kits import attention as kit
from kernels.launch import interpreting
from tests.grading import submissions_12 as s
from tests.grading.submissions_12_kernels import causal_with
from tests.grading.test_questions_12 import fails

up, exp = s.up, math.exp


@pytest.mark.parametrize(
    ("answer", "message", "means"),
    [
        (s.merge_with(lambda a, b: min(a[0], b[0])), "m is", "the larger of the two"),
        (s.merge_with(lambda a, b: a[0] + b[0]), "m is", "the larger of the two"),
        (s.merge_with(None, lambda a, b: a[1] + b[1]), "l is", "taken as they are"),
        (
            s.merge_with(
                None,
                s.about(1, *[lambda m, o: exp(max(m, o) - m)] * 2),
            ),
            "l is",
            "the wrong way round",
        ),
        (
            s.merge_with(None, s.about(1, *[lambda m, o: exp(o - max(m, o))] * 2)),
            "l is",
            "takes the other one's factor",
        ),
        (
            s.merge_with(None, s.about(1, lambda m, o: exp(m - max(m, o)), lambda m, o: 1.0)),
            "l is",
            "is not known beforehand",
        ),
        (
            s.merge_with(None, s.about(1, lambda m, o: exp(m - o), lambda m, o: 1.0)),
            "l is",
            "taken to b's maximum",
        ),
        (s.merge_with(None, lambda a, b: a[1]), "l is", "alone is left of it"),
        (s.merge_with(None, None, lambda a, b: a[2] + b[2]), "acc is", "taken as they are"),
        (
            s.merge_with(None, None, lambda a, b: s.merge(a, b)[2] / s.merge(a, b)[1]),
            "acc is",
            "the division comes once",
        ),
        (s.merge_unguarded, "two empty states", "-inf - (-inf) is nan"),
        (s.merge_by_exponentials, "OverflowError", "is infinite"),
        (s.merge_by_exponentials_in_numpy, "scores near 1000", "is infinite"),
        (lambda a, b: s.merge(a, b)[1:], "it takes the tuple (m, l, acc)", ""),
        (lambda a, b: ("m", 1.0, 1.0), "a str as m; it is a number", ""),
    ],
)
@pytest.mark.parametrize("seed", [1, 2])
def test_merge_wrong(answer, message, means, seed):
    fails(check("12.1", answer, seed=seed), message=message, means=means)


@pytest.mark.parametrize(
    ("answer", "message", "means"),
    [
        (s.outputs_with(lambda a, b: a[0] + b[0]), "L is", "no sum of logarithms"),
        (s.outputs_with(lambda a, b: max(a[0], b[0])), "L is", "the larger one alone"),
        (s.outputs_with(lambda a, b: (a[0] + b[0]) / 2), "L is", "the mean of both"),
        (s.outputs_with(lambda a, b: exp(a[0]) + exp(b[0])), "L is", "The logarithm is missing"),
        (
            s.outputs_with(lambda a, b: math.log2(exp(a[0]) + exp(b[0]))),
            "L is",
            "a natural logarithm",
        ),
        (
            s.outputs_with(lambda a, b: math.log1p(exp(-abs(a[0] - b[0])))),
            "L is",
            "is not added again",
        ),
        (s.outputs_with(None, lambda a, b: (a[1] + b[1]) / 2), "o is", "are averaged"),
        (s.outputs_with(None, lambda a, b: a[1] + b[1]), "o is", "The outputs are added"),
        (
            s.outputs_with(
                None,
                lambda a, b: (exp(b[0]) * a[1] + exp(a[0]) * b[1]) / (exp(a[0]) + exp(b[0])),
            ),
            "o is",
            "the other one's share",
        ),
        (
            s.outputs_with(None, lambda a, b: (a[0] * a[1] + b[0] * b[1]) / (a[0] + b[0])),
            "o is",
            "The shares are L itself",
        ),
        (
            s.outputs_with(None, lambda a, b: exp(a[0]) * a[1] + exp(b[0]) * b[1]),
            "o is",
            "not divided by what both halves weigh",
        ),
        (s.outputs_with(None, lambda a, b: a[1]), "o is", "One half alone"),
        (s.outputs_plainly, "OverflowError", "is infinite"),
        (s.outputs_unguarded, "two empty states", "-inf - (-inf) is nan"),
        (lambda a, b: s.merge_outputs(a, b)[0], "it takes the tuple (L, o)", ""),
    ],
)
@pytest.mark.parametrize("seed", [1, 2])
def test_outputs_wrong(answer, message, means, seed):
    fails(check("12.2", answer, seed=seed), message=message, means=means)


@pytest.mark.parametrize(
    ("answer", "message", "means"),
    [
        (s.flops_with(lambda n, d, b: 2 * n * d + 6 * n), "in the three steps", "is two FLOPs"),
        (s.flops_with(lambda n, d, b: 4 * n * d), "in the three steps", "the products alone"),
        (s.flops_with(lambda n, d, b: 4 * n * d + 5 * n), "in the three steps", "a subtraction"),
        (
            s.flops_with(lambda n, d, b: n * (4 * n * d + 6 * n)),
            "in the three steps",
            "all of n rows",
        ),
        (s.flops_with(flops.in_blocks), "in the three steps", "of the walk over blocks"),
        (s.flops_with(None, flops.in_three_steps), "over blocks", "of the three steps"),
        (s.flops_with(None, lambda n, d, b: 4 * n * d), "over blocks", "the products alone"),
        (
            s.flops_with(None, lambda n, d, b: 4 * n * d + 5 * n + n // b * 5 + d),
            "over blocks",
            "correction of acc is missing",
        ),
        (
            s.flops_with(None, lambda n, d, b: 4 * n * d + 6 * n + n // b * (d + 5)),
            "over blocks",
            "The division comes once",
        ),
        (
            s.flops_with(None, lambda n, d, b: flops.in_blocks(n, d, b) - 2 * (n // b)),
            "over blocks",
            "counts once a block",
        ),
        (
            s.flops_with(None, lambda n, d, b: 4 * n * d + 5 * n + n * (d + 5) + d),
            "over blocks",
            "counts once a block",
        ),
        (s.flops_with(None, None, lambda n, d, b: True), "fewer is True", "Neither is always"),
        (s.flops_with(None, None, lambda n, d, b: False), "fewer is False", "Neither is always"),
        (s.flops_with(None, None, lambda n, d, b: "yes"), "True or False", ""),
        (lambda *args: s.row_flops(*args)[:2], "(three_steps, blocks, fewer)", ""),
    ],
)
@pytest.mark.parametrize("seed", [1, 2])
def test_flops_wrong(answer, message, means, seed):
    fails(check("12.3", answer, seed=seed), message=message, means=means)


@pytest.mark.parametrize(
    ("answer", "message", "means"),
    [
        (s.requested_with(lambda n, d, bm, bn, i, c: n * d), "bytes of q", "Elements are counted"),
        (
            s.requested_with(lambda n, d, bm, bn, i, c: up(n, bm) * bm * d * i),
            "bytes of q",
            "Masked lanes ask for nothing",
        ),
        (
            s.requested_with(lambda n, d, bm, bn, i, c: n * d * i * up(n, bn)),
            "bytes of q",
            "before its loop",
        ),
        (s.requested_with(predict.of_k), "bytes of q", "the requests of k"),
        (s.requested_with(None, predict.of_q), "bytes of k", "the distinct bytes"),
        (s.of_k_but(lambda n, bm, bn: n * n, lambda n, bm, bn: n * n), "of k", "one query at"),
        (s.of_k_but(lambda n, bm, bn: up(n, bm) * n), "of k", "stops at the block"),
        (
            s.of_k_but(None, lambda n, bm, bn: predict.keys_asked_for(n, bm, bn, True)),
            "of k",
            "walks over all keys",
        ),
        (s.of_k_but(None, lambda n, bm, bn: n // bm * n), "of k", ""),
        (s.of_k_but(lambda n, bm, bn: sum(s.ends(n, bm))), "of k", "Blocks are whole"),
        (
            s.of_k_but(lambda n, bm, bn: sum(e // bn * bn for e in s.ends(n, bm))),
            "of k",
            "is rounded up",
        ),
        (
            s.of_k_but(lambda n, bm, bn: sum(min(up(f + 1, bn) * bn, n) for f in range(0, n, bm))),
            "of k",
            "and not of its first one",
        ),
        (
            s.of_k_but(
                lambda n, bm, bn: sum(up(e, bn) * bn for e in s.ends(n, bm)),
                lambda n, bm, bn: up(n, bm) * up(n, bn) * bn,
            ),
            "of k",
            "Masked lanes ask for nothing",
        ),
        (
            s.requested_with(None, lambda *a: predict.of_k(*a[:5], False) // (2 if a[5] else 1)),
            "of k",
            "not for half of all",
        ),
        (s.requested_with(None, lambda *a: 2 * predict.of_k(*a)), "of k", "k and v together"),
        (
            s.requested_with(None, lambda n, d, bm, bn, i, c: predict.of_k(n, d, bn, bm, i, c)),
            "of k",
            "divide by block_m",
        ),
        (
            s.requested_with(None, lambda n, d, bm, bn, i, c: n * n * d * i / bm),
            "is an int",
            "// divides",
        ),
        (lambda *args: sum(s.requested(*args)), "it takes the tuple", ""),
    ],
)
@pytest.mark.parametrize("seed", [1, 2])
def test_requested_wrong(answer, message, means, seed):
    fails(check("12.4", answer, seed=seed), message=message, means=means)


@pytest.mark.parametrize(
    ("answer", "message", "means"),
    [
        (s.doubled_with(lambda *args: 4.0), "ideal is", "there is no n² among them"),
        (s.doubled_with(lambda *args: 1.0), "ideal is", "after over what was before"),
        (s.doubled_with(None, lambda *args: 2.0), "requested is", "That is linear in n"),
        (s.doubled_with(None, lambda *args: 4.0), "requested is", "stay linear"),
        (
            s.doubled_with(None, s.ratio(doubled.three_launches)),
            "requested is",
            "the three launches, which write",
        ),
        (
            s.doubled_with(None, s.ratio(lambda n, d, bm: 2 * n * d + n // bm * n * d)),
            "requested is",
            "over k and over v",
        ),
        (
            s.doubled_with(None, s.ratio(lambda n, d, bm: n * d + n // bm * 2 * n * d)),
            "requested is",
            "The output is stored as well",
        ),
        (s.doubled_with(None, None, lambda *args: 4.0), "three_launches is", "stay linear"),
        (s.doubled_with(None, None, lambda *args: 2.0), "three_launches is", "n² elements"),
        (
            s.doubled_with(None, None, s.ratio(lambda n, d, bm: 4 * n * d + 2 * n * n)),
            "three_launches is",
            "each written once and read once",
        ),
        (lambda *args: 2.0, "(ideal, requested, three_launches)", ""),
        (lambda *args: (2.0, "four", 4.0), "a str; requested is a number", ""),
    ],
)
@pytest.mark.parametrize("seed", [1, 2])
def test_doubled_wrong(answer, message, means, seed):
    fails(check("12.5", answer, seed=seed), message=message, means=means)


@pytest.mark.parametrize(
    ("answer", "message", "means"),
    [
        (s.fault_without_experiment, "says 'nothing'", ""),
        (s.fault_with({"l alone": "acc alone"}), "it is 'l alone'", "take values of 1"),
        (s.fault_with({"no correction": "nothing"}), "it is 'no correction'", "the first block"),
        (s.fault_with({"l alone": "no correction"}), "it is 'l alone'", "Values of 1"),
        (s.fault_with({"scale twice": "nothing"}), "it is 'scale twice'", "d above 1"),
        (
            s.fault_with({"masked behind the maximum": "no maximum"}),
            "it is 'masked behind",
            "With a whole block",
        ),
        (
            s.fault_with({"masked behind the maximum": "masked with 0"}),
            "it is 'masked behind",
            "Scores near 0 tell",
        ),
        (s.fault_with({"no maximum": "nothing"}), "it is 'no maximum'", "above 709"),
        (s.fault_with({"masked with 0": "nothing"}), "it is 'masked with 0'", "not whole"),
        (s.fault_with({"nothing": "l alone"}), "it is 'nothing'", "right on every input"),
        (s.fault_by_trying, "made 9 experiments", "one fault alone shows"),
        (lambda attend: "broken", "a verdict is one of", ""),
        (lambda attend: attend(1.0, [[1.0]], [1.0]), "raised ValueError", ""),
    ],
)
@pytest.mark.parametrize("seed", [1, 2])
def test_fault_wrong(answer, message, means, seed):
    result = check("12.6", answer, seed=seed)
    assert result.points == 0
    assert message in result.message, result
    assert means in result.means, result


@pytest.mark.parametrize(
    ("answer", "message", "means"),
    [
        (s.roofs_with(lambda t, r, c, d, i: i * 1000 * t // r), "length is", "rounded down"),
        (s.roofs_with(lambda t, r, c, d, i: up(2 * i * 1000 * t, r)), "length is", "two FLOPs"),
        (s.roofs_with(lambda t, r, c, d, i: up(3 * i * 1000 * t, 4 * r)), "length is", "Four"),
        (s.roofs_with(lambda t, r, c, d, i: up(1000 * t, r)), "length is", "not bytes"),
        (s.roofs_with(lambda t, r, c, d, i: up(i * t, r)), "length is", "1000 FLOPs a byte"),
        (s.roofs_with(lambda t, r, c, d, i: up(i * 1000 * t, c)), "length is", "from DRAM"),
        (s.roofs_with(lambda t, r, c, d, i: up(i * 1000 * t, r * d)), "length is", "it cancels"),
        (s.roofs_with(None, lambda t, r, c, d, i: i * 1000 * t // (2 * c)), "block_m", "down"),
        (s.roofs_with(None, lambda t, r, c, d, i: up(i * 1000 * t, c)), "block_m", "brings k and"),
        (s.roofs_with(None, lambda t, r, c, d, i: up(i * 1000 * t, 2 * r)), "block_m", "the L2"),
        (s.roofs_with(None, lambda t, r, c, d, i: up(1000 * t, 2 * c)), "block_m", "not bytes"),
        (s.roofs_with(None, None, lambda *args: True), "unfused is True", "However long"),
        (s.roofs_with(None, None, lambda *args: False), "unfused is False", "However long"),
        (s.roofs_with(None, lambda *args: 1.5), "block_m is an int", "// divides"),
        (lambda *args: 3, "(length, block_m, unfused)", ""),
    ],
)
@pytest.mark.parametrize("seed", [1, 2])
def test_roofs_wrong(answer, message, means, seed):
    fails(check("12.10", answer, seed=seed), message=message, means=means)


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


def test_the_tenth_question_stands_behind_the_ninth(own_progress):
    (names,) = [
        [name for name, _, _ in rows] for chapter, rows in progress().sets if chapter == "12"
    ]
    assert names == [f"12.{number}" for number in range(1, 11)]
