"""Wrong numbers of set 08 get the remark meant for them; what its checks rest on is right."""

import random

import pytest
import torch
import triton
import triton.language as tl

from kernels.grading import check, progress
from kernels.grading.questions.ch08 import predict
from kernels.grading.questions.ch08.backward import gelu, slope
from kernels.grading.questions.ch08.eight import MOST, loops, per_element
from kernels.grading.questions.kits import masks as kit
from kernels.lab.counting import aten
from kernels.lab.counting.op_ledger import count_op
from kernels.launch import recording
from kernels.launch.triton_compile import compile_launch
from kernels.ops.chains import bias_gelu_dropout_residual, layernorm_gelu_dropout_residual
from tests.grading import submissions_08 as s
from tests.grading import submissions_08_chain as chain
from tests.grading.known_wrong import fails


def _index(row, col, n_cols):
    return row * n_cols + col


@pytest.mark.parametrize(
    ("answer", "message", "means"),
    [
        (s.draw_with(lambda r, c, n, p: c // 8), "block is", "That is the column's alone"),
        (s.draw_with(lambda r, c, n, p: _index(r, c, n)), "block is", "element's index"),
        (s.draw_with(lambda r, c, n, p: _index(r, c, n) // 4), "block is", "A call gives eight"),
        (
            s.draw_with(lambda r, c, n, p: r * -(-n // 8) + c // 8),
            "block is",
            "A row doesn't begin a block",
        ),
        (
            s.draw_with(
                lambda r, c, n, p: _index(r, c, n) % 8, lambda r, c, n, p: _index(r, c, n) // 8
            ),
            "block is",
            "changed places",
        ),
        (s.draw_with(None, lambda r, c, n, p: c % 8), "number is", "the column's alone"),
        (s.draw_with(None, lambda r, c, n, p: _index(r, c, n) % 4), "number is", "gives eight"),
        (s.draw_with(None, lambda r, c, n, p: _index(r, c, n) % 8 + 1), "number is", "from 0"),
        (s.draw_with(None, None, s.threshold_down), "threshold is", "int() rounds down"),
        (s.draw_with(None, None, lambda r, c, n, p: 65536 * p), "a float", "round() makes an int"),
        (
            s.draw_with(None, None, lambda r, c, n, p: 65536 - round(65536 * p)),
            "threshold is",
            "how many numbers are kept",
        ),
        (s.draw_with(None, None, lambda r, c, n, p: round(65535 * p)), "threshold is", "16 bits"),
        (s.draw_in_halves, "ZeroDivisionError", "p may be 1"),
        (
            s.draw_with(factor=lambda r, c, n, p: 1 / (1 - p) if p < 1 else 0.0),
            "scale is",
            "That is 1 / (1 - p)",
        ),
        (
            s.draw_with(factor=lambda r, c, n, p: 65536 / max(65536 - round(65536 * p), 1)),
            "scale is",
            "",
        ),
        (
            s.draw_with(factor=lambda r, c, n, p: 1 - round(65536 * p) / 65536),
            "scale is",
            "kept values are divided",
        ),
        (lambda row, col, n_cols, p: (0, 0, 0), "a tuple of 3; it takes the tuple", ""),
        (lambda row, col, n_cols, p: 3, "an int; it takes the tuple", ""),
        (lambda row, col, n_cols, p: (0, 0, 0, "1"), "a str; scale is a number", ""),
    ],
)
@pytest.mark.parametrize("seed", [1, 2])
def test_draw_wrong(answer, message, means, seed):
    fails(check("08.1", answer, seed=seed), message=message, means=means)


@pytest.mark.parametrize(
    ("answer", "message", "means"),
    [
        (s.bytes_with(lambda r, n, i, c, m: -r * n * i), "moved is", "residual is missing"),
        (s.bytes_with(lambda r, n, i, c, m: -len(c) * r * n * i), "moved is", "a write and a read"),
        (s.bytes_with(lambda r, n, i, c, m: -2 * len(c) * r * n * i), "moved", "are left out"),
        (
            s.bytes_with(lambda r, n, i, c, m: (6 - 2 * len(c)) * r * n * i),
            "moved is",
            "a launch for each step",
        ),
        (s.bytes_with(lambda r, n, i, c, m: -m * r * n), "moved is", "The mask is missing"),
        (s.bytes_with(lambda r, n, i, c, m: (not m) * r * n), "moved is", "has no bytes"),
        (s.bytes_with(lambda r, n, i, c, m: m * r * n * (i - 1)), "moved is", "one byte an elem"),
        (s.bytes_with(lambda r, n, i, c, m: m * r * n), "moved is", "The mask is counted twice"),
        (
            s.bytes_with(lambda r, n, i, c, m: m * (r * n // 8 - r * n)),
            "moved is",
            "a mask takes a byte",
        ),
        (s.bytes_with(lambda r, n, i, c, m: -8 * r), "moved is", "The statistics are missing"),
        (s.bytes_with(lambda r, n, i, c, m: -4 * r), "moved is", "two statistics"),
        (s.bytes_with(lambda r, n, i, c, m: 2 * r * (i - 4)), "moved is", "whatever the dtype"),
        (s.bytes_with(lambda *_: -16), "moved is", "Seed and offset are missing"),
        (s.bytes_with(lambda r, n, i, c, m: -2 * n * i), "moved is", "weight and bias are missing"),
        (s.bytes_with(lambda r, n, i, c, m: 2 * (r - 1) * n * i), "moved is", "count once"),
        (s.bytes_with(None, lambda r, n, i, c, m: -m * r * n), "kept is", "mask is missing"),
        (s.bytes_with(None, lambda r, n, i, c, m: (not m) * r * n), "kept is", "has no bytes"),
        (s.bytes_with(None, lambda r, n, i, c, m: -8 * r), "kept is", "statistics are missing"),
        (s.bytes_with(None, lambda r, n, i, c, m: r * n * i), "kept is", "need not be kept"),
        (
            s.bytes_with(None, lambda r, n, i, c, m: len(c) * r * n * i),
            "kept is",
            "What crosses a cut",
        ),
        (s.bytes_with(None, lambda *_: 16), "kept is", "are there already"),
        (lambda *args: 3, "it takes the tuple (moved, kept)", ""),
        (lambda *args: (1.5, 3), "a float 1.5; moved is an int", "// divides"),
    ],
)
@pytest.mark.parametrize("seed", [1, 2])
def test_training_bytes_wrong(answer, message, means, seed):
    fails(check("08.2", answer, seed=seed), message=message, means=means)


@pytest.mark.parametrize(
    ("answer", "message", "means"),
    [
        (s.costs_with(lambda memory, issue, drawn, byte: 0.0), "made_again", "still issued"),
        (
            s.costs_with(lambda memory, issue, drawn, byte: drawn),
            "made_again is",
            "The two times are added up",
        ),
        (
            s.costs_with(lambda memory, issue, drawn, byte: max(memory, issue + drawn)),
            "made_again is",
            "the whole time of the kernel",
        ),
        (
            s.costs_with(lambda memory, issue, drawn, byte: max(0.0, drawn - memory)),
            "made_again is",
            "The other instructions are left out",
        ),
        (
            s.costs_with(lambda memory, issue, drawn, byte: max(0.0, issue + drawn - memory)),
            "made_again is",
            "bound by its instructions already",
        ),
        (s.costs_of_threads, "made_again is", "32 elements share it"),
        (
            s.costs_with(None, lambda memory, issue, drawn, byte: byte),
            "stored is",
            "memory has time for it",
        ),
        (
            s.costs_with(
                None,
                lambda memory, issue, drawn, byte: (
                    max(memory + byte, issue + drawn) - max(memory, issue)
                ),
            ),
            "stored is",
            "is not drawn",
        ),
        (
            s.costs_with(
                None,
                lambda memory, issue, drawn, byte: (
                    max(memory + byte / 8, issue) - max(memory, issue)
                ),
            ),
            "stored is",
            "a mask takes a byte",
        ),
        (s.costs_rounded, "made_again is", "its result is rounded"),
        (lambda *args: 3.0, "it takes the tuple (made_again, stored)", ""),
        (lambda *args: (1.0, float("nan")), "returned nan as a time", ""),
    ],
)
@pytest.mark.parametrize("seed", [1, 2])
def test_mask_costs_wrong(answer, message, means, seed):
    fails(check("08.10", answer, seed=seed), message=message, means=means)


def test_the_bytes_of_one_launch_are_those_of_the_operation():
    """`fwd` of the operation keeps no statistics; they are 8 bytes a row more."""
    rows, cols = 64, 1024
    op = layernorm_gelu_dropout_residual.OP
    for dtype in (torch.float32, torch.bfloat16):
        counted = count_op(op, "fused", (rows, cols), dtype).bytes_unique
        told, kept = predict.moved(rows, cols, dtype.itemsize, (), False), 8 * rows
        assert told == counted + kept
        assert predict.kept(rows, cols, dtype.itemsize, (), False) == kept


def test_the_bytes_of_four_launches_are_those_of_pytorch():
    """Each of PyTorch's operators is a launch, and dropout stores its mask, for training."""
    rows, cols = 32, 256
    x, residual = torch.zeros(rows, cols), torch.zeros(rows, cols)
    weight, bias = torch.zeros(cols), torch.zeros(cols)

    def stepwise(x, weight, bias, residual):
        h, _, _ = torch.native_layer_norm(x, (cols,), weight, bias, 1e-5)
        d, _ = torch.native_dropout(torch.nn.functional.gelu(h), 0.1, True)
        return residual + d

    counted = aten.count(stepwise, x, weight, bias, residual).bytes_unique
    # PyTorch's generator has its seed elsewhere.
    assert counted == predict.moved(rows, cols, 4, (1, 2, 3), True) - predict.SEED_BYTES


def test_numbers_are_those_of_keeps():
    state = torch.tensor([2**45 + 3, 2**35 + 1])
    for p in (0.1, 0.5):
        number = kit.numbers(torch.arange(1000).view(40, 25), state)
        assert torch.equal(number >= round(65536 * p), kit.kept((40, 25), p, state))


@pytest.mark.parametrize("seed", range(5))
def test_p_on_the_edge_tells_above_from_at_least(seed):

    rng = random.Random(seed)
    state = kit.state(rng)
    p = kit.edge(rng, 2000, state)
    ((what, wrong),) = [
        (what, mask)
        for what, mask in kit.wrong_masks((2000,), p, state)
        if what.startswith("An element whose number is exactly T")
    ]
    differ = wrong != kit.kept((2000,), p, state)
    assert 1 <= int(differ.sum()) < 10, what


def test_slope_is_autograds():
    h = torch.linspace(-6, 6, 400, dtype=torch.float64, requires_grad=True)
    torch.testing.assert_close(gelu(h), torch.nn.functional.gelu(h, approximate="tanh"))
    (ours,) = torch.autograd.grad(gelu(h).sum(), h)
    torch.testing.assert_close(slope(h.detach()), ours)


def recorded(answer, n=2**20):
    with recording() as launches:
        answer(torch.empty(n), torch.tensor([7, 3]), 0.1)
    return next(iter(launches))


@pytest.mark.parametrize("capability", [80, 90])
def test_instructions_for_each_element(capability):
    """The number that the question takes parts a call for eight from one for four."""
    eight = per_element(recorded(chain.eight_with("", 1024)), capability, 2**20)
    four = per_element(recorded(chain.eight_with("at", 4096)), capability, 2**20)
    assert eight[0] < MOST < four[0]
    assert 1.7 < four[1] / eight[1] < 2.1  # wide products


@triton.jit
def counting(x_ptr, y_ptr, n, UNROLLED: tl.constexpr):
    places = tl.arange(0, 128)
    total = tl.zeros([128], tl.float32)
    if UNROLLED:
        for i in tl.static_range(4):
            total += tl.load(x_ptr + 128 * i + places)
    else:
        for i in range(n):
            total += tl.load(x_ptr + 128 * i + places)
    tl.store(y_ptr + places, total)


@pytest.mark.parametrize("unrolled", [True, False])
def test_a_loop_is_seen_and_an_unrolled_one_is_none(unrolled):
    with recording() as launches:
        counting[(1,)](torch.empty(4096), torch.empty(128), 17, UNROLLED=unrolled)
    (launch,) = launches
    assert loops(compile_launch(launch, 80).ptx) != unrolled


def test_the_chain_of_08_10_is_that_of_the_operation():
    shape = (16384, 8192)
    cost = bias_gelu_dropout_residual.OP.cost(shape, torch.bfloat16, "fwd")
    assert round(cost.bytes_ideal / (shape[0] * shape[1])) == 6


def test_the_tenth_question_stands_behind_the_ninth(own_progress):
    (names,) = [
        [name for name, _, _ in rows] for chapter, rows in progress().sets if chapter == "08"
    ]
    assert names == [f"08.{number}" for number in range(1, 11)]
