"""Attention's backward written for Hopper, on a card: right at any length, for grouped heads."""

import pytest
import torch

from kernels.ops.attention import dropped_bits
from kernels.ops.attention.attention import reference
from kernels.ops.attention.backward import backward
from kernels.ops.attention.formula import Given
from kernels.ops.attention.forward import forward
from kernels.philox import kept_elements
from kernels.philox import scale as drop_scale

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


def dropped(q, k, v, causal, p, seed_offset):
    """Attention in q's dtype with the mask of `kernels.philox`, in PyTorch's operators."""
    (b, h, sq, d), (hk, sk) = q.shape, k.shape[1:3]
    k, v = (one.repeat_interleave(h // hk, 1) for one in (k, v))
    scores = q @ k.transpose(-1, -2) * d**-0.5
    if causal:
        rows, keys = (torch.arange(n, device=q.device) for n in (sq, sk))
        scores = scores.masked_fill(keys > rows[:, None] + sk - sq, -torch.inf)
    weights = torch.softmax(scores, -1).nan_to_num(0.0)
    stays = kept_elements((b, h, sq, -(-sk // 8) * 8), p, seed_offset)[..., :sk]
    return (weights * stays * drop_scale(p)) @ v


@pytest.mark.proves(
    "kernels.ops.attention.hopper",
    "kernels.ops.attention.hopper_kernels",
    "kernels.ops.attention.hopper_producer",
    "kernels.ops.attention.hopper_dropout",
    "kernels.ops.attention.hopper_backward",
    "kernels.ops.attention.hopper_backward_kernels",
    "kernels.ops.attention.hopper_dq_kernels",
    "kernels.ops.attention.dropped_bits_kernels",
)
@pytest.mark.parametrize("p", [0.1, 0.5])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(
    ("b", "h", "hk", "sq", "sk"), [*SHAPES[:6], (2, 4, 2, 512, 512), (2, 3, 3, 77, 1000)]
)
def test_dropout_against_float64(b, h, hk, sq, sk, causal, p, monkeypatch):
    """The mask of `kernels.philox` forward and back, whole or some heads at a time."""
    g = torch.Generator("cuda").manual_seed(sq + sk)
    seed_offset = torch.tensor([2**40 + 17, 3], dtype=torch.int64, device="cuda")
    for dtype in (torch.bfloat16, torch.float16):
        q, k, v, d_out = (
            torch.randn(size, device="cuda", generator=g).to(dtype)
            for size in ((b, h, sq, 64), (b, hk, sk, 64), (b, hk, sk, 64), (b, h, sq, 64))
        )
        given = Given(
            *(q, k, v), causal=causal, scale=0.125, dropout_p=p, seed_offset=seed_offset,
            want_lse=True, by_hand=True,
        )  # fmt: skip
        plain = given._replace(by_hand=False)
        out, lse = forward(*given)
        in_triton, lse_in_triton = forward(*plain)
        torch.testing.assert_close(lse, lse_in_triton, rtol=1e-5, atol=1e-5)
        wide = [one.double().requires_grad_() for one in (q, k, v)]
        exact = dropped(*wide, causal, p, seed_offset)
        truth = (exact.detach(), *torch.autograd.grad(exact, wide, d_out.double()))
        told = (given, out, lse, d_out, None, False)
        found = (out, *backward(*told)[:3])
        other = (in_triton, *backward(plain, *told[1:])[:3])
        unit = torch.finfo(dtype).eps / 2
        for one, another, right in zip(found, other, truth, strict=True):
            bound = max(2 * (another - right).norm(), unit * right.norm())
            assert (one - right).norm() <= bound + 1e-3
        assert torch.equal(out, forward(*given)[0])
        monkeypatch.setattr(dropped_bits, "MOST_MADE", 1)  # a key head at a time
        for one, again in zip(found[1:], backward(*told)[:3], strict=True):
            assert torch.equal(one, again)
        monkeypatch.undo()


@pytest.mark.proves(
    "kernels.ops.attention.hopper_kernels",
    "kernels.ops.attention.hopper_dropout",
    "kernels.ops.attention.hopper_producer",
    "kernels.ops.attention.dropped_bits_kernels",
)
@pytest.mark.parametrize("p", [2**-16, 0.1, 0.75])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(
    ("b", "h", "hk", "sq", "sk"),
    [
        *((2, 3, 3, 333, 500), (1, 4, 2, 512, 512), (2, 2, 1, 77, 200)),
        *((4, 16, 8, 700, 333), (16, 16, 16, 256, 40)),  # several tiles of queries a program
    ],
)
def test_a_forward_leaves_the_bits_that_a_backward_makes(b, h, hk, sq, sk, causal, p):
    g = torch.Generator("cuda").manual_seed(sq + sk)
    q, k, v, d_out = (
        torch.randn(b, heads, n, 64, device="cuda", generator=g).bfloat16()
        for heads, n in ((h, sq), (hk, sk), (hk, sk), (h, sq))
    )
    given = Given(
        *(q, k, v), causal=causal, scale=0.125, dropout_p=p, want_lse=True, by_hand=True,
        seed_offset=torch.tensor([2**40 + 17, 3], dtype=torch.int64, device="cuda"),
    )  # fmt: skip
    bits = dropped_bits.left_by_forward(given).fill_(-1)
    out, lse = forward(*given, bits=bits)
    assert all(map(torch.equal, (out, lse), forward(*given)))
    key = torch.arange(32, dtype=torch.int32, device="cuda")
    told = bits[..., None] >> key % 2 * 16 + key % 8 // 2 * 4 + key // 8 & 1
    told = told.permute(0, 2, 1, 3).reshape(b, h, bits.shape[2], -1)[:, :, :sq, :sk].bool()
    stays = kept_elements((b, h, sq, -(-sk // 8) * 8), p, given.seed_offset)[..., :sk]
    rows, keys = (torch.arange(n, device="cuda") for n in (sq, sk))
    seen = keys <= rows[:, None] + sk - sq if causal else torch.ones_like(stays[0, 0])
    assert torch.equal(told & seen, ~stays & seen)
    made, kept = (
        backward(given, out, lse, d_out, None, False, bits=one)[:3] for one in (None, bits)
    )
    assert all(map(torch.equal, made, kept))
