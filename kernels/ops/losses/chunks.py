"""The launches of a loss over a vocabulary, chunk by chunk of tokens; see `linear_cross_entropy`.

One buffer holds the logits of a chunk, and then their gradient in the same place. On a GPU the
products are PyTorch's, which are cuBLAS's; on a CPU, and for a ledger, the package's in Triton, so
that all that is launched is counted.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from kernels.launch import capability, launches
from kernels.ops.losses.configurations import (
    ADDED,
    OUTER,
    SCALED,
    Tile,
    chunk_tokens,
    simple_tile,
    words_of_a_tile,
)
from kernels.ops.losses.loss_kernels import (
    add_losses,
    add_outer_product,
    count_targets,
    cross_entropy_rows,
    loss_simple,
    scale_gradient,
)
from kernels.ops.products.backward import product
from kernels.ops.products.forward import into, matrix
from kernels.ops.shared.operators import device_guard

Tensor = torch.Tensor


class Found(NamedTuple):
    """A loss and the gradients of x and weight; None for what was not asked for."""

    loss: Tensor | None
    d_x: Tensor | None
    d_weight: Tensor | None


def walk(
    x: Tensor,
    weight: Tensor,
    targets: Tensor,
    ignore_index: int,
    smoothing: float,
    reduction: str,
    *,
    wants_loss: bool = True,
    wants_x: bool = False,
    wants_weight: bool = False,
    upstream: Tensor | None = None,
    chunk: int | None = None,
    words: int | None = None,
    num_warps: int = 8,
) -> Found:
    """Launch what is asked for, unchecked, a chunk of tokens after the other.

    x (T, K), weight (V, K), targets int64 (T,). The gradients are those of the loss times
    `upstream`, which has the loss's shape; 1 if None. The chunk is chosen by its bytes if None, and
    with it the words of a tile.
    """
    tokens, (n_words, width) = len(x), weight.shape
    gives_gradients = wants_x or wants_weight
    d_x = _empty(tokens, width, like=x) if wants_x else None
    d_weight = _empty(n_words, width, like=weight) if wants_weight else None
    if tokens == 0:
        return Found(_of_nothing(x, reduction) if wants_loss else None, d_x, _zeroed(d_weight))
    x, weight, targets = matrix(x), matrix(weight), targets.contiguous()
    each = reduction == "none"
    losses = _empty(tokens, like=x, dtype=x.dtype if each else torch.float32)
    n_valid = _empty(1, like=x, dtype=torch.float32) if reduction == "mean" else None
    chunk = chunk or chunk_tokens(tokens, n_words, x.element_size())
    words = words or words_of_a_tile(n_words)
    buffer = _empty(chunk, n_words, like=x)
    with device_guard(x):
        if n_valid is not None:
            count_targets[(1,)](targets, n_valid, tokens, ignore_index, BLOCK=ADDED, num_warps=8)
        for first in range(0, tokens, chunk):
            part = slice(first, min(first + chunk, tokens))
            logits = buffer[: part.stop - first]
            _write_logits(x[part], weight, logits)
            cross_entropy_rows[(len(logits),)](
                logits,
                targets[part],
                losses[part],
                upstream[part] if each and upstream is not None else upstream,
                n_valid if gives_gradients else None,
                n_words,
                ignore_index,
                smoothing,
                upstream.stride(0) if each and upstream is not None else 0,
                SMOOTHED=smoothing != 0,
                WRITES_LOSS=wants_loss,
                WRITES_GRADIENT=gives_gradients,
                BLOCK=words,
                num_warps=num_warps,
            )
            if d_x is not None:
                _write_d_x(logits, weight, d_x[part])
            if d_weight is not None:
                _add_to_d_weight(logits, x[part], d_weight, adds=first > 0)
        if each or not wants_loss:
            return Found(losses if wants_loss else None, d_x, d_weight)
        loss = torch.empty((), dtype=x.dtype, device=x.device)
        add_losses[(1,)](losses, n_valid, loss, tokens, BLOCK=ADDED, num_warps=8)
    return Found(loss, d_x, d_weight)


def _empty(*sizes: int, like: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    return torch.empty(sizes, dtype=dtype or like.dtype, device=like.device)


def _zeroed(tensor: Tensor | None) -> Tensor | None:
    return None if tensor is None else tensor.zero_()


def _of_nothing(x: Tensor, reduction: str) -> Tensor:
    """The loss of no tokens: none of them, 0, or the mean 0 / 0."""
    if reduction == "none":
        return _empty(0, like=x)
    return torch.full((), torch.nan if reduction == "mean" else 0.0, dtype=x.dtype, device=x.device)


def _by_torch(x: Tensor) -> bool:
    """Whether the products are PyTorch's: where a GPU runs them, and nobody counts."""
    return x.is_cuda and launches.mode() is None


