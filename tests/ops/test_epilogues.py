"""Products with an epilogue, beyond what every operation is held to: tilings, forms, savings."""

import re

import pytest
import torch
from torch.nn import functional as F

import kernels.ops  # noqa: F401  (registers the operations)
from kernels.lab.counting import aten, op_ledger, our_operators, traffic
from kernels.launch import assume_capability, gluon, interpreting, recording
from kernels.launch.gluon import is_gluon
from kernels.ops.chains import gelu_by_power
from kernels.ops.epilogues import (
    geglu_mlp,
    linear_bias_gelu,
    linear_bias_residual,
    linear_swiglu,
    qkv,
    swiglu_mlp,
)
from kernels.ops.epilogues.configurations import (
    FINISHES,
    Finish,
    finishes_to_try,
    halved,
    hopper_tiles,
    suits_hopper,
)
from kernels.ops.epilogues.forward import (
    in_heads,
    launch,
    with_gate,
    with_gelu,
    with_residual,
)
from kernels.ops.epilogues.moves import Followed
from kernels.registry import Case, Moves, get
from tests.ops.test_linear import TILINGS

GELU, RESIDUAL, HALF = get("linear_bias_gelu"), get("linear_bias_residual"), get("linear_swiglu")
MLP, HEADS = get("swiglu_mlp"), get("qkv")
no_gluon = pytest.mark.skipif(gluon.no_gluon() is not None, reason="no Gluon for Hopper")


def off(got, exact):
    return float((got.double() - exact).norm() / exact.norm())


def rounding(dtype):
    return torch.finfo(dtype).eps / 2 + 2.0**-21


def made(op, shape, dtype=torch.bfloat16, seed=3):
    return op.make(Case(shape, dtype), "cpu", seed)


def gradients(fn, given, dy):
    leaves = {name: one.detach().requires_grad_() for name, one in given.items()}
    return torch.autograd.grad(fn(**leaves), list(leaves.values()), dy)


# ------------------------------------------------------------------- tiles, orders, what is kept


def gelu_of(keeps):
    def run(shape, tiling):
        given = made(GELU, shape)
        todo, outputs = with_gelu(*given.values(), "gelu_tanh", keeps)
        launch(todo, tiling)
        return given, GELU, outputs, Followed(shape, 2, biased=True, keeps=keeps)

    return run


def residual_of(shape, tiling):
    given = made(RESIDUAL, shape)
    todo, y = with_residual(**given)
    launch(todo, tiling)
    return given, RESIDUAL, (y, None), Followed(shape, 2, biased=True, residual=True)


def gate_of(keeps):
    def run(shape, tiling):
        given = made(HALF, (*shape, 2))
        todo, outputs = with_gate(*given.values(), "silu", keeps)
        launch(todo, tiling)
        return given, HALF, outputs, Followed(shape, 2, gated=True, keeps=keeps)

    return run


