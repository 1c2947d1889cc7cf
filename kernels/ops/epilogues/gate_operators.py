"""How a gate behind a product meets PyTorch, and the MLP that goes on with a second product.

    a = act(x · gateᵀ) · (x · upᵀ),   y = a · downᵀ

In training the launch of `a` writes both products too, (M, 2N) beside (M, N), and `a` is kept for
the gradient of `down`. To make both again would take that product once more, 4·M·N·K FLOPs for the
4·M·N·s bytes of writing and reading them: the same exchange as in `gelu_operators`. The way back
through the gate is one launch, from which one product each goes on to x and to both weights.
"""

from __future__ import annotations

import functools
from typing import Any

import torch

from kernels.ops.epilogues.forward import launch, with_gate
from kernels.ops.epilogues.moves import Followed, moved, rows_of
from kernels.ops.epilogues.operators import activated, first, of_gate
from kernels.ops.products.configurations import HOPPER, TORCH, Ways
from kernels.ops.products.moves import operator_moves as product_moves
from kernels.ops.products.operators import FORWARD_BY, gradients
from kernels.ops.products.operators import composed as product
from kernels.ops.products.operators import operator as product_operator
from kernels.ops.shared.arguments import check_tensor
from kernels.ops.shared.operators import Gradient, define
from kernels.registry import Moves

Tensor = torch.Tensor

HALF, MLPS = "linear_swiglu", ("swiglu_mlp", "geglu_mlp")


def check(x: Tensor, weight: Tensor, *_: Any) -> None:
    """Raise TypeError or ValueError with one sentence unless a gate takes these arguments."""
    check_tensor("x", x)
    if x.dim() == 0 or x.shape[-1] == 0:
        raise ValueError(f"x has the shape {tuple(x.shape)}; its last dimension must be 1 or more")
    check_tensor("weight", weight, like=x)
    k = x.shape[-1]
    if weight.dim() != 3 or weight.shape[::2] != (2, k) or weight.shape[1] == 0:
        raise ValueError(
            f"weight has the shape {tuple(weight.shape)}; with x of shape {tuple(x.shape)} it "
            f"takes (2, N, {k}), gate and up, N being 1 or more"
        )
    _same_dtype("weight", weight, x)


def check_mlp(x: Tensor, weight: Tensor, down: Tensor, *_: str) -> None:
    """Raise TypeError or ValueError with one sentence unless an MLP takes these arguments."""
    check(x, weight)
    check_tensor("down", down, like=x)
    n = weight.shape[1]
    if down.dim() != 2 or down.shape[1] != n or down.shape[0] == 0:
        raise ValueError(
            f"down has the shape {tuple(down.shape)}; with weight of shape {tuple(weight.shape)} "
            f"it takes (J, {n}), J being 1 or more"
        )
    _same_dtype("down", down, x)


def _same_dtype(name: str, one: Tensor, x: Tensor) -> None:
    if one.dtype != x.dtype:
        raise TypeError(f"{name} has dtype {one.dtype} and x {x.dtype}; they must have the same")


def _train_composed(x: Tensor, weight: Tensor, activation: str, *_: str) -> tuple[Tensor, Tensor]:
    kept = product(x, weight.reshape(-1, weight.shape[-1]), None)
    gate, up = kept.float().chunk(2, -1)
    return (activated(gate, activation) * up).to(x.dtype), kept


def composed(x: Tensor, weight: Tensor, activation: str, *_: str) -> Tensor:
    """The gate by PyTorch's operators, both products rounded to x's dtype."""
    return _train_composed(x, weight, activation)[0]


def mlp_composed(x: Tensor, weight: Tensor, down: Tensor, activation: str, *_: str) -> Tensor:
    """The MLP by PyTorch's operators."""
    return product(composed(x, weight, activation), down, None)


def _launch(x: Tensor, weight: Tensor, activation: str, forward_by: str, *_: str) -> Tensor:
    if forward_by == TORCH:
        return composed(x, weight, activation)
    given, (a, _kept) = with_gate(x, weight, activation, keeps=False)
    launch(given, hopper=forward_by == HOPPER)
    return a


def _train(
    x: Tensor, weight: Tensor, activation: str, forward_by: str, *_: str
) -> tuple[Tensor, Tensor | None]:
    if forward_by == TORCH:
        return _train_composed(x, weight, activation)
    given, outputs = with_gate(x, weight, activation, keeps=True)
    launch(given)
    return outputs


