"""What set 15 grades by is right: its references, its counts, and what its cases are for."""

import gc
import random

import pytest
import torch

from kernels.grading import progress
from kernels.grading.question import Attempt
from kernels.grading.questions.ch15 import (
    costs,
    inverted,
    kept,
    mlps,
    needless,
    normed,
    peaks,
    residual,
)
from kernels.grading.questions.kits.functions import Differentiated, forward_cost
from kernels.grading.questions.kits.masks import kept as mask_of
from kernels.lab.counting.alive import Alive
from kernels.ops.chains import dropout_add_layernorm
from kernels.ops.layers.encoder_layer import FusedEncoderLayer
from kernels.philox import scale
from kernels.registry import Case as Measured
from tests.grading import submissions_15 as s
from tests.grading import submissions_15_functions as functions

B, S, E, INNER, H = 2, 8, 32, 48, 4


def kept_by_the_layer(dtype: torch.dtype, **flags: bool) -> int:
    """The bytes that are alive behind a forward of the book's layer, its input and without y."""
    torch.manual_seed(3)
    layer = FusedEncoderLayer(
        *(E, H, INNER, 0.1, "gelu"), batch_first=True, norm_first=True, dtype=dtype, **flags
    )
    x = torch.randn(B, S, E, dtype=dtype).requires_grad_()
    with Alive(x, list(layer.parameters())) as alive:
        y = layer(x)
        gc.collect()  # an interpreted launch holds its arguments in a circle until then
        return alive.now - y.nbytes + x.nbytes


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_books_layer_keeps_what_the_table_says(dtype):
    call = (B, S, E, INNER, H, dtype.itemsize)
    assert kept_by_the_layer(dtype) == kept.plain(*call)
    assert kept_by_the_layer(dtype, gelu_checkpoint=True) == kept.gelu(*call)
    flags = {"gelu_checkpoint": True, "attn_dropout_checkpoint": True}
    assert kept_by_the_layer(dtype, **flags) == kept.both(*call)


def test_each_layer_reads_what_its_kind_says():
    for name, kind in needless.KINDS.items():
        layer = needless._made(name, random.Random(5))
        assert s.kept_for_nothing_by_nan(layer) == kind.needless, name
    kinds = [s.kept_for_nothing_by_nan(layer) for layer in needless.kept_ward(4)]
    assert sorted(map(sorted, kinds)) == sorted(
        sorted(kind.needless) for kind in needless.KINDS.values()
    )


def test_gelus_slope_is_autograds():
    u = torch.randn(50, dtype=torch.float64, requires_grad=True)
    (right,) = torch.autograd.grad(mlps.gelu(u).sum(), u)
    assert torch.allclose(mlps.slope(u), right)


def test_gradients_of_a_block_are_autograds():
    for case in residual._cases(2):
        x, w1, w2, dy = mlps.wide(case).values()
        given = [one.requires_grad_() for one in (x, w1, w2)]
        y = x + mlps.gelu(x @ w1.T) @ w2.T
        right = (y, *torch.autograd.grad(y, given, dy))
        for one, held in zip(right, residual._references(case), strict=True):
            assert torch.allclose(one, held.reference)


def test_gradients_behind_a_norm_are_autograds():
    of_residual, of_x = normed._cases(3)
    for one, other in zip(of_residual, of_x, strict=True):
        t = {name: v.double() for name, v in one.tensors.items() if name != "seed_offset"}
        shape, (p,) = tuple(one.x.shape), one.options
        kept_there = mask_of(shape, p, one.tensors["seed_offset"])
        x, res = (torch.zeros(shape, dtype=torch.float64, requires_grad=True) for _ in range(2))
        h = t["h"] + res + torch.where(kept_there, x * scale(p), 0.0)
        # Each call has an eps of its own, which its statistics tell.
        eps = float((t["inv_std"] ** -2 - t["h"].var(-1, correction=0)).mean())
        y = torch.nn.functional.layer_norm(h, shape[-1:], t["weight"], eps=eps)
        total = (y * t["dy"]).sum() + (h * t["dh"]).sum()
        for case, right in zip((one, other), torch.autograd.grad(total, (res, x)), strict=True):
            # Statistics are given in fp32.
            assert torch.allclose(case.reference, right, rtol=1e-4, atol=1e-5)


def test_the_books_backward_moves_one_tensor_more():
    rows, cols = 65536, 1024
    case = Measured((rows, cols), torch.bfloat16, (("p", 0.1),))
    moved = dropout_add_layernorm.moves(case, "bwd").unique / (rows * cols * 2)
    least = dropout_add_layernorm.backward_cost(case).bytes_ideal / (rows * cols * 2)
    assert moved == pytest.approx(6, abs=0.1)
    assert least == pytest.approx(5, abs=0.1)


