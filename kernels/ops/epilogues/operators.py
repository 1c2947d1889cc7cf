"""How a product with an epilogue meets PyTorch: what its operators have in common.

Each operation has an operator for calls without gradients, and one for training, which keeps what
the way back needs. All go back by the product's own operators (`products/operators.py`).
"""

from __future__ import annotations

from typing import Any

import torch

from kernels.launch import capability, for_card
from kernels.ops.chains.bias_gelu import gelu_by_operators, gelu_slope_by_operators
from kernels.ops.chains.gated import GELU_ERF, GELU_TANH, SILU
from kernels.ops.chains.gated_operators import activate
from kernels.ops.epilogues import backward
from kernels.ops.epilogues.configurations import WAYS
from kernels.ops.epilogues.moves import activation_step, rows_of
from kernels.ops.products.configurations import EVERYWHERE, Ways
from kernels.ops.shared.operators import define, like, refuse_second_derivative
from kernels.registry import Moves

Tensor = torch.Tensor

GELU_FORMS = {"tanh": GELU_TANH, "none": GELU_ERF}
GATED = ("linear_swiglu", "swiglu_mlp", "geglu_mlp")


def gelu_form(approximate: str) -> str:
    """The activation that `approximate` names, as `torch.nn.functional.gelu` takes it.

    ValueError for another.
    """
    if approximate not in GELU_FORMS:
        raise ValueError(f"approximate is {approximate!r}; GELU takes 'tanh' or 'none'")
    return GELU_FORMS[approximate]


def ways(x: Any) -> Ways:
    """Which kernels a public function takes for x: on a CPU the package's own, interpreted.

    On a GPU those of `configurations.WAYS`, chosen by capability alone.
    """
    if not getattr(x, "is_cuda", False) or not torch.cuda.is_available():
        return EVERYWHERE
    return for_card(WAYS, capability(x.device))


def activated(h: Tensor, activation: str) -> Tensor:
    """SiLU or GELU of fp32 by PyTorch's operators, each with a derivative in every mode."""
    if activation == GELU_TANH:
        return gelu_by_operators(h)
    if activation == GELU_ERF:
        return 0.5 * h * (1 + torch.erf(h * 0.5**0.5))
    return activate(h, activation)


def slope(h: Tensor, activation: str) -> Tensor:
    """The derivative of SiLU or GELU of fp32 by PyTorch's operators."""
    if activation == GELU_TANH:
        return gelu_slope_by_operators(h)
    if activation == SILU:
        share = torch.sigmoid(h)
        return share + h * share * (1 - share)
    density = torch.exp(-0.5 * h * h) * (2 * torch.pi) ** -0.5
    return 0.5 * (1 + torch.erf(h * 0.5**0.5)) + h * density


def _of_activation_composed(dy: Tensor, kept: Tensor, activation: str) -> Tensor:
    return (dy.float() * slope(kept.float(), activation)).to(kept.dtype)


def _of_gate_composed(dy: Tensor, kept: Tensor, activation: str) -> Tensor:
    gate, up = kept.float().chunk(2, -1)
    dy32 = dy.float()
    both = dy32 * up * slope(gate, activation), dy32 * activated(gate, activation)
    return torch.cat(both, -1).to(kept.dtype)


def _of_activation_moves(dy: Tensor, kept: Tensor, **_: str) -> Moves | None:
    rows = rows_of(kept)
    step = activation_step(rows, kept.shape[-1], kept.element_size())
    return Moves.of(step) if rows else None


def _of_gate_moves(dy: Tensor, kept: Tensor, **_: str) -> Moves | None:
    rows = rows_of(dy)
    step = activation_step(rows, dy.shape[-1], dy.element_size(), gated=True)
    return Moves.of(step) if rows else None


of_activation = define(
    "linear_activation_backward(Tensor dy, Tensor kept, str activation) -> Tensor",
    backward.of_activation,
    lambda dy, kept, activation: like(kept),
    _of_activation_composed,
    of=["linear_bias_gelu", "layernorm_linear_gelu"],
    tensors={"dy": "*N", "kept": "*N"},
    independent="*",
    moves=_of_activation_moves,
)
of_gate = define(
    "linear_gate_backward(Tensor dy, Tensor kept, str activation) -> Tensor",
    backward.of_gate,
    lambda dy, kept, activation: like(kept),
    _of_gate_composed,
    of=GATED,
    tensors={"dy": "*N", "kept": "*P"},
    independent="*",
    moves=_of_gate_moves,
)
for _name in ("linear_activation_backward", "linear_gate_backward"):
    refuse_second_derivative(
        _name, "products with an epilogue have", "torch.nn.functional.linear and an activation"
    )


def first(outputs: Any) -> Tensor:
    """y of what a training forward returns."""
    y: Tensor = outputs[0]
    return y
