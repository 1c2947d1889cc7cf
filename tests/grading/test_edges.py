"""Answers that are wrong at an edge alone, each of which was once taken for right."""

import math

import pytest
import torch

from kernels.grading import check
from tests.grading import submissions_10 as tiles
from tests.grading import submissions_12 as attention
from tests.grading.edited import edited
from tests.grading.known_wrong import fails

EDITS = {
    "silu is 0 far below 0": (
        "04.4",
        ("value / (1.0f + expf(-value)) * b", "(value < -10 ? 0 : value / (1 + expf(-value))) * b"),
    ),
    "what is 0 is no part of the row": (
        "05.3",
        ("threadIdx.x + k * 256 < n_cols ? held[k] - mean", "held[k] != 0.0f ? held[k] - mean"),
    ),
    "an exponential that is infinite": (
        "05.4",
        ("v / (1.0f + expf(-v))", "v * expf(v) / (1.0f + expf(v))"),
    ),
    "64 experts at most": ("09.9", ("BLOCK=block", "BLOCK=64")),
    "a sum rounded before its bias": (
        "11.4",
        ("gelu(total + bias", "gelu(total.to(y_ptr.dtype.element_ty).to(tl.float32) + bias"),
    ),
}


@pytest.mark.parametrize("name", EDITS)
def test_an_edit(name):
    question, edit = EDITS[name]
    assert not check(question, edited(question, edit), seed=1).passed


@pytest.mark.parametrize("share", [lambda h: (h == 0).float().mean(), lambda h: h == 0])
def test_a_log_that_loses_what_was_in_it(share):
    def activated(x, weight, log):
        h = torch.relu(x @ weight)
        log[:] = [share(h)]
        return h * 2

    fails(check("09.6", activated, seed=1), message="what was in log before", means="earlier")


def test_a_share_of_what_is_below_0():
    def activated(x, weight, log):
        h = x @ weight
        log.append((h < 0).float().mean())
        return torch.relu(h) * 2

    fails(check("09.6", activated, seed=1), message="should log", means="share of zeros")


def test_three_quarters_are_no_tail():
    def suspect(tile):
        word = tiles.suspect_by_rule(tile)
        turns = math.ceil(tile.programs / tile.sms)
        return "tail" if word == "nothing" and 4 * tile.programs == 3 * turns * tile.sms else word

    fails(check("10.7", suspect, seed=1), message="say", means="Three quarters are enough")


def test_a_roof_that_is_met_at_no_length():
    equal = attention.roofs_with(None, None, lambda t, r, c, d, i: d * r >= i * 1000 * t)
    fails(check("12.10", equal, seed=1), message="unfused", means="at no length")
