"""Softmax by others: PyTorch's operator, torch.compile's, and Liger's kernel."""

from __future__ import annotations

import functools
import types
from importlib import import_module
from typing import Any

import torch

from kernels.ops._layernorm_peers import needs_liger
from kernels.registry import Shape

Tensor = torch.Tensor


def torch_softmax(x: Tensor) -> Tensor:
    """PyTorch's own operator."""
    return torch.softmax(x, -1)


@functools.cache
def _compiled(_shape: Shape, _dtype: torch.dtype) -> Any:
    # A code object of its own for each shape, as for LayerNorm: Dynamo counts recompilations.
    own = types.FunctionType(torch_softmax.__code__.replace(), globals(), "softmax_compiled")
    return torch.compile(own, dynamic=False)


def compiled(x: Tensor) -> Tensor:
    """PyTorch's operator through torch.compile, compiled anew for every shape and dtype."""
    result: Tensor = _compiled(tuple(x.shape), x.dtype)(x)
    return result


def liger(x: Tensor) -> Tensor:
    """Liger's softmax (`pip install liger-kernel`)."""
    from liger_kernel.ops.softmax import LigerSoftmaxFunction

    result: Tensor = LigerSoftmaxFunction.apply(x)
    return result


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
