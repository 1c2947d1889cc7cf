"""Each known-wrong submission to set 06 fails with the diagnosis meant for it; right ones pass."""

import linecache
import random
import re

import pytest
import torch

from kernels.grading import check
from kernels.grading.question import questions
from kernels.grading.questions.ch06.clinic import ILLNESSES, Patient, ward
from kernels.grading.questions.ch06.limits import LIMITS, _made, limit
from kernels.grading.questions.ch06.predict import counted
from kernels.grading.questions.ch06.strides import in_order
from kernels.paths import ROOT
from tests.grading import submissions_06 as s
from tests.grading import submissions_06_outputs as o
from tests.grading.known_wrong import fails
from tests.grading.right import assert_all_pass_soon
from tests.grading.test_exercises import code_cells

RIGHT = {
    "06.1": (s.bytes_by_tensor, s.bytes_an_element, s.bytes_by_list),
    "06.2": (s.illness_by_steps, s.illness_by_table, s.illness_by_error),
    "06.3": (s.wide_with(""), s.wide_with("", 1024, 4), s.wide_shifted),
    "06.4": (s.heads_with(""), s.heads_with("", 8, 2), s.looped_heads),
    "06.5": (o.add_rms_with(""), o.add_rms_with("", lambda y, h: [y, h], 16), o.add_rms_two_rows),
    "06.6": (
        o.softmax_with(""),
        o.softmax_with("", 1024, 4),
        o.softmax_with("", 32768, 32),
        o.softmax_with("guarded", 8192),
        o.softmax_by_lane,
    ),
    "06.7": (o.order_with(""), o.order_by_grid, o.order_of_memory),
    "06.8": (s.limit_by_floor, s.limit_by_rate, s.limit_by_times),
}


@pytest.mark.parametrize("question", RIGHT)
def test_right_answers_pass_whatever_the_seed(question):
    assert_all_pass_soon(question, RIGHT[question])


def both(two=None, one=None):
    """The right bytes of 06.1, each replaced by a wrong formula where one is given."""

    def add_norm_bytes(rows, cols, itemsize):
        told = s.bytes_by_tensor(rows, cols, itemsize)
        wrong = (two, one)
        return tuple(f(rows, cols, itemsize) if f else t for f, t in zip(wrong, told, strict=True))

    return add_norm_bytes


@pytest.mark.parametrize(
    ("answer", "message", "means"),
    [
        (both(two=lambda r, n, b: r * n * (2 * b + 8) + n * b), "in_two", "h moves twice"),
        (both(two=lambda r, n, b: r * n * (3 * b + 12)), "in_two", "once for each row"),
        (both(two=lambda r, n, b: r * n * 5 * b + n * b), "(3, 64, 2)", "are fp32"),
        (both(two=lambda r, n, b: r * n * (2 * b + 12)), "in_two", "The weight is missing"),
        (both(two=lambda r, n, b: 5 * r * n + n), "in_two", "elements, not bytes"),
        (both(one=lambda r, n, b: r * n * (2 * b + 12) + n * b), "in_one", "doesn't read it back"),
        (both(one=lambda r, n, b: r * n * (2 * b + 4) + n * b), "in_one", "still writes it"),
        (both(one=lambda r, n, b: r * n * (3 * b + 8)), "in_one", "once for each row"),
        (both(one=lambda r, n, b: r * n * 4 * b + n * b), "(3, 64, 2)", "are fp32"),
        (both(one=lambda r, n, b: r * n * (2 * b + 8)), "in_one", "The weight is missing"),
        (both(one=lambda r, n, b: r * n / 2), "returned a float", "// divides"),
        (lambda r, n, b: r * n, "it takes the tuple", ""),
    ],
)
def test_bytes_wrong(answer, message, means):
    fails(check("06.1", answer, seed=1), message=message, means=means)


