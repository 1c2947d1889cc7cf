"""Products with an epilogue by others: PyTorch's operators one after another, and torch.compile."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from kernels.ops.shared.compiled import compiled_each, max_autotuned_each

Tensor = torch.Tensor


def torch_bias_gelu(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, approximate: str = "tanh"
) -> Tensor:
    """A product that adds the bias, rounded to the dtype, and GELU: two launches."""
    return F.gelu(F.linear(x, weight, bias), approximate=approximate)


compiled_bias_gelu = compiled_each(torch_bias_gelu)
max_autotuned_bias_gelu = max_autotuned_each(torch_bias_gelu)


def torch_bias_residual(x: Tensor, weight: Tensor, bias: Tensor | None, residual: Tensor) -> Tensor:
    """A product that adds the bias, rounded to the dtype, and a sum: two launches."""
    return residual + F.linear(x, weight, bias)


compiled_bias_residual = compiled_each(torch_bias_residual)


def torch_swiglu_half(x: Tensor, weight: Tensor) -> Tensor:
    """One product for gate and up, rounded to the dtype, SiLU and a product: three launches."""
    gate, up = F.linear(x, weight.flatten(0, 1)).chunk(2, -1)
    return F.silu(gate) * up


def torch_swiglu_mlp(x: Tensor, weight: Tensor, down: Tensor) -> Tensor:
    """The same, and the product that goes down."""
    return F.linear(torch_swiglu_half(x, weight), down)


def torch_geglu_mlp(x: Tensor, weight: Tensor, down: Tensor, approximate: str = "tanh") -> Tensor:
    """One product for gate and up, rounded to the dtype, GELU and a product, and the one down."""
    gate, up = F.linear(x, weight.flatten(0, 1)).chunk(2, -1)
    return F.linear(F.gelu(gate, approximate=approximate) * up, down)


compiled_swiglu_half = compiled_each(torch_swiglu_half)
max_autotuned_swiglu_half = max_autotuned_each(torch_swiglu_half)
compiled_swiglu_mlp = compiled_each(torch_swiglu_mlp)
max_autotuned_swiglu_mlp = max_autotuned_each(torch_swiglu_mlp)
compiled_geglu_mlp = compiled_each(torch_geglu_mlp)


def torch_qkv(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """One product that adds the bias, and a copy into the layout of heads: two launches."""
    flat = None if bias is None else bias.flatten()
    y = F.linear(x.flatten(0, 1), weight.flatten(0, 2), flat)
    return y.view(*x.shape[:2], *weight.shape[:3]).permute(2, 0, 3, 1, 4).contiguous()


compiled_qkv = compiled_each(torch_qkv)
max_autotuned_qkv = max_autotuned_each(torch_qkv)
