"""Attention written for Hopper, on a card: right at any length, for grouped heads, any layout."""

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from kernels.ops.attention.attention import reference
from kernels.ops.attention.formula import Given, seen

if torch.cuda.is_available() and torch.cuda.get_device_capability() == (9, 0):
    from kernels.ops.attention import hopper
else:
    hopper = None
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(hopper is None, reason="needs a GPU of compute capability 9.0"),
]


def tensors(b, h, hk, sq, sk, d, dtype=torch.bfloat16, spread=1.0, seed=0):
    g = torch.Generator("cuda").manual_seed(seed)
    shapes = ((b, h, sq, d), (b, hk, sk, d), (b, hk, sk, d))
    return [(spread * torch.randn(s, device="cuda", generator=g)).to(dtype) for s in shapes]


def exact(q, k, v, causal, scale):
    """Outputs and log-sum-exps in float64; a row that sees no key is zeros and −inf."""
    q, k, v = (x.double() for x in (q, k, v))
    group = q.shape[1] // k.shape[1]
    k, v = (x.repeat_interleave(group, 1) for x in (k, v))
    s = q @ k.transpose(-1, -2) * scale
    sq, sk = s.shape[-2:]
    seen = torch.ones(sq, sk, dtype=torch.bool, device="cuda")
    if causal:
        seen = seen.tril(sk - sq)
    s = s.masked_fill(~seen, float("-inf"))
    lse = torch.logsumexp(s, -1)
    return torch.nan_to_num(torch.softmax(s, -1), nan=0.0) @ v, lse


def launched(q, k, v, causal, scale):
    out = torch.full(q.shape, float("nan"), device="cuda", dtype=q.dtype)
    lse = torch.full(q.shape[:3], float("nan"), device="cuda")
    hopper.launch(q, k, v, out, lse, scale=scale, causal=causal)
    return out, lse


def assert_near(q, k, v, causal, scale=None):
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    out, lse = launched(q, k, v, causal, scale)
    right, right_lse = exact(q, k, v, causal, scale)
    sees = right_lse > -torch.inf
    assert (lse[~sees] == -torch.inf).all()
    assert (out[~sees] == 0).all()
    torch.testing.assert_close(lse[sees].double(), right_lse[sees], rtol=1e-5, atol=1e-3)
    if not sees.any():
        return
    error = (out.double() - right).abs().max().item()
    rounding = torch.finfo(q.dtype).eps / 2 * right.abs().max().item()
    if q.shape[2] == k.shape[2]:
        with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
            theirs = torch.nn.functional.scaled_dot_product_attention(
                q, k, v, is_causal=causal, scale=scale, enable_gqa=q.shape[1] != k.shape[1]
            )
        rounding = max(rounding, (theirs.double() - right).abs().max().item())
    assert error <= 2 * rounding
    again, _ = launched(q, k, v, causal, scale)
    assert torch.equal(out, again)


@pytest.mark.proves(
    "kernels.ops.attention.hopper",
    "kernels.ops.attention.hopper_kernels",
    "kernels.ops.attention.hopper_producer",
)
@pytest.mark.parametrize("d", [64, 128])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(
    ("b", "h", "hk", "sq", "sk"),
    [
        (1, 1, 1, 1, 1),
        (2, 3, 3, 128, 128),
        (2, 4, 2, 100, 300),
        (1, 6, 1, 640, 640),
        (2, 3, 3, 300, 100),  # causal, the first 200 queries see no key
        (1, 5, 5, 1153, 1153),
        (3, 8, 4, 2048, 2048),
        (1, 2, 2, 1, 4099),
    ],
)
def test_against_float64(b, h, hk, sq, sk, d, causal):
    for dtype, spread in ((torch.bfloat16, 1.0), (torch.float16, 1.0), (torch.bfloat16, 3.0)):
        assert_near(*tensors(b, h, hk, sq, sk, d, dtype, spread), causal)


@pytest.mark.proves(
    "kernels.ops.attention.hopper",
    "kernels.ops.attention.hopper_kernels",
    "kernels.ops.attention.hopper_producer",
)
@pytest.mark.parametrize("d", [64, 128])
def test_layouts(d):
    packed = torch.randn(2, 200, 3, 6, d, device="cuda").to(torch.bfloat16)
    q, k, v = (packed[:, :, i].transpose(1, 2) for i in range(3))  # (B, S, H, D) in memory
    assert_near(q, k, v, True)
    q, k, v = tensors(2, 3, 3, 200, 200, d)
    q = torch.randn(2, 3, 400, d, device="cuda").to(torch.bfloat16)[:, :, ::2]
    assert_near(q, k, v, False)


