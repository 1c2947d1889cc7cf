"""Right kernels, each with a launch and the result it must have; faults are small edits of them."""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from kernels.cuda import cuda


def floats(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@dataclass(frozen=True)
class Case:
    """A source, `arguments()` for it, how to launch, and `expected(*arguments)` for `out`."""

    source: str
    kernel: str
    launch: tuple
    arguments: Callable
    expected: Callable
    out: int

    def run(self, source=None, time_limit_s=20.0):
        arguments = self.arguments()
        want = self.expected(*[a.clone() if hasattr(a, "clone") else a for a in arguments])
        module = cuda(source or self.source, time_limit_s=time_limit_s)
        counts = module[self.kernel][self.launch](*arguments)
        return counts, arguments[self.out], want


CASES: dict[str, Case] = {}


def case(name, source, launch, arguments, expected, out, kernel=None):
    CASES[name] = Case(source, kernel or name, launch, arguments, expected, out)


case(
    "add",
    r"""
extern "C" __global__ void add(const float* x, const float* y, float* z, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) {
        z[i] = x[i] + y[i];
    }
}
""",
    (8, 128),
    lambda: (floats(1000), floats(1000, seed=1), torch.zeros(1000), 1000),
    lambda x, y, z, n: x + y,
    2,
)

case(
    "tree_sum",
    r"""
#define THREADS 128
__global__ void tree_sum(const float* x, float* out, int n) {
    __shared__ float part[THREADS];
    int i = blockIdx.x * THREADS + threadIdx.x;
    part[threadIdx.x] = i < n ? x[i] : 0.0f;
    __syncthreads();
    for (int half = THREADS / 2; half > 0; half /= 2) {
        if (threadIdx.x < half) part[threadIdx.x] += part[threadIdx.x + half];
        __syncthreads();
    }
    if (threadIdx.x == 0) out[blockIdx.x] = part[0];
}
""",
    (3, 128),
    lambda: (floats(300), torch.zeros(3), 300),
    lambda x, out, n: torch.stack([part.sum() for part in x.split(128)]),
    1,
)

case(
    "layernorm",
    r"""
__device__ float block_sum(float value) {
    __shared__ float part[32];
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    for (int offset = 16; offset > 0; offset /= 2)
        value += __shfl_xor_sync(0xffffffff, value, offset);
    if (lane == 0) part[warp] = value;
    __syncthreads();
    float sum = 0;
    for (int i = 0; i < blockDim.x / 32; i++) sum += part[i];
    __syncthreads();
    return sum;
}
__global__ void __launch_bounds__(256) layernorm(const float* __restrict__ x,
        const float* __restrict__ weight, const float* __restrict__ bias,
        float* __restrict__ y, int n_cols, float eps) {
    x += blockIdx.x * n_cols;
    y += blockIdx.x * n_cols;
    float sum = 0;
    for (int i = threadIdx.x; i < n_cols; i += blockDim.x) sum += x[i];
    float mean = block_sum(sum) / n_cols;
    float squares = 0;
    for (int i = threadIdx.x; i < n_cols; i += blockDim.x) {
        float d = x[i] - mean;
        squares += d * d;
    }
    float rstd = rsqrtf(block_sum(squares) / n_cols + eps);
    for (int i = threadIdx.x; i < n_cols; i += blockDim.x) {
        y[i] = (x[i] - mean) * rstd * weight[i] + bias[i];
    }
}
""",
    (5, 128),
    lambda: (
        floats(5, 300),
        floats(300, seed=1),
        floats(300, seed=2),
        torch.zeros(5, 300),
        300,
        1e-5,
    ),
    lambda x, w, b, y, n, eps: torch.nn.functional.layer_norm(
        x.double(), (n,), w.double(), b.double(), eps
    ).float(),
    3,
)

case(
    "transpose",
    r"""
__global__ void transpose(const float* x, float* y, int rows, int cols) {
    __shared__ float tile[32][33];
    int col = blockIdx.x * 32 + threadIdx.x, row = blockIdx.y * 32;
    for (int i = threadIdx.y; i < 32; i += 8)
        if (row + i < rows && col < cols) tile[i][threadIdx.x] = x[(row + i) * cols + col];
    __syncthreads();
    int out_col = blockIdx.y * 32 + threadIdx.x, out_row = blockIdx.x * 32;
    for (int i = threadIdx.y; i < 32; i += 8)
        if (out_row + i < cols && out_col < rows)
            y[(out_row + i) * rows + out_col] = tile[threadIdx.x][i];
}
""",
    ((2, 3), (32, 8)),
    lambda: (floats(70, 50), torch.zeros(50, 70), 70, 50),
    lambda x, y, rows, cols: x.T,
    1,
)

case(
    "reverse",
    r"""
__global__ void reverse(float* x, int n) {
    extern __shared__ float kept[];
    int i = threadIdx.x;
    kept[i] = x[i];
    __syncthreads();
    x[i] = kept[n - 1 - i];
}
""",
    (1, 100, 400),
    lambda: (floats(100), 100),
    lambda x, n: x.flip(0),
    0,
)

case(
    "twice",
    r"""
extern __shared__ __align__(16) float outside[];
__device__ float turned(int i) { return 2 * outside[i]; }
__global__ void twice(float* x) {
    outside[threadIdx.x] = x[threadIdx.x];
    x[threadIdx.x] = turned(threadIdx.x);
}
""",
    (1, 40, 160),
    lambda: (floats(40),),
    lambda x: 2 * x,
    0,
)

case(
    "scan",
    r"""
__global__ void scan(const float* x, float* y) {
    __shared__ float sums[64];
    int i = threadIdx.x;
    sums[i] = x[i];
    __syncthreads();
    for (int step = 1; step < 64; step *= 2) {
        float before = i >= step ? sums[i - step] : 0;
        __syncthreads(); // read
        sums[i] += before;
        __syncthreads(); // written
    }
    y[i] = sums[i];
}
""",
    (1, 64),
    lambda: (floats(64), torch.zeros(64)),
    lambda x, y: x.cumsum(0),
    1,
)

case(
    "histogram",
    r"""
__global__ void histogram(const int* x, int* counts, int n) {
    __shared__ int bins[16];
    if (threadIdx.x < 16) bins[threadIdx.x] = 0;
    __syncthreads();
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
        atomicAdd(&bins[x[i]], 1);
    __syncthreads();
    if (threadIdx.x < 16) atomicAdd(&counts[threadIdx.x], bins[threadIdx.x]);
}
""",
    (3, 64),
    lambda: (torch.arange(500, dtype=torch.int32) % 16, torch.zeros(16, dtype=torch.int32), 500),
    lambda x, counts, n: torch.bincount(x, minlength=16).int(),
    1,
)

case(
    "softmax",
    r"""
__global__ void softmax(const float* x, float* y, int n) {
    int row = blockIdx.x * blockDim.y + threadIdx.y, lane = threadIdx.x;
    float largest = -INFINITY, sum = 0;
    for (int i = lane; i < n; i += 32) largest = fmaxf(largest, x[row * n + i]);
    for (int o = 16; o > 0; o /= 2)
        largest = fmaxf(largest, __shfl_xor_sync(0xffffffff, largest, o));
    for (int i = lane; i < n; i += 32) sum += expf(x[row * n + i] - largest);
    for (int o = 16; o > 0; o /= 2) sum += __shfl_xor_sync(0xffffffff, sum, o);
    for (int i = lane; i < n; i += 32) y[row * n + i] = expf(x[row * n + i] - largest) / sum;
}
""",
    (3, (32, 4)),
    lambda: (floats(12, 45), torch.zeros(12, 45), 45),
    lambda x, y, n: x.double().softmax(-1).float(),
    1,
)

case(
    "matmul",
    r"""
template <int TILE>
__global__ void matmul(const float* a, const float* b, float* c, int n) {
    __shared__ float left[TILE][TILE], right[TILE][TILE];
    int row = blockIdx.y * TILE + threadIdx.y, col = blockIdx.x * TILE + threadIdx.x;
    float sum = 0;
    for (int k = 0; k < n; k += TILE) {
        left[threadIdx.y][threadIdx.x] = a[row * n + k + threadIdx.x];
        right[threadIdx.y][threadIdx.x] = b[(k + threadIdx.y) * n + col];
        __syncthreads(); // loaded
        for (int i = 0; i < TILE; i++) sum += left[threadIdx.y][i] * right[i][threadIdx.x];
        __syncthreads(); // used
    }
    c[row * n + col] = sum;
}
""",
    ((2, 2), (8, 8)),
    lambda: (floats(16, 16), floats(16, 16, seed=1), torch.zeros(16, 16), 16),
    lambda a, b, c, n: a @ b,
    2,
    kernel="matmul<8>",
)

case(
    "stencil",
    r"""
__global__ void stencil(const float* x, float* y, int n) {
    __shared__ float cells[66];
    int i = blockIdx.x * 64 + threadIdx.x, here = threadIdx.x + 1;
    cells[here] = i < n ? x[i] : 0;
    if (threadIdx.x == 0) cells[0] = i > 0 ? x[i - 1] : 0;
    if (threadIdx.x == 63) cells[65] = i + 1 < n ? x[i + 1] : 0;
    __syncthreads();
    if (i < n) y[i] = cells[here - 1] + cells[here] + cells[here + 1];
}
""",
    (2, 64),
    lambda: (floats(100), torch.zeros(100), 100),
    lambda x, y, n: x + torch.cat([x[1:], x.new_zeros(1)]) + torch.cat([x.new_zeros(1), x[:-1]]),
    1,
)

case(
    "vector_copy",
    r"""
__global__ void vector_copy(const float* x, float* y, int n) {
    int i = 4 * (blockIdx.x * blockDim.x + threadIdx.x);
    if (i + 3 < n) {
        *reinterpret_cast<float4*>(y + i) = *reinterpret_cast<const float4*>(x + i);
    } else {
        for (; i < n; i++) y[i] = x[i];
    }
}
""",
    (1, 32),
    lambda: (floats(103), torch.zeros(103), 103),
    lambda x, y, n: x,
    1,
)

case(
    "total",
    r"""
__global__ void total(const float* x, float* out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    float sum = i < n ? x[i] : 0;
    for (int offset = 16; offset > 0; offset /= 2)
        sum += __shfl_down_sync(0xffffffff, sum, offset);
    if (threadIdx.x % 32 == 0) atomicAdd(out, sum);
}
""",
    (4, 64),
    lambda: (floats(250), torch.zeros(1), 250),
    lambda x, out, n: x.sum()[None],
    1,
)

case(
    "compact",
    r"""
__global__ void compact(const int* x, int* y) {
    int lane = threadIdx.x;
    unsigned kept = __ballot_sync(0xffffffff, x[lane] > 0);
    int place = __popc(kept & ((1u << lane) - 1));
    if (x[lane] > 0) y[place] = x[lane];
    if (__any_sync(0xffffffff, x[lane] == 1000) || __all_sync(0xffffffff, x[lane] > 0)) y[31] = -1;
}
""",
    (1, 32),
    lambda: ((torch.arange(32) % 3).int() - 1, torch.zeros(32, dtype=torch.int32)),
    lambda x, y: torch.cat([x[x > 0], y[: int((x <= 0).sum())]]),
    1,
)

case(
    "half_add",
    r"""
#include <cuda_fp16.h>
__global__ void half_add(const __half* x, const half* y, __half* z, int n) {
    int i = threadIdx.x;
    if (i < n) z[i] = __float2half(__half2float(x[i]) + __half2float(y[i])) * __half(2.0f);
}
""",
    (1, 64),
    lambda: (floats(50).half(), floats(50, seed=1).half(), torch.zeros(50).half(), 50),
    lambda x, y, z, n: (x + y) * 2,
    2,
)

case(
    "bf16_scale",
    r"""
#include <cuda_bf16.h>
__global__ void bf16_scale(const __nv_bfloat16* x, __nv_bfloat16* y, float scale) {
    int i = blockIdx.z * 32 + threadIdx.z;
    y[i] = __float2bfloat16(__bfloat162float(x[i]) * scale);
}
""",
    ((1, 1, 2), (1, 1, 32)),
    lambda: (floats(64).bfloat16(), torch.zeros(64).bfloat16(), 3.0),
    lambda x, y, scale: (x.float() * scale).bfloat16(),
    1,
)

case(
    "typed",
    r"""
template <typename T, int TIMES>
__global__ void typed(const T* x, T* y, long long n) {
    long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
    if (i < n) y[i] = x[i] * T(TIMES);
}
""",
    (2, 32),
    lambda: (floats(50).double(), torch.zeros(50).double(), 50),
    lambda x, y, n: x * 3,
    1,
    kernel="typed<double, 3>",
)

case(
    "in_warp",
    r"""
__global__ void in_warp(const float* x, float* y) {
    __shared__ float kept[64];
    int i = threadIdx.x;
    kept[i] = x[i];
    __syncwarp(); // written
    float next = kept[i ^ 1];
    __syncwarp(); // read
    kept[i] = next;
    y[i] = kept[i];
}
""",
    (1, 64),
    lambda: (floats(64), torch.zeros(64)),
    lambda x, y: x.view(-1, 2).flip(1).reshape(-1),
    1,
)

case(
    "last_block",
    r"""
__global__ void last_block(const float* x, float* parts, int* done, float* out) {
    parts[blockIdx.x] = x[blockIdx.x];
    __threadfence();
    int before = atomicAdd(done, 1);
    if (before == gridDim.x - 1) {
        float sum = 0;
        for (int b = 0; b < gridDim.x; b++) sum += parts[b];
        out[0] = sum;
    }
}
""",
    (9, 1),
    lambda: (floats(9), torch.zeros(9), torch.zeros(1, dtype=torch.int32), torch.zeros(1)),
    lambda x, parts, done, out: x.sum()[None],
    3,
)

case(
    "gather",
    r"""
__global__ void gather(const float2* x, const int* index, float2* y, int n, int groups) {
    int i = threadIdx.x;
    if (i >= n) return;
    float2 v = __ldg(&x[index[i]]);
    y[i] = make_float2(v.y, v.x + (n / groups));
}
""",
    (1, 32),
    lambda: (
        floats(20, 2),
        torch.arange(19, -1, -1, dtype=torch.int32),
        torch.zeros(20, 2),
        20,
        4,
    ),
    lambda x, index, y, n, groups: torch.stack([x.flip(0)[:, 1], x.flip(0)[:, 0] + 5], 1),
    2,
)

case(
    "half_warp",
    r"""
__global__ void half_warp(const float* x, float* y) {
    float v = x[threadIdx.x];
    if (threadIdx.x < 16) {
        for (int o = 8; o > 0; o /= 2) v += __shfl_xor_sync(0x0000ffff, v, o);
    } else {
        for (int o = 8; o > 0; o /= 2) v = fmaxf(v, __shfl_xor_sync(0xffff0000, v, o, 16));
    }
    y[threadIdx.x] = v;
}
""",
    (1, 32),
    lambda: (floats(32), torch.zeros(32)),
    lambda x, y: torch.cat([x[:16].sum().expand(16), x[16:].max().expand(16)]),
    1,
)

case(
    "activate",
    r"""
__global__ void activate(const float* x, float* y, int n, bool exact) {
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += blockDim.x * gridDim.x) {
        float v = x[i];
        y[i] = exact ? 0.5f * v * (1 + erff(v * 0.70710678f)) : v / (1 + __expf(-v)) + tanhf(v);
    }
}
""",
    (2, 32),
    lambda: (floats(333), torch.zeros(333), 333, True),
    lambda x, y, n, exact: torch.nn.functional.gelu(x),
    1,
)