def heads_of(shape, tiling):
    m, k, n = shape
    given = made(HEADS, (2, m // 2, k, 2, n // 16, 8))
    todo, y = in_heads(**given)
    launch(todo, tiling)
    return given, HEADS, (y, None), Followed(shape, 2, biased=True, heads=True)


WAYS = {
    "gelu": gelu_of(False),
    "gelu, kept": gelu_of(True),
    "residual": residual_of,
    "gate": gate_of(False),
    "gate, kept": gate_of(True),
    "heads": heads_of,
}


@pytest.mark.parametrize("shape", [(48, 64, 80), (50, 40, 112)], ids=str)
@pytest.mark.parametrize("name", TILINGS)
@pytest.mark.parametrize("way", WAYS)
def test_every_tiling_is_right_and_moves_what_its_formula_says(way, name, shape):
    tiling = halved(TILINGS[name]) if "gate" in way else TILINGS[name]
    with interpreting() as launches:
        given, op, (y, kept), followed = WAYS[way](shape, tiling)
    wide = {name: one.double() for name, one in given.items()}
    assert off(y, op.reference(**wide)) <= rounding(y.dtype)
    if kept is not None:
        weight = wide["weight"].flatten(0, -2)
        exact = F.linear(wide["x"], weight, wide.get("bias"))
        assert off(kept, exact) <= rounding(y.dtype)
    ledger, told = traffic.ledger_of(launches), Moves.of(followed.step(tiling))
    assert (ledger.launches, ledger.bytes_unique) == (1, told.unique)
    assert ledger.bytes_requested == told.requested


# -------------------------------------------------------------------------------- what is saved


@pytest.mark.parametrize(
    ("op", "shape", "saved"),
    [(GELU, (96, 64, 40), 2), (RESIDUAL, (96, 64, 40), 2), (HALF, (96, 64, 40, 2), 6),
     (MLP, (96, 64, 40, 2), 6)],
    ids=lambda one: getattr(one, "name", ""),
)  # fmt: skip
def test_what_pytorchs_launches_move_more_is_what_goes_between_them(op, shape, saved):
    case = Case(shape, torch.bfloat16)
    ours = op_ledger.count_case(op, "fused", case)
    theirs = aten.count(op.variant("torch").fn, **aten.fake_inputs(op, case))
    assert theirs.bytes_unique - ours.bytes_unique == saved * shape[0] * shape[2] * 2


def test_a_training_step_of_an_mlp_goes_by_seven_launches():
    given = made(MLP, (80, 64, 72, 2))
    with interpreting() as launches:
        gradients(swiglu_mlp.fused, given, torch.randn(80, 64).bfloat16())
    assert [launch.name for launch in launches] == [
        "epilogue_persistent",
        "linear_persistent",
        *["gradient_persistent"] * 2,
        "activation_backward",
        *["gradient_persistent"] * 2,
    ]


@pytest.mark.parametrize(
    ("op", "shape"),
    [(GELU, (96, 64, 40)), (RESIDUAL, (96, 64, 40)), (HALF, (96, 64, 40, 2)),
     (MLP, (96, 64, 40, 2)), (HEADS, (2, 48, 64, 3, 2, 16))],
    ids=lambda one: getattr(one, "name", ""),
)  # fmt: skip
def test_a_layer_counts_its_launches_or_by_formula(op, shape, monkeypatch):
    """Inside a model: the same either way, forward without gradients, in training and back."""
    given = made(op, shape)
    x = given.pop("x")
    weights = {name: one.requires_grad_() for name, one in given.items()}

    def all_ways():
        with torch.no_grad():
            alone = aten.count(lambda x: op.variant("fused").fn(x, **weights), x)
        both = aten.count_training(lambda x: op.variant("fused").fn(x * 2, **weights), x)
        return [step for ledger in (alone, *both) for step in ledger if step.kind == "launch"]

    whole = all_ways()
    monkeypatch.setattr(our_operators, "MOST_REQUESTED", 0)
    told = all_ways()
    assert [step.name for step in whole] == [step.name for step in told]
    for one, other in zip(whole, told, strict=True):
        assert (one.bytes_unique, one.bytes_requested) == (
            other.bytes_unique,
            other.bytes_requested,
        )


# ------------------------------------------------------------------------------ forms and parts


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32], ids=["fp16", "fp32"])
def test_gelu_by_the_error_function(dtype):
    given = made(GELU, (34, 24, 40), dtype)
    wide = {name: one.double() for name, one in given.items()}
    dy = torch.randn(34, 40).to(dtype)

    def exact(**given):
        return F.gelu(F.linear(*given.values()))

    for fn in (linear_bias_gelu.fused, linear_bias_gelu.fused_simple, linear_bias_gelu.eager):
        assert off(fn(**given, approximate="none"), exact(**wide)) <= 2 * rounding(dtype)
    ours = gradients(
        lambda **leaves: linear_bias_gelu.fused(**leaves, approximate="none"), given, dy
    )
    for one, truth in zip(ours, gradients(exact, wide, dy.double()), strict=True):
        assert off(one, truth) <= 3 * rounding(dtype)


def test_the_polynomial_for_16_bits_is_as_near_as_it_says():
    """GELU in fp32 by the kernel's constants, against float64."""
    terms = [getattr(gelu_by_power, f"P{place}").value for place in range(7)]
    h = torch.linspace(-16, 16, 6401)
    a = h.abs().clamp(max=gelu_by_power.FARTHEST.value)
    y = h.clamp(min=0) - a * torch.exp2(sum(c * a**place for place, c in enumerate(terms)))
    exact = 0.5 * h.double() * torch.erfc(-h.double() * 0.5**0.5)
    small = (y - exact).abs()[h.abs() <= 6]
    assert small[h[h.abs() <= 6] < 0].max() < 1.5e-7 + 2.0**-22
    near = (h < 0) & (h >= -4)
    assert ((y - exact) / exact).abs()[near].max() < 1e-4
    assert y[h < -6].abs().max() < 1e-8


