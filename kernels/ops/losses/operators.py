"""How the loss over a vocabulary meets PyTorch: two operators forward, two going back."""

from __future__ import annotations

import functools
from typing import Any

import torch

from kernels.ops.losses import chunks
from kernels.ops.losses.configurations import at_once
from kernels.ops.losses.moves import (
    backward_operator_moves,
    forward_operator_moves,
    train_operator_moves,
)
from kernels.ops.shared import operators as shared
from kernels.ops.shared.arguments import check_tensor
from kernels.ops.shared.operators import (
    Gradient,
    _ordinary,
    define,
    like,
    refuse_second_derivative,
)

Tensor = torch.Tensor

OF = ("linear_cross_entropy",)
REDUCTIONS = ("mean", "sum", "none")


def check(
    x: object,
    weight: object,
    targets: object,
    ignore_index: object = -100,
    smoothing: float = 0.0,
    reduction: object = "mean",
    *_: bool,
) -> None:
    """Raise TypeError or ValueError with one sentence unless the loss takes these arguments."""
    check_tensor("x", x)
    assert isinstance(x, Tensor)
    if x.dim() != 2 or x.shape[1] == 0:
        raise ValueError(
            f"x has the shape {tuple(x.shape)}; it takes (tokens, width), the width 1 or more"
        )
    check_tensor("weight", weight, like=x)
    assert isinstance(weight, Tensor)
    if weight.dim() != 2 or weight.shape[1] != x.shape[1] or weight.shape[0] == 0:
        raise ValueError(
            f"weight has the shape {tuple(weight.shape)}; with x of shape {tuple(x.shape)} it "
            f"takes (words, {x.shape[1]}), 1 word or more"
        )
    if weight.dtype != x.dtype:
        raise TypeError(f"weight has dtype {weight.dtype} and x {x.dtype}; they must have the same")
    if not isinstance(targets, Tensor) or targets.dtype != torch.int64:
        told = f"dtype {targets.dtype}" if isinstance(targets, Tensor) else type(targets).__name__
        raise TypeError(f"targets is of {told}; it takes an int64 tensor")
    if targets.shape != x.shape[:1] or targets.device != x.device:
        raise ValueError(
            f"targets has the shape {tuple(targets.shape)} on {targets.device}; with x of shape "
            f"{tuple(x.shape)} it takes ({len(x)},) on {x.device}"
        )
    if isinstance(ignore_index, bool) or not isinstance(ignore_index, int):
        raise TypeError(f"ignore_index is {ignore_index!r}; it takes a whole number")
    if not 0 <= smoothing <= 1:
        raise ValueError(f"label_smoothing is {smoothing}; it takes a number from 0 to 1")
    if reduction not in REDUCTIONS:
        raise ValueError(f"reduction is {reduction!r}; it takes one of {', '.join(REDUCTIONS)}")


def check_words(targets: Tensor, n_words: int, ignore_index: int) -> None:
    """Raise ValueError with one sentence for a target that is no word, where that costs no wait.

    That is on a CPU, outside transforms, compilers and fake tensors.
    """
    known = type(targets) is Tensor and targets.device.type == "cpu"
    if not known or torch.compiler.is_compiling() or not _ordinary():
        return
    wrong = ((targets < 0) | (targets >= n_words)) & (targets != ignore_index)
    if bool(wrong.any()):
        place = int(wrong.nonzero()[0])
        raise ValueError(
            f"targets[{place}] is {int(targets[place])}; it takes a word from 0 to {n_words - 1}, "
            f"or ignore_index, which is {ignore_index}"
        )


