"""Faults that learners make, planted by small edits of right kernels: each is named rightly."""

import pytest
import torch

from kernels import KernelError
from kernels.cuda import cuda
from tests.cuda.kernels_under_test import CASES

# (kernel, what to replace, by what, the kind of error, words of its sentence)
FAULTS = [
    ("add", "if (i < n) {", "if (i <= n) {", "bounds", "index 1000 of 'x'"),
    ("add", "if (i < n) {", "{", "bounds", "index 1000 of 'x', which spans the indices 0 to 999"),
    ("add", "= x[i] + y[i]", "= x[i] + y[i - 1]", "bounds", "a load at index -1 of 'y'"),
    ("add", "z[i] =", "z[i + 1] =", "bounds", "a store at index 1000 of 'z'"),
    ("add", "z[i] =", "z[i / 2] =", "race", "which thread (0, 0, 0) also stores, on the same"),
    ("add", "z[i] =", "z[threadIdx.x] =", "race", "of block (0, 0, 0) stored to"),
    ("add", "z[i] =", "z[0] +=", "race", "'z'"),
    ("tree_sum", "__syncthreads();\n    for", "for", "race", "the shared 'part'"),
    ("tree_sum", "        __syncthreads();", "", "race", "the shared 'part'"),
    ("tree_sum", "        __syncthreads();", "        if (blockIdx.x < 2) __syncthreads();", "race",
     "block (2, 0, 0)"),
    ("in_warp", "    y[i] = kept[i];", "    __syncwarp(); if (i < 32) y[i] = kept[i + 32];", "race",
     "the shared 'kept'"),
    ("tree_sum", "threadIdx.x < half", "threadIdx.x <= half", "bounds",
     "index 128 of the shared 'part'"),
    ("tree_sum", "half = THREADS / 2", "half = THREADS", "bounds",
     "'part', which has 128 elements"),
    ("tree_sum", "i < n ? x[i] : 0.0f", "x[i]", "bounds", "index 300 of 'x'"),
    ("tree_sum", "part[threadIdx.x] = i < n ? x[i] : 0.0f;", "if (i < n) part[threadIdx.x] = x[i];",
     "uninitialised", "the shared 'part'"),
    ("tree_sum", "    int i =", "    if (blockIdx.x * THREADS + threadIdx.x >= n) return; int i =",
     "barrier", "has returned"),
    ("tree_sum", "part[threadIdx.x] += part[threadIdx.x + half];\n        __syncthreads();",
     "{ part[threadIdx.x] += part[threadIdx.x + half]; __syncthreads(); }", "barrier",
     "must reach the same barrier"),
    ("tree_sum", "if (threadIdx.x == 0) out", "out", "race",
     "of 'out', which thread (0, 0, 0) also stores, on the same line; only one thread should"),
    ("layernorm", "part[warp] = value;\n    __syncthreads();", "part[warp] = value;", "race",
     "the shared 'part'"),
    ("layernorm", "sum += part[i];\n    __syncthreads();", "sum += part[i];", "race",
     "a store at index"),
    ("layernorm", "i < blockDim.x / 32; i++", "i <= blockDim.x / 32; i++", "uninitialised",
     "index 4 of the shared 'part'"),
    ("layernorm", "if (lane == 0) part[warp] = value", "part[warp] = value + lane", "race",
     "the shared 'part'"),
    ("layernorm", "    y += blockIdx.x * n_cols;\n", "", "race", "blocks run in no fixed order"),
    ("layernorm", "part[warp] = value", "part[lane] = value", "race", "the shared 'part'"),
    ("layernorm", "bias[i]", "bias[i + 1]", "bounds", "index 300 of 'bias'"),
    ("layernorm", "        y[i] =", "        __syncthreads(); y[i] =", "barrier", "divergent"),
    ("layernorm", "value += __shfl_xor_sync", "if (lane < 16) value += __shfl_xor_sync",
     "collective", "the mask names it"),
    ("transpose", "__syncthreads();", "", "race", "the shared 'tile'"),
    ("transpose", "    __syncthreads();", "    if (threadIdx.y < 4) __syncthreads();", "barrier",
     "thread (0, 4, 0) has returned"),
    ("transpose", "row + i < rows && ", "", "bounds", "'x'"),
    ("transpose", "out_col < rows)", "true)", "race", "a store at index 70 of 'y'"),
    ("transpose", "(out_row + i) * rows", "(out_row + i) * cols", "race", "'y'"),
    ("reverse", "__syncthreads();", "", "race", "the shared 'kept'"),
    ("reverse", "n - 1 - i", "n - i", "bounds", "index 100 of the shared 'kept'"),
    ("reverse", "x[i] = kept[n - 1 - i]", "x[i] = x[n - 1 - i]", "race", "'x'"),
    ("scan", "__syncthreads(); // read", "", "race", "the shared 'sums'"),
    ("scan", "__syncthreads(); // written", "", "race", "the shared 'sums'"),
    ("scan", "i >= step ? sums[i - step] : 0", "sums[i - step]", "bounds", "index -1"),
    ("scan", "step *= 2", "step *= 1", "timeout", "did not end within"),
    ("histogram", "if (threadIdx.x < 16) bins[threadIdx.x] = 0;", "", "uninitialised", "'bins'"),
    ("histogram", "bins[threadIdx.x] = 0;\n    __syncthreads();", "bins[threadIdx.x] = 0;",
     "race", "the shared 'bins'"),
    ("histogram", "atomicAdd(&bins[x[i]], 1)", "bins[x[i]]++", "race", "the shared 'bins'"),
    ("histogram", "bins[16]", "bins[15]", "bounds", "index 15 of the shared 'bins'"),
    ("histogram", "atomicAdd(&counts[threadIdx.x], bins[threadIdx.x])",
     "counts[threadIdx.x] += bins[threadIdx.x]", "race", "'counts'"),
    ("softmax", "__shfl_xor_sync(0xffffffff, sum, o)", "__shfl_xor_sync(0xffff, sum, o)",
     "collective", "0x0000ffff does not name the lane"),
    ("softmax", "y[row * n + i] =", "y[row * 32 + i] =", "race", "'y'"),
    ("matmul", "__syncthreads(); // loaded", "", "race", "the shared"),
    ("matmul", "__syncthreads(); // used", "", "race", "the shared"),
    ("matmul", "k < n", "k <= n", "bounds", "'b'"),
    ("stencil", "cells[66]", "cells[64]", "bounds", "index 64 of the shared 'cells'"),
    ("stencil", "if (threadIdx.x == 0) cells[0] = i > 0 ? x[i - 1] : 0;", "", "uninitialised",
     "index 0 of the shared 'cells'"),
    ("stencil", "i > 0 ? x[i - 1] : 0", "x[i - 1]", "bounds", "index -1 of 'x'"),
    ("stencil", "__syncthreads();", "__syncwarp();", "race", "the shared 'cells'"),
    ("vector_copy", "int i = 4 *", "int i = 1 +  4 *", "misaligned", "16 bytes of 'y' at index 1"),
    ("vector_copy", "i + 3 < n", "i < n", "bounds", "index 100 of 'y'"),
    ("total", "atomicAdd(out, sum)", "*out += sum", "race", "'out'"),
    ("total", "float sum =", "if (i >= n) return; float sum =", "collective", "has returned"),
    ("in_warp", "__syncwarp(); // written", "", "race", "the shared 'kept'"),
    ("in_warp", "__syncwarp(); // read", "", "race", "the shared 'kept'"),
    ("last_block", "int before = atomicAdd(done, 1);", "int before = blockIdx.x;", "race",
     "'parts'"),
    ("gather", "index[i]]", "index[i] + 1]", "bounds", "of 'x'"),
    ("gather", "if (i >= n) return;", "", "bounds", "index 20 of 'index'"),
    ("gather", "n / groups", "n / (groups - 4)", "divide", "division by zero"),
    ("gather", "__ldg(&x[index[i]])", "*(float2*)(size_t)(8 * i)", "pointer", "a null pointer"),
    ("gather", "__ldg(&x[index[i]])", "*(float2*)(0x123456789000 + i * 8)", "pointer",
     "belongs to no argument"),
    ("half_warp", "y[threadIdx.x] = v;", "__syncwarp(0xffff); y[threadIdx.x] = v;", "collective",
     "does not name the lane that calls"),
    ("half_warp", "int o = 8; o > 0; o /= 2) v +=", "int o = 16; o > 0; o /= 2) v +=", "collective",
     "which the mask does not name"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "right", "wrong", "kind", "words"),
    FAULTS,
    ids=[f"{n}-{k}-{i}" for i, (n, _, _, k, _) in enumerate(FAULTS)],
)
def test_a_planted_fault_is_named(name, right, wrong, kind, words):
    source = CASES[name].source
    assert source.count(right) >= 1
    place = source.index(right)
    faulty = source[:place] + wrong + source[place + len(right) :]
    with pytest.raises(KernelError) as caught:
        CASES[name].run(faulty, time_limit_s=2.0 if kind == "timeout" else 20.0)
    error, sentence = caught.value, str(caught.value)
    assert error.kind == kind, sentence
    assert words in sentence
    assert "\n" not in sentence
    assert "block (" in sentence
    assert "thread (" in sentence
    # An endless or dividing thread is named; its line is that of its last access, if it had one.
    if kind not in ("timeout", "divide"):
        assert error.line is not None, sentence
        assert 1 <= error.line <= faulty.count("\n") + 1


