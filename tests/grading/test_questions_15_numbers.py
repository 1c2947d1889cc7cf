"""Wrong numbers, names and rules of set 15 are told by what gave them."""

import pytest

from kernels.grading import check
from kernels.grading.questions.ch15 import inverted, kept
from kernels.grading.questions.ch15 import peaks as timelines
from tests.grading import submissions_15 as s
from tests.grading.known_wrong import fails

_PLAIN, _GELU, _BOTH = kept.RIGHT


@pytest.mark.parametrize(
    ("answer", "message", "means"),
    [
        (s.all_off_by(lambda c: 4 * c.tokens * c.heads), "plain", "L is missing"),
        (s.all_off_by(lambda c: 64), "plain", "seeds are missing"),
        (s.all_off_by(lambda c: 8 * c.tokens), "plain", "mean and inv_std are missing"),
        (s.all_off_by(lambda c: 4 * c.tokens), "plain", "mean and inv_std are two"),
        (
            s.all_off_by(lambda c: 4 * c.tokens * (c.heads + 2) + 64),
            "plain",
            "L, the statistics and the seeds",
        ),
        (
            s.all_off_by(lambda c: 2 * c.tokens * c.width * c.itemsize),
            "plain",
            "three vectors of E",
        ),
        (
            s.all_off_by(lambda c: (4 - c.itemsize) * c.tokens * (c.heads + 2)),
            "plain",
            "whatever the dtype",
        ),
        (s.kept_with(plain=lambda *a: _PLAIN(1, *a[1:])), "plain", "The whole batch is kept"),
        (s.kept_with(plain=lambda *a: _PLAIN(*a[:5], 1)), "plain", "not bytes"),
        (s.kept_with(plain=_BOTH, both=_PLAIN), "plain", "in the order (plain, gelu, both)"),
        (s.kept_with(plain=lambda *a: _PLAIN(*a[:5], 2)), "plain", "4 in fp32"),
        (s.all_off_by(lambda c: 64 - 64 * c.batch), "plain", "whatever the batch"),
        (
            s.all_off_by(lambda c: 4 * c.tokens * c.heads * (1 - c.length)),
            "plain",
            "the scores are not kept",
        ),
        (s.kept_with(plain=_GELU), "plain", "u is kept as well as a"),
        (s.kept_with(gelu=_PLAIN), "gelu", "What a flag makes again is not kept"),
        (s.kept_with(gelu=_BOTH), "gelu", "with both flags"),
        (s.kept_with(gelu=lambda *a: int(kept.kept(a, inner=0))), "gelu", "u is kept for that"),
        (s.kept_with(gelu=lambda *a: a[0] * a[1] * a[3] * a[5]), "gelu", "what the flag spares"),
        (s.kept_with(both=_GELU), "both", "What a flag makes again"),
        (
            s.kept_with(both=lambda *a: int(kept.kept(a, wide=3, inner=1))),
            "both",
            "qkv is kept for that",
        ),
        (s.kept_with(both=lambda *a: int(kept.kept(a, wide=6))), "both", "Both flags are set"),
        (
            s.kept_with(both=s.off_by(_BOTH, lambda c: 4 * c.tokens * c.heads)),
            "both",
            "attention's backward makes its weights of it",
        ),
    ],
)
def test_kept_wrong(answer, message, means):
    fails(check("15.1", answer, seed=1), message=f": {message} is", means=means)


@pytest.mark.parametrize(
    ("fault", "means"),
    [
        ("zeros", "0 and 1 in their places change nothing"),
        ("ones", "nan"),
        ("nan in masks", "turn it with ~"),
        ("numbers alone", "asks a alone"),
        ("one number", "Change one tensor at a time"),
        ("doubled", "0 and 1 in their places"),
        ("all at once", "one tensor at a time"),
        ("first gradient", "every gradient of the tuple"),
        ("last gradient", "every gradient of the tuple"),
        ("sums", "compare every gradient"),
        ("turned", "Change one tensor"),
    ],
)
def test_needless_wrong(fault, means):
    answer = s.kept_for_nothing_with(fault)
    fails(check("15.2", answer, seed=1), message="kept for nothing", means=means)


@pytest.mark.parametrize(
    ("answer", "message", "means"),
    [
        (s.kept_by_trying_long, "calls on one layer; 8 will do", "one for each tensor"),
        (lambda layer: set(), "says that nothing was kept", "Change one tensor"),
        (lambda layer: set(layer.saved), "were kept for nothing", "one tensor at a time"),
        (lambda layer: set(layer.saved), "kept for nothing", "Change one tensor"),
    ],
)
def test_experiments_wrong(answer, message, means):
    fails(check("15.2", answer, seed=1), message=message, means=means)


def with_fault(fault):
    return lambda *args: timelines._with(*args, fault)


def _plain(steps, sizes):
    return max(timelines.alive(steps, sizes))