@pytest.mark.proves(
    "kernels.ops.attention.hopper",
    "kernels.ops.attention.hopper_kernels",
    "kernels.ops.attention.hopper_producer",
)
@pytest.mark.parametrize("d", [64, 128])
def test_numbers_that_are_hard(d):
    q, k, v = tensors(1, 4, 4, 512, 512, d)
    assert_near(30 * q, k, v, True)  # large scores
    assert_near(30 * q, 30 * k, v, False)
    k[:, :, 77] *= 40  # one key that decides
    assert_near(q, k, v, False)
    assert_near(torch.ones_like(q), torch.ones_like(k), v, False)  # all scores equal


# ------------------------------------------------------------------------ lengths and padding


def assert_padded(q, k, v, causal, **masks):
    """Against float64, with what is padding made NaN and infinite after the truth is known."""
    right, right_lse = reference(q, k, v, causal=causal, return_lse=True, **masks)
    spoilt = seen(Given(q, k, v, **masks))
    for b in range(k.shape[0]):
        unseen = ~spoilt.expand(k.shape[0], 1, -1, k.shape[2])[b].flatten(0, -2).any(0)
        k[b, :, unseen], v[b, :, unseen] = float("nan"), float("inf")
    outs = []
    for _ in range(2):
        out = torch.full(q.shape, float("nan"), device="cuda", dtype=q.dtype)
        lse = torch.full(q.shape[:3], float("nan"), device="cuda")
        hopper.launch(q, k, v, out, lse, scale=q.shape[-1] ** -0.5, causal=causal, **masks)
        outs.append(out)
    assert torch.equal(*outs)
    sees = right_lse > -torch.inf
    assert (lse[~sees] == -torch.inf).all()
    assert (out[~sees] == 0).all()
    torch.testing.assert_close(lse[sees].double(), right_lse[sees], rtol=1e-5, atol=1e-3)
    error = (out.double() - right).norm().item()
    assert error <= torch.finfo(q.dtype).eps * right.norm().item()


@pytest.mark.proves(
    "kernels.ops.attention.hopper",
    "kernels.ops.attention.hopper_kernels",
    "kernels.ops.attention.hopper_producer",
    "kernels.ops.attention.hopper_masks",
)
@pytest.mark.parametrize("d", [64, 128])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("sq", "sk"), [(500, 700), (640, 640), (300, 100), (1, 300), (129, 2048)])
@pytest.mark.parametrize("kind", ["keys", "both", "queries", "mask", "all"])
def test_lengths_and_padding(kind, sq, sk, causal, d):
    for dtype in (torch.bfloat16, torch.float16):
        q, k, v = tensors(5, 4, 2, sq, sk, d, dtype)
        keys = torch.tensor([sk, 0, 1, min(129, sk), min(128, sk)], device="cuda")
        queries = torch.tensor([sq, sq, min(5, sq), 0, max(1, sq - 3)], device="cuda").int()
        padding = torch.rand(5, sk, device="cuda") < 0.3
        padding[1], padding[2], padding[3, : sk // 2] = False, True, True
        masks = {
            "keys": {"k_lengths": keys},
            "both": {"k_lengths": keys, "q_lengths": queries},
            "queries": {"q_lengths": queries},
            "mask": {"key_padding_mask": padding},
            "all": {
                "key_padding_mask": padding.T.contiguous().T,
                "k_lengths": keys,
                "q_lengths": queries,
            },
        }[kind]
        assert_padded(q, k, v, causal, **masks)


@pytest.mark.proves(
    "kernels.ops.attention.hopper",
    "kernels.ops.attention.hopper_kernels",
    "kernels.ops.attention.hopper_producer",
    "kernels.ops.attention.hopper_masks",
)
@pytest.mark.parametrize("d", [64, 128])
def test_lengths_that_cut_nothing_change_little(d):
    q, k, v = tensors(2, 4, 4, 1000, 1000, d)
    plain, _ = launched(q, k, v, True, d**-0.5)
    out, lse = torch.empty_like(q), torch.empty(q.shape[:3], device="cuda")
    whole = torch.full((2,), 1000, device="cuda")
    hopper.launch(q, k, v, out, lse, scale=d**-0.5, causal=True, k_lengths=whole)
    torch.testing.assert_close(out, plain, rtol=2e-2, atol=2e-2)
