"""LayerNorm and a linear layer as one module, in training and inference."""

from __future__ import annotations

import torch
from torch import nn

from kernels.ops.norms.layernorm import layer_norm
from kernels.ops.prologues.folding import forget_folded
from kernels.ops.prologues.layernorm_linear import layernorm_linear

Tensor = torch.Tensor


class LayerNormLinear(nn.Module):
    """`nn.LayerNorm` and `nn.Linear`, one after the other, through `layernorm_linear`.

    Its parts are these modules, `norm` and `linear`: so parameters have their names
    (`norm.weight`, `linear.bias`, …), their initial values and their `state_dict`, and a
    `nn.Sequential` of the two under these names loads it. x is (..., in_features), the result
    (..., out_features). Without gradients the folded way is taken where it is the best, and what is
    folded is kept until a parameter changes (`folding.kept_fold`), or until `train` or `eval`.

    Inside autocast the product is of autocast's dtype and x is normalised in its own, as by the two
    modules; parameters are cast at each call then, and nothing is folded.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        eps: float = 1e-5,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(in_features, eps, device=device, dtype=dtype)
        self.linear = nn.Linear(in_features, out_features, bias, device=device, dtype=dtype)

    def train(self, mode: bool = True) -> LayerNormLinear:
        """Turn training on or off; folded weights are made anew after it.

        Some changes of parameters nobody counts, as those by the graph of a whole training step.
        """
        forget_folded(self.linear.weight)
        return super().train(mode)

    def forward(self, x: Tensor) -> Tensor:
        """The norm of x and the product."""
        norm, weight = self.norm, self.linear.weight
        bias: Tensor | None = self.linear.bias
        if torch.is_autocast_enabled(x.device.type):
            dtype = torch.get_autocast_dtype(x.device.type)
            if x.dtype != dtype:
                h = layer_norm(x, norm.weight, norm.bias, norm.eps)
                return nn.functional.linear(h, weight, bias)  # which casts all three
            cast = weight.to(dtype), None if bias is None else bias.to(dtype)
            return layernorm_linear(x, norm.weight, norm.bias, *cast, norm.eps)
        return layernorm_linear(x, norm.weight, norm.bias, weight, bias, norm.eps)
