"""Mutants of set 11 beside those of every kernel: what readers of this chapter get wrong.

`test_mutants` changes masks, bounds and operators of kernels. Here axes change places, statistics
come from one step alone, an epilogue's parts change their order; and formulas that launch nothing.
"""

import pytest

from kernels.paths import ROOT
from tests.grading.mutation import graded, reworded
from tests.grading.verdict import formula_survivors, survivors

PATH = ROOT / "solutions" / "11_what_fuses_around_a_product.ipynb"
ASKED = {one.question: one for one in graded(PATH)}
# By question: the cell, and (what it is called, what stands there, what stands there then).
CHANGED = {
    "11.4": (
        "q4-kernel",
        (
            ("axes of the grid", r"program_id\(0\)", "program_id(1)"),
            ("rows of weight by N", r"\(tl.int64\)\[None, :\] \* K", "(tl.int64)[None, :] * N"),
            ("rows of y by M", r"\[:, None\] \* N", "[:, None] * M"),
            ("sum replaced", r"weight, total, input", "weight, input"),
            ("bias by the row", r"bias_ptr \+ cols", "bias_ptr + rows"),
            ("bias along the rows", r"bias\[None, :\]", "bias[:, None]"),
            (
                "GELU of the bias",
                r"gelu\(total \+ bias\[None, :\]\)",
                "total + gelu(bias[None, :])",
            ),
        ),
    ),
    "11.5": (
        "q5-kernel",
        (
            ("columns of sums for y", r"cols = tl.program_id\(1\)", "cols = tl.program_id(0)"),
            ("rows of gate alone", r"program_id\(1\) \* 2 \* BLOCK_N", "program_id(1) * BLOCK_N"),
            ("sum replaced", r"weight, total, input", "weight, input"),
            ("rows of y by 2 N", r"\[:, None\] \* N", "[:, None] * 2 * N"),
            ("SiLU of up", r"tl.sigmoid\(gate\)", "tl.sigmoid(up)"),
        ),
    ),
    "11.9": (
        "q9-kernel",
        (
            ("mean of one step", r"first \+= ", "first = "),
            ("squares of one step", r"second \+= ", "second = "),
            ("sums by the row", r"sums_ptr \+ cols", "sums_ptr + rows"),
            ("sums along the rows", r"c\[None, :\]", "c[:, None]"),
            ("mean along the columns", r"mean\[:, None\]", "mean[None, :]"),
            ("bias for sums", r"sums_ptr \+ cols", "bias_ptr + cols"),
            ("statistics along the other axis", r"sum\(wide, axis=1\)", "sum(wide, axis=0)"),
            ("M for K", r"first / K", "first / M"),
            ("std for its inverse", r"tl.rsqrt", "tl.sqrt"),
        ),
    ),
}


@pytest.mark.parametrize("question", CHANGED)
def test_what_readers_change_is_caught(question):
    asked = ASKED[question]
    assert not survivors(asked, reworded(asked, *CHANGED[question]))


FORMULAS = {
    "11.1": "q1-answer",
    "11.2": "q2-answer",
    "11.7": "q7-answer",
    "11.8": "q8-answer",
    "11.10": "q10-answer",
}
# The same function, since no record lies on a bound, nor within a byte of it.
SAME = {
    "11.7 bound one up: abs(more - of_folded) < abs(more - of_h)",
    "11.7 bound one down: abs(more - of_folded) < abs(more - of_h)",
    "11.7 bound one up: times < 1.5",
    "11.7 bound one up: moved < 1.5",
}


@pytest.mark.parametrize("question", FORMULAS)
def test_changed_formulas_are_caught(question):
    lived = formula_survivors(ASKED[question], FORMULAS[question])
    assert [one for one in lived if one not in SAME] == [], lived
