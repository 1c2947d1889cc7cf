"""LayerNorm and a product, y = LayerNorm(x) · Wᵀ + b, forward and backward (chapter 11).

    h = (x − mean) · inv_std · γ + β,      y = h · Wᵀ + b

x has the shape (..., K), γ and β (`norm_weight`, `norm_bias`) K elements, W (N, K), b (N,), y
(..., N). With M rows and elements of s bytes it must move (M·K + 2·K + N·K + N + M·N)·s bytes; in
two kernels 2·M·K·s more, for h is written and read, if the L2 doesn't keep it in between. FLOPs are
the product's 2·M·N·K and some 7·M·K of the norm.

The ways, simplest first:

- `two_kernels`: the norm, then the product. What TransformerEngine's module of this name runs.
- `one_kernel`: the norm as the product's prologue. Each column of tiles normalises its rows of x
  again, after it has read them for their statistics: ⌈N / BLOCK_N⌉ times the norm's work.
- `one_kernel_folded`: γ goes into W before, the statistics come from the tiles that the product
  reads anyway, and mean and inv_std are put right in the finished sums. `folding` has the equation,
  and what it does to rounding. `one_kernel_folding` folds at each call, as training would have to.
- `fused_hopper`: the folded way by hand for Hopper.

Going back the norm is computed again rather than kept: x alone is saved.

Source: NVIDIA, TransformerEngine, `LayerNormLinear` (2.9), for the two kernels.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F

from kernels.ops.norms.layernorm import eager as eager_norm
from kernels.ops.norms.layernorm import reference as norm_reference
from kernels.ops.products.linear import eager as eager_product
from kernels.ops.products.linear import reference as product_reference
from kernels.ops.prologues import common, ways
from kernels.registry import register

Tensor = torch.Tensor

NAME = "layernorm_linear"


def reference(
    x: Tensor,
    norm_weight: Tensor | None,
    norm_bias: Tensor | None,
    weight: Tensor,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """Both equations in float64; x (..., K), returns float64 (..., N)."""
    return product_reference(norm_reference(x, norm_weight, norm_bias, eps), weight, bias)


def eager(
    x: Tensor,
    norm_weight: Tensor | None,
    norm_bias: Tensor | None,
    weight: Tensor,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """The maths, one PyTorch operator after the other; returns x's dtype."""
    return eager_product(eager_norm(x, norm_weight, norm_bias, eps), weight, bias)


def torch_layernorm_linear(
    x: Tensor,
    norm_weight: Tensor | None,
    norm_bias: Tensor | None,
    weight: Tensor,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """PyTorch's own two operators."""
    return F.linear(F.layer_norm(x, x.shape[-1:], norm_weight, norm_bias, eps), weight, bias)


def layernorm_linear(
    x: Tensor,
    norm_weight: Tensor | None,
    norm_bias: Tensor | None,
    weight: Tensor,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """LayerNorm over x's last dimension and a product: LayerNorm(x) · weightᵀ + bias.

    x: (..., K) in fp16, bf16 or fp32, any strides; weight: (N, K) and bias: (N,) or None in x's
    dtype; norm_weight, norm_bias: (K,) in one of these dtypes, or None. Sums are in fp32. Returns a
    new contiguous tensor (..., N) of x's dtype. ValueError or TypeError names the argument, what it
    got and what it takes; NotImplementedError if a gradient that our backward made is
    differentiated again.

    It takes two kernels, the norm and the product, and going back computes the norm again. Where
    nobody asks for a gradient and `weight` is a parameter, Hopper takes one kernel, with weights
    folded before (`ways.best` is the rule). They are kept, and made again when one of the four
    parameters has changed; `folding.kept_fold` says which changes are not seen. Folded, errors are
    `torch`'s at means up to 100 standard deviations, in 16 bits; beyond, what fp32 loses in a
    product of large x comes through (`folding` tells how much).

    Inside torch.compile, a transform of `torch.func` and forward-mode differentiation nothing is
    folded. On a CPU the kernels are interpreted.
    """
    return ways.best(NAME, x, norm_weight, norm_bias, weight, bias, eps)


def _by(way: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def call(
        x: Tensor,
        norm_weight: Tensor | None,
        norm_bias: Tensor | None,
        weight: Tensor,
        bias: Tensor | None = None,
        eps: float = 1e-5,
    ) -> Tensor:
        result: Tensor = way(NAME, x, norm_weight, norm_bias, weight, bias, eps)
        return result

    return call


OP = register(
    common.op_of(
        NAME,
        reference,
        _by,
        eager,
        torch_layernorm_linear,
    )
)
