"""Products forward and back: tiles that divide nothing, orders, layouts, formulas, refusals."""

import re
from dataclasses import replace

import pytest
import torch
from torch.nn import functional as F

from kernels import passes
from kernels.lab.counting import aten, by_formula, op_ledger, our_operators, traffic
from kernels.launch import assume_capability, interpreting, recording
from kernels.ops.products import configurations, linear, moves
from kernels.ops.products.backward import grad_weight, grad_x
from kernels.ops.products.configurations import (
    BY_TORCH,
    FEW_ROWS,
    FORWARD,
    TORCH,
    TRITON,
    Tiling,
    Ways,
)
from kernels.ops.products.forward import forward
from kernels.ops.products.linear import fused, fused_simple, reference
from kernels.registry import DTYPES, Case, get
from tests.ops.layouts import LAYOUTS

OP = get("linear")
KEPT = {"persistent": True}
TILINGS = {
    "pointers": Tiling(16, 32, 16, num_warps=4, num_stages=2),
    "row-major": Tiling(32, 16, 32, num_warps=4, num_stages=2, group=1),
    "descriptors": Tiling(32, 16, 16, num_warps=4, num_stages=2, group=2, **KEPT),
    "halves": Tiling(16, 32, 32, num_warps=4, num_stages=2, **KEPT, halves=True, flatten=True),
}
SIZES = ((48, 64, 80), (50, 40, 104), (7, 8, 16), (129, 72, 8))  # descriptors take all of them


def make(shape, dtype):
    return OP.inputs(shape, dtype, "cpu", seed=torch.seed() % 2**31)


def off(got, exact):
    return float((got.double() - exact).norm() / exact.norm())


def both_ways(fn, given, dy):
    leaves = [one.detach().requires_grad_() for one in given.values()]
    y = fn(*leaves)
    return (y.detach(), *torch.autograd.grad(y, leaves, dy))


def rounding(dtype):
    """A product's error is the rounding of its output, and fp32's on the way."""
    return torch.finfo(dtype).eps / 2 + 2.0**-21


# ------------------------------------------------------------------------- tiles, orders, splits


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bf16", "fp16"])
@pytest.mark.parametrize("shape", SIZES, ids=str)
@pytest.mark.parametrize("name", TILINGS)
def test_every_way_through_the_forward_moves_what_its_formula_says(name, shape, dtype):
    given, tiling = make(shape, dtype), TILINGS[name]
    with interpreting() as launches:
        y = forward(**given, tiling=tiling)
    assert off(y, reference(**given)) <= rounding(dtype)
    ledger = traffic.ledger_of(launches)
    wanted = moves.forward_moves(Case(shape, dtype), tiling)
    assert (ledger.launches, ledger.bytes_unique) == (1, wanted.unique)
    assert ledger.bytes_requested == wanted.requested
    m, k, n = shape
    x, weight = moves.requested_bytes(m, k, n, tiling, dtype.itemsize)
    assert ledger.steps[0].tensor("x").read_requested == x
    assert ledger.steps[0].tensor("weight").read_requested == weight


