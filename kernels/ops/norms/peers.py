"""The norms by others: PyTorch's operators, torch.compile's, Liger's kernels, ours in Helion."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from kernels.ops.shared.compiled import compiled_each, max_autotuned_each

Tensor = torch.Tensor


def torch_layer_norm(
    x: Tensor, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5
) -> Tensor:
    """PyTorch's own operator."""
    return F.layer_norm(x, x.shape[-1:], weight, bias, eps)


compiled_layer_norm = compiled_each(torch_layer_norm)
max_autotuned_layer_norm = max_autotuned_each(torch_layer_norm)


def liger_layer_norm(
    x: Tensor, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5
) -> Tensor:
    """Liger's LayerNorm (`pip install liger-kernel`); it takes weight and bias, both."""
    from liger_kernel.ops.layer_norm import LigerLayerNormFunction

    result: Tensor = LigerLayerNormFunction.apply(x, weight, bias, eps)
    return result


def helion_layer_norm(
    x: Tensor, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5
) -> Tensor:
    """The book's LayerNorm in Helion (`pip install helion`); it takes weight and bias, both."""
    if weight is None or bias is None:
        raise ValueError("LayerNorm in Helion takes weight and bias; at least one is missing")
    from kernels.ops.norms.helion_norms import layer_norm

    return layer_norm(x, weight, bias, eps)


def torch_rms_norm(x: Tensor, weight: Tensor | None = None, eps: float = 1e-5) -> Tensor:
    """PyTorch's own operator."""
    return F.rms_norm(x, x.shape[-1:], weight, eps)


def torch_add_layer_norm(
    x: Tensor,
    residual: Tensor,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> tuple[Tensor, Tensor]:
    """PyTorch's own operators: the sum, and LayerNorm of it."""
    h = x + residual
    return F.layer_norm(h, h.shape[-1:], weight, bias, eps), h


def torch_add_rms_norm(
    x: Tensor, residual: Tensor, weight: Tensor | None = None, eps: float = 1e-5
) -> tuple[Tensor, Tensor]:
    """PyTorch's own operators: the sum, and RMSNorm of it."""
    h = x + residual
    return F.rms_norm(h, h.shape[-1:], weight, eps), h


compiled_rms_norm = compiled_each(torch_rms_norm)
max_autotuned_rms_norm = max_autotuned_each(torch_rms_norm)
compiled_add_layer_norm = compiled_each(torch_add_layer_norm)
compiled_add_rms_norm = compiled_each(torch_add_rms_norm)

# Liger's default rounds x̂ to x's dtype before it is scaled, and overwrites the upstream gradient.
# This is the other setting of each, which computes what the operations here do.
_LIGER = {"offset": 0.0, "casting_mode": "gemma", "in_place": False}


def liger_rms_norm(x: Tensor, weight: Tensor | None = None, eps: float = 1e-5) -> Tensor:
    """Liger's RMSNorm (`pip install liger-kernel`), all of it in fp32; it takes a weight."""
    from liger_kernel.ops.rms_norm import LigerRMSNormFunction

    result: Tensor = LigerRMSNormFunction.apply(x, weight, eps, *_LIGER.values())
    return result


def liger_add_rms_norm(
    x: Tensor, residual: Tensor, weight: Tensor | None = None, eps: float = 1e-5
) -> tuple[Tensor, Tensor]:
    """Liger's RMSNorm of a sum (`pip install liger-kernel`), all in fp32; it takes a weight."""
    from liger_kernel.ops.fused_add_rms_norm import LigerFusedAddRMSNormFunction

    y, h = LigerFusedAddRMSNormFunction.apply(x, residual, weight, eps, *_LIGER.values())
    return y, h


def helion_rms_norm(x: Tensor, weight: Tensor | None = None, eps: float = 1e-5) -> Tensor:
    """The book's RMSNorm in Helion (`pip install helion`); it takes a weight."""
    if weight is None:
        raise ValueError("RMSNorm in Helion takes a weight; it is missing")
    from kernels.ops.norms.helion_norms import rms_norm

    return rms_norm(x, weight, eps)
