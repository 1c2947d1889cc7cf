"""Wrong numbers of set 12 get the remark meant for them."""

import math

import pytest

from kernels.grading import check
from kernels.grading.questions.ch12 import doubled, flops, predict
from tests.grading import submissions_12 as s
from tests.grading.known_wrong import fails

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
        (s.fault_without_experiment, "says 'nothing'", None),
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
    fails(check("12.6", answer, seed=seed), message=message, means=means)


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
