"""LayerNorm, a product, and GELU behind it, y = gelu(LayerNorm(x) · Wᵀ + b) (chapter 11).

    n = (x − mean) · inv_std · γ + β,   h = n · Wᵀ + b,   y = gelu(h)

The first half of an encoder layer's MLP before its norm: a prologue and an epilogue of one product.
x has the shape (..., K), γ and β (`norm_weight`, `norm_bias`) K elements, W (N, K), b (N,), y
(..., N). With M rows and elements of s bytes it must move (M·K + 2·K + N·K + N + M·N)·s bytes. In
PyTorch's three launches n and h are written and read, 2·M·K·s and 2·M·N·s more; in `two_kernels` n
alone is, and in one launch nothing.

The ways are `layernorm_linear`'s, each with GELU of the sums before they leave their registers. In
training the product writes h too, which the way back reads (`gelu_operators`); the norm is computed
again, so that x and h alone are kept.

Source: Hendrycks, Gimpel, "Gaussian Error Linear Units" (arXiv:1606.08415).
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F

from kernels.ops.epilogues.linear_bias_gelu import eager as eager_product
from kernels.ops.epilogues.linear_bias_gelu import reference as product_reference
from kernels.ops.epilogues.operators import gelu_form
from kernels.ops.norms.layernorm import eager as eager_norm
from kernels.ops.norms.layernorm import reference as norm_reference
from kernels.ops.prologues import common, ways
from kernels.ops.prologues.gelu_operators import NAME
from kernels.registry import register

Tensor = torch.Tensor


def reference(
    x: Tensor,
    norm_weight: Tensor | None,
    norm_bias: Tensor | None,
    weight: Tensor,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    approximate: str = "tanh",
) -> Tensor:
    """All three equations in float64; x (..., K), returns float64 (..., N)."""
    n = norm_reference(x, norm_weight, norm_bias, eps)
    return product_reference(n, weight, bias, approximate)


def eager(
    x: Tensor,
    norm_weight: Tensor | None,
    norm_bias: Tensor | None,
    weight: Tensor,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    approximate: str = "tanh",
) -> Tensor:
    """The maths, one PyTorch operator after the other; returns x's dtype."""
    return eager_product(eager_norm(x, norm_weight, norm_bias, eps), weight, bias, approximate)


def torch_layernorm_linear_gelu(
    x: Tensor,
    norm_weight: Tensor | None,
    norm_bias: Tensor | None,
    weight: Tensor,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    approximate: str = "tanh",
) -> Tensor:
    """PyTorch's own three operators."""
    n = F.layer_norm(x, x.shape[-1:], norm_weight, norm_bias, eps)
    return F.gelu(F.linear(n, weight, bias), approximate=approximate)


def layernorm_linear_gelu(
    x: Tensor,
    norm_weight: Tensor | None,
    norm_bias: Tensor | None,
    weight: Tensor,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    approximate: str = "tanh",
) -> Tensor:
    """GELU of LayerNorm over x's last dimension and a product: gelu(LayerNorm(x) · weightᵀ + bias).

    Arguments, errors, the result and the choice of a way are `layernorm_linear`'s, and
    `approximate` is as in `torch.nn.functional.gelu`: "tanh", or "none" for the form with the error
    function; ValueError for another. In training the product's launch keeps what GELU was taken of,
    (..., N), and the norm is computed again.
    """
    told = x, norm_weight, norm_bias, weight, bias, eps
    return ways.best(NAME, *told, activation=gelu_form(approximate))


def _by(way: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def call(
        x: Tensor,
        norm_weight: Tensor | None,
        norm_bias: Tensor | None,
        weight: Tensor,
        bias: Tensor | None = None,
        eps: float = 1e-5,
        approximate: str = "tanh",
    ) -> Tensor:
        told = x, norm_weight, norm_bias, weight, bias, eps
        result: Tensor = way(NAME, *told, activation=gelu_form(approximate))
        return result

    return call


OP = register(
    common.op_of(
        NAME,
        reference,
        _by,
        eager,
        torch_layernorm_linear_gelu,
    )
)
