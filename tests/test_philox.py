"""Philox: the published vectors, CUDA C++ bit for bit as NumPy, and masks with the right share."""

import numpy as np
import pytest
import torch

from kernels.cuda import cuda
from kernels.philox import keeps, kept_elements, philox, scale, threshold

# The known answers that Random123 publishes for philox4x32 with 10 rounds: counter, key, words.
PUBLISHED = [
    ("00000000 00000000 00000000 00000000", 0, "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ("ffffffff ffffffff ffffffff ffffffff", 2**64 - 1, "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    (
        "243f6a88 85a308d3 13198a2e 03707344",
        0x299F31D0A4093822,
        "d16cfe09 94fdcceb 5001e420 24126ea1",
    ),
]

SOURCE = r"""
#include "philox.cuh"

__global__ void words(const long long* key, const unsigned int* counters, unsigned int* out,
                      int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    const unsigned int* c = counters + 4 * i;
    uint4 four = philox(key[0], make_uint4(c[0], c[1], c[2], c[3]));
    out[4 * i] = four.x, out[4 * i + 1] = four.y, out[4 * i + 2] = four.z, out[4 * i + 3] = four.w;
}

__global__ void mask(const long long* seed_offset, bool* kept, int n, long long first_block,
                     unsigned int threshold) {
    long long e = blockIdx.x * (long long)blockDim.x + threadIdx.x;
    if (e >= n) return;
    kept[e] = dropout_keeps(dropout_words(seed_offset, first_block + e / 8), e % 8, threshold);
}
"""
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


def numbers(text):
    return np.array([[int(word, 16) for word in text.split()]], dtype=np.uint32)


def signed(number):
    """64 bits as the int64 that a tensor holds."""
    return number - 2**64 if number >= 2**63 else number


def on(device, array):
    return torch.from_numpy(array.view(np.int32)).to(device)


@pytest.mark.parametrize(("counter", "key", "words"), PUBLISHED)
def test_published_vectors(counter, key, words):
    assert philox(key, numbers(counter)).tolist() == numbers(words).tolist()


@pytest.mark.parametrize("device", DEVICES)
def test_cuda_gives_the_words_of_numpy(device):
    rng = np.random.default_rng(0)
    for key in (0, 1, 2**64 - 1, 0x299F31D0A4093822, int(rng.integers(2**63))):
        counters = rng.integers(2**32, size=(50, 4), dtype=np.uint32)
        counters[0], counters[1] = 0, 2**32 - 1
        out = torch.zeros(50, 4, dtype=torch.int32, device=device)
        seed = torch.tensor([signed(key)], device=device)
        cuda(SOURCE).words[2, 32](seed, on(device, counters), out, 50)
        got = out.cpu().numpy().view(np.uint32)
        assert np.array_equal(got, philox(key, counters)), key


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("p", [0.0, 0.1, 0.5, 0.999, 1.0])
@pytest.mark.parametrize(
    ("seed", "offset", "first_block"), [(1, 0, 0), (2**64 - 5, 2**40 + 3, 2**33)]
)
def test_cuda_keeps_what_numpy_keeps(device, p, seed, offset, first_block):
    n = 203
    kept = torch.zeros(n, dtype=torch.bool, device=device)
    random = torch.tensor([signed(seed), offset], device=device)
    cuda(SOURCE).mask[4, 64](random, kept, n, first_block, threshold(p))
    expected = keeps((n,), p, seed, offset, first=8 * first_block)
    assert np.array_equal(kept.cpu().numpy(), expected)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("p", [0.0, 0.3, 1.0])
@pytest.mark.parametrize(
    ("seed", "offset", "first"), [(1, 0, 0), (2**64 - 5, 2**63 + 3, 8 * 2**33 + 5), (0, -1, 3)]
)
def test_pytorch_keeps_what_numpy_keeps(device, p, seed, offset, first):
    random = torch.tensor([signed(seed), signed(offset)], device=device)
    kept = kept_elements((11, 37), p, random, first)
    assert np.array_equal(kept.cpu().numpy(), keeps((11, 37), p, seed, offset, first))


def test_the_share_that_is_kept():
    n = 2_000_000
    for p in (0.0, 0.1, 0.5, 0.9, 1.0):
        share = keeps((n,), p, seed=11).mean()
        exact = 1 - threshold(p) / 65536
        assert abs(share - exact) <= 5 * (exact * (1 - exact) / n) ** 0.5
        assert scale(p) * exact == pytest.approx(1 if p < 1 else 0)


def test_neighbours_and_calls_are_independent():
    base = keeps((1000, 1000), 0.5, seed=3)
    for other in (
        np.roll(base, 1, axis=1),
        np.roll(base, 1, axis=0),
        keeps((1000, 1000), 0.5, seed=4),
        keeps((1000, 1000), 0.5, seed=3, offset=1),
    ):
        # Of two independent fair masks half agree; 5 standard deviations of a million.
        assert abs((base == other).mean() - 0.5) < 5 * 0.5 / 1000


def test_a_part_has_the_numbers_of_the_whole():
    whole = keeps((100, 37), 0.3, seed=5, offset=9)
    for row in (0, 1, 50):
        part = keeps((7, 37), 0.3, seed=5, offset=9, first=row * 37)
        assert np.array_equal(part, whole[row : row + 7])


@pytest.mark.parametrize("p", [-0.1, 1.01, float("nan")])
def test_a_probability_outside_of_0_and_1_is_refused(p):
    with pytest.raises(ValueError, match="from 0 to 1"):
        threshold(p)
