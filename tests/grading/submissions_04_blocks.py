"""Answers to 04.5, 04.6, 04.7, 04.9 and 04.10, where the threads of a block work together."""

import math

import torch

from tests.grading.submissions_04 import edited, kernels

# 04.5: the sum of a row by a tree.
SUM = r"""
#define THREADS 256
__global__ void row_sum(const float* x, float* sums, int n_cols) {
    __shared__ float part[THREADS];
    const float* row = x + blockIdx.x * n_cols;
    float sum = 0;
    for (int col = threadIdx.x; col < n_cols; col += THREADS) sum += row[col];
    part[threadIdx.x] = sum;
    __syncthreads();
    for (int half = THREADS / 2; half > 0; half /= 2) {
        if (threadIdx.x < half) part[threadIdx.x] += part[threadIdx.x + half];
        __syncthreads();
    }
    if (threadIdx.x == 0) sums[blockIdx.x] = part[0];
}
"""
_STORE = "    part[threadIdx.x] = sum;\n    __syncthreads();\n"
_STEP = """        if (threadIdx.x < half) part[threadIdx.x] += part[threadIdx.x + half];
        __syncthreads();
"""
_IN_BRANCH = """        if (threadIdx.x < half) {
            part[threadIdx.x] += part[threadIdx.x + half];
            __syncthreads();
        }
"""
_LOOP = SUM[SUM.index("    for (int half") : SUM.index("    if (threadIdx.x == 0)")]
SUMS = (
    kernels(
        right=SUM,
        held=edited(
            SUM,
            (
                _STEP,
                """        if (threadIdx.x < half) sum += part[threadIdx.x + half];
        __syncthreads();
        if (threadIdx.x < half) part[threadIdx.x] = sum;
        __syncthreads();
""",
            ),
        ),
        serial=edited(
            SUM,
            (
                _LOOP,
                "    if (threadIdx.x == 0) for (int i = 1; i < THREADS; i++) part[0] += part[i];\n",
            ),
        ),
        warp=r"""
__global__ void row_sum(const float* x, float* sums, int n_cols) {
    __shared__ float of_warp[8];
    float sum = 0;
    for (int col = threadIdx.x; col < n_cols; col += blockDim.x)
        sum += x[blockIdx.x * n_cols + col];
    for (int offset = 16; offset > 0; offset /= 2)
        sum += __shfl_down_sync(0xffffffff, sum, offset);
    if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = sum;
    __syncthreads();
    if (threadIdx.x == 0) {
        for (int warp = 1; warp < 8; warp++) sum += of_warp[warp];
        sums[blockIdx.x] = sum;
    }
}
""",
    )
    | kernels(
        given=edited(SUM, (_STORE, "    part[threadIdx.x] = sum;\n"), (_STEP, _IN_BRANCH)),
        first_missing=edited(SUM, (_STORE, "    part[threadIdx.x] = sum;\n")),
        in_branch=edited(SUM, (_STEP, _IN_BRANCH)),
        none_in_loop=edited(SUM, (_STEP, _STEP.split("\n")[0] + "\n")),
        half_loop=edited(SUM, ("half > 0", "half > 1")),
        low_loop=edited(SUM, ("THREADS / 2", "THREADS / 4")),
        no_tree=edited(SUM, (_LOOP, "")),
        overlapping=edited(SUM, ("blockIdx.x * n_cols", "blockIdx.x")),
        first_row=edited(SUM, (" + blockIdx.x * n_cols", "")),
        mean=edited(SUM, ("= part[0];", "= part[0] / n_cols;")),
        interleaved=edited(
            SUM,
            (
                _LOOP,
                """    for (int step = 1; step < THREADS; step *= 2) {
        int i = 2 * step * threadIdx.x;
        if (i < THREADS) part[i] += part[i + step];
        __syncthreads();
    }
""",
            ),
        ),
        beyond=edited(SUM, ("col < n_cols", "col <= n_cols")),
    )
    | kernels(
        time_limit_s=2.0,
        endless=edited(SUM, ("half /= 2", "half /= 1")),
    )
)


def sum_with(name, threads=256, fewer=0):
    def row_sum(x):
        sums = torch.empty(len(x), device=x.device)
        SUMS[name].row_sum[max(len(x) - fewer, 1), threads](x, sums, x.shape[1])
        return sums

    return row_sum


