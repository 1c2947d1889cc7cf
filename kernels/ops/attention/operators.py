"""How attention meets PyTorch: an operator, one that keeps what a backward needs, the backward."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from kernels.ops.attention.backward import backward
from kernels.ops.attention.formula import Given, composed, gradients
from kernels.ops.attention.forward import forward, output_like
from kernels.ops.attention.simple import softmax_of_scores
from kernels.ops.shared.arguments import check_seed_offset, check_tensor
from kernels.ops.shared.operators import Gradient, define, like, refuse_second_derivative
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
    return output_like(_side_by_side(q)), lse if given.want_lse else None


def _side_by_side(x: Tensor) -> Tensor:
    # A last dimension with gaps is copied first, contiguous.
    return x if x.stride(-1) == 1 or x.shape[-1] == 1 else x.contiguous()


def _keeping(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function` of the operator's arguments, that returns the log-sum-exp whoever wants it."""

    def kept(*args: Any) -> Any:
        return function(*Given(*args)._replace(want_lse=True))

    return kept


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    ctx.save_for_backward(*inputs[:_TENSORS], output[0], output[1])
    ctx.told = inputs[_TENSORS:]
    ctx.set_materialize_grads(False)  # a gradient of what nobody used would be a tensor of zeros


def _formula(ctx: Any, d_out: Tensor | None, d_lse: Tensor | None = None) -> Any:
    *tensors, out, lse = ctx.saved_tensors
    given = Given(*tensors, *ctx.told)
    wants_bias = ctx.needs_input_grad[3]
    if d_out is None:
        d_out = torch.zeros_like(out)
    if torch.is_grad_enabled():  # it will be differentiated again: by operators that can be
        found: Any = gradients(given, d_out, d_lse, wants_bias)
    else:
        found = backward_operator(d_out, d_lse, out, lse, *given, wants_bias)
    d_bias = found[3] if wants_bias else None
    return *found[:3], d_bias, *(None,) * (len(given) - 4)


def _backward(
    d_out: Tensor, d_lse: Tensor | None, out: Tensor, lse: Tensor, *args: Any
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    *told, wants_bias = args
    return backward(Given(*told), out, lse, d_out, d_lse, wants_bias)


def _backward_fake(
    d_out: Tensor, d_lse: Tensor | None, out: Tensor, lse: Tensor, *args: Any
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    *told, wants_bias = args
    given = Given(*told)
    dq, dk, dv = (output_like(_side_by_side(one)) for one in (given.q, given.k, given.v))
    return dq, dk, dv, like(given.bias) if wants_bias and given.bias is not None else None


def _backward_composed(
    d_out: Tensor, d_lse: Tensor | None, out: Tensor, lse: Tensor, *args: Any
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    *told, wants_bias = args
    return gradients(Given(*told), d_out, d_lse, wants_bias)


_TENSORS = 8  # of the arguments, the first so many
_ARGUMENTS = (
    "Tensor q, Tensor k, Tensor v, Tensor? bias, Tensor? key_padding_mask, Tensor? q_lengths, "
    "Tensor? k_lengths, Tensor? seed_offset, bool causal, bool top_left, int? window, "
    "float scale, float dropout_p, bool want_lse, bool by_hand"
)
_DIMS = {
    "q": "BHSD",
    "k": "BGTD",
    "v": "BGTD",
    "bias": "XYST",
    "key_padding_mask": "BT",
    "q_lengths": "B",
    "k_lengths": "B",
    "seed_offset": "",
}
_define = functools.partial(define, of=OF, tensors=_DIMS, checks=check)
_with_grad = _define(
    f"attention_with_grad({_ARGUMENTS}) -> (Tensor, Tensor)",
    _keeping(forward),
    _keeping(_fake),
    _keeping(composed),
    gradient=Gradient(_keep, _formula, n_returned=2),
)
operator = _define(
    f"attention({_ARGUMENTS}) -> (Tensor, Tensor)", forward, _fake, composed, trained=_with_grad
)
backward_operator = define(
    "attention_backward(Tensor d_out, Tensor? d_lse, Tensor out, Tensor lse, "
    f"{_ARGUMENTS}, bool wants_bias) -> (Tensor, Tensor, Tensor, Tensor)",
    _backward,
    _backward_fake,
    _backward_composed,
    of=OF,
    tensors={"d_out": "BHSD", "d_lse": "BHS", "out": "BHSD", "lse": "BHS", **_DIMS},
)
refuse_second_derivative(
    "attention_backward", "this operator has", "kernels.ops.attention.attention.attention"
)


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
