"""What set 14 grades by is right: its layers, its references, and what its cases are for."""

import random

import pytest
import torch

from kernels.grading import progress
from kernels.grading.questions.ch14 import (
    between,
    bound,
    epilogue,
    heads,
    layers,
    ledgers,
    masks,
    moved,
    places,
    strides,
    workspace,
)
from kernels.lab.counting.alive import Alive
from kernels.ops.layers.encoder_layer import FusedEncoderLayer
from kernels.ops.layers.workspace import workspace_bytes
from kernels.philox import keeps, scale
from tests.grading import submissions_14 as s


@pytest.mark.parametrize(
    "steps",
    [
        layers.OPERATORS,
        layers.FUSED,
        layers.FOLDED,
        layers.OPERATORS_POST,
        layers.FUSED_POST,
    ],
)
def test_a_layer_reads_what_was_written(steps):
    there = {"x"}
    for step in steps:
        assert there >= set(step.reads)
        assert step.writes not in there
        there.add(step.writes)
    read = {name for step in steps for name in step.reads}
    assert there - read == {"y"}


def test_the_layers_have_the_launches_that_the_page_says():
    assert [len(steps) for steps in (layers.OPERATORS, layers.FUSED)] == [12, 7]
    assert layers.moved(layers.OPERATORS) == (30, 4)
    assert layers.moved(layers.FUSED) == (18, 2)
    # Where the norms stand changes no byte.
    assert layers.moved(layers.OPERATORS_POST) == (30, 4)
    assert layers.moved(layers.FUSED_POST) == (18, 2)


@pytest.mark.parametrize(("batch", "length", "e", "i"), [(2, 9, 32, 128), (3, 5, 32, 24)])
def test_the_workspace_is_that_of_the_packages_layer(batch, length, e, i):
    layer = FusedEncoderLayer(
        e, 2, i, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
    ).eval()
    assert workspace.AFTER(batch, length, e, i, 4) == workspace_bytes(layer, batch, length, 4)


def test_what_lives_is_what_lived():
    """A chain of copies by the list of launches, its memory watched."""
    for steps in (layers.OPERATORS, layers.FUSED):
        wide = {"x": 64}
        with Alive(()) as alive:
            there = {}
            lives = layers.alive(steps)
            for at, step in enumerate(steps):
                size = layers.numbers(step.writes, 64, 192)
                there[step.writes] = torch.zeros(size, dtype=torch.uint8)
                wide[step.writes] = size
                later = set().union(*lives[at + 1 :])
                for name in [one for one in there if one not in later]:
                    del there[name]
        assert alive.peak == max(sum(wide[name] for name in one) for one in lives)


def test_ledgers_have_the_words_that_they_were_made_for():
    made = ledgers.ledgers(5)
    assert {word for word, _ in made} == set(ledgers.VERDICTS)
    for word, ledger in made:
        assert ledgers.where(ledger) == s.norm_place_by_counting(ledger) == word
    found = [ledgers.where(ledger) for ledger in ledgers.sample_ledgers()]
    assert sorted(found) == sorted(ledgers.VERDICTS)


def test_strides_are_pytorchs():
    for by_head in (False, True):
        args = (7, 3, 4, by_head)
        assert s.head_strides_by_a_view(*args) == tuple(one(*args) for one in strides.RIGHT)


@pytest.mark.parametrize("n_heads", [1, 3])
def test_attention_is_pytorchs_layers(n_heads):
    e = 4 * n_heads
    layer = torch.nn.MultiheadAttention(e, n_heads, batch_first=True, dtype=torch.float64)
    x = torch.randn(2, 6, e, dtype=torch.float64)
    padding = torch.arange(6) >= torch.tensor([6, 4])[:, None]
    with torch.no_grad():
        right, _ = layer(x, x, x, key_padding_mask=padding)
        qkv = torch.nn.functional.linear(x, layer.in_proj_weight, layer.in_proj_bias)
        o = layer.out_proj(heads.attended(qkv, n_heads, padding))
    assert torch.allclose(o, right)


