"""Mutants of set 12 beside those of every kernel: what readers of this chapter get wrong.

`test_mutants` changes masks, bounds and operators of kernels. Here a correction, a mask or a scale
is left out or comes twice, a loop ends elsewhere, a split begins elsewhere. And formulas change.
"""

import pytest

from tests.grading.mutation import asked_in
from tests.grading.verdict import formula_survivors, reworded_survivors

ASKED = asked_in("12_flash_attention")
_WALK = (
    ("l not corrected", r"l = l \* correction \+ ", "l = l + "),
    ("acc not corrected", r"acc = acc \* correction\[:, None\]", "acc = acc"),
    ("l replaced", r"l = l \* correction \+ ", "l = "),
    ("acc replaced", r"v, acc, input", "v, input"),
    ("scale twice", r'"ieee"\) \* scale', '"ieee") * scale * scale'),
    ("no scale", r'"ieee"\) \* scale', '"ieee")'),
    ("maximum of the block alone", r"tl.maximum\(m, tl.max\(s, axis=1\)\)", "tl.max(s, axis=1)"),
    ("maximum of the old ones", r"new = tl.maximum\(m, tl.max\(s, axis=1\)\)", "new = m"),
    ("m not carried on", r"\n        m = new", ""),
    ("maximum down the queries", r"tl.max\(s, axis=1\)", "tl.max(s, axis=0)"),
    ("first block again", r"keys = start \+ ", "keys = "),
    ("sums of p along queries", r"tl.sum\(p, axis=1\)", "tl.sum(p, axis=0)"),
    ("v for k", r"k_ptr \+ ", "v_ptr + "),
)
# By question: the cell, and (what it is called, what stands there, what stands there then).
CHANGED = {
    "12.7": (
        "q7-kernel",
        (
            *_WALK,
            ("no mask of scores", r's = tl.where\(seen\[None, :\], s, -float\("inf"\)\)', "s = s"),
            ("masked with 0", r's, -float\("inf"\)\)', "s, 0.0)"),
            ("mask upside down", r"== 0\n", "!= 0\n"),
            ("no guard", r'top = tl.where\(new == -float\("inf"\), 0.0, new\)', "top = new"),
            ("no zero", r"tl.where\(l == 0, 1.0, l\)", "l"),
        ),
    ),
    "12.8": (
        "q8-kernel",
        (
            *_WALK,
            ("no stop", r"tl.minimum\(\(tile \+ 1\) \* BLOCK_M, N\)", "N"),
            ("a block too few", r"\(tile \+ 1\) \* BLOCK_M, N", "tile * BLOCK_M, N"),
            ("a tile too many", r"\(tile \+ 1\) \* BLOCK_M, N", "(tile + 2) * BLOCK_M, N"),
            ("own key unseen", r"<= rows", "< rows"),
            ("upside down", r"<= rows", ">= rows"),
            ("masked with 0", r's, -float\("inf"\)\)', "s, 0.0)"),
            ("heads by d", r"\* N \* D", "* D"),
            ("axes of the grid", r"program_id\(1\)", "program_id(0)"),
            ("tf32", r', input_precision="ieee"', ""),
            ("weights in fp32", r"p.to\(v.dtype\), v, acc", "p, v.to(tl.float32), acc"),
            ("not divided", r"acc / l\[:, None\]", "acc"),
        ),
    ),
    "12.9": (
        "q9-kernel",
        (
            *_WALK,
            ("every split all keys", r"begin = split \* each", "begin = 0"),
            ("a share too long", r"begin \+ each, N", "begin + each + BLOCK_N, N"),
            ("one place for all", r"\+ split\) \* M", ") * M"),
            ("head for split", r"program_id\(0\)", "program_id(1)"),
            ("empty divided", r"tl.where\(l == 0, 1.0, l\)", "l"),
            ("not divided", r"part = acc / .*", "part = acc"),
            ("L without l", r"m \+ tl.log\(l\)", "m"),
            ("L without m", r"m \+ tl.log\(l\)", "tl.log(l)"),
            ("L in base 2", r"tl.log\(l\)", "tl.log2(l)"),
        ),
    ),
    "12.9 merge": (
        "q9-second",
        (
            ("no maximum", r"lse - tl.max\(lse, axis=0\)", "lse"),
            ("shares not divided", r"share = share / tl.sum\(share, axis=0\)", "share = share"),
            ("divided by splits", r"/ tl.sum\(share, axis=0\)", "/ splits"),
            ("not weighed", r"parts \* share\[:, None\]", "parts"),
            ("base 2", r"tl.exp\(", "tl.exp2("),
            ("places by splits", r"\* M \+ row\n", "* splits + row\n"),
            ("lanes weigh", r'other=-float\("inf"\)', "other=0.0"),
        ),
    ),
}


@pytest.mark.parametrize("name", CHANGED)
def test_what_readers_change_is_caught(name):
    assert not reworded_survivors(ASKED[name.split()[0]], CHANGED[name])


FORMULAS = {
    "12.1": "q1-answer",
    "12.2": "q2-answer",
    "12.3": "q3-answer",
    "12.4": "q4-answer",
    "12.5": "q5-answer",
    "12.6": "q6-answer",
    "12.10": "q10-answer",
}


@pytest.mark.parametrize("question", FORMULAS)
def test_changed_formulas_are_caught(question):
    assert not formula_survivors(ASKED[question], FORMULAS[question])
