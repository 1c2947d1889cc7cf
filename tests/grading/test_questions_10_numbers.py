"""Wrong numbers of set 10 get the remark meant for them; what its checks rest on is right."""

import random
from itertools import product

import pytest
import torch

from kernels.grading import check, progress
from kernels.grading.questions.ch10 import order, predict, roofs, suspects
from kernels.grading.questions.ch10.accumulator import total_of_ones
from kernels.grading.questions.kits import products as kit
from kernels.launch import interpreting, recording
from kernels.launch.triton_compile import compile_launch
from tests.grading import submissions_10 as s
from tests.grading.known_wrong import fails
from tests.grading.submissions_10_products import product_with

up = s.up


@pytest.mark.parametrize(
    ("answer", "message", "means"),
    [
        (
            s.requests_with(lambda m, n, k, bm, bn, i: m * k * i * up(n, bm)),
            "bytes of x",
            "divide N by BLOCK_N",
        ),
        (
            s.requests_with(lambda m, n, k, bm, bn, i: n * k * i * up(m, bm)),
            "bytes of x",
            "Those are the requests of weight",
        ),
        (
            s.requests_with(lambda m, n, k, bm, bn, i: m * k * up(n, bn)),
            "bytes of x",
            "Elements are counted",
        ),
        (s.requests_with(lambda m, n, k, bm, bn, i: m * k * i), "bytes of x", "distinct bytes"),
        (s.requests_with(lambda m, n, k, bm, bn, i: m * n * k * i), "of x", "one output at a time"),
        (
            s.requests_with(lambda m, n, k, bm, bn, i: m * k * i * (n // bn)),
            "bytes of x",
            "is rounded up",
        ),
        (
            s.requests_with(lambda m, n, k, bm, bn, i: m * n * k * i // bn),
            "bytes of x",
            "is rounded up",
        ),
        (
            s.requests_with(lambda m, n, k, bm, bn, i: up(m, bm) * bm * k * i * up(n, bn)),
            "bytes of x",
            "Masked lanes ask for nothing",
        ),
        (
            s.requests_with(None, lambda m, n, k, bm, bn, i: n * k * i * up(m, bn)),
            "bytes of weight",
            "divide M by BLOCK_M",
        ),
        (
            s.requests_with(None, lambda m, n, k, bm, bn, i: m * k * i * up(n, bn)),
            "bytes of weight",
            "Those are the requests of x",
        ),
        (
            s.requests_with(None, lambda m, n, k, bm, bn, i: n * k * i * (m // bm)),
            "bytes of weight",
            "is rounded up",
        ),
        (
            s.requests_with(None, lambda m, n, k, bm, bn, i: up(n, bn) * bn * k * i * up(m, bm)),
            "bytes of weight",
            "Masked lanes ask for nothing",
        ),
        (s.requests_with(lambda *args: 7), "bytes of x", ""),
        (s.requests_with(lambda m, n, k, bm, bn, i: m * n * k * i / bn), "is an int", "// divides"),
        (lambda *args: sum(s.requests_by_formula(*args)), "it takes the tuple", ""),
    ],
)
@pytest.mark.parametrize("seed", [1, 2])
def test_requests_wrong(answer, message, means, seed):
    fails(check("10.1", answer, seed=seed), message=message, means=means)


@pytest.mark.parametrize(
    ("answer", "message", "means"),
    [
        (s.shares_with(lambda *args: 0.5), "requests of x", "of weight alone"),
        (s.shares_with(lambda *args: s.shares(*args)[1]), "requests of x", "of weight alone"),
        (s.shares_with(lambda *args: 0.0), "requests of x", "asked is what is left"),
        (s.shares_with(None, lambda *args: 0.5), "requests of weight", "is rounded up"),
        (s.shares_with(None, lambda *args: 1.0), "requests of weight", "That is what x has"),
        (
            s.shares_with(None, lambda *args: 1 - s.shares(*args)[1]),
            "requests of weight",
            "asked is what is left",
        ),
        (s.shares_with(None, None, lambda *args: 0.5), "of both", "of weight alone"),
        (s.shares_with(None, None, lambda *args: 0.75), "of both", "mean of the two shares"),
        (
            s.shares_with(None, None, lambda *args: (1 + s.shares(*args)[1]) / 2),
            "of both",
            "mean of the two shares",
        ),
        (s.shares_with(None, None, lambda *args: s.shares(*args)[1]), "both", "share alone"),
        (
            s.shares_with(
                None, None, lambda m, n, bm, bn: (1 / bn + 1 / (2 * bm)) / (1 / bn + 1 / bm)
            ),
            "of both",
            "is rounded up",
        ),
        (lambda *args: 0.5, "it takes the tuple (x, weight, both)", ""),
        (lambda *args: (1.0, "half", 0.5), "a str; what is left of weight is a number", ""),
    ],
)
@pytest.mark.parametrize("seed", [1, 2])
def test_taller_wrong(answer, message, means, seed):
    fails(check("10.2", answer, seed=seed), message=message, means=means)


@pytest.mark.parametrize(
    ("answer", "message", "means"),
    [
        (s.ones_exactly, "the accumulator holds", "That is the exact sum"),
        (s.ones_one_by_one, "the accumulator holds", "added one by one"),
        (s.ones_that_stick, "the accumulator holds inf", "no number beyond 65504"),
        (s.ones_up_to_the_largest, "the accumulator holds inf", "doesn't stop at its largest"),
        (s.ones_in_fp16, "the accumulator holds", "bf16 has 8 bits"),
        (s.ones_in_whole_steps, "the accumulator holds", "masked lanes add nothing"),
        (s.ones_without_a_rest, "the accumulator holds", "is added too"),
        (lambda k, block_k, dtype: 2048.0, "the accumulator holds", ""),
        (lambda k, block_k, dtype: float("nan"), "returned nan", ""),
        (lambda k, block_k, dtype: [k], "a list; a total is a number", ""),
    ],
)
@pytest.mark.parametrize("seed", [1, 2])
def test_ones_wrong(answer, message, means, seed):
    result = check("10.3", answer, seed=seed)
    fails(result, message=message.removesuffix(" inf"), means=means)


@pytest.mark.parametrize(
    ("answer", "message", "means"),
    [
        (lambda tile: "nothing", "should say", "the same word for every tile"),
        (s.suspect_of(lambda t: {"stack_bytes": 0}), "say 'spills'", "Spills are never looked at"),
        (s.suspect_of(lambda t: {"stages": 1}), "says 'alone'", "only where it has one stage"),
        (s.suspect_of(lambda t: {"shared_bytes": 0}), "should say", "Shared memory binds as well"),
        (s.suspect_of(lambda t: {"registers": 1}), "should say", "Registers bind as well"),
        (
            s.suspect_of(lambda t: {"shared_bytes": max(0, t.shared_bytes - 1024)}),
            "'no room'",
            "takes 1024 bytes",
        ),
        (s.suspect_but("tail", "nothing"), "say 'tail'", "The last turn is never looked at"),
        (s.suspect_of(lambda t: {"stages": 2}), "say 'alone'", "without stages is never looked at"),
        (s.suspect_but("idle", "tail"), "say 'idle'", "before the last turn"),
        (s.suspect_but("alone", "spills"), "say 'alone'", "One program fits an SM"),
        (lambda tile: "slow", "it takes one of", ""),
        (lambda tile: 3, "returned an int; it takes one of", ""),
    ],
)
@pytest.mark.parametrize("seed", [1, 2])
def test_suspect_wrong(answer, message, means, seed):
    fails(check("10.7", answer, seed=seed), message=message, means=means)


@pytest.mark.parametrize(
    ("answer", "message", "means"),
    [
        (s.roofs_with(lambda t, d, c, i: 3 * i * 1000 * t // (2 * d)), "size is", "rounded down"),
        (s.roofs_with(lambda t, d, c, i: up(3 * i * 1000 * t, d)), "size is", "two FLOPs"),
        (s.roofs_with(lambda t, d, c, i: up(i * 1000 * t, d)), "size is", "Three matrices"),
        (s.roofs_with(lambda t, d, c, i: up(3 * 1000 * t, 2 * d)), "size is", "not bytes"),
        (s.roofs_with(lambda t, d, c, i: up(3 * i * t, 2 * d)), "size is", "1000 FLOPs a byte"),
        (s.roofs_with(lambda t, d, c, i: up(3 * i * 1000 * t, 2 * c)), "size is", "from DRAM"),
        (s.roofs_with(lambda t, d, c, i: up(1000 * t, d)), "size is", "the card's balance"),
        (s.roofs_with(None, lambda t, d, c, i: i * 1000 * t // c), "edge is", "rounded down"),
        (s.roofs_with(None, lambda t, d, c, i: up(2 * i * 1000 * t, c)), "edge is", "two FLOPs"),
        (s.roofs_with(None, lambda t, d, c, i: up(i * 1000 * t, 2 * c)), "edge is", "two, each of"),
        (s.roofs_with(None, lambda t, d, c, i: up(i * 1000 * t, d)), "edge is", "from the L2"),
        (s.roofs_with(None, lambda t, d, c, i: up(1000 * t, c)), "edge is", "not bytes"),
        (s.roofs_with(None, lambda t, d, c, i: 1.5), "edge is an int", "// divides"),
        (lambda *args: 3, "it takes the tuple (size, edge)", ""),
    ],
)
@pytest.mark.parametrize("seed", [1, 2])
def test_roofs_wrong(answer, message, means, seed):
    fails(check("10.10", answer, seed=seed), message=message, means=means)


@pytest.mark.parametrize(
    ("m", "n", "k", "tile"),
    [(70, 50, 33, (16, 32, 16)), (64, 128, 40, (64, 64, 32)), (5, 90, 7, (16, 16, 16))],
)
def test_requests_are_those_that_a_kernel_makes(m, n, k, tile):
    x, weight = torch.ones(m, k, dtype=torch.float16), torch.ones(n, k, dtype=torch.float16)
    with interpreting() as launches:
        product_with(tile=tile)(x, weight)
    (launch,) = launches
    read = {name: requested for name, _, requested, *_ in launch.arena.totals()}
    args = (m, n, k, *tile[:2], 2)
    assert read["x_ptr"] == predict.of_x(*args)
    assert read["weight_ptr"] == predict.of_weight(*args)


@pytest.mark.parametrize("name", ["fp16", "bf16", "fp32"])
def test_totals_are_those_of_a_loop(name):
    rng = random.Random(name)
    for block_k in (16, 32, 128):
        k = rng.randrange(9000, 30000)
        for size in (k, 2**12 * block_k + 5):
            assert total_of_ones(size, block_k, name) == s.ones_by_loop(size, block_k, name)


def test_every_tile_made_for_a_word_has_it():
    for seed, word, number in product(range(40), suspects.SUSPECTS, range(6)):
        tile = suspects._made(word, random.Random(seed), number)
        assert suspects.suspect(tile) == word, tile


def test_a_square_of_tiles_touches_fewest():
    """The groups that an order is held to are nearer to the least than a plain order is."""
    for tiles_m, tiles_n, wave in ((32, 32, 132), (40, 60, 108), (64, 64, 64)):
        waves = -(-tiles_m * tiles_n // wave)
        least = 2 * wave**0.5 * (waves - 1)
        grouped = order.touched(order.grouped, tiles_m, tiles_n, wave)
        assert least < grouped < 1.4 * least
        assert order.touched(order.row_major, tiles_m, tiles_n, wave) > 1.25 * grouped


def test_a_size_takes_as_long_in_flops_as_in_bytes():
    for tflops, dram, l2, itemsize in ((312, 1555, 4500, 2), (67, 3350, 7000, 4)):
        n = roofs.least_size(tflops, dram, l2, itemsize)
        edge = roofs.least_edge(tflops, dram, l2, itemsize)
        for one, holds in ((n, True), (n - 1, False)):
            moved = 3 * one**2 * itemsize / (dram * 1e9)
            assert (2 * one**3 / (tflops * 1e12) >= moved) == holds
        # A tile's step of 32 along K.
        for one, holds in ((edge, True), (edge - 1, False)):
            asked = 2 * one * 32 * itemsize / (l2 * 1e9)
            assert (2 * one * one * 32 / (tflops * 1e12) >= asked) == holds


def test_what_a_case_is_for():
    """A sum in 16 bits is wrong beyond the tolerance of the cases that are there for it."""
    rng = random.Random(3)
    case = kit.product_case(rng, 9, 20, 2600, "fp16", kit.LONG)
    x, weight = case.tensors["x"], case.tensors["weight"]
    total = torch.zeros(9, 20, dtype=torch.float16)
    for start in range(0, 2600, 64):
        step = x[:, start : start + 64].float() @ weight[:, start : start + 64].float().T
        total = (total.float() + step).half()
    off = float((total.double() - case.reference).norm() / case.reference.norm())
    assert off > case.tolerance.relative_norm
    peak = kit.product_case(rng, 20, 9, 700, "fp16", kit.PEAK)
    half = peak.x[:, :350].double() @ peak.tensors["weight"][:, :350].double().T
    assert float(half.min()) > 65504 > float(peak.reference.abs().max())


def test_a_tile_of_the_budget_fits_a_t4_with_eight_warps_alone():
    """What the page says of registers: 64 × 64 in steps of 32 spills with 4 warps, not with 8."""
    x = torch.empty(300, 300, dtype=torch.float16)
    stacks = []
    for warps in (4, 8):
        with recording() as launches:
            product_with(tile=(64, 64, 32), warps=warps)(x, x)
        (launch,) = launches
        built = compile_launch(launch, 75)
        assert built.matrix_instruction is None
        stacks.append(built.stack_bytes)
    assert stacks[0] > 0 == stacks[1]


def test_the_tenth_question_stands_behind_the_ninth(own_progress):
    (names,) = [
        [name for name, _, _ in rows] for chapter, rows in progress().sets if chapter == "10"
    ]
    assert names == [f"10.{number}" for number in range(1, 11)]
