"""LayerNorm and a product in FP8: rows and their scales, the error, the bytes, the refusals."""

import pytest
import torch

from kernels.lab.counting import traffic
from kernels.launch import assume_capability, interpreting, recording
from kernels.ops.epilogues import fp8
from kernels.registry import DTYPES
from tests.ops.layouts import LAYOUTS


def given(m, k, n, seed=0, mean=0.0):
    generator = torch.Generator().manual_seed(seed)

    def random(*sizes):
        return torch.randn(*sizes, generator=generator)

    x, weight = random(m, k) + mean, random(n, k) * k**-0.5
    parameters = 1 + 0.2 * random(k), 0.2 * random(k), weight, random(n)
    return [one.bfloat16() for one in (x, *parameters)]


def off(got, exact):
    return float((got.double() - exact).norm() / exact.norm())


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
def test_a_row_ends_at_448_and_is_off_by_a_sixteenth_at_most(dtype, layout):
    x = torch.randn(5, 77) * torch.logspace(-3, 3, 5)[:, None]
    x = layout(x.to(dtype))
    rows = fp8.quantise(x)
    assert torch.equal(rows.values.float().abs().amax(-1), torch.full((5,), 448.0))
    exact, found = x.double(), fp8.dequantised(rows)
    # The least number that is not rounded to fewer bits is 2⁻⁶.
    least = 2.0**-6 * rows.scales.double()[:, None]
    assert ((found - exact).abs() <= torch.maximum(exact.abs(), least) / 16 * (1 + 1e-6)).all()


def test_rows_of_zeros_and_no_rows():
    rows = fp8.quantise(torch.zeros(2, 16))
    assert not rows.values.float().any()
    assert rows.scales.gt(0).all()
    assert fp8.quantise(torch.zeros(0, 16)).values.shape == (0, 16)


@pytest.mark.parametrize("mean", [0.0, 100.0])
def test_the_norm_is_quantised_as_it_would_be_rounded(mean):
    x, weight, bias, *_ = given(6, 100, 16, mean=mean)
    rows = fp8.layernorm_fp8(x, weight, bias)
    wide = (one.double() for one in (weight, bias))
    exact = torch.nn.functional.layer_norm(x.double(), (100,), *wide)
    assert off(fp8.dequantised(rows), exact) < 0.035  # 1/16 is its largest error
    again = fp8.quantise(exact.float())
    assert off(fp8.dequantised(rows), fp8.dequantised(again)) < 1e-2


@pytest.mark.parametrize("shape", [(8, 64, 48), (5, 256, 32), (3, 16, 16)], ids=str)
def test_the_product_is_off_as_much_as_it_says(shape):
    x, norm_weight, norm_bias, weight, bias = given(*shape)
    exact = fp8.reference(x, norm_weight, norm_bias, weight, bias)
    quantised = fp8.quantise(weight)
    y = fp8.layernorm_fp8_linear(x, norm_weight, norm_bias, quantised, bias)
    assert (y.shape, y.dtype) == ((shape[0], shape[2]), torch.bfloat16)
    assert off(y, exact) < 0.06
    rows = fp8.layernorm_fp8(x, norm_weight, norm_bias)
    own = fp8.dequantised(rows) @ fp8.dequantised(quantised).T + bias.double()
    assert off(y, own) < 2.0**-8  # all but the rounding of y comes from the quantised factors
    both = fp8.layernorm_fp8_linear(x, norm_weight, norm_bias, quantised, bias, fp8_output=True)
    assert both.values.dtype == torch.float8_e4m3fn
    assert off(fp8.dequantised(both), y.double()) < 0.035
    batch = fp8.layernorm_fp8_linear(x[None], norm_weight, norm_bias, quantised, bias)
    assert torch.equal(batch[0], y)


def test_one_launch_reads_a_row_once_and_writes_half_the_bytes():
    x, weight, bias, *_ = given(6, 128, 16)
    with interpreting() as launches:
        fp8.layernorm_fp8(x, weight, bias)
    ledger = traffic.ledger_of(launches)
    assert ledger.launches == 1
    assert ledger.bytes_unique == 6 * 128 * 2 + 2 * 128 * 2 + 6 * 128 + 6 * 4


@pytest.mark.parametrize("capability", [89, 90, 100, 120])
@pytest.mark.parametrize("k", [1024, 4096, 16384, 1000])
def test_it_compiles_without_a_spill(capability, k):
    x, weight = torch.empty(64, k, dtype=torch.bfloat16), torch.empty(k, dtype=torch.bfloat16)
    with assume_capability(capability), recording() as launches:
        fp8.layernorm_fp8(x, weight, weight)
    (launch,) = launches
    assert launch.specialize(capability).compile().stack_bytes == 0


def test_what_it_does_not_take_is_told_in_a_sentence():
    x, norm_weight, norm_bias, weight, bias = given(4, 32, 16)
    quantised = fp8.quantise(weight)

    def call(x, quantised):
        return fp8.layernorm_fp8_linear(x, norm_weight, norm_bias, quantised, bias)

    with pytest.raises(TypeError, match="x has dtype torch.float32; products in FP8 take"):
        call(x.float(), quantised)
    with pytest.raises(ValueError, match="weight has rows of 16; .* it takes 32"):
        call(x, fp8.quantise(weight[:, :16]))
    with pytest.raises(ValueError, match=r"weight has the shape \(15, 32\); .* multiples of 16"):
        call(x, fp8.quantise(weight[:15]))
    with pytest.raises(ValueError, match="x has rows of 16385; one may have 16384 at most"):
        fp8.quantise(torch.zeros(1, 16385))
    with pytest.raises(RuntimeError, match="layernorm_fp8_linear has no backward pass"):
        call(x.clone().requires_grad_(), quantised)
    told = "products in FP8 need compute capability 8.9 or later; this GPU has 8.0"
    with assume_capability(80):
        assert fp8.needs_fp8(torch.device("cuda", 0)) == told
    with assume_capability(89):
        assert fp8.needs_fp8(torch.device("cuda", 0)) is None
    assert fp8.needs_fp8(torch.device("cpu")) is None
