"""Slips that readers make are told by name: each is a solution with a word or two replaced."""

import pytest
import torch

from kernels.grading import check
from tests.grading.edited import edited

UNDER = "eps is added to the root; it belongs under it."
RECIPROCAL = "eps is added to the reciprocal of the root; it belongs under the root."
SLIPS = {
    "02.6, eps behind rsqrt": (
        "02.6",
        ("tl.rsqrt(mean_square + eps)", "(tl.rsqrt(mean_square) + eps)"),
        RECIPROCAL,
    ),
    "04.6, eps outside": (
        "04.6",
        ("rsqrtf(sum / n_cols + eps)", "1.0f / (sqrtf(sum / n_cols) + eps)"),
        UNDER,
    ),
    "04.6, eps behind rsqrt": (
        "04.6",
        ("rsqrtf(sum / n_cols + eps)", "rsqrtf(sum / n_cols) + eps"),
        RECIPROCAL,
    ),
    "04.10, eps outside": (
        "04.10",
        ("rsqrtf(sum / n_cols + eps)", "1.0f / (sqrtf(sum / n_cols) + eps)"),
        UNDER,
    ),
    "04.10, eps behind rsqrt": (
        "04.10",
        ("rsqrtf(sum / n_cols + eps)", "rsqrtf(sum / n_cols) + eps"),
        RECIPROCAL,
    ),
    "05.3, eps behind rsqrt": (
        "05.3",
        (
            "rsqrtf(block_sum(squares) / n_cols + eps)",
            "rsqrtf(block_sum(squares) / n_cols) + eps",
        ),
        RECIPROCAL,
    ),
    "06.3, eps behind rsqrt": (
        "06.3",
        ("tl.rsqrt(variance + eps)", "(tl.rsqrt(variance) + eps)"),
        RECIPROCAL,
    ),
    "06.4, eps behind rsqrt": (
        "06.4",
        ("tl.rsqrt(mean_square + eps)", "(tl.rsqrt(mean_square) + eps)"),
        RECIPROCAL,
    ),
    "08.9, eps outside": (
        "08.9",
        ("tl.rsqrt(variance + eps)", "1 / (tl.sqrt(variance) + eps)"),
        UNDER,
    ),
    "08.9, eps behind rsqrt": (
        "08.9",
        ("tl.rsqrt(variance + eps)", "(tl.rsqrt(variance) + eps)"),
        RECIPROCAL,
    ),
    "04.4, silu of -a": (
        "04.4",
        ("float value = a[i]", "float value = -a[i]"),
        "silu is taken of -a; it is taken of a.",
    ),
    "05.4, silu of -v": (
        "05.4",
        ("v / (1.0f + expf(-v))", "-v / (1.0f + expf(v))"),
        "silu is taken of -v; it is taken of v.",
    ),
    "08.9, the sign in the sigmoid": (
        "08.9",
        ("tl.sigmoid(1.5957691216", "tl.sigmoid(-1.5957691216"),
        "The sign in the sigmoid is wrong",
    ),
    "02.5, the other axis": (
        "02.5",
        ("x.float(), -1", "x.float(), 0"),
        "Mean and variance run down the columns",
    ),
    "07.5, the other axis": (
        "07.5",
        ("tl.sum(sums, axis=0)", "tl.sum(sums, axis=1)"),
        "A tile is summed along axis 1, its rows",
    ),
    "04.6, the shape of x": (
        "04.6",
        ("out = torch.empty(rows, device=x.device)", "out = torch.empty_like(x)"),
        "The output has the shape of x, where each row has one value",
    ),
    "03.5, the shape of x": (
        "03.5",
        ("torch.empty(rows, dtype=torch.float32, device=x.device)", "torch.empty_like(x).float()"),
        "The output has the shape of x, where each row has one value",
    ),
    "04.6, down the columns": (
        "04.6",
        ("row[col] * row[col]", "row[col * gridDim.x] * row[col * gridDim.x]"),
        "A block takes every n_rows-th element",
    ),
}


@pytest.mark.parametrize("slip", SLIPS)
def test_a_slip_is_told_by_its_name(slip):
    question, edit, told = SLIPS[slip]
    edits = [edit]
    if slip == "04.6, down the columns":
        edits.append(("x + blockIdx.x * n_cols", "x + blockIdx.x"))
    result = check(question, edited(question, *edits))
    assert not result.passed
    assert told in result.means, result


def test_a_slip_is_told_where_its_own_rounding_is_all_that_is_left():
    """Three equal numbers near 2000, down a column: minus their mean in fp32, they aren't 0."""
    result = check("02.5", edited("02.5", SLIPS["02.5, the other axis"][1]), seed=2392127258)
    assert "Mean and variance run down the columns" in result.means, result


def test_a_solution_without_an_edit_is_right():
    assert check("04.6", edited("04.6")).passed


