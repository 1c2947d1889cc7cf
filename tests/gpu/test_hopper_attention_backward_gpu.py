"""Attention's backward written for Hopper, on a card: right at any length, for grouped heads."""

import pytest
import torch

from kernels.ops.attention.attention import reference
from kernels.ops.attention.backward import backward
from kernels.ops.attention.formula import Given
from kernels.ops.attention.forward import forward

if torch.cuda.is_available() and torch.cuda.get_device_capability() == (9, 0):
    from kernels.ops.attention import hopper_backward
else:
    hopper_backward = None
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(hopper_backward is None, reason="needs a GPU of compute capability 9.0"),
]
SHAPES = [
    (1, 1, 1, 1, 1),
    (2, 3, 3, 128, 128),
    (2, 4, 2, 100, 300),
    (1, 6, 1, 640, 640),
    (2, 3, 3, 300, 100),  # causal, the first 200 queries see no key
    (1, 5, 5, 1153, 1153),
    (3, 8, 4, 2048, 2048),
    (1, 2, 2, 1, 4099),
]


def launched(given, out, lse, d_out, d_lse):
    found = [torch.full_like(one, float("nan")) for one in given[:3]]
    told = {"scale": given.scale, "causal": given.causal}
    hopper_backward.launch(*given[:3], out, lse, d_out, d_lse, *found, **told)
    return found


@pytest.mark.proves(
    "kernels.ops.attention.hopper_backward",
    "kernels.ops.attention.hopper_backward_kernels",
    "kernels.ops.attention.hopper_dq_kernels",
)
@pytest.mark.parametrize("d", [64, 128])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("b", "h", "hk", "sq", "sk"), SHAPES)
def test_against_float64(b, h, hk, sq, sk, d, causal):
    g = torch.Generator("cuda").manual_seed(sq + sk)
    for dtype, spread in ((torch.bfloat16, 1.0), (torch.float16, 1.0), (torch.bfloat16, 3.0)):
        q, k, v = (
            (spread * torch.randn(size, device="cuda", generator=g)).to(dtype)
            for size in ((b, h, sq, d), (b, hk, sk, d), (b, hk, sk, d))
        )
        d_out = torch.randn(q.shape, device="cuda", generator=g).to(dtype)
        d_lse = torch.randn(q.shape[:3], device="cuda", generator=g)
        given = Given(q, k, v, causal=causal, scale=d**-0.5, want_lse=True)
        out, lse = forward(*given)
        d_lse[lse == -torch.inf] = 0
        found = launched(given, out, lse, d_out, d_lse)
        in_triton = backward(given, out, lse, d_out, d_lse, False)
        wide = [t.double().requires_grad_() for t in (q, k, v)]
        outs = reference(*wide, causal=causal, return_lse=True)
        truth = torch.autograd.grad(outs, wide, (d_out.double(), d_lse.double()))
        unit = torch.finfo(dtype).eps / 2
        for one, other, exact in zip(found, in_triton, truth, strict=False):
            bound = max(2 * (other - exact).norm(), unit * exact.norm())
            assert (one - exact).norm() <= bound + 1e-3
        for one, again in zip(found, launched(given, out, lse, d_out, d_lse), strict=True):
            assert torch.equal(one, again)
