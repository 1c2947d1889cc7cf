"""The random numbers of every dropout in this package: Philox4x32-10, in NumPy and in PyTorch.

    key      the seed, 64 bits
    counter  (block, offset), 64 bits each, low word first; block = e // 8 for element e of the
             tensor in row-major order, offset = the number of the call
    bits     the four 32-bit words give eight 16-bit numbers, low half first; element e takes
             number e mod 8
    kept     where the number is T = round(65536 · p) or more; T = 65536 drops all
    scale    65536 / (65536 − T), so that the mean is kept exactly

A number depends on its place alone, and never on which kernel, thread or order computes it: the
same mask comes out of an unfused chain, a fused kernel and a backward pass that makes it again.

Source: Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3" (SC 2011).
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import torch

Words = npt.NDArray[np.uint32]

_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)  # added to the key after each round
_ROUNDS = 10
NUMBERS = 65536  # different 16-bit numbers


def philox(key: int, counters: Words) -> Words:
    """The four words of each counter: uint32 (n, 4) of counters, lowest word first, to (n, 4)."""
    c0, c1, c2, c3 = (counters[:, i].astype(np.uint64) for i in range(4))
    low, high = key & 0xFFFFFFFF, key >> 32 & 0xFFFFFFFF
    mask, half = np.uint64(0xFFFFFFFF), np.uint64(32)
    for _ in range(_ROUNDS):
        product_0, product_1 = np.uint64(_MULTIPLIERS[0]) * c0, np.uint64(_MULTIPLIERS[1]) * c2
        c0, c1, c2, c3 = (
            (product_1 >> half) ^ c1 ^ np.uint64(low),
            product_1 & mask,
            (product_0 >> half) ^ c3 ^ np.uint64(high),
            product_0 & mask,
        )
        low, high = (low + _WEYL[0]) & 0xFFFFFFFF, (high + _WEYL[1]) & 0xFFFFFFFF
    return np.stack([c0, c1, c2, c3], axis=1).astype(np.uint32)


def threshold(p: float) -> int:
    """T = round(65536 · p): how many of the 65536 numbers drop; ValueError unless 0 ≤ p ≤ 1.

    TypeError if p is no number.
    """
    try:
        allowed = 0 <= p <= 1  # NaN is not
    except TypeError:
        raise TypeError(
            f"p is a {type(p).__name__}; the probability to drop is a number from 0 to 1"
        ) from None
    if not allowed:
        raise ValueError(f"p is {p}; the probability to drop is a number from 0 to 1")
    return round(NUMBERS * p)


def scale(p: float) -> float:
    """What a kept value is multiplied by: 65536 / (65536 − T), and 0 where all are dropped."""
    dropped = threshold(p)
    return NUMBERS / (NUMBERS - dropped) if dropped < NUMBERS else 0.0


def keeps(
    shape: tuple[int, ...], p: float, seed: int, offset: int = 0, first: int = 0
) -> npt.NDArray[np.bool_]:
    """Which elements of a tensor of `shape` a dropout keeps: bool of that shape.

    `seed` and `offset` are taken as 64 bits each; `first` is the row-major index of the first
    element, for a part of a larger tensor.
    """
    count = math.prod(shape)
    dropped = threshold(p)
    start, stop = first // 8, -(-(first + count) // 8)
    blocks = np.arange(start, stop, dtype=np.uint64)
    counters = np.empty((len(blocks), 4), dtype=np.uint32)
    counters[:, 0] = blocks & np.uint64(0xFFFFFFFF)
    counters[:, 1] = blocks >> np.uint64(32)
    counters[:, 2] = offset & 0xFFFFFFFF
    counters[:, 3] = offset >> 32 & 0xFFFFFFFF
    words = philox(seed, counters)
    numbers = np.stack([words & 0xFFFF, words >> 16], axis=2).reshape(-1)
    wanted: npt.NDArray[np.bool_] = numbers[first - 8 * start :][:count] >= dropped
    return wanted.reshape(shape)


def kept_elements(
    shape: tuple[int, ...], p: float, seed_offset: torch.Tensor, first: int = 0
) -> torch.Tensor:
    """`keeps` in PyTorch, on the device of `seed_offset`, int64 (2,); a bool tensor of `shape`.

    Its words are held in int64, whose products of two 32-bit numbers keep all 64 bits.
    """
    count = math.prod(shape)
    mask = 0xFFFFFFFF
    start, stop = first // 8, -(-(first + count) // 8)
    blocks = torch.arange(start, stop, device=seed_offset.device)
    seed, offset = seed_offset.unbind()
    c0, c1, c2, c3 = blocks & mask, blocks >> 32, offset & mask, offset >> 32 & mask
    low, high = seed & mask, seed >> 32 & mask
    for _ in range(_ROUNDS):
        product_0, product_1 = c0 * _MULTIPLIERS[0], c2 * _MULTIPLIERS[1]
        c0, c1, c2, c3 = (
            (product_1 >> 32 & mask) ^ c1 ^ low,
            product_1 & mask,
            (product_0 >> 32 & mask) ^ c3 ^ high,
            product_0 & mask,
        )
        low, high = low + _WEYL[0] & mask, high + _WEYL[1] & mask
    words = torch.stack(torch.broadcast_tensors(c0, c1, c2, c3), dim=1)
    numbers = torch.stack([words & 0xFFFF, words >> 16], dim=2).flatten()
    return (numbers[first - 8 * start :][:count] >= threshold(p)).reshape(shape)
