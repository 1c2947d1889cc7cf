"""LayerNorm by others: PyTorch's operator, what torch.compile makes of it, and Liger's kernel."""

from __future__ import annotations

import functools
import importlib.util
import types
from typing import Any

import torch
import torch.nn.functional as F

from kernels.registry import Shape

Tensor = torch.Tensor


def torch_layer_norm(
    x: Tensor, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5
) -> Tensor:
    """PyTorch's own operator."""
    return F.layer_norm(x, x.shape[-1:], weight, bias, eps)


@functools.cache
def _compiled(_shape: Shape, _dtype: torch.dtype) -> Any:
    # A code object of its own for each shape: one shared by all would pass Dynamo's limit of
    # recompilations, and from there on run eagerly without a word.
    own = types.FunctionType(torch_layer_norm.__code__.replace(), globals(), "layer_norm_compiled")
    own.__defaults__ = torch_layer_norm.__defaults__
    return torch.compile(own, dynamic=False)


def compiled(
    x: Tensor, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5
) -> Tensor:
    """PyTorch's operator through torch.compile, compiled anew for every shape and dtype."""
    result: Tensor = _compiled(tuple(x.shape), x.dtype)(x, weight, bias, eps)
    return result


def liger(
    x: Tensor, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5
) -> Tensor:
    """Liger's LayerNorm (`pip install liger-kernel`); it takes weight and bias, both."""
    from liger_kernel.ops.layer_norm import LigerLayerNormFunction

    result: Tensor = LigerLayerNormFunction.apply(x, weight, bias, eps)
    return result


def needs_liger(device: torch.device) -> str | None:
    """Why Liger can't run here, in one sentence; None if it can."""
    if importlib.util.find_spec("liger_kernel") is None:
        return "liger-kernel is not installed"
    return None if device.type == "cuda" else "Liger's kernels run on a GPU only"


def needs_gpu(device: torch.device) -> str | None:
    """Why a compiled graph isn't measured here, in one sentence; None if it is."""
    return None if device.type == "cuda" else "torch.compile is measured on a GPU only"
