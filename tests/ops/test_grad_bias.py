"""The gradient of a bias: sums over rows, in one launch or two, counted, beside float64."""

import pytest
import torch

from kernels.lab.counting import traffic
from kernels.lab.counting.aot import TARGETS
from kernels.launch import assume_capability, interpreting, recording
from kernels.ops.products.bias import LEAST_ROWS, MOST_AT_ONCE, MOST_PARTS, grad_bias, parts_of
from kernels.ops.products.moves import grad_bias_moves
from kernels.ops.products.operators import gradients

SHAPES = [(1, 1), (31, 129), (256, 128), (257, 40), (1000, 264), (3, 400, 65)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_against_float64(shape, dtype):
    dy = torch.randn(shape, generator=torch.Generator().manual_seed(3)).to(dtype)
    exact = dy.double().reshape(-1, shape[-1]).sum(0)
    added_up = 2.0**-22 * dy.double().abs().reshape(-1, shape[-1]).sum(0)
    assert ((grad_bias(dy) - exact).abs() <= torch.finfo(dtype).eps * exact.abs() + added_up).all()


def test_rows_with_gaps_and_no_rows():
    wide = torch.randn(1700, 50)
    assert torch.allclose(grad_bias(wide[:, 3:40]), wide[:, 3:40].sum(0), atol=1e-4)
    assert torch.equal(grad_bias(wide[::2].T), grad_bias(wide[::2].T.contiguous()))
    assert torch.equal(grad_bias(wide[:0]), torch.zeros(50))


@pytest.mark.parametrize("n_rows", [1, 255, 256, 257, 1000, 16384, 1 << 20])
@pytest.mark.parametrize("n_cols", [1, 128, 1000, 4096, 1 << 17])
def test_parts_hold_every_row_once_and_none_is_empty(n_rows, n_cols):
    parts, each = parts_of(n_rows, n_cols, 132)
    assert (parts - 1) * each < n_rows <= parts * each
    assert parts <= MOST_PARTS
    assert each >= LEAST_ROWS if parts > 1 else n_rows <= MOST_AT_ONCE or n_cols >= 1 << 17


@pytest.mark.parametrize("shape", [(100, 136), (2, 700, 136), (1100, 40)], ids=str)
def test_its_formula_moves_what_its_kernel_does(shape):
    dy = torch.randn(shape).to(torch.bfloat16)
    with interpreting() as launches:
        grad_bias(dy)
    ledger, told = traffic.ledger_of(launches), grad_bias_moves(dy)
    assert [step.name for step in ledger] == [step.name for step in told.steps]
    assert [step.grid for step in ledger] == [step.grid for step in told.steps]
    assert (ledger.bytes_unique, ledger.bytes_requested) == (told.unique, told.requested)
    assert len(told.steps) == (1 if shape == (100, 136) else 2)


def test_the_way_back_by_pytorchs_products_takes_it():
    x, weight, bias = torch.randn(40, 24), torch.randn(16, 24), torch.randn(16)
    dy = torch.randn(40, 16)
    told = gradients(dy, x, weight, (True, True, True), "torch", "torch")
    leaves = [one.clone().requires_grad_() for one in (x, weight, bias)]
    torch.nn.functional.linear(*leaves).backward(dy)
    for one, leaf in zip(told, leaves, strict=True):
        assert torch.allclose(one, leaf.grad, atol=1e-4)


@pytest.mark.parametrize("card", TARGETS)
def test_it_compiles_for_every_card_without_a_spill(card):
    """No registered operation launches it where there is no GPU."""
    with assume_capability(card), recording() as launches:
        grad_bias(torch.empty(4096, 1000, dtype=torch.float16))
    assert [launch.name for launch in launches.seen] == ["column_sums", "column_sums"]
    for launch in launches.seen:
        assert launch.specialize(card).compile().stack_bytes == 0
