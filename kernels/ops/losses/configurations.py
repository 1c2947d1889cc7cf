"""How the loss over a vocabulary is cut: tokens of a chunk, words of a tile."""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton

from kernels.launch import for_card

# What one chunk's logits may take, the only large buffer beside the gradients; more only where
# there would be more chunks than MOST_CHUNKS. H200, bf16, a training step of 8192×4096×131072, ms:
# 512 tokens a chunk 46.1, 1024 (268 MB) 41.9, 2048 40.6, 4096 39.9. PyTorch, all logits at once,
# 41.7 in 5.3 GB; Liger, 256 tokens, 56.0 in 67 MB.
LOGITS_BYTES = 1 << 28
# Each chunk rounds dw, its sum so far. In bf16 dw of 8192 tokens is off by 2.1e-3 with one chunk,
# 2.9e-3 with 4, 3.6e-3 with 8, 4.8e-3 with 16 and 6.6e-3 with 32; it reads and writes dw as often.
MOST_CHUNKS = 8
STEP = 128  # tokens: a chunk is so many or a multiple, a row of tiles of any product
ADDED = 4096  # tokens or losses that the one program of a sum takes at a time
SCALED = 4096  # elements that a program of `scale_gradient` takes
# Words that a program of `cross_entropy_rows` takes at a time, with 8 warps. H200, 1024 rows of
# 131,072 in bf16, µs, loss alone and with the gradient: 143 and 294; 4 warps 172 and 314; 4096 with
# 8 warps, which spills for some vocabularies on 10.0, 156 and 307; 8192 with 32 158 and 273.
WORDS = 2048


class Tile(NamedTuple):
    """A tile of logits in the page's kernel, and the step along the width."""

    tokens: int
    words: int
    width: int
    num_warps: int
    num_stages: int


# The page's kernel: no spill on any card. Fewer tokens a tile are more programs. H200, bf16, ms at
# 8192×4096×131072, where cuBLAS's product alone takes 12: this 18.5, 3 stages 20.7; 64×128 37.7;
# 128×128 38.7; 128×256 26.6; 64×64×32 200. Other cards are not timed.
SIMPLE: dict[tuple[int, int], Tile] = {
    (7, 5): Tile(64, 64, 32, num_warps=8, num_stages=2),
    (8, 0): Tile(64, 128, 64, num_warps=8, num_stages=3),
    (9, 0): Tile(64, 256, 64, num_warps=8, num_stages=4),
    (10, 0): Tile(64, 128, 64, num_warps=8, num_stages=3),
}
SINGLE = Tile(64, 64, 32, num_warps=8, num_stages=2)  # fp32, multiplied without tensor cores
# dW's tiles by our own kernel, words × width × tokens. On a GPU PyTorch's product adds there.
OUTER = (64, 64, 32)


def chunk_tokens(tokens: int, n_words: int, itemsize: int) -> int:
    """How many tokens a chunk has: the logits of one fit LOGITS_BYTES, or there are MOST_CHUNKS.

    Chunks are alike, and of STEP tokens at least.
    """
    most = max(STEP, LOGITS_BYTES // (n_words * itemsize) // STEP * STEP)
    if tokens <= most:
        return max(tokens, 1)
    chunks = min(-(-tokens // most), MOST_CHUNKS)
    return -(-tokens // chunks // STEP) * STEP


def words_of_a_tile(n_words: int) -> int:
    """How many words a program of `cross_entropy_rows` takes at a time."""
    return min(WORDS, triton.next_power_of_2(n_words))


def at_once(reduction: str, dtype: torch.dtype) -> bool:
    """Whether the forward of a training step computes the gradients too, and keeps them.

    That takes three products; computing the logits again takes four. A gradient for each token's
    own upstream is not known before it, which "none" needs. In fp16 the gradient of a logit, about
    1 / (tokens · words), is below the smallest number; there the upstream, which holds the factor
    that keeps it above, comes first.
    """
    return reduction != "none" and dtype != torch.float16


def simple_tile(itemsize: int, capability: tuple[int, int]) -> Tile:
    """The tile of the page's kernel on a card."""
    return SINGLE if itemsize == 4 else for_card(SIMPLE, capability)
