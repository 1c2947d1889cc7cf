"""Each known-wrong submission fails with the diagnosis meant for it; right ones pass."""

import linecache

import pytest
import torch

from kernels.grading import check
from kernels.grading.questions.ch03.edges import counted_tiles, shapes_of, tiles
from kernels.grading.questions.ch03.launches import _step, counted_launch
from kernels.lab.counting import traffic
from kernels.paths import ROOT
from tests.grading import submissions as s02
from tests.grading import submissions_03 as s
from tests.grading import submissions_03_launches as launches
from tests.grading.known_wrong import fails
from tests.grading.right import assert_all_pass_soon, assert_passes_soon
from tests.grading.test_exercises import code_cells

RIGHT = {
    "03.1": (launches.launch_rounded_up, launches.launch_by_remainder, launches.launch_by_cdiv),
    "03.2": (launches.cause_by_bytes, launches.cause_by_ratios, launches.cause_by_reads),
    "03.3": (s.copy_with("", block=64, warps=1), s.strided_copy, s.tiled_copy),
    "03.4": (s.add_with(""), s.strided_add, s.tiled_add),
    "03.5": (s.sum_with(""), s.looped_sum, s.tiled_sum),
    "03.6": (s.transpose_with(""), s.transpose_with("", (16, 64)), s.turned),
    "03.7": (s.normalize_with(""), s.masked_square, s.two_rows),
    "03.8": (s02.with_fault(""), s02.masked_square, s02.two_rows),
    "03.9": (launches.extremes_by_tiles, launches.extremes_by_share, launches.extremes_by_sorting),
}


@pytest.mark.parametrize("question", RIGHT)
def test_right_answers_pass_whatever_is_set(question):
    assert_all_pass_soon(question, RIGHT[question])


@pytest.mark.parametrize("seed", [2, 3])
@pytest.mark.parametrize("question", RIGHT)
def test_right_answers_pass_whatever_the_seed(question, seed):
    for answer in RIGHT[question]:
        assert_passes_soon(question, answer, seed)


def launch(programs=None, lanes=None, masked=None):
    """The right numbers of a launch, each replaced by a wrong formula where one is given."""

    def launch_numbers(n, block):
        told = launches.launch_rounded_up(n, block)
        wrong = (programs, lanes, masked)
        return tuple(f(n, block) if f else t for f, t in zip(wrong, told, strict=True))

    return launch_numbers