def test_the_bytes_are_those_of_the_page():
    cells = dict(code_cells(ROOT / "solutions" / "06_fused_norms_in_triton.ipynb"))
    space: dict = {"__name__": "page"}
    for cell in ("imports", "q1-kernels", "q1-ledger"):
        name = f"<06 {cell}>"
        text = cells[cell]
        linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
        exec(compile(text, name, "exec"), space)
    x, weight = torch.randn(7, 300).half(), torch.ones(300).half()
    page = space["traffic"].count(space["in_two_launches"], x, torch.randn(7, 300), weight)
    assert page.bytes_unique == counted(7, 300, 2)[0] == s.bytes_by_tensor(7, 300, 2)[0]


@pytest.mark.parametrize(
    ("answer", "message", "means"),
    [
        (s.illness_without_mean_zero, "ill with 'powers of two'", "Rows of mean 0 on such a width"),
        (s.illness_far_and_ragged, "ill with 'missing mask'", "no lanes beyond the row"),
        (s.illness_blind_to_the_ledger, "ill with 'stale tail'", "leaves part of y unstored"),
        (s.illness_in_fp32, "ill with 'low precision'", "16 bits have to hold a large sum"),
        (lambda examine: "healthy", "ill with 'low precision'", "It is right in fp32"),
        (lambda examine: "one pass", "It made no experiment", "Both fail where the mean is large"),
        (s.illness_by_many, "experiments on one kernel; 8 will do", "into halves"),
        (lambda examine: "flu", "returned 'flu'; a verdict is one of", ""),
        (lambda examine: 3, "returned an int", ""),
        (lambda examine: examine(4, 8), "raised ValueError: cols is 8; it takes an int", ""),
        (lambda examine: examine(999, 999), "more than 65,536 elements", ""),
        (lambda examine: examine(4, 64, torch.half), "it takes one of", ""),
        (lambda examine: examine(4, 64, "fp16", 1e9), "a number from -10000 to 10000", ""),
    ],
)
def test_illness_wrong(answer, message, means):
    fails(check("06.2", answer, seed=1), message=message, means=means)


@pytest.mark.parametrize("illness", ILLNESSES)
def test_each_patient_passes_the_weak_test_and_fails_a_better_one(illness):
    weak = Patient(illness, 5)(64, 64)
    assert abs(weak.mean) < 1e-3
    assert abs(weak.spread - 1) < 1e-3
    better = [
        Patient(illness, 3)(*args)
        for args in ((8, 64), (8, 100), (8, 64, "fp32", 3000.0), (8, 100, "fp32", 3.0))
    ]
    wide = Patient(illness, 3)(4, 8192, "fp16", 30.0)
    assert all(trial.right for trial in (*better, wide)) == (illness == "healthy")


def test_a_ward_has_each_patient_once():
    shown = [(bed(8, 64).right, bed(8, 100).stored) for bed in ward(1)]
    assert len(shown) == len(ILLNESSES)
    assert sum(not right for right, _ in shown) == 1
    assert sum(stored < 1 for _, stored in shown) == 1


@pytest.mark.parametrize(
    ("answer", "message", "means"),
    [
        (s.wide_with("one pass"), "in fp32", "E[x²] - E[x]²"),
        (s.wide_with("as they are"), "(1, 9001)", "added as they are"),
        (s.wide_with("mean of means"), "(1, 9001)", "averaged as if all tiles"),
        (s.wide_with("lanes"), "(2, 17)", "Masked lanes enter a sum of squares"),
        (s.wide_with("n - 1"), "should be", "divided by N - 1"),
        (s.wide_with("three loops"), "x is read 3.0 times", "one too many"),
        (lambda x, eps: s.wide_with("")(x, 1e-5), "(2, 128)", "not the one given"),
        (lambda x, eps: s.wide_with("")(x.clone(), eps), "ran PyTorch operators: clone", None),
    ],
)
def test_wide_normalize_wrong(answer, message, means):
    fails(check("06.3", answer, seed=1), message=message, means=means)


