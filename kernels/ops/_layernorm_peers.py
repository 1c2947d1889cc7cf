"""LayerNorm by others: PyTorch's operator, torch.compile's, Liger's kernel, and one in Helion."""

from __future__ import annotations

import importlib.util
from importlib import import_module

import torch
import torch.nn.functional as F

from kernels.ops._compiled import compiled_each, max_autotuned_each

Tensor = torch.Tensor

# Each compilation times its candidates first, so this variant is measured in two cells only: one
# that a GPU's L2 nearly holds, and one far larger, which chapter 02 is told with.
MAX_AUTOTUNE_CELLS = (
    ((4096, 4096), torch.bfloat16),
    ((16384, 8192), torch.bfloat16),
)


def torch_layer_norm(
    x: Tensor, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5
) -> Tensor:
    """PyTorch's own operator."""
    return F.layer_norm(x, x.shape[-1:], weight, bias, eps)


compiled = compiled_each(torch_layer_norm)
max_autotuned = max_autotuned_each(torch_layer_norm)


def liger(
    x: Tensor, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5
) -> Tensor:
    """Liger's LayerNorm (`pip install liger-kernel`); it takes weight and bias, both."""
    from liger_kernel.ops.layer_norm import LigerLayerNormFunction

    result: Tensor = LigerLayerNormFunction.apply(x, weight, bias, eps)
    return result


def helion(
    x: Tensor, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5
) -> Tensor:
    """The book's LayerNorm in Helion (`pip install helion`); it takes weight and bias, both."""
    if weight is None or bias is None:
        raise ValueError("LayerNorm in Helion takes weight and bias; at least one is missing")
    from kernels.ops._helion import layer_norm

    return layer_norm(x, weight, bias, eps)


def needs_helion(device: torch.device) -> str | None:
    """Why Helion can't run here, in one sentence; None if it can."""
    if importlib.util.find_spec("helion") is None:
        return "helion is not installed"
    if device.type != "cuda":
        return "Helion's kernels run on a GPU only"
    try:
        import_module("kernels.ops._helion")
    except ImportError as error:  # a release of it can ask for a newer PyTorch than there is
        return f"this release of helion does not work with PyTorch {torch.__version__}: {error}"
    return None


def needs_liger(device: torch.device) -> str | None:
    """Why Liger can't run here, in one sentence; None if it can."""
    if importlib.util.find_spec("liger_kernel") is None:
        return "liger-kernel is not installed"
    return None if device.type == "cuda" else "Liger's kernels run on a GPU only"


def needs_gpu(device: torch.device) -> str | None:
    """Why a compiled graph isn't measured here, in one sentence; None if it is."""
    return None if device.type == "cuda" else "torch.compile is measured on a GPU only"