def loss_of_logits(
    logits: Tensor, targets: Tensor, ignore_index: int, smoothing: float, reduction: str
) -> Tensor:
    """The loss by PyTorch's operators, in the dtype of logits (T, V)."""
    ignored = targets == ignore_index
    # Step by step: forward mode and then backward through PyTorch's logsumexp is an error of its.
    largest = logits.detach().amax(-1, keepdim=True)
    lse = torch.log(torch.exp(logits - largest).sum(-1)) + largest.squeeze(-1)
    of_target = logits.gather(-1, targets.masked_fill(ignored, 0)[:, None]).squeeze(-1)
    losses = lse - (1 - smoothing) * of_target
    if smoothing:
        losses = losses - smoothing * logits.mean(-1)
    losses = losses.masked_fill(ignored, 0.0)
    if reduction == "none":
        return losses
    total = losses.sum()
    return total / (~ignored).sum() if reduction == "mean" else total


def _composed(
    x: Tensor,
    weight: Tensor,
    targets: Tensor,
    ignore_index: int,
    smoothing: float,
    reduction: str,
    *_: bool,
) -> Tensor:
    """The loss by PyTorch's operators, the logits whole in fp32."""
    logits = (x @ weight.T).float()
    return loss_of_logits(logits, targets, ignore_index, smoothing, reduction).to(x.dtype)


def _forward(
    x: Tensor,
    weight: Tensor,
    targets: Tensor,
    ignore_index: int,
    smoothing: float,
    reduction: str,
    *_: bool,
) -> Tensor:
    loss = chunks.walk(x, weight, targets, ignore_index, smoothing, reduction).loss
    assert loss is not None
    return loss


def _fake(
    x: Tensor, _w: Tensor, _t: Tensor, _i: int, _s: float, reduction: str, *_: bool
) -> Tensor:
    return x.new_empty(x.shape[:1] if reduction == "none" else ())


_Three = tuple[Tensor, Tensor | None, Tensor | None]


def _train(
    x: Tensor,
    weight: Tensor,
    targets: Tensor,
    ignore_index: int,
    smoothing: float,
    reduction: str,
    wants_x: bool,
    wants_weight: bool,
) -> _Three:
    now = at_once(reduction, x.dtype)
    found = chunks.walk(
        *(x, weight, targets, ignore_index, smoothing, reduction),
        wants_x=now and wants_x,
        wants_weight=now and wants_weight,
    )
    assert found.loss is not None
    return found.loss, found.d_x, found.d_weight


def _train_fake(
    x: Tensor,
    weight: Tensor,
    targets: Tensor,
    ignore_index: int,
    smoothing: float,
    reduction: str,
    wants_x: bool,
    wants_weight: bool,
) -> _Three:
    now = at_once(reduction, x.dtype)
    return (
        _fake(x, weight, targets, ignore_index, smoothing, reduction),
        like(x) if now and wants_x else None,
        like(weight) if now and wants_weight else None,
    )


def _train_composed(*args: Any) -> _Three:
    return _composed(*args), None, None


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    x, weight, targets, *ctx.told = inputs
    reduction, wants_x, wants_weight = ctx.told[2:]
    now = at_once(reduction, x.dtype)
    kept = output[1] if now and wants_x else None, output[2] if now and wants_weight else None
    ctx.set_materialize_grads(False)  # of the gradients that are kept there are none
    ctx.save_for_backward(x, weight, targets, *kept)
    ctx.is_kept = now


def _formula(ctx: Any, dy: Tensor | None, *_: Any) -> Any:
    nothing = (None,) * 8
    if dy is None:
        return nothing
    x, weight, targets, *kept = ctx.saved_tensors
    wants = tuple(ctx.needs_input_grad[:2])
    told = ctx.told[:3]
    asked = [place for place in (0, 1) if wants[place]]
    found: list[Tensor | None] = [None, None]
    if ctx.is_kept and all(kept[place] is not None for place in asked):
        quick = getattr(dy, shared.SHORT_WHERE, False) and _ordinary()
        if quick and not torch.is_grad_enabled():
            # They are given away, once: a second way back through this graph computes its own.
            ctx.is_kept = False
            for place in asked:
                found[place] = chunks.scaled(dy, kept[place], in_place=True)
        else:
            for place in asked:
                found[place] = _scaled_operator(dy, kept[place])
    else:
        both = _backward_operator(dy, x, weight, targets, *told, *wants)
        for place in asked:
            found[place] = both[place]
    return *found, *nothing[2:]