@pytest.mark.parametrize(
    ("answer", "message", "means"),
    [
        (s.heads_with("all"), "should be", "squares of a whole tile are summed"),
        (s.heads_with("axis"), "should be", "down the columns of a tile"),
        (s.heads_with("block"), "(21, 80)", "divided by the width of the block"),
        (s.heads_with("rows"), "index", "A tile has two edges"),
        (s.heads_with("cols"), "index", "A tile has two edges"),
        (s.heads_with("no weight"), "should be", "Weight is not applied"),
        (s.heads_with("", few=1), "is nan", "The last rows were never stored"),
        (
            s.heads_with("weight a row"),
            "1 program with one load of it asks for",
            "Load it as one row of numbers",
        ),
        (s.heads_with("no other"), "masked lanes enter the result", "what a masked lane holds"),
        (s.heads_with("", 4), "programs on", "let it take a tile of rows"),
        (s.heads_with("", 128), "runs 1 program on", "most of them idle"),
        (lambda x, w, eps: s.heads_with("")(x, w, 1e-5), "(12, 64)", "not the one given"),
    ],
)
def test_head_norm_wrong(answer, message, means):
    fails(check("06.4", answer, seed=1), message=message, means=means)


@pytest.mark.parametrize(
    ("answer", "message", "means"),
    [
        (o.add_rms_with("", lambda y, h: y), "returned a Tensor; it takes the two tensors", ""),
        (o.add_rms_with("", lambda y, h: (h, y)), "should be", "The order is (y, h)"),
        (o.add_rms_with("x alone"), "should be", "RMSNorm of x alone"),
        (o.add_rms_with("minus"), "should be", "RMSNorm of x - residual"),
        (o.add_rms_with("x as h"), "h[0, 0] is", "h is x alone"),
        (o.add_rms_with("narrow h"), "in fp16: h[0, 0] is", "It is right in fp32"),
        (o.add_rms_with("narrow residual"), "h[0, 0] is", "residual was rounded to the dtype of x"),
        (o.add_rms_with("narrow sum"), "h[0, 0] is", "convert x, not residual"),
        (o.add_rms_with("block"), "(3, 17)", "divided by the width of the block"),
        (o.add_rms_with("h back"), "bytes of h back", "go on with the variable"),
        (o.add_rms_with("", warps=1), "spills", "Spilled values"),
        (o.add_rms_by_pytorch, "launched no Triton kernel", "a kernel of yours"),
    ],
)
def test_add_rms_norm_wrong(answer, message, means):
    fails(check("06.5", answer, seed=1), message=message, means=means)


@pytest.mark.parametrize(("fault", "seed"), [("narrow residual", 0), ("narrow sum", 10)])
def test_a_rounded_residual_is_told_where_y_is_wrong_first(fault, seed):
    answer = o.add_rms_with(fault)
    fails(check("06.5", answer, seed=seed), message=": y[", means="residual was rounded")


@pytest.mark.parametrize(
    ("answer", "message", "means"),
    [
        (o.softmax_with("zeros"), "(2, 17)", "Masked lanes enter the sum"),
        (o.softmax_with("unscaled", 1024), "(1, 4096)", "not rescaled"),
        (o.softmax_with("tiles", 1024), "(1, 4096)", "the tile's own maximum"),
        (o.softmax_with("no maximum"), "large", "exp is inf beyond 88"),
        (o.softmax_with("from 0"), "values far below 0", "m starts at the lowest number, not"),
        (o.softmax_with("from -10000"), "values far below 0", "m starts at the lowest number"),
        (o.softmax_with("undivided"), "should be", "not divided by their sum"),
        (o.softmax_with("inf", 256), "-inf in its first half", "start from the lowest finite"),
        (o.softmax_with("inf", 4096, 32), "all but its last 100 columns", "start from the lowest"),
        (o.softmax_with("inf", 8192, 32), "all but its last 100 columns", "start from the lowest"),
        (o.softmax_with("inf", 32768, 32), "all but its last 100 columns", "start from the lowest"),
        (o.softmax_with("three loops"), "x is read 3.0 times", "the state (m, s) takes in both"),
        (o.softmax_by_pytorch, "launched no Triton kernel", "a kernel of yours"),
    ],
)
def test_softmax_wrong(answer, message, means):
    fails(check("06.6", answer, seed=1), message=message, means=means)


