"""How operations meet PyTorch: operators for fake tensors, torch.compile, ledgers and autograd."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from kernels.registry import Operator, add_operator

Tensor = torch.Tensor

_NOTHING = contextlib.nullcontext()

LIBRARY = torch.library.Library("fusing_kernels", "FRAGMENT")


def define(
    schema: str,
    launch: Any,
    fake: Any,
    *,
    of: Sequence[str],
    tensors: Mapping[str, str],
    independent: str = "",
) -> Any:
    """Define an operator on CPU and CUDA tensors and return it; `fake` gives outputs' shapes.

    `of` names the operations that call it. `tensors` gives the dimensions of its tensor arguments
    by letters, `*` for all leading dimensions as one, and `independent` those along which each part
    is computed alone: ledgers extend counts there. ValueError for an argument without its letters.
    """
    name = schema.partition("(")[0]
    LIBRARY.define(schema)
    for device in ("CPU", "CUDA"):
        LIBRARY.impl(name, launch, device)
    torch.library.register_fake(f"fusing_kernels::{name}", fake, lib=LIBRARY)
    found = getattr(torch.ops.fusing_kernels, name).default
    taken = {a.name for a in found._schema.arguments if "Tensor" in str(a.type)}
    if taken != set(tensors):
        raise ValueError(
            f"operator {name!r} takes the tensors {sorted(taken)}, not {list(tensors)}"
        )
    add_operator(Operator(name, tuple(of), dict(tensors), independent))
    return found


def refuse_second_derivative(operator: str, whose: str, instead: str) -> None:
    """Let a derivative of a backward operator raise NotImplementedError with one sentence."""

    def refuse(_ctx: Any, *_: Any) -> Any:
        raise NotImplementedError(
            f"{whose} no second derivative here: call backward() or grad() without "
            f"create_graph=True, or use {instead} there"
        )

    torch.library.register_autograd(f"fusing_kernels::{operator}", refuse, lib=LIBRARY)


def like(x: Tensor) -> Tensor:
    """An empty contiguous tensor of x's shape, dtype and device."""
    return torch.empty(x.shape, dtype=x.dtype, device=x.device)


def device_guard(x: torch.Tensor) -> contextlib.AbstractContextManager[Any]:
    """Make x's GPU the current one if it isn't: Triton launches on the current device."""
    if not x.is_cuda or x.device.index == torch.cuda.current_device():
        return _NOTHING
    return torch.cuda.device(x.device)


def needs_gradient(*tensors: Tensor | None) -> bool:
    """Whether autograd will ask for a gradient of one of `tensors`."""
    return torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors)
