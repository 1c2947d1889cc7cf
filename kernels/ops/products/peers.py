"""y = x · wᵀ + b by others: PyTorch's operators, and torch.compile."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from kernels.ops.shared.compiled import compiled_each, max_autotuned_each

Tensor = torch.Tensor


def torch_linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """PyTorch's own operator: on a GPU one product of cuBLAS, which adds the bias."""
    return F.linear(x, weight, bias)


compiled = compiled_each(torch_linear)
max_autotuned = max_autotuned_each(torch_linear)
