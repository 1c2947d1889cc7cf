"""GELU without erf: its slope is right, NaN stays NaN, and it takes fewer instructions."""

import math

import pytest
import torch
import triton
import triton.language as tl

from kernels.cuda.cuda_compile import no_compiler
from kernels.lab.counting.instructions import instructions
from kernels.launch import assume_capability, gluon, recording
from kernels.ops.chains import dropped
from kernels.ops.chains.gated import GELU_ERF
from kernels.ops.chains.gelu_by_power import gelu_erf_slope_by_power
from kernels.ops.epilogues import fp8, linear_bias_gelu
from kernels.registry import DTYPES

SEED = torch.tensor([3, 1])


@triton.jit
def slopes(h_ptr, slope_ptr, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(slope_ptr + at, gelu_erf_slope_by_power(tl.load(h_ptr + at)))


def test_the_slope_against_float64():
    h = torch.cat((torch.linspace(-20, 20, 4093), torch.tensor([-torch.inf, torch.inf, -0.0])))
    found = torch.empty_like(h)
    slopes[(1,)](h, found, BLOCK=4096)
    wide = h.double()
    density = torch.exp(-wide.square() / 2) / math.sqrt(2 * math.pi)
    exact = torch.special.ndtr(wide) + torch.where(wide.isinf(), 0.0, wide) * density
    assert (found.double() - exact).abs().max() <= 2.0**-20


@pytest.mark.skipif(no_compiler() is not None, reason=no_compiler() or "")
@pytest.mark.parametrize("back", [False, True])
def test_16_bits_take_fewer_instructions_on_hopper(back):
    counted = []
    for dtype in (DTYPES["bf16"], torch.float32):
        x = torch.empty(4096, dtype=dtype)
        with recording() as launches:
            if back:
                dropped.backward(x, x, SEED, 0.1, GELU_ERF)
            else:
                dropped.forward(x, None, SEED, 0.1, GELU_ERF)
        (launch,) = launches
        counted.append(instructions(launch, 90).total())
    by_power, by_erf = counted
    assert by_power < 0.65 * by_erf


def with_gelu(way, approximate="none", rows=64):
    x, weight = (torch.empty(n, 64, dtype=DTYPES["bf16"]) for n in (rows, 2048))
    return lambda: way(x, weight, None, approximate)


HALF = torch.empty(64, 64, dtype=DTYPES["bf16"])
KERNELS = {
    "forward": (lambda: dropped.forward(HALF, None, SEED, 0.1, GELU_ERF), 90),
    "forward, 7.5": (lambda: dropped.forward(HALF, None, SEED, 0.1, GELU_ERF), 75),
    "back": (lambda: dropped.backward(HALF, HALF, SEED, 0.1, GELU_ERF), 90),
    "a tile": (with_gelu(linear_bias_gelu.fused_simple), 90),
    "for Hopper": (with_gelu(linear_bias_gelu.fused_hopper, rows=8192), 90),
}


@pytest.mark.parametrize("name", KERNELS)
def test_nan_stays_nan(name):
    """As machines compute it: the interpreter's minimum of NaN is NaN whatever is asked."""
    run, capability = KERNELS[name]
    with assume_capability(capability), recording() as launches:
        run()
    (launch,) = launches
    assert (gluon.is_gluon(launch.kernel)) == (name == "for Hopper")
    ptx = launch.specialize(capability).compile().ptx
    bounded = [line for line in ptx.splitlines() if "0f41600000" in line.lower()]  # by 14
    assert bounded
    if capability >= 80:
        assert all("min.NaN.f32" in line for line in bounded)
        assert "min.f32" not in ptx
    else:
        assert "setp.nan" in ptx


def test_nan_stays_nan_in_8_bits():
    x = torch.empty(4, 64, dtype=DTYPES["bf16"])
    with assume_capability(90), recording() as launches:
        fp8.quantise(x)
    (launch,) = launches
    ptx = launch.specialize(90).compile().ptx
    assert ptx.count("min.NaN.f32") == ptx.count("max.NaN.f32") > 0
    assert "min.f32" not in ptx


def test_nan_keeps_its_gradient_behind_relu():
    x = torch.tensor([torch.nan, -1.0, 0.0, 2.0])
    dy = torch.tensor([3.0, 4.0, 5.0, 6.0])
    theirs = x.clone().requires_grad_()
    (right,) = torch.autograd.grad(torch.relu(theirs), theirs, dy)
    assert torch.equal(dropped.backward(dy, x, None, 0.0, "relu"), right)
