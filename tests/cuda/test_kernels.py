"""Right kernels give the right result, and no alarm; LayerNorm moves the bytes it should."""

import pytest
import torch

from kernels import KernelError
from kernels.cuda import cuda
from tests.cuda.kernels_under_test import CASES, floats


@pytest.mark.parametrize("name", CASES)
def test_a_right_kernel_is_right_and_raises_no_alarm(name):
    counts, got, want = CASES[name].run()
    torch.testing.assert_close(got, want, rtol=2e-5, atol=2e-5)
    assert counts.bytes_unique > 0


@pytest.mark.parametrize("threads", [32, 96, 1024])
@pytest.mark.parametrize("n_cols", [1, 31, 257])
def test_layernorm_in_float64_and_in_bytes(threads, n_cols):
    x, weight, bias = floats(3, n_cols), floats(n_cols, seed=1), floats(n_cols, seed=2)
    y = torch.zeros(3, n_cols)
    kernel = cuda(CASES["layernorm"].source).layernorm
    counts = kernel[3, threads](x, weight, bias, y, n_cols, 1e-5)
    want = torch.nn.functional.layer_norm(
        x.double(), (n_cols,), weight.double(), bias.double(), 1e-5
    )
    # A sum of n terms in float32 is off by at most n half-ulps of its size.
    torch.testing.assert_close(y.double(), want, rtol=1e-4, atol=1e-4)
    row, all_rows = 4 * n_cols, 12 * n_cols
    assert list(counts.totals()) == [
        ("x", all_rows, 3 * all_rows, 0, 0),
        ("weight", row, all_rows, 0, 0),
        ("bias", row, all_rows, 0, 0),
        ("y", 0, 0, all_rows, all_rows),
    ]


def test_tile_padding_ends_the_bank_conflicts():
    case = CASES["transpose"]
    padded, _, _ = case.run()
    unpadded, _, _ = case.run(case.source.replace("tile[32][33]", "tile[32][32]"))
    assert sum(one.conflicts for one in padded.banks) == 0
    # Every load of a column of the tile has its lanes in one bank: n lanes, n - 1 conflicts.
    # 6 tiles, each of 50 or 70 in two or three pieces: 32 + 18 columns of 32 + 32 + 6 lanes.
    assert sum(one.conflicts for one in unpadded.banks) == 50 * (31 + 31 + 5)


NARROW = r"""
template <typename T> __global__ void narrow(const T* x, void* y) {
    __shared__ T kept[64];
    int i = threadIdx.x;
    if (i < 8) ((float*)y)[i] = 0;
    __syncthreads();
    kept[i] = x[i];
    ((T*)y)[i] = kept[i];
}
"""


@pytest.mark.parametrize(
    ("kind", "dtype"), [("signed char", torch.int8), ("short", torch.int16), ("half", torch.half)]
)
def test_threads_that_share_a_word_but_no_byte_are_no_race(kind, dtype):
    x, y = torch.arange(64).to(dtype), torch.zeros(64 * dtype.itemsize // 4)
    kernel = f"narrow<{kind}>"
    cuda(NARROW)[kernel][1, 64](x, y)
    assert torch.equal(y.view(dtype), x)
    for faulty in ("((T*)y)[i / 2]", "((T*)y)[i % 33]"):
        with pytest.raises(KernelError, match="a store at index .* of 'y', which thread"):
            cuda(NARROW.replace("((T*)y)[i]", faulty))[kernel][1, 64](x, y)
    with pytest.raises(KernelError, match="the shared 'kept'"):
        cuda(NARROW.replace("kept[i] =", "kept[i / 2] ="))[kernel][1, 64](x, y)
    # What was stored as a word before it was seen to have parts still counts.
    with pytest.raises(KernelError, match="'y'"):
        cuda(NARROW.replace("__syncthreads();", ""))[kernel][1, 64](x, y)


RETURNED = r"""
#include <cuda_fp16.h>
struct Pair { float a, b; };
__device__ __half chosen(float a, bool kept) { return kept ? __half(a) : __half(0.0f); }
__device__ Pair pair(float a, bool kept) { if (kept) return {a, 2 * a}; return {0, 0}; }
__global__ void store(const float* x, __half* y, float* pairs, int n) {
    int e = threadIdx.x;
    if (e >= n) return;
    float value = x[e];
    y[e] = chosen(value, e % 3 != 0);
    ((Pair*)pairs)[e] = pair(value, e % 2);
}
"""


def test_a_struct_that_a_function_returns_is_stored_and_counted():
    x = floats(40)
    y, pairs = torch.full((40,), -9.0).half(), torch.full((40, 2), -9.0)
    counts = cuda(RETURNED).store[1, 64](x, y, pairs, 40)
    places = torch.arange(40)
    assert torch.equal(y, torch.where(places % 3 != 0, x, 0.0).half())
    assert torch.equal(pairs, (x * (places % 2))[:, None] * torch.tensor([1.0, 2.0]))
    assert list(counts.totals()) == [
        ("x", 160, 160, 0, 0),
        ("y", 0, 0, 80, 80),
        ("pairs", 0, 0, 320, 320),
    ]
