"""The chains by others: Liger's kernels (`pip install liger-kernel`)."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import torch

from kernels.ops.shared.available import needs_liger
from kernels.ops.shared.operators import needs_gradient

Tensor = torch.Tensor


def _product(function: Any, gate: Tensor, up: Tensor) -> Tensor:
    """Run one of Liger's gated products.

    Its backward writes the gradients over gate and up. So where it will go back it gets copies,
    made in the forward: a backward takes as long as it does, and is right the first time it runs.
    """
    if needs_gradient(gate, up):
        gate, up = gate.clone(), up.clone()
    result: Tensor = function.apply(gate, up)
    return result


def liger_swiglu(gate: Tensor, up: Tensor) -> Tensor:
    """Liger's SwiGLU of two tensors."""
    from liger_kernel.ops.swiglu import LigerSiLUMulFunction

    return _product(LigerSiLUMulFunction, gate, up)


def liger_geglu(gate: Tensor, up: Tensor) -> Tensor:
    """Liger's GEGLU of two tensors, in the tanh form."""
    from liger_kernel.ops.geglu import LigerGELUMulFunction

    return _product(LigerGELUMulFunction, gate, up)


def needs_liger_gated(device: torch.device) -> str | None:
    """Why Liger's gated products can't run here, in one sentence; None if they can."""
    why = needs_liger(device)
    if why is not None:
        return why
    try:
        for name in ("swiglu", "geglu"):
            import_module(f"liger_kernel.ops.{name}")
    except ImportError as error:
        return f"this release of liger-kernel has no gated product that can be imported: {error}"
    return None
