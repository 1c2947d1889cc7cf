"""Dropouts that sum a bias's gradient on the way back: beside float64 and launches of their own."""

import pytest
import torch

from kernels.ops.chains import dropped, dropped_sums
from kernels.ops.layers import stochastic
from kernels.ops.norms.backward import backward as norm_backward

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
]
DTYPES = (torch.bfloat16, torch.float16, torch.float32)


def random(*shape, seed, dtype):
    generator = torch.Generator("cuda").manual_seed(seed)
    return torch.randn(*shape, device="cuda", generator=generator).to(dtype)


def seed_offset():
    return torch.tensor([2**40 + 5, 7], device="cuda")


def near(found, terms, each=2.0**-22):
    """Whether sums (N,) are those of terms (R, N), each so near, added in fp32, rounded once."""
    unit, exact = torch.finfo(found.dtype).eps, terms.sum(0)
    bound = unit * exact.abs() + each * terms.abs().sum(0) + 1e-6
    assert ((found.double() - exact).abs() <= bound).all()


@pytest.mark.proves("kernels.ops.chains.dropped_sums", "kernels.ops.chains.dropped_sums_kernels")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("activation", ["", "relu", "gelu_tanh", "gelu_erf"])
@pytest.mark.parametrize("shape", [(16384, 4096), (4100, 1000), (1024, 768), (3, 8)], ids=str)
def test_the_same_gradient_and_its_sums(shape, activation, dtype):
    dy, x = (random(*shape, seed=n, dtype=dtype) for n in (1, 2))
    told = dy, x if activation else None, seed_offset(), 0.1, activation
    dx, sums = dropped_sums.backward(*told)
    assert torch.equal(dx, dropped.backward(*told))
    # Those of fp32 before they are rounded. In 16 bits a slope is right to 2⁻²⁰, of 1 and not of
    # itself; two thirds of the terms have one of more than a quarter.
    wide = (one.float() if isinstance(one, torch.Tensor) and one.is_floating_point() else one
            for one in told)  # fmt: skip
    near(sums, dropped.backward(*wide).double(), each=2.0**-18)
    again = dropped_sums.backward(*told)
    assert all(map(torch.equal, (dx, sums), again))


@pytest.mark.proves("kernels.ops.chains.dropped_sums", "kernels.ops.chains.dropped_sums_kernels")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("added", [True, False])
@pytest.mark.parametrize("shape", [(16384, 1024), (4099, 1000), (512, 2048), (5, 16)], ids=str)
def test_through_a_norm_in_one_launch(shape, added, dtype):
    dy, dh, h = (random(*shape, seed=n, dtype=dtype) for n in range(3))
    weight, bias = (random(shape[1], seed=n, dtype=dtype) for n in (3, 4))
    mean = h.float().mean(-1)
    inv_std = torch.rsqrt(h.float().var(-1, unbiased=False) + 1e-5)
    told = dy, dh if added else None, h, weight, bias, mean, inv_std
    found = dropped_sums.norm_backward(*told, seed_offset(), 0.1)
    through, _, _ = norm_backward(*told, wants_weight=True, wants_bias=True)
    # Sums along a row are added in another order.
    assert ((found[0] - through).abs() <= torch.finfo(dtype).eps * through.abs() + 2.0**-18).all()
    x_hat = (h.double() - mean.double()[:, None]) * inv_std.double()[:, None]
    near(found[2], dy.double() * x_hat)
    near(found[3], dy.double())
    # What is dropped is what was stored.
    assert torch.equal(found[1], dropped.backward(found[0], None, seed_offset(), 0.1, ""))
    passed_on = dropped.backward(found[0].float(), None, seed_offset(), 0.1, "").double()
    near(found[4], passed_on)
    again = dropped_sums.norm_backward(*told, seed_offset(), 0.1)
    assert all(map(torch.equal, found, again))
    known = stochastic.sums_for(shape[1], "cuda")
    for _ in range(3):  # by atomics, in whatever order
        by_atomics = dropped_sums.norm_backward(*told, seed_offset(), 0.1, known)
        assert all(map(torch.equal, found[:2], by_atomics[:2]))
        near(by_atomics[2], dy.double() * x_hat)
        near(by_atomics[3], dy.double())
        near(
            by_atomics[4], dropped.backward(found[0].float(), None, seed_offset(), 0.1, "").double()
        )
        assert not known.any()


@pytest.mark.proves("kernels.ops.chains.dropped_sums", "kernels.ops.chains.dropped_sums_kernels")
def test_nan_stays_in_its_column():
    dy = random(3000, 512, seed=1, dtype=torch.bfloat16)
    x = dy.clone()
    dy[17, 40] = float("nan")
    for activation in ("", "relu", "gelu_erf"):
        dx, sums = dropped_sums.backward(
            dy, x if activation else None, seed_offset(), 2**-16, activation
        )
        assert dx[17, 40].isnan()
        assert sums.isnan().nonzero().flatten().tolist() == [40]