@pytest.mark.parametrize("shape", [(64, 32, 96), (128, 64, 32)], ids=str)
def test_a_tile_that_divides_asks_for_the_sizes_over_it(shape):
    m, k, n = shape
    tiling = TILINGS["pointers"]
    x, weight = moves.requested_bytes(m, k, n, tiling, 2)
    once, twice = (replace(tiling, block_m=block) for block in (16, 32))
    assert (x, weight) == (2 * m * n * k // tiling.block_n, 2 * m * n * k // tiling.block_m)
    # Twice BLOCK_M halves what is asked of the weight, and nothing of x.
    before, after = (moves.requested_bytes(m, k, n, one, 2) for one in (once, twice))
    assert after == (before[0], before[1] // 2)


@pytest.mark.parametrize("splits", [1, 3])
@pytest.mark.parametrize("shape", SIZES, ids=str)
@pytest.mark.parametrize("name", TILINGS)
def test_every_way_through_the_backward_moves_what_its_formula_says(name, shape, splits):
    m, k, n = shape
    dtype = torch.bfloat16
    given, tiling = make(shape, dtype), replace(TILINGS[name], splits=splits)
    x, weight = given["x"], given["weight"]
    dy = torch.randn(m, n).to(dtype)
    with interpreting() as launches:
        dx = grad_x(dy, weight, replace(tiling, splits=1))
        dweight, dbias = grad_weight(dy, x, True, tiling)
    wide = dy.double()
    assert off(dx, wide @ weight.double()) <= rounding(dtype)
    assert off(dweight, wide.T @ x.double()) <= rounding(dtype)
    assert off(dbias, wide.sum(0)) <= rounding(dtype)
    ledger = traffic.ledger_of(launches)
    told = moves.Moves.of(
        *moves.gradient_steps(m, n, k, replace(tiling, splits=1), 2, sums=False),
        *moves.gradient_steps(n, m, k, tiling, 2, sums=True),
    )
    assert [step.name for step in ledger] == [step.name for step in told.steps]
    assert (ledger.bytes_unique, ledger.bytes_requested) == (told.unique, told.requested)
    assert [step.grid for step in ledger] == [step.grid for step in told.steps]
    parts = configurations.shared_out(m, tiling)[0]
    assert ledger.launches == (4 if parts > 1 else 2)


def test_parts_of_a_sum_are_shared_out_whole():
    for depth in (1, 15, 16, 17, 129, 4096):
        for splits in (1, 2, 3, 8):
            parts, each = configurations.shared_out(
                depth, replace(TILINGS["halves"], splits=splits)
            )
            assert 1 <= parts <= splits
            assert each % 32 == 0
            assert (parts - 1) * each < depth <= parts * each


def test_few_tiles_of_a_weight_share_the_rows():
    def splits(n, k, m, across=True):
        return configurations.gradient_tiling((n, k, m), 2, True, across, (9, 0), 132).splits

    # 32 tiles of 128 × 256 for 132 SMs: four share a sum, and all are taken at once.
    assert splits(1024, 1024, 16384) == 4
    assert splits(1024, 1024, 64) == 1
    assert splits(1024, 1024, 16384, across=False) == 1
    # 96 tiles: one round of SMs not quite full, or three full ones of a quarter each, when the sums
    # are so long that writing the parts costs less.
    assert splits(3072, 1024, 4096) == 1
    assert splits(3072, 1024, 16384) == 4
    assert splits(12288, 4096, 8192) == 1


# --------------------------------------------------------------------------------- how near


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
@pytest.mark.parametrize("k", [1, 2, 17, 64, 500, 8192])
def test_no_further_off_than_twice_pytorch(k, dtype):
    given = make((16, k, 24), dtype)
    exact = reference(**given)
    allowed = 2 * off(F.linear(**as_linear(given)), exact) + 4 * 2.0**-24
    assert off(fused(**given), exact) <= allowed
    assert off(fused_simple(**given), exact) <= allowed


def as_linear(given):
    return {"input": given["x"], "weight": given["weight"], "bias": given["bias"]}


def test_rounded_once_where_the_maths_op_by_op_rounds_twice():
    given = make((64, 512, 64), torch.bfloat16)
    exact = reference(**given)
    assert off(fused(**given), exact) < off(linear.eager(**given), exact)


def test_fp32_is_multiplied_in_full():
    given = make((32, 256, 32), torch.float32)
    assert off(fused(**given), reference(**given)) < 2.0**-20  # tf32 keeps 11 bits


# ----------------------------------------------------------------------- layouts, bias, no rows


@pytest.mark.parametrize("aligned", [True, False])
@pytest.mark.parametrize("of_x", LAYOUTS.values(), ids=LAYOUTS)
@pytest.mark.parametrize("of_weight", LAYOUTS.values(), ids=LAYOUTS)
def test_every_layout_of_x_weight_and_the_upstream_gradient(of_x, of_weight, aligned):
    k, n = (24, 40) if aligned else (21, 37)
    given = make((34, k, n), torch.float16)
    dy = of_x(torch.randn(34, n).half())
    exact = both_ways(reference, {n: v.double() for n, v in given.items()}, dy.double())
    laid = {"x": of_x(given["x"]), "weight": of_weight(given["weight"])}
    found = both_ways(fused, laid | {"bias": LAYOUTS["every_second"](given["bias"])}, dy)
    for one, truth in zip(found, exact, strict=True):
        assert one.dtype == torch.float16
        assert off(one, truth) <= rounding(torch.float16)


def test_leading_dimensions_and_their_gradients():
    x = torch.randn(2, 5, 3, 24).bfloat16().transpose(0, 1)
    weight = torch.randn(40, 24).bfloat16()
    dy = torch.randn(5, 2, 3, 40).bfloat16()
    found = both_ways(fused, {"x": x, "weight": weight}, dy)
    exact = both_ways(reference, {"x": x.double(), "weight": weight.double()}, dy.double())
    for one, truth in zip(found, exact, strict=True):
        assert one.shape == truth.shape
        assert off(one, truth) <= rounding(torch.bfloat16)
    assert fused(x[0, 0, 0], weight).shape == (40,)


def test_an_expanded_upstream_gradient():
    given = make((40, 24, 16), torch.bfloat16)
    dy = torch.randn(1, 1).bfloat16().expand(40, 16)
    exact = both_ways(reference, {n: v.double() for n, v in given.items()}, dy.double())
    for one, truth in zip(both_ways(fused, given, dy), exact, strict=True):
        assert off(one, truth) <= rounding(torch.bfloat16)


def test_without_bias_nothing_is_read_or_summed():
    given = make((40, 24, 16), torch.bfloat16)
    del given["bias"]
    dy = torch.randn(40, 16).bfloat16()
    with interpreting() as launches:
        found = both_ways(fused, given, dy)
    names = {moved.tensor for step in traffic.ledger_of(launches) for moved in step.tensors}
    assert not names & {"bias", "sums"}
    exact = both_ways(reference, {n: v.double() for n, v in given.items()}, dy.double())
    for one, truth in zip(found, exact, strict=True):
        assert off(one, truth) <= rounding(torch.bfloat16)


@pytest.mark.parametrize("wanted", ["x", "weight", "bias"])
def test_only_what_is_wanted_is_launched(wanted):
    given = make((40, 24, 16), torch.bfloat16)
    leaf = given[wanted].requires_grad_()
    dy = torch.randn(40, 16).bfloat16()
    y = fused(**given)
    with interpreting() as launches:
        (found,) = torch.autograd.grad(y, leaf, dy)
    wide = {n: v.detach().double() for n, v in given.items()}
    wide[wanted].requires_grad_()
    (truth,) = torch.autograd.grad(reference(**wide), wide[wanted], dy.double())
    assert off(found, truth) <= rounding(torch.bfloat16)
    assert len(launches) == 1


def test_no_rows_give_none_and_gradients_of_zero():
    given = make((0, 24, 16), torch.bfloat16)
    y, dx, dweight, dbias = both_ways(fused, given, torch.empty(0, 16).bfloat16())
    assert (y.shape, dx.shape) == ((0, 16), (0, 24))
    assert not dweight.any()
    assert not dbias.any()


def test_a_tail_of_k_takes_nothing_from_beyond():
    """NaN behind each row of x and weight: a tile that reads on, or multiplies by 0, shows it."""
    room = torch.full((20, 64), torch.nan, dtype=torch.bfloat16)
    x, weight = room[:, :21], room.clone()[:, :21]
    x.normal_()
    weight.normal_()
    for tiling in (TILINGS["pointers"], TILINGS["row-major"], None):
        y = forward(x, weight, None, tiling)
        assert off(y, reference(x, weight)) <= rounding(torch.bfloat16)


# ----------------------------------------------------------------------------- which way it goes


def test_descriptors_take_rows_at_multiples_of_16_bytes():
    def kernel(x, weight, capability=90):
        with assume_capability(capability), recording() as launches:
            forward(x, weight, None)
        return next(iter(launches)).name

    x, weight = torch.randn(200, 64).half(), torch.randn(48, 64).half()
    assert kernel(x, weight) == "linear_persistent"
    assert kernel(x, weight, 80) == "linear_tile"
    assert kernel(x[:, :60], weight[:, :60]) == "linear_persistent"
    assert kernel(torch.randn(200, 60).half(), torch.randn(48, 60).half()) == "linear_tile"
    assert kernel(x[:, 1:57], weight[:, 8:]) == "linear_tile"  # begins off a multiple of 16 bytes
    assert kernel(x, torch.randn(51, 64).half()) == "linear_tile"  # so do rows of y
    assert kernel(x[:1].expand(200, 64), weight) == "linear_tile"
    assert kernel(x.float(), weight.float()) == "linear_tile"
    assert kernel(x[:FEW_ROWS], weight) == "linear_tile"


def test_tables_are_for_cards_in_order():
    for table in (FORWARD, configurations.GRAD_X, configurations.GRAD_WEIGHT):
        assert list(table) == sorted(table)
        assert all(not one.persistent for card, one in table.items() if card < (9, 0))


def test_pytorchs_way_back_is_chosen_product_by_product():
    given = make((40, 24, 16), torch.bfloat16)
    dy = torch.randn(40, 16).bfloat16()
    exact = both_ways(reference, {n: v.double() for n, v in given.items()}, dy.double())
    for *ways, expected in ((TORCH, TORCH, 1), (TORCH, TRITON, 1), (TRITON, TORCH, 2)):
        leaves = [one.detach().requires_grad_() for one in given.values()]
        y = linear.launched(*leaves, Ways(TRITON, *ways))
        with interpreting() as launches:
            found = torch.autograd.grad(y, leaves, dy)
        assert len(launches) == expected
        for one, truth in zip(found, exact[1:], strict=True):
            assert off(one, truth) <= rounding(torch.bfloat16)


def test_the_model_tells_what_the_large_tile_takes():
    """Within a quarter of what an H200 took, in µs, at its 1980 MHz."""
    timed = {
        (4096, 1024, 3072): 40.1,
        (16384, 1024, 3072): 152.3,
        (8192, 4096, 12288): 1200.8,
        (4096, 4096, 4096): 191.8,
        (128, 4096, 1024): 41.3,
        (1024, 4096, 1024): 42.3,
    }
    large = configurations.FORWARD[9, 0]
    for sizes, taken in timed.items():
        assert abs(configurations.clocks(sizes, large, 132) / 1980 / taken - 1) < 0.25, sizes
        chosen = configurations.forward_tiling(sizes, 2, True, (9, 0), 132)
        assert (chosen == large) == (sizes[0] > 1024), sizes
        assert configurations.forward_tiling(sizes, 2, True, (10, 0), 132).block_n == 256
        assert configurations.forward_tiling(sizes, 2, False, (9, 0), 132).block_n == 64


# µs on an H200 of the tiles 128×256, 128×128, 64×128 and 64×64, in the order of the tables, by
# `python -m kernels.lab tune linear_bias_residual --shape 128x1024x1024 …`, `tune qkv --shape
# 1x128x1024x3x16x64 …` and `tune linear_bias_gelu --shape 128x1024x4096 …`; by rows, K and N.
TIMED = {
    (128, 1024, 1024): (15.9, 10.4, 7.6, 6.1),
    (512, 1024, 1024): (16.2, 10.6, 7.8, 6.5),
    (1024, 1024, 1024): (16.4, 10.9, 8.2, 9.8),
    (2048, 1024, 1024): (17.0, 11.9, 13.1, 16.3),
    (4096, 1024, 1024): (19.3, 20.1, 22.6, 29.2),
    (128, 4096, 1024): (43.3, 25.6, 15.9, 11.9),
    (512, 4096, 1024): (43.8, 26.2, 16.3, 13.3),
    (1024, 4096, 1024): (43.8, 27.2, 17.4, 23.7),
    (2048, 4096, 1024): (44.7, 29.1, 32.0, 45.7),
    (4096, 4096, 1024): (50.1, 54.5, 65.1, 91.1),
    (128, 1024, 3072): (15.1, 10.4, 6.9, 6.3),
    (512, 1024, 3072): (15.4, 10.7, 10.7, 11.5),
    (1024, 1024, 3072): (15.9, 18.0, 14.6, 19.4),
    (2048, 1024, 3072): (28.6, 25.7, 25.5, 35.2),
    (4096, 1024, 3072): (42.4, 47.0, 47.8, 67.0),
    (128, 1024, 4096): (17.3, 11.4, 7.9, 7.0),
    (512, 1024, 4096): (17.7, 12.0, 12.3, 15.5),
    (1024, 1024, 4096): (18.6, 20.1, 20.9, 27.6),
    (2048, 1024, 4096): (33.0, 35.6, 37.8, 51.2),
    (4096, 1024, 4096): (62.4, 67.7, 72.1, 98.1),
}


def test_few_tiles_are_as_small_as_was_fastest():
    tiles = [configurations.FORWARD[9, 0], *configurations.SMALLER[9, 0]]
    for sizes, taken in TIMED.items():
        chosen = configurations.forward_tiling(sizes, 2, True, (9, 0), 132)
        assert taken[tiles.index(chosen)] <= 1.01 * min(taken), sizes


def test_the_public_function_follows_its_table(monkeypatch):
    given = make((40, 24, 16), torch.bfloat16)
    with interpreting() as launches:
        ours = linear.linear(**given)
    assert len(launches) == 1
    monkeypatch.setattr(linear, "ways", lambda x: BY_TORCH)
    with interpreting() as launches:
        theirs = linear.linear(**given)
        monkeypatch.setattr(linear, "ways", lambda x: Ways(TORCH, TRITON, TRITON))
        assert torch.equal(linear.linear(**given), theirs)
    assert not launches
    assert off(ours, theirs.double()) <= 2 * rounding(torch.bfloat16)


def test_compiled_whole():
    given = make((40, 24, 16), torch.float32)
    dy = torch.randn(40, 16)
    fn = torch.compile(linear.linear, fullgraph=True, backend="aot_eager")
    for one, other in zip(both_ways(fn, given, dy), both_ways(fused, given, dy), strict=True):
        torch.testing.assert_close(one, other)


# ------------------------------------------------------------------------------------ ledgers


@pytest.mark.parametrize("pass_", ["fwd", "bwd", "train"])
def test_a_large_ledger_is_the_formulas(pass_, monkeypatch):
    case = Case((150, 64, 264), torch.bfloat16)
    whole = op_ledger.count_case(OP, "fused", case, pass_)
    monkeypatch.setattr(by_formula, "MOST_FLOPS", 0)
    op_ledger.forget()
    told = op_ledger.count_case(OP, "fused", case, pass_)
    op_ledger.forget()
    assert (whole.method, told.method) == ("full", "formula")
    seen = [(s.name, [t for t in s.tensors if t.unique]) for s in whole]
    assert seen == [(step.name, [*step.tensors]) for step in told]


def test_the_suites_are_counted_by_formula():
    for case in OP.cases_of("fwd"):
        m, _, n = case.shape
        for name in ("fused", "fused_simple"):
            ledger = op_ledger.count_case(OP, name, case)
            assert ledger.method == "formula"
            assert ledger.bytes_unique == OP.forward.cost(case).bytes_ideal
            block_n = 256 if name == "fused" else 128
            assert ledger.steps[0].tensor("x").times_read == n / block_n
            assert ledger.steps[0].tensor("weight").times_read == m / 128


@pytest.mark.parametrize("biased", [True, False])
def test_a_layer_counts_its_products_by_their_launches_or_by_formula(biased, monkeypatch):
    """Inside a model: the same either way, whatever leads."""
    x = torch.empty(2, 75, 64, dtype=torch.bfloat16)
    weight = torch.empty(264, 64, dtype=torch.bfloat16, requires_grad=True)
    bias = torch.empty(264, dtype=torch.bfloat16, requires_grad=True) if biased else None

    def both():
        ways = aten.count_training(lambda x: fused(x * 2, weight, bias), x)
        return [step for ledger in ways for step in ledger]

    whole = both()
    monkeypatch.setattr(our_operators, "MOST_REQUESTED", 0)
    told = both()
    assert [step.name for step in whole] == [step.name for step in told]
    assert [step.kind for step in told].count("launch") == 2  # x gets no gradient
    for one, other in zip(whole, told, strict=True):
        seen, formula = ([t for t in s.tensors if t.unique] for s in (one, other))
        assert [replace(t, tensor="") for t in seen] == [replace(t, tensor="") for t in formula]


# ----------------------------------------------------------------------------------- refusals


X, W, B = torch.randn(4, 6), torch.randn(5, 6), torch.randn(5)
REFUSED = {
    "x is a list; it takes a torch.Tensor": ([1.0], W, B),
    "x has dtype torch.int64; it takes float16, bfloat16 or float32": (X.long(), W, B),
    "x has the shape (4, 0); its last dimension must be 1 or more": (X[:, :0], W, B),
    "x has the shape (); its last dimension must be 1 or more": (X[0, 0], W, B),
    "weight has the shape (5, 7); with x of shape (4, 6) it takes (N, 6), N being 1 or more": (
        X, torch.randn(5, 7), B),
    "weight has the shape (0, 6); with x of shape (4, 6) it takes (N, 6), N being 1 or more": (
        X, W[:0], B),
    "weight has the shape (6,); with x of shape (4, 6) it takes (N, 6), N being 1 or more": (
        X, W[0], B),
    "bias has the shape (4,); with weight of shape (5, 6) it takes (5,)": (X, W, B[:4]),
    "weight has dtype torch.float16 and x torch.float32; they must have the same": (
        X, W.half(), B),
    "bias has dtype torch.bfloat16 and x torch.float32; they must have the same": (
        X, W, B.bfloat16()),
}  # fmt: skip


@pytest.mark.parametrize("fn", [linear.linear, fused, fused_simple], ids=lambda fn: fn.__name__)
@pytest.mark.parametrize("sentence", REFUSED)
def test_what_it_does_not_take_is_told_in_a_sentence(sentence, fn):
    with pytest.raises((TypeError, ValueError), match=f"^{re.escape(sentence)}$"):
        fn(*REFUSED[sentence])


def test_second_derivatives_and_gradients_of_the_simple_kernel_are_refused():
    x = X.clone().requires_grad_()
    (dx,) = torch.autograd.grad(fused(x, W, B).square().sum(), x, create_graph=True)
    with pytest.raises(NotImplementedError, match="linear has no second derivative here"):
        torch.autograd.grad(dx.sum(), x)
    with pytest.raises(RuntimeError, match="linear has no backward pass"):
        fused_simple(x, W, B)


def test_a_training_step_goes_by_three_launches():
    case = Case((96, 64, 64), torch.bfloat16)
    with interpreting() as launches:
        passes.bind(OP, OP.variant("fused"), OP.make(case, "cpu", 0), "train")()
    names = [launch.name for launch in launches]
    assert names[-3:] == ["linear_persistent", "gradient_persistent", "gradient_persistent"]
