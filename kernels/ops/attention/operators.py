"""How attention meets PyTorch: one operator, and another that keeps its inputs for a backward."""

from __future__ import annotations

import functools
from typing import Any

import torch

from kernels.ops.attention.formula import Given, composed, gradients
from kernels.ops.attention.forward import forward, output_like
from kernels.ops.attention.simple import softmax_of_scores
from kernels.ops.shared.arguments import check_seed_offset, check_tensor
from kernels.ops.shared.operators import Gradient, define, like
from kernels.philox import threshold

Tensor = torch.Tensor

OF = ("attention",)
WIDEST = 256  # head dimension


def check(*args: Any) -> None:
    """Raise TypeError or ValueError with one sentence unless attention takes these arguments.

    They stand in the order of `Given`.
    """
    given = Given(*args)
    check_queries_keys_values(given.q, given.k, given.v)
    _check_bias(given)
    (n_batch, _, _, _), n_keys = given.q.shape, given.k.shape[2]
    padding = given.key_padding_mask
    if padding is not None:
        _check_whole("key_padding_mask", padding, (torch.bool,), (n_batch, n_keys), given.q)
    for name in ("q_lengths", "k_lengths"):
        lengths = getattr(given, name)
        if lengths is not None:
            _check_whole(name, lengths, (torch.int32, torch.int64), (n_batch,), given.q)
    if given.window is not None and (not isinstance(given.window, int) or given.window < 1):
        raise ValueError(f"window is {given.window!r}; it takes a whole number of keys, 1 or more")
    if not 0 < given.scale < float("inf"):
        raise ValueError(f"scale is {given.scale}; it takes a number above 0")
    if threshold(given.dropout_p) > 0:
        check_seed_offset(given.seed_offset, given.q)


def check_queries_keys_values(q: object, k: object, v: object) -> None:
    """Raise TypeError or ValueError with one sentence unless q, k and v belong together."""
    for name, one in (("q", q), ("k", k), ("v", v)):
        check_tensor(name, one, like=None if one is q else q, like_name="q")  # type: ignore[arg-type]
        assert isinstance(one, torch.Tensor)
        if one.dim() != 4 or not 1 <= one.shape[3] <= WIDEST:
            raise ValueError(
                f"{name} has the shape {tuple(one.shape)}; it takes (batch, heads, length, head "
                f"dimension), the last from 1 to {WIDEST}"
            )
    assert isinstance(q, torch.Tensor)
    assert isinstance(k, torch.Tensor)
    assert isinstance(v, torch.Tensor)
    for name, one in (("k", k), ("v", v)):
        if one.dtype != q.dtype:
            raise TypeError(
                f"{name} has dtype {one.dtype} and q {q.dtype}; they must have the same"
            )
        if one.shape[0] != q.shape[0] or one.shape[3] != q.shape[3]:
            raise ValueError(
                f"{name} has the shape {tuple(one.shape)} and q {tuple(q.shape)}; batch and head "
                "dimension must be the same"
            )
    if k.shape != v.shape:
        raise ValueError(
            f"v has the shape {tuple(v.shape)} and k {tuple(k.shape)}; they must have the same"
        )
    if q.shape[1] != k.shape[1] and (k.shape[1] == 0 or q.shape[1] % k.shape[1]):
        raise ValueError(
            f"k has {k.shape[1]} heads and q {q.shape[1]}; those of k must divide those of q"
        )


def _check_bias(given: Given) -> None:
    bias = given.bias
    if bias is None:
        return
    if not isinstance(bias, torch.Tensor) or bias.dtype != torch.bool:
        check_tensor("bias", bias, like=given.q, like_name="q")
    if bias.device != given.q.device:
        raise ValueError(f"bias lies on {bias.device} and q on {given.q.device}; put both on one")
    whole = (*given.q.shape[:3], given.k.shape[2])
    fits = bias.dim() == 4 and all(
        n in (1, size) for n, size in zip(bias.shape, whole, strict=True)
    )
    if not fits:
        raise ValueError(
            f"bias has the shape {tuple(bias.shape)}; it takes {whole}, each size of it or 1"
        )


def _check_whole(
    name: str, value: object, dtypes: tuple[torch.dtype, ...], shape: tuple[int, ...], q: Tensor
) -> None:
    if not isinstance(value, torch.Tensor) or value.dtype not in dtypes:
        told = value.dtype if isinstance(value, torch.Tensor) else type(value).__name__
        raise TypeError(
            f"{name} is of {told}; it takes a tensor of {' or '.join(map(str, dtypes))}"
        )
    if tuple(value.shape) != shape or value.device != q.device:
        raise ValueError(
            f"{name} has the shape {tuple(value.shape)} on {value.device}; it takes {shape} on "
            f"{q.device}"
        )


def _fake(*args: Any) -> tuple[Tensor, Tensor | None]:
    given = Given(*args)
    q = given.q
    lse = torch.empty(q.shape[:3], dtype=torch.float32, device=q.device)
    # A last dimension with gaps is copied first, contiguous.
    q = q if q.stride(-1) == 1 or q.shape[-1] == 1 else q.contiguous()
    return output_like(q), lse if given.want_lse else None


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    ctx.save_for_backward(*inputs[:8])
    ctx.told = inputs[8:]


def _formula(ctx: Any, d_out: Tensor, d_lse: Tensor | None = None) -> Any:
    given = Given(*ctx.saved_tensors, *ctx.told)
    wants_bias = ctx.needs_input_grad[3]
    found = gradients(given, d_out, d_lse if given.want_lse else None, wants_bias)
    return *found, *(None,) * (len(given) - 4)


_ARGUMENTS = (
    "(Tensor q, Tensor k, Tensor v, Tensor? bias, Tensor? key_padding_mask, Tensor? q_lengths, "
    "Tensor? k_lengths, Tensor? seed_offset, bool causal, bool top_left, int? window, "
    "float scale, float dropout_p, bool want_lse, bool by_hand) -> (Tensor, Tensor)"
)
_define = functools.partial(
    define,
    launch=forward,
    fake=_fake,
    composed=composed,
    of=OF,
    tensors={
        "q": "BHSD",
        "k": "BGTD",
        "v": "BGTD",
        "bias": "XYST",
        "key_padding_mask": "BT",
        "q_lengths": "B",
        "k_lengths": "B",
        "seed_offset": "",
    },
    checks=check,
)
_with_grad = _define(
    f"attention_with_grad{_ARGUMENTS}", gradient=Gradient(_keep, _formula, n_returned=2)
)
operator = _define(f"attention{_ARGUMENTS}", trained=_with_grad)


def _softmax_by_operators(scores: Tensor, scale: float, n_queries: int) -> Tensor:
    scaled = scores.float() * scale
    n_keys = scores.shape[-1]
    if n_queries:
        rows = torch.arange(scores[..., 0].numel(), device=scores.device) % n_queries
        keys = torch.arange(n_keys, device=scores.device)
        behind = keys > rows[:, None] + n_keys - n_queries
        scaled = scaled.masked_fill(behind.view(scores.shape), -torch.inf)
    return torch.softmax(scaled, -1).to(scores.dtype)


softmax_operator = define(
    "attention_softmax(Tensor scores, float scale, int n_queries) -> Tensor",
    softmax_of_scores,
    lambda scores, scale, n_queries: like(scores),
    _softmax_by_operators,
    of=OF,
    tensors={"scores": "*N"},
    independent="*",
)
