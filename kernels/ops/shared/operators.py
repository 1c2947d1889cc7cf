"""How operations meet PyTorch: operators for fake tensors, torch.compile, ledgers and autograd.

A kernel knows numbers alone: the tangents of forward-mode differentiation, the batches of `vmap`
and the wrapped tensors of `torch.func.grad` never reach it, and would be lost without a word. So an
operator says what PyTorch's own operators compute in its place (`composed`). That runs inside every
transform of `torch.func`. In forward mode alone the dispatcher offers no such place: a public
function asks `in_forward_mode()`, and an operator called there raises.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.autograd import forward_ad

from kernels.registry import Operator, add_operator

Tensor = torch.Tensor

_NOTHING = contextlib.nullcontext()

LIBRARY = torch.library.Library("fusing_kernels", "FRAGMENT")


def in_forward_mode() -> bool:
    """Whether a level of forward-mode differentiation is open, by hand or by `torch.func.jvp`."""
    return forward_ad._current_level >= 0


def define(
    schema: str,
    launch: Callable[..., Any],
    fake: Callable[..., Any],
    composed: Callable[..., Any],
    *,
    of: Sequence[str],
    tensors: Mapping[str, str],
    independent: str = "",
) -> Any:
    """Define an operator on CPU and CUDA tensors and return it; `fake` gives outputs' shapes.

    `composed` takes the same arguments and computes the same with PyTorch's operators, so that
    every transform of `torch.func` goes through it (vmap, grad, jvp, and those made of them).
    Where a derivative would be lost, by forward-mode differentiation or by a tensor that requires
    grad without a formula for it, a call raises NotImplementedError with one sentence.

    `of` names the operations that call it. `tensors` gives the dimensions of its tensor arguments
    by letters, `*` for all leading dimensions as one, and `independent` those along which each part
    is computed alone: ledgers extend counts there. ValueError for an argument without its letters.
    """
    name = schema.partition("(")[0]
    LIBRARY.define(schema)
    operator = getattr(torch.ops.fusing_kernels, name).default
    places = _places_of_tensors(operator)

    def guarded(work: Callable[..., Any]) -> Callable[..., Any]:
        def checked(*args: Any) -> Any:
            if forward_ad._current_level >= 0:
                _refuse(name, "forward-mode derivatives")
            # Inside a formula of autograd no gradient is recorded, so neither is one lost.
            if torch.is_grad_enabled():
                for place in places:
                    tensor = args[place]
                    if tensor is not None and tensor.requires_grad:
                        _refuse(name, "gradients")
            return work(*args)

        return checked

    for device in ("CPU", "CUDA"):
        LIBRARY.impl(name, guarded(launch), device)
    # The key through which every transform passes first, and an ordinary call never.
    LIBRARY.impl(name, composed, "FuncTorchDynamicLayerFrontMode")
    torch.library.register_fake(f"fusing_kernels::{name}", guarded(fake), lib=LIBRARY)
    taken = {operator._schema.arguments[place].name for place in places}
    if taken != set(tensors):
        raise ValueError(
            f"operator {name!r} takes the tensors {sorted(taken)}, not {list(tensors)}"
        )
    add_operator(Operator(name, tuple(of), dict(tensors), independent))
    return operator


def _places_of_tensors(operator: Any) -> tuple[int, ...]:
    types = [str(argument.type) for argument in operator._schema.arguments]
    if any("List[Tensor]" in kind or "List[Optional[Tensor]]" in kind for kind in types):
        raise TypeError(f"{operator} takes a list of tensors; it takes tensors one by one")
    return tuple(place for place, kind in enumerate(types) if "Tensor" in kind)


def _refuse(name: str, lost: str) -> None:
    raise NotImplementedError(
        f"torch.ops.fusing_kernels.{name} would lose {lost}: it is what a function of kernels.ops "
        f"launches, so call that function, or PyTorch's own operators where it has none"
    )


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
    # A loop: any() over a generator takes twice as long, in every call.
    if torch.is_grad_enabled():
        for tensor in tensors:
            if tensor is not None and tensor.requires_grad:
                return True
    return False