def test_a_race_between_blocks_names_the_first_that_read():
    source = r"""
__global__ void late(float* x, float* y) {
    if (threadIdx.x == 3 + blockIdx.x) y[blockIdx.x] = x[0];
    if (threadIdx.x == 9 && blockIdx.x == 2) x[0] = 1;
}
"""
    with pytest.raises(KernelError) as caught:
        cuda(source).late[3, 32](torch.zeros(1), torch.zeros(3))
    assert caught.value.program == (2, 0, 0)
    assert "thread (9, 0, 0), line 4: a store at index 0 of 'x'" in str(caught.value)
    assert "which thread (3, 0, 0) of block (0, 0, 0) read on line 3" in str(caught.value)


def test_a_race_in_the_shared_memory_of_a_later_block_is_with_its_own_threads():
    source = r"""
__global__ void shift(float* x) {
    __shared__ float kept[64];
    kept[threadIdx.x] = x[threadIdx.x];
    __syncthreads();
    float next = kept[(threadIdx.x + 32) % 64];
    if (blockIdx.x < 2) __syncthreads();
    if (threadIdx.x >= 32) kept[threadIdx.x] = next;
}
"""
    with pytest.raises(KernelError) as caught:
        cuda(source).shift[3, 64](torch.zeros(64))
    assert caught.value.program == (2, 0, 0)
    assert "which thread (0, 0, 0) read on line 6 with no barrier between" in str(caught.value)