@no_gluon
def test_the_polynomial_of_the_tanh_form_is_as_near_as_it_says():
    from kernels.ops.epilogues import hopper_activations  # which imports Gluon

    terms = [getattr(hopper_activations, f"T{place}").value for place in range(7)]
    h = torch.linspace(-16, 16, 6401)
    a = h.abs().clamp(max=hopper_activations.FARTHEST_TANH.value)
    y = h.clamp(min=0) - a * torch.exp2(sum(c * a**place for place, c in enumerate(terms)))
    wide = h.double()
    u = (2 / torch.pi) ** 0.5 * (wide + 0.044715 * wide**3)
    exact = wide * torch.sigmoid(2 * u)
    assert (y - exact).abs()[h.abs() <= 6].max() < 1.2e-5 + 2.0**-22
    near = (h < 0) & (h >= -4)
    assert ((y - exact) / exact).abs()[near].max() < 4.7e-4  # a rounding to fp16 at most
    assert y[h < -6].abs().max() < 1e-8
    assert torch.equal(y[h > 6], h[h > 6])


def test_geglu_by_the_error_function():
    given = made(get("geglu_mlp"), (34, 24, 40, 2), torch.float32)
    wide = {name: one.double() for name, one in given.items()}
    dy = torch.randn(34, 24)
    for fn in (geglu_mlp.fused, geglu_mlp.geglu_mlp):
        y = fn(**given, approximate="none")
        assert off(y, geglu_mlp.reference(**wide, approximate="none")) <= 2.0**-20
    ours = gradients(lambda **leaves: geglu_mlp.fused(**leaves, approximate="none"), given, dy)
    exact = gradients(
        lambda **leaves: geglu_mlp.reference(**leaves, approximate="none"), wide, dy.double()
    )
    for one, truth in zip(ours, exact, strict=True):
        assert off(one, truth) <= 2.0**-19


def test_large_numbers_go_through_the_activations():
    """GELU and SiLU of ±10 000 are 0 and the number itself, in every form, without a NaN."""
    x = torch.tensor([[100.0], [-100.0]])
    weight = torch.full((8, 1), 100.0)
    for approximate in ("tanh", "none"):
        y = linear_bias_gelu.fused(x, weight, None, approximate)
        assert torch.equal(y, torch.tensor([[1e4], [0.0]]).expand(2, 8))
    y = linear_swiglu.fused(x, torch.stack([weight, torch.ones_like(weight)]))
    assert torch.equal(y, torch.tensor([[1e6], [0.0]]).expand(2, 8))


def test_queries_keys_and_values_are_the_slices_of_one_product():
    given = made(HEADS, (2, 9, 24, 3, 2, 8), torch.float32)
    x, weight, bias = given.values()
    y = F.linear(x, weight.view(-1, 24), bias.view(-1)).view(2, 9, 3, 2, 8)
    for part, one in enumerate(qkv.qkv(x, weight, bias)):
        assert one.is_contiguous()
        torch.testing.assert_close(one, y[:, :, part].transpose(1, 2))


def test_without_bias_nothing_is_read_or_summed():
    x, weight = torch.randn(40, 24).bfloat16(), torch.randn(16, 24).bfloat16()
    residual = torch.randn(40, 16).bfloat16()
    calls = {
        "gelu": lambda x, w: linear_bias_gelu.fused(x, w),
        "residual": lambda x, w: linear_bias_residual.fused(x, w, None, residual),
        "heads": lambda x, w: qkv.fused(x[None], w.view(1, 2, 8, 24)),
    }
    for call in calls.values():
        with interpreting() as launches:
            gradients(call, {"x": x, "w": weight}, torch.ones_like(call(x, weight)))
        moved = {one.tensor for step in traffic.ledger_of(launches) for one in step.tensors}
        assert not moved & {"bias", "sums"}


def test_no_rows_give_gradients_of_zero():
    given = made(MLP, (0, 24, 16, 2))
    dx, dweight, ddown = gradients(swiglu_mlp.fused, given, torch.empty(0, 24).bfloat16())
    assert dx.shape == (0, 24)
    assert not dweight.any()
    assert not ddown.any()


# --------------------------------------------------------------------------------------- Hopper


def recorded(fn, given, capability=90):
    with assume_capability(capability), recording() as launches, torch.no_grad():
        fn(**given)
    return [(launch.name, is_gluon(launch.kernel)) for launch in launches]


def hollow(*sizes, dtype=torch.bfloat16):
    return torch.empty(*sizes, dtype=dtype)


