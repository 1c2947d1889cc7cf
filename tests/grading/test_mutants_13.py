"""Mutants of set 13 beside those of every kernel: what readers of this chapter get wrong.

`test_mutants` changes masks, bounds and operators of kernels. Here a scale, a factor or delta is
left out, operands change places, a loop begins elsewhere. And formulas change.
"""

import pytest

from tests.grading.mutation import asked_in
from tests.grading.verdict import formula_survivors, reworded_survivors

ASKED = asked_in("13_flash_attention_backward")
_BACK = (
    ("scores unscaled", r'"ieee"\) \* scale', '"ieee")'),
    ("no delta", r"\(dp - delta\[(.*?)\]\)", "dp"),
    ("L added", r"s - lse", "s + lse"),
    ("base 2", r"tl.exp\(", "tl.exp2("),
    ("one head's L", r"lse_ptr \+ head \* N \+", "lse_ptr +"),
    ("one head's delta", r"delta_ptr \+ head \* N \+", "delta_ptr +"),
    ("heads by d", r"first = head \* N \* D", "first = head * D"),
    ("axes of the grid", r"tile, head = (.*)\(0\), (.*)\(1\)", r"tile, head = \1(1), \2(0)"),
    ("tf32", r', input_precision="ieee"', ""),
)
# By question: the cell, and (what it is called, what stands there, what stands there then).
CHANGED = {
    "13.2": (
        "q2-kernel",
        (
            ("sums along queries", r"axis=1", "axis=0"),
            (
                "products in the dtype of o",
                r"\.to\(tl\.float32\)\n    do = (.*)\.to\(tl\.float32\)",
                r"\n    do = \1",
            ),
            ("o twice", r"o \* do, axis", "o * o, axis"),
            ("rows by BLOCK_M", r"rows\[:, None\] \* D", "rows[:, None] * BLOCK_M"),
        ),
    ),
    "13.5": (
        "q5-answer",
        (
            ("group left out", r"head // group", "head"),
            ("heads far apart", r"head // group", "head % group"),
            ("visits", r"set\(\)\).add\(number\)", "[]).append(number)"),
            ("queries of all heads", r"\(head, i\)", "i"),
            ("the least", r"max\(", "min("),
            ("changed places", r"\(of_dq, of_dk\)\)", "(of_dk, of_dq))"),
        ),
    ),
    "13.7": (
        "q7-kernel",
        (
            *_BACK,
            ("delta of the other axis", r"delta\[:, None\]", "delta[None, :]"),
            ("no scale", r"\(dq \* scale\)", "dq"),
            ("scale twice", r"dq \* scale", "dq * scale * scale"),
            ("no stop", r"tl.minimum\(\(tile \+ 1\) \* BLOCK_M, N\)", "N"),
            ("a block too few", r"\(tile \+ 1\) \* BLOCK_M, N", "tile * BLOCK_M, N"),
            ("own key unseen", r"<= rows", "< rows"),
            ("no mask", r"p = tl.where\(.*\)", "p = p"),
            ("v for k", r"ds.to\(k.dtype\), k, dq", "ds.to(k.dtype), v, dq"),
            ("sum replaced", r", k, dq, input", ", k, input"),
            ("p for ds", r"ds.to\(k.dtype\)", "p.to(k.dtype)"),
            ("dp of q", r"tl.dot\(do, v.T", "tl.dot(q, v.T"),
        ),
    ),
    "13.8": (
        "q8-kernel",
        (
            *_BACK,
            ("no scale", r"\(dk \* scale\)", "dk"),
            ("from the first query on", r"range\(tile .*?, N, BLOCK_M\)", "range(0, N, BLOCK_M)"),
            ("a tile late", r"range\(tile ", "range((tile + 1) "),
            ("own query unseen", r"<= rows", "< rows"),
            ("upside down", r"<= rows", ">= rows"),
            ("no mask", r"p = tl.where\(.*\)", "p = p"),
            ("dv replaced", r", do, dv, input", ", do, input"),
            ("dk replaced", r", q, dk, input", ", q, input"),
            ("dv of ds", r"dv = tl.dot\(p.to\(do.dtype\), do", "dv = tl.dot(p.to(do.dtype), q"),
            ("dk of p", r"ds.to\(q.dtype\)", "p.to(q.dtype)"),
            ("dp of k", r"tl.dot\(v, do.T", "tl.dot(k, do.T"),
            ("dv scaled", r"dv = dv.to", "dv = (dv * scale).to"),
        ),
    ),
    "13.9": (
        "q9-answer",
        (
            ("whole rows of 8 alone", r"masks\(7\)", "masks(8)"),
            ("no query behind the first", r"torch.ones\(8, n,", "torch.ones(1, n,"),
            ("p of ones alone", r"2 \* ones", "ones"),
            (
                "no scale looked for",
                r"torch.allclose\(dp, right\)",
                "torch.equal(dp > 0, right > 0)",
            ),
            ("another axis", r"right.T > 0", "right > 0"),
            ("dv not looked at", r"dv == 8", "dv == 9"),
        ),
    ),
    "13.10": (
        "q10-answer",
        (
            ("not divided", r"dl.div_\(tokens\)", "dl"),
            ("its own mean", r"div_\(tokens\)", "div_(len(dl))"),
            ("a temporary", r"dweight.addmm_\(dl.T, x\[rows\]\)", "dweight += dl.T @ x[rows]"),
            ("replaced", r"dweight.addmm_", "dweight = torch.zeros_like(weight).addmm_"),
            ("half the chunk", r"\(3 \* 4", "(6 * 4"),
            ("twice the chunk", r"// \(3 \* 4 \* words\)", "// (4 * words)"),
            ("the first targets", r"targets\[rows\]", "targets[: len(dl)]"),
            ("added", r"-= 1", "+= 1"),
            ("down the tokens", r"weight.T, -1", "weight.T, 0"),
        ),
    ),
}


@pytest.mark.parametrize("question", CHANGED)
def test_what_readers_change_is_caught(question):
    assert not reworded_survivors(ASKED[question], CHANGED[question])


FORMULAS = {
    "13.1": "q1-answer",
    "13.3": "q3-answer",
    "13.4": "q4-answer",
    "13.6": "q6-answer",
}


@pytest.mark.parametrize("question", FORMULAS)
def test_changed_formulas_are_caught(question):
    assert not formula_survivors(ASKED[question], FORMULAS[question])