def _backward(
    dy: Tensor,
    x: Tensor,
    weight: Tensor,
    targets: Tensor,
    ignore_index: int,
    smoothing: float,
    reduction: str,
    wants_x: bool,
    wants_weight: bool,
) -> tuple[Tensor | None, Tensor | None]:
    found = chunks.walk(
        *(x, weight, targets, ignore_index, smoothing, reduction),
        wants_loss=False,
        wants_x=wants_x,
        wants_weight=wants_weight,
        upstream=dy,
    )
    return found.d_x, found.d_weight


def _backward_fake(
    _dy: Tensor, x: Tensor, weight: Tensor, _t: Tensor, _i: int, _s: float, _r: str, *wants: bool
) -> tuple[Tensor | None, Tensor | None]:
    return like(x) if wants[0] else None, like(weight) if wants[1] else None


def _backward_composed(
    dy: Tensor,
    x: Tensor,
    weight: Tensor,
    targets: Tensor,
    ignore_index: int,
    smoothing: float,
    reduction: str,
    wants_x: bool,
    wants_weight: bool,
) -> tuple[Tensor | None, Tensor | None]:
    """(softmax − target) · dy, and its products with weight and x, by PyTorch's operators."""
    logits = (x @ weight.T).float()
    words = torch.arange(len(weight), device=x.device)
    hot = (words == targets[:, None]).float()
    d_logits = torch.softmax(logits, -1) - (1 - smoothing) * hot - smoothing / len(weight)
    ignored = targets == ignore_index
    scale = dy.float()
    if reduction == "mean":
        scale = scale / (~ignored).sum()
    scale = scale[:, None] if reduction == "none" else scale
    d_logits = (d_logits * scale).masked_fill(ignored[:, None], 0.0).to(x.dtype)
    d_x = d_logits @ weight if wants_x else None
    return d_x, d_logits.T @ x if wants_weight else None


_SIZES = {"x": "TK", "weight": "VK", "targets": "T"}
_HOW = "int ignore_index, float smoothing, str reduction, bool wants_x, bool wants_weight"
_ARGUMENTS = f"(Tensor x, Tensor weight, Tensor targets, {_HOW})"
_define = functools.partial(define, of=OF, tensors=_SIZES, checks=check)
_with_grad = _define(
    f"linear_cross_entropy_with_grad{_ARGUMENTS} -> (Tensor, Tensor, Tensor)",
    _train,
    _train_fake,
    _train_composed,
    gradient=Gradient(_keep, _formula),
    moves=train_operator_moves,
)
operator = _define(
    f"linear_cross_entropy{_ARGUMENTS} -> Tensor",
    _forward,
    _fake,
    _composed,
    trained=_with_grad,
    moves=forward_operator_moves,
)
_backward_operator = define(
    "linear_cross_entropy_backward(Tensor dy, Tensor x, Tensor weight, Tensor targets, "
    f"{_HOW}) -> (Tensor, Tensor)",
    _backward,
    _backward_fake,
    _backward_composed,
    of=OF,
    tensors={"dy": "", **_SIZES},
    moves=backward_operator_moves,
)
_scaled_operator = define(
    "linear_cross_entropy_scaled(Tensor dy, Tensor gradient) -> Tensor",
    chunks.scaled,
    lambda _dy, gradient: like(gradient),
    lambda dy, gradient: (gradient * dy).to(gradient.dtype),
    of=OF,
    tensors={"dy": "", "gradient": "NK"},
)
for _name in ("linear_cross_entropy_backward", "linear_cross_entropy_scaled"):
    refuse_second_derivative(
        _name, "linear_cross_entropy has", "torch.nn.functional.cross_entropy of a linear"
    )
