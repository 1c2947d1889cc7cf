"""Mutants of set 15 beside those of every kernel: what readers of this chapter get wrong.

`test_mutants` changes masks, bounds and operators of kernels. Here what is saved, written over or
drawn again is another tensor, and a gradient takes another way. And formulas change.
"""

import pytest

from tests.grading.mutation import asked_in
from tests.grading.verdict import formula_survivors, reworded_survivors

ASKED = asked_in("15_training_the_encoder_layer")
# By question: the cell, and (what it is called, what stands there, what stands there then).
CHANGED = {
    "15.2": (
        "q2-answer",
        (
            ("zeros", r"torch.full_like\(one, torch.nan\)", "torch.zeros_like(one)"),
            ("ones", r"torch.full_like\(one, torch.nan\)", "torch.ones_like(one)"),
            ("masks as they are", r"~one", "one"),
            ("nan in masks", r"~one", "torch.full_like(one, torch.nan)"),
            ("any gradient", r"all\(map", "any(map"),
            ("turned", r"if all", "if not all"),
            ("what was kept forgotten", r"\*\*layer.saved, ",
             "**dict.fromkeys(layer.saved, one), "),
            ("the first one", r"names.add\(name\)", "return {name}"),
        ),
    ),
    "15.3": (
        "q3-block",
        (
            ("a new tensor", r"y.add_\(x\)", "y + x"),
            ("over x", r"y.add_\(x\)", "AddInto.apply(x, y)"),
            ("over x in the open", r"y.add_\(x\)", "x.add_(y)"),
            ("x without its graph", r"y.add_\(x\)", "y.add_(x.detach())"),
            ("y without its graph", r"y.add_\(x\)", "y.detach().add_(x)"),
            ("over a", r"F.gelu\(u\)", "u.data.copy_(F.gelu(u)) + 0 * u"),
        ),
    ),
    "15.4": (
        "q4-answer",
        (
            ("last reader left out", r"range\(first, last \+ 1\)",
             "range(first, max(last, first + 1))"),
            ("results end", r"last = len\(steps\) - 1  # a result", "pass"),
            ("one life", r"made_anew = True\n +break", "pass"),
            ("anew means gone", r"and not made_anew", ""),
            ("sums", r"return max\(alive\)", "return sum(alive)"),
            ("no copy", r"copy, \*steps\[place:\]", "*steps[place:]"),
            ("copy behind its reader", r"steps\[:place\], copy, \*steps\[place:\]",
             "steps[: place + 1], copy, *steps[place + 1 :]"),
            ("copy where back begins", r"next\(i for i in range\(back.*", "back"),
            ("from the first reader on", r"range\(back, len", "range(0, len"),
        ),
    ),
    "15.5": (
        "q5-answer",
        (
            ("a kept", r"F.linear\(F.gelu\(u\),",
             "F.linear(ctx.__dict__.setdefault('a', F.gelu(u)),"),
            ("no bias", r"weight, bias\)\n        ###", "weight)\n        ###"),
            ("gelu left out", r"a = F.gelu\(u\)", "a = u"),
            ("mean", r"dy.sum\(0\)", "dy.mean(0)"),
            ("other axis", r"dy.sum\(0\)", "dy.sum(1)"),
            ("slope at a", r"gelu_backward\(da, u\)", "gelu_backward(da, a)"),
            ("no slope", r"gelu_backward\(da, u\)", "da"),
            ("changed places", r"u\), dweight, dbias", "u), dbias, dweight"),
            ("turned", r"dy.T @ a", "(a.T @ dy)"),
        ),
    ),
    "15.6": (
        "q6-answer",
        (
            ("drawn again", r"factors\(u, seed_offset\)\n        dw",
             "factors(u, draw())\n        dw"),
            ("no mask in dweight", r"F.gelu\(u\) \* kept", "F.gelu(u)"),
            ("no mask in du", r"dy @ weight \* kept", "dy @ weight"),
            ("mask kept", r"(\n +)return \(F.gelu",
             r"\1ctx.mask = factors(u, seed_offset)\1return (F.gelu"),
            ("one seed", r"seed_offset = draw\(\)", "seed_offset = torch.tensor([1, 2])"),
            ("mask behind the slope", r"gelu_backward\(dy @ weight \* kept, u\)",
             "gelu_backward(dy @ weight, u * kept)"),
        ),
    ),
    "15.7": (
        "q7-answer",
        (
            ("a held", r"del a", "pass"),
            ("a new du", r"gelu_backward_into", "gelu_backward"),
            ("over a", r"gelu_backward_into\(da, u\)", "a.copy_(gelu_backward(da, u))"),
            ("over u", r"gelu_backward_into\(da, u\)", "u.copy_(gelu_backward_into(da, u))"),
            ("da first", r"a = F.gelu\(u\)", "da = dy @ weight; a = F.gelu(u)"),
            ("u for a", r"dy.T @ a", "dy.T @ u"),
            ("changed places", r"_into\(da, u\)", "_into(u, da)"),
        ),
    ),
    "15.9": (
        "q9-answer",
        (
            ("0 alone", r"\(most > .*\) \| ", ""),
            ("0 forgotten", r" \| \(weight == 0\)", ""),
            ("a mean", r"amax\(0\)", "mean(0)"),
            ("no size", r"wide.abs\(\).amax\(0\) \* unit", "torch.ones_like(scaled) * unit"),
            ("signed y", r"wide.abs\(\).amax", "wide.amax"),
            ("signed weight", r"scaled.abs\(\)", "scaled"),
            ("fp32's eps", r"finfo\(y.dtype\)", "finfo(torch.float32)"),
            ("not set to 0", r"torch.where\(lost, 0.0, x_hat\)", "x_hat"),
            ("the others set to 0", r"torch.where\(lost, 0.0, x_hat\)",
             "torch.where(lost, x_hat, 0.0)"),
            ("least", r"amax", "amin"),
        ),
    ),
    "15.8": (
        "q8-kernel",
        (
            ("no dh", r"of_norm \+ dh", "of_norm"),
            ("dh to the norm", r"g = dy \* weight", "g = dy * weight + dh"),
            ("dx of the norm's part", r"kept, dresidual", "kept, of_norm"),
            ("mask turned", r">= drop_below", "< drop_below"),
            ("a block's index", r"numbers_at\(seed_offset_ptr, at\)",
             "numbers_at(seed_offset_ptr, cols)"),
            ("no scale", r"dresidual \* scale", "dresidual"),
            ("of dy", r"tl.sum\(g \* x_hat", "tl.sum(dy * x_hat"),
            ("by BLOCK", r"/ n_cols\n", "/ BLOCK\n"),
            ("dx twice", r"dresidual.to\(dtype\)", "dx.to(dtype)"),
        ),
    ),
}  # fmt: skip


@pytest.mark.parametrize("question", CHANGED)
def test_what_readers_change_is_caught(question):
    assert not reworded_survivors(ASKED[question], CHANGED[question])


FORMULAS = {
    "15.1": "q1-answer",
    "15.10": "q10-answer",
}


@pytest.mark.parametrize("question", FORMULAS)
def test_changed_formulas_are_caught(question):
    assert not formula_survivors(ASKED[question], FORMULAS[question])