@pytest.mark.parametrize(
    ("answer", "message", "means"),
    [
        (
            s.peaks_with(plain=lambda t, b, z, a: sum(z[n] for _, w in t for n in w)),
            "plain",
            "the sum of all tensors",
        ),
        (
            s.peaks_with(plain=lambda t, b, z, a: timelines._ended(t, z, 1, True)),
            "plain",
            "that step counts",
        ),
        (
            s.peaks_with(plain=lambda t, b, z, a: timelines._ended(t, z, 0, False)),
            "plain",
            "is a result",
        ),
        (s.peaks_with(plain=lambda t, b, z, a: timelines.alive(t, z)[-1]), "plain", "last step"),
        (s.peaks_with(plain=lambda t, b, z, a: timelines.alive(t, z)[b]), "plain", "every step"),
        (
            s.peaks_with(plain=lambda t, b, z, a: max(timelines.alive(t, z)[:b])),
            "plain",
            "one timeline",
        ),
        (s.peaks_with(plain=lambda *args: timelines.peaks(*args)[1]), "plain", "the checkpoint"),
        (
            s.peaks_with(with_again=lambda t, b, z, a: _plain(t, z)),
            "with_again",
            "until it is made again",
        ),
        (
            s.peaks_with(with_again=lambda t, b, z, a: _plain(t, z) - z[a]),
            "with_again",
            "isn't simply off the peak",
        ),
        (
            s.peaks_with(with_again=lambda t, b, z, a: _plain(t, z | {a: 0})),
            "with_again",
            "it is alive once more",
        ),
        (s.peaks_with(with_again=with_fault("at the turn")), "with_again", "until then it takes"),
        (
            s.peaks_with(with_again=with_fault("never gone")),
            "with_again",
            "the tensor is gone",
        ),
        (s.peaks_with(with_again=with_fault("one life")), "with_again", "the first counts too"),
        (s.peaks_with(with_again=with_fault("a result")), "with_again", "is no result"),
        (s.peaks_with(with_again=lambda *a: min(s.peaks(*a))), "with_again", "may cost memory"),
        (s.peaks_with(with_again=timelines._not_held), "with_again", "lengthens other lives"),
        (s.peaks_with(with_again=timelines._not_beside), "with_again", "is a step too"),
    ],
)
def test_peaks_wrong(answer, message, means):
    fails(check("15.4", answer, seed=1), message=f"says {message} =", means=means)


@pytest.mark.parametrize("place", range(len(inverted.RULES)))
def test_lost_wrong(place):
    what, rule = inverted.RULES[place]
    fails(check("15.9", s.rebuilt_by_rule(rule), seed=1), message="lost[", means=what)


@pytest.mark.parametrize(
    ("x_hat", "means"),
    [
        (lambda y, w, b, lost: (y - b) / w, "what the division gave"),
        (lambda y, w, b, lost: ((y - b) / w).nan_to_num(), "set all of them to 0"),
        (lambda y, w, b, lost: ((y - b) / w).masked_fill(lost, float("nan")), "hold nan"),
        (lambda y, w, b, lost: (y / w).masked_fill(lost, 0), "bias is not taken away"),
        (lambda y, w, b, lost: ((y + b) / w).masked_fill(lost, 0), "bias is added"),
        (lambda y, w, b, lost: (y - b / w).masked_fill(lost, 0), "The difference comes first"),
        (lambda y, w, b, lost: ((y - b) * w).masked_fill(lost, 0), "multiplied by weight"),
        (lambda y, w, b, lost: (y - b).masked_fill(lost, 0), "not divided by weight"),
    ],
)
def test_x_hat_wrong(x_hat, means):
    fails(check("15.9", s.rebuilt_with(x_hat), seed=1), message="x_hat[", means=means)


@pytest.mark.parametrize(
    ("answer", "message", "means"),
    [
        (s.costs_with(gelu=lambda s, i, f, b: 1 / b), "gelu", "two bytes move"),
        (s.costs_with(gelu=lambda s, i, f, b: 2 * i / b), "gelu", "for a number"),
        (s.costs_with(gelu=lambda s, i, f, b: b / 2), "gelu", "bytes divided by bytes a second"),
        (s.costs_with(attention=lambda s, i, f, b: 4 / b), "attention", "the longer of its two"),
        (
            s.costs_with(attention=lambda s, i, f, b: 4 * s / i / f),
            "attention",
            "the longer of its two",
        ),
        (
            s.costs_with(attention=lambda s, i, f, b: 4 * s / i / f + 4 / b),
            "attention",
            "the longer of its two",
        ),
        (
            s.costs_with(attention=lambda s, i, f, b: max(2 * s / i / f, 4 / b)),
            "attention",
            "two products",
        ),
        (
            s.costs_with(attention=lambda s, i, f, b: max(4 * s / f, 4 / b)),
            "attention",
            "has itemsize bytes",
        ),
        (
            s.costs_with(attention=lambda s, i, f, b: max(4 * s / i / f, 2 / b)),
            "attention",
            "four bytes move",
        ),
        (s.costs_with(turn=lambda s, i, f, b: f / b), "turn", "a number has itemsize bytes"),
        (s.costs_with(turn=lambda s, i, f, b: i * f / b / 4), "turn", "the two fours cancel"),
        (s.costs_with(turn=lambda s, i, f, b: b / f / i), "turn", "solve it for S"),
        (s.costs_with(turn=lambda s, i, f, b: int(i * f / b)), "turn", "cut to a whole number"),
        (s.costs_with(turn=lambda s, i, f, b: 2 * i * f / b), "turn", "the two fours cancel"),
        (
            s.costs_with(attention=lambda s, i, f, b: max(8 * s / i / f, 4 / b)),
            "attention",
            "two of them already",
        ),
        (s.costs_with(turn=lambda s, i, f, b: s), "turn", "the length that was given"),
    ],
)
def test_costs_wrong(answer, message, means):
    fails(check("15.10", answer, seed=1), message=f": {message} is", means=means)
