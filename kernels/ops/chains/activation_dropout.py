"""An activation and a dropout, as they stand in a transformer's MLP: y = dropout(act(x)).

    y = act(x) · 65536 / (65536 − T) where the element is kept, else 0
    dx = dropout(dy) · act'(x)

x and y have the shape (..., N); act is ReLU, or GELU in its tanh form or with the error function.
Forward reads x and writes y, 2·R·N·s bytes for R rows and elements of s bytes; back reads dy and x
and writes dx, 3·R·N·s. Nothing is kept but x: mask and slope are made again.

Sources: Hendrycks, Gimpel, "Gaussian Error Linear Units" (arXiv:1606.08415); Srivastava et al.,
"Dropout" (JMLR 15, 2014).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from kernels.ops.chains import dropped_common as common
from kernels.ops.chains.dropped import RELU
from kernels.ops.chains.dropped_operators import (
    SEED_BYTES,
    backward_moves,
    forward_moves,
    operator,
)
from kernels.ops.chains.gated import GELU_ERF, GELU_TANH
from kernels.ops.shared.available import needs_gpu
from kernels.ops.shared.compiled import compiled_each
from kernels.philox import kept_elements, scale
from kernels.registry import (
    Backward,
    Case,
    Cost,
    Moves,
    Op,
    Pass,
    Random,
    Shape,
    Variant,
    cases,
    named,
    register,
)

Tensor = torch.Tensor

NAME = "activation_dropout"
_BY_TORCH: dict[str, Callable[..., Tensor]] = {
    RELU: F.relu,
    GELU_ERF: F.gelu,
    GELU_TANH: lambda x: F.gelu(x, approximate="tanh"),
}


def _active(x: Tensor, activation: str) -> Tensor:
    if activation == RELU:
        return x.clamp(min=0)
    if activation == GELU_ERF:
        return 0.5 * x * (1 + torch.erf(x * 0.5**0.5))
    u = (2 / torch.pi) ** 0.5 * (x + 0.044715 * x**3)
    return 0.5 * x * (1 + torch.tanh(u))


def reference(
    x: Tensor, activation: str, p: float, seed_offset: Tensor, first_row: int = 0
) -> Tensor:
    """The chain in float64; `first_row` is the place of x's first row in the whole tensor."""
    kept = kept_elements(tuple(x.shape), p, seed_offset, first_row * x.shape[-1])
    return _active(x.double(), activation) * scale(p) * kept


def outcomes(x: Tensor, activation: str, p: float, seed_offset: Tensor) -> tuple[Tensor, Tensor]:
    """What y is where an element is kept, and where it is dropped, in float64."""
    active = _active(x.double(), activation)
    return active / common.kept_share(p), torch.zeros_like(active)


def eager(x: Tensor, activation: str, p: float, seed_offset: Tensor) -> Tensor:
    """The maths, one PyTorch operator after the other, in fp32; a mask of PyTorch's own."""
    active = _active(x.float(), activation)
    return (active * (torch.rand_like(active) >= p) / (1 - p)).to(x.dtype)


def torch_chain(x: Tensor, activation: str, p: float, seed_offset: Tensor) -> Tensor:
    """PyTorch's operator for each step; a mask of PyTorch's own."""
    return F.dropout(_BY_TORCH[activation](x), p)


def activation_dropout(
    x: Tensor, activation: str, p: float, seed_offset: Tensor | None = None
) -> Tensor:
    """dropout(act(x), p) in one launch of a kernel in Triton, and back in one.

    x: (..., N) in fp16, bf16 or fp32; with gaps it is copied first. activation: "relu",
    "gelu_tanh" or "gelu_erf". p: the probability to drop, 0 to 1. seed_offset: int64 (2,), the seed
    and the number of the call, in the memory of x's device; None is for p = 0 alone. Arithmetic is
    in fp32. Returns a new contiguous tensor of x's shape and dtype.

    The backward makes the mask again from seed_offset as it stands then: change it between steps,
    not between a forward and its backward. ValueError or TypeError names the argument, what it got
    and what it takes; NotImplementedError if a gradient that backward() made is differentiated
    again. Inside a transform of `torch.func` PyTorch's operators compute it, with the same mask.
    """
    if activation not in _BY_TORCH:
        raise ValueError(f"activation is {activation!r}; it takes one of {tuple(_BY_TORCH)}")
    result: Tensor = operator(x, None, seed_offset, p, activation)
    return result


def inputs(
    shape: Shape,
    dtype: torch.dtype,
    device: torch.device | str,
    seed: int,
    *,
    activation: str = GELU_ERF,
    p: float = 0.1,
) -> dict[str, Any]:
    """Fresh random x (rows, N), the activation, the probability to drop and a seed."""
    return common.inputs(("x",), shape, dtype, device, seed, p) | {"activation": activation}


def _cost(flops: int, n_read: int, case: Case) -> Cost:
    """A tensor or two in, one out; the seed's 16 bytes once. Random numbers are counted nowhere."""
    size = case.shape[0] * case.shape[1]
    each = size * case.dtype.itemsize
    return Cost(flops * size, n_read * each + SEED_BYTES * common.drawn(case), each)


def forward_cost(case: Case) -> Cost:
    """What it must do at least: GELU's 9 FLOPs an element and dropout's factor."""
    return _cost(10, 1, case)


def backward_cost(case: Case) -> Cost:
    """What its backward must do at least: 17 FLOPs for the slope, two products."""
    return _cost(19, 2, case)


def moves(case: Case, pass_: str) -> Moves:
    """One launch each way, which asks for each element once."""
    x = torch.empty(case.shape, dtype=case.dtype, device="meta")
    p = float(dict(case.options).get("p", 0.1))
    told = backward_moves(x, x, p) if pass_ == "bwd" else forward_moves(x, None, p)
    return told or Moves(0)


_BOTH = ("fwd", "bwd")
OP = register(
    Op(
        name=NAME,
        suite="encoder",
        dims="RN",
        tensors={"x": "RN"},
        outputs={"y": "RN"},
        independent="R",
        inputs=inputs,
        reference=reference,
        variants=named(
            Variant("eager", eager, _BOTH, counted="aten", own_random=True),
            Variant("torch", torch_chain, _BOTH, counted="aten", own_random=True),
            Variant(
                "compile",
                compiled_each(torch_chain),
                _BOTH,
                unavailable=needs_gpu,
                own_random=True,
            ),
            Variant("fused", activation_dropout, _BOTH, counted="triton", moves=moves),
        ),
        shapes=common.SHAPES,
        beyond=common.BEYOND,
        small=common.SMALL,
        options=((), (("activation", GELU_TANH),), (("activation", RELU), ("p", 0.5))),
        forward=Pass(
            cost=forward_cost,
            tolerance=common.tolerance,
            cases=cases(common.SHAPES, "bf16"),
        ),
        backward=Backward(
            cost=backward_cost,
            tolerance=common.tolerance,
            cases=cases(common.SHAPES, "bf16"),
            differentiates=("x",),
        ),
        random=Random(outcomes),
    )
)
