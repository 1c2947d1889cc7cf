"""RMSNorm of a sum, as it stands between the blocks of a transformer (chapters 06, 07).

    h = x + residual,   y = RMSNorm(h) · weight

x, residual, h and y have the shape (..., N). Both outputs are wanted: y goes into the next block, h
past it as the next residual. In two launches h is written and read again at once: 5 tensors of R·N
elements move; fused, 4 do: x and residual in, h and y out.
"""

from __future__ import annotations

import functools

import torch

from kernels.ops.norms import common, rmsnorm
from kernels.ops.norms.forward import forward
from kernels.ops.norms.moves import moves
from kernels.ops.norms.operators import norm_train
from kernels.ops.norms.peers import compiled_add_rms_norm, liger_add_rms_norm, torch_add_rms_norm
from kernels.ops.norms.tuning import backward_candidates, candidates
from kernels.ops.shared.arguments import check_norm, check_residual
from kernels.ops.shared.available import needs_gpu, needs_liger
from kernels.ops.shared.operators import define, like
from kernels.registry import Backward, Op, Pass, Variant, cases, named, register

Tensor = torch.Tensor


def reference(
    x: Tensor,
    residual: Tensor,
    weight: Tensor | None = None,
    eps: float = 1e-5,
) -> tuple[Tensor, Tensor]:
    """(y, h) in float64, straight from the equation; all (..., N)."""
    h = x.double() + residual.double()
    return rmsnorm.reference(h, weight, eps), h


def eager(
    x: Tensor,
    residual: Tensor,
    weight: Tensor | None = None,
    eps: float = 1e-5,
) -> tuple[Tensor, Tensor]:
    """The maths, one PyTorch operator after the other; h in x's dtype, the norm in fp32."""
    h = x + residual
    return rmsnorm.eager(h, weight, eps), h


def _launch(
    x: Tensor, residual: Tensor, weight: Tensor | None, eps: float
) -> tuple[Tensor, Tensor]:
    return forward(x, residual, weight, None, eps, centred=False)[:2]


def _check(x: Tensor, residual: Tensor, weight: Tensor | None, _eps: float) -> None:
    check_norm(x, weight, None)
    check_residual(x, residual)


def _trained(
    x: Tensor, residual: Tensor, weight: Tensor | None, eps: float
) -> tuple[Tensor, Tensor]:
    if residual is None:  # which norm_train takes
        check_residual(x, residual)
    y, h, *_ = norm_train(x, residual, weight, None, eps, False)
    return y, h


_operator = define(
    "add_rms_norm(Tensor x, Tensor residual, Tensor? weight, float eps) -> (Tensor, Tensor)",
    _launch,
    lambda x, residual, weight, eps: (like(x), like(x)),
    eager,
    of=["add_rmsnorm"],
    tensors=common.operator_dims("x", "residual", "weight"),
    independent="*",
    checks=_check,
    trained=_trained,
)


def add_rms_norm(
    x: Tensor,
    residual: Tensor,
    weight: Tensor | None = None,
    eps: float = 1e-5,
) -> tuple[Tensor, Tensor]:
    """Return (RMSNorm(x + residual), x + residual), in one launch.

    x, residual: (..., N) of one shape and dtype; all else as `rms_norm`, gradients included. The
    sum is rounded to x's dtype, and what is normalised is the rounded sum. If x and residual have
    different strides, both are copied first.
    """
    result: tuple[Tensor, Tensor] = _operator(x, residual, weight, eps)
    return result


BOTH = ("fwd", "bwd")
TENSORS = ("x", "residual", "weight")

OP = register(
    Op(
        name="add_rmsnorm",
        suite="norms",
        dims="RN",
        tensors=common.dims(TENSORS),
        outputs=common.outputs(TENSORS),
        independent="R",
        inputs=functools.partial(common.inputs, TENSORS),
        reference=reference,
        variants=named(
            Variant("eager", eager, BOTH, counted="aten"),
            Variant("torch", torch_add_rms_norm, BOTH),
            Variant("compile", compiled_add_rms_norm, BOTH, unavailable=needs_gpu),
            Variant("fused", add_rms_norm, BOTH, counted="triton", moves=moves(TENSORS)),
            Variant("liger", liger_add_rms_norm, BOTH, unavailable=needs_liger),
        ),
        shapes=common.SHAPES,
        beyond=common.BEYOND,
        forward=Pass(
            cost=common.forward_cost(TENSORS),
            tolerance=common.forward_tolerance(TENSORS),
            cases=cases([(512, 1024), *common.LARGE], "bf16"),
            candidates=candidates(centred=False),
        ),
        backward=Backward(
            cost=common.backward_cost(TENSORS),
            tolerance=common.backward_tolerance(TENSORS),
            cases=common.STEPS + cases([(4096, 4096), (16384, 8192)], "bf16"),
            candidates=backward_candidates(centred=False),
            differentiates=TENSORS,
            train_cases=common.STEPS,
            beyond=common.BEYOND_BACK,
        ),
    )
)
