"""The loss over a vocabulary by others: PyTorch's operators, torch.compile, Liger's."""

from __future__ import annotations

from importlib import import_module

import torch
import torch.nn.functional as F

from kernels.ops.shared.available import needs_liger
from kernels.ops.shared.compiled import compiled_each

Tensor = torch.Tensor


def torch_loss(x: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
    """PyTorch's own operators: a product, whose logits are whole in memory, and a loss."""
    return F.cross_entropy(F.linear(x, weight), targets)


compiled = compiled_each(torch_loss)


def liger(x: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
    """Liger's chunked loss (`pip install liger-kernel`), rounded to x's dtype as PyTorch's is.

    Its forward computes the gradients; it waits for the GPU to learn how many targets there are, so
    that no CUDA graph takes it.
    """
    from liger_kernel.ops.fused_linear_cross_entropy import LigerFusedLinearCrossEntropyFunction

    returned = LigerFusedLinearCrossEntropyFunction.apply(x, weight, targets)
    loss: Tensor = returned[0] if isinstance(returned, tuple) else returned
    return loss.to(x.dtype)


def needs_liger_loss(device: torch.device) -> str | None:
    """Why Liger's loss can't run here, in one sentence; None if it can."""
    why = needs_liger(device)
    if why is not None:
        return why
    try:
        import_module("liger_kernel.ops.fused_linear_cross_entropy")
    except ImportError as error:  # its first releases have none
        return f"this release of liger-kernel has no chunked loss that can be imported: {error}"
    return None