@pytest.mark.parametrize(
    ("answer", "means"),
    [
        (launch(programs=lambda n, b: n // b), "rounded down"),
        (launch(programs=lambda n, b: n // b + 1), "One program too many"),
        (launch(programs=lambda n, b: n), "counts elements"),
        (launch(programs=lambda n, b: n / b), "float"),
        (launch(lanes=lambda n, b: -(-n // b) * b), "Only one access"),
        (launch(lanes=lambda n, b: 2 * -(-n // b) * b), "the store is not"),
        (launch(lanes=lambda n, b: 3 * n), "masked lanes are lanes too"),
        (launch(lanes=lambda n, b: 3 * b), "one program"),
        (launch(masked=lambda n, b: -n % b), "Only one access"),
        (launch(masked=lambda n, b: 2 * (-n % b)), "the store is not"),
        (launch(masked=lambda n, b: 3 * n), "switched on"),
        (launch(masked=lambda n, b: 3 * (n % b)), "the others are the masked ones"),
        (launch(masked=lambda n, b: 3 * (b - n % b)), "no lane is masked"),
    ],
)
def test_launch_wrong(answer, means):
    fails(check("03.1", answer, seed=1), means=means)


def test_a_launch_is_no_prediction():
    fails(
        check("03.1", launches.launch_by_launching),
        message="launch_by_launching launches add_kernel",
        means="before anything runs",
    )


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize(
    "answer", [launches.cause_by_fewer_masked, launches.cause_by_lanes_of_a_program]
)
def test_a_sign_that_fits_some_launches_is_no_cause(answer, seed):
    assert not check("03.2", answer, seed=seed).points


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (lambda n, b: n, "returned an int; it takes the tuple"),
        (lambda n, b: (10**30, 2, 3), "a number beyond 2**63 as programs"),
        (lambda n, b: ("1", 2, 3), "a str as programs"),
    ],
)
def test_launch_of_another_kind(answer, message):
    fails(check("03.1", answer, seed=1), message=message)


@pytest.mark.parametrize(
    ("answer", "message", "means"),
    [
        (launches.cause_by_programs, "whose cause is 'lanes idle'", "lanes and masked_lanes"),
        (launches.cause_by_lanes_first, "whose cause is 'loads twice'", "times_read"),
        (launches.cause_by_distinct_bytes, "whose cause is 'loads twice'", "times_read"),
        (lambda right, other: "nothing", "whose cause is 'grid too small'", "last program"),
        (lambda right, other: "grid too small", "whose cause is 'nothing'", "is no fault"),
        (lambda right, other: "slow", "returned 'slow'; a cause is one of", ""),
        (lambda right, other: 3, "returned an int; a cause is one of", ""),
    ],
)
def test_cause_wrong(answer, message, means):
    fails(check("03.2", answer, seed=1), message=message, means=means)


@pytest.mark.parametrize(
    ("answer", "message", "means"),
    [
        (s.copy_with("", s.rounded_down), "is nan", "triton.cdiv(n, BLOCK), which rounds up"),
        (s.copy_with("strict"), "is nan", "its mask is too strict"),
        (s.copy_with("", s.one_program), "is nan", "Only the first 256 elements"),
        (s.copy_with("beyond"), "index", "compare each lane's own offset"),
        (s.copy_with("lanes"), "index", "compare each lane's own offset"),
        (s.copy_with("unmasked"), "index", "compare each lane's own offset"),
        (s.copy_with("one block"), "argument 'out_ptr'", "Two programs meet"),
        (s.copy_with("half"), "should be", "through 16 bits"),
        (s.copy_with("reverse"), "should be", "opposite order"),
        (s.copy_with("twice"), "x is read 2.0 times", "Each load asks memory again"),
        (s.whole_copy, "runs 1 program on", "most of them idle"),
        (lambda x: x, "launched no Triton kernel", None),
        (lambda x: x.clone(), "PyTorch's clone", "a kernel of yours"),
    ],
)
def test_copy_wrong(answer, message, means):
    fails(check("03.3", answer, seed=1), message=message, means=means)


@pytest.mark.parametrize(
    ("answer", "message", "means"),
    [
        (s.add_with("lanes", s.rounded_down), "is nan", "How many programs does the grid have"),
        (s.add_with("lanes"), "index", "compare each lane's own offset"),
        (s.add_with("", s.rounded_down), "is nan", "no program has taken them"),
        (s.add_with("", s.one_program), "is nan", "Only the first 256 elements"),
        (s.add_with("x again"), "should be", "x is added to itself"),
        (s.add_with("minus"), "should be", "taken away"),
        (s.add_with("times"), "should be", "multiplied"),
        (lambda x, y: s.copy_with("")(x), "should be", "y is not added"),
        (lambda x, y: x + y, "PyTorch's add", "a kernel of yours"),
    ],
)
def test_add_wrong(answer, message, means):
    fails(check("03.4", answer, seed=1), message=message, means=means)


@pytest.mark.parametrize(
    ("answer", "message", "means"),
    [
        (s.sum_with("half"), "in fp16", "convert with .to(tl.float32) before the sum"),
        (s.sum_with("", block=1024), "(2, 4096)", "Only the first 1024 columns"),
        (lambda x: s.looped_sum(x, replace=True), "(1, 1000)", "replaces what it should add to"),
        (s.sum_with("mean"), "should be", "That is the mean"),
        (s.sum_with("max"), "should be", "the largest element"),
        (s.sum_with("ones"), "(3, 17)", "Masked lanes enter the sum"),
        (s.sum_with("stride"), "should be", "Row r begins at r · n_cols"),
        (s.sum_with("first row"), "should be", "sums the first row"),
        (s.sum_with("unmasked"), "index", "Columns beyond the row need a mask"),
        (s.sum_with("", fewer_rows=1), "is nan", "The last rows were never stored"),
        (s.sum_with("twice"), "x is read 2.0 times", "Each load asks memory again"),
        (s.sum_with("", dtype=torch.float16), "torch.float16, not torch.float32", None),
        (s.sum_with("no other"), "masked lanes enter the result", "that is other=0.0"),
        (lambda x: x.float().sum(-1), "PyTorch's sum", "a kernel of yours"),
        (lambda x: s.sum_with("")(x)[:, None], "the shape (4, 1), not (4,)", ""),
    ],
)
def test_row_sum_wrong(answer, message, means):
    fails(check("03.5", answer, seed=1), message=message, means=means)


@pytest.mark.parametrize(
    ("answer", "message", "means"),
    [
        (s.transpose_with("row mask alone"), "", "A tile has two edges"),
        (s.transpose_with("column mask alone"), "", "A tile has two edges"),
        (s.transpose_with("straight"), "should be", "copied in its own order"),
        (s.transpose_with("stride"), "index", "a row of the output n_rows"),
        (s.few_tiles_of_columns, "is nan", "too few tiles along the columns"),
        (s.transpose_with("", grid=s.one_program), "is nan", "one tile along the"),
        (s.transpose_with("", swapped=True), "is nan", "axes are swapped"),
        (s.transpose_with("", (64, 64), swapped=True), "is nan", "axes are swapped"),
        (s.transpose_with("", (16, 64), swapped=True), "is nan", "axes are swapped"),
        (s.transpose_with("", (64, 64), s.one_program), "is nan", "one tile along the"),
        (s.transpose_with("", like_view=True), "should be", "empty_like keeps them"),
        (s.transpose_with("twice"), "x is read 2.0 times", "Each load asks memory again"),
        (lambda x: s.copy_with("")(x).t(), "the strides", "nothing was transposed"),
        (s.transpose_with("", (1, 0)), "for every row, column or element", "whole sectors"),
        (s.transpose_with("", (8, 8)), "tiles of 16 by 16 take", "smaller than 16 by 16"),
        (s.transpose_with("", (8, 64)), "(100, 1)", "smaller than 16 by 16"),
        (s.transpose_with("", (64, 8)), "(1, 300)", "smaller than 16 by 16"),
        (
            lambda x: s.transpose_with("")(x).view(x.shape),
            "the shape (1, 300), not (300, 1)",
            "The output has the shape of x",
        ),
        (s.transpose_with("", (0, 0)), "one program, whatever the shape", "share the work"),
        (lambda x: x.t().contiguous(), "PyTorch's clone", "a kernel of yours"),
        (lambda x: x, "should be", "copied in its own order"),
    ],
)
def test_transpose_wrong(answer, message, means):
    fails(check("03.6", answer, seed=1), message=message, means=means)


@pytest.mark.parametrize(
    ("answer", "message", "means"),
    [
        (s.three_passes, "x is read 3.0 times", "fuse the passes"),
        (s.normalize_with("twice"), "x is read 2.0 times", "still loads x again"),
        (s.normalize_with("one pass"), "mean near 3000", "E[x²] - E[x]²"),
        (s.normalize_with("lanes"), "(3, 17)", "Masked lanes enter the variance"),
        (s.normalize_with("block"), "(3, 17)", "divided by BLOCK"),
        (s.normalize_with("unbiased"), "should be", "divided by N - 1"),
        (s.normalize_with("mean"), "should be", "mean is not subtracted"),
        (s.normalize_with("eps"), "of shape (3, 1", "eps is not added"),
        (s.normalize_with("square root"), "should be", "not by its square root"),
        (s.normalize_with("half"), "in fp16", "It is right in fp32"),
        (s.normalize_with("", block=256), "(2, 1000)", "Only the first 256 columns"),
        (s.normalize_with("no other"), "masked lanes enter the result", "that is other=0.0"),
        (lambda x, eps: x / 2, "should be", ""),
    ],
)
def test_normalize_wrong(answer, message, means):
    fails(check("03.7", answer, seed=1), message=message, means=means)


@pytest.mark.parametrize(
    ("answer", "message", "means"),
    [
        (s02.with_fault("given"), "(3, 17) in fp32", "Masked lanes enter the variance"),
        (s02.with_fault("one pass"), "mean near 1000", "E[x²] - E[x]²"),
        (s02.with_fault("twice"), "x is read 2.0 times", "Each load asks memory again"),
        (s02.two_launches, "2 launches (row_kernel, copy_kernel)", ""),
    ],
)
def test_layer_norm_wrong(answer, message, means):
    fails(check("03.8", answer, seed=1), message=message, means=means)


@pytest.mark.parametrize(
    ("answer", "message", "means"),
    [
        (launches.extremes_near_a_square, "(1122, 32): (33, 34)", "nearest to a square"),
        (launches.extremes_the_wrong_way_round, "(1, 4096)", "one row or one column of lanes"),
        (launches.extremes_in_whole_blocks, "1,120 elements, not 1,122", "n_rows divides n"),
        (launches.extremes_with_two_rows, "masks the most lanes", "as thin as can be"),
        (lambda n, b: (launches.extremes_by_tiles(n, b)[0],) * 2, "most", "fewest lanes: the sec"),
        (lambda n, b: ((n, 1.0), (n, 1)), "a float 1.0; n_cols of best is an int", "/ makes"),
        (lambda n, b: (1, n), "for best, returned an int", ""),
        (lambda n, b: ((-1, -n), (1, n)), "(-1, -4096) as best", None),
    ],
)
def test_extremes_wrong(answer, message, means):
    fails(check("03.9", answer, seed=1), message=message, means=means)


@pytest.mark.parametrize(("shape", "block"), [((1, 1), 16), ((33, 34), 32), ((22, 51), 32)])
def test_tiles_are_those_that_a_launch_counts(page, shape, block):
    programs, masked = counted_tiles(shape, block)
    assert programs == tiles(shape, block)
    assert masked == 2 * (programs * block**2 - shape[0] * shape[1])
    (step,) = traffic.count(page["launch_negate"], *shape, block)
    assert (step.programs, step.masked_lanes) == (programs, masked)


def test_shapes_of_have_all_the_elements():
    assert shapes_of(12) == [(1, 12), (2, 6), (3, 4), (4, 3), (6, 2), (12, 1)]
    assert shapes_of(1) == [(1, 1)]


def test_a_load_with_its_mask_alone_passes_where_the_lanes_are_masked_again():
    # Its other is left open too, and no masked lane reaches a sum.
    assert check("03.5", s.tiled_sum, seed=1).passed


@pytest.fixture(scope="module")
def page():
    """The names that the exercise's own cells of 03.1, 03.2 and 03.9 define."""
    path = ROOT / "exercises" / "03_first_kernels.ipynb"
    names = {}
    for cell_id, source in code_cells(path):
        if cell_id in ("imports", "q1-kernel", "q2-kernel", "q9-kernel"):
            name = f"{path}:{cell_id} of the page"
            linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
            exec(compile(source, name, "exec"), names)
    return names


@pytest.mark.parametrize(("n", "block"), [(1, 1), (5, 4), (1000, 256), (1024, 256)])
def test_the_launch_on_the_page_of_03_1_is_the_one_counted(page, n, block):
    (step,) = traffic.count(page["launch_add"], n, block)
    assert (step.programs, step.lanes, step.masked_lanes) == counted_launch(n, block)


@pytest.mark.parametrize(
    ("cause", "options"),
    [
        ("nothing", {}),
        ("grid too small", {"fewer_programs": 1}),
        ("loads twice", {"twice": True}),
        ("stores wider", {"dtype": torch.float32}),
    ],
)
def test_the_launches_on_the_page_of_03_2_are_those_graded(page, cause, options):
    x = torch.ones(200, dtype=torch.float16)
    (step,) = traffic.count(page["launch_double"], x, 64, **options)
    assert step == _step(x, 64, cause)