# 04.6: 1 / rms of a row by shuffles.
RMS = r"""
__device__ float warp_sum(float value) {
    for (int offset = 16; offset > 0; offset /= 2)
        value += __shfl_xor_sync(0xffffffff, value, offset);
    return value;
}
__global__ void inverse_rms(const float* x, float* out, int n_cols, float eps) {
    __shared__ float of_warp[32];
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, n_warps = blockDim.x / 32;
    const float* row = x + blockIdx.x * n_cols;
    float sum = 0;
    for (int col = threadIdx.x; col < n_cols; col += blockDim.x) sum += row[col] * row[col];
    sum = warp_sum(sum);
    if (lane == 0) of_warp[warp] = sum;
    __syncthreads();
    sum = warp_sum(lane < n_warps ? of_warp[lane] : 0.0f);
    if (threadIdx.x == 0) out[blockIdx.x] = rsqrtf(sum / n_cols + eps);
}
"""
_LAST = "    sum = warp_sum(lane < n_warps ? of_warp[lane] : 0.0f);\n"
_TREE = edited(
    SUM,
    ("row_sum", "inverse_rms"),
    ("int n_cols)", "int n_cols, float eps)"),
    ("sum += row[col]", "sum += row[col] * row[col]"),
    ("= part[0];", "= rsqrtf(part[0] / n_cols + eps);"),
)
RMSES = kernels(
    right=RMS,
    a_warp_a_row=r"""
__global__ void inverse_rms(const float* x, float* out, int n_cols, float eps) {
    float sum = 0;
    for (int col = threadIdx.x; col < n_cols; col += 32) {
        float value = x[blockIdx.x * n_cols + col];
        sum += value * value;
    }
    for (int offset = 16; offset > 0; offset /= 2)
        sum += __shfl_down_sync(0xffffffff, sum, offset);
    if (threadIdx.x == 0) out[blockIdx.x] = 1.0f / sqrtf(sum / n_cols + eps);
}
""",
    serial=edited(
        RMS,
        (_LAST, "    sum = 0;\n    for (int i = 0; i < n_warps; i++) sum += of_warp[i];\n"),
    ),
) | kernels(
    tree=_TREE,
    half=edited(RMS, ("offset = 16", "offset = 8")),
    early=edited(RMS, ("offset > 0", "offset > 1")),
    first_warp=edited(RMS, (_LAST, "")),
    last_warp=edited(
        RMS, (_LAST, "    sum = 0;\n    for (int i = 0; i < n_warps; i++) sum = of_warp[i];\n")
    ),
    no_barrier=edited(RMS, ("    __syncthreads();\n", "")),
    divergent=edited(RMS, (_LAST, "    if (lane < n_warps) sum = warp_sum(of_warp[lane]);\n")),
    all_store=edited(RMS, ("    if (threadIdx.x == 0) out", "    out")),
    undivided=edited(RMS, ("sum / n_cols", "sum")),
    no_eps=edited(RMS, (" + eps", "")),
    root=edited(RMS, ("rsqrtf", "sqrtf")),
    plain=edited(RMS, (" * row[col];", ";")),
    narrow=edited(
        RMS, ("    sum = warp_sum(sum);", "    sum = warp_sum(__half2float(__float2half(sum)));")
    ),
    neutral=edited(RMS, (": 0.0f", ": 1.0f")),
)


def rms_with(name, threads=256):
    def inverse_rms(x, eps):
        out = torch.empty(len(x), device=x.device)
        RMSES[name].inverse_rms[len(x), threads](x, out, x.shape[1], eps)
        return out

    return inverse_rms


# 04.7: rows and columns scaled.
SCALE = r"""
__global__ void scale(const float* x, const float* inverse, const float* weight, float* y,
                      int n_rows, int n_cols) {
    int col = blockIdx.x * blockDim.x + threadIdx.x;
    int row = blockIdx.y * blockDim.y + threadIdx.y;
    if (row >= n_rows || col >= n_cols) return;
    int i = row * n_cols + col;
    y[i] = x[i] * inverse[row] * weight[col];
}
"""
SCALES = kernels(
    right=SCALE,
    flat=edited(
        SCALE,
        ("    int row = blockIdx.y * blockDim.y + threadIdx.y;\n", ""),
        (
            "int col = blockIdx.x * blockDim.x + threadIdx.x;",
            "int i = blockIdx.x * blockDim.x + threadIdx.x, row = i / n_cols, col = i % n_cols;",
        ),
        ("row >= n_rows || col >= n_cols", "row >= n_rows"),
        ("    int i = row * n_cols + col;\n", ""),
    ),
    looped=edited(
        SCALE,
        ("    int col = blockIdx.x * blockDim.x + threadIdx.x;\n", ""),
        ("blockIdx.y * blockDim.y + threadIdx.y", "blockIdx.x"),
        ("    if (row >= n_rows || col >= n_cols) return;\n", ""),
        (
            "    int i = row",
            "    for (int col = threadIdx.x, i; col < n_cols; col += blockDim.x) {\n    i = row",
        ),
        ("weight[col];\n", "weight[col]; }\n"),
    ),
) | kernels(
    given=edited(SCALE, ("int col", "int swap"), ("int row", "int col"), ("int swap", "int row")),
    no_inverse=edited(SCALE, (" * inverse[row]", "")),
    exchanged=edited(SCALE, ("inverse[row]", "inverse[col]"), ("weight[col]", "weight[row]")),
    divided=edited(SCALE, ("x[i] * inverse", "x[i] / inverse")),
    row_guard=edited(SCALE, (" || col >= n_cols", "")),
    strict=edited(SCALE, ("col >= n_cols", "col >= n_cols - 1")),
)


