"""Philox in Triton: the numbers of every element are those of the NumPy reference."""

import re

import numpy as np
import pytest
import torch
import triton
import triton.language as tl

from kernels.lab.counting.instructions import instructions
from kernels.launch import recording
from kernels.philox import keeps, threshold
from kernels.philox_triton import numbers_at, numbers_of_blocks, words_of
from kernels.philox_wide import words_by_wide_products

DEVICES = [
    "cpu",
    pytest.param(
        "cuda",
        marks=[
            pytest.mark.gpu,
            pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
        ],
    ),
]


@triton.jit
def mask_by_blocks(seed_offset_ptr, kept_ptr, n, first_block, drop_below, BLOCKS: tl.constexpr):
    block = tl.program_id(0).to(tl.int64) * BLOCKS
    number = numbers_of_blocks(seed_offset_ptr, first_block + block, BLOCKS)
    element = 8 * block + tl.arange(0, 8 * BLOCKS)
    tl.store(kept_ptr + element, number >= drop_below, mask=element < n)


@triton.jit
def mask_by_elements(seed_offset_ptr, kept_ptr, rows, cols, first, drop_below, TILE: tl.constexpr):
    row = tl.program_id(0) * TILE + tl.arange(0, TILE)[:, None]
    col = tl.arange(0, TILE)[None, :]
    element = row.to(tl.int64) * cols + col
    number = numbers_at(seed_offset_ptr, first + element)
    tl.store(kept_ptr + element, number >= drop_below, mask=(row < rows) & (col < cols))


def signed(number):
    """64 bits as the int64 that a tensor holds."""
    return number - 2**64 if number >= 2**63 else number


CALLS = [(1, 0), (0, 1), (2**64 - 5, 2**40 + 3), (0x299F31D0A4093822, 2**64 - 1)]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("p", [0.0, 0.1, 0.5, 1.0])
@pytest.mark.parametrize(("seed", "offset"), CALLS)
@pytest.mark.parametrize("first_block", [0, 2**32 - 3, 2**40])
def test_blocks_keep_what_numpy_keeps(device, p, seed, offset, first_block):
    n = 203
    kept = torch.zeros(n, dtype=torch.bool, device=device)
    random = torch.tensor([signed(seed), signed(offset)], device=device)
    mask_by_blocks[(2,)](random, kept, n, first_block, threshold(p), BLOCKS=16)
    expected = keeps((n,), p, seed, offset, first=8 * first_block)
    assert np.array_equal(kept.cpu().numpy(), expected)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("p", [0.0, 0.3, 1.0])
@pytest.mark.parametrize(("seed", "offset"), CALLS)
@pytest.mark.parametrize("first", [0, 5, 8 * 2**32 - 11])
def test_elements_keep_what_numpy_keeps(device, p, seed, offset, first):
    rows, cols = 11, 13
    kept = torch.zeros(rows, cols, dtype=torch.bool, device=device)
    random = torch.tensor([signed(seed), signed(offset)], device=device)
    mask_by_elements[(1,)](random, kept, rows, cols, first, threshold(p), TILE=16)
    expected = keeps((rows, cols), p, seed, offset, first=first)
    assert np.array_equal(kept.cpu().numpy(), expected)


@pytest.mark.parametrize("capability", [75, 90])
@pytest.mark.parametrize(
    ("kernel", "cols", "calls"),
    [(mask_by_blocks, 32, 1), (mask_by_elements, 32, 1), (mask_by_elements, 31, 8)],
)
def test_calls_for_the_eight_elements_of_a_thread(kernel, cols, calls, capability):
    random, kept = torch.tensor([1, 2]), torch.zeros(32, cols, dtype=torch.bool)
    with recording() as launches:
        if kernel is mask_by_blocks:
            kernel[(1,)](random, kept, kept.numel(), 0, 100, BLOCKS=128)
        else:
            kernel[(1,)](random, kept, 32, cols, 0, 100, TILE=32)
    (launch,) = launches
    compiled = launch.specialize(capability).compile()
    assert (compiled.num_warps, compiled.stack_bytes) == (4, 0)
    # 1024 elements in 128 threads. A call is ten rounds of two products, and the first product of
    # the offset is the same in all.
    assert len(re.findall(r"mul\.hi\.u32", compiled.ptx)) == 19 * calls + 1


@triton.jit
def words_both_ways(seed_offset_ptr, words_ptr, first, N: tl.constexpr, WIDE: tl.constexpr):
    block = tl.cast(first, tl.int64) + tl.arange(0, N)
    if WIDE:
        word_0, word_1, word_2, word_3 = words_by_wide_products(seed_offset_ptr, block)
    else:
        word_0, word_1, word_2, word_3 = words_of(seed_offset_ptr, block)
    at = words_ptr + tl.arange(0, N)
    tl.store(at, word_0.to(tl.int32, bitcast=True))
    tl.store(at + N, word_1.to(tl.int32, bitcast=True))
    tl.store(at + 2 * N, word_2.to(tl.int32, bitcast=True))
    tl.store(at + 3 * N, word_3.to(tl.int32, bitcast=True))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("first", [0, 2**32 - 3, 2**40 + 7])
@pytest.mark.parametrize(("seed", "offset"), [(0, 0), (2**63 - 25, 2**62 + 2**33 + 1)])
def test_wide_products_give_the_same_words(device, first, seed, offset):
    told = torch.tensor([seed, offset], device=device)
    both = torch.zeros(2, 4, 64, dtype=torch.int32, device=device)
    for words, wide in zip(both, (False, True), strict=True):
        words_both_ways[(1,)](told, words, first, N=64, WIDE=wide)
    assert both[0].unique().numel() > 200
    assert torch.equal(*both)


def test_wide_products_take_fewer_instructions():
    both = []
    for wide in (False, True):
        with recording() as launches:
            words_both_ways[(1,)](
                torch.zeros(2, dtype=torch.int64), torch.zeros(4, 64, dtype=torch.int32), 0,
                N=64, WIDE=wide,
            )  # fmt: skip
        both.append(instructions(next(iter(launches)), 90))
    plain, fewer = both
    assert plain["IMAD.HI.U32"] >= 18
    assert not fewer["IMAD.HI.U32"]
    assert fewer.total() <= plain.total() - 16
