"""Each known-wrong submission of set 04 fails with the diagnosis meant for it; right ones pass."""

import pytest
import torch

from kernels.cuda import cuda
from kernels.cuda.cuda_compile import no_compiler
from kernels.grading import check
from kernels.grading.generate import exercise_of
from kernels.grading.questions.ch04 import ledger as ledger
from kernels.grading.questions.ch04 import predict as predict
from kernels.paths import ROOT
from tests.grading import submissions_04 as s
from tests.grading import submissions_04_blocks as b
from tests.grading.known_wrong import fails
from tests.grading.right import assert_all_pass_soon
from tests.grading.submissions_03 import add_with as triton_add
from tests.grading.test_exercises import code_cells

needs_nvrtc = pytest.mark.skipif(no_compiler() is not None, reason=f"{no_compiler()}")
RIGHT = {
    "04.1": (s.sectors_by_set, s.sectors_by_counter, s.sectors_by_steps),
    "04.2": (s.costliest_by_lines, s.costliest_by_share, s.costliest_sorted),
    "04.3": (s.add_with("right"), s.add_with("strided", 512), s.add_with("wide", 1024)),
    "04.4": (s.silu_with("right"), s.silu_with("helper", 128), s.silu_with("strided", 512)),
    "04.5": (b.sum_with("right"), b.sum_with("held"), b.sum_with("serial"), b.sum_with("warp")),
    "04.6": (b.rms_with("right", 128), b.rms_with("a_warp_a_row", 32), b.rms_with("serial")),
    "04.7": (
        b.scale_with("right", block=(8, 32)),
        b.scale_with("flat", lambda rows, cols: -(-rows * cols // 256), (256,)),
        b.scale_with("looped", lambda rows, cols: rows, (128,)),
    ),
    "04.8": (s.passes_by_counter, s.passes_by_rounds, s.passes_by_banks),
    "04.9": (b.turn_with("right", 16), b.turn_with("swizzled"), b.turn_with("columns_first")),
}
RIGHT["04.10"] = (
    b.chain_of(RIGHT["04.3"][0], RIGHT["04.6"][0], RIGHT["04.7"][0]),
    b.chain_of(RIGHT["04.3"][1], RIGHT["04.6"][1], RIGHT["04.7"][1]),
    b.chain_of(RIGHT["04.3"][2], RIGHT["04.6"][2], RIGHT["04.7"][2]),
)


@pytest.mark.parametrize("question", RIGHT)
def test_right_answers_pass_whatever_the_seed_in_less_than_five_seconds(question):
    assert_all_pass_soon(question, RIGHT[question])


def test_the_chain_tells_what_it_moves_and_what_one_kernel_would():
    result = check("04.10", RIGHT["04.10"][0], seed=1)
    assert result.passed
    told = next(held for held in result.held if "one kernel that did it all" in held)
    assert "the chain moves 6 times 4n bytes" in told
    assert "would move 3 times" in told


def counted_in(size, first=True):
    """Sectors of another size, and of a request that begins at one unless `first` counts."""
    return lambda s, w, f: len({((f if first else 0) + i * s) * w // size for i in range(32)})


@pytest.mark.parametrize(
    ("answer", "message", "means"),
    [
        (counted_in(32, first=False), "(1, 4, 1) is 4", "begins inside a sector"),
        (lambda s, w, f: w, "(1, 4, 1) is 4; a warp's request took 5", "begins inside a sector"),
        (lambda s, w, f: 32, "(1, 4, 0) is 32", "a sector for each lane"),
        (
            lambda step, w, f: s.sectors_by_set(step, 4, f),
            "(1, 2, 0) is 4",
            "for elements of 4 bytes",
        ),
        (counted_in(128), "(1, 4, 0) is 1", "lines of 128 bytes"),
        (lambda s, w, f: -(-(31 * abs(s) + 1) * w // 32), "(1, 4, 1) is 4", None),
        (lambda s, w, f: s * w, "(1, 4, 1) is 4", None),
        (lambda s, w, f: w / 1, "the float 4.0", "makes a float"),
        (lambda s, w, f: "four", "a str as the sectors", ""),
    ],
)
def test_sectors_wrong(answer, message, means):
    fails(check("04.1", answer, seed=1), message=message, means=means)


@pytest.mark.parametrize(
    ("answer", "message", "means"),
    [
        (lambda lines: min(lines, key=lambda one: one.efficiency).line, "line 9", "count bytes"),
        (
            lambda lines: max(lines, key=lambda o: 32 * o.sectors - o.bytes_distinct).line,
            "(3, 4, 0, 6) says line 10",
            "has an entry for each",
        ),
        (lambda lines: max(lines, key=lambda one: one.sectors).line, "line 7", "no waste"),
        (
            lambda lines: max(lines, key=lambda o: 32 * o.sectors - o.bytes_requested).line,
            "(3, 4, 0, 6) says line 10",
            "has an entry for each",
        ),
        (s.costliest_by_requested, "(2, 1, 0, 1) says line 7", "take bytes_distinct"),
        (lambda lines: max(lines, key=lambda one: one.requests).line, "line 7", None),
        (lambda lines: 1, "says line 1; the lines that use memory are 7, 8, 9, 10", ""),
        (lambda lines: lines[0], "a LineTraffic as the line", ""),
    ],
)
def test_costliest_wrong(answer, message, means):
    fails(check("04.2", answer, seed=1), message=message, means=means)


@pytest.mark.parametrize(
    ("answer", "message", "means"),
    [
        (s.add_with("beyond", blocks=lambda n: n // 256), "the grid is one to three", ""),
        (s.add_with("right", blocks=lambda n: max(n // 256, 1)), "is nan", "rounded up"),
        (s.add_with("right", blocks=lambda n: 1), "is nan", "Only the first 256 elements"),
        (s.add_with("beyond"), "a load at index 1 of 'x'", "whoever has i >= n"),
        (s.add_with("unguarded"), "at index", "whoever has i >= n"),
        (s.add_with("strict"), "is nan", "the guard is too strict"),
        (s.add_with("one_block"), "of block (0, 0, 0) stored to", "Two blocks meet"),
        (s.add_with("minus"), "should be", "taken away"),
        (s.add_with("x_again"), "should be", "x is added to itself"),
        (s.add_with("half"), "should be", "through 16 bits"),
        pytest.param(
            s.add_with("spilt"),
            "compiled for sm_75, spills",
            "An array of a thread's own",
            marks=needs_nvrtc,
        ),
        (triton_add(""), "launched element_kernel, which is written in Triton", "in CUDA C++"),
        (s.add_with("twice"), "x is read 2.0 times", None),
        (s.add_with("stored_twice"), "the output is asked for", "stays in a register"),
        (s.add_with("chunks", 1024), "with 16.0 sectors a request", "share sectors"),
        (s.add_with("strided", blocks=lambda n: 1), "runs 1 block on", "most of them idle"),
        (lambda x, y: x + y, "launched no CUDA C++ kernel: PyTorch's add", "a kernel of yours"),
    ],
)
def test_add_wrong(answer, message, means):
    fails(check("04.3", answer, seed=1), message=message, means=means)


@pytest.mark.parametrize(
    ("answer", "message", "means"),
    [
        (s.silu_with("quotient"), "beyond ±89", "inf / inf is nan"),
        (s.silu_with("no_b"), "should be", "b is missing"),
        (s.silu_with("sigmoid"), "should be", "silu is a * sigmoid(a)"),
        (s.silu_with("sign"), "should be", "The sign of the exponent"),
        (s.silu_with("exchanged"), "should be", "silu is taken of b"),
        (s.silu_with("unguarded"), "at index", "whoever has i >= n"),
        (s.silu_with("reversed_walk"), "sectors a request", "share sectors"),
        (s.silu_with("strided", blocks=1), "runs 1 block on", "most of them idle"),
        (lambda a, b: torch.nn.functional.silu(a) * b, "launched no CUDA C++ kernel", None),
    ],
)
def test_silu_wrong(answer, message, means):
    fails(check("04.4", answer, seed=1), message=message, means=means)


@pytest.mark.parametrize(
    ("answer", "message", "means"),
    [
        (lambda w: s.passes_by_counter(w) - 1, "is 0", "a request takes one at least"),
        (lambda w: max(map([x % 32 for x in w].count, range(32))), "is 32", "in one pass"),
        (lambda w: len({x % 32 for x in w}), "is 32", "the one that is asked"),
        (lambda w: len(set(w)), "(words) is 32", "how many different words are wanted"),
        (
            lambda w: max(map([x // 32 for x in set(w)].count, range(64))),
            "(words) is 32; a warp's request took 1 pass over the banks (the words are [0, 1, 2,",
            "You group by w // 32; the bank is w % 32.",
        ),
        (lambda w: 1, "took 2 passes", None),
        (lambda w: 2, "took 1 pass over", ""),
        (lambda w: 1.0, "the float 1.0", None),
    ],
)
def test_passes_wrong(answer, message, means):
    fails(check("04.8", answer, seed=1), message=message, means=means)


def test_a_source_that_does_not_compile_is_told_with_its_line():
    broken = cuda(s.edited(s.ADD, ("y[i];", "z[i];")))

    def my_add(x, y):
        out = torch.empty_like(x)
        broken.add[1, 256](x, y, out, x.numel())
        return out

    result = check("04.3", my_add, seed=1)
    fails(result, message="The C++ doesn't compile: line 5: ")
    assert "was not declared" in result.message


def test_a_launch_that_never_ends_names_the_line_of_the_kernel():
    endless = cuda(
        s.edited(
            s.ADD, ("    out[i]", "    for (int k = 0; n > 0; k++) n += x[i] > 9;\n    out[i]")
        )
    )

    def my_add(x, y):
        out = torch.empty_like(x)
        endless.add[1, 256](x, y, out, x.numel())
        return out

    fails(check("04.3", my_add, seed=1), message="line 5: ", means="would never end")


@needs_nvrtc
def test_what_nvrtc_refuses_is_told():
    refused = "#ifdef __CUDACC_RTC__\n#error refused\n#endif\n"
    only_here = cuda(refused + s.ADD)

    def my_add(x, y):
        out, n = torch.empty_like(x), x.numel()
        only_here.add[(n + 255) // 256, 256](x, y, out, n)
        return out

    result = check("04.3", my_add, seed=1)
    fails(result, message="compiled for sm_75, does not compile", means="for a GPU NVRTC does")


def test_what_is_given_of_a_string_of_cuda_stands_behind_its_marker():
    source = """k = cuda(r\"\"\"
    // ### BEGIN SOLUTION
    right();
    // ### GIVEN
    // wrong();
    // // a comment stays
    // ### END SOLUTION
    // ### BEGIN SOLUTION
    all();
    // ### END SOLUTION
\"\"\")"""
    cell = {"cell_type": "code", "id": "a", "metadata": {}, "source": source.splitlines(True)}
    notebook = {"cells": [cell], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}
    lines = "".join(exercise_of(notebook)["cells"][0]["source"]).splitlines()
    assert lines[1:-1] == ["    wrong();", "    // a comment stays", "    #error your turn"]


def test_a_right_answer_compiles_for_two_cards_or_says_nothing_of_it():
    result = check("04.3", s.add_with("right"), seed=1)
    told = any("compiles for sm_75 and sm_80" in held for held in result.held)
    assert told == (no_compiler() is None)


def test_a_kernel_with_nothing_written_is_not_answered_yet():
    given = cuda(s.edited(s.ADD, ("    out[i] = x[i] + y[i];", "    #error your turn")))

    def my_add(x, y):
        given.add[1, 256](x, y, torch.empty_like(x), x.numel())

    told = "Not answered yet: the kernel cell still holds `#error your turn`. Write the kernel, run"
    fails(check("04.3", my_add, seed=1), message=told)


@pytest.fixture(scope="module")
def page():
    """The names that the exercise's own cells of 04.1 and 04.2 define."""
    names = {}
    for cell_id, source in code_cells(ROOT / "exercises" / "04_unfused_cuda_kernels.ipynb"):
        if cell_id in ("imports", "q1-kernel", "q2-kernel", "q2-try", "q8-try"):
            exec(compile(source, cell_id, "exec"), names)
    return names


@pytest.mark.parametrize(("stride", "first"), [(1, 0), (2, 3), (9, 1)])
def test_the_walk_on_the_page_of_04_1_is_the_one_counted(page, stride, first):
    counts = page["walking"].walk[1, 32](torch.ones(400), torch.ones(32), stride, first)
    (loads,) = [line for line in counts.lines if line.argument == "x"]
    assert loads.sectors == predict.counted_sectors(stride, 4, first)


def test_the_launch_on_the_page_of_04_2_is_the_one_graded(page):
    shown = page["counts"]
    assert shown.lines == ledger.launched(4, 3, 1, 2)


def test_the_gather_on_the_page_of_04_8_is_the_one_counted(page):
    words = torch.arange(32, dtype=torch.int32) * 5
    counts = page["reading"].gather[1, 32](words, torch.empty(32))
    (loads,) = [line for line in counts.banks if line.kind == "load"]
    assert loads.wavefronts == predict.counted_passes(words.tolist())


@pytest.mark.parametrize("numbers", ledger._LAUNCHES)
def test_no_launch_of_04_2_has_two_costliest_lines(numbers):
    first, second = sorted(ledger.wasted(ledger.launched(*numbers)).values())[:-3:-1]
    assert first > second
