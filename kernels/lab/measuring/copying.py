"""The baseline every memory-bound kernel is held against: a plain copy, as fast as we can make it.

Two are measured, since neither is the faster everywhere: PyTorch's (`clone`, a memory copy of the
driver's) and the kernel below. On an H100 a driver's copy inside a CUDA graph falls to 2.4 TB/s
from 512 MiB on, where the kernel keeps 3.0. `python -m kernels.lab bench ceilings` shows both.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from kernels.registry import Variant

COPY = "copy"  # the baseline's name in the data: the faster of the two in its cell


@triton.jit
def copy_words(  # type: ignore[no-untyped-def]
    x_ptr, y_ptr, n_words, BLOCK_WORDS: tl.constexpr
):
    words = tl.program_id(0).to(tl.int64) * BLOCK_WORDS + tl.arange(0, BLOCK_WORDS)
    mask = words < n_words
    tl.store(y_ptr + words, tl.load(x_ptr + words, mask=mask), mask=mask)


def copy_by_kernel(x: torch.Tensor) -> torch.Tensor:
    """Return a copy of contiguous `x`, made by one Triton kernel in words of 4 bytes."""
    y = torch.empty_like(x)
    size = x.numel() * x.element_size()
    word = torch.int32 if size % 4 == 0 else torch.uint8
    x_words, y_words = x.view(-1).view(word), y.view(-1).view(word)
    block = 4096
    grid = (triton.cdiv(x_words.numel(), block),)
    copy_words[grid](x_words, y_words, x_words.numel(), BLOCK_WORDS=block, num_warps=8)
    return y


def copy_by_driver(x: torch.Tensor) -> torch.Tensor:
    """Return `x.clone()`: a device-to-device copy of the driver's."""
    return x.clone()


COPIES = (
    Variant("copy by kernel", copy_by_kernel),
    Variant("copy by driver", copy_by_driver),
)
