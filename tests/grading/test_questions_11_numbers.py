"""Wrong numbers of set 11 get the remark meant for them; what its checks rest on is right."""

import math
import random
import re
from itertools import product

import pytest
import torch

from kernels.grading import check, progress
from kernels.grading.questions.ch11 import bounds, folding, ledgers, predict
from kernels.launch import interpreting
from kernels.ops.prologues import folding as package
from kernels.paths import ROOT
from tests.grading import submissions_11 as s
from tests.grading import submissions_11_kernels as kernels
from tests.grading.edited import edited
from tests.grading.known_wrong import fails

up = s.up


@pytest.mark.parametrize(
    ("answer", "message", "means"),
    [
        (s.asks_with(times=lambda m, n, k, bm, bn, i: up(m, bm)), "times is", "row of tiles share"),
        (s.asks_with(times=lambda m, n, k, bm, bn, i: n // bn), "times is", "is rounded up"),
        (s.asks_with(times=lambda *args: 1), "times is", "as in two kernels"),
        (
            s.asks_with(times=lambda m, n, k, bm, bn, i: 2 * up(n, bn)),
            "times is",
            "how often a row is read",
        ),
        (
            s.asks_with(one=lambda m, n, k, bm, bn, i: m * k * i * up(n, bn)),
            "one_kernel is",
            "once more for the product",
        ),
        (
            s.asks_with(one=lambda m, n, k, bm, bn, i: 2 * m * k * i),
            "one_kernel is",
            "every block of columns asks anew",
        ),
        (
            s.asks_with(one=lambda m, n, k, bm, bn, i: 2 * up(m, bm) * bm * k * i * up(n, bn)),
            "one_kernel is",
            "Masked lanes ask for nothing",
        ),
        (
            s.asks_with(one=lambda m, n, k, bm, bn, i: 2 * m * k * up(n, bn)),
            "one_kernel is",
            "not bytes",
        ),
        (
            s.asks_with(two=lambda m, n, k, bm, bn, i: m * k * i * (1 + up(n, bn))),
            "two_kernels is",
            "h is stored too",
        ),
        (
            s.asks_with(two=lambda m, n, k, bm, bn, i: 3 * m * k * i),
            "two_kernels is",
            "by every block of columns",
        ),
        (s.asks_with(two=predict.one_kernel), "two_kernels is", "That is one kernel's"),
        (s.asks_with(times=lambda m, n, k, bm, bn, i: n / bn), "is an int", "// divides"),
    ],
)
def test_asks_wrong(answer, message, means):
    fails(check("11.1", answer, seed=1), message=message, means=means)


@pytest.mark.parametrize(
    ("answer", "message", "means"),
    [
        (s.saved_with(requested=lambda m, n, i, c, p: m * n * i), "requested is", "a round trip"),
        (
            s.saved_with(requested=lambda m, n, i, c, p: 3 * m * n * i),
            "requested is",
            "stored either way",
        ),
        (s.saved_with(requested=predict.saved_dram), "requested is", "what DRAM is spared"),
        (s.saved_with(dram=predict.saved_requests), "dram is", "How much of it ever reached"),
        (
            s.saved_with(dram=lambda m, n, i, c, p: 0 if m * n * i <= c else 2 * m * n * i),
            "dram is",
            "the read is free, and not the write",
        ),
        (
            s.saved_with(dram=lambda m, n, i, c, p: predict.saved_dram(m, n, i, c, False)),
            "dram is",
            "y is written over h",
        ),
        (
            s.saved_with(dram=lambda m, n, i, c, p: predict.saved_dram(m, n, i, c - 1, p)),
            "dram is",
            "just l2_bytes bytes",
        ),
        (
            s.saved_with(dram=lambda m, n, i, c, p: 0 if p else predict.saved_dram(m, n, i, c, p)),
            "dram is",
            "in place or not",
        ),
        (s.saved_with(dram=lambda *args: 0), "dram is", "does not hold h"),
        (lambda *args: 0, "it takes the tuple (requested, dram)", ""),
    ],
)
def test_saved_wrong(answer, message, means):
    fails(check("11.2", answer, seed=1), message=message, means=means)


SWAPPED = {"folded": "prologue", "prologue": "folded"}


@pytest.mark.parametrize(
    ("answer", "message", "means"),
    [
        (lambda record: "folded", "should say", "the same word for every record"),
        (s.way_but({"two, L2": "two, DRAM"}), "should say", "DRAM moved is never looked at"),
        (s.way_but({"folded": "prologue"}), "should say", "twice for each block of columns"),
        (s.way_but({"prologue": "folded"}), "should say", "a folded product once"),
        (s.way_but(SWAPPED), "should say", "have changed places"),
        (s.way_but({"folded anew": "two, DRAM"}), "should say", "need not be a norm and a product"),
        (
            lambda record: "two, L2" if record.launches == 2 else "folded",
            "should say",
            "and no more",
        ),
        (s.way_but({"two, L2": "folded anew"}), "should say", "DRAM moved h once"),
        (lambda record: "two", "it takes one of", ""),
    ],
)
def test_ways_wrong(answer, message, means):
    fails(check("11.7", answer, seed=1), message=message, means=means)


def exact(norm_weight, weight):
    return weight.float() * norm_weight.float()


@pytest.mark.parametrize(
    ("answer", "message", "means"),
    [
        (
            s.fold_with(sums=lambda g, b, w, a: exact(g, w).sum(1)),
            ": sums",
            "sums are of weights that were not rounded",
        ),
        (s.fold_with(sums=lambda g, b, w, a: w.float().sum(1)), ": sums", "sums of weight"),
        (
            s.fold_with(sums=lambda g, b, w, a: exact(g, w).to(w.dtype).float().mean(1)),
            ": sums",
            "c is its sum",
        ),
        (s.fold_with(sums=lambda g, b, w, a: -s.fold(g, b, w, a)[1]), ": sums", "The sign is"),
        (
            s.fold_with(sums=lambda g, b, w, a: s.fold(g, b, w, a)[1].to(w.dtype)),
            "returned torch.float16",
            "sums and bias are fp32",
        ),
        (
            s.fold_with(sums=lambda g, b, w, a: s.fold(g, b, w, a)[1].to(w.dtype).float()),
            ": sums",
            "sum in fp32",
        ),
        (s.fold_with(folded=lambda g, b, w, a: w), ": folded", "norm_weight is not in it"),
        (
            s.fold_with(
                folded=lambda g, b, w, a: (exact(g, w) - exact(g, w).mean(1)[:, None]).to(w)
            ),
            ": folded",
            "not the one asked for",
        ),
        (
            s.fold_with(folded=lambda g, b, w, a: exact(g, w)),
            "returned torch.float32",
            "folded has the dtype of weight",
        ),
        (s.fold_with(bias=lambda g, b, w, a: a.float()), ": bias", "norm_bias is missing"),
        (s.fold_with(bias=lambda g, b, w, a: w.float() @ b.float()), ": bias", "bias is missing"),
        (
            s.fold_with(bias=lambda g, b, w, a: a.float() + exact(g, w).to(w).float() @ b.float()),
            ": bias",
            "multiplied by folded",
        ),
        (
            s.fold_with(bias=lambda g, b, w, a: a.float() + w.float() @ g.float()),
            ": bias",
            "where norm_bias belongs",
        ),
        (lambda g, b, w, a: w, "it takes the tuple (folded, sums, bias)", ""),
        (lambda g, b, w, a: s.fold(g, b, w.mul_(g), a), "changed its input weight", ""),
    ],
)
def test_fold_wrong(answer, message, means):
    fails(check("11.8", answer, seed=1), message=message, means=means)


def scaled(part, by):
    """The right number of a part, times what `by` says of (row, std, dtype)."""
    right = {
        "unrounded": bounds.of_unrounded,
        "rounded": bounds.of_rounded,
        "centred": bounds.of_centred,
    }[part]
    return s.means_with(**{part: lambda *args: right(*args) * by(*args)})


def before_rounding(part):
    def by(row, std, dtype):
        taken = bounds.centred(row) if part == "centred" else row
        return bounds.size(taken) / bounds.size(bounds.rounded(taken, dtype))

    return by


@pytest.mark.parametrize(
    ("answer", "message", "means"),
    [
        (scaled("unrounded", lambda r, std, d: 2), "unrounded is", "half of eps"),
        (scaled("unrounded", lambda r, std, d: 1 / std), "unrounded is", "Multiply by std"),
        (scaled("unrounded", lambda r, std, d: 2**24), "unrounded is", "fp32's rounding"),
        (s.means_with(unrounded=bounds.of_rounded), "unrounded is", "with rounded sums"),
        (scaled("rounded", lambda r, std, d: 2**-24), "rounded is", "fp32's rounding is missing"),
        (scaled("rounded", lambda r, std, d: 0.5), "rounded is", "24 binary digits"),
        (scaled("rounded", lambda r, std, d: 1 / bounds.size(bounds.rounded(r, d))), "", "size of"),
        (s.means_with(centred=bounds.of_rounded), "centred is", "the row as it was"),
        *(
            (scaled(part, before_rounding(part)), f"{part} is", "the row before rounding")
            for part in ("unrounded", "rounded", "centred")
        ),
        (
            s.means_with(
                centred=lambda r, std, d: bounds.of_rounded(
                    bounds.centred(bounds.rounded(r, d)), std, d
                )
            ),
            "centred is",
            "Its rounding comes last",
        ),
        (scaled("centred", lambda r, std, d: 1.01), "centred is", "compute in float64"),
        (lambda *args: 7.0, "it takes the tuple", ""),
    ],
)
def test_bounds_wrong(answer, message, means):
    fails(check("11.10", answer, seed=1), message=message, means=means)


@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
def test_the_row_of_the_page_has_a_largest_mean(dtype):
    text = (ROOT / "solutions/11_what_fuses_around_a_product.ipynb").read_text(encoding="utf-8")
    (row,) = re.findall(r"largest_means\((\[.*?\]), 0.25", text)
    means = edited("11.10")(eval(row), 0.25, dtype)
    assert all(0 < one < math.inf for one in means)


@pytest.mark.parametrize(("m", "k", "n"), [(70, 100, 90), (5, 7, 3)])
def test_a_prologue_asks_as_often_as_its_formula_says(m, k, n):
    """The kernel of the page that merges in one pass: its programs read x twice."""
    x, g, w = torch.ones(m, k), torch.ones(k), torch.ones(n, k)
    with interpreting() as launches:
        kernels.norm_by_merging(x, g, g, w)
    (launch,) = launches
    asked = {name: requested for name, _, requested, *_ in launch.arena.totals()}
    assert asked["x_ptr"] == predict.one_kernel(m, n, k, 32, 32, 4)
    assert launch.grid[1] == predict.times(m, n, k, 32, 32, 4)


def test_every_record_made_for_a_way_has_it():
    for seed, way, number in product(range(40), ledgers.WAYS, range(5)):
        record = ledgers._made(way, random.Random(seed), number)
        assert ledgers.which(record) == way, record
        assert not 0.7 < record.of_x / record.of_weight < 1.4


def test_a_prologue_record_is_what_the_ledger_counts():
    """Requests and distinct bytes of a kernel with norm as prologue, but for bias."""
    m, n, k = 70, 90, 100
    x, g, b, w = torch.ones(m, k), torch.ones(k), torch.ones(k), torch.ones(n, k)
    with interpreting() as launches:
        kernels.norm_by_merging(x, g, b, w)
    (launch,) = launches
    totals = [total[1:] for total in launch.arena.totals()]
    told = ledgers._recorded("prologue", (m, n, k, 4, 32, 32), 1.0)
    bias = n * 4
    assert sum(one[0] + one[2] for one in totals) == told.unique - bias
    assert sum(one[1] + one[3] for one in totals) == told.requested - bias * up(m, 32)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_folded_is_what_the_package_folds_without_centring(dtype):
    given = [t.to(dtype) for t in folding._given(random.Random(5), 20, 64, "fp32")]
    ours = folding.fold(*given)
    theirs = package.composed_fold(*given, centred=False)
    assert torch.equal(ours[0], theirs.weight.double())
    torch.testing.assert_close(ours[2].float(), theirs.bias[:20], rtol=1e-5, atol=1e-5)


def test_a_mean_at_its_bound_shows_as_much_as_the_rounding():
    """What unrounded sums leave of a mean is u · size at the bound, computed from y itself."""
    rng = random.Random(2)
    for row, std, dtype in bounds._calls(rng):
        kept = bounds.rounded(row, dtype)
        mean = bounds.of_unrounded(row, std, dtype)
        x = [mean + std * rng.gauss(0, 1) for _ in row]
        mu = sum(x) / len(x)
        y = sum(a * b for a, b in zip(x, kept, strict=True))
        off = abs((y - mu * sum(row)) - (y - mu * sum(kept))) / std * mean / mu
        assert off == pytest.approx(bounds.unit(dtype) * bounds.size(kept), rel=1e-6)


def test_no_row_has_a_sum_that_is_rounded_to_nothing():
    for seed in range(100):
        for call in bounds._calls(random.Random(seed)):
            numbers = s.means(*call), s.means_by_numbers(*call)
            for one, other in zip(*numbers, strict=True):
                assert one == pytest.approx(other, rel=1e-9)


def test_the_folded_kernel_is_right_for_what_fold_returns():
    """11.8 and 11.9 together are the norm and the product."""
    generator = torch.Generator().manual_seed(1)
    x, weight = (torch.randn(shape, generator=generator) for shape in ((9, 40), (7, 40)))
    g, b, bias = (torch.randn(size, generator=generator) for size in (40, 40, 7))
    y = edited("11.9")(x + 2, *edited("11.8")(g, b, weight, bias))
    h = torch.nn.functional.layer_norm(x.double() + 2, (40,), g.double(), b.double())
    torch.testing.assert_close(y.double(), h @ weight.double().T + bias, rtol=1e-4, atol=1e-4)


def test_the_ten_questions_stand_in_order(own_progress):
    (names,) = [
        [name for name, _, _ in rows] for chapter, rows in progress().sets if chapter == "11"
    ]
    assert names == [f"11.{number}" for number in range(1, 11)]
