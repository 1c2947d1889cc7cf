"""Attention, forward and backward (chapters 12, 13).

    s = scale · q · kᵀ,   p = exp(s − lse),   lse = log Σ exp(s),   o = p · v

q has the shape (B, H, Sq, D), k and v (B, Hk, Sk, D), o that of q; H is a multiple of Hk. In one
launch q, k and v are read and o is written: 4 · B·H·S·D·size bytes where all are alike, whatever
the length. In three steps s and p, B·H·Sq·Sk elements each, are written and read again. The work is
4 · B·H·Sq·Sk·D FLOPs, of which a causal mask leaves half: so papers count it.

Going back, with do given and delta = Σ o · do of each row,

    dp = do · vᵀ,   ds = p · (dp − delta)
    dq = scale · ds · k,   dk = scale · dsᵀ · q,   dv = pᵀ · do

p is not kept but computed again from q, k and lse: B·H·Sq numbers instead of B·H·Sq·Sk. q, k, v, o
and do are read, dq, dk and dv written, 8 · B·H·S·D·size bytes, and five products make
10 · B·H·Sq·Sk·D FLOPs; two passes without atomics do seven.

Sources: Dao et al., "FlashAttention" (arXiv:2205.14135); Dao, "FlashAttention-2"
(arXiv:2307.08691); Rabe, Staats, "Self-attention does not need O(n²) memory" (arXiv:2112.05682).
"""

from __future__ import annotations

from typing import Any

import torch

from kernels.launch.gluon import needs_hopper
from kernels.ops.attention import peers
from kernels.ops.attention.formula import Given, kept, seen, shared
from kernels.ops.attention.moves import hopper_moves, moves, simple_moves, suits
from kernels.ops.attention.operators import check, check_queries_keys_values, operator
from kernels.ops.attention.simple_backward import simple
from kernels.ops.attention.tuning import backward_candidates, candidates
from kernels.ops.shared.available import needs_gpu
from kernels.philox import scale as drop_scale
from kernels.registry import (
    Backward,
    Case,
    Cost,
    Op,
    Options,
    Pass,
    Shape,
    Tolerance,
    Variant,
    cases,
    named,
    register,
)

Tensor = torch.Tensor

