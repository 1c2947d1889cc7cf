"""Attention by others: PyTorch's backends by name, its flex attention, and step by step."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from kernels.launch import capability
from kernels.ops.attention.formula import Given, seen, shared
from kernels.ops.attention.operators import softmax_operator
from kernels.ops.shared.compiled import compiled_each
from kernels.registry import Case

Tensor = torch.Tensor


def eager(
    q: Tensor, k: Tensor, v: Tensor, causal: bool = False, window: int | None = None
) -> Tensor:
    """The three steps, each whole in memory, in q's dtype: scores, their softmax, a product."""
    k, v = shared(k, q.shape[1]), shared(v, q.shape[1])
    scores = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5
    mask = seen(Given(q, k, v, causal=causal, window=window))
    if mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf)
    return torch.softmax(scores, -1) @ v


compiled = compiled_each(eager)


def unfused(q: Tensor, k: Tensor, v: Tensor, causal: bool = False) -> Tensor:
    """Two products of PyTorch's and a softmax of ours between: three launches."""
    scores = q @ k.transpose(-1, -2)
    n_queries = q.shape[2] if causal else 0
    weights: Tensor = softmax_operator(scores, q.shape[-1] ** -0.5, n_queries)
    return weights @ v


def torch_attention(q: Tensor, k: Tensor, v: Tensor, causal: bool = False) -> Tensor:
    """PyTorch's own operator, which chooses a backend."""
    return F.scaled_dot_product_attention(q, k, v, is_causal=causal)


def _by(backend: SDPBackend) -> Callable[..., Tensor]:
    def call(q: Tensor, k: Tensor, v: Tensor, causal: bool = False) -> Tensor:
        with sdpa_kernel(backend):
            return F.scaled_dot_product_attention(q, k, v, is_causal=causal)

    call.__doc__ = f"PyTorch's own operator, held to its backend {backend.name}."
    return call


flash = _by(SDPBackend.FLASH_ATTENTION)
cudnn = _by(SDPBackend.CUDNN_ATTENTION)
efficient = _by(SDPBackend.EFFICIENT_ATTENTION)
math = _by(SDPBackend.MATH)


def needs_backend(oldest: tuple[int, int], device: torch.device) -> str | None:
    """Why a backend of PyTorch's can't run here, in one sentence; None if it can."""
    if device.type != "cuda":
        return "PyTorch has this backend of attention on a GPU only"
    if capability(device) < oldest:
        return f"this backend of PyTorch's needs compute capability {oldest[0]}.{oldest[1]}"
    return None


needs_ampere = functools.partial(needs_backend, (8, 0))
needs_any_gpu = functools.partial(needs_backend, (5, 0))


def _causal(_b: Any, _h: Any, row: Any, key: Any) -> Any:
    return key <= row


def _flex_attention(q: Tensor, k: Tensor, v: Tensor, blocks: Any) -> Any:
    from torch.nn.attention.flex_attention import flex_attention

    return flex_attention(q, k, v, block_mask=blocks)


_flex = compiled_each(_flex_attention)


@functools.cache
def _causal_blocks(length: int, device: torch.device) -> Any:
    from torch.nn.attention.flex_attention import create_block_mask

    return create_block_mask(_causal, None, None, length, length, device=device)


def flex(q: Tensor, k: Tensor, v: Tensor, causal: bool = False) -> Tensor:
    """PyTorch's flex attention, compiled anew for every shape and dtype."""
    blocks = _causal_blocks(q.shape[2], q.device) if causal else None
    result: Tensor = _flex(q, k, v, blocks)
    return result


def without_window(case: Case) -> bool:
    """Whether what takes no sliding window takes a case."""
    return "window" not in dict(case.options)


def in_16_bits(case: Case) -> bool:
    """Whether a backend of 16 bits takes a case: head dimensions that 8 divides, no window."""
    return case.dtype.itemsize == 2 and case.shape[3] % 8 == 0 and without_window(case)


def by_cudnn(case: Case) -> bool:
    """Whether cuDNN's takes a case: head dimensions up to 128 at that."""
    return in_16_bits(case) and case.shape[3] <= 128 and case.shape[2] > 1
