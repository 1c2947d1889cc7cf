"""`stochastic_mode`: norms that go back by atomics, against float64, counted, compiled."""

import copy
import functools

import pytest
import torch

from kernels.lab.counting import aten
from kernels.launch import assume_capability, recording
from kernels.ops.layers import stochastic
from kernels.ops.layers.encoder_layer import FusedEncoderLayer
from kernels.ops.norms import layernorm
from kernels.ops.norms.backward import shared_out
from kernels.ops.shared import operators
from tests.ops.test_encoder_counted import X, made, names, trained
from tests.ops.test_encoder_layer import both_ways, exact_and_near, off, random
from tests.ops.test_encoder_layer import made as made_off_its_beginning

BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32
UNIT = {dtype: torch.finfo(dtype).eps / 2 for dtype in (BF16, FP16, FP32)}


def given(rows, n_cols, dtype, added=True, biased=True):
    """Arguments of the operator, with the statistics of x, and sums that begin as zeros."""
    generator = torch.Generator().manual_seed(rows + n_cols)

    def normal(*size):
        return torch.randn(*size, generator=generator)

    x = (0.5 + 1.5 * normal(rows, n_cols)).to(dtype)
    mean = x.float().mean(-1)
    inv_std = torch.rsqrt(x.float().var(-1, unbiased=False) + 1e-5)
    dy, dh = (normal(rows, n_cols).to(dtype) for _ in range(2))
    weight, bias = ((1 + 0.5 * normal(n_cols)).to(dtype) for _ in range(2))
    sums = stochastic.sums_for(n_cols)
    return [
        *(dy, dh if added else None, x, weight, bias if biased else None),
        *(mean, inv_std, sums),
    ]


def exact(dy, dh, x, weight, bias, *_):
    """(dx, dweight, dbias) in float64, by autograd through the reference."""
    leaves = [
        one.double().requires_grad_() for one in (x, weight) + (() if bias is None else (bias,))
    ]
    y = layernorm.reference(*leaves[:2], leaves[2] if bias is not None else None)
    dx, *others = torch.autograd.grad(y, leaves, dy.double())
    return [dx if dh is None else dx + dh.double(), *others]


@pytest.mark.parametrize("dtype", UNIT, ids=str)
@pytest.mark.parametrize(
    ("rows", "n_cols", "added", "biased"),
    [(1, 16, True, True), (11, 24, False, True), (16, 17, True, False), (13, 1000, True, True)],
)
def test_it_is_right_and_leaves_zeros_behind(rows, n_cols, added, biased, dtype, monkeypatch):
    three = functools.partial(shared_out, most=3, block_rows=1)  # programs, several rows each
    monkeypatch.setattr(stochastic, "shared_out", lambda rows, *_: three(rows))
    arguments = given(rows, n_cols, dtype, added, biased)
    assert stochastic.adds(arguments[2])
    for _ in range(2):  # a second launch begins with what the first one left
        found = stochastic.back_adding(*arguments)
        assert not arguments[-1].any()
        for one, truth in zip(found, exact(*arguments), strict=False):
            assert one.dtype == dtype
            assert off(one, truth) <= 2 * UNIT[dtype] + 2.0**-19


def test_sums_that_did_not_begin_as_zeros_are_seen():
    arguments = given(11, 24, FP32)
    arguments[-1].view(FP32)[3] = 1.0
    dx, dweight, _ = stochastic.back_adding(*arguments)
    truth = exact(*arguments)
    assert off(dx, truth[0]) < 2.0**-18
    assert off(dweight, truth[1]) > 2.0**-10


def test_where_one_launch_is_enough_the_order_stays_fixed():
    few, many = (torch.empty(rows, 16, dtype=BF16) for rows in (128, 4096))
    assert not stochastic.adds(few)
    assert stochastic.adds(many)
    assert not stochastic.adds(torch.empty(12, stochastic.WIDEST + 1))
    arguments = given(128, 16, BF16)
    arguments[-1].fill_(7)  # not touched
    found = stochastic.back_adding(*arguments)
    assert bool((arguments[-1] == 7).all())
    for one, truth in zip(found, exact(*arguments), strict=True):
        assert off(one, truth) <= 2 * UNIT[BF16] + 2.0**-19


@pytest.mark.parametrize("norm_first", [True, False], ids=["pre", "post"])
def test_a_step_takes_two_launches_less(norm_first):
    forward, back = aten.count_training(made(norm_first=norm_first), X)
    ours, ours_back = aten.count_training(made(norm_first=norm_first, stochastic_mode=True), X)
    assert names(ours) == names(forward)
    wanted = [one for one in names(back) if one != "sum_partials"]
    wanted = ["norm_backward_adding" if one == "norm_backward_rows" else one for one in wanted]
    assert names(ours_back) == wanted
    assert len(back.steps) - len(ours_back.steps) == 2


