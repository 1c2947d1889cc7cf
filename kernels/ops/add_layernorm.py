"""LayerNorm of a sum, as it stands between the blocks of a transformer (chapters 06, 07).

    h = x + residual,   y = LayerNorm(h) · weight + bias

x, residual, h and y have the shape (..., N). Both outputs are wanted: y goes into the next block, h
past it as the next residual. In two launches h is written and read again at once: 5 tensors of R·N
elements move; fused, 4 do: x and residual in, h and y out.
"""

from __future__ import annotations

import functools

import torch

from kernels.ops import _norm_common, layernorm
from kernels.ops._layernorm_peers import needs_gpu
from kernels.ops._layout import check_norm, check_residual
from kernels.ops._norm_forward import candidates, forward
from kernels.ops._norm_operators import define, like, needs_gradient, norm_train
from kernels.ops._norm_peers import compiled_add_layer_norm, torch_add_layer_norm
from kernels.ops._norm_tuning import backward_candidates
from kernels.registry import Op, Variant, register

Tensor = torch.Tensor


def reference(
    x: Tensor,
    residual: Tensor,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> tuple[Tensor, Tensor]:
    """(y, h) in float64, straight from the equation; all (..., N)."""
    h = x.double() + residual.double()
    return layernorm.reference(h, weight, bias, eps), h


def eager(
    x: Tensor,
    residual: Tensor,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> tuple[Tensor, Tensor]:
    """The maths, one PyTorch operator after the other; h in x's dtype, the norm in fp32."""
    h = x + residual
    return layernorm.eager(h, weight, bias, eps), h


def _launch(
    x: Tensor, residual: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float
) -> tuple[Tensor, Tensor]:
    return forward(x, residual, weight, bias, eps, centred=True)[:2]


_operator = define(
    "add_layer_norm(Tensor x, Tensor residual, Tensor? weight, Tensor? bias, float eps)"
    " -> (Tensor, Tensor)",
    _launch,
    lambda x, residual, weight, bias, eps: (like(x), like(x)),
)


def add_layer_norm(
    x: Tensor,
    residual: Tensor,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> tuple[Tensor, Tensor]:
    """Return (LayerNorm(x + residual), x + residual), in one launch.

    x, residual: (..., N) of one shape and dtype; all else as `layer_norm`, gradients included. The
    sum is rounded to x's dtype, and what is normalised is the rounded sum. If x and residual have
    different strides, both are copied first.
    """
    check_norm(x, weight, bias)
    check_residual(x, residual)
    if needs_gradient(x, residual, weight, bias):
        y, h, _, _ = norm_train(x, residual, weight, bias, eps, True)
    else:
        y, h = _operator(x, residual, weight, bias, eps)
    return y, h


BOTH = ("fwd", "bwd")
TENSORS = ("x", "residual", "weight", "bias")

OP = register(
    Op(
        name="add_layernorm",
        suite="norms",
        inputs=functools.partial(_norm_common.inputs, TENSORS),
        reference=reference,
        variants={
            "eager": Variant("eager", eager, BOTH, counted="aten"),
            "torch": Variant("torch", torch_add_layer_norm, BOTH, counted="aten"),
            "compile": Variant("compile", compiled_add_layer_norm, BOTH, unavailable=needs_gpu),
            "fused": Variant("fused", add_layer_norm, BOTH, counted="triton"),
        },
        cost=_norm_common.cost(TENSORS),
        tolerance=_norm_common.tolerance(TENSORS),
        shapes=_norm_common.SHAPES,
        rows_independent=True,
        operators=("add_layer_norm",),
        candidates=lambda shape, _dtype: candidates(shape, centred=True),
        backward_candidates=backward_candidates(centred=True),
        cells={
            "fwd": _norm_common.cells([(512, 1024), *_norm_common.LARGE], "bf16"),
            "bwd": _norm_common.cells([(4096, 4096), (16384, 8192)], "bf16"),
        },
        differentiates=TENSORS,
        gradient_tolerance=_norm_common.gradient_tolerance(TENSORS),
    )
)