def test_peaks_of_the_page():
    sizes = {"n": 10, "u": 40, "a": 40, "l": 90, "dl": 90, "da": 40, "du": 40, "dw1": 5, "dw2": 5}
    steps = [
        (("tokens",), ("n",)),
        (("n", "w1"), ("u",)),
        (("u",), ("a",)),
        (("a", "w2"), ("l",)),
        (("l", "targets"), ("dl",)),
        (("dl", "a"), ("dw2",)),
        (("dl", "w2"), ("da",)),
        (("da", "u"), ("du",)),
        (("du", "n"), ("dw1",)),
    ]
    assert peaks.alive(steps, sizes)[4] == max(peaks.alive(steps, sizes)) == 270
    assert peaks.peaks(steps, 4, sizes, "a") == (270, 230)
    small = sizes | {"l": 20, "dl": 20}
    assert peaks.peaks(steps, 4, small, "a") == (135, 135)


@pytest.mark.parametrize("fault", ["one life", "at the turn", "never gone", "a result"])
def test_each_faulty_life_shows_in_every_set_of_timelines(fault):
    for seed in range(30):
        made = [one[1:] for one in peaks.timelines(random.Random(seed))]
        assert any(peaks._with(*args, fault) != peaks.peaks(*args)[1] for args in made), seed


def test_each_rule_for_what_is_lost_shows_in_every_set_of_norms():
    for seed in range(30):
        made = [inverted._of(case) for case in inverted._cases(seed)]
        for what, rule in inverted.RULES:
            assert any(not torch.equal(rule(g), inverted.lost(*g)) for g in made), (seed, what)


def test_peaks_by_two_ways_and_what_a_checkpoint_does():
    """Over many timelines: a checkpoint that helps, one that saves nothing, one that costs."""
    signs = set()
    for seed in range(8):
        for one in peaks.timelines(random.Random(seed)):
            args = one.steps, one.back, one.sizes, one.again
            plain, with_again = peaks.peaks(*args)
            assert [plain, with_again] == s.peaks_as_time_goes(*args)
            signs.add((with_again > plain) - (with_again < plain))
    assert signs == {-1, 0, 1}


def test_what_a_forward_costs_is_what_pytorch_keeps():
    case = residual._cases(1)[0]
    (tokens, width), inner = case.x.shape, len(case.tensors["w1"])
    took = forward_cost(Attempt(functions.mlp_block_with("a new tensor"), 1), case)
    assert took.kept == 4 * tokens * 2 * inner  # u and a
    assert took.at_most == 4 * tokens * (2 * inner + 2 * width)
    took = forward_cost(Attempt(functions.mlp_block_with(), 1), case)
    assert took.at_most == 4 * tokens * (2 * inner + width)


@pytest.mark.parametrize("place", [None, 0, 1, 2])
def test_a_function_as_an_output_is_what_autograd_makes(place):
    given = [torch.randn(size) for size in ((5, 4), (6, 4), (4, 6))]
    dy = torch.randn(5, 4)
    leaves = [one.clone().requires_grad_() for one in given]
    y = functions.mlp_block_by_addmm(*leaves)
    right = y.detach() if place is None else torch.autograd.grad(y, leaves[place], dy)[0]
    got = Differentiated(functions.mlp_block_over_y, place, "x")(*given, dy)
    assert torch.allclose(got, right, atol=1e-5)


def test_what_a_case_of_a_norm_is_for():
    """Columns lost by a weight of 0, a small one, a bias, a number far out; and columns not."""
    found: set[str] = set()
    for case in (case for seed in range(7, 30) for case in inverted._cases(seed)):
        given = inverted._of(case)
        gone = inverted.lost(*given)
        error = (inverted.x_hat(*given) - case.reference).abs().max()
        assert error == 0
        if case.trait:
            assert not bool(gone.any())
            continue
        assert bool(gone[0] & gone[4] & gone[2] & gone[6] & gone[10])
        assert given.weight[10] < 0
        assert not bool(gone.all())
        found |= {"lost" if bool(gone[i]) else "kept" for i in range(14, len(gone), 4)}
    assert found == {"lost", "kept"}


def test_the_bound_is_one():
    """x̂ made again is as near as the bound says, column by column."""
    generator = torch.Generator().manual_seed(2)
    x = torch.randn(400, 6, generator=generator)
    weight = torch.tensor([1.0, 0.2, 0.02, -0.05, 2.0, 0.5])
    bias = torch.tensor([0.0, 1.0, 3.0, 0.5, -4.0, 0.1])
    weight, bias = weight.bfloat16(), bias.bfloat16()
    y = (x * weight.float() + bias.float()).bfloat16()
    made = (y.double() - bias.double()) / weight.double()
    off = (made - x.double()).abs().amax(0)
    bound = y.double().abs().amax(0) * inverted.unit(y) / weight.double().abs()
    assert bool((off <= 1.01 * bound).all())
    assert bool((off >= 0.1 * bound).any())


def test_costs_by_whole_tensors():
    for length in (16, 300, 9000):
        args = (length, 2, 6e14, 4e12)
        right = [one(*args) for one in costs.RIGHT]
        assert s.again_costs_of_a_sequence(*args) == pytest.approx(right)
    assert costs.attention(4096, 2, 6e14, 4e12) / costs.gelu(4096, 2, 6e14, 4e12) == pytest.approx(
        27.3, abs=0.05
    )


def test_the_tenth_question_stands_behind_the_ninth(own_progress):
    (names,) = [
        [name for name, _, _ in rows] for chapter, rows in progress().sets if chapter == "15"
    ]
    assert names == [f"15.{number}" for number in range(1, 11)]
