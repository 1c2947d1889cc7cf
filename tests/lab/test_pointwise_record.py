"""What the recorded suite `pointwise` must show, on every card on which it has the norms' chains.

The bounds are those that the operations were built to; a run that misses one is not recorded, or
the bound is lowered here with the reason beside it. Ratios are the paired ones of the cell, sample
by sample; where a cell has none, of medians.
"""

import pytest

from kernels.lab.records.data import recordings
from tests.lab.recorded_ratios import ratio

NORM, NORM_GELU = "layernorm_gelu_dropout_residual", "layernorm_gelu"
BIAS = "bias_gelu_dropout_residual"
RECORDED = [one for one in recordings("pointwise") if one.select(op=NORM, variant="fused")]
pytestmark = pytest.mark.skipif(
    not RECORDED, reason="not recorded yet: python -m kernels.lab bench pointwise"
)

LARGE, MLP = "16384x8192", "8192x14336"


@pytest.fixture(params=RECORDED, ids=lambda one: one.gpu)
def card(request):
    return request.param


def test_a_norm_in_front(card):
    assert ratio(card, NORM, LARGE, "fused", "copy") >= 0.80
    assert ratio(card, NORM, LARGE, "fused", "compile") >= 2.0
    assert ratio(card, NORM, LARGE, "fused", "copy", options="p=0") >= 0.92
    assert ratio(card, NORM_GELU, LARGE, "fused", "copy") >= 0.95


def test_a_norm_in_front_going_back(card):
    assert ratio(card, NORM, LARGE, "fused", "compile", pass_="bwd") >= 1.5
    assert ratio(card, NORM, LARGE, "fused", "copy", pass_="bwd") >= 0.75


def test_what_is_added_to_a_norms_backward_costs_time_and_no_bytes(card):
    """A norm's backward, that of a norm and GELU, and of the whole chain: the same three tensors.

    Each reaches less of the copy than the one before: it has more to compute meanwhile.
    """
    (norms,) = (one for one in recordings("norms") if one.gpu == card.gpu)
    cells = [(norms, "layernorm"), (card, NORM_GELU), (card, NORM)]
    shares = [ratio(one, op, LARGE, "fused", "copy", pass_="bwd") for one, op in cells]
    assert shares == sorted(shares, reverse=True), shares
    ideal = [
        one.one(op=op, shape=LARGE, pass_="bwd", dtype="bf16", variant="fused", timing="graph")
        for one, op in cells
    ]
    assert max(row.bytes_ideal for row in ideal) < 1.001 * min(row.bytes_ideal for row in ideal)


def test_dropout_takes_issue_slots_and_bandwidth_goes_idle(card):
    """Forward, with and without it, as Nsight Compute counted: the bytes differ by the seed."""
    with_it, without = (
        kernel
        for options in ("", "p=0")
        for cell in card.provenance["profile"]["cells"]
        if (cell["op"], cell["variant"], cell["shape"], cell["dtype"], cell["pass_"])
        == (NORM, "fused", LARGE, "bf16", "fwd")
        and cell.get("options", "") == options
        for kernel in cell["kernels"]
    )
    moved = [kernel["dram_read"] + kernel["dram_write"] for kernel in (with_it, without)]
    assert moved[0] == pytest.approx(moved[1], rel=0.02)
    assert with_it["issue_pct"] > 1.2 * without["issue_pct"]
    assert with_it["dram_pct"] < 0.85 * without["dram_pct"]


def test_the_chain_is_no_slower_in_triton_than_by_hand(card):
    assert ratio(card, BIAS, LARGE, "fused", "fused_cuda") >= 0.97


@pytest.mark.parametrize("pass_", ["fwd", "bwd"])
def test_swiglu(card, pass_):
    assert ratio(card, "swiglu", MLP, "fused", "copy", pass_=pass_) >= 0.95
    for other in ("liger", "compile"):
        assert ratio(card, "swiglu", MLP, "fused", other, pass_=pass_) >= 0.98, other
