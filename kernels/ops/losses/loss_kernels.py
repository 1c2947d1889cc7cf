"""The kernels of a loss over a vocabulary: logits turned in place into their gradient, and sums."""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl

LOG2E = tl.constexpr(math.log2(math.e))
LOWEST = tl.constexpr(torch.finfo(torch.float32).min)


@triton.jit
def loss_simple(
    x_ptr,
    weight_ptr,
    targets_ptr,
    losses_ptr,
    n_tokens,
    n_words,
    width,
    ignore_index,
    BLOCK_TOKENS: tl.constexpr,
    BLOCK_WORDS: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    # A program takes BLOCK_TOKENS tokens and walks over the whole vocabulary. A tile of logits
    # stands in registers alone: it goes into the state (m, s) of its rows, and is forgotten.
    rows = tl.program_id(0) * BLOCK_TOKENS + tl.arange(0, BLOCK_TOKENS)
    there = rows < n_tokens
    target = tl.load(targets_ptr + rows, mask=there, other=0)
    x_rows = x_ptr + rows.to(tl.int64)[:, None] * width
    m = tl.full([BLOCK_TOKENS], -float("inf"), tl.float32)
    s = tl.zeros([BLOCK_TOKENS], tl.float32)
    of_target = tl.full([BLOCK_TOKENS], float("nan"), tl.float32)  # of a word that there is not
    for first in range(0, n_words, BLOCK_WORDS):
        words = first + tl.arange(0, BLOCK_WORDS)
        weight_rows = weight_ptr + words.to(tl.int64)[None, :] * width
        logits = tl.zeros([BLOCK_TOKENS, BLOCK_WORDS], tl.float32)
        for start in range(0, width, BLOCK_K):
            k = start + tl.arange(0, BLOCK_K)
            x = tl.load(x_rows + k[None, :], mask=there[:, None] & (k < width)[None, :], other=0.0)
            weight_mask = (k < width)[:, None] & (words < n_words)[None, :]
            weight = tl.load(weight_rows + k[:, None], mask=weight_mask, other=0.0)
            logits = tl.dot(x, weight, logits, input_precision="ieee")
        logits = tl.where((words < n_words)[None, :], logits, -float("inf"))

        new = tl.maximum(m, tl.max(logits, axis=1))
        added = tl.sum(tl.exp2((logits - new[:, None]) * LOG2E), axis=1)
        s = s * tl.exp2((m - new) * LOG2E) + added
        m = new
        # One word of the vocabulary is the target: its logit is picked out as it passes.
        here = (target >= first) & (target < tl.minimum(first + BLOCK_WORDS, n_words))
        picked = tl.sum(tl.where(words[None, :] == target[:, None], logits, 0.0), axis=1)
        of_target = tl.where(here, picked, of_target)
    loss = tl.where(target == ignore_index, 0.0, m + tl.log(s) - of_target)
    tl.store(losses_ptr + rows, loss, mask=there)


@triton.jit
def cross_entropy_rows(
    logits_ptr,
    targets_ptr,
    losses_ptr,
    upstream_ptr,
    n_valid_ptr,
    n_words,
    ignore_index,
    smoothing,
    upstream_stride,
    SMOOTHED: tl.constexpr,
    WRITES_LOSS: tl.constexpr,
    WRITES_GRADIENT: tl.constexpr,
    BLOCK: tl.constexpr,
):
    # One program a row of logits, which is too wide for the registers of an SM. The first loop
    # merges the lanes' states (m, s), as softmax's does. The second reads the row again, mostly
    # from the L2, and writes (softmax − target) · scale over it: each lane where it has read.
    row = tl.program_id(0).to(tl.int64)
    logits_row = logits_ptr + row * n_words
    target = tl.load(targets_ptr + row)
    ignored = target == ignore_index
    inside = (target >= 0) & (target < n_words)
    of_target = tl.load(logits_row + tl.where(inside, target, 0)).to(tl.float32)

    m = tl.full([BLOCK], LOWEST, tl.float32)
    s = tl.zeros([BLOCK], tl.float32)
    added = tl.zeros([BLOCK], tl.float32)
    for start in range(0, n_words, BLOCK):
        words = start + tl.arange(0, BLOCK)
        mask = words < n_words
        x = tl.load(logits_row + words, mask=mask, other=-float("inf")).to(tl.float32)
        e = tl.exp2(-tl.abs(x - m) * LOG2E)
        s = tl.where(x > m, s * e + 1.0, s + e)
        m = tl.maximum(m, x)
        if SMOOTHED:
            added += tl.where(mask, x, 0.0)
    largest = tl.max(m, axis=0)
    total = tl.sum(s * tl.exp2((m - largest) * LOG2E), axis=0)

    share = 0.0
    if SMOOTHED:
        share = smoothing / n_words  # of each word beside the target's 1 − smoothing
    if WRITES_LOSS:
        loss = largest + tl.log(total) - (1.0 - smoothing) * of_target
        if SMOOTHED:
            loss -= share * tl.sum(added, axis=0)
        # A target that is no word of the vocabulary shows as NaN: an error would have to wait for
        # the GPU.
        loss = tl.where(inside, loss, float("nan"))
        loss = tl.where(ignored, 0.0, loss)
        tl.store(losses_ptr + row, loss.to(losses_ptr.dtype.element_ty))

    if WRITES_GRADIENT:
        scale = 1.0
        if upstream_ptr is not None:
            scale = tl.load(upstream_ptr + row * upstream_stride).to(tl.float32)
        if n_valid_ptr is not None:
            scale = scale / tl.load(n_valid_ptr)
        scale = tl.where(inside, scale, float("nan"))
        inverse = 1.0 / total
        for start in range(0, n_words, BLOCK):
            words = start + tl.arange(0, BLOCK)
            mask = words < n_words
            x = tl.load(logits_row + words, mask=mask, other=-float("inf")).to(tl.float32)
            p = tl.exp2((x - largest) * LOG2E) * inverse
            wanted = tl.where(words == target, 1.0 - smoothing, 0.0) + share
            g = tl.where(ignored, 0.0, (p - wanted) * scale)
            tl.store(logits_row + words, g.to(logits_ptr.dtype.element_ty), mask=mask)


@triton.jit
def count_targets(targets_ptr, n_valid_ptr, n_tokens, ignore_index, BLOCK: tl.constexpr):
    # How many tokens have a target, in one program: a mean divides by it, on the GPU.
    found = tl.zeros([BLOCK], tl.float32)
    for start in range(0, n_tokens, BLOCK):
        rows = start + tl.arange(0, BLOCK)
        there = rows < n_tokens
        target = tl.load(targets_ptr + rows, mask=there, other=0)
        found += tl.where(there & (target != ignore_index), 1.0, 0.0)
    tl.store(n_valid_ptr, tl.sum(found, axis=0))


@triton.jit
def add_losses(losses_ptr, n_valid_ptr, loss_ptr, n_tokens, BLOCK: tl.constexpr):
    # The sum of the rows' losses in one program, always in the same order.
    total = tl.zeros([BLOCK], tl.float32)
    for start in range(0, n_tokens, BLOCK):
        rows = start + tl.arange(0, BLOCK)
        total += tl.load(losses_ptr + rows, mask=rows < n_tokens, other=0.0)
    loss = tl.sum(total, axis=0)
    if n_valid_ptr is not None:
        loss = loss / tl.load(n_valid_ptr)  # 0 / 0 where no token has a target: NaN, as PyTorch's
    tl.store(loss_ptr, loss.to(loss_ptr.dtype.element_ty))


@triton.jit
def scale_gradient(
    upstream_ptr, gradient_ptr, out_ptr, n, IN_PLACE: tl.constexpr, BLOCK: tl.constexpr
):
    # The gradient of a loss by that of what was made of it. In place, as `backward()` on the loss
    # itself asks for, the factor is 1 and nothing is read or written.
    scale = tl.load(upstream_ptr).to(tl.float32)
    places = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = places < n
    if IN_PLACE:
        mask = mask & (scale != 1.0)
    g = tl.load(gradient_ptr + places, mask=mask, other=0.0).to(tl.float32) * scale
    tl.store(out_ptr + places, g.to(out_ptr.dtype.element_ty), mask=mask)


@triton.jit
def add_outer_product(
    d_logits_ptr,
    x_ptr,
    d_weight_ptr,
    n_tokens,
    n_words,
    width,
    x_row_stride,
    ADDS: tl.constexpr,
    BLOCK_WORDS: tl.constexpr,
    BLOCK_WIDTH: tl.constexpr,
    BLOCK_TOKENS: tl.constexpr,
):
    # A tile of dW += dlogitsᵀ · x for one chunk of tokens. What earlier chunks left in dW is read
    # into the sum of fp32, so that each chunk rounds once.
    words = tl.program_id(0) * BLOCK_WORDS + tl.arange(0, BLOCK_WORDS)
    cols = tl.program_id(1) * BLOCK_WIDTH + tl.arange(0, BLOCK_WIDTH)
    out = d_weight_ptr + words.to(tl.int64)[:, None] * width + cols[None, :]
    mask = (words < n_words)[:, None] & (cols < width)[None, :]
    total = tl.zeros([BLOCK_WORDS, BLOCK_WIDTH], tl.float32)
    if ADDS:
        total += tl.load(out, mask=mask, other=0.0).to(tl.float32)
    for start in range(0, n_tokens, BLOCK_TOKENS):
        rows = start + tl.arange(0, BLOCK_TOKENS)
        there = rows < n_tokens
        g_places = d_logits_ptr + rows.to(tl.int64)[None, :] * n_words + words[:, None]
        g = tl.load(g_places, mask=(words < n_words)[:, None] & there[None, :], other=0.0)
        x_places = x_ptr + rows.to(tl.int64)[:, None] * x_row_stride + cols[None, :]
        x = tl.load(x_places, mask=there[:, None] & (cols < width)[None, :], other=0.0)
        total = tl.dot(g, x, total, input_precision="ieee")
    tl.store(out, total.to(d_weight_ptr.dtype.element_ty), mask=mask)
