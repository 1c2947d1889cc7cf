"""LayerNorm and a product in FP8 on a card: as near as 3 bits allow, on inputs of every kind."""

import pytest
import torch

from kernels.ops.epilogues import fp8

FP8 = torch.cuda.is_available() and torch.cuda.get_device_capability() >= fp8.FROM
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not FP8, reason="needs a GPU of compute capability 8.9 or later"),
]


def given(m, k, n, mean=0.0, seed=0):
    generator = torch.Generator("cuda").manual_seed(seed)

    def random(*sizes):
        return torch.randn(*sizes, generator=generator, device="cuda")

    told = random(m, k) + mean, 1 + 0.2 * random(k), 0.2 * random(k), random(n, k) * k**-0.5
    return [one.bfloat16() for one in (*told, random(n))]


def off(got, exact):
    return float((got.double() - exact).norm() / exact.norm())


@pytest.mark.proves("kernels.ops.epilogues.fp8")
@pytest.mark.parametrize("mean", [0.0, 100.0])
@pytest.mark.parametrize("shape", [(4096, 1024, 3072), (1000, 528, 784), (77, 4096, 272)], ids=str)
def test_the_error_is_that_of_two_factors_in_e4m3(shape, mean):
    x, norm_weight, norm_bias, weight, bias = given(*shape, mean=mean)
    exact = fp8.reference(x, norm_weight, norm_bias, weight, bias)
    known = fp8.quantise(weight)
    y = fp8.layernorm_fp8_linear(x, norm_weight, norm_bias, known, bias)
    assert 0.01 < off(y, exact) < 0.045
    # What is quantised is all that it loses: the product of those is exact but for bf16.
    rows = fp8.layernorm_fp8(x, norm_weight, norm_bias)
    product = fp8.dequantised(rows) @ fp8.dequantised(known).T + bias.double()
    assert off(fp8.scaled_product(rows, known, bias, fast_sums=False), product) < 2.0**-8
    out = fp8.layernorm_fp8_linear(x, norm_weight, norm_bias, known, bias, fp8_output=True)
    assert off(fp8.dequantised(out), exact) < 0.055
    assert torch.equal(y, fp8.layernorm_fp8_linear(x, norm_weight, norm_bias, known, bias))


@pytest.mark.proves("kernels.ops.epilogues.fp8")
def test_rows_apart_and_of_zeros():
    x, norm_weight, norm_bias, *_ = given(64, 1024, 16)
    apart = torch.cat([x, x], 1)[:, :1024]
    ours, theirs = (fp8.layernorm_fp8(one, norm_weight, norm_bias) for one in (apart, x))
    assert torch.equal(ours.values.view(torch.uint8), theirs.values.view(torch.uint8))
    assert torch.equal(ours.scales, theirs.scales)
    assert not fp8.quantise(torch.zeros_like(x)).values.float().any()


@pytest.mark.proves("kernels.ops.epilogues.fp8")
def test_nan_stays_nan():
    x, norm_weight, norm_bias, *_ = given(64, 1024, 16)
    x[3, 7] = float("nan")
    lost = fp8.quantise(x).values.float().isnan()
    assert lost.nonzero().tolist() == [[3, 7]]
    normed = fp8.layernorm_fp8(x, norm_weight, norm_bias).values.float().isnan()
    assert normed[3].all()
    assert normed.any(-1).sum() == 1
