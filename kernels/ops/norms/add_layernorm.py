"""LayerNorm of a sum, as it stands between the blocks of a transformer (chapters 06, 07).

    h = x + residual,   y = LayerNorm(h) · weight + bias

x, residual, h and y have the shape (..., N). Both outputs are wanted: y goes into the next block, h
past it as the next residual. In two launches h is written and read again at once: 5 tensors of R·N
elements move; fused, 4 do: x and residual in, h and y out.
"""

from __future__ import annotations

import functools

import torch

from kernels.ops.norms import common, layernorm
from kernels.ops.norms.forward import forward
from kernels.ops.norms.moves import moves
from kernels.ops.norms.operators import norm_train
from kernels.ops.norms.peers import compiled_add_layer_norm, torch_add_layer_norm
from kernels.ops.norms.tuning import backward_candidates, candidates
from kernels.ops.shared.arguments import check_norm, check_residual
from kernels.ops.shared.available import needs_gpu
from kernels.ops.shared.operators import define, like
from kernels.registry import Backward, Op, Pass, Variant, cases, named, register

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


def _check(
    x: Tensor, residual: Tensor, weight: Tensor | None, bias: Tensor | None, _eps: float
) -> None:
    check_norm(x, weight, bias)
    check_residual(x, residual)


def _trained(
    x: Tensor, residual: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float
) -> tuple[Tensor, Tensor]:
    if residual is None:  # which norm_train takes
        check_residual(x, residual)
    y, h, *_ = norm_train(x, residual, weight, bias, eps, True)
    return y, h


_operator = define(
    "add_layer_norm(Tensor x, Tensor residual, Tensor? weight, Tensor? bias, float eps)"
    " -> (Tensor, Tensor)",
    _launch,
    lambda x, residual, weight, bias, eps: (like(x), like(x)),
    eager,
    of=["add_layernorm"],
    tensors=common.operator_dims("x", "residual", "weight", "bias"),
    independent="*",
    checks=_check,
    trained=_trained,
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
    result: tuple[Tensor, Tensor] = _operator(x, residual, weight, bias, eps)
    return result


BOTH = ("fwd", "bwd")
TENSORS = ("x", "residual", "weight", "bias")

OP = register(
    Op(
        name="add_layernorm",
        suite="norms",
        dims="RN",
        tensors=common.dims(TENSORS),
        outputs=common.outputs(TENSORS),
        independent="R",
        inputs=functools.partial(common.inputs, TENSORS),
        reference=reference,
        variants=named(
            Variant("eager", eager, BOTH, counted="aten"),
            Variant("torch", torch_add_layer_norm, BOTH, counted="aten"),
            Variant("compile", compiled_add_layer_norm, BOTH, unavailable=needs_gpu),
            Variant("fused", add_layer_norm, BOTH, counted="triton", moves=moves(TENSORS)),
        ),
        shapes=common.SHAPES,
        beyond=common.BEYOND,
        forward=Pass(
            cost=common.forward_cost(TENSORS),
            tolerance=common.forward_tolerance(TENSORS),
            cases=cases([(512, 1024), *common.LARGE], "bf16"),
            candidates=candidates(centred=True),
        ),
        backward=Backward(
            cost=common.backward_cost(TENSORS),
            tolerance=common.backward_tolerance(TENSORS),
            cases=common.STEPS + cases([(4096, 4096), (16384, 8192)], "bf16"),
            candidates=backward_candidates(centred=True),
            differentiates=TENSORS,
            train_cases=common.STEPS,
            beyond=common.BEYOND_BACK,
        ),
    )
)