ROW = "Here it is the row."
FLAT = "Of an index i that runs through all rows that is i % n_cols."
PLACES = {
    "02.2, weight as x": ("02.2", "weight_ptr + cols", "weight_ptr + row * n_cols + cols", FLAT),
    "02.7, weight as x, two outputs": ("02.7", "weight_ptr + cols", "weight_ptr + places", FLAT),
    "04.7, weight by row": ("04.7", "weight[col]", "weight[row]", ROW),
    "04.7, weight as x": ("04.7", "weight[col]", "weight[i]", FLAT),
    "04.7, inverse by column": (
        "04.7",
        "inverse[row]",
        "inverse[col]",
        "inverse has a value for each row, and its index is the row.",
    ),
    "05.4, bias without % n_cols": ("05.4", "bias[col]", "bias[i]", FLAT),
    "06.4, weight by row": (
        "06.4",
        "weight_ptr + cols, mask=cols < n_cols",
        "weight_ptr + rows, mask=rows < n_rows",
        ROW,
    ),
    "07.4, weight by row": ("07.4", "weight_ptr + cols, mask=mask", "weight_ptr + row", ROW),
}


@pytest.mark.parametrize("place", PLACES)
def test_an_index_of_another_tensor_is_told_apart_from_a_mask(place):
    question, before, after, told = PLACES[place]
    result = check(question, edited(question, (before, after)))
    assert not result.passed
    assert result.means.startswith("What is loaded there is used: neither a mask nor a guard")
    assert told in result.means
    assert "reaches past" not in result.means


@pytest.mark.parametrize(
    ("question", "edit"),
    [
        ("02.2", ("weight_ptr + cols, mask=mask, other=0.0", "weight_ptr + cols")),
        ("06.4", ("weight_ptr + cols, mask=cols < n_cols", "weight_ptr + cols")),
        # A masked dy makes 0 of what the weight's lanes hold.
        ("07.4", ("weight_ptr + cols, mask=mask", "weight_ptr + cols")),
        ("05.4", ("if (col >= n_cols) return;", "")),
    ],
)
def test_a_mask_that_is_missing_is_told_as_such(question, edit):
    result = check(question, edited(question, edit))
    assert not result.passed
    assert "reaches past" in result.means or "meet at one element" in result.means
    assert "the index is wrong" not in result.means


NARROW = {
    "02.2": (".to(tl.float32)\n\n    mean", ".to(tl.float16)\n\n    mean"),
    "02.6": (".to(tl.float32)\n    mean_square", ".to(tl.float16)\n    mean_square"),
    "02.7": ("h = h.to(tl.float32)\n", "h = h.to(tl.float16)\n"),
    "06.4": (".to(tl.float32)\n    mean_square", ".to(tl.float16)\n    mean_square"),
    "08.9": (
        "x = tl.load(x_ptr + e, mask=mask, other=0.0).to(tl.float32)",
        "x = tl.load(x_ptr + e, mask=mask, other=0.0).to(tl.float16).to(tl.float32)",
    ),
    "05.3": (
        "? x[first + col] :",
        "? __half2float(__float2half(x[first + col])) :",
    ),
}


@pytest.mark.parametrize("question", NARROW)
def test_16_bits_on_the_way_are_told_where_some_inputs_lie_far_from_0(question):
    edits = [NARROW[question]]
    if question == "05.3":
        edits.append(('norm_kernel = r"""', 'norm_kernel = r"""\n#include <cuda_fp16.h>'))
    result = check(question, edited(question, *edits))
    assert not result.passed
    assert "went through" in result.means, result


REST = "    } else {\n        for (int i = first; i < n; i++)"


@pytest.mark.parametrize(
    ("question", "edit", "told"),
    [
        ("05.5", (REST, REST.replace("first;", "n / 8 * 8;")), "they belong to one thread"),
        ("08.7", ("if (8 * i >= n) return;", "if (8 * i >= n) i = n / 8;"), "they belong to one"),
        ("04.6", ("if (threadIdx.x == 0) out", "out"), ""),
    ],
)
def test_several_threads_that_store_one_element_are_not_sent_for_a_barrier(question, edit, told):
    result = check(question, edited(question, edit))
    assert not result.passed
    assert "give each element to one thread" in result.means, result
    assert told in result.means
    assert "__syncthreads" not in result.means


@pytest.mark.parametrize("question", ["02.6", "03.3", "03.7", "04.4", "05.3", "06.4", "06.6"])
def test_an_output_of_zeros_is_told_as_such(question):
    result = check(question, lambda x, *others: torch.zeros_like(x))
    assert result.means.startswith("The output is 0 everywhere")


@pytest.mark.parametrize("question", ["02.6", "03.7", "06.4", "06.6"])
def test_x_itself_is_told_as_such(question):
    result = check(question, lambda x, *others: x.clone())
    assert result.means == "What comes back is x, as it was given."


@pytest.mark.parametrize("question", ["02.2", "02.6", "03.8", "06.4", "07.4"])
def test_a_mask_that_ends_a_column_early_is_told_as_such(question):
    after = "(cols < n_cols)\n    x" if question == "06.4" else "mask = cols < n_cols"
    result = check(question, edited(question, (after, after.replace("n_cols", "n_cols - 1"))))
    assert result.means.startswith("The last column of each row was never stored"), result


def test_rows_that_are_too_wide_for_a_block_lack_columns_at_the_end():
    edit = ("triton.next_power_of_2(n_cols)", "64")
    result = check("02.6", edited("02.6", edit))
    assert result.means.startswith("Columns at the end were never stored"), result