@no_gluon
def test_where_the_kernel_written_for_hopper_stands_and_steps_aside():
    x, weight, bias = hollow(16384, 512), hollow(1024, 512), hollow(1024)
    given = {"x": x, "weight": weight, "bias": bias}
    fn = linear_bias_gelu.fused_hopper
    assert recorded(fn, given) == [("hopper_epilogue", True)]
    assert recorded(fn, given, 80) == [("epilogue_tile", False)]
    assert recorded(fn, given | {"x": x[:512]}) == [("epilogue_persistent", False)]
    single = {name: one.float() for name, one in given.items()}
    assert recorded(fn, single) == [("epilogue_tile", False)]
    mlp = {"x": x, "weight": hollow(2, 1024, 512), "down": hollow(128, 1024)}
    assert recorded(swiglu_mlp.fused_hopper, mlp) == [
        ("hopper_epilogue", True),
        ("linear_persistent", False),  # of too few tiles
    ]
    heads = {"x": hollow(16, 512, 512), "weight": hollow(3, 8, 64, 512)}
    assert recorded(qkv.fused_hopper, heads) == [("hopper_epilogue", True)]
    added = given | {"residual": hollow(16384, 1024)}
    assert recorded(linear_bias_residual.fused_hopper, added) == [("hopper_epilogue", True)]
    odd_rows = {"residual": hollow(16384, 1028)[:, 1:1025]}
    fn = linear_bias_residual.fused_hopper
    assert recorded(fn, added | odd_rows) == [("epilogue_tile", False)]
    for odd in ({"x": hollow(16, 500, 512)}, {"weight": hollow(3, 16, 32, 512)}):
        assert recorded(qkv.fused_hopper, heads | odd) == [("epilogue_persistent", False)]


def test_the_rule_by_which_it_steps_aside():
    assert hopper_tiles(129, 257, False) == (2, 2)
    assert hopper_tiles(129, 257, True) == (2, 3)
    where, card = (None, (9, 0), 132), (2, True)
    gate = *card, True, True
    assert suits_hopper((128 * 528, 64, 128), *gate, False, *where)
    assert not suits_hopper((128 * 528, 64, 128), *gate, True, *where)  # in training
    assert not suits_hopper((128 * 66, 64, 128), *gate, False, *where)  # a smaller tile is better
    for activated in (False, True):  # which asks for more than two tiles a program
        told = *card, False, activated, False, *where
        assert suits_hopper((1024, 1024, 4096), *told) is not activated
        assert suits_hopper((2048, 1024, 4096), *told) is not activated
        assert suits_hopper((4096, 1024, 4096), *told)


def compiled_by_hand(given, finish=None):
    from kernels.ops.epilogues import hopper

    with recording() as launches, assume_capability(90):
        hopper.launch(given, finish=finish)
    (launch,) = launches
    return launch.specialize(90).compile()


WAYS_TO_FINISH = (
    Finish(late=True, apart=True),
    Finish(apart=True, by_power=True),
    Finish(late=True, by_power=True),
)


@no_gluon
@pytest.mark.parametrize("finish", WAYS_TO_FINISH, ids=lambda one: one.name)
def test_every_way_to_finish_a_tile_compiles_without_a_spill_and_its_products_overlap(finish):
    x, weight, bias = hollow(4096, 512), hollow(1024, 512), hollow(1024)
    compiled = compiled_by_hand(with_gelu(x, weight, bias, "gelu_tanh", False)[0], finish)
    assert not compiled.serialized
    assert compiled.stack_bytes == 0
    assert compiled.shared_bytes <= 232_448


@no_gluon
def test_a_residual_comes_by_the_copy_engine_without_a_spill():
    x, weight = hollow(4096, 512), hollow(1024, 512)
    compiled = compiled_by_hand(with_residual(x, weight, None, hollow(4096, 1024))[0])
    assert not compiled.serialized
    assert compiled.stack_bytes == 0
    assert compiled.shared_bytes <= 232_448
    # The producer asks for two tiles of x and one of the weights, each group for four chunks.
    assert compiled.ptx.count("cp.async.bulk.tensor.2d.shared") == 3 + 2 * 4
    assert "ld.global" not in compiled.ptx  # neither a bias nor the residual by a thread


def test_what_tune_compares_beside_the_tilings():
    names = [one.name for one in finishes_to_try("gelu_tanh")]
    assert len(set(names)) == len(names) == 7
    assert set(finishes_to_try("silu")) == {one for one in FINISHES if not one.by_power}
    for op, case in ((GELU, (4096, 1024, 3072)), (HALF, (4096, 1024, 3072, 2))):
        tried = op.forward.candidates(Case(case, torch.bfloat16))
        assert "Hopper, late, apart" in tried
        given = made(op, (33, 70, 17, *case[3:]))
        exact = op.reference(**{name: one.double() for name, one in given.items()})
        assert off(tried["Hopper, late"](**given), exact) <= 2 * rounding(torch.bfloat16)