CAUSAL: Options = (("causal", True),)
_TOKENS, _HEADS = 16384, 16
_SQUARES = [(_TOKENS // s, _HEADS, s) for s in (512, 2048, 8192, 16384)]
SHAPES: tuple[Shape, ...] = tuple((*square, d) for d in (64, 128) for square in _SQUARES)
# torch.compile takes seconds a shape, and writes the scores as `eager` does.
_COMPILED = cases([s for s in SHAPES if s[2] == 2048], "bf16", options=((), CAUSAL))
SIMPLE_DIMS = (16, 32, 64, 128)
MOST_ALONG_Y = 65535


def reference(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    bias: Tensor | None = None,
    return_lse: bool = False,
    scale: float | None = None,
    **options: Any,
) -> Any:
    """Attention in float64, straight from the equation; arguments as of `attention`."""
    given = Given(q, k, v, bias, **options)
    q, k, v = q.double(), shared(k, q.shape[1]).double(), shared(v, q.shape[1]).double()
    s = q @ k.transpose(-1, -2) * (q.shape[-1] ** -0.5 if scale is None else scale)
    if bias is not None and bias.dtype != torch.bool:
        s = s + bias.double()
    mask = seen(given)
    if mask is not None:
        s = s.masked_fill(~mask, -torch.inf)
    largest = s.detach().amax(-1, keepdim=True) if s.shape[-1] else s.new_zeros(*s.shape[:-1], 1)
    e = torch.exp(s - largest.masked_fill(largest == -torch.inf, 0.0))
    total = e.sum(-1, keepdim=True)
    nothing = total == 0  # no key is seen: p is 0 there, lse −inf
    total = total.masked_fill(nothing, 1.0)
    p, lse = e / total, (largest + torch.log(total)).masked_fill(nothing, -torch.inf)
    stays = kept(given)
    if stays is not None:
        p = p * stays * drop_scale(given.dropout_p)
    return (p @ v, lse.squeeze(-1)) if return_lse else p @ v


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    causal: bool = False,
    scale: float | None = None,
    window: int | None = None,
    bias: Tensor | None = None,
    key_padding_mask: Tensor | None = None,
    q_lengths: Tensor | None = None,
    k_lengths: Tensor | None = None,
    dropout_p: float = 0.0,
    seed_offset: Tensor | None = None,
    return_lse: bool = False,
) -> Any:
    """softmax(scale · q · kᵀ + bias) · v, in one launch that writes no scores.

    q: (B, H, Sq, D); k, v: (B, Hk, Sk, D); Hk divides H, and neighbouring heads of q share one of k
    and v. fp16, bf16 or fp32, one dtype, D from 1 to 256, any strides: where the last dimension has
    gaps a tensor is copied first. scale: a number above 0, 1/√D if None.

    causal: query i sees key j where j ≤ i + Sk − Sq: the last query sees the last key. window: of
    those, the last so many keys; not causal, the keys less than so many away. bias: added to the
    scaled scores, (B, H, Sq, Sk) with any of its sizes 1, in fp16, bf16 or fp32, −inf where a key
    isn't seen; or bool, True where it is. key_padding_mask: bool (B, Sk), True where a key is
    padding, as in `torch.nn.MultiheadAttention`. q_lengths, k_lengths: int32 or int64 (B,), how
    many queries and keys of each sequence there are; what stands behind them is not read, and a
    causal mask is aligned at the last of them. A query that sees no key, or is behind its length,
    gives zeros.

    dropout_p: the probability to drop a weight, 0 to 1, by the package's random numbers; then
    seed_offset is int64 (2,), the seed and the number of the call, in the memory of q's device.

    Returns o of q's shape and dtype, the heads of a place side by side in memory if q's are. With
    return_lse also log Σ exp of each row's scores, fp32 (B, H, Sq), −inf where no key is seen. Sums
    are in fp32; fp32 is multiplied in full, never as tf32. On capability 9.0 a kernel written for
    it computes what `configurations.suits_hopper` takes. On a CPU the kernel is interpreted.

    Gradients of q, k, v and bias take two launches, a bias's one more, and on capability 9.0 three,
    with dropout one more, which writes a bit a weight for some heads at a time, 64 MiB or those of
    one head. They have the same bits each time; kept for them are the inputs, o and log Σ exp.
    Gradients that are differentiated again (create_graph=True) are by PyTorch's operators, which
    hold B·H·Sq·Sk elements of fp32 several
    times. Inside a transform of `torch.func` and in forward-mode differentiation PyTorch's
    operators compute everything. ValueError or TypeError names the argument, what it got and what
    it takes.
    """
    given = Given(
        *(q, k, v, bias, key_padding_mask, q_lengths, k_lengths, seed_offset),
        *(causal, False, window, 1.0 if scale is None else scale, dropout_p, return_lse, True),
    )
    return _called(given, scale)


def _called(given: Given, scale: float | None) -> Any:
    if scale is None:
        check_queries_keys_values(*given[:3])
        given = given._replace(scale=given.q.shape[-1] ** -0.5)
    result = operator(*given)
    return (result[0], result[1]) if given.want_lse else result[0]


def fused(q: Tensor, k: Tensor, v: Tensor, causal: bool = False, window: int | None = None) -> Any:
    """The fastest in Triton, forward and back, on any card; arguments as of `attention`."""
    return _called(Given(q, k, v, causal=causal, window=window), None)


def fused_simple(q: Tensor, k: Tensor, v: Tensor, causal: bool = False) -> Tensor:
    """The kernels of the pages, forward and back: one shape for q, k, v, D of 16, 32, 64 or 128.

    B·H is 65,535 at most.
    """
    scale = q.shape[-1] ** -0.5
    check(q, k, v, None, None, None, None, None, causal, False, None, scale, 0.0, False)
    if q.shape != k.shape or q.shape[-1] not in SIMPLE_DIMS:
        raise ValueError(
            f"q has the shape {tuple(q.shape)} and k {tuple(k.shape)}; this kernel takes one shape "
            f"for both, the head dimension one of {SIMPLE_DIMS}"
        )
    if q.shape[0] * q.shape[1] > MOST_ALONG_Y:
        raise ValueError(
            f"q has {q.shape[0] * q.shape[1]} heads in all; this kernel takes {MOST_ALONG_Y} at "
            "most, the programs that a grid has along y"
        )
    return simple(q, k, v, causal, scale)


def inputs(
    shape: Shape,
    dtype: torch.dtype,
    device: torch.device | str,
    seed: int,
    *,
    causal: bool = False,
    window: int | None = None,
) -> dict[str, Any]:
    """Fresh random q, k, v (B, H, S, D), and the options."""
    generator = torch.Generator(device=device).manual_seed(seed)

    def normal() -> Tensor:
        return torch.randn(*shape, generator=generator, device=device).to(dtype)

    given: dict[str, Any] = {"q": normal(), "k": normal(), "v": normal(), "causal": causal}
    return given if window is None else {**given, "window": window}


def cost(case: Case) -> Cost:
    """What attention must do at least: q, k, v in, o out; an FMA a term of both products.

    The softmax between is not counted, and a causal mask leaves half, as in the papers; with a
    window a pair of query and key counts that is seen.
    """
    n_batch, n_heads, length, head_dim = case.shape
    options = dict(case.options)
    causal, window = bool(options.get("causal")), options.get("window")
    pairs = length * length
    if window is not None:
        reach = min(window, length)
        behind = length * reach - reach * (reach - 1) // 2
        pairs = behind if causal else 2 * behind - length
    elif causal:
        pairs //= 2
    size = n_batch * n_heads * length * head_dim * case.dtype.itemsize
    return Cost(4 * n_batch * n_heads * pairs * head_dim, read_bytes=3 * size, write_bytes=size)


def backward_cost(case: Case) -> Cost:
    """What its backward must do at least: q, k, v, o, do in, three gradients out; five products."""
    forward, size = cost(case), cost(case).write_bytes
    return Cost(forward.flops * 5 // 2, read_bytes=5 * size, write_bytes=3 * size)


def tolerance(case: Case, _name: str) -> Tolerance:
    """The roundings to the dtype of scores, weights and the output, and fp32's own in between.

    A rounding of a score s changes its weight by a share of |s| units; the scores of random inputs
    are below 4 where it counts.
    """
    unit = torch.finfo(case.dtype).eps / 2
    return Tolerance(relative_norm=4 * unit + 2.0**-20, largest=16 * unit + 2.0**-18)


def gradient_tolerance(case: Case, name: str) -> Tolerance:
    """As the forward's: roundings of weights, of ds, of delta's o and of the gradient."""
    return tolerance(case, name)


def _simple_takes(case: Case) -> bool:
    few = case.shape[0] * case.shape[1] <= MOST_ALONG_Y
    return few and case.shape[3] in SIMPLE_DIMS and peers.without_window(case)


_BOTH = ("fwd", "bwd")
OP = register(
    Op(
        name="attention",
        suite="attention",
        dims="BHSD",
        tensors={"q": "BHSD", "k": "BHSD", "v": "BHSD"},
        outputs={"o": "BHSD"},
        independent="BH",
        degrees={"B": 1, "H": 1, "S": 2},
        inputs=inputs,
        reference=reference,
        variants=named(
            Variant("eager", peers.eager, _BOTH, counted="aten"),
            Variant(
                "torch", peers.torch_attention, _BOTH, counted="aten", fits=peers.without_window
            ),
            Variant("compile", peers.compiled, _BOTH, unavailable=needs_gpu, cases=_COMPILED),
            Variant("unfused", peers.unfused, counted="aten", fits=peers.without_window),
            Variant(
                "fused_simple",
                fused_simple,
                _BOTH,
                counted="triton",
                moves=simple_moves,
                fits=_simple_takes,
            ),
            Variant("fused", fused, _BOTH, counted="triton", moves=moves),
            Variant(
                "fused_hopper",
                attention,
                _BOTH,
                counted="formula",
                moves=hopper_moves,
                unavailable=needs_hopper,
                fits=suits,
            ),
            *(
                Variant(name, fn, _BOTH, counted="aten", unavailable=unavailable, fits=fits)
                for name, fn, unavailable, fits in (
                    ("sdpa_flash", peers.flash, peers.needs_ampere, peers.in_16_bits),
                    ("sdpa_cudnn", peers.cudnn, peers.needs_ampere, peers.by_cudnn),
                    ("sdpa_efficient", peers.efficient, peers.needs_any_gpu, peers.without_window),
                    ("sdpa_math", peers.math, peers.needs_any_gpu, peers.without_window),
                )
            ),
            Variant("flex", peers.flex, _BOTH, unavailable=needs_gpu, fits=peers.without_window),
        ),
        shapes=SHAPES,
        beyond=((1, 3, 100, 80), (2, 2, 1, 128), (1, 2, 33, 64)),
        small=(
            *((1, 2, 32, 16), (2, 1, 37, 16), (1, 1, 70, 64), (3, 2, 1, 32), (1, 1, 20, 128)),
            *((1, 1, 150, 16), (0, 2, 16, 16)),
        ),
        options=((), CAUSAL),
        forward=Pass(
            cost=cost,
            tolerance=tolerance,
            cases=cases(SHAPES, "bf16", options=((), CAUSAL)),
            candidates=candidates,
        ),
        backward=Backward(
            cost=backward_cost,
            tolerance=gradient_tolerance,
            cases=cases(SHAPES, "bf16", options=((), CAUSAL)),
            candidates=backward_candidates,
            differentiates=("q", "k", "v"),
            train_cases=cases(SHAPES[1:3], "bf16", options=((), CAUSAL)),
        ),
    )
)