def scale_with(name, grid=None, block=(32, 8)):
    def my_scale(x, inverse, weight):
        y = torch.empty_like(x)
        rows, cols = x.shape
        sizes = (math.ceil(cols / block[0]), math.ceil(rows / block[-1]))
        SCALES[name].scale[grid(rows, cols) if grid else sizes, block](
            x, inverse, weight, y, rows, cols
        )
        return y

    return my_scale


def given_grid(rows, cols):
    return math.ceil(rows / 32), math.ceil(cols / 8)


# 04.9: a transpose through shared memory.
TURN = r"""
__global__ void transpose(const float* x, float* y, int n_rows, int n_cols) {
    __shared__ float tile[32][33];
    int first_row = blockIdx.y * 32, first_col = blockIdx.x * 32;
    for (int k = threadIdx.y; k < 32; k += blockDim.y) {
        int row = first_row + k, col = first_col + threadIdx.x;
        if (row < n_rows && col < n_cols) tile[k][threadIdx.x] = x[row * n_cols + col];
    }
    __syncthreads();
    for (int k = threadIdx.y; k < 32; k += blockDim.y) {
        int row = first_row + threadIdx.x, col = first_col + k;
        if (row < n_rows && col < n_cols) y[col * n_rows + row] = tile[threadIdx.x][k];
    }
}
"""
TURNS = kernels(
    right=TURN,
    swizzled=edited(
        TURN,
        ("[33]", "[32]"),
        ("tile[k][threadIdx.x]", "tile[k][threadIdx.x ^ k]"),
        ("tile[threadIdx.x][k]", "tile[threadIdx.x][threadIdx.x ^ k]"),
    ),
    columns_first=edited(
        TURN,
        ("tile[k][threadIdx.x] = x", "tile[threadIdx.x][k] = x"),
        ("= tile[threadIdx.x][k];", "= tile[k][threadIdx.x];"),
    ),
) | kernels(
    naive=r"""
__global__ void transpose(const float* x, float* y, int n_rows, int n_cols) {
    int col = blockIdx.x * 32 + threadIdx.x, row = blockIdx.y * 32 + threadIdx.y;
    if (row < n_rows && col < n_cols) y[col * n_rows + row] = x[row * n_cols + col];
}
""",
    other_naive=r"""
__global__ void transpose(const float* x, float* y, int n_rows, int n_cols) {
    int col = blockIdx.x * 32 + threadIdx.y, row = blockIdx.y * 32 + threadIdx.x;
    if (row < n_rows && col < n_cols) y[col * n_rows + row] = x[row * n_cols + col];
}
""",
    unpadded=edited(TURN, ("[33]", "[32]")),
    no_barrier=edited(TURN, ("    __syncthreads();\n", "")),
    straight=edited(TURN, ("y[col * n_rows + row]", "y[row * n_cols + col]")),
    one_guard=edited(TURN, ("row < n_rows && col < n_cols) y", "row < n_rows) y")),
    stride=edited(TURN, ("y[col * n_rows", "y[col * n_cols")),
)


def turn_with(name, rows_of_threads=8, grid=None, like_view=False):
    def my_transpose(x):
        rows, cols = x.shape
        y = torch.empty_like(x.T) if like_view else torch.empty((cols, rows), device=x.device)
        sizes = grid(rows, cols) if grid else (math.ceil(cols / 32), math.ceil(rows / 32))
        TURNS[name].transpose[sizes, (32, rows_of_threads)](x, y, rows, cols)
        return y

    return my_transpose


# 04.10: the chain.
def chain_of(add, rms, scale):
    def add_rms_norm(x, residual, weight, eps):
        h = add(x.reshape(-1), residual.reshape(-1)).reshape(x.shape)
        return scale(h, rms(h, eps), weight)

    return add_rms_norm
