"""Mutants of set 14 beside those of every kernel: what readers of this chapter get wrong.

`test_mutants` changes masks, bounds and operators of kernels. Here a residual is added elsewhere,
dropout and norm take another tensor, lifetimes end early. And formulas change.
"""

import pytest

from tests.grading.mutation import asked_in
from tests.grading.verdict import formula_survivors, reworded_survivors

ASKED = asked_in("14_the_fused_encoder_layer")
# By question: the cell, and (what it is called, what stands there, what stands there then).
CHANGED = {
    "14.2": (
        "q2-answer",
        (
            ("last readers", r"found\[0\]", "found[-1]"),
            ("all that is read", r" if len\(found\) == 2", ""),
            ("what is read once", r"len\(found\) == 2", "len(found) == 1"),
            ("no sum", r"len\(launch.reads\) == 1 and ", ""),
            ("two words", r'else "pre, norms in products"', 'else "post"'),
            ("changed places", r'return "post"', 'return "pre"'),
            ("not who wrote it", r"name in residuals for name in launch.writes", "False"),
        ),
    ),
    "14.4": (
        "q4-answer",
        (
            ("the other layout", r"length, 3, heads, d\)", "length, heads, 3, d).transpose(2, 3)"),
            ("mask turned", r"= ~padding", "= padding"),
            ("along queries", r"\[:, None, None, :\]", "[:, None, :, None]"),
            ("no mask", r"attn_mask=seen", "attn_mask=None"),
            ("not turned back", r"o.transpose\(1, 2\)\.reshape", "o.reshape"),
            ("k and v", r"F.scaled(.*)\(q, k, v", r"F.scaled\1(q, v, k"),
            ("causal", r"attn_mask=seen", "is_causal=True"),
        ),
    ),
    "14.6": (
        "q6-kernel",
        (
            (
                "rounded first",
                r"total \+ residual.to\(tl.float32\)\)",
                "total).to(residual.dtype) + residual",
            ),
            ("no residual", r"\(total \+ residual.to\(tl.float32\)\)", "total"),
            ("rows of K", r"residual_ptr \+ y_at", "residual_ptr + x_at"),
            ("the columns' residual", r"residual_ptr \+ y_at", "residual_ptr + cols[None, :]"),
            ("bias by rows", r"bias\[None, :\]", "bias[:, None]"),
            ("no bias", r"    total \+= bias\[None, :\]\n", ""),
        ),
    ),
    "14.7": (
        "q7-kernel",
        (
            ("bias behind", r"\(y \+ bias\) \* factor, 0.0\)", "y * factor, 0.0) + bias"),
            ("no bias", r"\(y \+ bias\) \* factor", "y * factor"),
            ("not scaled", r"\(y \+ bias\) \* factor", "(y + bias)"),
            (
                "residual dropped",
                r"residual \+ tl.where\(kept, \(y",
                "tl.where(kept, (residual + y",
            ),
            ("turned", r">= drop_below", "< drop_below"),
            ("T dropped", r">= drop_below", "> drop_below"),
            ("the row's numbers", r"seed_offset_ptr, e\)", "seed_offset_ptr, cols)"),
            ("masked lanes", r"tl.where\(mask, (h - .*), 0.0\)", r"\1"),
            ("norm of the residual", r"tl.sum\(h, axis", "tl.sum(residual, axis"),
            ("eps outside", r"tl.rsqrt\(variance \+ eps\)", "(tl.rsqrt(variance) + eps)"),
            ("the wrong bias", r"\* weight \+ norm_bias", "* weight + bias"),
            ("h for n", r"n.to\(n_ptr", "h.to(n_ptr"),
            ("n for h", r"h_ptr \+ e, h.to", "h_ptr + e, y.to"),
        ),
    ),
    "14.9": (
        "q9-answer",
        (
            ("the smallest first", r", reverse=True", ""),
            ("launch by launch", r"sorted\(sizes, key=sizes.get, reverse=True\)", "sizes"),
            ("over what is read", r"<= last\[other\]", "< last[other]"),
            ("the other end", r"first\[other\] <= last", "first[other] < last"),
            ("nothing again", r"if meet and at", "if at"),
            ("everything again", r"if meet and at", "if not meet and at"),
            ("what is written alone", r"\(writes, \*reads\)", "(writes,)"),
            ("what is read alone", r"\(writes, \*reads\)", "reads"),
            ("no order", r"sorted\(found, key=found.get\)", "found"),
        ),
    ),
}


@pytest.mark.parametrize("question", CHANGED)
def test_what_readers_change_is_caught(question):
    assert not reworded_survivors(ASKED[question], CHANGED[question])


FORMULAS = {
    "14.1": "q1-answer",
    "14.3": "q3-answer",
    "14.5": "q5-answer",
    "14.8": "q8-answer",
    "14.10": "q10-answer",
}


@pytest.mark.parametrize("question", FORMULAS)
def test_changed_formulas_are_caught(question):
    assert not formula_survivors(ASKED[question], FORMULAS[question])
