"""Mutants of set 10 beside those of every kernel: what readers of this chapter get wrong.

`test_mutants` changes masks, bounds and operators of kernels. Here axes change places, a sum
replaces what it should add to, a share of K begins elsewhere; and formulas that launch nothing.
"""

import pytest

from tests.grading.mutation import asked_in
from tests.grading.verdict import formula_survivors, reworded_survivors

ASKED = asked_in("10_tiled_products")
# By question: the cell, and (what it is called, what stands there, what stands there then).
CHANGED = {
    "10.5": (
        "q5-kernel",
        (
            ("axes of the grid", r"program_id\(0\)", "program_id(1)"),
            ("rows of weight by N", r"\(tl.int64\)\[None, :\] \* K", "(tl.int64)[None, :] * N"),
            ("rows of x by M", r"\(tl.int64\)\[:, None\] \* K", "(tl.int64)[:, None] * M"),
            ("rows of y by M", r"\[:, None\] \* N", "[:, None] * M"),
            ("sum replaced", r"weight, total, input", "weight, input"),
            ("first step again", r"k = start \+ ", "k = "),
            ("one step late", r"range\(0, K", "range(BLOCK_K, K"),
            ("M for K", r"range\(0, K, ", "range(0, M, "),
            ("tf32", r', input_precision="ieee"', ""),
            ("edge of the other", r"rows < M", "rows < N"),
        ),
    ),
    "10.8": (
        "q8-kernel",
        (
            ("axes of the grid", r"tl.program_id\(0\) \* ", "tl.program_id(1) * "),
            ("rows of dy by K", r"m\[None, :\] \* N", "m[None, :] * K"),
            ("rows of x by N", r"m\[:, None\] \* K", "m[:, None] * N"),
            ("sum replaced", r"x, total, input", "x, input"),
            ("bias replaced", r"sums \+= ", "sums = "),
            ("bias of all", r"if tl.program_id\(1\) == 0:", "if True:"),
            ("bias of the other axis", r"if tl.program_id\(1\) == 0:", "if tl.program_id(0) == 0:"),
            ("sums along the other axis", r"axis=1", "axis=0"),
            ("tf32", r', input_precision="ieee"', ""),
        ),
    ),
    "10.9": (
        "q9-kernel",
        (
            ("every split all of K", r"first = split \* k_each", "first = 0"),
            ("a share too long", r"first \+ k_each", "first + k_each + BLOCK_K"),
            ("one place for all", r"split.to\(tl.int64\) \* M \+ ", ""),
            ("places by N", r"\* M \+ rows", "* N + rows"),
            ("sum replaced", r"weight, total, input", "weight, input"),
            ("number of the tile", r"program_id\(2\)", "program_id(0)"),
        ),
    ),
}


@pytest.mark.parametrize("question", CHANGED)
def test_what_readers_change_is_caught(question):
    assert not reworded_survivors(ASKED[question], CHANGED[question])


FORMULAS = {
    "10.1": "q1-answer",
    "10.2": "q2-answer",
    "10.3": "q3-answer",
    "10.6": "q6-answer",
    "10.7": "q7-answer",
    "10.10": "q10-answer",
}
# The same function, each with the reason.
SAME = {
    "10.7 bound one up: tile.programs < 0.75 * turns * tile.sms": "no tile lies on the bound",
    "10.7 bound one down: tile.programs < 0.75 * turns * tile.sms": "nor within one of it",
}


@pytest.mark.parametrize("question", FORMULAS)
def test_changed_formulas_are_caught(question):
    lived = formula_survivors(ASKED[question], FORMULAS[question])
    assert [one for one in lived if one not in SAME] == [], lived
