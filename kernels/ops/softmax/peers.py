"""Softmax by others: PyTorch's operator, torch.compile's, Liger's kernel, and one in Helion."""

from __future__ import annotations

from importlib import import_module

import torch

from kernels.ops.shared.available import needs_liger
from kernels.ops.shared.compiled import compiled_each, max_autotuned_each

Tensor = torch.Tensor


def torch_softmax(x: Tensor) -> Tensor:
    """PyTorch's own operator."""
    return torch.softmax(x, -1)


compiled = compiled_each(torch_softmax)
max_autotuned = max_autotuned_each(torch_softmax)


def liger(x: Tensor) -> Tensor:
    """Liger's softmax (`pip install liger-kernel`)."""
    from liger_kernel.ops.softmax import LigerSoftmaxFunction

    result: Tensor = LigerSoftmaxFunction.apply(x)
    return result


def helion(x: Tensor) -> Tensor:
    """The book's softmax in Helion (`pip install helion`)."""
    from kernels.ops.softmax.helion_softmax import softmax

    return softmax(x)


def needs_liger_softmax(device: torch.device) -> str | None:
    """Why Liger's softmax can't run here, in one sentence; None if it can."""
    why = needs_liger(device)
    if why is not None:
        return why
    try:
        import_module("liger_kernel.ops.softmax")
    except ImportError as error:  # its first releases have no softmax
        return f"this release of liger-kernel has no softmax that can be imported: {error}"
    return None
