"""GELU's slope without erf: right to 16 bits and far beyond, in fewer instructions."""

import math

import pytest
import torch
import triton
import triton.language as tl

from kernels.cuda.cuda_compile import no_compiler
from kernels.lab.counting.instructions import instructions
from kernels.launch import recording
from kernels.ops.chains import dropped
from kernels.ops.chains.gated import GELU_ERF
from kernels.ops.chains.gelu_by_power import gelu_erf_slope_by_power
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