def _launch_mlp(
    x: Tensor, weight: Tensor, down: Tensor, activation: str, forward_by: str, *_: str
) -> Tensor:
    return FORWARD_BY[forward_by](_launch(x, weight, activation, forward_by), down, None)


def _train_mlp(
    x: Tensor,
    weight: Tensor,
    down: Tensor,
    activation: str,
    forward_by: str,
    grad_x_by: str,
    grad_weight_by: str,
) -> Tensor:
    """The MLP as two operators, each with a way back of its own."""
    by = forward_by, grad_x_by, grad_weight_by
    y: Tensor = product_operator(operator(x, weight, activation, *by), down, None, *by)
    return y


def _fake(x: Tensor, weight: Tensor, *_: Any) -> Tensor:
    return x.new_empty((*x.shape[:-1], weight.shape[1]))


def _train_fake(x: Tensor, weight: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    return _fake(x, weight), x.new_empty((*x.shape[:-1], 2 * weight.shape[1]))


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    x, weight, ctx.activation, _forward_by, *ctx.by = inputs
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(x, weight, output[1])
    ctx.mark_non_differentiable(output[1])


def _formula(ctx: Any, dy: Tensor | None, *_: Any) -> Any:
    for_x, for_weight = ctx.needs_input_grad[:2]
    if dy is None or not (for_x or for_weight):
        return (None,) * 6
    x, weight, kept = ctx.saved_tensors
    both = of_gate(dy, kept, ctx.activation)
    as_matrix = weight.reshape(-1, weight.shape[-1])
    wanted = for_x, for_weight, False
    dx, dweight = gradients(both, x, as_matrix, wanted, *ctx.by)[:2]
    if dweight is not None:
        dweight = dweight.reshape(weight.shape)
    return dx, dweight, None, None, None, None


def _followed(x: Tensor, weight: Tensor, keeps: bool) -> Followed:
    sizes = rows_of(x), x.shape[-1], weight.shape[1]
    return Followed(sizes, x.element_size(), gated=True, keeps=keeps)


def _moves(x: Tensor, weight: Tensor, forward: str, *, keeps: bool, **_: str) -> Moves | None:
    return None if forward == TORCH else moved(_followed(x, weight, keeps))


def _mlp_moves(x: Tensor, weight: Tensor, down: Tensor, forward: str, **_: str) -> Moves | None:
    half = _moves(x, weight, forward, keeps=False)
    a = torch.empty((*x.shape[:-1], weight.shape[1]), dtype=x.dtype, device="meta")
    whole = product_moves(a, down, None, forward)
    return None if half is None or whole is None else Moves.of(*half.steps, *whole.steps)


_TENSORS = {"x": "*K", "weight": "TNK"}
_define = functools.partial(define, of=[HALF, *MLPS], independent="*")
_BY = "str activation, str forward, str grad_x, str grad_weight"
_with_grad = _define(
    f"linear_gate_train(Tensor x, Tensor weight, {_BY}) -> (Tensor, Tensor)",
    _train,
    _train_fake,
    _train_composed,
    tensors=_TENSORS,
    checks=check,
    moves=functools.partial(_moves, keeps=True),
    gradient=Gradient(_keep, _formula),
)
operator = _define(
    f"linear_gate(Tensor x, Tensor weight, {_BY}) -> Tensor",
    _launch,
    _fake,
    composed,
    tensors=_TENSORS,
    checks=check,
    moves=functools.partial(_moves, keeps=False),
    trained=lambda *inputs: first(_with_grad(*inputs)),
)
mlp_operator = define(
    f"linear_gate_mlp(Tensor x, Tensor weight, Tensor down, {_BY}) -> Tensor",
    _launch_mlp,
    lambda x, weight, down, *_: x.new_empty((*x.shape[:-1], down.shape[0])),
    mlp_composed,
    of=MLPS,
    tensors={**_TENSORS, "down": "JN"},
    independent="*",
    checks=check_mlp,
    moves=_mlp_moves,
    trained=_train_mlp,
)


def launched(x: Tensor, weight: Tensor, activation: str, ways: Ways) -> Tensor:
    """act(x · gateᵀ) · (x · upᵀ) as one operator, forward and back by `ways`; checked."""
    result: Tensor = operator(x, weight, activation, ways.forward, ways.grad_x, ways.grad_weight)
    return result


def launched_mlp(x: Tensor, weight: Tensor, down: Tensor, activation: str, ways: Ways) -> Tensor:
    """The MLP as one operator, in training as two, forward and back by `ways`; checked."""
    result: Tensor = mlp_operator(
        x, weight, down, activation, ways.forward, ways.grad_x, ways.grad_weight
    )
    return result