def test_a_table_outweighs_the_layer_from_the_least_length_on():
    for args in masks._calls(random.Random(2)):
        b, h, _, e, i, t, m = args
        least = masks.least_length(*args)
        table, layer = (
            [one(length) for length in (least - 1, least)]
            for one in (
                lambda n, b=b, h=h, e=e, i=i, t=t, m=m: masks.as_table(b, h, n, e, i, t, m),
                lambda n, b=b, e=e, i=i, t=t: moved.AFTER(b, n, e, i, t),
            )
        )
        assert table[0] < layer[0] or least == 1
        assert table[1] >= layer[1]


def test_what_stands_between_is_pytorchs():
    for of_h, of_n in zip(*between.cases(3), strict=True):
        p, eps = of_h.options
        given = {name: t.double() for name, t in of_h.tensors.items() if name != "seed_offset"}
        kept = keeps(tuple(of_h.x.shape), p, *of_h.tensors["seed_offset"].tolist())
        dropped = (given["y"] + given["bias"]) * torch.from_numpy(kept) * scale(p)
        h = given["residual"] + dropped
        assert torch.allclose(of_h.reference, h)
        n = torch.nn.functional.layer_norm(
            h, h.shape[-1:], given["weight"], given["norm_bias"], eps
        )
        assert torch.allclose(of_n.reference, n)


def test_rounding_the_sum_first_shows_where_it_is_meant_to():
    for case in epilogue._cases(4):
        x, weight, bias, residual = (one.double() for one in case.tensors.values())
        sums = (x @ weight.T + bias).to(case.x.dtype).double()
        off = float((sums + residual - case.reference).norm() / case.reference.norm())
        assert (off > 4 * case.tolerance.relative_norm) == (case.trait == epilogue.CANCELS)


@pytest.mark.parametrize("seed", range(5))
def test_every_list_can_be_placed_and_some_not_launch_by_launch(seed):
    made = places.tasks(seed)
    by_launch = []
    for task in made:
        launches = [(step.reads, step.writes) for step in task.steps]
        least = places.least(task)
        assert places.extent(task, places.placed(task)) == least
        for one in (s.places, s.places_by_trying):
            assert places.extent(task, one(launches, dict(task.sizes))) == least
        found = places.placed(task, list(task.sizes))
        by_launch.append(places.extent(task, found) > least)
    assert sum(by_launch) >= 4


def test_the_largest_first_is_not_always_the_least():
    """What the page says of seven launches with I = 2.5 · E."""
    task = places._layers("", layers.FUSED, 64, 160, 8, 1)
    one = 2 * 64 * 8
    assert places.extent(task, places.placed(task)) == 5 * one
    assert 2 * places.least(task) == 9 * one
    launches = [(step.reads, step.writes) for step in task.steps]
    found = s.places_by_trying(launches, dict(task.sizes))
    assert places.extent(task, found) == places.least(task)


def test_of_two_of_one_size_the_order_counts():
    """What the page says of seven launches with I = 2 · E."""
    task = places._layers("", layers.FUSED, 64, 128, 8, 1)
    one = 2 * 64 * 8
    launches = [(step.reads, step.writes) for step in task.steps]
    later_first = s.places_with("ties turned")(launches, dict(task.sizes))
    assert places.extent(task, later_first) == 5 * one
    assert places.extent(task, places.placed(task)) == places.least(task) == 4 * one


def test_a_quotient_that_comes_out_even_is_asked():
    """For twelve launches and for seven: as many tokens as take exactly as long."""
    calls = bound._calls(random.Random(3))
    for launches, (of_e, of_i), formula in (
        (12, (30, 4), bound.BEFORE),
        (7, (18, 2), bound.AFTER),
    ):
        exact = [
            launches * ns * gbs
            == (4 * e * e + 2 * e * i + formula(gbs, ns, e, i, t) * (of_e * e + of_i * i)) * t
            for gbs, ns, e, i, t in calls
        ]
        assert any(exact)


def test_tokens_by_bisection():
    for args in bound._calls(random.Random(3)):
        assert s.launch_bound(*args) == [bound.BEFORE(*args), bound.AFTER(*args)]
    assert any(bound.AFTER(*args) == 0 for args in bound._calls(random.Random(3)))


def test_the_tenth_question_stands_behind_the_ninth(own_progress):
    (names,) = [
        [name for name, _, _ in rows] for chapter, rows in progress().sets if chapter == "14"
    ]
    assert names == [f"14.{number}" for number in range(1, 11)]