def test_bytes_of_the_kernel_written_for_hopper_by_hand():
    told = Followed((200, 64, 520), 2, biased=True).by_hopper()
    # 2 rows of 3 tiles: x three times, the weight twice, the bias by two groups of each row.
    assert told.requested == 2 * (3 * 200 * 64 + 2 * 520 * 64 + 4 * 520 + 200 * 520)
    # A residual is read once, by whoever has the tile.
    added = Followed((200, 64, 520), 2, biased=True, residual=True).by_hopper()
    assert added.requested == told.requested + 2 * 200 * 520
    assert added.unique == told.unique + 2 * 200 * 520
    # With a gate tiles are half as wide: 5 of them.
    told = Followed((200, 64, 520), 2, gated=True).by_hopper()
    assert told.requested == 2 * (5 * 200 * 64 + 2 * 2 * 520 * 64 + 200 * 520)
    assert told.unique == HALF.forward.cost(Case((200, 64, 520, 2), torch.half)).bytes_ideal
    whole = MLP.variant("fused_hopper").moves(Case((200, 64, 520, 2), torch.half), "fwd")
    between = 2 * 200 * 520 * 2
    assert (
        whole.unique == MLP.forward.cost(Case((200, 64, 520, 2), torch.half)).bytes_ideal + between
    )


# -------------------------------------------------------------------------------------- refusals


X, W, B, R = torch.randn(4, 6), torch.randn(5, 6), torch.randn(5), torch.randn(4, 5)
G, D, H = torch.randn(2, 5, 6), torch.randn(6, 5), torch.randn(3, 2, 4, 6)
REFUSED = {
    "approximate is 'erf'; GELU takes 'tanh' or 'none'": (
        linear_bias_gelu.linear_bias_gelu, X, W, B, "erf"),
    "bias has the shape (4,); with weight of shape (5, 6) it takes (5,)": (
        linear_bias_gelu.linear_bias_gelu, X, W, B[:4]),
    "residual has the shape (4, 4); with x of shape (4, 6) and weight of shape (5, 6) it takes "
    "(4, 5)": (linear_bias_residual.linear_bias_residual, X, W, B, R[:, :4]),
    "residual has dtype torch.float16 and x torch.float32; they must have the same": (
        linear_bias_residual.fused_simple, X, W, B, R.half()),
    "weight has the shape (5, 6); with x of shape (4, 6) it takes (2, N, 6), gate and up, N being "
    "1 or more": (linear_swiglu.linear_swiglu, X, W),
    "down has the shape (5, 6); with weight of shape (2, 5, 6) it takes (J, 5), J being 1 or "
    "more": (
        swiglu_mlp.swiglu_mlp, X, G, W),
    "down has dtype torch.float16 and x torch.float32; they must have the same": (
        geglu_mlp.geglu_mlp, X, G, D.half()),
    "x has the shape (4, 6); it takes (B, S, K), K being 1 or more": (qkv.qkv, X, H),
    "weight has the shape (5, 6); with x of shape (1, 4, 6) it takes (T, H, D, 6), each 1 or "
    "more": (
        qkv.qkv, X[None], W),
    "bias has the shape (5,); with weight of shape (3, 2, 4, 6) it takes (3, 2, 4)": (
        qkv.qkv, X[None], H, B),
}  # fmt: skip


@pytest.mark.parametrize("sentence", REFUSED)
def test_what_is_not_taken_is_told_in_a_sentence(sentence):
    fn, *arguments = REFUSED[sentence]
    with pytest.raises((TypeError, ValueError), match=f"^{re.escape(sentence)}$"):
        fn(*arguments)


def test_second_derivatives_and_gradients_of_the_simple_kernels_are_refused():
    x = X.clone().requires_grad_()
    (dx,) = torch.autograd.grad(linear_swiglu.fused(x, G).square().sum(), x, create_graph=True)
    with pytest.raises(NotImplementedError, match="have no second derivative here|linear has no"):
        torch.autograd.grad(dx.sum(), x)
    for fn, *others in (
        (linear_bias_gelu.fused_simple, W, B),
        (linear_bias_residual.fused_simple, W, B, R),
        (linear_swiglu.fused_simple, G),
        (swiglu_mlp.fused_simple, G, D),
    ):
        with pytest.raises(RuntimeError, match=r"has no backward pass.* use the variant fused"):
            fn(x, *others)
