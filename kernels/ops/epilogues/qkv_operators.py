"""How the projections of attention meet PyTorch: an operator, one for training, the product's back.

The gradient comes in the layout that the forward wrote, [part][batch][head][position][number], and
is brought back to rows by one launch, from which the product's gradients go on.
"""

from __future__ import annotations

import functools
from typing import Any

import torch

from kernels.ops.epilogues.backward import of_heads
from kernels.ops.epilogues.forward import in_heads, launch
from kernels.ops.epilogues.moves import Followed, heads_step, moved
from kernels.ops.products.configurations import HOPPER, TORCH, Ways
from kernels.ops.products.operators import composed as product
from kernels.ops.products.operators import gradients
from kernels.ops.shared.arguments import check_tensor
from kernels.ops.shared.operators import Gradient, define, refuse_second_derivative
from kernels.registry import Moves

Tensor = torch.Tensor

NAME = "qkv"


def check(x: Tensor, weight: Tensor, bias: Tensor | None, *_: str) -> None:
    """Raise TypeError or ValueError with one sentence unless the operation takes these."""
    check_tensor("x", x)
    if x.dim() != 3 or x.shape[-1] == 0:
        raise ValueError(f"x has the shape {tuple(x.shape)}; it takes (B, S, K), K being 1 or more")
    check_tensor("weight", weight, like=x)
    k = x.shape[-1]
    if weight.dim() != 4 or weight.shape[3] != k or weight.numel() == 0:
        raise ValueError(
            f"weight has the shape {tuple(weight.shape)}; with x of shape {tuple(x.shape)} it "
            f"takes (T, H, D, {k}), each 1 or more"
        )
    if bias is not None:
        check_tensor("bias", bias, like=x)
        if bias.shape != weight.shape[:3]:
            raise ValueError(
                f"bias has the shape {tuple(bias.shape)}; with weight of shape "
                f"{tuple(weight.shape)} it takes {tuple(weight.shape[:3])}"
            )
    for name, one in (("weight", weight), ("bias", bias)):
        if one is not None and one.dtype != x.dtype:
            raise TypeError(
                f"{name} has dtype {one.dtype} and x {x.dtype}; they must have the same"
            )


def _as_matrix(weight: Tensor) -> Tensor:
    return weight.reshape(-1, weight.shape[-1])


def by_heads(y: Tensor, weight: Tensor) -> Tensor:
    """y (B, S, T·H·D) as (T, B, H, S, D), a view."""
    return y.unflatten(-1, weight.shape[:3]).permute(2, 0, 3, 1, 4)


def composed(x: Tensor, weight: Tensor, bias: Tensor | None, *_: str) -> Tensor:
    """The same by PyTorch's operators: one product, and a copy into the layout of heads."""
    flat = None if bias is None else bias.reshape(-1)
    return by_heads(product(x, _as_matrix(weight), flat), weight).contiguous()


def _launch(x: Tensor, weight: Tensor, bias: Tensor | None, forward_by: str, *_: str) -> Tensor:
    if forward_by == TORCH:
        return composed(x, weight, bias)
    given, y = in_heads(x, weight, bias)
    launch(given, hopper=forward_by == HOPPER)
    return y


def _fake(x: Tensor, weight: Tensor, *_: Any) -> Tensor:
    n_parts, n_heads, head_size, _k = weight.shape
    return x.new_empty((n_parts, x.shape[0], n_heads, x.shape[1], head_size))


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, weight, _bias, _forward_by, *ctx.by = inputs
    ctx.save_for_backward(x, weight)


def _formula(ctx: Any, dy: Tensor) -> Any:
    x, weight = ctx.saved_tensors
    wanted = ctx.needs_input_grad[:3]
    dx, dweight, dbias = gradients(_rows(dy), x, _as_matrix(weight), wanted, *ctx.by)
    dweight = None if dweight is None else dweight.reshape(weight.shape)
    dbias = None if dbias is None else dbias.reshape(weight.shape[:3])
    return dx, dweight, dbias, None, None, None


def _moves(x: Tensor, weight: Tensor, bias: Tensor | None, forward: str, **_: str) -> Moves | None:
    if forward == TORCH:
        return None
    sizes = x.shape[0] * x.shape[1], x.shape[2], weight[..., 0].numel()
    return moved(Followed(sizes, x.element_size(), biased=bias is not None, heads=True))


def _rows_composed(dy: Tensor) -> Tensor:
    return dy.permute(1, 3, 0, 2, 4).flatten(2)


def _rows_moves(dy: Tensor) -> Moves | None:
    n_parts, n_batches, n_heads, positions, head_size = dy.shape
    sizes = n_batches * positions, n_parts * n_heads * head_size
    return Moves.of(heads_step(*sizes, dy.element_size())) if dy.numel() else None


_rows = define(
    "qkv_rows(Tensor dy) -> Tensor",
    of_heads,
    lambda dy: dy.new_empty((dy.shape[1], dy.shape[3], dy.shape[0] * dy.shape[2] * dy.shape[4])),
    _rows_composed,
    of=[NAME],
    tensors={"dy": "TBHSD"},
    moves=_rows_moves,
)
refuse_second_derivative("qkv_rows", "qkv has", "torch.nn.functional.linear and a permutation")
_define = functools.partial(
    define,
    launch=_launch,
    fake=_fake,
    composed=composed,
    of=[NAME],
    tensors={"x": "BSK", "weight": "THDK", "bias": "THD"},
    checks=check,
    moves=_moves,
)
_ARGUMENTS = (
    "(Tensor x, Tensor weight, Tensor? bias, str forward, str grad_x, str grad_weight) -> Tensor"
)
_with_grad = _define(f"{NAME}_with_grad{_ARGUMENTS}", gradient=Gradient(_keep, _formula))
operator = _define(f"{NAME}{_ARGUMENTS}", trained=_with_grad)


def launched(x: Tensor, weight: Tensor, bias: Tensor | None, ways: Ways) -> Tensor:
    """The projections as one operator, forward and back by `ways`; checked."""
    result: Tensor = operator(x, weight, bias, ways.forward, ways.grad_x, ways.grad_weight)
    return result
