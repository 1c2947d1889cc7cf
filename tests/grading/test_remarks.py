"""Slips that readers make are told by name: each is a solution with a word or two replaced."""

import pytest

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


def test_a_solution_without_an_edit_is_right():
    assert check("04.6", edited("04.6")).passed
