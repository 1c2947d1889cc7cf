"""What every operation asks of its arguments before it launches, in one sentence each."""

from __future__ import annotations

import torch

from kernels.ops.shared.operators import in_forward_mode
from kernels.registry import DTYPES


def check_tensor(
    name: str, value: object, like: torch.Tensor | None = None, like_name: str = "x"
) -> None:
    """Raise TypeError or ValueError with one sentence unless `value` is a tensor a kernel takes.

    It takes fp16, bf16 and fp32, and with `like` only tensors on that one's device.
    """
    if not isinstance(value, torch.Tensor):
        raise TypeError(f"{name} is a {type(value).__name__}; it takes a torch.Tensor")
    if value.dtype not in DTYPES.values():
        raise TypeError(f"{name} has dtype {value.dtype}; it takes float16, bfloat16 or float32")
    if value.layout != torch.strided:
        raise TypeError(f"{name} has the layout {value.layout}; it takes a dense tensor")
    if like is not None and value.device != like.device:
        raise ValueError(
            f"{name} lies on {value.device} and {like_name} on {like.device}; put both on one"
        )


def check_norm(x: torch.Tensor, weight: torch.Tensor | None, bias: torch.Tensor | None) -> None:
    """Raise TypeError or ValueError with one sentence unless a norm takes these arguments.

    x is (..., N) with N at least 1; weight and bias are (N,) on x's device, or None.
    """
    check_tensor("x", x)
    if x.dim() == 0 or x.shape[-1] == 0:
        raise ValueError(f"x has the shape {tuple(x.shape)}; its last dimension must be 1 or more")
    for name, parameter in (("weight", weight), ("bias", bias)):
        if parameter is None:
            continue
        check_tensor(name, parameter, like=x)
        if parameter.shape != x.shape[-1:]:
            raise ValueError(
                f"{name} has the shape {tuple(parameter.shape)}; with x of shape "
                f"{tuple(x.shape)} it takes ({x.shape[-1]},)"
            )


def check_residual(x: torch.Tensor, residual: object) -> None:
    """Raise TypeError or ValueError with one sentence unless `residual` can be added to x."""
    check_same("residual", residual, "x", x)


def check_same(name: str, value: object, like_name: str, like: torch.Tensor) -> None:
    """Raise TypeError or ValueError with one sentence unless `value` is a tensor such as `like`.

    That is one of its dtype and shape, on its device.
    """
    check_tensor(name, value, like=like, like_name=like_name)
    assert isinstance(value, torch.Tensor)
    if value.dtype != like.dtype:
        raise TypeError(
            f"{name} has dtype {value.dtype} and {like_name} {like.dtype}; they must have the same"
        )
    if value.shape != like.shape:
        raise ValueError(
            f"{name} has the shape {tuple(value.shape)} and {like_name} {tuple(like.shape)}; they "
            "must have the same"
        )


def check_seed_offset(seed_offset: object, x: torch.Tensor) -> None:
    """Raise ValueError with one sentence unless `seed_offset` says which random numbers to draw."""
    good = isinstance(seed_offset, torch.Tensor) and seed_offset.dtype == torch.int64
    if not good or seed_offset.shape != (2,) or seed_offset.device != x.device:  # type: ignore[attr-defined]
        told = "a " + type(seed_offset).__name__
        if isinstance(seed_offset, torch.Tensor):
            told = (
                f"{seed_offset.dtype} of shape {tuple(seed_offset.shape)} on {seed_offset.device}"
            )
        raise ValueError(
            "seed_offset holds the seed and the call's offset: an int64 tensor of shape (2,) on "
            f"{x.device}; it is {told}"
        )


def refuse_gradients(name: str, *tensors: torch.Tensor | None, instead: str = "") -> None:
    """Raise RuntimeError with one sentence if a gradient of one of `tensors` would be asked for.

    It names `instead`, or PyTorch's function of that name. NotImplementedError inside forward-mode
    differentiation and transforms of `torch.func`.
    """
    if in_forward_mode() or torch._C._are_functorch_transforms_active():
        raise NotImplementedError(
            f"{name} has no derivatives and no batches in this variant: it runs neither in forward-"
            f"mode differentiation nor inside torch.func; use PyTorch's own operators there"
        )
    if torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors):
        raise RuntimeError(
            f"{name} has no backward pass; call it under torch.no_grad(), or use "
            f"{instead or f'torch.nn.functional.{name}'} where you need gradients"
        )
