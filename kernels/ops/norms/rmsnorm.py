"""RMSNorm over the last dimension (chapters 06, 07).

    y = x / √(mean(x²) + eps) · weight

LayerNorm without the mean: x is not centred, and there is no bias. x and y have the shape (..., N),
weight has N elements and may be missing. With R rows and elements of s bytes a pass over memory
reads R·N·s of x and N·s of weight, and writes R·N·s.

Source: Zhang, Sennrich, "Root Mean Square Layer Normalization" (arXiv:1910.07467).
"""

from __future__ import annotations

import functools

import torch

from kernels.ops.norms import common
from kernels.ops.norms.forward import forward
from kernels.ops.norms.moves import moves
from kernels.ops.norms.operators import norm_train
from kernels.ops.norms.peers import (
    compiled_rms_norm,
    helion_rms_norm,
    liger_rms_norm,
    max_autotuned_rms_norm,
    torch_rms_norm,
)
from kernels.ops.norms.tuning import backward_candidates, candidates
from kernels.ops.shared.arguments import check_norm
from kernels.ops.shared.available import MAX_AUTOTUNE_CASES, needs_gpu, needs_helion, needs_liger
from kernels.ops.shared.operators import define, like
from kernels.registry import Backward, Op, Pass, Variant, cases, named, register

Tensor = torch.Tensor


def reference(x: Tensor, weight: Tensor | None = None, eps: float = 1e-5) -> Tensor:
    """RMSNorm in float64, straight from the equation; x (..., N), returns float64 (..., N)."""
    x = x.double()
    y = x / torch.sqrt((x**2).mean(-1, keepdim=True) + eps)
    return y if weight is None else y * weight.double()


def eager(x: Tensor, weight: Tensor | None = None, eps: float = 1e-5) -> Tensor:
    """The maths, one PyTorch operator after the other, in fp32; returns x's dtype."""
    x32 = x.float()
    y = x32 * torch.rsqrt((x32 * x32).mean(-1, keepdim=True) + eps)
    y = y if weight is None else y * weight
    return y.to(x.dtype)


def _launch(x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
    return forward(x, None, weight, None, eps, centred=False)[0]


_operator = define(
    "rms_norm(Tensor x, Tensor? weight, float eps) -> Tensor",
    _launch,
    lambda x, weight, eps: like(x),
    eager,
    of=["rmsnorm"],
    tensors=common.operator_dims("x", "weight"),
    independent="*",
    checks=lambda x, weight, _eps: check_norm(x, weight, None),
    trained=lambda x, weight, eps: norm_train(x, None, weight, None, eps, False)[0],
)


def rms_norm(x: Tensor, weight: Tensor | None = None, eps: float = 1e-5) -> Tensor:
    """RMSNorm over the last dimension of `x`, in one launch.

    x: (..., N) in fp16, bf16 or fp32, any strides, N at least 1; weight: (N,) in one of these
    dtypes, or None. All else as `layer_norm`, gradients included.
    """
    result: Tensor = _operator(x, weight, eps)
    return result


BOTH = ("fwd", "bwd")
TENSORS = ("x", "weight")

OP = register(
    Op(
        name="rmsnorm",
        suite="norms",
        dims="RN",
        tensors=common.dims(TENSORS),
        outputs=common.outputs(TENSORS),
        independent="R",
        inputs=functools.partial(common.inputs, TENSORS),
        reference=reference,
        variants=named(
            Variant("eager", eager, BOTH, counted="aten"),
            Variant("torch", torch_rms_norm, BOTH),
            Variant("compile", compiled_rms_norm, BOTH, unavailable=needs_gpu),
            Variant(
                "compile_max_autotune",
                max_autotuned_rms_norm,
                unavailable=needs_gpu,
                cases=MAX_AUTOTUNE_CASES,
            ),
            Variant("fused", rms_norm, BOTH, counted="triton", moves=moves(TENSORS)),
            Variant("liger", liger_rms_norm, BOTH, unavailable=needs_liger),
            Variant("helion", helion_rms_norm, unavailable=needs_helion),
        ),
        shapes=common.SHAPES,
        beyond=common.BEYOND,
        forward=Pass(
            cost=common.forward_cost(TENSORS),
            tolerance=common.forward_tolerance(TENSORS),
            cases=cases(common.SHAPES, "bf16")
            + cases(common.SHAPES, "fp16")
            + cases(common.LARGE, "fp32"),
            candidates=candidates(centred=False),
        ),
        backward=Backward(
            cost=common.backward_cost(TENSORS),
            tolerance=common.backward_tolerance(TENSORS),
            cases=common.STEPS + cases(common.LARGE, "bf16"),
            candidates=backward_candidates(centred=False),
            differentiates=TENSORS,
            train_cases=common.STEPS,
            beyond=common.BEYOND_BACK,
        ),
    )
)
