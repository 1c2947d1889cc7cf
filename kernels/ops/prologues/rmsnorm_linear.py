"""RMSNorm and a product, y = RMSNorm(x) · Wᵀ + b, forward and backward (chapter 11).

    h = x / √(mean(x²) + eps) · γ,      y = h · Wᵀ + b

`layernorm_linear` without the mean, in the same ways. Folded it is simpler: nothing is subtracted
from the product, so that a large mean costs no digits, and the sums of squares need no shift.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F

from kernels.ops.norms.rmsnorm import eager as eager_norm
from kernels.ops.norms.rmsnorm import reference as norm_reference
from kernels.ops.products.linear import eager as eager_product
from kernels.ops.products.linear import reference as product_reference
from kernels.ops.prologues import common, ways
from kernels.registry import register

Tensor = torch.Tensor

NAME = "rmsnorm_linear"


def reference(
    x: Tensor,
    norm_weight: Tensor | None,
    weight: Tensor,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """Both equations in float64; x (..., K), returns float64 (..., N)."""
    return product_reference(norm_reference(x, norm_weight, eps), weight, bias)


def eager(
    x: Tensor,
    norm_weight: Tensor | None,
    weight: Tensor,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """The maths, one PyTorch operator after the other; returns x's dtype."""
    return eager_product(eager_norm(x, norm_weight, eps), weight, bias)


def torch_rmsnorm_linear(
    x: Tensor,
    norm_weight: Tensor | None,
    weight: Tensor,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """PyTorch's own two operators."""
    return F.linear(F.rms_norm(x, x.shape[-1:], norm_weight, eps), weight, bias)


def rmsnorm_linear(
    x: Tensor,
    norm_weight: Tensor | None,
    weight: Tensor,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """RMSNorm over x's last dimension and a product; all as `layernorm_linear`, without a mean."""
    return ways.best(NAME, x, norm_weight, None, weight, bias, eps)


def _by(way: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def call(
        x: Tensor,
        norm_weight: Tensor | None,
        weight: Tensor,
        bias: Tensor | None = None,
        eps: float = 1e-5,
    ) -> Tensor:
        result: Tensor = way(NAME, x, norm_weight, None, weight, bias, eps)
        return result

    return call


OP = register(
    common.op_of(
        NAME,
        reference,
        _by,
        eager,
        torch_rmsnorm_linear,
    )
)