def _write_logits(x: Tensor, weight: Tensor, logits: Tensor) -> None:
    if _by_torch(x):
        torch.mm(x, weight.T, out=logits)
    else:
        into(x, weight, None, logits)


def _write_d_x(d_logits: Tensor, weight: Tensor, d_x: Tensor) -> None:
    if _by_torch(d_x):
        torch.mm(d_logits, weight, out=d_x)
    else:
        product(d_logits, weight, d_x)


def _add_to_d_weight(d_logits: Tensor, x: Tensor, d_weight: Tensor, adds: bool) -> None:
    """d_weight = d_logitsᵀ · x, and what was there before with `adds`."""
    if _by_torch(x):
        if adds:
            d_weight.addmm_(d_logits.T, x)
        else:
            torch.mm(d_logits.T, x, out=d_weight)
        return
    (tokens, n_words), width = d_logits.shape, x.shape[1]
    block_words, block_width, block_tokens = OUTER
    add_outer_product[(-(-n_words // block_words), -(-width // block_width))](
        d_logits,
        x,
        d_weight,
        tokens,
        n_words,
        width,
        x.stride(0),
        ADDS=adds,
        BLOCK_WORDS=block_words,
        BLOCK_WIDTH=block_width,
        BLOCK_TOKENS=block_tokens,
        num_warps=8,
        num_stages=2,
    )


def scaled(upstream: Tensor, gradient: Tensor, in_place: bool = False) -> Tensor:
    """Launch gradient · upstream, one number; in place nothing moves where that is 1."""
    out = gradient if in_place else torch.empty_like(gradient)
    if gradient.numel():
        with device_guard(gradient):
            scale_gradient[(-(-gradient.numel() // SCALED),)](
                upstream,
                gradient,
                out,
                gradient.numel(),
                IN_PLACE=in_place,
                BLOCK=SCALED,
                num_warps=8,
            )
    return out


def simple(
    x: Tensor,
    weight: Tensor,
    targets: Tensor,
    ignore_index: int,
    mean: bool,
    tile: Tile | None = None,
) -> Tensor:
    """Launch the kernel of the page, unchecked, and the sum of the losses; the mean with `mean`."""
    x, weight, targets = x.contiguous(), weight.contiguous(), targets.contiguous()
    (tokens, width), n_words = x.shape, len(weight)
    losses = _empty(tokens, like=x, dtype=torch.float32)
    n_valid = _empty(1, like=x, dtype=torch.float32) if mean else None
    loss = torch.empty((), dtype=x.dtype, device=x.device)
    tile = tile or simple_tile(x.element_size(), capability(x.device))
    with device_guard(x):
        loss_simple[(-(-tokens // tile.tokens),)](
            x,
            weight,
            targets,
            losses,
            tokens,
            n_words,
            width,
            ignore_index,
            BLOCK_TOKENS=tile.tokens,
            BLOCK_WORDS=tile.words,
            BLOCK_K=tile.width,
            num_warps=tile.num_warps,
            num_stages=tile.num_stages,
        )
        if n_valid is not None:
            count_targets[(1,)](targets, n_valid, tokens, ignore_index, BLOCK=ADDED, num_warps=8)
        add_losses[(1,)](losses, n_valid, loss, tokens, BLOCK=ADDED, num_warps=8)
    return loss


def peak_bytes(
    tokens: int, width: int, n_words: int, itemsize: int, chunk: int | None = None
) -> int:
    """The most bytes alive at once beside x, weight, targets and their gradients, with a mean.

    A chunk's logits, a loss in fp32 for each token, the number of targets and the loss. Forward
    and training step are alike in it. cuBLAS's own workspace comes to it on a GPU.
    """
    chunk = chunk or chunk_tokens(tokens, n_words, itemsize)
    return chunk * n_words * itemsize + 4 * tokens + 4 + itemsize