@pytest.mark.parametrize("norm_first", [True, False], ids=["pre", "post"])
@pytest.mark.parametrize("dtype", [BF16, FP32], ids=str)
def test_all_gradients_are_as_near_as_pytorchs(norm_first, dtype):
    layer = made_off_its_beginning(norm_first=norm_first, dropout=0.3, stochastic_mode=True)
    layer = layer.to(dtype)
    x = random(2, 6, 16, dtype=dtype)
    dy = random(2, 6, 16, dtype=dtype, seed=3)
    truth, near = exact_and_near(layer, x, dy, {}, seed=9)
    torch.manual_seed(9)
    ours = both_ways(layer, layer, x, dy)
    for one, other, whole in zip(ours, near, truth, strict=True):
        assert off(one, whole) <= 2 * off(other, whole) + 2.0**-20


def test_without_dropout_and_in_inference_nothing_changes():
    plain, ours = (made(dropout=0.0, stochastic_mode=one) for one in (False, True))
    assert [names(one) for one in aten.count_training(ours, X)] == [
        names(one) for one in aten.count_training(plain, X)
    ]
    layer, other = (made(stochastic_mode=one).eval() for one in (True, False))
    with torch.no_grad():
        assert torch.equal(layer(X), other(X))


@pytest.mark.parametrize("norm_first", [True, False], ids=["pre", "post"])
def test_compiled_whole(norm_first):
    layer = made_off_its_beginning(norm_first=norm_first, dropout=0.3, stochastic_mode=True)
    whole = torch.compile(layer, fullgraph=True, backend="aot_eager")
    x, dy = random(2, 6, 16), random(2, 6, 16, seed=3)
    found = []
    for call in (layer, whole):
        torch.manual_seed(2)
        found.append(both_ways(layer, call, x, dy))
    assert not layer._sums.any()
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other)


def test_with_both_flags_too():
    flags = {"gelu_checkpoint": True, "attn_dropout_checkpoint": True}
    for norm_first in (True, False):
        told = {"norm_first": norm_first}
        for one, other in zip(
            trained(X, **told), trained(X, **told, **flags, stochastic_mode=True), strict=True
        ):
            torch.testing.assert_close(one, other, rtol=2.0**-7, atol=1e-5)


def test_the_sums_are_no_state_and_each_copy_has_its_own():
    layer, plain = made(stochastic_mode=True), made()
    assert list(layer.state_dict()) == list(plain.state_dict())
    layer.load_state_dict(plain.state_dict())
    copied = copy.deepcopy(layer).to(FP32)
    assert copied._sums.dtype == torch.int32
    assert copied._sums.data_ptr() != layer._sums.data_ptr()
    assert plain._sums is None
    assert not FusedEncoderLayer(16, 2).stochastic_mode


@pytest.mark.parametrize(
    ("capability", "dtype"), [(75, FP16), (75, FP32), (80, BF16), (90, BF16), (90, FP32)], ids=str
)
def test_it_compiles_without_a_spill(capability, dtype):
    for n_cols in (768, 1024, stochastic.WIDEST):
        arguments = given(4096, n_cols, dtype)
        with assume_capability(capability), recording() as launches:
            stochastic.back_adding(*arguments)
        (launch,) = launches
        assert launch.name == "norm_backward_adding"
        assert launch.specialize(capability).compile().stack_bytes == 0, n_cols


def test_a_count_begins_with_sums_that_are_zeros():
    """Whatever random numbers stand in its other arguments."""
    for seed in range(4):
        layer = made(norm_first=True, stochastic_mode=True)
        torch.manual_seed(seed)
        _, back = aten.count_training(layer, random(1, 8, 16, dtype=BF16).requires_grad_())
        assert names(back).count("norm_backward_adding") == 2


@pytest.mark.parametrize("rows", [13, 128])
def test_the_short_way_gives_the_same_bits(rows, monkeypatch):
    """Of many rows by atomics, of few in a fixed order; each launch is kept and made again."""
    calls = [given(rows, 24, BF16), given(rows, 24, BF16)]
    calls[1][0] = calls[1][0].flip(0)
    wanted = [stochastic.back_adding(*arguments) for arguments in calls]
    monkeypatch.setattr(operators, "SHORT_WHERE", "is_cpu")
    for _ in range(2):
        for arguments, expected in zip(calls, wanted, strict=True):
            for one, other in zip(stochastic.back_adding(*arguments), expected, strict=True):
                assert torch.equal(one, other)
            assert not arguments[-1].any()
