"""What set 13 grades by is right: its references, its counts, and what its cases are for."""

import random

import pytest
import torch

from kernels.grading import progress
from kernels.grading.questions.ch13 import adders, bounds, chunks, gradients, kept, masks, products
from kernels.grading.questions.ch13.softmax import score_gradient
from kernels.grading.questions.kits import attention_backward as kit
from kernels.grading.questions.kits.attention import HIGH, scores
from kernels.launch import interpreting
from kernels.ops.attention.simple_backward import simple
from tests.grading import submissions_13 as s
from tests.grading import submissions_13_kernels as kernels


def test_gradients_are_autograds():
    given = kit.backward_inputs(random.Random(5), 2, 19, 16, "fp32")
    q, k, v = (given[name].double().requires_grad_() for name in ("q", "k", "v"))
    hidden = scores(q, k).masked_fill(~kit.below(19), -torch.inf)
    o = torch.softmax(hidden, -1) @ v
    right = torch.autograd.grad(o, (q, k, v), given["do"].double())
    parts = kit.parts_of(given)
    for one, output in zip(right, kit.OUTPUTS, strict=True):
        assert torch.allclose(getattr(parts, output)(), one, rtol=1e-4, atol=1e-5)


def test_a_softmax_goes_back_as_autograd_does():
    s_ = torch.randn(4, 9, dtype=torch.float64, requires_grad=True)
    dp = torch.randn(4, 9, dtype=torch.float64)
    p = torch.softmax(s_, -1)
    (right,) = torch.autograd.grad(p, s_, dp)
    assert torch.allclose(score_gradient(p, dp), right)


def test_the_losss_gradient_is_autograds():
    logits = torch.randn(7, 11, dtype=torch.float64, requires_grad=True)
    targets = torch.randint(11, (7,))
    loss = torch.nn.functional.cross_entropy(logits, targets)
    (right,) = torch.autograd.grad(loss, logits)
    assert torch.allclose(chunks._d_logits(logits, targets), right)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_flash_keeps_what_the_pages_kernels_save(dtype):
    q, k, v = (torch.randn(2, 3, 17, 16, dtype=dtype, requires_grad=True) for _ in range(3))
    saved = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t.nbytes), lambda t: t):
        simple(q, k, v, False, 0.25)
    assert sum(saved) == kept.flash(2, 3, 3, 17, 16, dtype.itemsize, False)


def test_pairs_are_those_that_are_seen():
    for n in (1, 5, 40):
        assert products.pairs(n, n, True) == int(kit.below(n).sum())
    assert products.flops(2, 3, 4, 5, 6, False) == 2 * 3 * (2 * 4 * 5 * 6)


def test_bounds_by_the_mask_itself():
    """Key tile and query tile of a whole mask, looked at element by element."""
    for tile, block_m, block_n, n in ((0, 4, 6, 20), (1, 6, 4, 21), (2, 4, 8, 23), (3, 4, 4, 16)):
        seen = kit.below(n)
        keys = seen[:, tile * block_n : (tile + 1) * block_n]
        tiles = keys.split(block_m)
        begin = next(i for i, part in enumerate(tiles) if bool(part.any())) * block_m
        assert bounds.begin(tile, block_m, block_n, n) == begin
        whole = [i * block_m for i, part in enumerate(tiles) if bool(part.all())]
        if whole:
            assert bounds.unmasked(tile, block_m, block_n, n) == whole[0]
        rows = seen[tile * block_m : (tile + 1) * block_m]
        assert bounds.end(tile, block_m, block_n, n) == int(rows.any(0).nonzero().max()) + 1


@pytest.mark.parametrize(
    ("answer", "names", "budget"),
    [
        (kernels.dq_with(), ("k", "v"), gradients.budget_of_dq),
        (kernels.dkdv_with(), ("q", "do"), gradients.budget_of_dkdv),
    ],
)
def test_a_budget_is_what_its_tiles_ask_for(answer, names, budget):
    case = kit.backward_cases(3, ("dq",))[0][0]
    with interpreting() as launches:
        answer(*case.tensors.values())
    (launch,) = launches
    moved = {total[0]: total for total in launch.arena.totals()}
    requested = sum(moved[f"{name}_ptr"][2] for name in names)
    assert requested == budget(case)


def test_designs_on_the_page():
    by_keys = [[(h, i, j) for i in range(4)] for h in range(2) for j in range(3)]
    by_queries = [[(h, i, j) for j in range(3)] for h in range(2) for i in range(4)]
    assert adders.adders(by_keys, 1) == (3, 1)
    assert adders.adders(by_keys, 2) == (3, 2)
    assert adders.adders(by_queries, 1) == (1, 4)
    assert adders.adders(by_queries, 2) == (1, 8)
    for design in adders.designs(random.Random(2)):
        assert s.adders_by_pairs(design.programs, design.group) == list(
            adders.adders(design.programs, design.group)
        )


def test_each_verdict_has_an_input_that_shows_it():
    for name in masks.VERDICTS:
        assert s.dropout_fault_with()(masks.Dropped(name, 7)) == name
        assert s.dropout_fault_by_formula(masks.Dropped(name, 7)) == name
    assert sorted(one._fault for one in masks.dropped_ward(3)) == sorted(masks.VERDICTS)


def test_a_layer_without_fault_goes_back_as_autograd_does():
    layer = masks.Dropped("nothing", 11)
    p, v = (torch.rand(size, dtype=torch.float64, requires_grad=True) for size in ((5, 7), (7, 3)))
    do = torch.rand(5, 3, dtype=torch.float64)
    factor = layer.forward(torch.ones(5, 7), torch.eye(7))
    right = torch.autograd.grad(p * factor @ v, (p, v), do)
    for one, got in zip(right, layer.backward(p, v, do), strict=True):
        assert torch.allclose(one, got)


def test_what_a_case_is_for():
    """Scores whose exponential is infinite, and budgets that hold neither logits nor dweight."""
    given = kit.backward_inputs(random.Random(1), 1, 20, 16, "fp32", HIGH)
    assert bool(torch.exp(scores(given["q"], given["k"]).float()).isinf().all())
    for case in chunks._cases(4)[0]:
        (budget,) = case.options
        (tokens, width), words = case.x.shape, len(case.tensors["weight"])
        assert width <= words
        assert budget < 4 * words * width
        chunk = budget // (12 * words)
        assert 1 <= chunk <= tokens


def test_the_tenth_question_stands_behind_the_ninth(own_progress):
    (names,) = [
        [name for name, _, _ in rows] for chapter, rows in progress().sets if chapter == "13"
    ]
    assert names == [f"13.{number}" for number in range(1, 11)]