@pytest.mark.parametrize(
    ("answer", "message", "means"),
    [
        (o.order_with("", copies=True), "copies x first", "hand it the strides"),
        (o.order_with("plain"), "strides", "the order in which they lie in memory"),
        (o.order_with("heads inside"), "should be", "split in another order"),
        (o.order_with("as x"), "strides", "the order in which they lie in memory"),
        (o.order_with("lanes"), "(2, 2, 2, 17)", "Masked lanes enter the variance"),
        (o.order_with("as x", contiguous=False), "returned a tensor with strides", "empty_like"),
        (o.order_with("", contiguous=False), "strides", "this one isn't. torch.empty_like"),
        (o.order_with("twice"), "x is read 2.0 times", "Each load asks memory again"),
        (lambda x, w, b, eps: o.order_with("")(x, w, b, 1e-5), "(2, 2, 3, 100)", "eps is not used"),
    ],
)
def test_order_wrong(answer, message, means):
    fails(check("06.7", answer, seed=1), message=message, means=means)


def test_the_hints_of_06_7_are_those_of_four_axes():
    asked = questions()["06.7"]
    x = torch.arange(2 * 3 * 4).reshape(2, 3, 4, 1)
    assert "four numbers" in asked.hint
    assert len(x.stride()) == 4
    assert x.stride()[-1] == 1
    told = re.search(r"position (.+), head (.+) and batch (.+?)\. ", asked.more_hints[0])
    position, head, batch = (one.replace("·", "*") for one in told.groups())
    for row in range(2 * 3 * 4):
        b, h, p = (eval(one, {"r": row, "H": 3, "P": 4}) for one in (batch, head, position))
        assert x[b, h, p, 0] == row


def test_an_order_is_that_of_the_memory():
    x = torch.arange(2 * 3 * 4 * 5).reshape(2, 3, 4, 5)
    lying = in_order(x, (2, 0, 1))
    assert torch.equal(lying, x)
    assert lying.stride() == (15, 5, 30, 1)


def ignoring(**what):
    return lambda row: s.limit_by_floor(row, **what)


def extra_first(row):
    return "extra bytes" if row.bytes_dram > 1.4 * row.bytes_ideal else limit(row)


@pytest.mark.parametrize(
    ("answer", "message", "means"),
    [
        (ignoring(host=True), "should say 'launch'", "The launch is never looked at"),
        (ignoring(extra=1.0), "should say 'extra bytes'", "Extra bytes take their time"),
        (ignoring(cache=True), "says 'neither'", "stayed in the L2 cache"),
        (extra_first, "says 'extra bytes'", "Extra bytes are looked for first"),
        (lambda row: "memory", "says 'memory'", "the same word"),
        (lambda row: "slow", "returned 'slow'; it takes one of", ""),
        (lambda row: row.host_us, "returned a float", ""),
    ],
)
def test_limit_wrong(answer, message, means):
    fails(check("06.8", answer, seed=1), message=message, means=means)


@pytest.mark.parametrize("wanted", LIMITS)
def test_rows_are_what_they_were_made_for_with_room_to_spare(wanted):
    rng = random.Random(wanted)
    for number in range(300):
        row = _made(wanted, rng, number)
        for far in (1.2, 1.4, 1.55):
            assert s.limit_by_floor(row, far) == wanted == limit(row), row
